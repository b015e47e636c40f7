//! What whoever asks may do: each right, and what does not work without it. IO.

use berth_command::check::Check;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use kube::{Api, api::PostParams};

use super::{Scope, unread};
use crate::cluster::ask;

/// A right: verb, group, resource, subresource, and what it is for.
type Right = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// The rights that people need, by what they do.
const RIGHTS: [Right; 9] = [
    ("list", "berth.dev", "sandboxes", "", "list, describe"),
    ("create", "berth.dev", "sandboxes", "", "making sandboxes"),
    ("delete", "berth.dev", "sandboxes", "", "deleting sandboxes"),
    ("list", "", "pods", "", "restarts in list"),
    ("get", "", "pods", "", "describe, logs"),
    ("get", "", "pods", "log", "logs"),
    ("list", "", "events", "", "Events in describe"),
    ("create", "", "pods", "portforward", "attach"),
    ("get", "", "secrets", "", "attach"),
];

pub(super) async fn checks(scope: &Scope) -> Vec<Check> {
    const NAME: &str = "your rights";
    let mut lacking = Vec::new();
    for right in RIGHTS {
        match may(scope, right).await {
            Ok(true) => {}
            Ok(false) => lacking.push(right),
            Err(error) => return vec![unread(NAME, &error)],
        }
    }
    vec![told(NAME, &place(scope), &lacking)]
}

fn place(scope: &Scope) -> String {
    if scope.all_namespaces {
        "all namespaces".to_owned()
    } else {
        format!("namespace {}", scope.cluster.namespace)
    }
}

fn told(name: &'static str, place: &str, lacking: &[Right]) -> Check {
    if lacking.is_empty() {
        return Check::good(name, format!("you may do everything that this program does in {place}"));
    }
    let one = |(verb, _, resource, subresource, why): &Right| {
        let resource =
            if subresource.is_empty() { (*resource).to_owned() } else { format!("{resource}/{subresource}") };
        format!("{verb} {resource} ({why})")
    };
    let list: Vec<String> = lacking.iter().map(one).collect();
    Check::note(
        name,
        format!("in {place} you may not: {}", list.join(", ")),
        "ask whoever runs the cluster for what of it you need",
    )
}

async fn may(scope: &Scope, right: Right) -> Result<bool, crate::error::PluginError> {
    let (verb, group, resource, subresource, _) = right;
    let text = |text: &str| Some(text.to_owned());
    let namespace = (!scope.all_namespaces).then(|| scope.cluster.namespace.clone());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                namespace,
                verb: text(verb),
                group: text(group),
                resource: text(resource),
                subresource: text(subresource),
                ..ResourceAttributes::default()
            }),
            non_resource_attributes: None,
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(scope.cluster.client.clone());
    let answer = ask("ask for your rights", api.create(&PostParams::default(), &review)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use berth_command::check::Verdict;

    use super::*;

    #[test]
    fn a_right_that_lacks_is_told_with_what_it_is_for() {
        assert_eq!(told("your rights", "namespace team", &[]).verdict, Verdict::Good);
        let check = told("your rights", "namespace team", &RIGHTS[7..]);
        assert_eq!(check.verdict, Verdict::Note);
        assert_eq!(
            check.found,
            "in namespace team you may not: create pods/portforward (attach), get secrets (attach)"
        );
    }
}
