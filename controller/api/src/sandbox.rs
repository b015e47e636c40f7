//! The kind `Sandbox`: one agent's pod. Pure.
//!
//! No field has a default in the schema and none that could be supplied elsewhere is required: what is absent is filled
//! in when the pod is built.

#![expect(unreachable_pub, reason = "the derive of schemas with rules copies each struct into a function")]

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Affinity, LocalObjectReference, Toleration},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::status::SandboxStatus;

/// What a person asks for: one coding agent in a pod of its own.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "Sandbox",
    namespaced,
    status = "SandboxStatus",
    derive = "PartialEq",
    category = "berth",
    doc = "One coding agent in a pod of its own.",
    printcolumn(
        name = "Ready",
        type_ = "string",
        description = "Whether a prompt would be answered",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status"
    ),
    printcolumn(
        name = "Reason",
        type_ = "string",
        description = "Why, or why not",
        json_path = ".status.conditions[?(@.type==\"Ready\")].reason"
    ),
    printcolumn(
        name = "Model",
        type_ = "string",
        description = "The model that answers",
        json_path = ".spec.model"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        description = "What is wrong",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    validation = Rule::new("self.metadata.name.size() <= 52")
        .message("metadata.name is longer than 52 characters: choose a shorter one, names of pods and claims are made of it"),
    validation = Rule::new("!self.metadata.name.contains('.')")
        .message("metadata.name has a dot: use hyphens instead, the name is a host name too"),
    validation = Rule::new("has(self.spec.workspace) && has(self.spec.workspace.ephemeral) == (has(oldSelf.spec.workspace) && has(oldSelf.spec.workspace.ephemeral)) || !has(self.spec.workspace) && !(has(oldSelf.spec.workspace) && has(oldSelf.spec.workspace.ephemeral))")
        .message("spec.workspace cannot turn from persistent to ephemeral or back: make another Sandbox")
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    /// Image that the agent works in: one that is built from Berth's sandbox image. Berth's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub image: Option<String>,

    /// The model that answers where a prompt names none, as `<provider>/<model>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new("self.matches('^[^/[:space:]]+/[^[:space:]]+$')")
        .message("model must be <provider>/<model>, such as anthropic/claude-sonnet-4-5"))]
    pub model: Option<String>,

    /// Providers of models, with their keys. The agent can read these keys: give it ones with a limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub providers: Vec<Provider>,

    /// What opencode is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub opencode: Option<Opencode>,

    /// What the agent's container asks for and may use. What is absent has the platform's defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// Where the agent's work is kept: in a claim of 10Gi when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,

    /// What else the pod gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodOverlay>,
}

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
    /// opencode's own configuration, as in `opencode.json`. The agent can read it: no keys here. `server`, `share` and
    /// `autoupdate` are Berth's; `model` and `providers` of the manifest go before what stands here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "free_form")]
    pub config: Option<Map<String, Value>>,
    /// Variables for opencode, and for all that it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<Variable>,
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

/// Where the agent's work is kept.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!(has(self.persistent) && has(self.ephemeral))")
    .message("a workspace is either persistent or ephemeral: remove one of the two"))]
pub struct Workspace {
    /// In a claim, which lives as long as the Sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<PersistentWorkspace>,
    /// On the node, and lost with the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<EphemeralWorkspace>,
}

/// A workspace in a claim.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PersistentWorkspace {
    /// How large it is: 10Gi when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<IntOrString>,
    /// Class of its storage: the cluster's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub storage_class_name: Option<String>,
}

/// A workspace on the node.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct EphemeralWorkspace {
    /// How large it may become before the pod is evicted: 10Gi when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_limit: Option<IntOrString>,
}

/// What the pod gets beside what Berth gives it.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PodOverlay {
    /// Further labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('berth.dev/') && key != 'app.kubernetes.io/managed-by')")
        .message("labels that begin with berth.dev/, and app.kubernetes.io/managed-by, are Berth's: choose other names"))]
    pub labels: BTreeMap<String, String>,
    /// Further annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('berth.dev/'))")
        .message("annotations that begin with berth.dev/ are Berth's: choose other names"))]
    pub annotations: BTreeMap<String, String>,
    /// Labels of the nodes that may take it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that it puts up with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tolerations: Vec<Toleration>,
    /// Which nodes, and which other pods on them, it looks for or keeps away from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// How its containers are run, such as `gvisor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub runtime_class_name: Option<String>,
    /// Which pods make room for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub priority_class_name: Option<String>,
    /// Account that it runs under. No token of it is in the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub service_account_name: Option<String>,
    /// Secrets with credentials for the images' registries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
}
