//! Berth in a cluster: installed from `tests/cluster/berth`, with the scripted model, and what tests share there.

use std::path::PathBuf;

use anyhow::Context;
use berth_client::BerthClient;
use k8s_openapi::api::core::v1::{Namespace, Node, Secret};
use kube::{
    Api, Client, Config,
    api::{ListParams, ObjectMeta},
    config::{KubeConfigOptions, Kubeconfig},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tempfile::TempDir;
use uuid::Uuid;

use crate::{forward::Forward, kubectl::Kubectl, setting::Setting, wait::until};

/// Namespace of what tests share.
pub const SHARED: &str = "berth-e2e";

/// A pod with all rights on the node.
pub const SURGEON: &str = "surgeon";

/// A pod like any other, which has nothing to do with Berth.
pub const VISITOR: &str = "visitor";

/// Namespace of Berth's own programs.
pub(crate) const CONTROL: &str = "berth-system";

/// Label of the namespaces of tests, with the run.
pub(crate) const TESTS: &str = "berth-e2e";

/// The manifest that people try, relative to this package.
pub const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cluster/berth/sandbox.yaml");

/// Secret with the server's token.
const TOKEN: &str = "berth-server-token";

/// Port of the scripted model.
const MODEL_PORT: u16 = 9100;

/// Port of the server, in its pod.
const SERVER_PORT: u16 = 7447;

/// The image that has a shell, and curl.
const IMAGE: &str = "localhost/berth-sandbox:dev";

/// A cluster with Berth in it.
#[derive(Debug)]
pub struct Cluster {
    /// Runs commands against it.
    pub kubectl: Kubectl,
    /// Address of the server on this machine.
    pub server: String,
    /// Its token.
    pub token: SecretString,
    /// File with the token, for the command line.
    pub token_file: PathBuf,
    /// Tells this run's namespaces from those of others.
    pub(crate) run: String,
    setting: Setting,
    manifest: Value,
    forward: Forward,
    _folder: TempDir,
}

impl Cluster {
    /// Installs Berth, and what tests share; waits until all of it is ready.
    pub async fn prepare(setting: Setting) -> anyhow::Result<Self> {
        let kubectl = Kubectl::new(setting.clone());
        let token = token(&kubectl, &client(&setting).await?).await.context("the server's token")?;
        install(&kubectl, &setting).await?;
        let manifest = kubectl.run(["create", "--dry-run=client", "--output=json", "-f", MANIFEST]).await?;
        let forward = Forward::start(&kubectl, CONTROL, "deployment/berth-server", SERVER_PORT).await?;
        let folder = tempfile::tempdir()?;
        let token_file = folder.path().join("token");
        std::fs::write(&token_file, token.expose_secret())?;
        let cluster = Self {
            kubectl,
            server: format!("http://{}", forward.address),
            token,
            token_file,
            run: Uuid::new_v4().simple().to_string(),
            setting,
            manifest: serde_json::from_str(&manifest).context("the manifest")?,
            forward,
            _folder: folder,
        };
        let server = cluster.berth();
        until("the server", async || server.list_sandboxes().await).await;
        Ok(cluster)
    }

    /// A client of the cluster. Each runtime wants one of its own.
    pub async fn client(&self) -> anyhow::Result<Client> {
        client(&self.setting).await
    }

    /// A client of the server.
    pub fn berth(&self) -> BerthClient {
        BerthClient::new(&self.server, self.token.clone()).expect("a plain URL")
    }

    /// The manifest that people try.
    pub fn manifest(&self) -> Value {
        self.manifest.clone()
    }

    /// Waits until every namespace that a test of this run made is gone.
    pub async fn end(self) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client().await?);
        let made = ListParams::default().labels(&format!("{TESTS}={}", self.run));
        until("namespaces of tests to go", async || {
            let left = namespaces.list(&made).await.map_err(|error| error.to_string())?;
            let left: Vec<String> = left.items.into_iter().filter_map(|one| one.metadata.name).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?} are left")) }
        })
        .await;
        drop(self.forward);
        Ok(())
    }
}

