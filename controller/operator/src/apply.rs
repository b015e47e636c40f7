//! Writes the objects of a sandbox to the cluster. IO.
//!
//! What is shared or may be changed in place is applied; pods and Secrets are made by creating them and told apart by
//! their owner's UID: applying would merge ours into somebody else's Secret, and would say yes to a pod that is ending.

use std::{fmt::Debug, time::Duration};

use berth_api::{Reason, Sandbox, names, status::LastExit};
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{PersistentVolumeClaim, Pod, Secret},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{
    build::{Passwords, Resources, build_secret},
    decide::{PodStep, Wish, is_owned, next_step},
    error::{ReconcileError, cannot},
    judge::Blocked,
    passwords::new_password,
    prepare::{Prepared, PreparedWorkspace},
    protection, refusal,
};

/// How soon a name is looked at again that is taken by what is going away, at first and when that takes long: a volume or
/// a pod whose node is lost may be going for hours.
const SOON: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(15)];

/// How long that may take before it counts as long, in seconds.
const LONG: i64 = 60;

/// How soon it is tried again to make what the cluster refused.
const REFUSED: Duration = Duration::from_secs(30);

/// How soon it is looked again at what is going away, for a sandbox that was made then.
fn soon(made_at: Option<Timestamp>, now: Timestamp) -> Duration {
    let [soon, later] = SOON;
    let waits_long = made_at.is_some_and(|at| now.duration_since(at).as_secs() >= LONG);
    if waits_long { later } else { soon }
}

/// What the status tells that the pod depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known<'a> {
    /// How pods and containers ended.
    pub(crate) exits: &'a [LastExit],
    /// Turns run, or wait.
    pub(crate) at_work: bool,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// The pod that is there now, if it is the sandbox's.
    pub(crate) pod: Option<Pod>,
    /// The claim that is there now.
    pub(crate) claim: Option<PersistentVolumeClaim>,
    /// The Secret, if it is the sandbox's.
    pub(crate) secret: Option<Secret>,
    /// What stands in the way.
    pub(crate) blocked: Option<Blocked>,
    /// When to look again, where no watch will tell.
    pub(crate) again: Option<Duration>,
    /// What was decided about the pod.
    pub(crate) step: Option<PodStep>,
}

/// Why one object was not made.
enum Halt {
    /// For what it is.
    Blocked(Blocked, Duration),
    /// For now.
    Failed(ReconcileError),
}

impl From<ReconcileError> for Halt {
    fn from(error: ReconcileError) -> Self {
        Self::Failed(error)
    }
}

/// Writes everything, in the order in which one thing needs another: a pod is made when its rules are there. `pod` is
/// what is there under the pod's name.
pub(crate) async fn apply(
    client: &Client,
    prepared: &Prepared,
    resources: Resources,
    pod: Option<Pod>,
    known: Known<'_>,
) -> Result<Applied, ReconcileError> {
    let owned = pod.as_ref().is_some_and(|pod| is_owned(pod, &prepared.owner.uid));
    let mut applied = Applied { pod: pod.clone().filter(|_| owned), ..Applied::default() };
    match Box::pin(write(client, prepared, resources, (pod, known), &mut applied)).await {
        Ok(()) => Ok(applied),
        Err(Halt::Blocked(blocked, again)) => {
            Ok(Applied { blocked: Some(blocked), again: Some(again), ..applied })
        }
        Err(Halt::Failed(error)) => Err(error),
    }
}

