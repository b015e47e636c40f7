//! `kubectl berth logs`: what the programs of a sandbox's pod say, part by part. IO; [`line`] makes sense of a line.

mod line;
mod pieces;

use berth_api::{layout, names};
use berth_command::printer::{Printer, Shape, Tone};
use futures_util::{AsyncBufRead, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;

use crate::{
    args::{ClusterArgs, LogsArgs, Part},
    cluster::{Cluster, ask},
    error::{Exit, PluginError},
    sandboxes::{self, own_pod},
};
use line::Level;
use pieces::Pieces;

/// Name of the container that fills the workspace.
const SEED: &str = "seed";

/// Shows them.
pub(crate) async fn logs(cluster: &ClusterArgs, args: LogsArgs, shape: Shape) -> Result<Exit, PluginError> {
    let cluster = Cluster::connect(cluster).await?;
    let sandbox = sandboxes::get(&cluster, &args.name).await?;
    let pods = cluster.api::<Pod>();
    let pod = ask("read the pod", pods.get_opt(&names::pod(&args.name))).await?;
    let pod = pod.filter(|pod| own_pod(std::slice::from_ref(pod), &sandbox.raw).is_some());
    let not_ready = |reason: String| PluginError::NotReady {
        namespace: cluster.namespace.clone(),
        name: args.name.clone(),
        reason,
    };
    let pod = pod.ok_or_else(|| {
        let (_, reason) = sandbox.ready();
        not_ready(format!(
            "it has no pod ({})",
            if reason.is_empty() { "nothing is told yet" } else { reason }
        ))
    })?;
    let container = container(args.part);
    if !has_container(&pod, container) {
        return Err(not_ready(format!("its pod has no container {container}: its manifest asks for none")));
    }
    let parameters = LogParams {
        container: Some(container.to_owned()),
        follow: args.follow,
        previous: args.previous,
        since_seconds: args.since,
        tail_lines: args.tail,
        ..LogParams::default()
    };
    let action = format!("read the log of container {container}");
    let stream = ask(&action, pods.log_stream(&names::pod(&args.name), &parameters)).await?;
    pin_mut!(stream);
    let shown = Shown { part: args.part, raw: args.raw, follow: args.follow };
    shown.copy(stream, &mut Printer::standard(shape)).await?;
    Ok(Exit::Succeeded)
}

fn container(part: Option<Part>) -> &'static str {
    match part {
        None | Some(Part::Opencode | Part::Supervisor) => layout::SANDBOX,
        Some(Part::Sidecar) => layout::SIDECAR,
        Some(Part::Seed) => SEED,
    }
}

fn has_container(pod: &Pod, name: &str) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let all = spec.init_containers.iter().flatten().chain(&spec.containers);
    all.into_iter().any(|container| container.name == name)
}

/// What is shown of a log, and how.
struct Shown {
    part: Option<Part>,
    raw: bool,
    follow: bool,
}

impl Shown {
    /// Shows it until it ends.
    async fn copy(
        &self,
        stream: impl AsyncBufRead + Unpin,
        printer: &mut Printer,
    ) -> Result<(), PluginError> {
        let mut pieces = Pieces::new(stream);
        while let Some(piece) = pieces.next().await.map_err(PluginError::Log)? {
            let line = line::read(&piece);
            if self.part.is_some_and(|part| !line.is_of(part)) {
                continue;
            }
            let printed =
                if self.raw { printer.raw_line(&piece) } else { printer.line(tone(line.level), &line.text) };
            printed.map_err(PluginError::Output)?;
            if self.follow {
                printer.flush().map_err(PluginError::Output)?;
            }
        }
        printer.flush().map_err(PluginError::Output)
    }
}

fn tone(level: Option<Level>) -> Tone {
    match level {
        Some(Level::Error) => Tone::Bad,
        Some(Level::Warn) => Tone::Ask,
        Some(Level::Debug) => Tone::Note,
        Some(Level::Info) | None => Tone::Tool,
    }
}
