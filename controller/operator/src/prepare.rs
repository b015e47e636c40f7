//! A manifest, checked and filled in: what the cluster's own rules cannot refuse is refused here. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use berth_api::{
    Sandbox, names,
    quantity::{self, Amount, AmountError},
    settings::{Amounts, OnDelete, PodOverlay, Provider, Settings, Variable},
    span::{self, SpanError},
};
use k8s_openapi::{
    api::core::v1::ResourceRequirements,
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::OwnerReference, util::intstr::IntOrString},
    jiff::Timestamp,
};
use kube::Resource as _;

use crate::platform::Platform;

/// What is kept free for an agent where the manifest says nothing.
const REQUESTS: [(&str, &str); 3] = [("cpu", "250m"), ("ephemeral-storage", "1Gi"), ("memory", "512Mi")];

/// What an agent may use where the manifest says nothing.
const LIMITS: [(&str, &str); 3] = [("cpu", "2"), ("ephemeral-storage", "10Gi"), ("memory", "4Gi")];

/// Size of a workspace where the manifest says nothing.
const WORKSPACE: &str = "10Gi";

/// What a manifest asks for that cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    /// The object has no name, namespace or UID: it never came from a cluster.
    #[error("the object has no {0}")]
    Incomplete(&'static str),
    /// The name is too long for what is made of it.
    #[error("metadata.name is longer than {max} characters, or has a dot: make it again under another name", max = names::NAME_MAX)]
    Name,
    /// An amount cannot be read.
    #[error("{field}")]
    Amount {
        /// Where it stands.
        field: String,
        /// What is wrong.
        source: AmountError,
    },
    /// More is asked for than may be used.
    #[error(
        "spec.resources.requests.{resource} is {request}, above limits.{resource}, {limit}: raise the limit or lower the request"
    )]
    AboveLimit {
        /// Of what.
        resource: String,
        /// How much is asked for.
        request: String,
        /// How much may be used.
        limit: String,
    },
    /// Its life cannot be read.
    #[error("spec.expiresAfter")]
    Lives(#[source] SpanError),
    /// To rest would lose the work.
    #[error(
        "spec.suspended would lose the ephemeral workspace: set spec.discardWorkspace to true if that is meant, or remove \
         spec.suspended"
    )]
    Discards,
    /// Two things would have the same variable.
    #[error("{variable} would be set twice: rename one of the providers or variables")]
    Twice {
        /// The variable.
        variable: String,
    },
}

impl PrepareError {
    /// The error with what is behind it, for a condition.
    pub fn message(&self) -> String {
        match self {
            Self::Amount { field, source } => format!("{field}: {source}"),
            Self::Lives(source) => format!("{self}: {source}"),
            other => other.to_string(),
        }
    }
}

/// A checked manifest: everything that is absent in it is filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Prepared {
    /// Name of the sandbox.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// As the owner of what is made.
    pub owner: OwnerReference,
    /// When the sandbox was made.
    pub made_at: Option<Timestamp>,
    /// Image of the agent's container.
    pub image: String,
    /// opencode's configuration, as JSON.
    pub configuration: String,
    /// Providers whose keys are handed on.
    pub providers: Vec<Provider>,
    /// Variables of the manifest.
    pub variables: Vec<Variable>,
    /// Of the agent's container.
    pub resources: ResourceRequirements,
    /// Where the work is kept.
    pub workspace: PreparedWorkspace,
    /// What else the pod gets.
    pub overlay: PodOverlay,
    /// The sandbox is to rest, and have no pod.
    pub suspended: bool,
    /// How long it lives.
    pub lives: Option<Duration>,
    /// Its claim outlives it.
    pub keeps_claim: bool,
}

/// Where the work is kept.
#[derive(Debug, Clone, PartialEq)]
pub enum PreparedWorkspace {
    /// In a claim of this size, of this class of storage.
    Persistent {
        /// How large.
        size: Quantity,
        /// The class; the cluster's default when absent.
        class: Option<String>,
    },
    /// On the node, with this bound.
    Ephemeral {
        /// How large it may become.
        limit: Quantity,
    },
}

