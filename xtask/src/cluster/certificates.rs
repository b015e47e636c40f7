//! The certificates of a cluster, and the kubeconfigs that hold them. Made anew for each start.

use std::{fs, path::Path};

use anyhow::Context;
use base64::{Engine, engine::general_purpose::STANDARD};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde_json::{Value, json};

/// Signs everything of one cluster.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// A certificate with its key, both PEM.
pub(super) struct Pair {
    certificate: String,
    key: String,
}

impl Authority {
    /// A new one.
    pub(super) fn new() -> anyhow::Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "berth-test-cluster");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), certificate })
    }

    /// For a server that is called by these host names and addresses.
    pub(super) fn server(&self, name: &str, hosts: &[&str]) -> anyhow::Result<Pair> {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        self.sign(CertificateParams::new(hosts)?, name, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// For a client: its user name, and its group where it has one.
    pub(super) fn client(&self, user: &str, group: Option<&str>) -> anyhow::Result<Pair> {
        let mut params = CertificateParams::default();
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        self.sign(params, user, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        name: &str,
        purpose: ExtendedKeyUsagePurpose,
    ) -> anyhow::Result<Pair> {
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Pair { certificate, key: key.serialize_pem() })
    }

    /// A kubeconfig for the apiserver at this address.
    pub(super) fn kubeconfig(&self, server: &str, client: &Pair) -> Value {
        let data = |pem: &str| STANDARD.encode(pem);
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": "berth",
                "cluster": {"server": server, "certificate-authority-data": data(&self.certificate)},
            }],
            "users": [{
                "name": "berth",
                "user": {
                    "client-certificate-data": data(&client.certificate),
                    "client-key-data": data(&client.key),
                },
            }],
            "contexts": [{"name": "berth", "context": {"cluster": "berth", "user": "berth"}}],
            "current-context": "berth",
        })
    }

    /// Writes `ca.crt` and `ca.key`.
    pub(super) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        write(&directory.join("ca.crt"), &self.certificate)?;
        write(&directory.join("ca.key"), &self.issuer.key().serialize_pem())
    }
}

impl Pair {
    /// Writes `NAME.crt` and `NAME.key`.
    pub(super) fn write(&self, directory: &Path, name: &str) -> anyhow::Result<()> {
        write(&directory.join(format!("{name}.crt")), &self.certificate)?;
        write(&directory.join(format!("{name}.key")), &self.key)
    }
}

/// Writes `tokens.key` and `tokens.pub`, by which tokens of service accounts are signed and checked.
pub(super) fn write_token_keys(directory: &Path) -> anyhow::Result<()> {
    let key = KeyPair::generate()?;
    write(&directory.join("tokens.key"), &key.serialize_pem())?;
    write(&directory.join("tokens.pub"), &key.public_key_pem())
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_holds_what_was_signed() {
        let authority = Authority::new().unwrap();
        let client = authority.client("admin", Some("system:masters")).unwrap();
        let config = authority.kubeconfig("https://127.0.0.1:1", &client);
        let decoded = |value: &Value| STANDARD.decode(value.as_str().unwrap()).unwrap();
        let user = &config["users"][0]["user"];
        assert_eq!(decoded(&user["client-certificate-data"]), client.certificate.as_bytes());
        assert_eq!(decoded(&user["client-key-data"]), client.key.as_bytes());
        let cluster = &config["clusters"][0]["cluster"];
        assert_eq!(decoded(&cluster["certificate-authority-data"]), authority.certificate.as_bytes());
        assert_eq!(cluster["server"], "https://127.0.0.1:1");
    }
}
