//! The kind `SandboxTemplate`: what many sandboxes have in common. Pure.

#![expect(unreachable_pub, reason = "the derive of schemas with rules copies each struct into a function")]

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use crate::settings::Settings;

/// What sandboxes that name this template are like where they do not say it themselves.
#[derive(CustomResource, KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "SandboxTemplate",
    namespaced,
    derive = "PartialEq",
    category = "berth",
    doc = "What many Sandboxes have in common. A change of it reaches those that name it: each is made anew when no turn runs in it.",
    printcolumn(
        name = "Model",
        type_ = "string",
        description = "The model that answers",
        json_path = ".spec.model"
    ),
    printcolumn(
        name = "Image",
        type_ = "string",
        description = "The image that agents work in",
        json_path = ".spec.image",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    validation = Rule::new("!has(self.spec.workspace) || !has(oldSelf.spec.workspace) || !(has(self.spec.workspace.ephemeral) && has(oldSelf.spec.workspace.persistent)) && !(has(self.spec.workspace.persistent) && has(oldSelf.spec.workspace.ephemeral))")
        .message("spec.workspace cannot turn from persistent to ephemeral or back, Sandboxes have it already: make another SandboxTemplate")
)]
#[serde(rename_all = "camelCase")]
pub struct SandboxTemplateSpec {
    /// What the sandboxes are like.
    #[serde(flatten)]
    pub settings: Settings,
}
