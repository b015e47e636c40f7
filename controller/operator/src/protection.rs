//! What keeps the cluster's own helpers from moving a pod in which the agent works. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

/// Annotations that say so: of the cluster autoscaler, and of Karpenter.
const KEEP: [(&str, &str); 2] =
    [("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"), ("karpenter.sh/do-not-disrupt", "true")];

/// What is to change in the pod's annotations, `None` where one goes: while there is work they are ours, else what the
/// manifest says holds.
pub(crate) fn changes(there: &Pod, wanted: &Pod, at_work: bool) -> BTreeMap<&'static str, Option<String>> {
    let of = |pod: &Pod, name: &str| pod.metadata.annotations.as_ref().and_then(|all| all.get(name)).cloned();
    let right = |(name, value): (&'static str, &str)| {
        let right = if at_work { Some(value.to_owned()) } else { of(wanted, name) };
        (of(there, name) != right).then_some((name, right))
    };
    KEEP.into_iter().filter_map(right).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(safe: Option<&str>, disrupt: Option<&str>) -> Pod {
        let mut pod = json!({ "metadata": { "annotations": { "note": "x" } } });
        for ((name, _), value) in KEEP.into_iter().zip([safe, disrupt]) {
            if let Some(value) = value {
                pod["metadata"]["annotations"][name] = json!(value);
            }
        }
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn a_pod_with_work_is_kept_and_one_without_is_as_its_manifest_says() {
        let [(safe, _), (disrupt, _)] = KEEP;
        let kept = (Some("false"), Some("true"));
        for (there, wanted, at_work, expected) in [
            ((None, None), (None, None), false, vec![]),
            ((None, None), (None, None), true, vec![(safe, Some("false")), (disrupt, Some("true"))]),
            (kept, (None, None), true, vec![]),
            (kept, (None, None), false, vec![(safe, None), (disrupt, None)]),
            (kept, (Some("true"), None), false, vec![(safe, Some("true")), (disrupt, None)]),
            ((Some("true"), None), (Some("true"), None), false, vec![]),
            ((Some("true"), Some("true")), (Some("true"), None), true, vec![(safe, Some("false"))]),
        ] {
            let [there, wanted] = [there, wanted].map(|(safe, disrupt)| pod(safe, disrupt));
            let changes = changes(&there, &wanted, at_work);
            let changes: Vec<_> = changes.iter().map(|(name, value)| (*name, value.as_deref())).collect();
            assert_eq!(changes, expected, "{there:?} {at_work}");
        }
    }
}
