//! `kubectl berth list`: which sandboxes there are, and how each stands. IO, but for the rows.

use berth_api::condition::ConditionType;
use berth_command::{
    printer::{Printer, Shape, Tone},
    table,
};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use serde_json::Value;

use crate::{
    age::{UNKNOWN, age},
    args::{ClusterArgs, ListArgs, ListFormat},
    cluster::Cluster,
    error::{Exit, PluginError, error_chain},
    sandboxes::{self, Found},
    yaml,
};

/// Lists them.
pub(crate) async fn list(cluster: &ClusterArgs, args: ListArgs, shape: Shape) -> Result<Exit, PluginError> {
    let cluster = Cluster::connect(cluster).await?;
    let found = fetch(&cluster, &args).await?;
    let mut printer = Printer::standard(shape);
    let text = match args.output {
        Some(ListFormat::Json) => Some(format!("{:#}\n", yaml::list(&values(&found)))),
        Some(ListFormat::Yaml) => Some(yaml::document(&yaml::list(&values(&found)))?),
        Some(ListFormat::Name) => {
            let names = found.iter().map(|found| format!("sandbox.berth.dev/{}", found.name()));
            Some(names.chain([String::new()]).collect::<Vec<_>>().join("\n"))
        }
        Some(ListFormat::Wide) | None => None,
    };
    if let Some(text) = text {
        printer.raw(text.as_bytes()).and_then(|()| printer.flush()).map_err(PluginError::Output)?;
        return Ok(Exit::Succeeded);
    }
    if found.is_empty() {
        let place =
            if args.all_namespaces { String::new() } else { format!(" in namespace {}", cluster.namespace) };
        printer.aside(&format!("no sandboxes{place}")).map_err(PluginError::Output)?;
        return Ok(Exit::Succeeded);
    }
    let pods = match sandboxes::pods(&cluster, args.all_namespaces).await {
        Ok(pods) => Some(pods),
        Err(error) if error.is_forbidden() => {
            printer.aside(&error_chain(&error)).map_err(PluginError::Output)?;
            None
        }
        Err(error) => return Err(error),
    };
    let wide = args.output == Some(ListFormat::Wide);
    show(&found, pods.as_deref(), wide, &mut printer).map_err(PluginError::Output)?;
    Ok(Exit::Succeeded)
}

async fn fetch(cluster: &Cluster, args: &ListArgs) -> Result<Vec<Found>, PluginError> {
    let mut found = sandboxes::list(cluster, args.all_namespaces, args.selector.as_deref()).await?;
    for name in &args.names {
        if !found.iter().any(|found| found.name() == *name) {
            let namespace = cluster.namespace.clone();
            return Err(PluginError::NoSandbox { namespace, name: name.clone() });
        }
    }
    if !args.names.is_empty() {
        found.retain(|found| args.names.contains(&found.name()));
    }
    Ok(found)
}

fn values(found: &[Found]) -> Vec<Value> {
    found.iter().map(Found::value).collect()
}

fn show(found: &[Found], pods: Option<&[Pod]>, wide: bool, printer: &mut Printer) -> std::io::Result<()> {
    let now = Timestamp::now();
    let rows: Vec<_> = found.iter().map(|found| row(found, pods, wide, now)).collect();
    let mut lines = table::lines(header(wide), &rows, printer.width()).into_iter();
    if let Some(line) = lines.next() {
        printer.line(Tone::Ask, &line)?;
    }
    for (line, found) in lines.zip(found) {
        let tone = if found.ready().0 == "False" { Tone::Bad } else { Tone::Tool };
        printer.line(tone, &line)?;
    }
    printer.flush()
}

fn header(wide: bool) -> &'static [&'static str] {
    const ALL: [&str; 10] =
        ["NAMESPACE", "NAME", "READY", "REASON", "MODEL", "AGE", "RESTARTS", "POD", "NODE", "MESSAGE"];
    if wide { &ALL } else { &ALL[..7] }
}

