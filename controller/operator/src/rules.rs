//! What the operator may do in the cluster, beside the code that does it: [`operator`] is the whole role. Pure.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use kube::api::ObjectMeta;

/// One rule: what may be done with which resources of one group.
fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let list = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    PolicyRule {
        api_groups: Some(list(&[group])),
        resources: Some(list(resources)),
        verbs: list(verbs),
        ..PolicyRule::default()
    }
}

/// Of the reconciler of sandboxes.
fn sandboxes() -> Vec<PolicyRule> {
    vec![
        // `patch` is for the finalizer alone: the specification is never written.
        rule("berth.dev", &["sandboxes"], &["get", "list", "watch", "patch"]),
        rule("berth.dev", &["sandboxes/status"], &["patch"]),
        rule("", &["pods"], &["get", "list", "watch", "create", "patch", "delete"]),
        // One at a time, by its name: the operator never asks for all Secrets.
        rule("", &["secrets"], &["get", "create"]),
        rule("", &["persistentvolumeclaims"], &["get", "create", "patch"]),
        rule("", &["services"], &["create", "patch"]),
        rule("", &["namespaces"], &["get"]),
        rule("networking.k8s.io", &["networkpolicies"], &["create", "patch"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
    ]
}

/// The operator's role.
pub fn operator() -> ClusterRole {
    ClusterRole {
        metadata: ObjectMeta { name: Some("berth-operator".to_owned()), ..ObjectMeta::default() },
        rules: Some(sandboxes()),
        aggregation_rule: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_granted_wholesale() {
        for rule in operator().rules.unwrap() {
            let texts = [rule.api_groups, rule.resources, Some(rule.verbs)];
            assert!(
                !texts.into_iter().flatten().flatten().any(|text| text == "*" || text == "deletecollection")
            );
        }
    }
}
