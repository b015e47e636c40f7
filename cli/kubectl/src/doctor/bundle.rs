//! What goes into the archive: findings, manifests, pods, events, and the ends of logs. IO.
//!
//! No Secret goes in. Those that the sandboxes name are read, where the caller may read them, so that what they hold can be
//! taken out of everything else.

use std::collections::BTreeSet;

use berth_api::names;
use berth_command::{
    archive::Member,
    check::{self, Check},
};
use berth_testkit::fixture::Redactor;
use k8s_openapi::api::{
    apps::v1::Deployment,
    coordination::v1::Lease,
    core::v1::{Event, PersistentVolumeClaim, Pod, Secret},
    networking::v1::NetworkPolicy,
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, LogParams},
    core::NamespaceResourceScope,
};
use secrecy::SecretString;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Scope, hidden};
use crate::{
    cluster::ask,
    error::{PluginError, error_chain},
    sandboxes::{self, Found},
};

/// Most sandboxes whose pods' logs are read.
const LOGS: usize = 20;

/// The end of each log, in lines; and the most that is read of one, in bytes.
const LINES: i64 = 1_000;
const LOG_MAX: i64 = 512 * 1024;

/// Most objects of one kind in one namespace.
const OBJECTS: u32 = 500;

/// Everything. What could not be read is named in `missing.txt`.
pub(super) async fn collect(scope: &Scope, checks: &[Check], found: &[Found]) -> Vec<Member> {
    let mut collector = Collector { scope, missing: Vec::new(), members: Vec::new(), secrets: Vec::new() };
    collector.learn_secrets(found).await;
    let redactor = Redactor::new(collector.secrets.drain(..).map(SecretString::from).collect());
    collector.add_json("doctor.json", &check::json(checks));
    collector.add_versions().await;
    for sandbox in found {
        let name = format!("sandboxes/{}/{}.json", sandbox.namespace(), sandbox.name());
        let value = hidden::object(sandbox.value(), &redactor);
        collector.add_json(name, &value);
    }
    let mut namespaces: BTreeSet<String> = found.iter().map(Found::namespace).collect();
    namespaces.insert(scope.control.clone());
    for namespace in &namespaces {
        collector.add_objects::<Deployment>(namespace, "deployments", &redactor).await;
        collector.add_objects::<Lease>(namespace, "leases", &redactor).await;
        collector.add_objects::<Pod>(namespace, "pods", &redactor).await;
        collector.add_objects::<PersistentVolumeClaim>(namespace, "claims", &redactor).await;
        collector.add_objects::<NetworkPolicy>(namespace, "networkpolicies", &redactor).await;
        collector.add_objects::<Event>(namespace, "events", &redactor).await;
    }
    collector.add_logs(found).await;
    collector.missing.push(String::new());
    collector.members.push(Member::new("missing.txt", collector.missing.join("\n")));
    collector.members.into_iter().map(|member| member.redacted(&redactor)).collect()
}

/// Gathers the members.
struct Collector<'a> {
    scope: &'a Scope,
    members: Vec<Member>,
    missing: Vec<String>,
    secrets: Vec<String>,
}

