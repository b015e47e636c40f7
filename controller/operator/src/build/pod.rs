//! The pod: a native sidecar with the door, and the agent's container beside it. Pure.
//!
//! Both run as one user without rights on the node. The door's password is in the sidecar alone; the agent's container
//! has opencode's internal one.

use std::collections::BTreeMap;

use berth_api::{
    configuration::SWITCHES,
    layout, names,
    settings::{FsGroupChangePolicy, KeyReference, PodOverlay, Variable},
};
use k8s_openapi::{
    api::core::v1::{
        Capabilities, ConfigMapKeySelector, Container, ContainerPort, EmptyDirVolumeSource, EnvVar,
        EnvVarSource, HTTPGetAction, KeyToPath, ObjectFieldSelector, PersistentVolumeClaimVolumeSource, Pod,
        PodSecurityContext, PodSpec, Probe, ResourceRequirements, SeccompProfile, SecretKeySelector,
        SecretVolumeSource, SecurityContext, Volume, VolumeMount,
    },
    apimachinery::pkg::{api::resource::Quantity, util::intstr::IntOrString},
};

use super::{hash, owned};
use crate::{
    platform::Platform,
    prepare::{Prepared, PreparedWorkspace},
};

/// What the sidecar is given: a ring of 32 MiB and 128 MiB of bodies that are held are its largest parts.
const SIDECAR_REQUESTS: [(&str, &str); 3] =
    [("cpu", "25m"), ("ephemeral-storage", "16Mi"), ("memory", "48Mi")];
const SIDECAR_LIMITS: [(&str, &str); 3] = [("cpu", "1"), ("ephemeral-storage", "128Mi"), ("memory", "320Mi")];

/// Seconds that a pod has to end: opencode gets five after the turn's own end, then its supervisor kills it.
const GRACE: i64 = 30;

/// Readable by the owner and the group, which is the pod's.
const SECRET_MODE: i32 = 0o440;

const WORKSPACE_VOLUME: &str = "workspace";
const SECRET_VOLUME: &str = "door-secret";
const INTERNAL_VOLUME: &str = "internal-secret";

/// The pod, with the hash of all that it was built from. The label that chooses its network rules is no part of that:
/// it can change while the pod lives.
pub(crate) fn build_pod(prepared: &Prepared, platform: &Platform, rules: &str) -> Pod {
    let mut metadata = owned(prepared, names::pod(&prepared.name));
    let overlay = &prepared.overlay;
    let labels = metadata.labels.get_or_insert_default();
    // What is Berth's stays what it is, also where the cluster let something else pass.
    let further = overlay.labels.iter().filter(|(name, _)| !is_berths(name));
    labels.extend(further.map(|(name, value)| (name.clone(), value.clone())));
    let further = overlay.annotations.iter().filter(|(name, _)| !is_berths(name));
    metadata.annotations = Some(further.map(|(name, value)| (name.clone(), value.clone())).collect());
    let mut pod = Pod { metadata, spec: Some(build_spec(prepared, platform)), status: None };
    let hash = hash(&pod);
    pod.metadata.labels.get_or_insert_default().insert(names::RULE_SET.to_owned(), rules.to_owned());
    pod.metadata.annotations.get_or_insert_default().insert(names::POD_HASH.to_owned(), hash);
    pod
}

fn is_berths(name: &str) -> bool {
    name.starts_with(names::PREFIX) || name == names::MANAGED_BY
}

fn build_spec(prepared: &Prepared, platform: &Platform) -> PodSpec {
    let PodOverlay {
        labels: _,
        annotations: _,
        node_selector,
        tolerations,
        affinity,
        runtime_class_name,
        priority_class_name,
        service_account_name,
        image_pull_secrets,
        topology_spread_constraints,
        scheduler_name,
        fs_group_change_policy,
        dns_policy,
        dns_config,
        host_aliases,
    } = prepared.overlay.clone();
    PodSpec {
        hostname: Some(prepared.name.clone()),
        subdomain: Some(names::SERVICE.to_owned()),
        init_containers: Some(vec![build_sidecar(platform)]),
        containers: vec![build_sandbox(prepared, platform)],
        volumes: Some(build_volumes(prepared)),
        restart_policy: Some("Always".to_owned()),
        termination_grace_period_seconds: Some(GRACE),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(pod_security(fs_group_change_policy)),
        node_selector: (!node_selector.is_empty()).then_some(node_selector),
        tolerations: filled(tolerations),
        affinity,
        runtime_class_name,
        priority_class_name,
        service_account_name,
        image_pull_secrets: filled(image_pull_secrets),
        topology_spread_constraints: filled(topology_spread_constraints),
        scheduler_name,
        dns_policy,
        dns_config,
        host_aliases: filled(host_aliases),
        ..PodSpec::default()
    }
}

