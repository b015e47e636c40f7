//! How the password of a door is exchanged without a request that fails. Pure.
//!
//! A Secret takes up to 90 s to arrive in a pod, and a door takes two passwords at a time:
//!
//! | stage | `password` | `password-previous` | so that |
//! |---|---|---|---|
//! | announced | the old one | the new one | the door knows both before anybody uses the new one |
//! | switched | the new one | the old one | everybody reads the new one before the old one goes |
//! | at rest | the new one | | |
//!
//! It is exchanged when something else was at the door's port, once until the door has proved itself again, and when a
//! person asks for it. Everything is kept in the Secret's annotations: an operator that is started anew goes on.

use std::time::Duration;

use berth_api::names;
use k8s_openapi::{
    ByteString,
    api::core::v1::Secret,
    jiff::{SignedDuration, Timestamp},
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

/// How long each stage lasts: twice as long as a Secret takes to arrive.
const WINDOW: Duration = Duration::from_mins(3);

const ANNOUNCED: &str = "announced";
const SWITCHED: &str = "switched";

/// What is seen of a sandbox.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Sight<'a> {
    /// Something else is at the door's port.
    pub(crate) port_taken: bool,
    /// The door has proved itself just now.
    pub(crate) proved: bool,
    /// What a person asks for.
    pub(crate) request: Option<&'a str>,
}

/// What is written next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A new password beside the old one.
    Announce,
    /// The new one in the old one's place.
    Switch,
    /// The old one goes.
    Finish,
    /// The door is itself again: the next one who takes its port is another case.
    Close,
}

/// How far an exchange is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    AtRest,
    Announced(Timestamp),
    Switched(Timestamp),
}

fn annotation<'a>(secret: &'a Secret, name: &str) -> Option<&'a str> {
    secret.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

fn holds(secret: &Secret, key: &str) -> bool {
    secret.data.as_ref().is_some_and(|data| data.get(key).is_some_and(|value| !value.0.is_empty()))
}

/// What is not understood, or was half undone by somebody, is begun anew.
fn stage(secret: &Secret) -> Stage {
    let since = annotation(secret, names::PASSWORD_STAGE_SINCE).and_then(|text| text.parse().ok());
    let since = since.filter(|_| holds(secret, names::DOOR_PASSWORD_PREVIOUS));
    match (annotation(secret, names::PASSWORD_STAGE), since) {
        (Some(ANNOUNCED), Some(since)) => Stage::Announced(since),
        (Some(SWITCHED), Some(since)) => Stage::Switched(since),
        _ => Stage::AtRest,
    }
}

/// Somebody else was at the door's port, and the password was exchanged for that.
pub(crate) fn is_of_an_incident(secret: &Secret) -> bool {
    annotation(secret, names::PASSWORD_INCIDENT).is_some()
}

/// When the password became another one, in whole seconds as the cluster keeps times.
pub(crate) fn changed_at(secret: &Secret) -> Option<Timestamp> {
    let at: Timestamp = annotation(secret, names::PASSWORD_CHANGED_AT)?.parse().ok()?;
    Timestamp::from_second(at.as_second()).ok()
}

/// What is to be done now, and when to look again.
pub(crate) fn next(secret: &Secret, sight: &Sight<'_>, now: Timestamp) -> (Option<Step>, Option<Duration>) {
    let (since, step) = match stage(secret) {
        Stage::Announced(since) => (since, Step::Switch),
        Stage::Switched(since) => (since, Step::Finish),
        Stage::AtRest => return (at_rest(secret, sight), None),
    };
    // A time that lies ahead is another clock's.
    let lasted = Duration::try_from(now.duration_since(since).max(SignedDuration::ZERO)).unwrap_or_default();
    match WINDOW.checked_sub(lasted).filter(|left| !left.is_zero()) {
        Some(left) => (None, Some(left)),
        None => (Some(step), None),
    }
}

fn at_rest(secret: &Secret, sight: &Sight<'_>) -> Option<Step> {
    let asked = sight.request.is_some_and(|asked| annotation(secret, names::PASSWORD_REQUEST) != Some(asked));
    let incident = is_of_an_incident(secret);
    if asked || (sight.port_taken && !incident) {
        return Some(Step::Announce);
    }
    (incident && sight.proved).then_some(Step::Close)
}

