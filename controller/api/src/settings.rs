//! What a person can say about a sandbox, in the Sandbox itself or in a template: its settings. Pure.
//!
//! No setting has a default in the schema and none is required, since each may be supplied elsewhere: what is absent is
//! filled in when the pod is built. Where a part is `required`, it is what tells the elements of a list apart.

#![expect(unreachable_pub, reason = "the derive of schemas with rules copies each struct into a function")]

mod agent;
mod lifecycle;
mod network;
mod permission;
mod pod;
mod workspace;

pub use agent::{
    Amounts, KeyReference, Opencode, ProjectConfig, Provider, Resources, Variable, VariableSource,
};
pub use lifecycle::{OnDelete, Rollout, TurnLimits, UpdateStrategy};
pub use network::{Egress, EgressPort, EgressPreset, EgressRule, Network, Port, Protocol};
pub use permission::{Action, PermissionRule, Permissions};
pub use pod::{FsGroupChangePolicy, PodOverlay};
pub use workspace::{
    EphemeralWorkspace, GitSeed, ManagedFile, PersistentWorkspace, SecretReference, Seed, Workspace,
};

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// What a sandbox is like.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Image that the agent works in: one that is built from Berth's sandbox image, or with `opencode.image` any that has
    /// a Linux with glibc or musl. Berth's own when absent.
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

    /// Where the agent's work is kept, and what it begins with: an empty claim of 10Gi when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<Workspace>,

    /// Files, each from a Secret or a ConfigMap, for the agent to read, beneath `/berth/managed`. A change of one
    /// arrives there within two minutes, without a restart.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["path"]))]
    pub files: Vec<ManagedFile>,

    /// Ports on which the agent shows what it works on, such as a development server's. They are reached at the Service
    /// `<name of the Sandbox>-preview`; what listens there must listen on all addresses, not on 127.0.0.1 alone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    #[x_kube(validation = Rule::new("self.all(one, self.exists_one(other, other.port == one.port))")
        .message("two ports have the same number: remove one of them"))]
    pub ports: Vec<Port>,

    /// Whom the agent may reach.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,

    /// What the agent may do without asking. A guard-rail, not a wall: who can run commands in the pod can get around it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,

    /// Bounds of each turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_limits: Option<TurnLimits>,

    /// How long the Sandbox lives, from when it was made, such as `8h` or `7d`; then it is deleted. For ever when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]{1,6}(d|h|m|s))+$') && !self.matches('^(0+(d|h|m|s))+$')")
        .message("expiresAfter must be a span of time above zero, such as 90m, 8h or 7d"))]
    pub expires_after: Option<String>,

    /// What becomes of the workspace's claim when the Sandbox is deleted: `Delete` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_delete: Option<OnDelete>,

    /// When a pod is replaced that is not as the manifest, its template and the platform say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,

    /// What else the pod gets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodOverlay>,
}
