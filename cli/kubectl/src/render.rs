//! `kubectl berth render`: what the operator makes of a manifest, by the operator's own functions. IO; [`objects`] is pure.

mod manifests;
pub mod platform;

use std::{
    fs,
    io::{self, Read, Write},
    path::Path,
};

use berth_api::{Sandbox, SandboxTemplate};
use berth_operator::{
    build::{Resources, build},
    platform::Platform,
    prepare::prepare,
};
use k8s_openapi::{Metadata, Resource, api::apps::v1::Deployment};
use kube::api::ObjectMeta;
use serde::Serialize;
use serde_json::Value;

use crate::{
    args::{ClusterArgs, RenderArgs},
    cluster::{Cluster, ask},
    error::{Exit, PluginError, error_chain},
    sandboxes, yaml,
};
use manifests::Manifests;

/// Largest file that is read, in bytes.
const FILE_MAX: u64 = 16 * 1024 * 1024;

/// Name of the operator's Deployment.
const OPERATOR: &str = "berth-operator";

/// An object, with what is said of it.
type Said = (String, Value);

/// Renders.
pub(crate) async fn render(cluster: &ClusterArgs, args: RenderArgs) -> Result<Exit, PluginError> {
    let connected = match Cluster::connect(cluster).await {
        // A file can be rendered without a cluster.
        Err(error) if args.name.is_some() => return Err(error),
        connected => connected,
    };
    let mut manifests = match (&args.name, &connected) {
        (Some(name), Ok(cluster)) => fetch(cluster, name).await?,
        _ => read(args.filename.as_deref().unwrap_or_else(|| Path::new("-")))?,
    };
    let namespace = connected.as_ref().map_or("default", |cluster| cluster.namespace.as_str());
    manifests.fill_in(cluster.namespace.as_deref().unwrap_or(namespace));
    if let Ok(cluster) = &connected {
        add_templates(cluster, &mut manifests).await?;
    }
    let platform = match &connected {
        Ok(cluster) => read_platform(cluster, &args.control_namespace).await,
        Err(error) => Err(error_chain(error)),
    };
    let platform = platform.unwrap_or_else(|why| {
        note(&format!("the operator's settings are not known, its usual ones are shown: {why}"));
        platform::usual()
    });
    let mut all = Vec::new();
    for sandbox in manifests.merged()? {
        all.extend(objects(&sandbox, &platform)?);
    }
    let text = yaml::objects(args.output, &all)?;
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(PluginError::Output)?;
    Ok(Exit::Succeeded)
}

/// A Sandbox of the cluster.
async fn fetch(cluster: &Cluster, name: &str) -> Result<Manifests, PluginError> {
    let found = sandboxes::get(cluster, name).await?;
    let why = |reason| PluginError::Invalid { name: name.to_owned(), reason };
    Ok(Manifests::of(*found.read.map_err(why)?))
}

/// Reads the templates that are named and were not given.
async fn add_templates(cluster: &Cluster, manifests: &mut Manifests) -> Result<(), PluginError> {
    for (namespace, name) in manifests.missing() {
        let api = cluster.api_in::<SandboxTemplate>(&namespace);
        if let Some(template) = ask(&format!("read template {name}"), api.get_opt(&name)).await? {
            manifests.add(template);
        }
    }
    Ok(())
}

fn note(text: &str) {
    // Nobody may read it.
    let _ = writeln!(io::stderr(), "note: {text}");
}

fn read(path: &Path) -> Result<Manifests, PluginError> {
    let failed = |source| PluginError::Read { path: path.to_owned(), source };
    let mut text = String::new();
    let length = if path == Path::new("-") {
        io::stdin().take(FILE_MAX + 1).read_to_string(&mut text)
    } else {
        fs::File::open(path).and_then(|file| file.take(FILE_MAX + 1).read_to_string(&mut text))
    };
    if length.map_err(failed)? as u64 > FILE_MAX {
        return Err(failed(io::Error::other("it is larger than 16 MiB")));
    }
    Manifests::read(&text).map_err(|reason| PluginError::BadFile { path: path.to_owned(), reason })
}

