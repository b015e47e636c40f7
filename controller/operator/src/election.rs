//! Which of several operators works: the one that holds a Lease. IO, around [`Observed::step`], which is pure.
//!
//! Whoever holds it renews it; whoever wants it waits until it was not renewed for its whole length, by the own clock from
//! the moment in which the last change was seen: clocks of different machines are never compared. Where a holder cannot
//! renew it for [`DEADLINE`], which is shorter than its length, it stops working at once.

use std::time::Duration;

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use rand::Rng;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::build::hexadecimal;

/// How long a Lease lasts that is not renewed.
const LASTS: Duration = Duration::from_secs(15);

/// How long its holder goes on without that it could be renewed.
const DEADLINE: Duration = Duration::from_secs(10);

/// How often it is renewed, and looked at by those who wait.
const EVERY: Duration = Duration::from_secs(2);

/// Bound on one call.
const CALL: Duration = Duration::from_secs(4);

/// One that wants to work.
#[derive(Debug, Clone)]
pub struct Candidate {
    namespace: String,
    name: String,
    identity: String,
}

/// The Lease is not ours any more, or that is not known: somebody else may work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("another operator may have taken over")]
pub struct LeadershipLost;

/// What was seen of the Lease last.
#[derive(Debug, Clone)]
struct Observed {
    lease: Lease,
    /// When it was seen first as it is.
    since: Instant,
}

/// What is done about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It is ours.
    Renew,
    /// Nobody's.
    Take,
    /// Somebody else's.
    Wait,
}

impl Observed {
    fn step(&self, identity: &str, now: Instant) -> Step {
        let spec = self.lease.spec.as_ref();
        let holder =
            spec.and_then(|spec| spec.holder_identity.as_deref()).filter(|holder| !holder.is_empty());
        let lasts =
            spec.and_then(|spec| spec.lease_duration_seconds).and_then(|seconds| u64::try_from(seconds).ok());
        let lasts = lasts.map_or(LASTS, Duration::from_secs);
        match holder {
            Some(holder) if holder == identity => Step::Renew,
            Some(_) if now.saturating_duration_since(self.since) < lasts => Step::Wait,
            _ => Step::Take,
        }
    }
}

/// The Lease as `identity` holds it from now on, in the place of this one.
fn held_by(identity: &str, before: Option<&Lease>, name: &str, now: Timestamp) -> Lease {
    let spec = before.and_then(|lease| lease.spec.clone()).unwrap_or_default();
    let same = spec.holder_identity.as_deref() == Some(identity);
    let transitions = spec.lease_transitions.unwrap_or(0);
    let metadata = match before {
        Some(lease) => lease.metadata.clone(),
        None => ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
    };
    Lease {
        metadata,
        spec: Some(LeaseSpec {
            holder_identity: Some(identity.to_owned()),
            lease_duration_seconds: i32::try_from(LASTS.as_secs()).ok(),
            acquire_time: if same { spec.acquire_time } else { Some(MicroTime(now)) },
            renew_time: Some(MicroTime(now)),
            lease_transitions: Some(if same { transitions } else { transitions.saturating_add(1) }),
            ..LeaseSpec::default()
        }),
    }
}

