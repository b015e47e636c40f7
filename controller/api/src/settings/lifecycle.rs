//! How long things go on, and what happens then. Pure.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What becomes of a workspace's claim when its Sandbox is deleted.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDelete {
    /// It is deleted too.
    #[default]
    Delete,
    /// It stays, for a person to look at and to delete.
    Retain,
}

/// When a pod is replaced that is not as it would be made now.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UpdateStrategy {
    /// Because the Sandbox or its template says something else: `WhenIdle` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spec: Option<Rollout>,
    /// Because the platform does, such as with newer images of its own: `WhenIdle` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub platform: Option<Rollout>,
}

/// When a pod is replaced.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rollout {
    /// As soon as no turn runs.
    #[default]
    WhenIdle,
    /// When a person deletes it. The condition `UpToDate` tells that it is due.
    Manual,
}

/// Bounds of each turn. One that reaches a bound is stopped, and fails with the reason.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TurnLimits {
    /// How long it may take all in all, the time that a person is waited for not counted: `15m` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]{1,6}(d|h|m|s))+$') && !self.matches('^(0+(d|h|m|s))+$')")
        .message("turnLimits.duration must be a span of time above zero, such as 90s, 15m or 2h"))]
    pub duration: Option<String>,
    /// How long nothing may be heard of it, while no tool runs and nobody is waited for: `200s` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]{1,6}(d|h|m|s))+$') && !self.matches('^(0+(d|h|m|s))+$')")
        .message("turnLimits.silence must be a span of time above zero, such as 200s or 10m"))]
    pub silence: Option<String>,
    /// How long it may take until it runs, from when opencode has it: `60s` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]{1,6}(d|h|m|s))+$') && !self.matches('^(0+(d|h|m|s))+$')")
        .message("turnLimits.start must be a span of time above zero, such as 60s or 3m"))]
    pub start: Option<String>,
    /// How often the model may be called: 300 times when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub steps: Option<i64>,
    /// How long a permission or a question waits for somebody's answer before it is refused: `15m` when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]{1,6}(d|h|m|s))+$') && !self.matches('^(0+(d|h|m|s))+$')")
        .message("turnLimits.answer must be a span of time above zero, such as 15m or 8h"))]
    pub answer: Option<String>,
}
