//! Moves idle sandboxes off nodes that take no new pods, so that whoever drains one need not wait for them, nor breaks a
//! turn. IO, around [`Cordons`] and [`is_pinned`], which are pure.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use berth_api::{Reason, Sandbox, names};
use berth_wire::{
    admission::{HeldPhase, HoldGate},
    door::Activity,
    problem::error_chain,
};
use k8s_openapi::api::core::v1::{Node, NodeSelectorTerm, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::{
    Api, ResourceExt,
    core::DeserializeGuard,
    runtime::{
        events::{Event, EventType},
        reflector::{ObjectRef, Store},
    },
};

use crate::{
    apply::remove,
    door,
    error::{ReconcileError, cannot},
    reconcile::{Context, publish},
};

/// For how long prompts are kept out of a pod that is to be moved, in ms: it goes at once.
const GATE: u64 = 15_000;

/// The nodes that take no new pods; clones tell the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cordons(Arc<Mutex<BTreeSet<String>>>);

impl Cordons {
    /// Takes a node in as it is now; true when that is news.
    fn note(&self, node: &Node) -> bool {
        let cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true)
            && node.metadata.deletion_timestamp.is_none();
        let mut nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if cordoned { nodes.insert(node.name_any()) } else { nodes.remove(&node.name_any()) }
    }

    /// Whether the pod's node takes no new ones.
    fn has(&self, pod: &Pod) -> bool {
        let nodes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).is_some_and(|node| nodes.contains(node))
    }

    /// The sandboxes to look at because of a node: those on it, when it is news that it takes no new pods, or does again.
    pub(crate) fn concerned(
        &self,
        node: &Node,
        sandboxes: &Store<DeserializeGuard<Sandbox>>,
    ) -> Vec<ObjectRef<DeserializeGuard<Sandbox>>> {
        if !self.note(node) {
            return Vec::new();
        }
        let name = node.name_any();
        let is_there = |sandbox: &Arc<DeserializeGuard<Sandbox>>| {
            let status = sandbox.0.as_ref().ok().and_then(|sandbox| sandbox.status.as_ref());
            status.and_then(|status| status.pod.as_ref()).is_some_and(|pod| pod.node.as_ref() == Some(&name))
        };
        let all = sandboxes.state();
        all.iter()
            .filter(|sandbox| is_there(sandbox))
            .map(|sandbox| ObjectRef::from_obj(&**sandbox))
            .collect()
    }
}

/// Removes the pod of an idle sandbox whose node takes no new ones: another one is made elsewhere, with the same claim.
/// True when it was.
pub(crate) async fn move_away(
    context: &Context,
    sandbox: &Sandbox,
    namespace: &str,
    (pod, claim): (&Pod, &PersistentVolumeClaim),
) -> Result<bool, ReconcileError> {
    let at_work = sandbox.status.as_ref().is_some_and(|status| status.at_work_since.is_some());
    if at_work || !context.cordons.has(pod) || !can_move(context, claim).await? {
        return Ok(false);
    }
    if !is_kept_idle(context, sandbox, namespace, pod).await? {
        return Ok(false);
    }
    let note = "The sandbox is idle, and its node takes no new pods: its pod is made again on another one";
    let event = Event {
        type_: EventType::Normal,
        reason: Reason::Moving.to_string(),
        note: Some(note.to_owned()),
        action: "Move".to_owned(),
        secondary: None,
    };
    publish(sandbox, context, &event).await;
    let api: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    remove(&api, &pod.name_any(), pod.uid().unwrap_or_default(), None).await?;
    Ok(true)
}

/// Closes the gate, if no turn runs: what is sent from then on waits for the next pod.
async fn is_kept_idle(
    context: &Context,
    sandbox: &Sandbox,
    namespace: &str,
    pod: &Pod,
) -> Result<bool, ReconcileError> {
    let Some(door) = door::connect(&context.client, sandbox, namespace, pod).await? else { return Ok(false) };
    let gate = HoldGate {
        owner: names::MANAGER.to_owned(),
        reason: "the sandbox moves to another node".to_owned(),
        ttl_ms: GATE,
        phase: HeldPhase::Closed,
        generation: None,
        wait_ms: 0,
        idle: true,
    };
    let closed = async {
        Ok(door.door_turns().await?.activity == Activity::Idle
            && door.hold_gate(&gate).await?.phase == berth_wire::admission::GatePhase::Closed)
    };
    let closed: Result<bool, berth_opencode::ClientError> = closed.await;
    Ok(closed.unwrap_or_else(|error| {
        tracing::debug!(
            namespace,
            sandbox = sandbox.name_any(),
            error = error_chain(&error),
            "it is not moved"
        );
        false
    }))
}

/// Whether a pod with this claim can run on another node.
async fn can_move(context: &Context, claim: &PersistentVolumeClaim) -> Result<bool, ReconcileError> {
    let Some(name) = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()) else { return Ok(false) };
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let volume = volumes.get_opt(name).await.map_err(cannot("read the claim's volume"))?;
    Ok(volume.is_some_and(|volume| !is_pinned(&volume)))
}

