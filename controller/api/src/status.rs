//! The status of a `Sandbox`. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::settings::TurnLimits;

/// What the operator found about a sandbox.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SandboxStatus {
    /// Generation of the manifest that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How the sandbox stands. `Ready` sums the others up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// The pod that the sandbox has now, or had last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodReference>,
    /// The model that answers where a prompt names none, from the manifest or its template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The template that the manifest was merged with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<AppliedTemplate>,
    /// Where the agent works: in the repository that it was given, or /workspace/work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Bounds of each turn, from the manifest or its template: what is absent is the server's to choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_limits: Option<TurnLimits>,
    /// When the sandbox is deleted, where it does not live for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// How containers of the sandbox ended, the last one first: at most five.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 5))]
    pub last_exits: Vec<LastExit>,
    /// Since when the server has turns to run there, or that wait; absent while it has none. The server's own word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_work_since: Option<Time>,
    /// Secret with the password of the sandbox's door, in the sandbox's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_name: Option<String>,
    /// When that password became another one, if it ever did: who has read it before reads it again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password_changed_at: Option<Time>,
}

/// A pod, by everything that tells it from another one of its name.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PodReference {
    /// Name of the pod.
    pub name: String,
    /// UID of the pod.
    pub uid: String,
    /// Its address, once it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// Its node, once it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
}

/// A template, in the version that was used.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct AppliedTemplate {
    /// Name of the template.
    pub name: String,
    /// Its generation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

/// How a container of the sandbox ended.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct LastExit {
    /// Name of the container.
    pub container: String,
    /// UID of the pod that it was in.
    pub pod_uid: String,
    /// Which start of opencode it was about, where it was about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<i64>,
    /// The cause, as one of the reasons of conditions.
    pub reason: String,
    /// What it left behind: its exit code, and its last words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}
