//! The sandboxes: how many are ready, and each that is not, with what to do. Pure.

use berth_api::{Subject, condition::ConditionType};
use berth_command::check::Check;

use crate::sandboxes::{Found, reason};

/// Most sandboxes that are told one by one.
const SHOWN: usize = 50;

pub(super) fn checks(found: &[Found]) -> Vec<Check> {
    const NAME: &str = "sandboxes";
    let waiting: Vec<&Found> = found.iter().filter(|found| !found.is_ready()).collect();
    let ready = found.len() - waiting.len();
    let mut checks = match found.len() {
        0 => vec![Check::good(NAME, "there are none")],
        all => vec![Check::good(NAME, format!("{ready} of {all} are ready"))],
    };
    checks.extend(waiting.iter().take(SHOWN).map(|found| one(found)));
    if waiting.len() > SHOWN {
        let more = format!("{} more are not ready", waiting.len() - SHOWN);
        checks.push(Check::note(NAME, more, "kubectl berth list shows them"));
    }
    checks
}

/// What passes by itself is only noted.
fn one(found: &Found) -> Check {
    const NAME: &str = "sandbox";
    let (namespace, name) = (found.namespace(), found.name());
    let ready = found.condition(ConditionType::Ready);
    let message = match &found.read {
        Ok(_) => ready.map_or("nobody has looked at it yet", |ready| ready.message.as_str()),
        Err(why) => why.as_str(),
    };
    let (_, why) = found.ready();
    let told = if why.is_empty() { String::new() } else { format!(" {why}:") };
    let text = format!("{namespace}/{name}:{told} {message}");
    let subject = Subject { namespace: &namespace, name: &name };
    match reason(why).map(|reason| reason.next_step(subject)) {
        Some(Some(step)) => Check::bad(NAME, text, step),
        Some(None) => Check::note(NAME, text, "it passes by itself"),
        None if found.read.is_err() => Check::bad(
            NAME,
            text,
            "this program and the kind are of different versions: update the older one",
        ),
        None => Check::note(NAME, text, format!("kubectl berth -n {namespace} describe {name}")),
    }
}

#[cfg(test)]
mod tests {
    use berth_command::check::Verdict;
    use serde_json::json;

    use super::*;

    fn found(name: &str, reason: &str) -> Found {
        let status = if reason == "Available" { "True" } else { "False" };
        let object = json!({ "metadata": { "namespace": "team", "name": name }, "spec": {}, "status": { "conditions": [
            { "type": "Ready", "status": status, "reason": reason, "message": "so it is",
              "lastTransitionTime": "2026-01-01T00:00:00Z" },
        ] } });
        Found::new(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn each_that_is_not_ready_is_told_with_what_to_do() {
        let all = [
            found("good", "Available"),
            found("new", "Starting"),
            found("full", "QuotaExceeded"),
            found("odd", "Novel"),
        ];
        let checks = checks(&all);
        assert_eq!(checks[0].found, "1 of 4 are ready");
        let told: Vec<_> = checks[1..].iter().map(|check| (check.verdict, check.found.as_str())).collect();
        assert_eq!(
            told,
            [
                (Verdict::Note, "team/new: Starting: so it is"),
                (Verdict::Bad, "team/full: QuotaExceeded: so it is"),
                (Verdict::Note, "team/odd: Novel: so it is"),
            ]
        );
        assert!(checks[2].fix.as_ref().unwrap().contains("resourcequota"));
    }

    #[test]
    fn many_are_counted() {
        let all: Vec<Found> = (0..SHOWN + 3).map(|index| found(&format!("s{index}"), "OOMKilled")).collect();
        let checks = checks(&all);
        assert_eq!(
            (checks.len(), checks.last().unwrap().found.as_str()),
            (SHOWN + 2, "3 more are not ready")
        );
    }
}
