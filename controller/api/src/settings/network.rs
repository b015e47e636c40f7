//! Whom the agent may reach, and who reaches what it shows. Pure.

use k8s_openapi::{api::networking::v1::NetworkPolicyPeer, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whom the agent may reach.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// What it may connect to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress: Option<Egress>,
}

/// What the agent may connect to. Names are resolved in any case, and what the platform allows for all sandboxes is
/// open; where clouds hand out credentials is closed whatever stands here.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Egress {
    /// What is open without being named: `PublicInternet` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<EgressPreset>,
    /// What is open beside. A Sandbox's stand beside its template's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub allow: Vec<EgressRule>,
}

/// What is open without being named.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum EgressPreset {
    /// All public addresses, and nothing private.
    PublicInternet,
    /// Nothing: the model's provider must be named in `allow`, or by the platform.
    None,
}

/// Whom the agent may connect to.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.cidr) != (has(self.namespaceSelector) || has(self.podSelector))")
    .message("name either addresses (cidr) or pods (namespaceSelector, podSelector or both)"))]
pub struct EgressRule {
    /// Addresses, such as `10.1.2.0/24`, or `10.1.2.3/32` for one. Names cannot stand here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 3, max = 64))]
    #[x_kube(validation = Rule::new("isCIDR(self)")
        .message("cidr must be addresses such as 10.1.2.0/24, or 10.1.2.3/32 for one; names cannot stand here"))]
    pub cidr: Option<String>,
    /// Namespaces whose pods are reached: the Sandbox's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// Which pods of these namespaces: all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_selector: Option<LabelSelector>,
    /// Which ports: all when absent. Of pods it is the port in the pod, whatever a Service makes of it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub ports: Vec<EgressPort>,
}

/// A port, or a range of them.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.endPort) || self.endPort >= self.port")
    .message("endPort is below port: exchange them"))]
pub struct EgressPort {
    /// The port, or the first one.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// The last one of a range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub end_port: Option<i32>,
    /// `TCP` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
}

/// How a port is spoken to.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// In streams.
    #[serde(rename = "TCP")]
    Tcp,
    /// In packets.
    #[serde(rename = "UDP")]
    Udp,
}

/// A port on which the agent shows what it works on.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Its name, in the Service too.
    #[schemars(length(min = 1, max = 15))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([a-z0-9-]*[a-z0-9])?$') && self.matches('[a-z]') && !self.contains('--')")
        .message("a port's name has lower-case letters, digits and single hyphens, and at least one letter, such as web"))]
    pub name: String,
    /// Its number, in the pod and at the Service.
    #[schemars(range(min = 1, max = 65535))]
    #[x_kube(validation = Rule::new("!(self in [4094, 4095, 4096, 8731])")
        .message("ports 4094, 4095, 4096 and 8731 are Berth's: choose another one"))]
    pub port: i32,
    /// Who reaches it: all pods of the Sandbox's namespace when absent. A Sandbox's list takes the place of its template's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub from: Vec<NetworkPolicyPeer>,
}
