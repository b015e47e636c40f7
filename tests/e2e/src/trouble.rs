//! What a person needs when a test in a cluster has failed, on standard error.

use crate::{case::Case, cluster::CONTROL};

/// Lines of a log that are shown.
const LINES: &str = "--tail=40";

/// Prints events, objects and logs of the test's namespace, and the ends of the operator's and the server's logs.
#[expect(clippy::print_stderr, reason = "this is how a failing test tells")]
pub(crate) async fn show(case: &Case, test: &str) {
    let namespace = case.namespace.as_str();
    let of_namespace = ["--namespace", namespace];
    let of_berth = ["--namespace", CONTROL];
    let objects = "sandboxes,pods,secrets,persistentvolumeclaims,networkpolicies,services";
    let asked: [&[&str]; 7] = [
        &["get", objects, "--output=wide"],
        &["describe", "sandboxes"],
        &["describe", "pods"],
        &["get", "events.events.k8s.io", "--sort-by=.metadata.creationTimestamp"],
        &["logs", "--selector=berth.dev/sandbox", "--all-containers", "--prefix", LINES],
        &["logs", "deployment/berth-operator", LINES],
        &["logs", "deployment/berth-server", LINES],
    ];
    for arguments in asked {
        let is_berths = arguments.get(1).is_some_and(|what| what.starts_with("deployment/"));
        let place = if is_berths { of_berth } else { of_namespace };
        let told = case.cluster.kubectl.run(arguments.iter().chain(&place)).await;
        let told = told.unwrap_or_else(|error| format!("{error:#}"));
        eprintln!("--- {test}: kubectl {}\n{told}", arguments.join(" "));
    }
}
