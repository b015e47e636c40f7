//! What runs in a node, and how each is told to: command lines and configurations. Pure.
//!
//! Why each unusual setting is there was measured on Kubernetes 1.36 in a machine without `CAP_SYS_RESOURCE`.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cluster::layout::Layout;

/// The node's name.
pub(super) const NODE: &str = "node1";
/// The node's address. All addresses are of 198.18.0.0/15, which is for tests of networks and is no private network
/// by the usual lists: a policy that closes those leaves these as they are.
pub(super) const NODE_ADDRESS: &str = "198.18.255.1";
/// Port of the apiserver.
pub(super) const API_PORT: u16 = 6443;
/// Addresses of pods.
const PODS: &str = "198.18.0.0/24";
/// Addresses of services.
pub(super) const SERVICES: &str = "198.18.128.0/20";
/// The service `kubernetes`: the first address of services.
pub(super) const API_SERVICE: &str = "198.18.128.1";
/// The service `kube-dns`, as its manifest says too.
const DNS_SERVICE: &str = "198.18.128.10";
/// The bridge that pods are on.
pub(super) const BRIDGE: &str = "cni0";
/// The netfilter queue in which network policies are judged.
pub(super) const QUEUE: &str = "100";
/// The image that holds a pod's namespaces.
pub(super) const PAUSE_IMAGE: &str = "localhost/berth-pause:1";
/// By this name the storage class calls for the provisioner, as its manifest says too.
const PROVISIONER: &str = "berth.dev/local-volumes";
/// Where containerd listens, inside the node.
pub(super) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

/// When a component starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// At once.
    First,
    /// When the apiserver is ready: some give up when it is not.
    ApiReady,
}

/// A program of the node.
#[derive(Debug, Clone)]
pub(super) struct Component {
    /// What its log is called.
    pub(super) name: &'static str,
    /// Its program.
    pub(super) program: PathBuf,
    /// Its arguments.
    pub(super) arguments: Vec<String>,
    /// When it starts.
    pub(super) stage: Stage,
}

/// All of them.
pub(super) fn components(layout: &Layout) -> Vec<Component> {
    let ours = |name, arguments, stage| Component { name, program: layout.program(name), arguments, stage };
    let packaged = |name: &'static str, arguments| Component {
        name,
        program: name.into(),
        arguments,
        stage: Stage::First,
    };
    vec![
        packaged("containerd", vec!["--config".to_owned(), layout.text("containerd.toml")]),
        packaged("etcd", etcd(layout)),
        ours("kube-apiserver", apiserver(layout), Stage::First),
        ours("kube-controller-manager", controller_manager(layout), Stage::ApiReady),
        ours("kube-scheduler", scheduler(layout), Stage::ApiReady),
        ours("kubelet", kubelet(layout), Stage::ApiReady),
        ours("kube-proxy", options([("config", layout.text("kube-proxy.json"))]), Stage::ApiReady),
        ours("network-policies", network_policies(layout), Stage::ApiReady),
        ours("local-volumes", local_volumes(layout), Stage::ApiReady),
    ]
}

