//! The sandboxes of a cluster, as they are there: also those that this version cannot read. IO; [`Found`] is pure.

use berth_api::{
    Reason, Sandbox, SandboxStatus,
    condition::{ConditionType, find},
    names,
};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Condition};
use kube::{
    Api, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;

use crate::{
    cluster::{Cluster, ask},
    error::PluginError,
};

/// Most objects that are asked for at a time.
const PAGE: u32 = 500;

/// A sandbox of the cluster.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Its manifest and its status, all of it.
    pub(crate) raw: DynamicObject,
    /// The same, as far as this version reads it; else why it does not.
    pub(crate) read: Result<Box<Sandbox>, String>,
}

impl Found {
    pub(crate) fn new(raw: DynamicObject) -> Self {
        let value = serde_json::to_value(&raw);
        let read = value.and_then(serde_json::from_value).map_err(|error| error.to_string());
        Self { raw, read }
    }

    pub(crate) fn namespace(&self) -> String {
        self.raw.namespace().unwrap_or_default()
    }

    pub(crate) fn name(&self) -> String {
        self.raw.name_any()
    }

    /// The condition of this type, if it was told.
    pub(crate) fn condition(&self, kind: ConditionType) -> Option<&Condition> {
        find(&self.status()?.conditions, kind)
    }

    /// Whether it is ready: the condition's status and reason. What nobody has looked at yet has `Unknown` and no reason.
    pub(crate) fn ready(&self) -> (&str, &str) {
        match (&self.read, self.condition(ConditionType::Ready)) {
            (Err(_), _) => ("Unknown", "Unreadable"),
            (Ok(_), Some(ready)) => (&ready.status, &ready.reason),
            (Ok(_), None) => ("Unknown", ""),
        }
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.ready().0 == "True"
    }

    /// The model that answers where a prompt names none.
    pub(crate) fn model(&self) -> Option<&str> {
        let sandbox = self.read.as_ref().ok()?;
        let told = self.status().and_then(|status| status.model.as_deref());
        told.or(sandbox.spec.settings.model.as_deref())
    }

    /// What the operator found, if it did.
    pub(crate) fn status(&self) -> Option<&SandboxStatus> {
        self.read.as_ref().ok()?.status.as_ref()
    }

    /// The manifest and the status as JSON.
    pub(crate) fn value(&self) -> Value {
        serde_json::to_value(&self.raw).unwrap_or_default()
    }
}

/// A reason by its name, if this version knows it.
pub(crate) fn reason(name: &str) -> Option<Reason> {
    Reason::ALL.iter().copied().find(|reason| reason.as_str() == name)
}

/// Restarts of all containers of a pod.
pub(crate) fn restarts(pod: &Pod) -> i32 {
    let status = pod.status.as_ref();
    let inits = status.and_then(|status| status.init_container_statuses.as_ref());
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    let all = inits.into_iter().chain(containers).flatten();
    all.map(|container| container.restart_count).fold(0, i32::saturating_add)
}

fn resource() -> ApiResource {
    ApiResource::erase::<Sandbox>(&())
}

/// The sandboxes of one namespace, or of all.
pub(crate) async fn list(
    cluster: &Cluster,
    all_namespaces: bool,
    selector: Option<&str>,
) -> Result<Vec<Found>, PluginError> {
    let client = cluster.client.clone();
    let api: Api<DynamicObject> = if all_namespaces {
        Api::all_with(client, &resource())
    } else {
        Api::namespaced_with(client, &cluster.namespace, &resource())
    };
    let objects = pages("list sandboxes", &api, selector).await.map_err(|error| installed(error, None))?;
    Ok(objects.into_iter().map(Found::new).collect())
}

/// A sandbox by its name.
pub(crate) async fn get(cluster: &Cluster, name: &str) -> Result<Found, PluginError> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), &cluster.namespace, &resource());
    let object = ask(&format!("read sandbox {name}"), api.get(name)).await;
    let missing = PluginError::NoSandbox { namespace: cluster.namespace.clone(), name: name.to_owned() };
    object.map(Found::new).map_err(|error| installed(error, Some(missing)))
}

/// That there is no such thing means either that the kind is not known, or that the object is not there.
fn installed(error: PluginError, missing: Option<PluginError>) -> PluginError {
    let PluginError::Cluster { error: said, .. } = &error else { return error };
    let kube::Error::Api(status) = &**said else { return error };
    if status.code != 404 {
        return error;
    }
    // Of an object the apiserver names the kind that it did not find.
    let of_object = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    match missing {
        Some(missing) if of_object => missing,
        _ => PluginError::NotInstalled,
    }
}

/// All objects, page by page.
pub(crate) async fn pages<K>(
    action: &str,
    api: &Api<K>,
    selector: Option<&str>,
) -> Result<Vec<K>, PluginError>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let mut parameters = ListParams::default().limit(PAGE);
    parameters.label_selector = selector.map(str::to_owned);
    let mut objects = Vec::new();
    loop {
        let page = ask(action, api.list(&parameters)).await?;
        objects.extend(page.items);
        match page.metadata.continue_.filter(|next| !next.is_empty()) {
            Some(next) => parameters.continue_token = Some(next),
            None => return Ok(objects),
        }
    }
}

/// The pods of sandboxes in one namespace, or in all.
pub(crate) async fn pods(cluster: &Cluster, all_namespaces: bool) -> Result<Vec<Pod>, PluginError> {
    let api: Api<Pod> = if all_namespaces { Api::all(cluster.client.clone()) } else { cluster.api() };
    pages("list pods", &api, Some(names::SANDBOX)).await
}

/// The pod of a sandbox, if it is that sandbox's.
pub(crate) fn own_pod<'a>(pods: &'a [Pod], sandbox: &DynamicObject) -> Option<&'a Pod> {
    let uid = sandbox.meta().uid.as_deref()?;
    pods.iter().find(|pod| pod.owner_references().iter().any(|owner| owner.uid == uid))
}
