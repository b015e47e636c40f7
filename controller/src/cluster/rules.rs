//! What the server may do in the cluster: [`server`] is the whole role. Pure.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::ObjectMeta;

/// The server's role: it sees all manifests, and reads the Secrets that they name, one at a time. It writes one field of
/// a status, and no manifest.
pub fn server() -> ClusterRole {
    let rule = |group: &str, resource: &str, verbs: &[&str]| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![resource.to_owned()]),
        verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        ..PolicyRule::default()
    };
    ClusterRole {
        metadata: ObjectMeta { name: Some("berth-server".to_owned()), ..ObjectMeta::default() },
        rules: Some(vec![
            rule("berth.dev", "sandboxes", &["get", "list", "watch"]),
            rule("berth.dev", "sandboxes/status", &["patch"]),
            rule("", "secrets", &["get"]),
        ]),
        aggregation_rule: None,
    }
}
