//! Removes what sandboxes of a namespace shared and nobody uses any more: network policies with rules that no pod has, and in
//! a namespace that has no sandbox left also the policy that closes their pods and the Service that names them. IO, around
//! [`unused`], which is pure.
//!
//! A policy with rules only opens: to remove one can only close. The one that closes goes last, when no pod is left that it
//! closes. Each is removed only as it was seen, after a quiet period, and while no pass is in the namespace, which would
//! make a pod that needs it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use berth_api::{Sandbox, names};
use berth_wire::problem::error_chain;
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    networking::v1::NetworkPolicy,
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, ObjectMeta, PartialObjectMeta, Preconditions},
};
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    error::{ReconcileError, cannot},
    metrics::Metrics,
    namespaces::Namespaces,
};

/// Looks until `shutdown`, twice in the time `quiet` for which nobody must have used what is removed. Sandboxes have the rules
/// with the hash `current` now.
pub(crate) async fn run(
    client: Client,
    swept: Swept,
    namespaces: Namespaces,
    metrics: Metrics,
    shutdown: CancellationToken,
) {
    let every = swept.quiet.div_f64(2.0);
    let mut sweep = Sweep { client, swept, namespaces, metrics, since: HashMap::new() };
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
        if let Err(error) = sweep.look().await {
            tracing::warn!(error = error_chain(&error), "what nobody uses any more cannot be looked for");
        }
    }
}

/// What is removed, and when.
#[derive(Debug, Clone)]
pub(crate) struct Swept {
    /// Hash of the rules that sandboxes have now.
    pub(crate) current: String,
    /// For how long nobody must have used it.
    pub(crate) quiet: Duration,
}

/// What is shared in a namespace, in the order in which it is removed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// The policy with the rules of this hash.
    Rules(String),
    /// The Service that names pods.
    Service,
    /// The policy that closes pods.
    DefaultDeny,
}

/// One object, as it was seen. One that is written meanwhile is another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Version {
    uid: String,
    resource_version: String,
}

/// Something that is shared.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shared {
    kind: Kind,
    version: Version,
}

/// What is in a namespace.
#[derive(Debug, Default)]
struct Content {
    has_sandboxes: bool,
    /// Hashes of the rules that its pods have, `None` where a pod has none. Empty where there are no pods.
    rules: BTreeSet<Option<String>>,
    shared: Vec<Shared>,
}

struct Sweep {
    client: Client,
    swept: Swept,
    namespaces: Namespaces,
    metrics: Metrics,
    /// What was found unused, and since when.
    since: HashMap<Version, Instant>,
}

impl Sweep {
    async fn look(&mut self) -> Result<(), ReconcileError> {
        let now = Instant::now();
        let found = contents(&self.client, None).await?;
        let of = |(namespace, content)| {
            let unused = unused(content, &self.swept.current).into_iter();
            unused.map(move |shared| (namespace, shared.version.clone()))
        };
        let unused: Vec<(&String, Version)> = found.iter().flat_map(of).collect();
        let is_due = |(namespace, version): &(&String, Version)| {
            let since = self.since.get(version)?;
            (now.saturating_duration_since(*since) >= self.swept.quiet).then(|| (*namespace).clone())
        };
        let due: BTreeSet<String> = unused.iter().filter_map(is_due).collect();
        let since = |version: &Version| self.since.get(version).copied().unwrap_or(now);
        self.since = unused.iter().map(|(_, version)| (version.clone(), since(version))).collect();
        for namespace in due {
            self.clear(&namespace, now).await?;
        }
        Ok(())
    }

    /// Looks again while nobody is there, and removes what is due.
    async fn clear(&self, namespace: &str, now: Instant) -> Result<(), ReconcileError> {
        let Some(_alone) = self.namespaces.try_clear(namespace) else { return Ok(()) };
        let found = contents(&self.client, Some(namespace)).await?;
        let Some(content) = found.get(namespace) else { return Ok(()) };
        for shared in unused(content, &self.swept.current) {
            let since = self.since.get(&shared.version);
            if since.is_some_and(|since| now.saturating_duration_since(*since) >= self.swept.quiet) {
                self.remove(namespace, shared).await?;
            }
        }
        Ok(())
    }