impl Collector<'_> {
    fn add_json(&mut self, name: impl Into<String>, value: &Value) {
        self.members.push(Member::json(name, value));
    }

    fn kept<T>(&mut self, what: &str, read: Result<T, PluginError>) -> Option<T> {
        read.inspect_err(|error| self.missing.push(format!("{what}: {}", error_chain(error)))).ok()
    }

    /// What manifests and the Secrets that they name hold.
    async fn learn_secrets(&mut self, found: &[Found]) {
        let mut named = BTreeSet::new();
        for sandbox in found {
            let (namespace, value) = (sandbox.namespace(), sandbox.value());
            self.secrets.extend(hidden::secrets(&value));
            let own = sandbox.status().and_then(|status| status.secret_name.clone());
            named.insert((namespace.clone(), own.unwrap_or_else(|| names::secret(&sandbox.name()))));
            named.extend(hidden::references(&value).into_iter().map(|name| (namespace.clone(), name)));
        }
        for (namespace, name) in named {
            let api = self.scope.cluster.api_in::<Secret>(&namespace);
            let read = ask("read a secret, to take out what it holds", api.get_opt(&name)).await;
            let secret = self.kept(&format!("{namespace}/{name}"), read).flatten();
            let values = secret.and_then(|secret| secret.data).into_iter().flatten();
            self.secrets.extend(values.filter_map(|(_, value)| String::from_utf8(value.0).ok()));
        }
        self.secrets = hidden::worth_hiding(std::mem::take(&mut self.secrets));
    }

    async fn add_versions(&mut self) {
        let version = ask("ask for the version", self.scope.cluster.client.apiserver_version()).await;
        let cluster = self.kept("version", version).map(|version| version.git_version);
        let scope = self.scope;
        let versions = json!({
            "kubectl_berth": env!("CARGO_PKG_VERSION"),
            "kubernetes": cluster,
            "namespace": if scope.all_namespaces { "all" } else { &scope.cluster.namespace },
            "time": jiff::Timestamp::now(),
        });
        self.add_json("versions.json", &versions);
    }

    /// Objects of a kind in a namespace: all in that of Berth's programs; elsewhere those that belong to sandboxes, as far as
    /// that can be told.
    async fn add_objects<K>(&mut self, namespace: &str, kind: &str, redactor: &Redactor)
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + DeserializeOwned
            + Serialize
            + Clone
            + std::fmt::Debug,
    {
        let is_control = namespace == self.scope.control;
        let of_control = ["deployments", "leases"].contains(&kind);
        if of_control && !is_control {
            return;
        }
        let mut parameters = ListParams::default().limit(OBJECTS);
        if !is_control && kind != "events" {
            parameters = parameters.labels(&format!("{}={}", names::MANAGED_BY, names::MANAGER));
        }
        let api: Api<K> = self.scope.cluster.api_in(namespace);
        let what = format!("{kind} of {namespace}");
        let listed = ask(&format!("list {kind}"), api.list(&parameters)).await;
        let Some(list) = self.kept(&what, listed) else { return };
        if list.items.is_empty() {
            return;
        }
        let values = list.items.iter().filter_map(|item| serde_json::to_value(item).ok());
        let values: Vec<Value> = values.map(|value| hidden::object(value, redactor)).collect();
        self.add_json(format!("{kind}/{namespace}.json"), &json!(values));
    }

    /// The logs of Berth's programs, and of sandboxes: of those that are not ready first.
    async fn add_logs(&mut self, found: &[Found]) {
        let control = self.scope.control.clone();
        let api = self.scope.cluster.api_in::<Pod>(&control);
        let listed = ask("list pods", api.list(&ListParams::default().limit(OBJECTS))).await;
        for pod in self.kept("logs of Berth's programs", listed).into_iter().flatten() {
            self.add_logs_of(&control, &pod).await;
        }
        let listed = sandboxes::pods(&self.scope.cluster, self.scope.all_namespaces).await;
        let pods = self.kept("logs of sandboxes", listed).unwrap_or_default();
        let mut order: Vec<&Found> = found.iter().collect();
        order.sort_by_key(|found| found.is_ready());
        for found in order.into_iter().take(LOGS) {
            let own = pods.iter().find(|pod| {
                pod.namespace() == Some(found.namespace()) && pod.name_any() == names::pod(&found.name())
            });
            if let Some(pod) = own {
                self.add_logs_of(&found.namespace(), pod).await;
            }
        }
    }

    async fn add_logs_of(&mut self, namespace: &str, pod: &Pod) {
        let api = self.scope.cluster.api_in::<Pod>(namespace);
        let name = pod.name_any();
        let spec = pod.spec.iter();
        let containers = spec.flat_map(|spec| spec.init_containers.iter().flatten().chain(&spec.containers));
        for container in containers.map(|container| container.name.clone()).collect::<Vec<_>>() {
            for previous in [false, true] {
                if previous && !has_ended(pod, &container) {
                    continue;
                }
                let parameters = LogParams {
                    container: Some(container.clone()),
                    previous,
                    tail_lines: Some(LINES),
                    limit_bytes: Some(LOG_MAX),
                    ..LogParams::default()
                };
                let read = ask("read a log", api.logs(&name, &parameters)).await;
                let end = if previous { ".previous.log" } else { ".log" };
                let path = format!("logs/{namespace}/{name}/{container}{end}");
                if let Some(text) = self.kept(&path, read) {
                    self.members.push(Member::new(path, whole_lines(&text)));
                }
            }
        }
    }
}

/// Without a last line that was cut off: a piece of a secret could not be told for one.
fn whole_lines(text: &str) -> &str {
    &text[..text.rfind('\n').map_or(0, |end| end + 1)]
}

/// Whether a container was started again, so that there is a log of the one before.
fn has_ended(pod: &Pod, name: &str) -> bool {
    let status = pod.status.as_ref();
    let inits = status.and_then(|status| status.init_container_statuses.as_ref());
    let own = status.and_then(|status| status.container_statuses.as_ref());
    inits.into_iter().chain(own).flatten().any(|status| status.name == name && status.restart_count > 0)
}