fn options(options: impl IntoIterator<Item = (&'static str, String)>) -> Vec<String> {
    options.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

fn etcd(layout: &Layout) -> Vec<String> {
    let mut arguments = options([
        ("name", NODE.to_owned()),
        ("data-dir", layout.text("etcd")),
        ("listen-client-urls", "http://127.0.0.1:2379".to_owned()),
        ("advertise-client-urls", "http://127.0.0.1:2379".to_owned()),
        ("listen-peer-urls", "http://127.0.0.1:2380".to_owned()),
    ]);
    // Nothing of a cluster outlives its node.
    arguments.push("--unsafe-no-fsync".to_owned());
    arguments
}

fn apiserver(layout: &Layout) -> Vec<String> {
    let pki = |name: &str| layout.text(&format!("pki/{name}"));
    options([
        ("etcd-servers", "http://127.0.0.1:2379".to_owned()),
        ("bind-address", NODE_ADDRESS.to_owned()),
        ("advertise-address", NODE_ADDRESS.to_owned()),
        ("secure-port", API_PORT.to_string()),
        ("tls-cert-file", pki("apiserver.crt")),
        ("tls-private-key-file", pki("apiserver.key")),
        ("client-ca-file", pki("ca.crt")),
        ("service-account-issuer", "https://kubernetes.default.svc.cluster.local".to_owned()),
        ("service-account-key-file", pki("tokens.pub")),
        ("service-account-signing-key-file", pki("tokens.key")),
        ("kubelet-client-certificate", pki("kubelet-client.crt")),
        ("kubelet-client-key", pki("kubelet-client.key")),
        ("kubelet-certificate-authority", pki("ca.crt")),
        ("kubelet-preferred-address-types", "InternalIP".to_owned()),
        ("service-cluster-ip-range", SERVICES.to_owned()),
        ("authorization-mode", "Node,RBAC".to_owned()),
        ("enable-admission-plugins", "NodeRestriction".to_owned()),
        ("allow-privileged", "true".to_owned()),
    ])
}

fn controller_manager(layout: &Layout) -> Vec<String> {
    let mut arguments = controllers(layout, "controller-manager");
    arguments.extend(options([
        ("use-service-account-credentials", "true".to_owned()),
        ("service-account-private-key-file", layout.text("pki/tokens.key")),
        ("root-ca-file", layout.text("pki/ca.crt")),
        ("cluster-signing-cert-file", layout.text("pki/ca.crt")),
        ("cluster-signing-key-file", layout.text("pki/ca.key")),
        ("allocate-node-cidrs", "false".to_owned()),
    ]));
    arguments
}

fn scheduler(layout: &Layout) -> Vec<String> {
    controllers(layout, "scheduler")
}

/// What the programs have in common of which a cluster with several of each elects one.
fn controllers(layout: &Layout, name: &str) -> Vec<String> {
    let kubeconfig = layout.text(&format!("pki/{name}.kubeconfig"));
    options([
        ("kubeconfig", kubeconfig.clone()),
        ("authentication-kubeconfig", kubeconfig.clone()),
        ("authorization-kubeconfig", kubeconfig),
        ("bind-address", "127.0.0.1".to_owned()),
        ("leader-elect", "false".to_owned()),
    ])
}

fn kubelet(layout: &Layout) -> Vec<String> {
    options([
        ("config", layout.text("kubelet.json")),
        ("kubeconfig", layout.text("pki/kubelet.kubeconfig")),
        ("hostname-override", NODE.to_owned()),
        ("node-ip", NODE_ADDRESS.to_owned()),
        ("root-dir", layout.text("kubelet")),
        ("cert-dir", layout.text("kubelet-certificates")),
    ])
}

fn network_policies(layout: &Layout) -> Vec<String> {
    options([
        ("kubeconfig", layout.text("pki/admin.kubeconfig")),
        ("node", NODE.to_owned()),
        ("queue", QUEUE.to_owned()),
    ])
}

fn local_volumes(layout: &Layout) -> Vec<String> {
    options([
        ("kubeconfig", layout.text("pki/admin.kubeconfig")),
        ("provisioner", PROVISIONER.to_owned()),
        ("root", layout.text("volumes")),
    ])
}

/// The configuration files: name and text.
pub(super) fn configurations(layout: &Layout) -> [(&'static str, String); 5] {
    [
        ("kubelet.json", kubelet_configuration(layout).to_string()),
        ("kube-proxy.json", proxy_configuration(layout).to_string()),
        ("cni/10-berth.conflist", network_configuration().to_string()),
        ("containerd.toml", containerd_configuration(layout)),
        // Nothing outside the cluster is resolved.
        ("resolv.conf", "nameserver 127.0.0.1\n".to_owned()),
    ]
}

fn kubelet_configuration(layout: &Layout) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1",
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": layout.text("pki/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": layout.text("pki/kubelet.crt"),
        "tlsPrivateKeyFile": layout.text("pki/kubelet.key"),
        "cgroupDriver": "cgroupfs",
        // The kubelet of 1.35 and later does not start on version 1 otherwise.
        "failCgroupV1": false,
        "failSwapOn": false,
        // The node's own check against stand-ins, see `node`: it may not write what is the machine's.
        "protectKernelDefaults": true,
        // The machine's disk is not the cluster's: how full it is must evict nobody.
        "evictionHard": {
            "memory.available": "10Mi",
            "nodefs.available": "0%",
            "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
            "imagefs.inodesFree": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "maxPods": 200,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "resolvConf": layout.text("resolv.conf"),
        "volumePluginDir": layout.text("volume-plugins"),
        "nodeStatusUpdateFrequency": "4s",
    })
}

fn proxy_configuration(layout: &Layout) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": layout.text("pki/proxy.kubeconfig")},
        "mode": "iptables",
        "clusterCIDR": PODS,
        "hostnameOverride": NODE,
        "bindAddress": NODE_ADDRESS,
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        // Limits of connection tracking are the machine's.
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    })
}

fn network_configuration() -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": true,
                "ipMasq": false,
                "hairpinMode": true,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni-addresses",
                    "ranges": [[{"subnet": PODS}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

/// For containerd 1.6 and 1.7. Without `restrict_oom_score_adj` runc fails where `CAP_SYS_RESOURCE` is missing.
fn containerd_configuration(layout: &Layout) -> String {
    format!(
        r#"version = 2
root = "{root}"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  tolerate_missing_hugetlb_controller = true
  disable_hugetlb_controller = true
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{network}"
"#,
        root = layout.text("containerd"),
        network = layout.text("cni"),
    )
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;
    use crate::cluster::programs::Version;

    #[test]
    fn every_file_of_a_cluster_is_below_its_directory() {
        let version: Version = "1.36.3".parse().unwrap();
        let of = |name| Layout::new(Path::new("/cache"), name, version);
        let words = |layout: &Layout| -> BTreeSet<String> {
            let arguments = components(layout).into_iter().flat_map(|component| component.arguments);
            let texts = configurations(layout).into_iter().map(|(_, text)| text);
            arguments.chain(texts).collect()
        };
        // What differs between two clusters is their directories, and nothing of one is in the other's.
        let renamed = |word: &String| word.replace("/cache/clusters/a/", "/cache/clusters/b/");
        assert_eq!(words(&of("a")).iter().map(renamed).collect::<BTreeSet<_>>(), words(&of("b")));
        assert!(words(&of("a")).iter().any(|word| word.contains("/cache/clusters/a/")));
    }

    #[test]
    fn manifests_agree_with_the_configuration() {
        let dns = include_str!("../../../tests/cluster/manifests/dns.yaml");
        assert!(dns.contains(&format!("clusterIP: {DNS_SERVICE}\n")));
        // Policies judge the port of the pod, and the operator's open this one.
        for part in [".:53 {", "containerPort: 53, protocol: UDP", "targetPort: 53, protocol: TCP"] {
            assert!(dns.contains(part), "{part}");
        }
        let storage = include_str!("../../../tests/cluster/manifests/storage.yaml");
        assert!(storage.contains(&format!("provisioner: {PROVISIONER}\n")));
    }
}
