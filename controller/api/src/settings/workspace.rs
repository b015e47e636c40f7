//! Where the agent's work is kept, what it begins with, and files that are given to it. Pure.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::KeyReference;

/// Where the agent's work is kept, and what it begins with.
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
    /// What is in it before the agent begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<Seed>,
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

/// What a workspace begins with.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Seed {
    /// A git repository, cloned once to /workspace/repo, where the agent works then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitSeed>,
}

/// A git repository. A Sandbox that names another `url` than its template takes nothing else of the template's.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct GitSeed {
    /// Where it is: `https://`, `http://` or `ssh://`, without a user's password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(
        validation = Rule::new("self.matches('^(https|http|ssh)://[^[:space:]]+$')")
            .message("seed.git.url must begin with https://, http:// or ssh://; write git@host:path as ssh://git@host/path"),
        validation = Rule::new("!self.matches('^[a-z]+://[^/@]*:[^/@]*@')")
            .message("seed.git.url must not hold a password: put it into a Secret and name that in seed.git.credentialsSecretRef")
    )]
    pub url: Option<String>,
    /// Branch, tag or commit: the repository's default branch when absent.
    #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 255))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9_][A-Za-z0-9._/+@-]*$') && !self.contains('..')")
        .message("seed.git.ref must be the name of a branch or a tag, or a commit's hash"))]
    pub reference: Option<String>,
    /// How many commits of the history are fetched: all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub depth: Option<i32>,
    /// Whether submodules are fetched too, at every depth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submodules: Option<bool>,
    /// Whether files of Git LFS are fetched; the image needs `git-lfs` for it. What stands for them is left when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lfs: Option<bool>,
    /// Secret with what the repository's host wants: `username` and `password` (a token) for https, or `ssh-privatekey`
    /// and `known_hosts` for ssh. It reaches the seed step alone, never the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_secret_ref: Option<SecretReference>,
}

/// A Secret of the sandbox's namespace.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct SecretReference {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// A file that is given to the agent.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.secretKeyRef) != has(self.configMapKeyRef)")
    .message("a file has either secretKeyRef or configMapKeyRef"))]
pub struct ManagedFile {
    /// Where it is, beneath /berth/managed.
    #[schemars(length(min = 1, max = 512))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z0-9._@+-]+(/[A-Za-z0-9._@+-]+)*$') && !self.matches('(^|/)([.]|[.][.][^/]*)(/|$)')")
        .message("a file's path is relative to /berth/managed, such as config/settings.json, and no part of it is . or begins with .."))]
    pub path: String,
    /// A key of a Secret. The agent can read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyReference>,
    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyReference>,
}