    async fn remove(&self, namespace: &str, shared: &Shared) -> Result<(), ReconcileError> {
        let (uid, version) = (shared.version.uid.clone(), shared.version.resource_version.clone());
        let preconditions = Preconditions { uid: Some(uid), resource_version: Some(version) };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let name = shared.kind.name();
        let result = if shared.kind == Kind::Service {
            let api: Api<Service> = Api::namespaced(self.client.clone(), namespace);
            api.delete(&name, &parameters).await.map(drop)
        } else {
            let api: Api<NetworkPolicy> = Api::namespaced(self.client.clone(), namespace);
            api.delete(&name, &parameters).await.map(drop)
        };
        match result {
            Ok(()) => {
                tracing::info!(namespace, name, "an object that nobody used any more was removed");
                self.metrics.swept(shared.kind.label());
                Ok(())
            }
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
            Err(error) => Err(cannot("remove what nobody uses any more")(error)),
        }
    }
}

impl Kind {
    fn name(&self) -> String {
        match self {
            Self::Rules(hash) => names::rule_set(hash),
            Self::Service => names::SERVICE.to_owned(),
            Self::DefaultDeny => names::DEFAULT_DENY.to_owned(),
        }
    }

    /// For a metric.
    fn label(&self) -> &'static str {
        match self {
            Self::Rules(_) => "rules",
            Self::Service => "service",
            Self::DefaultDeny => "default_deny",
        }
    }
}

/// What there is in each namespace, or in one.
async fn contents(client: &Client, only: Option<&str>) -> Result<BTreeMap<String, Content>, ReconcileError> {
    let ours = format!("{}={}", names::MANAGED_BY, names::MANAGER);
    let mut contents = BTreeMap::<String, Content>::new();
    for policy in list::<NetworkPolicy>(client, only, &ours).await.map_err(cannot("list network policies"))? {
        note(&mut contents, policy, policy_kind);
    }
    let is_service =
        |metadata: &ObjectMeta| (metadata.name.as_deref() == Some(names::SERVICE)).then_some(Kind::Service);
    for service in list::<Service>(client, only, &ours).await.map_err(cannot("list services"))? {
        note(&mut contents, service, is_service);
    }
    if contents.is_empty() {
        return Ok(contents);
    }
    // Those that the policy closes, whoever made them.
    for pod in list::<Pod>(client, only, names::SANDBOX).await.map_err(cannot("list pods"))? {
        let content = contents.entry(pod.namespace.clone().unwrap_or_default()).or_default();
        content.rules.insert(rule_set(&pod));
    }
    for sandbox in list::<Sandbox>(client, only, "").await.map_err(cannot("list sandboxes"))? {
        contents.entry(sandbox.namespace.unwrap_or_default()).or_default().has_sandboxes = true;
    }
    Ok(contents)
}

async fn list<K>(client: &Client, only: Option<&str>, labels: &str) -> kube::Result<Vec<ObjectMeta>>
where
    K: Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let api: Api<K> = match only {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    let found = api.list_metadata(&ListParams::default().labels(labels)).await?;
    Ok(found.items.into_iter().map(|object: PartialObjectMeta<K>| object.metadata).collect())
}

fn note(
    contents: &mut BTreeMap<String, Content>,
    metadata: ObjectMeta,
    kind: impl Fn(&ObjectMeta) -> Option<Kind>,
) {
    let Some(kind) = kind(&metadata) else { return };
    let (Some(uid), Some(resource_version)) = (metadata.uid, metadata.resource_version) else { return };
    let content = contents.entry(metadata.namespace.unwrap_or_default()).or_default();
    content.shared.push(Shared { kind, version: Version { uid, resource_version } });
}

/// `None` where it only has a label of ours.
fn policy_kind(metadata: &ObjectMeta) -> Option<Kind> {
    let kind = rule_set(metadata).map_or(Kind::DefaultDeny, Kind::Rules);
    (metadata.name.as_deref() == Some(&kind.name())).then_some(kind)
}

fn rule_set(metadata: &ObjectMeta) -> Option<String> {
    metadata.labels.as_ref()?.get(names::RULE_SET).cloned()
}