async fn client(setting: &Setting) -> anyhow::Result<Client> {
    let kubeconfig = Kubeconfig::read_from(&setting.kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// A namespace of a test of this run.
pub(crate) fn namespace(name: String, run: &str) -> Namespace {
    let labels = [(TESTS.to_owned(), run.to_owned())].into();
    let metadata = ObjectMeta { name: Some(name), labels: Some(labels), ..ObjectMeta::default() };
    Namespace { metadata, ..Namespace::default() }
}

/// The server's token: the one that is there, or else a new one.
async fn token(kubectl: &Kubectl, client: &Client) -> anyhow::Result<SecretString> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), CONTROL);
    if let Some(there) = secrets.get_opt(TOKEN).await? {
        let bytes = there.data.and_then(|mut data| data.remove("token")).context("it has no token")?;
        return Ok(SecretString::from(String::from_utf8(bytes.0)?));
    }
    let token = Uuid::new_v4().simple().to_string();
    let items = [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": CONTROL } }),
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": TOKEN, "namespace": CONTROL },
            "stringData": { "token": token },
        }),
    ];
    apply(kubectl, &items).await?;
    Ok(SecretString::from(token))
}

async fn apply(kubectl: &Kubectl, objects: &[Value]) -> anyhow::Result<()> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
    kubectl.run_with(&list, ["apply", "--server-side", "--force-conflicts", "-f", "-"]).await?;
    Ok(())
}

async fn install(kubectl: &Kubectl, setting: &Setting) -> anyhow::Result<()> {
    let manifests = concat!(env!("CARGO_MANIFEST_DIR"), "/../cluster/berth");
    kubectl.run(["apply", "--server-side", "--force-conflicts", "-k", manifests]).await.context("Berth")?;
    apply(kubectl, &shared()).await.context("what tests share")?;
    if let Some(pods) = addresses_of_pods(setting).await? {
        let allow = format!("BERTH_CONTROLLER_ALLOW={pods}");
        let operator = "deployment/berth-operator";
        kubectl.run(["set", "env", "--namespace", CONTROL, operator, &allow]).await?;
    }
    for deployment in ["deployment/berth-operator", "deployment/berth-server"] {
        let status = ["rollout", "status", "--namespace", CONTROL, "--timeout=4m", deployment];
        kubectl.run(status).await.context(deployment)?;
    }
    let model = ["rollout", "status", "--namespace=models", "--timeout=4m", "deployment/scripted-model"];
    kubectl.run(model).await.context("the scripted model")?;
    let wait = ["wait", "--namespace", SHARED, "--for=condition=Ready", "--timeout=4m"];
    kubectl.run(wait.iter().copied().chain(["pod/surgeon", "pod/visitor"])).await.context("shared pods")?;
    Ok(())
}

/// Where this cluster's nodes give pods their addresses, with the model's port; `None` where they do not say so, as on
/// the test cluster.
async fn addresses_of_pods(setting: &Setting) -> anyhow::Result<Option<String>> {
    let nodes: Api<Node> = Api::all(client(setting).await?);
    let nodes = nodes.list(&ListParams::default()).await?;
    let networks = nodes.items.into_iter().filter_map(|node| node.spec?.pod_cidr);
    let pods: Vec<String> = networks.map(|network| format!("{network}:{MODEL_PORT}")).collect();
    Ok((!pods.is_empty()).then(|| pods.join(",")))
}

fn shared() -> Vec<Value> {
    let pod = |name: &str, of_pod: Value, of_container: Value| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": SHARED },
            "spec": { "terminationGracePeriodSeconds": 0, "containers": [{
                "name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "infinity"],
                "securityContext": of_container,
            }] },
        });
        for (member, value) in of_pod.as_object().into_iter().flatten() {
            pod["spec"][member] = value.clone();
        }
        pod
    };
    vec![
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": SHARED } }),
        pod(
            SURGEON,
            json!({ "hostPID": true, "hostNetwork": true }),
            json!({ "privileged": true, "runAsUser": 0 }),
        ),
        pod(VISITOR, json!({}), json!({})),
    ]
}
