//! From a manifest to opencode that answers, by phase, with the image on the node; in turn with a bare pod of the same image,
//! in which opencode runs alone.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use berth_api::{
    ConditionType, Sandbox,
    condition::find,
    configuration::{SWITCHES, build},
    layout, names,
};
use berth_e2e::{Case, Cluster, Setting, Shape};
use futures_util::{FutureExt, StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, PostParams},
    runtime::{WatchStreamExt, wait::await_condition, watcher},
};
use serde_json::{Value, json};

use crate::{
    pod::{
        Figure,
        figure::Relation,
        runtime,
        statistics::{Pairs, median},
    },
    sessions::Scale,
};

/// How often each is started.
const ROUNDS: u32 = 20;

/// Most milliseconds that Berth may add.
const ADDED: f64 = 1_000.0;

/// Bound on one start, and on one end.
const BOUND: Duration = Duration::from_mins(3);

/// When a pod came how far, in milliseconds since it was asked for.
#[derive(Debug, Clone, Copy, Default)]
struct Phases {
    made: Option<f64>,
    scheduled: Option<f64>,
    door: Option<f64>,
    running: Option<f64>,
    ready: Option<f64>,
}

pub(super) fn run(setting: &Setting, scale: Scale) -> anyhow::Result<Vec<Figure>> {
    runtime()?.block_on(measure(setting, scale.count(ROUNDS)))
}

async fn measure(setting: &Setting, rounds: u32) -> anyhow::Result<Vec<Figure>> {
    let cluster = Arc::new(Cluster::prepare(setting.clone()).await?);
    let case = Case::start(Arc::clone(&cluster), "cluster-start").await?;
    let mut starts = Vec::new();
    let (mut ready, mut containers) = (Pairs::default(), Pairs::default());
    // The first of each is not counted: the node learns of the image, and the server of the namespace.
    for round in 0..=rounds {
        let bare = time_bare(&case).await.context("a bare pod")?;
        let (ours, told) = time_sandbox(&case).await.context("a sandbox")?;
        if round > 0 {
            ready.push(known(bare.ready)?, told);
            containers.push(known(bare.running)?, known(ours.running)?);
            starts.push(ours);
        }
    }
    case.end().await?;
    Arc::into_inner(cluster).context("the cluster is in use")?.end().await?;
    let phase = |name, of: fn(&Phases) -> Option<f64>| {
        let values: Vec<f64> = starts.iter().filter_map(of).collect();
        Figure::plain(name, "ms", median(&values))
    };
    Ok(vec![
        phase("start-pod-made", |phases| phases.made),
        phase("start-pod-scheduled", |phases| phases.scheduled),
        phase("start-door-runs", |phases| phases.door),
        Figure::compared(
            "start-containers-run",
            "ms",
            containers.medians(),
            (Relation::Added, containers.added()),
        ),
        phase("start-pod-ready", |phases| phases.ready),
        Figure::compared("start-answers", "ms", ready.medians(), (Relation::Added, ready.added()))
            .at_most(ADDED),
    ])
}

fn known(phase: Option<f64>) -> anyhow::Result<f64> {
    phase.context("a phase was not seen")
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1_000.0
}

/// Makes a sandbox, and tells when its pod came how far, and when the sandbox was ready.
async fn time_sandbox(case: &Case) -> anyhow::Result<(Phases, f64)> {
    const NAME: &str = "timed";
    let sandboxes: Api<Sandbox> = case.api();
    let mut manifest = case.manifest(NAME, Shape { ephemeral: true, ..Shape::default() });
    manifest["spec"]["resources"] = Value::Null;
    let pod = names::pod(NAME);
    let watch = follow(case, &pod).boxed_local();
    let began = Instant::now();
    let answers = async {
        case.create(manifest).await;
        let is_ready = |sandbox: Option<&Sandbox>| {
            let conditions =
                sandbox.and_then(|sandbox| sandbox.status.as_ref()).map(|status| &status.conditions);
            conditions
                .and_then(|told| find(told, ConditionType::Ready))
                .is_some_and(|told| told.status == "True")
        };
        await_condition(sandboxes.clone(), NAME, is_ready).boxed().await?;
        anyhow::Ok(milliseconds(began))
    };
    let both = async { tokio::try_join!(watch, answers) };
    let (phases, told) = tokio::time::timeout(BOUND, both.boxed_local()).await??;
    sandboxes.delete(NAME, &DeleteParams::default()).await?;
    gone(&sandboxes, NAME).await?;
    gone(&case.api::<Pod>(), &pod).await?;
    Ok((phases, told))
}

