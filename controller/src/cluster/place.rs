//! Where a sandbox is, by its manifest's status. Pure.

use berth_api::{ConditionType, Reason, Sandbox, condition::find, layout, names, status::PodReference};
use berth_server::{SandboxAddress, Unready};
use k8s_openapi::jiff::Timestamp;
use secrecy::SecretString;

/// Reasons of a sandbox whose programs run, or whose standing is not known: it may answer soon.
const RUNNING: &[Reason] = &[
    Reason::OpencodeStarting,
    Reason::OpencodeCrashLoop,
    Reason::OOMKilled,
    Reason::PortTaken,
    Reason::Unauthorized,
    Reason::ReconcileFailed,
];

/// Where a sandbox is, and where its password is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) namespace: String,
    pub(super) name: String,
    /// UID of the sandbox: one of the same name that is made later is another one, with another password.
    pub(super) uid: String,
    pub(super) secret: String,
    /// When the password in it became another one.
    pub(super) changed_at: Option<Timestamp>,
    pub(super) pod: Option<PodReference>,
}

impl Place {
    /// Nothing while the operator has not seen it yet, and once it is being deleted.
    pub(super) fn of(sandbox: &Sandbox) -> Option<Self> {
        let metadata = &sandbox.metadata;
        let status = sandbox.status.as_ref().filter(|_| metadata.deletion_timestamp.is_none())?;
        Some(Self {
            namespace: metadata.namespace.clone()?,
            name: metadata.name.clone()?,
            uid: metadata.uid.clone()?,
            secret: status.secret_name.clone()?,
            changed_at: status.password_changed_at.as_ref().map(|time| time.0),
            pod: status.pod.clone(),
        })
    }

    /// Whether the same password is in the same Secret.
    pub(super) fn has_password_of(&self, other: &Self) -> bool {
        let password = |place: &Self| (place.uid.clone(), place.secret.clone(), place.changed_at);
        password(self) == password(other)
    }

    /// As the server has it. Where there is no pod the door cannot prove to be one's, so no password is sent: the name
    /// leads nowhere, or to what took its place.
    pub(super) fn address(&self, password: SecretString) -> SandboxAddress {
        let ip = self.pod.as_ref().and_then(|pod| pod.ip.as_deref());
        let host = match ip {
            Some(ip) if ip.contains(':') => format!("[{ip}]"),
            Some(ip) => ip.to_owned(),
            None => format!("{}.{}.{}.svc", self.name, names::SERVICE, self.namespace),
        };
        SandboxAddress {
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            directory: layout::DIRECTORY.to_owned(),
            aliases: Vec::new(),
            door_url: format!("http://{host}:{}", layout::DOOR_PORT),
            door_password: password,
            pod_uid: Some(self.pod.as_ref().map(|pod| pod.uid.clone()).unwrap_or_default()),
        }
    }
}

/// Why a sandbox is not ready, as its status tells.
pub(super) fn unready(sandbox: &Sandbox) -> Option<Unready> {
    let ready = sandbox.status.as_ref().and_then(|status| find(&status.conditions, ConditionType::Ready));
    let Some(ready) = ready else {
        let (reason, message) = (Reason::Creating.to_string(), "the operator has not seen it yet".to_owned());
        return Some(Unready { reason, message, runs: false });
    };
    let runs = RUNNING.iter().any(|reason| reason.as_str() == ready.reason);
    let told = || Unready { reason: ready.reason.clone(), message: ready.message.clone(), runs };
    (ready.status != "True").then(told)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::unwrap_in_result, reason = "a test's own values")]
    fn place(metadata: &Value, status: Value) -> Option<Place> {
        let mut sandbox = json!({ "apiVersion": "berth.dev/v1alpha1", "kind": "Sandbox", "spec": {},
            "metadata": { "name": "one", "namespace": "team", "uid": "u" } });
        for (name, value) in metadata.as_object().unwrap() {
            sandbox["metadata"][name] = value.clone();
        }
        sandbox["status"] = status;
        Place::of(&serde_json::from_value(sandbox).unwrap())
    }

    #[test]
    fn a_door_is_the_pods_of_the_status_and_must_prove_it() {
        let with = |ip: Value| {
            let pod = json!({ "name": "one-sandbox", "uid": "pod-1", "ip": ip });
            let place = place(&json!({}), json!({ "secretName": "one-door", "pod": pod })).unwrap();
            place.address(SecretString::from("p"))
        };
        for (ip, url) in [
            (json!("10.0.0.1"), "http://10.0.0.1:4096"),
            (json!("fd00::1"), "http://[fd00::1]:4096"),
            (Value::Null, "http://one.berth-sandboxes.team.svc:4096"),
        ] {
            let address = with(ip);
            assert_eq!((address.door_url.as_str(), address.pod_uid.as_deref()), (url, Some("pod-1")));
        }
        let none = place(&json!({}), json!({ "secretName": "one-door" })).unwrap();
        assert_eq!(none.address(SecretString::from("p")).pod_uid.as_deref(), Some(""));
    }

    #[test]
    fn why_one_is_not_ready_is_what_its_status_says() {
        let told = |status: Value| {
            let sandbox = json!({ "apiVersion": "berth.dev/v1alpha1", "kind": "Sandbox", "spec": {}, "metadata": {}, "status": status });
            unready(&serde_json::from_value(sandbox).unwrap()).map(|unready| (unready.reason, unready.runs))
        };
        let with = |status: &str, reason: &str| {
            let at = "2026-11-30T12:00:00Z";
            told(json!({ "conditions": [
                { "type": "Ready", "status": status, "reason": reason, "message": "m", "lastTransitionTime": at },
            ] }))
        };
        assert_eq!(with("True", "Available"), None);
        assert_eq!(with("False", "Unschedulable"), Some(("Unschedulable".to_owned(), false)));
        assert_eq!(with("False", "OpencodeStarting"), Some(("OpencodeStarting".to_owned(), true)));
        assert_eq!(with("Unknown", "ReconcileFailed"), Some(("ReconcileFailed".to_owned(), true)));
        assert_eq!(told(Value::Null), Some(("Creating".to_owned(), false)));
    }

    #[test]
    fn what_is_not_there_yet_or_goes_away_is_nowhere() {
        let status = json!({ "secretName": "one-door" });
        assert!(place(&json!({}), status.clone()).is_some());
        assert!(place(&json!({}), Value::Null).is_none());
        assert!(place(&json!({}), json!({})).is_none());
        assert!(place(&json!({ "deletionTimestamp": "2026-11-30T12:00:00Z" }), status).is_none());
    }
}