/// An empty list is none: the cluster drops it, and the pod's hash must not depend on that.
fn filled<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn pod_security(fs_group: Option<FsGroupChangePolicy>) -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(layout::USER),
        run_as_group: Some(layout::USER),
        fs_group: Some(layout::USER),
        // A workspace with a million files would take minutes at each start otherwise.
        fs_group_change_policy: Some(
            fs_group.unwrap_or(FsGroupChangePolicy::OnRootMismatch).as_str().to_owned(),
        ),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), localhost_profile: None }),
        ..PodSecurityContext::default()
    }
}

fn container_security(read_only: bool) -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { add: None, drop: Some(vec!["ALL".to_owned()]) }),
        privileged: Some(false),
        read_only_root_filesystem: Some(read_only),
        ..SecurityContext::default()
    }
}

fn build_sidecar(platform: &Platform) -> Container {
    let arguments = [
        format!("--secret={}", layout::SECRET),
        format!("--files={}", layout::WORKSPACE),
        format!("--listen=0.0.0.0:{}", layout::DOOR_PORT),
        format!("--admin=0.0.0.0:{}", layout::ADMIN_PORT),
    ];
    let uid = ObjectFieldSelector { field_path: "metadata.uid".to_owned(), api_version: None };
    Container {
        name: layout::SIDECAR.to_owned(),
        image: Some(platform.sidecar_image.clone()),
        image_pull_policy: platform.image_pull_policy.clone(),
        // What makes it a sidecar: it starts before the agent's container, and ends after it.
        restart_policy: Some("Always".to_owned()),
        command: Some(vec![layout::SIDECAR_PROGRAM.to_owned()]),
        args: Some(arguments.to_vec()),
        env: Some(vec![EnvVar {
            name: "BERTH_SIDECAR_POD_UID".to_owned(),
            value: None,
            value_from: Some(EnvVarSource { field_ref: Some(uid), ..EnvVarSource::default() }),
        }]),
        ports: Some(vec![port("door", layout::DOOR_PORT), port("admin", layout::ADMIN_PORT)]),
        readiness_probe: Some(probe("/doc", layout::DOOR_PORT, 1, 3)),
        liveness_probe: Some(probe("/live", layout::ADMIN_PORT, 10, 6)),
        resources: Some(ResourceRequirements {
            requests: Some(amounts(&SIDECAR_REQUESTS)),
            limits: Some(amounts(&SIDECAR_LIMITS)),
            claims: None,
        }),
        volume_mounts: Some(vec![
            mount(SECRET_VOLUME, layout::SECRET, true),
            mount(WORKSPACE_VOLUME, layout::WORKSPACE, true),
        ]),
        security_context: Some(container_security(true)),
        ..Container::default()
    }
}

fn build_sandbox(prepared: &Prepared, platform: &Platform) -> Container {
    let arguments = [
        format!("--opencode={}", layout::OPENCODE),
        format!("--directory={}", layout::DIRECTORY),
        format!("--data={}", layout::DATA),
        format!("--config-home={}", layout::CONFIG_HOME),
        format!("--password-file={}/{}", layout::INTERNAL_SECRET, names::OPENCODE_PASSWORD),
        format!("--wait-for=http://127.0.0.1:{}/ready", layout::ADMIN_PORT),
    ];
    Container {
        name: layout::SANDBOX.to_owned(),
        image: Some(prepared.image.clone()),
        image_pull_policy: platform.image_pull_policy.clone(),
        command: Some(vec![layout::SUPERVISOR.to_owned()]),
        args: Some(arguments.to_vec()),
        env: Some(build_environment(prepared)),
        resources: Some(prepared.resources.clone()),
        volume_mounts: Some(vec![
            mount(INTERNAL_VOLUME, layout::INTERNAL_SECRET, true),
            mount(WORKSPACE_VOLUME, layout::WORKSPACE, false),
        ]),
        security_context: Some(container_security(false)),
        ..Container::default()
    }
}