/// The cells of a sandbox. Without `pods` nothing is known of them.
fn row(found: &Found, pods: Option<&[Pod]>, wide: bool, now: Timestamp) -> Vec<String> {
    let (ready, reason) = found.ready();
    let pod = pods.and_then(|pods| sandboxes::own_pod(pods, &found.raw));
    let restarts = match (pods, pod) {
        (None, _) => UNKNOWN.to_owned(),
        (_, pod) => pod.map_or(0, sandboxes::restarts).to_string(),
    };
    let mut cells = vec![
        found.namespace(),
        found.name(),
        ready.to_owned(),
        or_dash(Some(reason)),
        or_dash(found.model()),
        age(found.raw.metadata.creation_timestamp.as_ref(), now),
        restarts,
    ];
    if wide {
        let ready = found.condition(ConditionType::Ready);
        let message = match &found.read {
            Ok(_) => ready.filter(|ready| ready.status != "True").map(|ready| ready.message.as_str()),
            Err(why) => Some(why.as_str()),
        };
        let node = pod.and_then(|pod| pod.spec.as_ref()?.node_name.as_deref());
        cells.push(or_dash(pod.and_then(|pod| pod.metadata.name.as_deref())));
        cells.push(or_dash(node));
        cells.push(message.unwrap_or_default().to_owned());
    }
    cells
}

fn or_dash(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or(UNKNOWN).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "tests write values where they are used")]
    fn found(name: &str, spec: Value, ready: Option<(&str, &str)>) -> Found {
        let conditions: Vec<Value> = ready
            .map(|(status, reason)| {
                json!({ "type": "Ready", "status": status, "reason": reason, "message": "since it is so",
                    "lastTransitionTime": "2026-01-01T00:00:00Z" })
            })
            .into_iter()
            .collect();
        let object = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Sandbox",
            "metadata": { "namespace": "team", "name": name, "uid": format!("uid-{name}"),
                "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": spec, "status": { "conditions": conditions },
        });
        Found::new(serde_json::from_value(object).unwrap())
    }

    fn pod(sandbox: &str, restarts: i32) -> Pod {
        let status = |name: &str, count: i32| json!({ "name": name, "restartCount": count, "ready": true, "image": "", "imageID": "" });
        serde_json::from_value(json!({
            "metadata": { "name": format!("{sandbox}-sandbox"), "ownerReferences": [
                { "apiVersion": "berth.dev/v1alpha1", "kind": "Sandbox", "name": sandbox, "uid": format!("uid-{sandbox}") },
            ] },
            "spec": { "nodeName": "node-1", "containers": [] },
            "status": { "initContainerStatuses": [status("sidecar", 1)], "containerStatuses": [status("sandbox", restarts)] },
        }))
        .unwrap()
    }

    fn lines(pods: Option<&[Pod]>, wide: bool) -> Vec<String> {
        let now = "2026-01-01T00:05:00Z".parse().unwrap();
        let all = [
            found("one", json!({ "model": "anthropic/large" }), Some(("True", "Available"))),
            found("two", json!({}), Some(("False", "OOMKilled"))),
            found("new", json!({}), None),
            found("odd", json!({ "providers": 7 }), None),
        ];
        let rows: Vec<_> = all.iter().map(|found| row(found, pods, wide, now)).collect();
        table::lines(header(wide), &rows, None)
    }

    #[test]
    fn a_row_says_how_it_stands_and_one_that_cannot_be_read_says_so() {
        assert_eq!(
            lines(Some(&[pod("one", 0), pod("two", 3)]), false),
            [
                "NAMESPACE  NAME  READY    REASON      MODEL            AGE  RESTARTS",
                "team       one   True     Available   anthropic/large  5m   1",
                "team       two   False    OOMKilled   -                5m   4",
                "team       new   Unknown  -           -                5m   0",
                "team       odd   Unknown  Unreadable  -                5m   0",
            ]
        );
    }

    #[test]
    fn what_may_not_be_seen_is_a_dash() {
        assert!(lines(None, false)[1].ends_with("5m   -"));
    }

    #[test]
    fn wide_names_pod_and_node_and_what_is_wrong() {
        let lines = lines(Some(&[pod("one", 0), pod("two", 3)]), true);
        assert!(lines[1].ends_with("1         one-sandbox  node-1"), "{lines:#?}");
        assert!(lines[2].ends_with("4         two-sandbox  node-1  since it is so"), "{lines:#?}");
        assert!(lines[4].contains("invalid type"), "{lines:#?}");
    }
}