async fn write(
    client: &Client,
    prepared: &Prepared,
    resources: Resources,
    (there, known): (Option<Pod>, Known<'_>),
    applied: &mut Applied,
) -> Result<(), Halt> {
    let Resources { default_deny, rule_set, service, claim, pod } = resources;
    let namespace = &*prepared.namespace;
    patch(client, namespace, "close the namespace's pods", &default_deny).await?;
    patch(client, namespace, "apply the network rules", &rule_set).await?;
    patch(client, namespace, "apply the service", &service).await?;
    applied.secret = Some(ensure_secret(client, prepared).await?);
    if let Some(claim) = claim {
        applied.claim = Some(ensure_claim(client, prepared, &claim).await?);
    }
    let wish = Wish {
        owner: &prepared.owner.uid,
        suspended: prepared.suspended,
        ephemeral: matches!(prepared.workspace, PreparedWorkspace::Ephemeral { .. }),
        exits: known.exits,
    };
    let step = next_step(there.as_ref(), &wish, Timestamp::now());
    applied.step = Some(step.clone());
    if let (PodStep::Keep, Some(there)) = (&step, &there) {
        return keep_in_step(client, prepared, &pod, there, known.at_work).await;
    }
    ensure_pod(client, prepared, (step, pod), there, applied).await
}

/// Applies one object as it should be.
async fn patch<K>(client: &Client, namespace: &str, what: &'static str, object: &K) -> Result<K, Halt>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let name = object.meta().name.clone().ok_or(ReconcileError::Incomplete("name"))?;
    let written = api.patch(&name, &PatchParams::apply(names::MANAGER).force(), &Patch::Apply(object)).await;
    written.map_err(halt(what))
}

/// Tells apart what is refused for what it is.
fn halt(what: &'static str) -> impl FnOnce(kube::Error) -> Halt {
    move |error| {
        let blocked = match &error {
            kube::Error::Api(status) => refusal::blocked(status),
            _ => None,
        };
        match blocked {
            Some(blocked) => Halt::Blocked(blocked, REFUSED),
            None => Halt::Failed(cannot(what)(error)),
        }
    }
}

fn taken(kind: &str, name: &str, going: bool, prepared: &Prepared) -> Halt {
    if going {
        let again = soon(prepared.made_at, Timestamp::now());
        let message = format!("The {kind} {name} of an earlier sandbox is being deleted");
        return Halt::Blocked(Blocked { reason: Reason::Creating, message }, again);
    }
    let message =
        format!("The {kind} {name} is not this sandbox's: delete it, or give the sandbox another name");
    Halt::Blocked(Blocked { reason: Reason::NameConflict, message }, REFUSED)
}

/// Made once, and never written over.
async fn ensure_secret(client: &Client, prepared: &Prepared) -> Result<Secret, Halt> {
    let api: Api<Secret> = Api::namespaced(client.clone(), &prepared.namespace);
    let name = names::secret(&prepared.name);
    let there = api.get_opt(&name).await.map_err(cannot("read the secret"))?;
    if let Some(there) = there {
        let going = there.metadata.deletion_timestamp.is_some() || is_an_earlier_ones(&there, prepared);
        let ours = is_owned(&there, &prepared.owner.uid) && there.metadata.deletion_timestamp.is_none();
        return if ours { Ok(there) } else { Err(taken("secret", &name, going, prepared)) };
    }
    let passwords = Passwords { door: new_password(), opencode: new_password() };
    let secret = build_secret(prepared, &passwords);
    api.create(&PostParams::default(), &secret).await.map_err(halt("make the secret"))
}

/// Owned by a sandbox of this name that is no more: Kubernetes' own collector removes it.
fn is_an_earlier_ones(object: &impl Resource, prepared: &Prepared) -> bool {
    let owner = &prepared.owner;
    object.owner_references().iter().any(|reference| {
        reference.kind == owner.kind && reference.name == owner.name && reference.uid != owner.uid
    })
}

async fn ensure_claim(
    client: &Client,
    prepared: &Prepared,
    claim: &PersistentVolumeClaim,
) -> Result<PersistentVolumeClaim, Halt> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &prepared.namespace);
    let name = names::claim(&prepared.name);
    let there = api.get_opt(&name).await.map_err(cannot("read the claim"))?;
    if let Some(there) = &there {
        let going = there.metadata.deletion_timestamp.is_some() || is_an_earlier_ones(there, prepared);
        let kept = there.annotations().get(names::OWNER_UID) == Some(&prepared.owner.uid);
        if going || !(kept || is_owned(there, &prepared.owner.uid)) {
            return Err(taken("claim", &name, going, prepared));
        }
    }
    patch(client, &prepared.namespace, "apply the claim", claim).await
}

