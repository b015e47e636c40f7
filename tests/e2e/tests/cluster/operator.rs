//! The operator dies at any moment.

use std::time::Duration;

use berth_api::{ConditionType, Sandbox, names};
use berth_e2e::{Case, Shape, Victim, until};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{PersistentVolumeClaim, Pod, Secret},
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams},
    core::NamespaceResourceScope,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// The image whose opencode is the fake, and needs next to nothing.
const FAKE: &str = "localhost/berth-testkit:dev";

/// How often the operator dies.
const POINTS: u64 = 5;

/// How many sandboxes there are.
const SANDBOXES: u64 = 20;

/// Namespace of the operator.
const CONTROL: &str = "berth-system";

/// Most milliseconds between two steps.
const PAUSE: u64 = 4_000;

pub(crate) async fn killed_while_twenty_come_and_go(case: Case) {
    let (mut made, mut deleted) = (0, 0);
    for seed in 0..POINTS {
        let mut random = StdRng::seed_from_u64(seed);
        for _ in 0..SANDBOXES / POINTS {
            case.create(fake(&case, &name(made))).await;
            made += 1;
        }
        // Of those that are there, one goes again, however far it came.
        if seed > 0 {
            delete(&case, &name(deleted)).await;
            deleted += 1;
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..PAUSE))).await;
        kill_operator(&case).await;
    }
    for number in deleted..made {
        case.ready(&name(number)).await;
    }
    only_what_belongs(&case).await;

    // And they go, with the operator dying once more among them.
    for number in deleted..made {
        delete(&case, &name(number)).await;
    }
    kill_operator(&case).await;
    for number in deleted..made {
        case.gone::<Sandbox>(&name(number)).await;
    }
    until("pods, secrets and claims to be gone", async || {
        let left = [
            owners::<Pod>(&case).await,
            owners::<Secret>(&case).await,
            owners::<PersistentVolumeClaim>(&case).await,
        ];
        if left.iter().all(Vec::is_empty) { Ok(()) } else { Err(left) }
    })
    .await;
}

fn name(number: u64) -> String {
    format!("fake-{number}")
}

fn fake(case: &Case, name: &str) -> Value {
    let mut manifest = case.manifest(name, Shape { ephemeral: true, ..Shape::default() });
    manifest["spec"]["image"] = json!(FAKE);
    manifest["spec"]["resources"]["requests"] =
        json!({ "cpu": "5m", "memory": "16Mi", "ephemeral-storage": "16Mi" });
    manifest
}

async fn delete(case: &Case, name: &str) {
    case.api::<Sandbox>().delete(name, &DeleteParams::default()).await.expect("it can be deleted");
}

/// SIGKILL to the operator that works; then its pod goes too, since another one comes at once where a container would wait
/// longer each time.
async fn kill_operator(case: &Case) {
    let pods: Api<Pod> = Api::namespaced(case.client.clone(), CONTROL);
    let working = until("an operator that works", async || working(case, &pods).await).await;
    let uid = working.metadata.uid.as_deref().expect("a pod has a UID");
    case.cluster.send(uid, Victim::Controller, "KILL").await;
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete(&working.name_any(), &at_once).await.expect("the pod can be deleted");
}

/// The pod that holds the operators' lease.
async fn working(case: &Case, pods: &Api<Pod>) -> Result<Pod, String> {
    let leases: Api<Lease> = Api::namespaced(case.client.clone(), CONTROL);
    let lease = leases.get("berth-operator").await.map_err(|error| error.to_string())?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    // The pod's name, and what tells its runs apart.
    let name = holder.split('_').next().unwrap_or_default();
    let pod = pods.get_opt(name).await.map_err(|error| error.to_string())?;
    let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    pod.ok_or_else(|| format!("{holder:?} is no pod that lives"))
}

/// One pod and one secret for each sandbox that is there, and none for another.
async fn only_what_belongs(case: &Case) {
    let sandboxes = case.api::<Sandbox>().list(&ListParams::default()).await.expect("they can be listed");
    let mut alive: Vec<String> = sandboxes.items.iter().filter_map(ResourceExt::uid).collect();
    alive.sort();
    until("one pod and one secret for each sandbox", async || {
        let seen = (owners::<Pod>(case).await, owners::<Secret>(case).await);
        if seen.0 == alive && seen.1 == alive { Ok(()) } else { Err(seen) }
    })
    .await;
    for sandbox in &sandboxes.items {
        case.condition(&sandbox.name_any(), ConditionType::WorkspaceIntact, "True").await;
    }
}

/// UIDs of the sandboxes that own objects of this kind, one for each object.
async fn owners<K>(case: &Case) -> Vec<String>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let ours = ListParams::default().labels(names::SANDBOX);
    let objects = case.api::<K>().list(&ours).await.expect("objects can be listed").items;
    let owners = objects.iter().map(|object| {
        object.owner_references().first().map_or_else(|| object.name_any(), |owner| owner.uid.clone())
    });
    let mut owners: Vec<String> = owners.collect();
    owners.sort();
    owners
}