impl Candidate {
    /// For the Lease of this name. An `identity` must be nobody else's: the name of the pod is such a one, and lets a
    /// container that is started anew go on at once. Without one it is random.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: Option<String>) -> Self {
        let random = || {
            let mut bytes = [0_u8; 8];
            rand::rng().fill_bytes(&mut bytes);
            format!("operator-{}", hexadecimal(&bytes))
        };
        Self { namespace: namespace.into(), name: name.into(), identity: identity.unwrap_or_else(random) }
    }

    fn api(&self, client: &Client) -> Api<Lease> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    /// Waits until the Lease is ours; nothing when `shutdown` comes before.
    pub(crate) async fn win(&self, client: &Client, shutdown: &CancellationToken) -> Option<Held> {
        let api = self.api(client);
        let mut observed = None;
        loop {
            let since = Instant::now();
            match timeout(CALL, self.try_to_win(&api, &mut observed)).await {
                Ok(Ok(Some(lease))) => {
                    tracing::info!(identity = self.identity, "leading");
                    return Some(Held { candidate: self.clone(), api, lease, renewed_at: since });
                }
                Ok(Ok(None)) => {}
                Ok(Err(error)) => {
                    tracing::warn!(error = %error, "the lease cannot be had; it is tried again");
                }
                Err(late) => tracing::warn!(error = %late, "the lease cannot be had; it is tried again"),
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                () = shutdown.cancelled() => return None,
            }
        }
    }

    async fn try_to_win(
        &self,
        api: &Api<Lease>,
        observed: &mut Option<Observed>,
    ) -> Result<Option<Lease>, kube::Error> {
        let lease = api.get_opt(&self.name).await?;
        let (now, clock) = (Instant::now(), Timestamp::now());
        let Some(lease) = lease else {
            let lease = held_by(&self.identity, None, &self.name, clock);
            return unless_raced(api.create(&PostParams::default(), &lease).await);
        };
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        let holder = |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
        let before = observed.as_ref().and_then(|seen| holder(&seen.lease));
        let seen = match observed {
            Some(seen) if version(&seen.lease) == version(&lease) => seen,
            other => other.insert(Observed { lease: lease.clone(), since: now }),
        };
        if seen.step(&self.identity, now) == Step::Wait {
            let holder = holder(&lease);
            if before != holder {
                tracing::info!(holder, "another operator leads; waiting");
            }
            return Ok(None);
        }
        let lease = held_by(&self.identity, Some(&lease), &self.name, clock);
        unless_raced(api.replace(&self.name, &PostParams::default(), &lease).await)
    }
}

/// Nothing where somebody else was quicker.
fn unless_raced(written: Result<Lease, kube::Error>) -> Result<Option<Lease>, kube::Error> {
    match written {
        Ok(lease) => Ok(Some(lease)),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
        Err(error) => Err(error),
    }
}

/// The Lease, while it is ours.
#[derive(Debug)]
pub(crate) struct Held {
    candidate: Candidate,
    api: Api<Lease>,
    lease: Lease,
    renewed_at: Instant,
}

impl Held {
    /// Renews it until that does not work any more.
    pub(crate) async fn keep(&mut self) -> LeadershipLost {
        loop {
            tokio::time::sleep(EVERY).await;
            let left = DEADLINE.saturating_sub(self.renewed_at.elapsed());
            if left.is_zero() {
                return LeadershipLost;
            }
            let since = Instant::now();
            let error = match timeout(CALL.min(left), self.renew()).await {
                Ok(Ok(true)) => {
                    self.renewed_at = since;
                    continue;
                }
                Ok(Ok(false)) => return LeadershipLost,
                Ok(Err(error)) => error.to_string(),
                Err(late) => late.to_string(),
            };
            tracing::warn!(error, "the lease was not renewed");
        }
    }

