//! The network policies: one that closes every sandbox's pod of a namespace, and one for each set of rules that opens
//! what these name. Pure.
//!
//! Policies add up, so the rules are written such that each one on its own opens nothing that is private: addresses of
//! public networks are named, and what lies in them and is not public is left out.

use std::{collections::BTreeMap, net::IpAddr};

use berth_api::{layout, names};
use ipnet::IpNet;
use k8s_openapi::{
    api::networking::v1::{
        IPBlock, NetworkPolicy, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer,
        NetworkPolicyPort, NetworkPolicySpec,
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, LabelSelectorRequirement},
        util::intstr::IntOrString,
    },
};

use super::{hash, shared};
use crate::platform::{Destination, Network, Resolver, ResolverPeer};

/// What is not public in IPv4: by RFC 6890, and the one metadata address (Azure's) that lies among public ones.
const NOT_PUBLIC: [&str; 12] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
];

/// What leads to IPv4 addresses of the sender's choice within the public addresses of IPv6: Teredo and 6to4.
const NOT_PUBLIC_6: [&str; 2] = ["2001::/32", "2002::/16"];

/// Where clouds hand out credentials: AWS, Google, Azure and others; AWS' for containers; Alibaba; Oracle's older one.
/// No rule opens them, not those of a person either.
const METADATA: [&str; 9] = [
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
];

/// Closes all pods of sandboxes in a namespace.
pub(crate) fn build_default_deny(namespace: &str) -> NetworkPolicy {
    NetworkPolicy {
        metadata: shared(namespace, names::DEFAULT_DENY),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(any_sandbox()),
            policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
            ..NetworkPolicySpec::default()
        }),
    }
}

/// The rules of all sandboxes.
fn rules(network: &Network) -> NetworkPolicySpec {
    NetworkPolicySpec {
        policy_types: Some(vec!["Ingress".to_owned(), "Egress".to_owned()]),
        ingress: Some(vec![control(network)]),
        egress: Some(egress(network)),
        pod_selector: None,
    }
}

/// The hash of the platform's rules.
pub(crate) fn rule_set_hash(network: &Network) -> String {
    hash(&rules(network))
}

/// The policy with the platform's rules, and their hash, by which pods choose it.
pub(crate) fn build_rule_set(namespace: &str, network: &Network) -> (NetworkPolicy, String) {
    let rules = rules(network);
    let hash = hash(&rules);
    let label = BTreeMap::from([(names::RULE_SET.to_owned(), hash.clone())]);
    let mut metadata = shared(namespace, &names::rule_set(&hash));
    metadata.labels.get_or_insert_default().extend(label.clone());
    let selector = LabelSelector { match_labels: Some(label), match_expressions: None };
    let spec = NetworkPolicySpec { pod_selector: Some(selector), ..rules };
    (NetworkPolicy { metadata, spec: Some(spec) }, hash)
}

fn any_sandbox() -> LabelSelector {
    LabelSelector {
        match_labels: None,
        match_expressions: Some(vec![LabelSelectorRequirement {
            key: names::SANDBOX.to_owned(),
            operator: "Exists".to_owned(),
            values: None,
        }]),
    }
}

/// The server and the operator reach the door and the admin listener; nobody else reaches anything.
fn control(network: &Network) -> NetworkPolicyIngressRule {
    let pods = pods(&network.control_namespace, "app.kubernetes.io/part-of", "berth");
    let addresses = network.control_addresses.iter().map(|addresses| block(*addresses, Vec::new()));
    NetworkPolicyIngressRule {
        from: Some(std::iter::once(pods).chain(addresses).collect()),
        ports: Some(vec![port("TCP", layout::DOOR_PORT), port("TCP", layout::ADMIN_PORT)]),
    }
}

