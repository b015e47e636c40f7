//! The way to the cluster, as kubectl finds it: a kubeconfig and a context of it, or the pod that this runs in. IO.

use std::time::Duration;

use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::{args::ClusterArgs, error::PluginError};

/// Bound on making a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Bound on one answer that is read whole.
const ANSWER: Duration = Duration::from_secs(30);

/// A cluster, and where in it the caller is.
#[derive(Clone)]
pub struct Cluster {
    /// A client of it.
    pub client: Client,
    /// The namespace that is meant where none is named.
    pub namespace: String,
    /// Its apiserver, for people.
    pub server: String,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("server", &self.server).finish_non_exhaustive()
    }
}

impl Cluster {
    /// The cluster that the flags and the kubeconfig name. Nothing is asked of it yet.
    pub async fn connect(args: &ClusterArgs) -> Result<Self, PluginError> {
        let mut config = read_config(args).await?;
        config.connect_timeout = Some(CONNECT);
        // Logs may be silent for as long as they like; other answers have a bound of their own.
        config.read_timeout = None;
        let namespace = args.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).map_err(|error| PluginError::kubeconfig(&error))?;
        Ok(Self { client, namespace, server })
    }

    /// Objects of a kind in the namespace that is meant.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + DeserializeOwned,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Objects of a kind in this namespace.
    pub fn api_in<K>(&self, namespace: &str) -> Api<K>
    where
        K: kube::Resource<Scope = NamespaceResourceScope, DynamicType = ()> + DeserializeOwned,
    {
        Api::namespaced(self.client.clone(), namespace)
    }
}

async fn read_config(args: &ClusterArgs) -> Result<Config, PluginError> {
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let Some(path) = &args.kubeconfig else {
        if args.context.is_none() {
            return Config::infer().await.map_err(|error| PluginError::kubeconfig(&error));
        }
        return Config::from_kubeconfig(&options).await.map_err(|error| PluginError::kubeconfig(&error));
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(|error| PluginError::kubeconfig(&error))?;
    Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(|error| PluginError::kubeconfig(&error))
}

/// An answer of the cluster within its bound, or an error that says what was asked for.
pub(crate) async fn ask<T>(
    action: &str,
    answer: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, PluginError> {
    match timeout(ANSWER, answer).await {
        Ok(answered) => answered.map_err(PluginError::cluster(action)),
        Err(_) => Err(PluginError::Late { action: action.to_owned(), seconds: ANSWER.as_secs() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KUBECONFIG: &str = r"
apiVersion: v1
kind: Config
current-context: one
clusters:
  - { name: a, cluster: { server: 'http://127.0.0.1:1' } }
  - { name: b, cluster: { server: 'http://127.0.0.1:2' } }
users: [{ name: u, user: {} }]
contexts:
  - { name: one, context: { cluster: a, user: u, namespace: team } }
  - { name: two, context: { cluster: b, user: u } }
";

    fn args(folder: &tempfile::TempDir, context: Option<&str>, namespace: Option<&str>) -> ClusterArgs {
        let path = folder.path().join("config");
        std::fs::write(&path, KUBECONFIG).unwrap();
        let owned = |text: Option<&str>| text.map(str::to_owned);
        ClusterArgs { kubeconfig: Some(path), context: owned(context), namespace: owned(namespace) }
    }

    #[tokio::test]
    async fn context_and_namespace_are_found_as_kubectl_finds_them() {
        let folder = tempfile::tempdir().unwrap();
        for (context, namespace, expected) in [
            (None, None, ("http://127.0.0.1:1/", "team")),
            (None, Some("other"), ("http://127.0.0.1:1/", "other")),
            (Some("two"), None, ("http://127.0.0.1:2/", "default")),
        ] {
            let cluster = Cluster::connect(&args(&folder, context, namespace)).await.unwrap();
            assert_eq!((cluster.server.as_str(), cluster.namespace.as_str()), expected);
        }
    }

    #[tokio::test]
    async fn a_context_or_a_file_that_is_not_there_is_told_with_a_next_step() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = ClusterArgs { kubeconfig: Some(folder.path().join("none")), ..ClusterArgs::default() };
        for args in [args(&folder, Some("three"), None), nowhere] {
            let error = Cluster::connect(&args).await.unwrap_err();
            assert!(matches!(error, PluginError::Kubeconfig(_)), "{error:?}");
            assert!(error.hint().unwrap().contains("get-contexts"));
        }
    }
}
