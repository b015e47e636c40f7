//! Removes network policies with rules that no pod has any more. IO, around [`unused`], which is pure.
//!
//! A policy with rules only opens: to remove one can only close. One that a pod needs all the same, because it is made at
//! the same moment, is applied again by the next pass over its sandbox.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use berth_api::{Sandbox, names};
use berth_wire::problem::error_chain;
use k8s_openapi::api::{core::v1::Pod, networking::v1::NetworkPolicy};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, ObjectMeta, PartialObjectMeta, Preconditions},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    error::{ReconcileError, cannot},
    metrics::Metrics,
};

/// How often it is looked.
const EVERY: Duration = Duration::from_mins(5);

/// How long nobody must have used a policy.
const QUIET: Duration = Duration::from_mins(10);

/// Looks until `shutdown`. Sandboxes have the rules with the hash `current` now.
pub(crate) async fn run(client: Client, current: String, metrics: Metrics, shutdown: CancellationToken) {
    let mut sweep = Sweep { client, current, metrics, since: HashMap::new() };
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
        if let Err(error) = sweep.look(QUIET).await {
            tracing::warn!(
                error = error_chain(&error),
                "network rules that nobody uses cannot be looked for"
            );
        }
    }
}

/// What was found unused, and since when: by UID and version, so that one that was written meanwhile counts anew.
struct Sweep {
    client: Client,
    current: String,
    metrics: Metrics,
    since: HashMap<(String, String), Instant>,
}

impl Sweep {
    async fn look(&mut self, quiet: Duration) -> Result<(), ReconcileError> {
        let ours = format!("{}={}", names::MANAGED_BY, names::MANAGER);
        let ours = ListParams::default().labels(&format!("{ours},{}", names::RULE_SET));
        let policies: Api<NetworkPolicy> = Api::all(self.client.clone());
        let policies = policies.list_metadata(&ours).await.map_err(cannot("list network policies"))?.items;
        if policies.is_empty() {
            self.since.clear();
            return Ok(());
        }
        let pods: Api<Pod> = Api::all(self.client.clone());
        let pods = pods.list_metadata(&ours).await.map_err(cannot("list pods"))?.items;
        let sandboxes: Api<Sandbox> = Api::all(self.client.clone());
        let sandboxes = sandboxes.list_metadata(&ListParams::default()).await;
        let sandboxes = sandboxes.map_err(cannot("list sandboxes"))?.items;
        let of = |metadata: &ObjectMeta| metadata.namespace.clone().unwrap_or_default();
        let used =
            pods.iter().filter_map(|pod| Some((of(&pod.metadata), rule_set(&pod.metadata)?))).collect();
        let inhabited = sandboxes.iter().map(|sandbox| of(&sandbox.metadata)).collect();
        let unused = unused(&policies, &used, &inhabited, &self.current);
        self.remove(&unused, quiet).await
    }

    async fn remove(
        &mut self,
        unused: &[&PartialObjectMeta<NetworkPolicy>],
        quiet: Duration,
    ) -> Result<(), ReconcileError> {
        let now = Instant::now();
        let key = |policy: &PartialObjectMeta<NetworkPolicy>| {
            Some((policy.metadata.uid.clone()?, policy.metadata.resource_version.clone()?))
        };
        let keys: BTreeSet<_> = unused.iter().filter_map(|policy| key(policy)).collect();
        self.since.retain(|key, _| keys.contains(key));
        for policy in unused {
            let Some(key) = key(policy) else { continue };
            let since = *self.since.entry(key.clone()).or_insert(now);
            if now.saturating_duration_since(since) >= quiet {
                self.delete(policy, key).await?;
            }
        }
        Ok(())
    }

    /// Only as it was seen.
    async fn delete(
        &self,
        policy: &PartialObjectMeta<NetworkPolicy>,
        (uid, version): (String, String),
    ) -> Result<(), ReconcileError> {
        let (namespace, name) = (policy.namespace().unwrap_or_default(), policy.name_any());
        let preconditions = Preconditions { uid: Some(uid), resource_version: Some(version) };
        let parameters = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let api: Api<NetworkPolicy> = Api::namespaced(self.client.clone(), &namespace);
        match api.delete(&name, &parameters).await {
            Ok(_) => {
                tracing::info!(namespace, policy = name, "network rules that nobody used were removed");
                self.metrics.rule_sets_removed.inc();
                Ok(())
            }
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(()),
            Err(error) => Err(cannot("remove network rules")(error)),
        }
    }
}

fn rule_set(metadata: &ObjectMeta) -> Option<String> {
    metadata.labels.as_ref()?.get(names::RULE_SET).cloned()
}

/// Policies with rules that no pod of their namespace has, nor will have when a sandbox there is made again.
fn unused<'a>(
    policies: &'a [PartialObjectMeta<NetworkPolicy>],
    used: &BTreeSet<(String, String)>,
    inhabited: &BTreeSet<String>,
    current: &str,
) -> Vec<&'a PartialObjectMeta<NetworkPolicy>> {
    let is_unused = |policy: &&PartialObjectMeta<NetworkPolicy>| {
        let Some(hash) = rule_set(&policy.metadata) else { return false };
        let namespace = policy.metadata.namespace.clone().unwrap_or_default();
        let ours = policy.metadata.name.as_ref() == Some(&names::rule_set(&hash));
        let wanted = hash == current && inhabited.contains(&namespace);
        ours && !wanted && !used.contains(&(namespace, hash))
    };
    policies.iter().filter(is_unused).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_no_pod_has_and_no_sandbox_will_have_is_unused() {
        let policy = |namespace: &str, name: &str, hash: &str| -> PartialObjectMeta<NetworkPolicy> {
            let labels = json!({ names::RULE_SET: hash });
            serde_json::from_value(json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": { "name": name, "namespace": namespace, "labels": labels },
            }))
            .unwrap()
        };
        let named = |namespace: &str, hash: &str| policy(namespace, &names::rule_set(hash), hash);
        let policies = [
            named("team", "old"),
            named("team", "used"),
            named("team", "now"),
            named("left", "now"),
            named("left", "used"),
            policy("left", "a-persons", "old"),
            policy("left", "unlabelled", ""),
        ];
        let used = [("team", "used")].map(|(namespace, hash)| (namespace.to_owned(), hash.to_owned())).into();
        let inhabited = ["team".to_owned()].into();
        let found = unused(&policies, &used, &inhabited, "now");
        let found: Vec<_> =
            found.iter().map(|policy| (policy.namespace().unwrap(), policy.name_any())).collect();
        let expected = [("team", "old"), ("left", "now"), ("left", "used")]
            .map(|(namespace, hash)| (namespace.to_owned(), names::rule_set(hash)));
        assert_eq!(found, expected);
    }
}
