//! What the operator may do in the cluster, beside the code that does it: [`operator`] is the whole role. Pure.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::ObjectMeta;

/// Name of the Lease by which one of several operators works.
pub const LEASE: &str = "berth-operator";

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
        // `patch` is for the finalizer alone: the specification is never written. `delete` is for those that expire.
        rule("berth.dev", &["sandboxes"], &["get", "list", "watch", "patch", "delete"]),
        rule("berth.dev", &["sandboxes/status"], &["patch"]),
        rule("", &["pods"], &["get", "list", "watch", "create", "patch", "delete"]),
        // One at a time, by its name: the operator never asks for all Secrets. `patch` exchanges a door's password.
        rule("", &["secrets"], &["get", "create", "patch"]),
        rule("", &["persistentvolumeclaims"], &["get", "create", "patch"]),
        rule("", &["services"], &["list", "create", "patch", "delete"]),
        // Which of them take no new pods, and which volumes are on one of them.
        rule("", &["nodes"], &["list", "watch"]),
        rule("", &["persistentvolumes"], &["get"]),
        rule("", &["namespaces"], &["get"]),
        rule("networking.k8s.io", &["networkpolicies"], &["list", "create", "patch", "delete"]),
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

/// Its role in its own namespace: the Lease. Nobody can be let make one of a certain name only.
pub fn election() -> Role {
    let own = PolicyRule {
        resource_names: Some(vec![LEASE.to_owned()]),
        ..rule("coordination.k8s.io", &["leases"], &["get", "update"])
    };
    Role {
        metadata: ObjectMeta {
            name: Some("berth-operator".to_owned()),
            namespace: Some("berth-system".to_owned()),
            ..ObjectMeta::default()
        },
        rules: Some(vec![own, rule("coordination.k8s.io", &["leases"], &["create"])]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_granted_wholesale() {
        for rule in operator().rules.unwrap().into_iter().chain(election().rules.unwrap()) {
            let texts = [rule.api_groups, rule.resources, Some(rule.verbs)];
            assert!(
                !texts.into_iter().flatten().flatten().any(|text| text == "*" || text == "deletecollection")
            );
        }
    }
}
