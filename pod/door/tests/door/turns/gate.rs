//! What the gate lets through and waits for, while a real opencode works.

use berth_wire::problem::ProblemType;

use super::*;
use crate::rig::{PASSWORD, problem, within};

/// Takes the gate, or moves the first lease on.
async fn hold(rig: &Rig, phase: &str, moved: bool, more: &Value) -> RequestBuilder {
    let mut lease = json!({"owner": "snapshot", "ttl_ms": 600_000, "phase": phase});
    if moved {
        lease["generation"] = rig.door.generation().await.into();
    }
    lease.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    rig.door.put("/berth/gate").json(&lease)
}

async fn drain(rig: &Rig) {
    assert_eq!(json_of(hold(rig, "draining", false, &json!({})).await).await["phase"], "draining");
}

async fn refused(call: RequestBuilder) -> Option<ProblemType> {
    problem(within("refusal", call.send()).await.expect("an answer")).await.problem_type()
}

/// The id of the next request to a person in this session.
async fn asked(events: &mut Events, session: &Session, kind: &str) -> String {
    let of = |event: &Value| event["type"] == kind && event["properties"]["sessionID"] == session.id.as_str();
    let seen = until(events, kind, of).await;
    seen.last().expect("events")["properties"]["id"].as_str().expect("an id").to_owned()
}

/// `POST /{kind}/{id}/reply` for the session's directory.
fn reply(rig: &Rig, session: &Session, kind: &str, id: &str, body: &Value) -> RequestBuilder {
    rig.door.post(&format!("/{kind}/{id}/reply?directory={}", session.directory)).json(body)
}

/// A draining gate lets this answer through, the turn that waits for it ends, and a closed one refuses it.
async fn answered_while_draining(script: &str, kind: &str, body: &Value) -> (Rig, Session) {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let session = rig.cold_session().await;
    let message = rig.script(&session, script).await;
    let request = asked(&mut events, &session, &format!("{kind}.asked")).await;
    drain(&rig).await;
    let another = rig.call(&session, "prompt_async").json(&scripted(&ids::message_id(), "@stub say:never"));
    assert_eq!(refused(another).await, Some(ProblemType::Gated), "no new work");
    assert_eq!(json_of(reply(&rig, &session, kind, &request, body)).await, true);
    let seen = turn(&mut events, &message, "ended").await;
    assert_eq!(outcome(&seen), "idle", "{}", story(&seen));
    assert!(seen.iter().any(|event| event["type"] == format!("{kind}.replied")), "{}", story(&seen));
    let closed = json_of(hold(&rig, "closed", true, &json!({"wait_ms": 20_000, "idle": true})).await).await;
    assert_eq!(closed["phase"], "closed");
    assert_eq!(refused(reply(&rig, &session, kind, &request, body)).await, Some(ProblemType::Gated));
    (rig, session)
}

#[tokio::test]
async fn a_permission_is_given_while_the_gate_drains_and_the_admitted_turn_ends() {
    let script = format!("@stub {} >> say:done", bash("touch given"));
    let (rig, session) = answered_while_draining(&script, "permission", &json!({"reply": "once"})).await;
    assert!(PathBuf::from(&session.directory).join("given").exists(), "the tool ran");
    assert_eq!(rig.asked(&session), 2, "and the model heard of it");
    rig.stop().await;
}

#[tokio::test]
async fn a_question_is_answered_while_the_gate_drains_and_the_admitted_turn_ends() {
    let answers = json!({"answers": [["Blue"]]});
    let (rig, session) = answered_while_draining("scenario: question", "question", &answers).await;
    assert_eq!(rig.asked(&session), 2, "the model heard the answer");
    let path = format!("/session/{}/message?directory={}", session.id, session.directory);
    let messages = json_of(rig.door.get(&path)).await.to_string();
    assert!(messages.contains("Blue") && messages.contains("Thank you"), "{messages}");
    rig.stop().await;
}

#[tokio::test]
async fn a_gate_that_waits_for_idle_closes_after_the_turn_and_says_before_who_works() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let session = rig.cold_session().await;
    let release = PathBuf::from(&session.directory).join("release");
    let command = "until test -e release; do sleep 0.1; done";
    let message = rig.script(&session, &format!("@stub {} >> say:done", bash(command))).await;
    turn(&mut events, &message, "started").await;

    let busy = hold(&rig, "closed", false, &json!({"idle": true})).await.send();
    let busy = problem(within("refusal", busy).await.expect("an answer")).await;
    assert_eq!(busy.problem_type(), Some(ProblemType::Busy));
    assert_eq!(busy.extensions["sessions"], json!([session.id]));
    assert_eq!(busy.extensions["calls"], json!([]), "the prompt itself was answered");
    assert_eq!(json_of(rig.door.get("/berth/gate")).await["phase"], "draining");

    let mut closing = JoinSet::new();
    closing.spawn(hold(&rig, "closed", true, &json!({"idle": true, "wait_ms": 60_000})).await.send());
    // What may change something is refused when the gate closes.
    let url = rig.door.url(&format!("/session/{}", session.id));
    let rename = || {
        let request = client().patch(&url).basic_auth("opencode", Some(PASSWORD));
        request.json(&json!({"title": "x"}))
    };
    let refused = async {
        while rename().send().await.expect("an answer").status() != 503 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within("the closing at the door", refused).await;
    assert!(closing.try_join_next().is_none(), "the turn goes on");
    std::fs::write(&release, "").expect("a file");
    let seen = until(&mut events, "close", |event| event["properties"]["phase"] == "closed").await;
    let ended = |event: &Value| is_turn(event, "ended") && event["properties"]["message_id"] == message;
    assert!(seen.iter().any(ended), "{}", story(&seen));
    let closed = within("close", closing.join_next()).await.expect("it was asked for").expect("no panic");
    assert_eq!(closed.expect("an answer").status(), 200);
    assert_eq!(rig.turns().await["activity"], "idle");
    rig.stop().await;
}
