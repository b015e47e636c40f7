//! What the cluster's refusals mean for a sandbox. Pure.

use berth_api::Reason;
use kube::core::Status;

use crate::judge::Blocked;

/// Whether the cluster refused an object for what it is, so that asking again changes nothing by itself; `None` for
/// everything that may pass, such as a conflict or an apiserver that is busy.
pub(crate) fn blocked(status: &Status) -> Option<Blocked> {
    if is_of_an_ending_namespace(status) {
        let message = "The namespace is being deleted".to_owned();
        return Some(Blocked { reason: Reason::Deleting, message });
    }
    let quota = status.message.contains("exceeded quota") || status.message.contains("failed quota");
    let reason = match status.code {
        403 if quota => Reason::QuotaExceeded,
        400 | 403 | 422 => Reason::AdmissionDenied,
        _ => return None,
    };
    Some(Blocked { reason, message: status.message.clone() })
}

/// Whether nothing new is taken since the namespace goes away, or is gone.
pub(crate) fn is_of_a_gone_namespace(status: &Status) -> bool {
    let kind = status.details.as_ref().map(|details| details.kind.as_str());
    is_of_an_ending_namespace(status) || (status.code == 404 && kind == Some("namespaces"))
}

/// Whether nothing new is taken since the namespace goes away.
pub(crate) fn is_of_an_ending_namespace(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16, message: &str) -> Status {
        Status { code, message: message.to_owned(), ..Status::default() }
    }

    #[test]
    fn refusals_are_told_apart() {
        for (code, message, expected) in [
            (
                403,
                "pods \"a\" is forbidden: exceeded quota: team, requested: pods=1",
                Some(Reason::QuotaExceeded),
            ),
            (
                403,
                "pods \"a\" is forbidden: failed quota: team: must specify cpu",
                Some(Reason::QuotaExceeded),
            ),
            (403, "pods \"a\" is forbidden: violates PodSecurity", Some(Reason::AdmissionDenied)),
            (422, "Pod \"a\" is invalid: spec.priorityClassName", Some(Reason::AdmissionDenied)),
            (400, "admission webhook \"x\" denied the request", Some(Reason::AdmissionDenied)),
            (409, "already exists", None),
            (429, "too many requests", None),
            (500, "", None),
        ] {
            assert_eq!(blocked(&status(code, message)).map(|blocked| blocked.reason), expected, "{message}");
        }
    }

    #[test]
    fn a_namespace_that_is_gone_takes_no_event() {
        let refused = |kind: &str| -> Status {
            serde_json::from_value(serde_json::json!({
                "status": "Failure", "code": 404, "reason": "NotFound", "message": "namespaces \"b\" not found",
                "details": { "name": "b", "kind": kind },
            }))
            .unwrap()
        };
        assert!(is_of_a_gone_namespace(&refused("namespaces")));
        assert!(!is_of_a_gone_namespace(&refused("events")));
        assert!(!is_of_a_gone_namespace(&status(403, "no")));
    }

    #[test]
    fn a_namespace_that_goes_away_is_no_fault_of_the_manifest() {
        let refused: Status = serde_json::from_value(serde_json::json!({
            "status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "pods \"a\" is forbidden: unable to create new content in namespace b because it is being terminated",
            "details": { "causes": [{ "reason": "NamespaceTerminating", "message": "", "field": "metadata.namespace" }] },
        }))
        .unwrap();
        assert_eq!(blocked(&refused).map(|blocked| blocked.reason), Some(Reason::Deleting));
    }
}