/// What nothing in its namespace needs, nor will need when a sandbox there is made again; in the order of its removal.
fn unused<'a>(content: &'a Content, current: &str) -> Vec<&'a Shared> {
    let is_unused = |shared: &&Shared| match &shared.kind {
        Kind::Rules(hash) => {
            let is_wanted = content.has_sandboxes && hash == current;
            !is_wanted && !content.rules.contains(&Some(hash.clone()))
        }
        Kind::Service | Kind::DefaultDeny => !content.has_sandboxes && content.rules.is_empty(),
    };
    let mut unused: Vec<&Shared> = content.shared.iter().filter(is_unused).collect();
    unused.sort_by(|a, b| a.kind.cmp(&b.kind));
    unused
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake;

    #[tokio::test]
    async fn what_was_unused_for_long_is_removed_as_it_was_seen() {
        let (context, calls) = fake::context(|call| {
            let policy = json!({ "metadata": {
                "name": names::rule_set("old"), "namespace": "team", "uid": "u", "resourceVersion": "7",
                "labels": { names::RULE_SET: "old" },
            } });
            let items = if call.path.ends_with("/networkpolicies") { vec![policy] } else { Vec::new() };
            match call.method.as_str() {
                "DELETE" => (200, json!({ "kind": "Status", "status": "Success" })),
                _ => (200, json!({ "metadata": {}, "items": items })),
            }
        });
        let fake::Context { client, metrics, .. } = context;
        let swept = Swept { current: "now".to_owned(), quiet: Duration::from_hours(1) };
        let namespaces = Namespaces::default();
        let mut sweep = Sweep { client, swept, namespaces, metrics, since: HashMap::new() };
        sweep.look().await.unwrap();
        sweep.look().await.unwrap();
        let deleted = || calls.of("DELETE", &names::rule_set("old"));
        assert_eq!(deleted().len(), 0, "it was not unused for long");
        sweep.swept.quiet = Duration::ZERO;
        sweep.look().await.unwrap();
        let expected = json!({ "uid": "u", "resourceVersion": "7" });
        assert_eq!(deleted().iter().map(|call| &call.body["preconditions"]).collect::<Vec<_>>(), [&expected]);
    }

    fn shared(kind: Kind) -> Shared {
        let version = Version { uid: kind.name(), resource_version: "1".to_owned() };
        Shared { kind, version }
    }

    fn content(has_sandboxes: bool, pods: &[Option<&str>]) -> Content {
        let rules = ["old", "used", "now"].map(|hash| Kind::Rules(hash.to_owned()));
        let shared = [Kind::DefaultDeny, Kind::Service].into_iter().chain(rules).map(shared).collect();
        let rules = pods.iter().map(|hash| hash.map(str::to_owned)).collect();
        Content { has_sandboxes, rules, shared }
    }

    #[test]
    fn what_no_pod_has_and_no_sandbox_will_have_is_unused() {
        for (has_sandboxes, pods, expected) in [
            (true, &[Some("used"), None][..], &["berth-rules-old"][..]),
            (true, &[], &["berth-rules-old", "berth-rules-used"]),
            // A pod whose sandbox is gone ends, and stays closed for as long.
            (false, &[Some("used")], &["berth-rules-now", "berth-rules-old"]),
            (false, &[None], &["berth-rules-now", "berth-rules-old", "berth-rules-used"]),
            (
                false,
                &[],
                &[
                    "berth-rules-now",
                    "berth-rules-old",
                    "berth-rules-used",
                    names::SERVICE,
                    names::DEFAULT_DENY,
                ],
            ),
        ] {
            let content = content(has_sandboxes, pods);
            let found: Vec<String> =
                unused(&content, "now").into_iter().map(|shared| shared.kind.name()).collect();
            assert_eq!(found, expected, "{has_sandboxes} {pods:?}");
        }
    }

    #[test]
    fn what_only_has_a_label_of_ours_is_not_ours() {
        let kind = |name: &str, labels: serde_json::Value| {
            policy_kind(&serde_json::from_value(json!({ "name": name, "labels": labels })).unwrap())
        };
        let rules = || json!({ names::RULE_SET: "old" });
        assert_eq!(kind(&names::rule_set("old"), rules()), Some(Kind::Rules("old".to_owned())));
        assert_eq!(kind(names::DEFAULT_DENY, json!({})), Some(Kind::DefaultDeny));
        assert_eq!(kind("a-persons", rules()), None);
        assert_eq!(kind(&names::rule_set("other"), rules()), None);
        assert_eq!(kind("a-persons", json!({})), None);
        assert_eq!(kind(names::DEFAULT_DENY, rules()), None);
    }
}