/// Checks a manifest and fills it in.
pub fn prepare(sandbox: &Sandbox, platform: &Platform) -> Result<Prepared, PrepareError> {
    let metadata = &sandbox.metadata;
    let name = metadata.name.clone().ok_or(PrepareError::Incomplete("name"))?;
    let namespace = metadata.namespace.clone().ok_or(PrepareError::Incomplete("namespace"))?;
    let owner = sandbox.controller_owner_ref(&()).ok_or(PrepareError::Incomplete("UID"))?;
    if name.len() > names::NAME_MAX || name.contains('.') {
        return Err(PrepareError::Name);
    }
    let spec = &sandbox.spec.settings;
    let workspace = prepare_workspace(spec)?;
    let suspended = sandbox.spec.suspended == Some(true);
    let ephemeral = matches!(workspace, PreparedWorkspace::Ephemeral { .. });
    if suspended && ephemeral && sandbox.spec.discard_workspace != Some(true) {
        return Err(PrepareError::Discards);
    }
    let variables = spec.opencode.as_ref().map(|opencode| opencode.env.clone()).unwrap_or_default();
    check_variables(&spec.providers, &variables)?;
    Ok(Prepared {
        name,
        namespace,
        // Where a cluster demands it, this would want the right to update the owner's finalizers.
        owner: OwnerReference { block_owner_deletion: None, ..owner },
        made_at: metadata.creation_timestamp.as_ref().map(|time| time.0),
        image: spec.image.clone().unwrap_or_else(|| platform.sandbox_image.clone()),
        configuration: berth_api::configuration::build(spec).to_string(),
        providers: spec.providers.clone(),
        variables,
        resources: prepare_resources(spec)?,
        workspace,
        overlay: spec.pod.clone().unwrap_or_default(),
        suspended,
        lives: lives(spec)?,
        keeps_claim: spec.on_delete == Some(OnDelete::Retain),
    })
}

/// How long a sandbox with these settings lives.
pub(crate) fn lives(spec: &Settings) -> Result<Option<Duration>, PrepareError> {
    spec.expires_after.as_deref().map(span::parse).transpose().map_err(PrepareError::Lives)
}

fn check_variables(providers: &[Provider], variables: &[Variable]) -> Result<(), PrepareError> {
    let mut seen = BTreeSet::new();
    let keys = providers.iter().filter(|provider| provider.api_key_secret_ref.is_some());
    let keys = keys.map(|provider| names::key_variable(&provider.name));
    for variable in keys.chain(variables.iter().map(|variable| variable.name.clone())) {
        if !seen.insert(variable.clone()) {
            return Err(PrepareError::Twice { variable });
        }
    }
    Ok(())
}

/// The manifest's amounts, and the defaults where it has none. A default gives way to what the manifest says: a limit
/// that only the platform names rises to the manifest's request, a request falls to the manifest's limit.
fn prepare_resources(spec: &Settings) -> Result<ResourceRequirements, PrepareError> {
    let given = spec.resources.clone().unwrap_or_default();
    let own_requests = read_amounts("requests", &given.requests)?;
    let own_limits = read_amounts("limits", &given.limits)?;
    let (mut requests, mut limits) = (own_requests.clone(), own_limits.clone());
    for (name, limit) in defaults(&LIMITS) {
        let least = own_requests.get(&name).copied().map_or(limit, |request| limit.max(request));
        limits.entry(name).or_insert(least);
    }
    for (name, request) in defaults(&REQUESTS) {
        let most = own_limits.get(&name).copied().map_or(request, |limit| request.min(limit));
        requests.entry(name).or_insert(most);
    }
    let resources = ResourceRequirements {
        requests: Some(quantities(requests)),
        limits: Some(quantities(limits)),
        claims: None,
    };
    match quantity::above_limit(&resources) {
        None => Ok(resources),
        Some((resource, request, limit)) => {
            Err(PrepareError::AboveLimit { resource, request: request.0, limit: limit.0 })
        }
    }
}

fn defaults(amounts: &[(&str, &str)]) -> Vec<(String, Amount)> {
    let read = |text| Amount::parse(text).expect("the defaults are amounts: see the tests");
    amounts.iter().map(|(name, text)| ((*name).to_owned(), read(text))).collect()
}

fn read_amounts(field: &str, amounts: &Amounts) -> Result<BTreeMap<String, Amount>, PrepareError> {
    let read = |(name, value): (&String, &IntOrString)| {
        Ok((name.clone(), read_amount(&format!("spec.resources.{field}.{name}"), value)?))
    };
    amounts.iter().map(read).collect()
}

fn read_amount(field: &str, value: &IntOrString) -> Result<Amount, PrepareError> {
    Amount::of(value).map_err(|source| PrepareError::Amount { field: field.to_owned(), source })
}