async fn read_platform(cluster: &Cluster, namespace: &str) -> Result<Platform, String> {
    let deployments = cluster.api_in::<Deployment>(namespace);
    let deployment = ask("read the operator's deployment", deployments.get(OPERATOR)).await;
    let deployment = deployment.map_err(|error| error_chain(&error))?;
    let (platform, odd) = platform::read(&deployment, namespace);
    for odd in odd {
        note(&format!("this version does not understand the operator's setting {odd}"));
    }
    Ok(platform)
}

/// The merged manifest and all that the operator makes of it.
fn objects(sandbox: &Sandbox, platform: &Platform) -> Result<Vec<Said>, PluginError> {
    let name = sandbox.metadata.name.clone().unwrap_or_default();
    let invalid = |reason| PluginError::Invalid { name: name.clone(), reason };
    let prepared = prepare(sandbox, platform).map_err(|error| invalid(error.message()))?;
    let Resources { default_deny, rule_set, service, claim, pod } = build(&prepared, platform);
    let mut shown = sandbox.clone();
    (shown.status, shown.metadata.managed_fields) = (None, None);
    let merged = serde_json::to_value(&shown).map_err(|error| invalid(error.to_string()))?;
    let mut all = vec![(format!("{name}: the Sandbox, merged with its template"), merged)];
    all.push(said(&format!("{name}: the pod"), &pod));
    all.extend(claim.map(|claim| said(&format!("{name}: where the work is kept"), &claim)));
    all.push(said("shared by the namespace's sandboxes: names for their pods", &service));
    all.push(said("shared by the namespace's sandboxes: closes their pods", &default_deny));
    all.push(said("shared by sandboxes with the same rules: opens what these open", &rule_set));
    Ok(all)
}

fn said<K: Resource + Metadata<Ty = ObjectMeta> + Serialize>(about: &str, object: &K) -> Said {
    let mut value = serde_json::to_value(object).expect("objects of Kubernetes are plain data");
    // What is made in the cluster has them from the cluster.
    value["apiVersion"] = K::API_VERSION.into();
    value["kind"] = K::KIND.into();
    (about.to_owned(), value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::ObjectFormat;

    const MANIFEST: &str = "
apiVersion: berth.dev/v1alpha1
kind: Sandbox
metadata: { name: one }
spec:
  model: anthropic/large
  providers: [{ name: anthropic, apiKeySecretRef: { name: keys, key: anthropic } }]
  resources: { limits: { memory: 2Gi } }
";

    fn rendered(text: &str) -> Result<Vec<Said>, PluginError> {
        let path = Path::new("-").to_owned();
        let mut manifests = Manifests::read(text).map_err(|reason| PluginError::BadFile { path, reason })?;
        manifests.fill_in("team");
        let all = manifests.merged()?.into_iter();
        let all: Result<Vec<Vec<Said>>, PluginError> =
            all.map(|sandbox| objects(&sandbox, &platform::usual())).collect();
        Ok(all?.concat())
    }

    #[test]
    fn what_the_operator_makes_is_shown_whole() {
        let all = rendered(MANIFEST).unwrap();
        let kinds: Vec<_> = all.iter().map(|(_, object)| object["kind"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            ["Sandbox", "Pod", "PersistentVolumeClaim", "Service", "NetworkPolicy", "NetworkPolicy"]
        );
        assert!(all.iter().all(|(_, object)| object["metadata"]["namespace"] == "team"));
        let sandbox = &all[1].1["spec"]["containers"][0];
        assert_eq!(sandbox["resources"]["limits"]["memory"], "2Gi");
        assert!(sandbox["env"].to_string().contains("PROVIDER_ANTHROPIC_API_KEY"));
        let text = yaml::objects(ObjectFormat::Yaml, &all).unwrap();
        assert!(text.starts_with("---\n# one: the Sandbox, merged with its template\n"), "{text}");
        assert_eq!(yaml::read(&text).unwrap().len(), all.len());
    }

    #[test]
    fn what_cannot_be_built_is_told_with_what_to_change() {
        let bad = MANIFEST.replace("memory: 2Gi", "memory: 2GB");
        let error = rendered(&bad).unwrap_err();
        assert_eq!(error.exit(), Exit::Refused);
        assert!(
            error.to_string().starts_with(
                "one: the operator makes nothing of this manifest: spec.resources.limits.memory"
            ),
            "{error}"
        );
    }
}