/// Whether a volume is on one node, such as on its disk.
fn is_pinned(volume: &PersistentVolume) -> bool {
    let spec = volume.spec.as_ref();
    if spec.is_some_and(|spec| spec.local.is_some() || spec.host_path.is_some()) {
        return true;
    }
    let required = spec.and_then(|spec| spec.node_affinity.as_ref()?.required.as_ref());
    let terms = required.map(|required| required.node_selector_terms.as_slice()).unwrap_or_default();
    let names_a_node = |term: &NodeSelectorTerm| {
        let labels = term.match_expressions.iter().flatten().any(|rule| rule.key.ends_with("/hostname"));
        labels || term.match_fields.as_ref().is_some_and(|fields| !fields.is_empty())
    };
    terms.iter().any(names_a_node)
}

#[cfg(test)]
mod tests {
    use kube::runtime::{reflector, watcher};
    use serde_json::{Value, json};

    use super::*;
    use crate::{build::sample, fake};

    fn node(name: &str, unschedulable: bool) -> Node {
        let node = json!({ "metadata": { "name": name }, "spec": { "unschedulable": unschedulable } });
        serde_json::from_value(node).unwrap()
    }

    fn on(node: &str) -> Pod {
        let pod = json!({ "metadata": { "name": "one-sandbox", "uid": "pod-1" },
            "spec": { "nodeName": node, "containers": [] }, "status": { "podIP": "192.0.2.1" } });
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_node_that_is_cordoned_is_news_once_and_concerns_who_is_on_it() {
        let (known, mut writer) = reflector::store();
        let mut one = sample::sandbox(json!({}));
        one.status =
            serde_json::from_value(json!({ "pod": { "name": "p", "uid": "u", "node": "a" } })).unwrap();
        let mut other = sample::sandbox(json!({}));
        other.metadata.name = Some("two".to_owned());
        for sandbox in [one, other] {
            writer.apply_watcher_event(&watcher::Event::Apply(DeserializeGuard(Ok(sandbox))));
        }
        let cordons = Cordons::default();
        for (node, expected) in
            [(node("a", false), 0), (node("a", true), 1), (node("a", true), 0), (node("b", true), 0)]
        {
            let concerned = cordons.concerned(&node, &known);
            assert_eq!(concerned.len(), expected, "{node:?}");
            assert!(concerned.iter().all(|sandbox| sandbox.name == "one"));
        }
        assert!(cordons.has(&on("a")) && !cordons.has(&on("c")));
        assert_eq!(cordons.concerned(&node("a", false), &known).len(), 1);
        assert!(!cordons.has(&on("a")));
    }

    #[test]
    fn volumes_of_one_node_stay_there() {
        let affinity = |key: &str| {
            let rule = json!({ "key": key, "operator": "In", "values": ["x"] });
            json!({ "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [rule] }] } } })
        };
        for (spec, expected) in [
            (json!({}), false),
            (affinity("topology.kubernetes.io/zone"), false),
            (affinity("kubernetes.io/hostname"), true),
            (json!({ "local": { "path": "/x" } }), true),
            (json!({ "hostPath": { "path": "/x" } }), true),
        ] {
            let volume = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
            assert_eq!(is_pinned(&volume), expected, "{spec}");
        }
    }

    /// Of none of them the door is asked: there is no password to ask it with.
    #[tokio::test]
    async fn who_works_or_cannot_move_stays_where_it_is() {
        let local = json!({ "metadata": {}, "spec": { "local": { "path": "/x" } } });
        let remote = json!({ "metadata": {}, "spec": {} });
        for (cordoned, at_work, volume, asked) in [
            (false, false, &remote, 0),
            (true, true, &remote, 0),
            (true, false, &local, 0),
            (true, false, &remote, 1),
        ] {
            let there: Value = volume.clone();
            let (context, calls) = fake::context(move |call| {
                let is_volume = call.path.contains("persistentvolumes");
                if is_volume { (200, there.clone()) } else { fake::refused(404, "none") }
            });
            context.cordons.note(&node("a", cordoned));
            let mut sandbox = sample::sandbox(json!({}));
            let since = at_work.then_some("2026-11-30T12:00:00Z");
            sandbox.status = serde_json::from_value(json!({ "atWorkSince": since })).unwrap();
            let claim =
                serde_json::from_value(json!({ "metadata": {}, "spec": { "volumeName": "v" } })).unwrap();
            let moved = move_away(&context, &sandbox, "team", (&on("a"), &claim)).await.unwrap();
            assert!(!moved);
            assert_eq!(calls.of("GET", "/secrets/one-door").len(), asked, "{cordoned} {at_work} {volume}");
            assert_eq!(calls.of("DELETE", "/one-sandbox").len(), 0);
        }
    }
}
