//! The kind `Sandbox`: one agent's pod. Pure.
//!
//! What it may say beside its own lifecycle are [`Settings`], which a [template](crate::template) can supply too.

#![expect(unreachable_pub, reason = "the derive of schemas with rules copies each struct into a function")]

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{settings::Settings, status::SandboxStatus};

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
        json_path = ".status.model"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Template",
        type_ = "string",
        description = "The template that it is made from",
        json_path = ".spec.templateRef.name",
        priority = 1
    ),
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
    validation = Rule::new("has(self.spec.templateRef) || has(oldSelf.spec.templateRef) || (has(self.spec.workspace) && has(self.spec.workspace.ephemeral)) == (has(oldSelf.spec.workspace) && has(oldSelf.spec.workspace.ephemeral))")
        .message("spec.workspace cannot turn from persistent to ephemeral or back: make another Sandbox"),
    validation = Rule::new("!has(self.spec.suspended) || !self.spec.suspended || has(self.spec.discardWorkspace) && self.spec.discardWorkspace || !has(self.spec.workspace) || !has(self.spec.workspace.ephemeral)")
        .message("the workspace is ephemeral and would be lost: set spec.discardWorkspace to true if that is meant, or remove spec.suspended")
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    /// Template that supplies what this Sandbox does not say itself: lists and objects of both are merged, and the
    /// Sandbox's word goes before the template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template_ref: Option<TemplateReference>,

    /// Whether the agent is to rest: its pod is removed, its claim and its password stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<bool>,

    /// Whether an ephemeral workspace may be lost by `suspended`, which is refused otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discard_workspace: Option<bool>,

    /// What a template can supply too.
    #[serde(flatten)]
    pub settings: Settings,
}

/// A `SandboxTemplate` of the Sandbox's namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct TemplateReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}
