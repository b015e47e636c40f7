//! The cluster itself: its version, where workspaces are kept, and whether its network keeps rules. IO, around functions
//! that are pure.

use berth_command::check::Check;
use k8s_openapi::api::{apps::v1::DaemonSet, storage::v1::StorageClass};
use kube::{Api, ResourceExt, api::ListParams};

use super::{Scope, unread};
use crate::{cluster::ask, error::PluginError, sandboxes::Found};

/// The first version of Kubernetes in which a sidecar may be a container that starts before the others.
const OLDEST: (u32, u32) = (1, 29);

/// Says of a class of storage that it is the one that is taken where none is named.
const DEFAULT: &str = "storageclass.kubernetes.io/is-default-class";

/// Where a network's own programs may run.
const NETWORKS: [&str; 5] = ["kube-system", "calico-system", "cilium", "kube-flannel", "tigera-operator"];

/// Daemons of networks, by the beginning of their names, and whether they keep network policies.
const KEEPS: [(&str, bool); 10] = [
    ("calico-node", true),
    ("canal", true),
    ("cilium", true),
    ("antrea-agent", true),
    ("kube-router", true),
    ("weave-net", true),
    ("ovnkube", true),
    ("kindnet", true),
    ("anetd", true),
    ("kube-flannel", false),
];

/// The cluster's version; that it does not answer is an error.
pub(super) async fn version(scope: &Scope) -> Result<Check, PluginError> {
    let version = ask("ask the cluster for its version", scope.cluster.client.apiserver_version()).await?;
    Ok(supported(&version.major, &version.minor, &version.git_version))
}

fn supported(major: &str, minor: &str, full: &str) -> Check {
    const NAME: &str = "cluster";
    let number =
        |text: &str| text.trim_end_matches(|letter: char| !letter.is_ascii_digit()).parse::<u32>().ok();
    let found = format!("it answers, and runs Kubernetes {full}");
    match (number(major), number(minor)) {
        (Some(major), Some(minor)) if (major, minor) < OLDEST => Check::bad(
            NAME,
            found,
            format!("sandboxes need native sidecars: update it to {}.{} or newer", OLDEST.0, OLDEST.1),
        ),
        _ => Check::good(NAME, found),
    }
}

pub(super) async fn checks(scope: &Scope, found: &[Found]) -> Vec<Check> {
    vec![storage(scope, found).await, network(scope).await]
}

async fn storage(scope: &Scope, found: &[Found]) -> Check {
    let api: Api<StorageClass> = Api::all(scope.cluster.client.clone());
    match ask("list classes of storage", api.list(&ListParams::default())).await {
        Ok(classes) => default_class(&classes.items, found.iter().any(needs_default)),
        Err(error) => unread("storage", &error),
    }
}

/// Whether a sandbox's workspace is in a claim that names no class.
fn needs_default(found: &Found) -> bool {
    let workspace = &found.value()["spec"]["workspace"];
    workspace["ephemeral"].is_null() && workspace["persistent"]["storageClassName"].is_null()
}

fn default_class(classes: &[StorageClass], needed: bool) -> Check {
    const NAME: &str = "storage";
    let is_default =
        |class: &&StorageClass| class.annotations().get(DEFAULT).is_some_and(|value| value == "true");
    if let Some(class) = classes.iter().find(is_default) {
        return Check::good(
            NAME,
            format!("workspaces are kept in class {} where none is named", class.name_any()),
        );
    }
    let found = "no class of storage is the default one";
    let fix = format!(
        "name one in spec.workspace.persistent.storageClassName, or make one the default: kubectl annotate storageclass \
         NAME {DEFAULT}=true"
    );
    if needed { Check::bad(NAME, found, fix) } else { Check::note(NAME, found, fix) }
}

async fn network(scope: &Scope) -> Check {
    let mut names = Vec::new();
    for namespace in NETWORKS {
        let api = scope.cluster.api_in::<DaemonSet>(namespace);
        match ask("list daemonsets", api.list(&ListParams::default())).await {
            Ok(sets) => names.extend(sets.items.iter().map(ResourceExt::name_any)),
            Err(error) => return unread("network rules", &error),
        }
    }
    keeps_rules(&names)
}

fn keeps_rules(daemon_sets: &[String]) -> Check {
    const NAME: &str = "network rules";
    const FIX: &str =
        "try it: from a sandbox, `curl --max-time 5 https://kubernetes.default.svc` must come to nothing";
    let known = daemon_sets.iter().find_map(|name| {
        KEEPS.iter().find(|(start, _)| name.starts_with(start)).map(|(_, keeps)| (name, *keeps))
    });
    match known {
        Some((name, true)) => Check::good(NAME, format!("{name} is a network that keeps NetworkPolicies")),
        Some((name, false)) => Check::bad(
            NAME,
            format!(
                "{name} is a network that keeps no NetworkPolicies: agents reach whatever the nodes reach"
            ),
            "add one that does, such as kube-router or Cilium, before agents run that you do not trust",
        ),
        None => Check::note(
            NAME,
            "whether this cluster's network keeps NetworkPolicies cannot be told from here",
            FIX,
        ),
    }
}

#[cfg(test)]
mod tests {
    use berth_command::check::Verdict;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cluster_that_is_too_old_is_in_the_way() {
        for (minor, verdict) in
            [("28", Verdict::Bad), ("28+", Verdict::Bad), ("29", Verdict::Good), ("36+", Verdict::Good)]
        {
            assert_eq!(supported("1", minor, "v").verdict, verdict, "{minor}");
        }
        assert_eq!(supported("", "", "v").verdict, Verdict::Good, "nothing is known of it");
    }

    #[test]
    fn without_a_default_class_sandboxes_that_name_none_wait_for_ever() {
        let class = |name: &str, default: &str| {
            let value = json!({ "metadata": { "name": name, "annotations": { DEFAULT: default } }, "provisioner": "p" });
            serde_json::from_value::<StorageClass>(value).unwrap()
        };
        let check = default_class(&[class("slow", "false"), class("fast", "true")], true);
        assert_eq!((check.verdict, check.found.contains("fast")), (Verdict::Good, true));
        assert_eq!(default_class(&[class("slow", "false")], true).verdict, Verdict::Bad);
        assert_eq!(default_class(&[], false).verdict, Verdict::Note);
        let sandbox = |workspace: serde_json::Value| {
            let object = json!({ "metadata": { "name": "one" }, "spec": { "workspace": workspace } });
            Found::new(serde_json::from_value(object).unwrap())
        };
        assert!(needs_default(&sandbox(json!(null))) && needs_default(&sandbox(json!({ "persistent": {} }))));
        assert!(!needs_default(&sandbox(json!({ "ephemeral": {} }))));
        assert!(!needs_default(&sandbox(json!({ "persistent": { "storageClassName": "fast" } }))));
    }

    #[test]
    fn networks_are_known_by_their_daemonsets() {
        for (names, verdict) in [
            (vec!["kube-proxy", "cilium-envoy"], Verdict::Good),
            (vec!["kube-flannel-ds"], Verdict::Bad),
            (vec!["canal", "kube-proxy"], Verdict::Good),
            (vec!["aws-node"], Verdict::Note),
            (vec![], Verdict::Note),
        ] {
            let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
            assert_eq!(keeps_rules(&names).verdict, verdict, "{names:?}");
        }
    }
}