    /// False when somebody else holds it.
    async fn renew(&mut self) -> Result<bool, kube::Error> {
        let identity = &self.candidate.identity;
        let next = held_by(identity, Some(&self.lease), &self.candidate.name, Timestamp::now());
        match unless_raced(self.api.replace(&self.candidate.name, &PostParams::default(), &next).await)? {
            Some(lease) => {
                self.lease = lease;
                Ok(true)
            }
            // A renewal that was given up may have arrived.
            None => match self.api.get_opt(&self.candidate.name).await? {
                Some(lease)
                    if lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref())
                        == Some(identity) =>
                {
                    self.lease = lease;
                    Ok(true)
                }
                _ => Ok(false),
            },
        }
    }

    /// Gives it up, so that another one may begin at once.
    pub(crate) async fn give_up(mut self) {
        let spec = self.lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        let parameters = PostParams::default();
        match timeout(CALL, self.api.replace(&self.candidate.name, &parameters, &self.lease)).await {
            Ok(Ok(_)) => tracing::info!("the lease was given up"),
            Ok(Err(error)) => tracing::debug!(error = %error, "the lease was not given up"),
            Err(late) => tracing::debug!(error = %late, "the lease was not given up"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[tokio::test]
    async fn a_lease_is_anothers_until_nothing_was_seen_of_it_for_its_length() {
        let since = Instant::now();
        let at = |seconds: u64| since + Duration::from_secs(seconds);
        let observed = |holder: Option<&str>, lasts: Option<i32>| Observed {
            lease: Lease {
                spec: Some(LeaseSpec {
                    holder_identity: holder.map(str::to_owned),
                    lease_duration_seconds: lasts,
                    // By the clock of another machine: it says nothing.
                    renew_time: Some(MicroTime(Timestamp::UNIX_EPOCH)),
                    ..LeaseSpec::default()
                }),
                ..Lease::default()
            },
            since,
        };
        for (seen, now, expected) in [
            (observed(Some("me"), Some(15)), at(60), Step::Renew),
            (observed(Some("other"), Some(15)), at(0), Step::Wait),
            (observed(Some("other"), Some(15)), at(14), Step::Wait),
            (observed(Some("other"), Some(15)), at(15), Step::Take),
            (observed(Some("other"), Some(60)), at(15), Step::Wait),
            (observed(Some("other"), None), at(14), Step::Wait),
            (observed(Some("other"), Some(-1)), at(15), Step::Take),
            (observed(Some(""), Some(15)), at(0), Step::Take),
            (observed(None, None), at(0), Step::Take),
            (Observed { lease: Lease::default(), since }, at(0), Step::Take),
        ] {
            assert_eq!(seen.step("me", now), expected, "{seen:?}");
        }
    }

    fn lease_of(holder: &str, version: &str) -> serde_json::Value {
        serde_json::json!({
            "metadata": { "name": "berth-operator", "resourceVersion": version },
            "spec": { "holderIdentity": holder, "leaseDurationSeconds": 15, "leaseTransitions": 1 },
        })
    }

    #[tokio::test]
    async fn who_waits_writes_nothing_and_who_was_quicker_has_it() {
        for (holder, expected) in [("other", 0), ("", 1)] {
            let (context, calls) = fake::context(move |call| match call.method.as_str() {
                "GET" => (200, lease_of(holder, "1")),
                _ => fake::refused(409, "it was changed"),
            });
            let candidate = Candidate::new("berth-system", "berth-operator", Some("me".to_owned()));
            let won = candidate.try_to_win(&candidate.api(&context.client), &mut None).await.unwrap();
            assert!(won.is_none(), "{holder:?}");
            let written = calls.of("PUT", "/berth-operator");
            assert_eq!(written.len(), expected, "{holder:?}");
            assert!(written.iter().all(|call| call.body["metadata"]["resourceVersion"] == "1"));
        }
    }

    #[tokio::test]
    async fn a_lease_that_somebody_else_has_written_is_lost_and_a_renewal_that_was_given_up_is_not() {
        for (holder, expected) in [("other", false), ("me", true)] {
            let (context, _) = fake::context(move |call| match call.method.as_str() {
                "GET" => (200, lease_of(holder, "2")),
                _ => fake::refused(409, "it was changed"),
            });
            let candidate = Candidate::new("berth-system", "berth-operator", Some("me".to_owned()));
            let (api, lease) = (candidate.api(&context.client), serde_json::from_value(lease_of("me", "1")));
            let mut held = Held { candidate, api, lease: lease.unwrap(), renewed_at: Instant::now() };
            assert_eq!(held.renew().await.unwrap(), expected, "{holder}");
        }
    }

    #[test]
    fn who_takes_it_counts_a_transition_and_who_renews_it_does_not() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let first = held_by("one", None, "berth-operator", at(1));
        let renewed = held_by("one", Some(&first), "berth-operator", at(2));
        let taken = held_by("two", Some(&renewed), "berth-operator", at(3));
        let told = |lease: &Lease| {
            let spec = lease.spec.clone().unwrap();
            let seconds = |time: Option<MicroTime>| time.unwrap().0.as_second();
            (spec.lease_transitions.unwrap(), seconds(spec.acquire_time), seconds(spec.renew_time))
        };
        assert_eq!((told(&first), told(&renewed), told(&taken)), ((1, 1, 1), (1, 1, 2), (2, 3, 3)));
        assert_eq!(first.metadata.name.as_deref(), Some("berth-operator"));
    }

    #[test]
    fn a_holder_gives_up_before_anybody_else_can_begin() {
        assert!(DEADLINE + EVERY < LASTS && EVERY + CALL < DEADLINE, "and not because of one slow answer");
    }

    #[test]
    fn no_two_candidates_are_the_same_unless_they_are_told_to_be() {
        let candidate = |identity: Option<&str>| {
            Candidate::new("berth-system", "berth-operator", identity.map(str::to_owned)).identity
        };
        assert_ne!(candidate(None), candidate(None));
        assert_eq!(candidate(Some("pod-1")), "pod-1");
    }
}
