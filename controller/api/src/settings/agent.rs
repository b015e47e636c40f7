//! What the agent is given: providers, opencode's configuration and environment, resources. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A provider of models.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Provider {
    /// opencode's name for it, such as `anthropic`.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$')")
        .message("a provider's name has lower-case letters, digits, dots, hyphens and underscores only, as opencode writes it"))]
    pub name: String,
    /// Where its key is, in a Secret of this namespace. It is handed to opencode in a variable of its environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key_secret_ref: Option<KeyReference>,
    /// Where it is called, when that is not its usual address.
    #[serde(default, rename = "baseURL", skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = Rule::new("self.startsWith('https://') || self.startsWith('http://')")
        .message("baseURL must begin with https:// or http://"))]
    pub base_url: Option<String>,
}

/// A key in a Secret or a ConfigMap of the sandbox's namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct KeyReference {
    /// Name of the Secret or the ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Key in it.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// What opencode is given.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Opencode {
    /// Image whose opencode and supervisor are put into the agent's container, whatever `image` is: Berth's sandbox image
    /// or one that is built from it. What `image` has at /opt/berth when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,
    /// opencode's own configuration, as in `opencode.json`. The agent can read it: no keys here. `server`, `share` and
    /// `autoupdate` are Berth's; `model`, `providers` and `permissions` of the manifest go before what stands here. A
    /// template's is merged with the Sandbox's at every depth; a member that is null is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub config: Option<Map<String, Value>>,
    /// Variables for opencode, and for all that it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<Variable>,
    /// What of the repository's own configuration opencode reads: `Instructions` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_config: Option<ProjectConfig>,
}

/// What of a repository's own configuration opencode reads.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProjectConfig {
    /// AGENTS.md and skills, and nothing that could weaken the permissions.
    Instructions,
    /// All of it: `opencode.json`, agents, commands and plugins of the repository may weaken the permissions.
    Trust,
    /// Nothing.
    Ignore,
}

/// The schema of an object whose members nobody knows here. The derived one says `additionalProperties: true` too, and
/// then Kubernetes 1.36 keeps its members and drops theirs.
fn free_form(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}

/// A variable of opencode's environment.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.value) != has(self.valueFrom)")
    .message("a variable has either value or valueFrom"))]
pub struct Variable {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(
        validation = Rule::new("self.matches('^[A-Za-z_][A-Za-z0-9_]*$')")
            .message("a variable's name has letters, digits and underscores only, and does not begin with a digit"),
        validation = Rule::new("!self.startsWith('BERTH_') && !self.startsWith('KUBERNETES_') && !(self in ['HOME', 'OPENCODE_CONFIG_CONTENT', 'OPENCODE_SERVER_PASSWORD', 'OPENCODE_SERVER_USERNAME', 'XDG_CACHE_HOME', 'XDG_CONFIG_HOME', 'XDG_DATA_HOME', 'XDG_STATE_HOME'])")
            .message("this variable is set by Berth: choose another name, or use opencode.config for opencode's configuration")
    )]
    pub name: String,
    /// Its value. Anybody who may read the manifest can read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32768))]
    pub value: Option<String>,
    /// Where its value is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<VariableSource>,
}

/// Where a variable's value is, in the sandbox's namespace.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.secretKeyRef) != has(self.configMapKeyRef)")
    .message("valueFrom has either secretKeyRef or configMapKeyRef"))]
pub struct VariableSource {
    /// In a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
    /// In a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
}

/// Amounts by the name of a resource: `cpu`, `memory`, `ephemeral-storage` and what the cluster's nodes have beside.
pub type Amounts = BTreeMap<String, IntOrString>;

/// What a container asks for and may use.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What is kept free for it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub requests: Amounts,
    /// What it may use at most.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    pub limits: Amounts,
}