/// Literal texts come with each dollar sign doubled: Kubernetes would put variables in their place.
fn build_environment(prepared: &Prepared) -> Vec<EnvVar> {
    let literal = |name: &str, value: &str| EnvVar {
        name: name.to_owned(),
        value: Some(value.replace('$', "$$")),
        value_from: None,
    };
    let mut variables =
        vec![literal("HOME", layout::HOME), literal("OPENCODE_CONFIG_CONTENT", &prepared.configuration)];
    variables.extend(SWITCHES.iter().map(|name| literal(name, "1")));
    variables.extend(prepared.providers.iter().filter_map(|provider| {
        let reference = provider.api_key_secret_ref.clone()?;
        Some(EnvVar {
            name: names::key_variable(&provider.name),
            value: None,
            value_from: Some(EnvVarSource {
                secret_key_ref: Some(secret_key(reference)),
                ..EnvVarSource::default()
            }),
        })
    }));
    // The cluster's rules keep a manifest from naming Berth's own ones; the last of a name would win.
    let own = prepared.variables.iter().filter(|variable| {
        !variables.iter().any(|ours| ours.name == variable.name) && !variable.name.starts_with("BERTH_")
    });
    let own: Vec<EnvVar> = own.map(|variable| build_variable(variable, literal)).collect();
    variables.extend(own);
    variables
}

fn build_variable(variable: &Variable, literal: impl Fn(&str, &str) -> EnvVar) -> EnvVar {
    let Some(source) = &variable.value_from else {
        return literal(&variable.name, variable.value.as_deref().unwrap_or_default());
    };
    EnvVar {
        name: variable.name.clone(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: source.secret_key_ref.clone().map(secret_key),
            config_map_key_ref: source.config_map_key_ref.clone().map(|reference| ConfigMapKeySelector {
                name: reference.name,
                key: reference.key,
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
    }
}

fn secret_key(reference: KeyReference) -> SecretKeySelector {
    SecretKeySelector { name: reference.name, key: reference.key, optional: None }
}

fn build_volumes(prepared: &Prepared) -> Vec<Volume> {
    let workspace = match &prepared.workspace {
        PreparedWorkspace::Persistent { .. } => Volume {
            persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                claim_name: names::claim(&prepared.name),
                read_only: None,
            }),
            ..volume(WORKSPACE_VOLUME)
        },
        PreparedWorkspace::Ephemeral { limit } => Volume {
            empty_dir: Some(EmptyDirVolumeSource { medium: None, size_limit: Some(limit.clone()) }),
            ..volume(WORKSPACE_VOLUME)
        },
    };
    let internal = KeyToPath {
        key: names::OPENCODE_PASSWORD.to_owned(),
        path: names::OPENCODE_PASSWORD.to_owned(),
        mode: None,
    };
    let secret = |items| SecretVolumeSource {
        secret_name: Some(names::secret(&prepared.name)),
        default_mode: Some(SECRET_MODE),
        items,
        optional: None,
    };
    vec![
        workspace,
        Volume { secret: Some(secret(None)), ..volume(SECRET_VOLUME) },
        Volume { secret: Some(secret(Some(vec![internal]))), ..volume(INTERNAL_VOLUME) },
    ]
}

fn volume(name: &str) -> Volume {
    Volume { name: name.to_owned(), ..Volume::default() }
}

fn mount(name: &str, path: &str, read_only: bool) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    }
}

fn port(name: &str, number: i32) -> ContainerPort {
    ContainerPort { name: Some(name.to_owned()), container_port: number, ..ContainerPort::default() }
}

