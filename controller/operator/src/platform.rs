//! What the operator was told about the platform: images, the network, and amounts where a manifest names none. Pure.

use ipnet::IpNet;

/// Of every sandbox alike.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Platform {
    /// Image of the sidecar.
    pub sidecar_image: String,
    /// Image of the agent's container where a manifest names none.
    pub sandbox_image: String,
    /// When images are fetched: `Always`, `IfNotPresent` or `Never`; by Kubernetes' own rule when absent.
    pub image_pull_policy: Option<String>,
    /// The network.
    pub network: Network,
}

/// Whom pods may talk to, and who to them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Network {
    /// Namespace of the server and the operator: their pods reach the door and the admin listener of each sandbox.
    pub control_namespace: String,
    /// Addresses that reach them too, such as those of a server outside of the cluster.
    pub control_addresses: Vec<IpNet>,
    /// Resolvers beside `kube-system`'s own (`k8s-app=kube-dns`), such as one on each node.
    pub resolvers: Vec<Resolver>,
    /// Private addresses that the agents may reach, such as a model's in the cluster.
    pub allowed: Vec<Destination>,
}

/// Where agents may connect to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Destination {
    /// The addresses.
    pub addresses: IpNet,
    /// The port; every one when absent.
    pub port: Option<u16>,
}

/// Text that names no destination.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no destination: write one such as 10.1.0.0/16, 10.1.2.3/32:8080 or [fd00::/8]:443")]
pub struct DestinationError(String);

impl std::str::FromStr for Destination {
    type Err = DestinationError;

    /// Reads `<network>` or `<network>:<port>`; a network of IPv6 is in brackets when a port follows.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        read(text).ok_or_else(|| DestinationError(text.chars().take(64).collect()))
    }
}

fn read(text: &str) -> Option<Destination> {
    if let Ok(addresses) = text.parse() {
        return Some(Destination { addresses, port: None });
    }
    let (network, port) = text.rsplit_once(':')?;
    let network = network.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(network);
    let port = port.parse().ok().filter(|port| *port > 0)?;
    Some(Destination { addresses: network.parse().ok()?, port: Some(port) })
}

/// The port of a resolver that names none.
const DNS_PORT: u16 = 53;

/// Who resolves names for agents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolver {
    /// Whom it is.
    pub peer: ResolverPeer,
    /// Where it listens, in UDP and TCP: of pods the port in the pod, whatever a Service makes of it.
    pub port: u16,
}

/// How a resolver is told from others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResolverPeer {
    /// By its addresses.
    Addresses(IpNet),
    /// Pods of a namespace with a label.
    Pods {
        /// The namespace.
        namespace: String,
        /// The label's key.
        key: String,
        /// The label's value.
        value: String,
    },
}

/// Text that names no resolver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no resolver: write addresses such as 169.254.20.10/32 or 10.0.0.10/32:5353, or pods such as \
     openshift-dns/dns.operator.openshift.io/daemonset-dns=default:5353"
)]
pub struct ResolverError(String);

impl std::str::FromStr for Resolver {
    type Err = ResolverError;

    /// Reads a destination, or `<namespace>/<label>=<value>` with `:<port>` where that is not 53.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let addresses = || {
            let Destination { addresses, port } = read(text)?;
            Some(Self { peer: ResolverPeer::Addresses(addresses), port: port.unwrap_or(DNS_PORT) })
        };
        addresses().or_else(|| read_pods(text)).ok_or_else(|| ResolverError(text.chars().take(64).collect()))
    }
}

fn read_pods(text: &str) -> Option<Resolver> {
    let (selector, port) = match text.rsplit_once(':') {
        Some((selector, port)) => (selector, port.parse().ok().filter(|port| *port > 0)?),
        None => (text, DNS_PORT),
    };
    let (namespace, label) = selector.split_once('/')?;
    let (key, value) = label.split_once('=')?;
    let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
    let plain = |text: &str, more: &[char]| {
        let inner = |letter: char| letter.is_ascii_alphanumeric() || more.contains(&letter);
        text.len() <= 63 && text.chars().all(inner) && text.chars().all(|letter| letter != '/')
    };
    let named = !namespace.is_empty() && plain(namespace, &['-']);
    let labelled = !name.is_empty() && plain(name, &['-', '_', '.']) && plain(value, &['-', '_', '.']);
    let prefixed = prefix.len() <= 253 && prefix.split('.').all(|part| plain(part, &['-']));
    (named && labelled && prefixed).then(|| Resolver {
        peer: ResolverPeer::Pods {
            namespace: namespace.to_owned(),
            key: key.to_owned(),
            value: value.to_owned(),
        },
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolvers_are_read() {
        for (text, network, port) in [
            ("169.254.20.10/32", "169.254.20.10/32", 53),
            ("10.0.0.10/32:5353", "10.0.0.10/32", 5353),
            ("fd00::10/128", "fd00::10/128", 53),
            ("[fd00::10/128]:5353", "fd00::10/128", 5353),
        ] {
            let peer = ResolverPeer::Addresses(network.parse().unwrap());
            assert_eq!(text.parse(), Ok(Resolver { peer, port }), "{text}");
        }
        for (text, key, port) in [
            ("dns/app=coredns", "app", 53),
            (
                "dns/dns.operator.openshift.io/daemonset-dns=coredns:5353",
                "dns.operator.openshift.io/daemonset-dns",
                5353,
            ),
        ] {
            let (namespace, key, value) = ("dns".to_owned(), key.to_owned(), "coredns".to_owned());
            assert_eq!(
                text.parse(),
                Ok(Resolver { peer: ResolverPeer::Pods { namespace, key, value }, port }),
                "{text}"
            );
        }
        for text in [
            "",
            "dns",
            "/app=x",
            "dns/=x",
            "dns/app",
            "dns/app=x:0",
            "dns/app=x:y",
            "dns/a/b/c=x",
            "dns/app=x y",
        ] {
            let error = text.parse::<Resolver>().unwrap_err().to_string();
            assert!(error.contains("such as"), "{error}");
        }
    }

    #[test]
    fn destinations_are_read() {
        for (text, network, port) in [
            ("10.1.0.0/16", "10.1.0.0/16", None),
            ("10.1.2.3/32:8080", "10.1.2.3/32", Some(8080)),
            ("fd00::/8", "fd00::/8", None),
            ("[fd00::/8]:443", "fd00::/8", Some(443)),
        ] {
            let expected = Destination { addresses: network.parse().unwrap(), port };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for text in ["", "10.1.2.3", "10.1.0.0/33", "10.1.0.0/16:0", "10.1.0.0/16:x", "models.test:80"] {
            assert!(text.parse::<Destination>().is_err(), "{text}");
        }
    }
}
