//! What the pod gets beside what Berth gives it. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, HostAlias, LocalObjectReference, PodDNSConfig, Toleration, TopologySpreadConstraint,
};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// Taints that it puts up with. A Sandbox's stand beside its template's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub tolerations: Vec<Toleration>,
    /// Which nodes, and which other pods on them, it looks for or keeps away from. A Sandbox's takes the place of its
    /// template's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// How pods like it are spread over nodes and zones. A Sandbox's take the place of its template's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub topology_spread_constraints: Vec<TopologySpreadConstraint>,
    /// Which scheduler finds a node for it: the cluster's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub scheduler_name: Option<String>,
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
    /// Secrets with credentials for the images' registries. A Sandbox's stand beside its template's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub image_pull_secrets: Vec<LocalObjectReference>,
    /// When the files of the workspace get the pod's group: `OnRootMismatch` when absent, since `Always` takes minutes in
    /// one with a million files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fs_group_change_policy: Option<FsGroupChangePolicy>,
    /// Who resolves names for it: `ClusterFirst`, `Default`, or `None` with `dnsConfig`. The network's rules open the
    /// cluster's resolver, and those that the platform names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("self in ['ClusterFirst', 'Default', 'None']")
        .message("dnsPolicy must be ClusterFirst, Default or None"))]
    #[schemars(length(max = 32))]
    pub dns_policy: Option<String>,
    /// Resolvers, search domains and options beside those of `dnsPolicy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dns_config: Option<PodDNSConfig>,
    /// Lines of its hosts file.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub host_aliases: Vec<HostAlias>,
}

/// When the files of a volume get the pod's group.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsGroupChangePolicy {
    /// Where its topmost directory does not have it.
    OnRootMismatch,
    /// At each start of a pod.
    Always,
}

impl FsGroupChangePolicy {
    /// As the pod has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OnRootMismatch => "OnRootMismatch",
            Self::Always => "Always",
        }
    }
}
