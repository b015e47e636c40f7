//! One test: a namespace of its own, its sandboxes, and their sessions.

use std::{fmt, sync::Arc};

use anyhow::Context;
use berth_api::{ConditionType, Sandbox, condition::find, names};
use berth_client::BerthClient;
use berth_tests::{SessionLog, talk};
use berth_wire::{
    api::{CreateSession, Turn},
    event::EventPayload,
};
use futures_util::FutureExt;
use k8s_openapi::{
    api::core::v1::{Namespace, Pod, Secret},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
    runtime::wait::await_condition,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::{
    cluster::{Cluster, namespace},
    wait::within,
};

/// A test's own.
#[derive(Clone)]
pub struct Case {
    /// The cluster.
    pub cluster: Arc<Cluster>,
    /// A client of it.
    pub client: Client,
    /// A client of Berth's server.
    pub berth: BerthClient,
    /// The test's namespace.
    pub namespace: String,
}

/// What a test wants otherwise than the manifest that people try.
#[derive(Debug, Clone, Copy, Default)]
pub struct Shape {
    /// The workspace goes with the pod.
    pub ephemeral: bool,
    /// Commands are asked for.
    pub asks: bool,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

impl Case {
    /// Makes the namespace, with the key of the model in it.
    pub async fn start(cluster: Arc<Cluster>, test: &str) -> anyhow::Result<Self> {
        let client = cluster.client().await?;
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
        let name: String = test.chars().map(plain).take(40).collect();
        let own = format!("{}-{}", name.trim_matches('-'), &Uuid::new_v4().simple().to_string()[..6]);
        let namespaces: Api<Namespace> = Api::all(client.clone());
        namespaces
            .create(&PostParams::default(), &namespace(own.clone(), &cluster.run))
            .await
            .context("the namespace")?;
        let keys = json!({ "metadata": { "name": "model-keys" }, "stringData": { "scripted": "any" } });
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &own);
        let keys = serde_json::from_value(keys).context("a secret")?;
        secrets.create(&PostParams::default(), &keys).await.context("the model's key")?;
        let berth = cluster.berth();
        Ok(Self { cluster, client, berth, namespace: own })
    }

    /// Deletes the namespace; that it goes is looked at when all tests have ended.
    pub async fn end(self) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client);
        namespaces.delete(&self.namespace, &DeleteParams::default()).await.context("the namespace's end")?;
        Ok(())
    }

    /// Objects of a kind, in the test's namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The manifest of a sandbox on the scripted model, which asks for little.
    pub fn manifest(&self, name: &str, shape: Shape) -> Value {
        let mut manifest = self.cluster.manifest();
        manifest["metadata"] = json!({ "name": name });
        manifest["spec"]["resources"] = json!({ "requests": { "cpu": "50m", "memory": "128Mi" } });
        manifest["spec"]["opencode"]["config"]["permission"] =
            json!({ "bash": if shape.asks { "ask" } else { "allow" } });
        if shape.ephemeral {
            manifest["spec"]["workspace"] = json!({ "ephemeral": {} });
        }
        manifest
    }

    /// Makes a sandbox.
    pub async fn create(&self, manifest: Value) -> Sandbox {
        let sandbox = serde_json::from_value(manifest).expect("the manifest is one of a sandbox");
        let made = self.api::<Sandbox>().create(&PostParams::default(), &sandbox).await;
        made.expect("the cluster takes the manifest")
    }

    /// Makes a sandbox and waits until it is ready.
    pub async fn sandbox(&self, name: &str, shape: Shape) {
        self.create(self.manifest(name, shape)).await;
        self.ready(name).await;
    }

    /// Waits until the sandbox is ready.
    pub async fn ready(&self, name: &str) {
        self.condition(name, ConditionType::Ready, "True").await;
    }

    /// Waits until a condition has this status, and gives it.
    pub async fn condition(&self, name: &str, kind: ConditionType, status: &str) -> Condition {
        let told = |sandbox: &Sandbox| {
            let conditions = &sandbox.status.as_ref()?.conditions;
            find(conditions, kind).filter(|told| told.status == status).cloned()
        };
        let what = format!("{kind} of {name} to be {status}");
        let seen = self.await_sandbox(&what, name, move |sandbox| told(sandbox).is_some()).await;
        told(&seen).expect("it was waited for")
    }

    async fn await_sandbox(&self, what: &str, name: &str, is_so: impl Fn(&Sandbox) -> bool) -> Sandbox {
        let seen = |sandbox: Option<&Sandbox>| sandbox.is_some_and(&is_so);
        let found = within(what, await_condition(self.api::<Sandbox>(), name, seen).boxed_local()).await;
        found.expect("sandboxes can be watched").expect("it is there")
    }

    /// The sandbox's pod, once it is there.
    pub async fn pod(&self, sandbox: &str) -> Pod {
        let name = names::pod(sandbox);
        let is_there = |pod: Option<&Pod>| pod.is_some_and(|pod| pod.metadata.deletion_timestamp.is_none());
        let found = within("the pod", await_condition(self.api::<Pod>(), &name, is_there).boxed()).await;
        found.expect("pods can be watched").expect("it is there")
    }

    /// Waits until nothing of this name is left.
    pub async fn gone<K>(&self, name: &str)
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + Send
            + DeserializeOwned
            + 'static,
    {
        let what = format!("{} {name} to be gone", K::kind(&()));
        let gone = await_condition(self.api::<K>(), name, |object: Option<&K>| object.is_none()).boxed();
        within(&what, gone).await.expect("objects can be watched");
    }

    /// The password of the sandbox's door.
    pub async fn password(&self, sandbox: &str) -> String {
        let secret = self.api::<Secret>().get(&names::secret(sandbox)).await.expect("the secret is there");
        let bytes =
            secret.data.expect("it has data").remove(names::DOOR_PASSWORD).expect("it has a password");
        String::from_utf8(bytes.0).expect("it is text")
    }

    /// Runs a script in the agent's container.
    pub async fn shell(&self, sandbox: &str, script: &str, arguments: &[&str]) -> anyhow::Result<String> {
        let pod = names::pod(sandbox);
        let place = (self.namespace.as_str(), pod.as_str(), berth_api::layout::SANDBOX);
        self.cluster.kubectl.shell(place, script, arguments).await
    }

    /// A new session.
    pub async fn session(&self, sandbox: &str) -> Uuid {
        let made = self.berth.create_session(&self.namespace, sandbox, &CreateSession::default()).await;
        made.expect("the session is made").id
    }

    /// Sends a prompt.
    pub async fn post(&self, session: Uuid, prompt: &str) -> Turn {
        talk::post(&self.berth, session, prompt).await
    }

    /// Sends a prompt and reads the session's log until its turn has ended; the log is checked.
    pub async fn prompt(&self, session: Uuid, prompt: &str) -> (Turn, SessionLog) {
        talk::prompt(&self.berth, session, prompt).await
    }

    /// Waits until the session's log has an event that `wanted` picks, and returns what it picked.
    pub async fn wait_for<T>(
        &self,
        session: Uuid,
        what: &str,
        wanted: impl FnMut(&EventPayload) -> Option<T>,
    ) -> T {
        within(what, talk::find(&self.berth, session, wanted)).await
    }
}