fn egress(network: &Network) -> Vec<NetworkPolicyEgressRule> {
    let public = vec![
        block(net("0.0.0.0/0"), NOT_PUBLIC.map(str::to_owned).to_vec()),
        block(net("2000::/3"), NOT_PUBLIC_6.map(str::to_owned).to_vec()),
    ];
    let allowed = network.allowed.iter().filter(|to| !is_metadata(to.addresses));
    let mut rules = resolvers(network);
    rules.push(NetworkPolicyEgressRule { to: Some(public), ports: None });
    rules.extend(allowed.map(destination));
    rules
}

/// One rule for each port: the cluster's own listen on 53.
fn resolvers(network: &Network) -> Vec<NetworkPolicyEgressRule> {
    let cluster = pods("kube-system", "k8s-app", "kube-dns");
    let mut by_port = vec![(53, vec![cluster])];
    for Resolver { peer, port } in &network.resolvers {
        let peer = match peer {
            ResolverPeer::Addresses(addresses) if is_metadata(*addresses) => continue,
            ResolverPeer::Addresses(addresses) => block(*addresses, metadata_in(*addresses)),
            ResolverPeer::Pods { namespace, key, value } => pods(namespace, key, value),
        };
        match by_port.iter_mut().find(|(of, _)| of == port) {
            Some((_, peers)) => peers.push(peer),
            None => by_port.push((*port, vec![peer])),
        }
    }
    let rule = |(number, peers): (u16, Vec<NetworkPolicyPeer>)| NetworkPolicyEgressRule {
        to: Some(peers),
        ports: Some(["UDP", "TCP"].map(|protocol| port(protocol, i32::from(number))).to_vec()),
    };
    by_port.into_iter().map(rule).collect()
}

fn pods(namespace: &str, key: &str, value: &str) -> NetworkPolicyPeer {
    NetworkPolicyPeer {
        namespace_selector: Some(labelled("kubernetes.io/metadata.name", namespace)),
        pod_selector: Some(labelled(key, value)),
        ip_block: None,
    }
}

fn destination(to: &Destination) -> NetworkPolicyEgressRule {
    NetworkPolicyEgressRule {
        to: Some(vec![block(to.addresses, metadata_in(to.addresses))]),
        ports: to.port.map(|number| vec![port("TCP", i32::from(number))]),
    }
}

/// The metadata addresses within these addresses, to be left out of them.
fn metadata_in(addresses: IpNet) -> Vec<String> {
    let within = METADATA.iter().filter(|text| addresses.contains(&address(text)));
    within.map(|text| IpNet::from(address(text)).to_string()).collect()
}

/// Whether these addresses are one address, and a metadata one: it cannot be left out of itself.
fn is_metadata(addresses: IpNet) -> bool {
    METADATA.iter().any(|text| IpNet::from(address(text)) == addresses.trunc())
}

fn net(text: &str) -> IpNet {
    text.parse().expect("the constants are networks: see the tests")
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("the constants are addresses: see the tests")
}

fn block(addresses: IpNet, except: Vec<String>) -> NetworkPolicyPeer {
    let except = (!except.is_empty()).then_some(except);
    NetworkPolicyPeer {
        ip_block: Some(IPBlock { cidr: addresses.trunc().to_string(), except }),
        ..NetworkPolicyPeer::default()
    }
}

fn labelled(key: &str, value: &str) -> LabelSelector {
    LabelSelector {
        match_labels: Some(BTreeMap::from([(key.to_owned(), value.to_owned())])),
        match_expressions: None,
    }
}

fn port(protocol: &str, number: i32) -> NetworkPolicyPort {
    NetworkPolicyPort {
        protocol: Some(protocol.to_owned()),
        port: Some(IntOrString::Int(number)),
        end_port: None,
    }
}

#[cfg(test)]
mod tests {
    use berth_api::canonical;

    use super::*;
    use crate::build::sample;

