//! The objects of a sandbox, as they should be. Pure.

pub mod network;
pub mod pod;
#[cfg(test)]
pub(crate) mod sample;

use std::{collections::BTreeMap, fmt::Write as _};

use berth_api::{canonical, layout, names};
use k8s_openapi::{
    ByteString,
    api::{
        core::v1::{
            PersistentVolumeClaim, PersistentVolumeClaimSpec, Pod, Secret, Service, ServicePort, ServiceSpec,
            VolumeResourceRequirements,
        },
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    platform::Platform,
    prepare::{Prepared, PreparedWorkspace},
};

/// Everything that a sandbox needs, but for its Secret, which is made once.
#[derive(Debug, Clone, PartialEq)]
pub struct Resources {
    /// Closes all sandboxes' pods of the namespace.
    pub default_deny: NetworkPolicy,
    /// Opens what the sandbox's rules open, for all pods with the same rules.
    pub rule_set: NetworkPolicy,
    /// Names for the sandboxes' pods of the namespace.
    pub service: Service,
    /// For the workspace, where it is persistent.
    pub claim: Option<PersistentVolumeClaim>,
    /// The pod.
    pub pod: Pod,
}

/// All objects but the Secret.
pub fn build(prepared: &Prepared, platform: &Platform) -> Resources {
    let (rule_set, hash) = network::build_rule_set(&prepared.namespace, &platform.network);
    Resources {
        default_deny: network::build_default_deny(&prepared.namespace),
        rule_set,
        service: build_service(&prepared.namespace),
        claim: build_claim(prepared),
        pod: pod::build_pod(prepared, platform, &hash),
    }
}

/// Metadata of what one sandbox owns.
pub(crate) fn owned(prepared: &Prepared, name: String) -> ObjectMeta {
    let mut labels = managed();
    labels.insert(names::SANDBOX.to_owned(), prepared.name.clone());
    ObjectMeta {
        name: Some(name),
        namespace: Some(prepared.namespace.clone()),
        labels: Some(labels),
        owner_references: Some(vec![prepared.owner.clone()]),
        ..ObjectMeta::default()
    }
}

/// Metadata of what all sandboxes of a namespace share.
pub(crate) fn shared(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some(managed()),
        ..ObjectMeta::default()
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Sixteen hexadecimal digits by which objects are told apart: of the SHA-256 of what they say, in whichever order.
pub(crate) fn hash(data: &impl Serialize) -> String {
    hexadecimal(&Sha256::digest(canonical::text(data))[..8])
}

fn managed() -> BTreeMap<String, String> {
    BTreeMap::from([(names::MANAGED_BY.to_owned(), names::MANAGER.to_owned())])
}

/// The two passwords of a sandbox.
#[derive(Debug)]
pub struct Passwords {
    /// The door's.
    pub door: SecretString,
    /// opencode's.
    pub opencode: SecretString,
}

/// The Secret with a sandbox's passwords.
pub fn build_secret(prepared: &Prepared, passwords: &Passwords) -> Secret {
    let value = |secret: &SecretString| ByteString(secret.expose_secret().as_bytes().to_vec());
    Secret {
        metadata: owned(prepared, names::secret(&prepared.name)),
        type_: Some("Opaque".to_owned()),
        data: Some(BTreeMap::from([
            (names::DOOR_PASSWORD.to_owned(), value(&passwords.door)),
            (names::OPENCODE_PASSWORD.to_owned(), value(&passwords.opencode)),
        ])),
        ..Secret::default()
    }
}

fn build_claim(prepared: &Prepared) -> Option<PersistentVolumeClaim> {
    let PreparedWorkspace::Persistent { size, class } = &prepared.workspace else { return None };
    let mut metadata = owned(prepared, names::claim(&prepared.name));
    if prepared.keeps_claim {
        // What no object owns is deleted by persons only. Whose it was stays to be seen.
        metadata.owner_references = None;
        metadata.annotations = Some([(names::OWNER_UID.to_owned(), prepared.owner.uid.clone())].into());
    }
    Some(PersistentVolumeClaim {
        metadata,
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
            storage_class_name: class.clone(),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), size.clone())])),
                limits: None,
            }),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    })
}

/// Headless, and with addresses that are not ready: a name is there as soon as its pod has an address.
fn build_service(namespace: &str) -> Service {
    Service {
        metadata: shared(namespace, names::SERVICE),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(managed()),
            ports: Some(vec![ServicePort {
                name: Some("door".to_owned()),
                port: layout::DOOR_PORT,
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::prepare::prepare;

    #[test]
    fn everything_that_a_plain_manifest_needs() {
        let prepared = prepare(&sample::sandbox(json!({})), &sample::platform()).unwrap();
        insta::assert_json_snapshot!(canonical::value(&build(&prepared, &sample::platform()).claim));
        insta::assert_json_snapshot!(canonical::value(&build(&prepared, &sample::platform()).service));
    }

    #[test]
    fn an_ephemeral_workspace_needs_no_claim() {
        let ephemeral = sample::sandbox(json!({ "workspace": { "ephemeral": {} } }));
        let prepared = prepare(&ephemeral, &sample::platform()).unwrap();
        assert_eq!(build(&prepared, &sample::platform()).claim, None);
    }

    #[test]
    fn a_claim_that_stays_is_owned_by_nobody_and_tells_whose_it_was() {
        let kept = prepare(&sample::sandbox(json!({ "onDelete": "Retain" })), &sample::platform()).unwrap();
        let metadata = build(&kept, &sample::platform()).claim.unwrap().metadata;
        assert_eq!(metadata.owner_references, None);
        assert_eq!(metadata.annotations.unwrap()[names::OWNER_UID], sample::UID);
    }

    #[test]
    fn a_secret_holds_both_passwords_and_does_not_show_them() {
        let prepared = prepare(&sample::sandbox(json!({})), &sample::platform()).unwrap();
        let passwords = Passwords { door: "the-doors".into(), opencode: "opencodes".into() };
        assert!(!format!("{passwords:?}").contains("the-doors"));
        let secret = build_secret(&prepared, &passwords);
        assert_eq!(secret.data.unwrap()["password"].0, b"the-doors");
        assert_eq!(secret.metadata.owner_references.unwrap()[0].uid, sample::UID);
    }
}
