//! Where a sandbox is, by its manifest's status. Pure.

use berth_api::{Sandbox, layout, names, status::PodReference};
use berth_server::SandboxAddress;
use secrecy::SecretString;

/// Where a sandbox is, and where its password is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) namespace: String,
    pub(super) name: String,
    /// UID of the sandbox: one of the same name that is made later is another one, with another password.
    pub(super) uid: String,
    pub(super) secret: String,
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
            pod: status.pod.clone(),
        })
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
    fn what_is_not_there_yet_or_goes_away_is_nowhere() {
        let status = json!({ "secretName": "one-door" });
        assert!(place(&json!({}), status.clone()).is_some());
        assert!(place(&json!({}), Value::Null).is_none());
        assert!(place(&json!({}), json!({})).is_none());
        assert!(place(&json!({ "deletionTimestamp": "2026-11-30T12:00:00Z" }), status).is_none());
    }
}