    /// Whether a rule with addresses opens this one.
    fn opens(network: &Network, target: &str) -> bool {
        let target = address(target);
        let rules = egress(network);
        let peers = rules.iter().flat_map(|rule| rule.to.iter().flatten());
        peers.filter_map(|peer| peer.ip_block.as_ref()).any(|block| {
            let mut except = block.except.iter().flatten();
            net(&block.cidr).contains(&target) && !except.any(|out| net(out).contains(&target))
        })
    }

    #[test]
    fn public_addresses_are_open_and_nothing_private_is() {
        let network = sample::platform().network;
        for public in ["1.1.1.1", "140.82.112.3", "192.0.1.1", "2606:4700::1111"] {
            assert!(opens(&network, public), "{public}");
        }
        let private =
            ["10.0.0.1", "172.31.0.1", "192.168.1.1", "198.18.255.1", "127.0.0.1", "fd00::1", "::1"];
        for closed in private.iter().chain(&METADATA) {
            assert!(!opens(&network, closed), "{closed}");
        }
    }

    #[test]
    fn metadata_stays_closed_in_what_a_person_opens() {
        let everything = ["0.0.0.0/0", "::/0", "169.254.0.0/16", "100.64.0.0/10", "169.254.169.254/32"];
        let allowed = everything.map(|text| text.parse().unwrap()).to_vec();
        let network = Network {
            allowed,
            resolvers: ["169.254.0.0/16", "169.254.170.2/32"].map(|text| text.parse().unwrap()).to_vec(),
            ..Network::default()
        };
        assert!(
            opens(&network, "10.0.0.1") && opens(&network, "169.254.20.10") && opens(&network, "fd00::1")
        );
        for closed in METADATA {
            assert!(!opens(&network, closed), "{closed}");
        }
        // The cluster refuses what is left out of a network and does not lie within it.
        let rules = egress(&network);
        for block in
            rules.iter().flat_map(|rule| rule.to.iter().flatten()).filter_map(|peer| peer.ip_block.as_ref())
        {
            let whole = net(&block.cidr);
            assert!(block.except.iter().flatten().all(|out| whole.contains(&net(out)) && whole != net(out)));
        }
    }

    #[test]
    fn each_resolver_is_open_at_its_own_port_and_no_other() {
        let given = ["169.254.20.10/32", "10.0.0.10/32:5353", "dns/app=coredns:5353"];
        let resolvers = given.map(|text| text.parse().unwrap()).to_vec();
        let rules = super::resolvers(&Network { resolvers, ..Network::default() });
        let ports = |rule: &NetworkPolicyEgressRule| {
            let ports = rule.ports.iter().flatten();
            ports.map(|port| (port.protocol.clone().unwrap(), port.port.clone().unwrap())).collect::<Vec<_>>()
        };
        let both =
            |number| ["UDP", "TCP"].map(|protocol| (protocol.to_owned(), IntOrString::Int(number))).to_vec();
        assert_eq!(rules.iter().map(ports).collect::<Vec<_>>(), [both(53), both(5353)]);
        let peers = |rule: usize| rules[rule].to.as_ref().unwrap();
        assert_eq!(peers(0)[1].ip_block.as_ref().unwrap().cidr, "169.254.20.10/32");
        assert_eq!(peers(1)[0].ip_block.as_ref().unwrap().cidr, "10.0.0.10/32");
        assert_eq!(peers(1)[1], pods("dns", "app", "coredns"));
    }

    #[test]
    fn the_rules_make_the_name() {
        let network = sample::platform().network;
        let (policy, hash) = build_rule_set("team", &network);
        assert_eq!(policy.metadata.name, Some(names::rule_set(&hash)));
        assert_eq!(build_rule_set("other", &network).1, hash);
        let wider = Network { allowed: vec!["10.0.0.0/8:80".parse().unwrap()], ..network };
        assert_ne!(build_rule_set("team", &wider).1, hash);
        insta::assert_json_snapshot!(canonical::value(&policy));
    }

    #[test]
    fn every_pod_of_a_sandbox_is_closed_at_first() {
        insta::assert_json_snapshot!(canonical::value(&build_default_deny("team")));
    }
}
