//! What the agent may do without asking. Pure.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the agent may do without asking. It takes the place of `permission` in `opencode.config`.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Permissions {
    /// What happens where no rule fits: opencode's own defaults hold when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<Action>,
    /// The last one that fits decides. A Sandbox's come after its template's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128))]
    pub rules: Vec<PermissionRule>,
}

/// What happens.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It is done.
    Allow,
    /// Somebody is asked, and it is refused when nobody answers in time.
    Ask,
    /// It is refused.
    Deny,
}

/// What happens in one case.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PermissionRule {
    /// opencode's name of what is asked for, such as `bash`, `edit`, `read`, `webfetch`, `task`, `external_directory`,
    /// `doom_loop`, or a tool of an MCP server.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z][A-Za-z0-9_-]*$')")
        .message("permission must be one name, such as bash or edit, without wildcards: use permissions.default for all others"))]
    pub permission: String,
    /// What it is asked for, such as `git status*` of `bash` or `*.env` of `read`, where `*` stands for any text and `?` for
    /// one letter. Everything when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = Rule::new("!self.matches('^[0-9]+$')")
        .message("a pattern of digits alone cannot be put in order with the others: write it with a ? in place of a digit"))]
    pub pattern: Option<String>,
    /// What happens.
    pub action: Action,
}