/// Has the claim of a sandbox that is deleted stay, where the manifest says so: also where it says so only since a moment.
pub(crate) async fn keep_claim(
    client: &Client,
    sandbox: &Sandbox,
    namespace: &str,
) -> Result<(), ReconcileError> {
    let (name, uid) = (names::claim(&sandbox.name_any()), sandbox.uid().unwrap_or_default());
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let there = api.get_opt(&name).await.map_err(cannot("read the claim"))?;
    let Some(there) = there.filter(|there| is_owned(there, &uid)) else { return Ok(()) };
    let change = json!({ "metadata": {
        "uid": there.metadata.uid, "resourceVersion": there.metadata.resource_version, "ownerReferences": null,
        "annotations": { names::OWNER_UID: uid },
    } });
    api.patch(&name, &PatchParams::default(), &Patch::Merge(&change))
        .await
        .map_err(cannot("keep the claim"))?;
    Ok(())
}

async fn ensure_pod(
    client: &Client,
    prepared: &Prepared,
    (step, wanted): (PodStep, Pod),
    there: Option<Pod>,
    applied: &mut Applied,
) -> Result<(), Halt> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &prepared.namespace);
    let name = names::pod(&prepared.name);
    match step {
        PodStep::Create => {
            applied.pod =
                Some(api.create(&PostParams::default(), &wanted).await.map_err(halt("make the pod"))?);
        }
        // Its end is seen by the watch; one that nobody made for a sandbox is not watched.
        PodStep::Wait => applied.again = Some(SOON[1]),
        PodStep::Later(pause) => applied.again = Some(pause),
        // The write of the status, or the end of the pod's turns, brings the next pass.
        PodStep::Keep | PodStep::Tell | PodStep::Stop(_) | PodStep::Rest => {}
        PodStep::Remove(uid) => remove(&api, &name, uid, None).await?,
        PodStep::Force(uid) => {
            tracing::warn!(namespace = prepared.namespace, pod = name, "a pod of a lost node is given up");
            remove(&api, &name, uid, Some(0)).await?;
        }
        PodStep::Conflict => {
            let going = there.as_ref().is_some_and(|pod| is_an_earlier_ones(pod, prepared));
            return Err(taken("pod", &name, going, prepared));
        }
    }
    Ok(())
}

/// What can be changed while the pod lives: the network's rules, and whether others may move it.
async fn keep_in_step(
    client: &Client,
    prepared: &Prepared,
    wanted: &Pod,
    there: &Pod,
    at_work: bool,
) -> Result<(), Halt> {
    let rules = |pod: &Pod| pod.labels().get(names::RULE_SET).cloned();
    let annotations = protection::changes(there, wanted, at_work);
    let mut change = json!({ "metadata": { "uid": there.metadata.uid } });
    if rules(there) != rules(wanted) {
        change["metadata"]["labels"] = json!({ names::RULE_SET: rules(wanted) });
    } else if annotations.is_empty() {
        return Ok(());
    }
    change["metadata"]["annotations"] = json!(annotations);
    let api: Api<Pod> = Api::namespaced(client.clone(), &prepared.namespace);
    let name = names::pod(&prepared.name);
    let patched = api.patch(&name, &PatchParams::default(), &Patch::Merge(&change)).await;
    patched.map_err(cannot("change the pod's rules or annotations"))?;
    Ok(())
}

/// Only the one of this UID. Without a `grace` it has the one of its manifest.
pub(crate) async fn remove(
    api: &Api<Pod>,
    name: &str,
    uid: String,
    grace_period_seconds: Option<u32>,
) -> Result<(), ReconcileError> {
    let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
    let parameters = DeleteParams { preconditions, grace_period_seconds, ..DeleteParams::default() };
    match api.delete(name, &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
        Err(error) => Err(cannot("remove the pod")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_going_for_long_is_looked_at_less_often() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (made_at, expected) in [(None, SOON[0]), (Some(at(41)), SOON[0]), (Some(at(40)), SOON[1])] {
            assert_eq!(soon(made_at, at(100)), expected, "{made_at:?}");
        }
    }
}
