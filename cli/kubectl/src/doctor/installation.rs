//! Whether Berth is installed: its kinds, in this version; its operator, which must work; its server. IO, around functions
//! that are pure.

use std::time::Duration;

use berth_api::{canonical, definition};
use berth_command::check::Check;
use k8s_openapi::{
    api::{apps::v1::Deployment, coordination::v1::Lease},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    jiff::Timestamp,
};
use kube::Api;
use serde_json::Value;

use super::{Scope, unread};
use crate::{cluster::ask, error::PluginError};

/// Name of the operator's Deployment, and of its Lease.
const OPERATOR: &str = "berth-operator";

/// Name of the server's Deployment.
const SERVER: &str = "berth-server";

/// A Lease that was renewed longer ago is not being renewed; the operator does it every two seconds.
const FRESH: i64 = 30;

/// How long is waited for a renewal that the clocks do not tell.
const RENEWAL: Duration = Duration::from_secs(6);

pub(super) async fn checks(scope: &Scope) -> Vec<Check> {
    vec![
        kind(scope).await,
        deployment(scope, "operator", OPERATOR, "sandboxes stay as they are, and no new ones are made").await,
        lease(scope).await,
        deployment(scope, "server", SERVER, "nobody can talk to the agents").await,
    ]
}

async fn kind(scope: &Scope) -> Check {
    const NAME: &str = "kind Sandbox";
    let wanted = definition::sandbox();
    let name = wanted.metadata.name.clone().unwrap_or_default();
    let api: Api<CustomResourceDefinition> = Api::all(scope.cluster.client.clone());
    match ask("read the kind's definition", api.get_opt(&name)).await {
        Ok(Some(there)) => compare(&there, &wanted),
        Ok(None) => missing(),
        // Whoever may not read definitions can still see whether the kind is served.
        Err(error) if error.is_forbidden() => {
            match ask("ask for kinds", scope.cluster.client.list_api_group_resources("berth.dev/v1alpha1"))
                .await
            {
                Ok(_) => Check::good(NAME, "it is there; of which version may not be read"),
                Err(error) if error.status() == Some(404) => missing(),
                Err(error) => unread(NAME, &error),
            }
        }
        Err(error) => unread(NAME, &error),
    }
}

fn missing() -> Check {
    Check::bad(
        "kind Sandbox",
        "this cluster knows no Sandboxes",
        "install Berth: kubectl apply --server-side -k deploy, or the Helm chart",
    )
}

/// Compares the schemas: what the apiserver adds to a definition is not in them.
fn compare(there: &CustomResourceDefinition, wanted: &CustomResourceDefinition) -> Check {
    const NAME: &str = "kind Sandbox";
    let schemas = |definition: &CustomResourceDefinition| -> Vec<Value> {
        definition
            .spec
            .versions
            .iter()
            .map(|version| canonical::value(&(&version.name, &version.schema)))
            .collect()
    };
    let conditions = there.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    let served = conditions.into_iter().any(|told| told.type_ == "Established" && told.status == "True");
    if !served {
        return Check::bad(
            NAME,
            "it is there, and is not served",
            "see why: kubectl describe crd sandboxes.berth.dev",
        );
    }
    if schemas(there) == schemas(wanted) {
        return Check::good(NAME, format!("it is that of version {}", env!("CARGO_PKG_VERSION")));
    }
    Check::note(
        NAME,
        format!("it is of another version than this program, which is {}", env!("CARGO_PKG_VERSION")),
        "if this program is the newer one, apply the new kinds (kubectl apply --server-side -f deploy/crds); else update it",
    )
}

async fn deployment(scope: &Scope, name: &'static str, object: &str, without: &str) -> Check {
    let api = scope.cluster.api_in::<Deployment>(&scope.control);
    match ask(&format!("read deployment {object}"), api.get_opt(object)).await {
        Ok(there) => available(name, object, &scope.control, there.as_ref(), without),
        Err(error) => unread(name, &error),
    }
}

fn available(
    name: &'static str,
    object: &str,
    namespace: &str,
    there: Option<&Deployment>,
    without: &str,
) -> Check {
    let Some(there) = there else {
        return Check::bad(
            name,
            format!("there is no deployment {object} in namespace {namespace}: {without}"),
            "--control-namespace names another namespace; else install it",
        );
    };
    let wanted = there.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let ready = there.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0);
    let found = format!("{ready} of {wanted} are available");
    if ready >= wanted && wanted > 0 {
        return Check::good(name, found);
    }
    let fix = format!(
        "see why: kubectl -n {namespace} describe deployment {object}; kubectl -n {namespace} logs deployment/{object}"
    );
    if ready > 0 {
        Check::note(name, found, fix)
    } else {
        Check::bad(name, format!("{found}: {without}"), fix)
    }
}

async fn lease(scope: &Scope) -> Check {
    const NAME: &str = "operator's lease";
    let api = scope.cluster.api_in::<Lease>(&scope.control);
    let read = async || ask("read the operator's lease", api.get_opt(OPERATOR)).await;
    let first = match read().await {
        Ok(first) => first,
        Err(error) => return unread(NAME, &error),
    };
    match freshness(first.as_ref(), Timestamp::now()) {
        Freshness::None => Check::note(
            NAME,
            "there is none",
            "that is so where the operator runs without --leader-election; else it has never worked",
        ),
        Freshness::Free => Check::bad(
            NAME,
            "nobody holds it: no operator works",
            format!("see why: kubectl -n {} logs deployment/{OPERATOR}", scope.control),
        ),
        Freshness::Fresh(holder) => Check::good(NAME, format!("{holder} renews it")),
        Freshness::Unsure(holder) => renewal(&read, first.as_ref(), &holder, &scope.control).await,
    }
}

