//! `kubectl berth describe`: fetches all that tells how a sandbox stands. IO; [`page`] makes text of it.

mod page;

use berth_api::names;
use berth_command::printer::{Printer, Shape};
use k8s_openapi::{
    api::core::v1::{Event, PersistentVolumeClaim, Pod},
    jiff::Timestamp,
};
use kube::api::ListParams;

use crate::{
    args::{ClusterArgs, DescribeArgs},
    cluster::{Cluster, ask},
    error::{Exit, PluginError, error_chain},
    sandboxes::{self, Found, own_pod},
};

pub(crate) use page::event_time;

/// Most Events that are read of one object.
const EVENTS: u32 = 100;

/// What is known of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct Picture {
    pub(crate) sandbox: Found,
    pub(crate) pod: Option<Pod>,
    pub(crate) claim: Option<PersistentVolumeClaim>,
    /// The oldest first.
    pub(crate) events: Vec<Event>,
    /// What could not be read, and why.
    pub(crate) missing: Vec<String>,
}

/// Describes them, one after the other.
pub(crate) async fn describe(
    cluster: &ClusterArgs,
    args: DescribeArgs,
    shape: Shape,
) -> Result<Exit, PluginError> {
    let cluster = Cluster::connect(cluster).await?;
    let mut printer = Printer::standard(shape);
    for (index, name) in args.names.iter().enumerate() {
        let picture = fetch(&cluster, name).await?;
        let gap = (index > 0).then(page::Line::empty);
        let lines = page::lines(&picture, Timestamp::now(), printer.width());
        for page::Line { tone, text } in gap.into_iter().chain(lines) {
            printer.line(tone, &text).map_err(PluginError::Output)?;
        }
    }
    printer.flush().map_err(PluginError::Output)?;
    Ok(Exit::Succeeded)
}

/// Reads all of it. Only the sandbox itself must be there; what may not be read is left out.
pub(crate) async fn fetch(cluster: &Cluster, name: &str) -> Result<Picture, PluginError> {
    let sandbox = sandboxes::get(cluster, name).await?;
    let mut missing = Vec::new();
    let pods = cluster.api::<Pod>();
    let pod = ask("read the pod", pods.get_opt(&names::pod(name))).await;
    let pod = kept(pod, &mut missing).flatten();
    let pod = pod.filter(|pod| own_pod(std::slice::from_ref(pod), &sandbox.raw).is_some());
    let claims = cluster.api::<PersistentVolumeClaim>();
    let claim = ask("read the claim", claims.get_opt(&names::claim(name))).await;
    let claim = kept(claim, &mut missing).flatten();
    let mut events = Vec::new();
    for (kind, object) in
        [("Sandbox", name), ("Pod", &names::pod(name)), ("PersistentVolumeClaim", &names::claim(name))]
    {
        let read = fetch_events(cluster, kind, object).await;
        let refused = read.is_err();
        events.extend(kept(read, &mut missing).into_iter().flatten());
        if refused {
            break;
        }
    }
    events.sort_by_key(event_time);
    Ok(Picture { sandbox, pod, claim, events, missing })
}

fn kept<T>(read: Result<T, PluginError>, missing: &mut Vec<String>) -> Option<T> {
    read.inspect_err(|error| missing.push(error_chain(error))).ok()
}

async fn fetch_events(cluster: &Cluster, kind: &str, name: &str) -> Result<Vec<Event>, PluginError> {
    let of = format!("involvedObject.kind={kind},involvedObject.name={name}");
    let parameters = ListParams::default().fields(&of).limit(EVENTS);
    Ok(ask("list events", cluster.api::<Event>().list(&parameters)).await?.items)
}