/// The change of the Secret: only of the one that was seen.
pub(crate) fn change(
    secret: &Secret,
    step: Step,
    sight: &Sight<'_>,
    new: &SecretString,
    now: Timestamp,
) -> Value {
    let held = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).cloned().unwrap_or_default();
    let (current, other) = (held(names::DOOR_PASSWORD), held(names::DOOR_PASSWORD_PREVIOUS));
    let mut change = json!({ "metadata": {
        "uid": secret.metadata.uid, "resourceVersion": secret.metadata.resource_version,
    } });
    let (data, annotations) = match step {
        Step::Announce => {
            let new = ByteString(new.expose_secret().as_bytes().to_vec());
            let mut notes =
                json!({ names::PASSWORD_STAGE: ANNOUNCED, names::PASSWORD_STAGE_SINCE: now.to_string() });
            if sight.port_taken {
                notes[names::PASSWORD_INCIDENT] = json!("PortTaken");
            }
            if let Some(request) = sight.request {
                notes[names::PASSWORD_REQUEST] = json!(request);
            }
            (json!({ names::DOOR_PASSWORD_PREVIOUS: new }), notes)
        }
        Step::Switch => (
            json!({ names::DOOR_PASSWORD: other, names::DOOR_PASSWORD_PREVIOUS: current }),
            json!({
                names::PASSWORD_STAGE: SWITCHED, names::PASSWORD_STAGE_SINCE: now.to_string(),
                names::PASSWORD_CHANGED_AT: now.to_string(),
            }),
        ),
        Step::Finish => (
            json!({ names::DOOR_PASSWORD_PREVIOUS: null }),
            json!({ names::PASSWORD_STAGE: null, names::PASSWORD_STAGE_SINCE: null }),
        ),
        Step::Close => (json!({}), json!({ names::PASSWORD_INCIDENT: null })),
    };
    change["data"] = data;
    change["metadata"]["annotations"] = annotations;
    change
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn secret() -> Secret {
        Secret {
            data: Some(BTreeMap::from([(names::DOOR_PASSWORD.to_owned(), ByteString(b"first".to_vec()))])),
            ..Secret::default()
        }
    }

    /// What the cluster makes of a change.
    fn changed(secret: &Secret, change: Value) -> Secret {
        fn merge(into: &mut Value, change: Value) {
            match change {
                Value::Object(members) => {
                    for (name, value) in members {
                        match value {
                            Value::Null => drop(into.as_object_mut().map(|object| object.remove(&name))),
                            value => merge(&mut into[name], value),
                        }
                    }
                }
                value => *into = value,
            }
        }
        let mut whole = serde_json::to_value(secret).unwrap();
        merge(&mut whole, change);
        serde_json::from_value(whole).unwrap()
    }

    fn step(secret: &mut Secret, sight: &Sight<'_>, second: i64, new: &str) -> Option<Step> {
        let (step, _) = next(secret, sight, at(second));
        if let Some(step) = step {
            *secret = changed(secret, change(secret, step, sight, &new.into(), at(second)));
        }
        step
    }

    /// What clients read, and all that the door takes.
    fn passwords(secret: &Secret) -> (String, Vec<String>) {
        let data = secret.data.as_ref().unwrap();
        let text = |key: &str| data.get(key).map(|bytes| String::from_utf8(bytes.0.clone()).unwrap());
        let current = text(names::DOOR_PASSWORD).unwrap();
        (
            current.clone(),
            [Some(current), text(names::DOOR_PASSWORD_PREVIOUS)].into_iter().flatten().collect(),
        )
    }

    #[test]
    fn at_each_moment_the_door_knows_what_anybody_may_have_read() {
        let mut secret = secret();
        let taken = Sight { port_taken: true, ..Sight::default() };
        let (mut read, mut arrived) = (vec![passwords(&secret).0], passwords(&secret).1);
        let mut steps = Vec::new();
        for second in 0..1000 {
            steps.extend(step(&mut secret, &taken, second, "second"));
            // The door has what the Secret held 90 s ago, and clients what they read in the last 90 s.
            let (current, known) = passwords(&secret);
            if second % 90 == 89 {
                arrived = known;
                read = vec![read.pop().unwrap()];
            }
            read.push(current);
            assert!(read.iter().all(|password| arrived.contains(password)), "{second}: {read:?} {arrived:?}");
        }
        assert_eq!(steps, [Step::Announce, Step::Switch, Step::Finish], "once, however long it lasts");
        assert_eq!(passwords(&secret), ("second".to_owned(), vec!["second".to_owned()]));
        assert_eq!(changed_at(&secret), Some(at(180)));
    }

    #[test]
    fn the_next_case_begins_when_the_door_has_proved_itself() {
        let mut secret = secret();
        let taken = Sight { port_taken: true, ..Sight::default() };
        let proved = Sight { proved: true, ..Sight::default() };
        for (second, sight, expected) in [
            (0, &Sight::default(), None),
            (0, &proved, None),
            (10, &taken, Some(Step::Announce)),
            (189, &taken, None),
            (190, &proved, Some(Step::Switch)),
            (369, &proved, None),
            (370, &taken, Some(Step::Finish)),
            (371, &taken, None),
            (372, &Sight::default(), None),
            (373, &proved, Some(Step::Close)),
            (374, &proved, None),
            (375, &taken, Some(Step::Announce)),
        ] {
            assert_eq!(step(&mut secret, sight, second, "next"), expected, "{second}");
        }
    }

    #[test]
    fn a_person_asks_once_with_each_value() {
        let mut secret = secret();
        let asked = |request| Sight { request: Some(request), ..Sight::default() };
        for (second, request, expected) in [
            (0, "one", Some(Step::Announce)),
            (1, "two", None),
            (180, "one", Some(Step::Switch)),
            (360, "one", Some(Step::Finish)),
            (361, "one", None),
            (362, "two", Some(Step::Announce)),
        ] {
            assert_eq!(step(&mut secret, &asked(request), second, "next"), expected, "{second}");
        }
    }

    #[test]
    fn a_stage_tells_when_to_look_again_and_a_spoiled_one_begins_anew() {
        let mut secret = secret();
        let taken = Sight { port_taken: true, ..Sight::default() };
        step(&mut secret, &taken, 100, "next");
        assert_eq!(next(&secret, &taken, at(160)), (None, Some(Duration::from_mins(2))));
        assert_eq!(next(&secret, &taken, at(40)), (None, Some(WINDOW)), "by another clock");
        let asked = Sight { request: Some("x"), ..Sight::default() };
        secret.data.as_mut().unwrap().remove(names::DOOR_PASSWORD_PREVIOUS);
        assert_eq!(next(&secret, &asked, at(160)), (Some(Step::Announce), None));
    }

    #[test]
    fn only_the_secret_that_was_seen_is_changed() {
        let mut secret = secret();
        secret.metadata.resource_version = Some("7".to_owned());
        secret.metadata.uid = Some("u".to_owned());
        let change = change(&secret, Step::Close, &Sight::default(), &"".into(), at(0));
        assert_eq!(change["metadata"]["resourceVersion"], json!("7"));
        assert_eq!(change["metadata"]["uid"], json!("u"));
    }
}
