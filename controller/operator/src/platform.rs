//! What the operator was told about the platform: images, the network, and amounts where a manifest names none. Pure.

use ipnet::IpNet;

/// Of every sandbox alike.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Resolvers beside the pods of the cluster's own, such as a resolver on each node.
    pub resolvers: Vec<IpNet>,
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

#[cfg(test)]
mod tests {
    use super::*;

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