/// Makes a pod of the same image in which opencode runs alone.
async fn time_bare(case: &Case) -> anyhow::Result<Phases> {
    const NAME: &str = "bare";
    let pods: Api<Pod> = case.api();
    let watch = follow(case, NAME).boxed_local();
    let made = async {
        anyhow::Ok(pods.create(&PostParams::default(), &serde_json::from_value(bare(case, NAME)?)?).await?)
    };
    let both = async { tokio::try_join!(watch, made) };
    let (phases, _) = tokio::time::timeout(BOUND, both.boxed_local()).await??;
    pods.delete(NAME, &DeleteParams { grace_period_seconds: Some(1), ..DeleteParams::default() }).await?;
    gone(&pods, NAME).await?;
    Ok(phases)
}

/// With the configuration and the switches that Berth gives opencode, so that it has as much to do.
///
/// The probe gives up after a second, the least that Kubernetes has: opencode 1.18.33 never answers a request that it
/// accepts in its first moments, and with a longer wait that first probe would be most of what is measured.
fn bare(case: &Case, name: &str) -> anyhow::Result<Value> {
    let sandbox: Sandbox = serde_json::from_value(case.manifest(name, Shape::default()))?;
    let configuration = build(&sandbox.spec.settings).to_string();
    let given = [
        ("HOME", layout::HOME),
        ("XDG_CONFIG_HOME", layout::CONFIG_HOME),
        ("XDG_DATA_HOME", layout::DATA),
        ("OPENCODE_CONFIG_CONTENT", configuration.as_str()),
    ];
    let switches = SWITCHES.iter().map(|&name| (name, "1"));
    let variables: Vec<Value> = given
        .into_iter()
        .chain(switches)
        .map(|(name, value)| json!({ "name": name, "value": value }))
        .collect();
    Ok(json!({
        "metadata": { "name": name },
        "spec": {
            "automountServiceAccountToken": false, "enableServiceLinks": false,
            "securityContext": { "runAsUser": layout::USER, "runAsGroup": layout::USER, "fsGroup": layout::USER },
            "volumes": [{ "name": "workspace", "emptyDir": {} }],
            "containers": [{
                "name": "opencode", "image": "localhost/berth-sandbox:dev", "imagePullPolicy": "Never",
                "command": [layout::OPENCODE, "serve", "--hostname", "0.0.0.0", "--port", "4096"],
                "env": variables, "workingDir": layout::WORKSPACE,
                "volumeMounts": [{ "name": "workspace", "mountPath": layout::WORKSPACE }],
                "resources": {
                    "requests": { "cpu": "250m", "memory": "512Mi" }, "limits": { "cpu": "2", "memory": "4Gi" },
                },
                "readinessProbe": {
                    "httpGet": { "path": "/global/health", "port": 4096 }, "periodSeconds": 1, "timeoutSeconds": 1,
                },
            }],
        },
    }))
}

async fn gone<K>(api: &Api<K>, name: &str) -> anyhow::Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + Send + serde::de::DeserializeOwned + 'static,
    K::DynamicType: Default,
{
    let gone = await_condition(api.clone(), name, |object: Option<&K>| object.is_none()).boxed();
    tokio::time::timeout(BOUND, gone).await??;
    Ok(())
}

/// Follows a pod from now until it is ready.
async fn follow(case: &Case, name: &str) -> anyhow::Result<Phases> {
    let began = Instant::now();
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut seen = pin!(watcher(case.api::<Pod>(), only).applied_objects().boxed());
    let mut phases = Phases::default();
    while let Some(pod) = seen.try_next().await? {
        let now = milliseconds(began);
        let status = pod.status.clone().unwrap_or_default();
        let sidecars = status.init_container_statuses.unwrap_or_default();
        let containers = status.container_statuses.unwrap_or_default();
        let runs = |statuses: &[ContainerStatus]| {
            statuses.iter().all(|one| one.state.as_ref().is_some_and(|state| state.running.is_some()))
        };
        phases.made.get_or_insert(now);
        let is_scheduled = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        let is_ready =
            status.conditions.iter().flatten().any(|told| told.type_ == "Ready" && told.status == "True");
        for (is_so, phase) in [
            (is_scheduled, &mut phases.scheduled),
            (!sidecars.is_empty() && runs(&sidecars), &mut phases.door),
            (!containers.is_empty() && runs(&sidecars) && runs(&containers), &mut phases.running),
            (is_ready, &mut phases.ready),
        ] {
            if is_so {
                phase.get_or_insert(now);
            }
        }
        if is_ready {
            return Ok(phases);
        }
    }
    bail!("the watch of pod {name} ended; it is {}", case.api::<Pod>().get(name).await?.name_any())
}