fn quantities(amounts: BTreeMap<String, Amount>) -> BTreeMap<String, Quantity> {
    amounts.into_iter().map(|(name, amount)| (name, amount.quantity())).collect()
}

fn prepare_workspace(spec: &Settings) -> Result<PreparedWorkspace, PrepareError> {
    let workspace = spec.workspace.clone().unwrap_or_default();
    let size = |field: &str, value: Option<IntOrString>| {
        let value = value.unwrap_or_else(|| IntOrString::String(WORKSPACE.to_owned()));
        read_amount(&format!("spec.workspace.{field}"), &value).map(Amount::quantity)
    };
    if let Some(ephemeral) = workspace.ephemeral {
        return Ok(PreparedWorkspace::Ephemeral {
            limit: size("ephemeral.sizeLimit", ephemeral.size_limit)?,
        });
    }
    let persistent = workspace.persistent.unwrap_or_default();
    Ok(PreparedWorkspace::Persistent {
        size: size("persistent.size", persistent.size)?,
        class: persistent.storage_class_name,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::build::sample;

    fn with(spec: Value) -> Result<Prepared, PrepareError> {
        prepare(&sample::sandbox(spec), &sample::platform())
    }

    fn amounts(prepared: &Prepared, resource: &str) -> (String, String) {
        let of = |amounts: &Option<BTreeMap<String, Quantity>>| amounts.as_ref().unwrap()[resource].0.clone();
        (of(&prepared.resources.requests), of(&prepared.resources.limits))
    }

    #[test]
    fn the_same_amounts_in_other_words_are_the_same() {
        let spec =
            |cpu: &str, memory: &str| json!({ "resources": { "limits": { "cpu": cpu, "memory": memory } } });
        assert_eq!(with(spec("1.5", "2048Mi")), with(spec("1500m", "2Gi")));
        let number = with(json!({ "resources": { "limits": { "cpu": 2 } } }));
        assert_eq!(number, with(json!({ "resources": { "limits": { "cpu": "2000m" } } })));
    }

    #[test]
    fn defaults_give_way_to_the_manifest() {
        let none = with(json!({})).unwrap();
        assert_eq!(amounts(&none, "cpu"), ("250m".to_owned(), "2".to_owned()));
        let large = with(json!({ "resources": { "requests": { "cpu": 8 } } })).unwrap();
        assert_eq!(amounts(&large, "cpu"), ("8".to_owned(), "8".to_owned()));
        let small = with(json!({ "resources": { "limits": { "memory": "256Mi" } } })).unwrap();
        assert_eq!(amounts(&small, "memory"), ("256Mi".to_owned(), "256Mi".to_owned()));
    }

    #[test]
    fn what_a_manifest_says_of_its_life() {
        let rests =
            with(json!({ "suspended": true, "discardWorkspace": true, "workspace": { "ephemeral": {} } }));
        assert!(rests.unwrap().suspended);
        let plain = with(json!({})).unwrap();
        assert_eq!((plain.suspended, plain.lives, plain.keeps_claim), (false, None, false));
        let kept = with(json!({ "suspended": true, "expiresAfter": "1h30m", "onDelete": "Retain" })).unwrap();
        assert_eq!(
            (kept.suspended, kept.lives, kept.keeps_claim),
            (true, Some(Duration::from_mins(90)), true)
        );
    }

    #[test]
    fn what_cannot_be_built_is_refused_with_what_to_change() {
        for (spec, expected) in [
            (
                json!({ "resources": { "requests": { "cpu": 2 }, "limits": { "cpu": "600m" } } }),
                "spec.resources.requests.cpu is 2, above limits.cpu, 600m",
            ),
            (
                json!({ "resources": { "limits": { "memory": "2GB" } } }),
                "spec.resources.limits.memory: \"2GB\"",
            ),
            (json!({ "workspace": { "persistent": { "size": "" } } }), "spec.workspace.persistent.size: "),
            (json!({ "suspended": true, "workspace": { "ephemeral": {} } }), "spec.suspended would lose"),
            (json!({ "expiresAfter": "soon" }), "spec.expiresAfter: \"soon\""),
            (
                json!({ "providers": [
                    { "name": "a.b", "apiKeySecretRef": { "name": "s", "key": "k" } },
                    { "name": "a-b", "apiKeySecretRef": { "name": "s", "key": "k" } },
                ] }),
                "PROVIDER_A_B_API_KEY would be set twice",
            ),
        ] {
            let message = with(spec).unwrap_err().message();
            assert!(message.starts_with(expected), "{message}");
        }
    }
}
