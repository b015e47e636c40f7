//! What the cluster's refusals mean for a sandbox. Pure.

use berth_api::Reason;
use kube::core::Status;

use crate::judge::Blocked;

/// Whether the cluster refused an object for what it is, so that asking again changes nothing by itself; `None` for
/// everything that may pass, such as a conflict or an apiserver that is busy.
pub(crate) fn blocked(status: &Status) -> Option<Blocked> {
    let quota = status.message.contains("exceeded quota") || status.message.contains("failed quota");
    let reason = match status.code {
        403 if quota => Reason::QuotaExceeded,
        400 | 403 | 422 => Reason::AdmissionDenied,
        _ => return None,
    };
    Some(Blocked { reason, message: status.message.clone() })
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
}
