//! What the operator of a cluster was told, read from its Deployment: flags and the variables that stand for them. Pure.

use berth_operator::platform::{Network, Platform};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Container};

/// Beginning of the variables.
const PREFIX: &str = "BERTH_CONTROLLER_";

/// Flags that say nothing of what is made of a manifest.
const OTHERS: [&str; 5] = ["ADMIN", "LEADER_ELECTION", "IDENTITY", "LOG", "LOG_LEVEL"];

/// What it is told where nobody says otherwise.
pub(crate) fn usual() -> Platform {
    let version = env!("CARGO_PKG_VERSION");
    let network = Network { control_namespace: "berth-system".to_owned(), ..Network::default() };
    let image = |name: &str| format!("{name}:{version}");
    let (sidecar_image, sandbox_image) = (image("berth-sidecar"), image("berth-sandbox"));
    let mut platform = Platform::default();
    (platform.sidecar_image, platform.sandbox_image, platform.network) =
        (sidecar_image, sandbox_image, network);
    platform
}

/// What this operator was told, and the settings that were not understood, with the values that they have.
pub(crate) fn read(deployment: &Deployment, namespace: &str) -> (Platform, Vec<String>) {
    let mut platform = usual();
    namespace.clone_into(&mut platform.network.control_namespace);
    let spec = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let mut odd = Vec::new();
    for (name, value) in spec.into_iter().flat_map(|spec| &spec.containers).flat_map(settings) {
        if !OTHERS.contains(&name.as_str()) && set(&mut platform, &name, &value).is_none() {
            odd.push(format!("{name}={value}"));
        }
    }
    (platform, odd)
}

/// The settings of a container, flags last, since they go before variables: by the names of the variables without their
/// beginning. Values from elsewhere are left out: those that the operator has are the pod's own.
fn settings(container: &Container) -> Vec<(String, String)> {
    let variables = container.env.iter().flatten().filter_map(|variable| {
        Some((variable.name.strip_prefix(PREFIX)?.to_owned(), variable.value.clone()?))
    });
    let mut settings: Vec<(String, String)> = variables.collect();
    let mut words = container.command.iter().flatten().chain(container.args.iter().flatten());
    while let Some(word) = words.next() {
        let Some(flag) = word.strip_prefix("--") else { continue };
        let (flag, value) = match flag.split_once('=') {
            Some((flag, value)) => (flag, value.to_owned()),
            None => (flag, words.next().cloned().unwrap_or_default()),
        };
        settings.push((flag.replace('-', "_").to_uppercase(), value));
    }
    settings
}

/// Nothing where it is not understood.
fn set(platform: &mut Platform, name: &str, value: &str) -> Option<()> {
    let value = value.to_owned();
    let network = &mut platform.network;
    match name {
        "SIDECAR_IMAGE" => platform.sidecar_image = value,
        "SANDBOX_IMAGE" => platform.sandbox_image = value,
        "IMAGE_PULL_POLICY" => platform.image_pull_policy = Some(value),
        "CONTROL_NAMESPACE" => network.control_namespace = value,
        "CONTROL_ADDRESS" => network.control_addresses.append(&mut list(&value)?),
        "RESOLVER" => network.resolvers.append(&mut list(&value)?),
        "ALLOW" => network.allowed.append(&mut list(&value)?),
        _ => return None,
    }
    Some(())
}

fn list<T: std::str::FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(|item| item.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn flags_and_variables_are_read_as_the_operator_reads_them() {
        let deployment = json!({ "spec": { "selector": {}, "template": { "spec": { "containers": [{
            "name": "operator",
            "args": ["operator", "--sidecar-image=registry/sidecar@sha256:1", "--allow", "10.1.0.0/16:9100,10.2.0.0/16",
                     "--leader-election", "false", "--novelty=7"],
            "env": [
                { "name": "BERTH_CONTROLLER_SIDECAR_IMAGE", "value": "other" },
                { "name": "BERTH_CONTROLLER_SANDBOX_IMAGE", "value": "registry/sandbox:2" },
                { "name": "BERTH_CONTROLLER_RESOLVER", "value": "169.254.20.10/32" },
                { "name": "BERTH_CONTROLLER_ALLOW", "value": "nonsense" },
                { "name": "BERTH_CONTROLLER_CONTROL_NAMESPACE",
                  "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
                { "name": "HTTPS_PROXY", "value": "http://proxy" },
            ],
        }] } } } });
        let deployment = serde_json::from_value(deployment).unwrap();
        let (platform, odd) = read(&deployment, "platform");
        assert_eq!(platform.sidecar_image, "registry/sidecar@sha256:1");
        assert_eq!(platform.sandbox_image, "registry/sandbox:2");
        assert_eq!(platform.network.control_namespace, "platform");
        assert_eq!((platform.network.allowed.len(), platform.network.resolvers.len()), (2, 1));
        assert_eq!(odd, ["ALLOW=nonsense", "NOVELTY=7"]);
    }
}