/// Looks once more after a while: clocks differ from machine to machine, renewals do not.
async fn renewal(
    read: &impl AsyncFn() -> Result<Option<Lease>, PluginError>,
    first: Option<&Lease>,
    holder: &str,
    namespace: &str,
) -> Check {
    const NAME: &str = "operator's lease";
    tokio::time::sleep(RENEWAL).await;
    match read().await {
        Ok(second) if renewed_at(second.as_ref()) != renewed_at(first) => Check::note(
            NAME,
            format!(
                "{holder} renews it, and its clock and that of this machine differ by more than {FRESH} s"
            ),
            "set the clocks of the cluster's nodes, or of this machine",
        ),
        Ok(_) => Check::bad(
            NAME,
            format!("{holder} does not renew it: no operator works"),
            format!("see why: kubectl -n {namespace} logs deployment/{OPERATOR}"),
        ),
        Err(error) => unread(NAME, &error),
    }
}

/// What a Lease says at one look.
#[derive(Debug, PartialEq, Eq)]
enum Freshness {
    None,
    /// Nobody's.
    Free,
    /// This one's.
    Fresh(String),
    /// This one's, if the clocks are wrong.
    Unsure(String),
}

fn renewed_at(lease: Option<&Lease>) -> Option<Timestamp> {
    lease?.spec.as_ref()?.renew_time.as_ref().map(|time| time.0)
}

fn freshness(lease: Option<&Lease>, now: Timestamp) -> Freshness {
    let Some(lease) = lease else { return Freshness::None };
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
    let Some(holder) = holder.filter(|holder| !holder.is_empty()) else { return Freshness::Free };
    let age = renewed_at(Some(lease)).map(|then| now.duration_since(then).as_secs());
    if age.is_some_and(|age| (-FRESH..FRESH).contains(&age)) {
        Freshness::Fresh(holder)
    } else {
        Freshness::Unsure(holder)
    }
}

#[cfg(test)]
mod tests {
    use berth_command::check::Verdict;
    use serde_json::json;

    use super::*;

    fn lease(holder: &str, renewed: &str) -> Lease {
        serde_json::from_value(json!({ "spec": { "holderIdentity": holder, "renewTime": renewed } })).unwrap()
    }

    #[test]
    fn a_lease_is_fresh_when_the_clocks_agree_that_it_is() {
        let now = "2026-01-01T00:01:00Z".parse().unwrap();
        let told = |lease: &Lease| freshness(Some(lease), now);
        assert_eq!(freshness(None, now), Freshness::None);
        assert_eq!(told(&lease("", "2026-01-01T00:00:59.000000Z")), Freshness::Free);
        assert_eq!(told(&lease("a", "2026-01-01T00:00:59.000000Z")), Freshness::Fresh("a".to_owned()));
        for other in ["2026-01-01T00:00:29.000000Z", "2026-01-01T00:02:00.000000Z"] {
            assert_eq!(told(&lease("a", other)), Freshness::Unsure("a".to_owned()), "{other}");
        }
    }

    fn established(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
        let status = json!({ "acceptedNames": { "kind": "Sandbox", "plural": "sandboxes" }, "storedVersions": ["v1alpha1"],
            "conditions": [{ "type": "Established", "status": "True" }] });
        definition.status = Some(serde_json::from_value(status).unwrap());
        definition
    }

    #[test]
    fn a_kind_of_another_version_is_told() {
        let wanted = definition::sandbox();
        assert_eq!(compare(&established(wanted.clone()), &wanted).verdict, Verdict::Good);
        assert_eq!(compare(&wanted, &wanted).verdict, Verdict::Bad, "it is not served");
        let mut older = established(wanted.clone());
        let schema = older.spec.versions[0].schema.as_mut().unwrap().open_api_v3_schema.as_mut().unwrap();
        schema
            .properties
            .as_mut()
            .unwrap()
            .get_mut("spec")
            .unwrap()
            .properties
            .as_mut()
            .unwrap()
            .remove("model");
        assert_eq!(compare(&older, &wanted).verdict, Verdict::Note);
    }

    #[test]
    fn programs_that_are_not_available_are_in_the_way() {
        let deployment = |replicas: i32, available: i32| {
            let value = json!({ "spec": { "replicas": replicas, "selector": {}, "template": {} },
                "status": { "availableReplicas": available } });
            serde_json::from_value::<Deployment>(value).unwrap()
        };
        let verdict = |there: Option<&Deployment>| available("operator", "o", "n", there, "x").verdict;
        assert_eq!(verdict(Some(&deployment(2, 2))), Verdict::Good);
        assert_eq!(verdict(Some(&deployment(2, 1))), Verdict::Note);
        assert_eq!(verdict(Some(&deployment(1, 0))), Verdict::Bad);
        assert_eq!(verdict(Some(&deployment(0, 0))), Verdict::Bad, "it was scaled down");
        assert_eq!(verdict(None), Verdict::Bad);
    }
}