fn probe(path: &str, port: i32, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::Int(port),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        timeout_seconds: Some(5),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

fn amounts(texts: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    texts.iter().map(|(name, text)| ((*name).to_owned(), Quantity((*text).to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use berth_api::canonical;
    use serde_json::{Value, json};

    use super::*;
    use crate::{build::sample, prepare::prepare};

    fn pod(spec: Value) -> Pod {
        let prepared = prepare(&sample::sandbox(spec), &sample::platform()).unwrap();
        build_pod(&prepared, &sample::platform(), "0123456789abcdef")
    }

    fn pod_hash(pod: &Pod) -> &str {
        &pod.metadata.annotations.as_ref().unwrap()[names::POD_HASH]
    }

    #[test]
    fn of_a_plain_manifest() {
        insta::assert_json_snapshot!(canonical::value(&pod(json!({}))));
    }

    #[test]
    fn of_a_manifest_with_everything() {
        insta::assert_json_snapshot!(canonical::value(&pod(json!({
            "image": "team/agent:2",
            "model": "anthropic/claude-sonnet-4-5",
            "providers": [{ "name": "anthropic", "apiKeySecretRef": { "name": "keys", "key": "anthropic" } }],
            "opencode": {
                "config": { "permission": { "bash": "ask" } },
                "env": [
                    { "name": "PRICE", "value": "$(HOME) costs $5" },
                    { "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "tokens", "key": "git" } } },
                ],
            },
            "resources": { "requests": { "cpu": 1 }, "limits": { "memory": "8Gi", "nvidia.com/gpu": 1 } },
            "workspace": { "ephemeral": { "sizeLimit": "1Gi" } },
            "pod": {
                "labels": { "team": "red" }, "annotations": { "note": "x" }, "nodeSelector": { "disk": "ssd" },
                "tolerations": [{ "key": "agents", "operator": "Exists" }], "runtimeClassName": "gvisor",
                "priorityClassName": "low", "serviceAccountName": "agent", "imagePullSecrets": [{ "name": "registry" }],
            },
        }))));
    }

    #[test]
    fn the_hash_follows_what_the_pod_is_and_not_how_it_was_written() {
        let plain = pod(json!({}));
        let cpu = |text: &str| pod(json!({ "resources": { "limits": { "cpu": text } } }));
        assert_eq!(pod_hash(&plain), pod_hash(&cpu("2000m")));
        assert_ne!(pod_hash(&plain), pod_hash(&cpu("3")));
        let config = |text: &str| {
            pod(json!({ "opencode": { "config": serde_json::from_str::<Value>(text).unwrap() } }))
        };
        let one = config(
            r#"{ "agent": { "b": { "x": 1, "w": 2 }, "a": {} }, "permission": [{ "d": 1, "c": 2 }] }"#,
        );
        let other = config(
            r#"{ "permission": [{ "c": 2, "d": 1 }], "agent": { "a": {}, "b": { "w": 2, "x": 1 } } }"#,
        );
        assert_eq!(one, other);
        let prepared = prepare(&sample::sandbox(json!({})), &sample::platform()).unwrap();
        let other_rules = build_pod(&prepared, &sample::platform(), "fedcba9876543210");
        assert_eq!(pod_hash(&plain), pod_hash(&other_rules));
    }

    #[test]
    fn what_is_berths_cannot_be_taken_by_a_manifest() {
        let taken = pod(json!({
            "pod": {
                "labels": { "berth.dev/sandbox": "other", "app.kubernetes.io/managed-by": "me" },
                "annotations": { "berth.dev/pod-hash": "0" },
            },
            "opencode": { "env": [{ "name": "HOME", "value": "/" }, { "name": "BERTH_SUPERVISOR_PORT", "value": "1" }] },
        }));
        let labels = taken.metadata.labels.as_ref().unwrap();
        assert_eq!(
            (labels[names::SANDBOX].as_str(), labels[names::MANAGED_BY].as_str()),
            ("one", names::MANAGER)
        );
        assert_ne!(pod_hash(&taken), "0");
        let spec = taken.spec.unwrap();
        let environment = spec.containers[0].env.as_ref().unwrap();
        let home: Vec<_> = environment.iter().filter(|variable| variable.name == "HOME").collect();
        assert_eq!((home.len(), home[0].value.as_deref()), (1, Some(layout::HOME)));
        assert!(!environment.iter().any(|variable| variable.name.starts_with("BERTH_")));
    }

    /// The rules of the restricted level of Pod Security, for all that is in such a pod.
    #[test]
    fn it_is_as_hard_as_the_restricted_level_and_the_doors_password_is_the_sidecars_alone() {
        let spec = pod(json!({})).spec.unwrap();
        let security = spec.security_context.unwrap();
        assert_eq!(security.run_as_non_root, Some(true));
        assert_eq!(security.seccomp_profile.unwrap().type_, "RuntimeDefault");
        assert_eq!(
            (spec.automount_service_account_token, spec.enable_service_links, spec.share_process_namespace),
            (Some(false), Some(false), None)
        );
        for container in spec.containers.iter().chain(spec.init_containers.iter().flatten()) {
            let security = container.security_context.as_ref().unwrap();
            assert_eq!(security.allow_privilege_escalation, Some(false));
            assert_eq!(security.capabilities.as_ref().unwrap().drop, Some(vec!["ALL".to_owned()]));
            let limits = container.resources.as_ref().unwrap().limits.as_ref().unwrap();
            assert!(limits.contains_key("memory") && limits.contains_key("ephemeral-storage"));
        }
        let mounts = spec.containers[0].volume_mounts.as_ref().unwrap();
        assert!(mounts.iter().all(|mount| mount.name != SECRET_VOLUME));
        let volumes = spec.volumes.unwrap();
        let internal = volumes.iter().find(|volume| volume.name == INTERNAL_VOLUME).unwrap();
        let items = internal.secret.as_ref().unwrap().items.as_ref().unwrap();
        assert_eq!(items.iter().map(|item| &*item.key).collect::<Vec<_>>(), [names::OPENCODE_PASSWORD]);
    }
}
