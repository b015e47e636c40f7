//! Turns of every kind on a real opencode.

use std::collections::{HashMap, HashSet};

use super::*;

#[tokio::test]
async fn twenty_cold_directories_at_once_are_busy_until_each_has_ended() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let mut sessions = Vec::new();
    for _ in 0..20 {
        sessions.push(rig.cold_session().await);
    }
    let begun = Instant::now();
    let bodies: Vec<Value> =
        sessions.iter().map(|_| scripted(&ids::message_id(), "@stub say:hello")).collect();
    let prompts = sessions.iter().zip(&bodies).map(|(session, body)| rig.prompt(session, body));
    for response in futures_util::future::join_all(prompts).await {
        assert_eq!(response.status(), 204);
    }
    let all: HashSet<String> = sessions.iter().map(|session| session.id.clone()).collect();
    let (mut started, mut spoke, mut ended) = (HashSet::new(), HashSet::new(), HashMap::new());
    let mut absent: Vec<(String, u64)> = Vec::new();
    let mut looked = 0;
    while ended.len() < all.len() {
        let listed = listed(&rig.turns().await);
        let seq = rig.door.state().await["seq"].as_u64().expect("a number");
        absent.extend(all.difference(&listed).map(|session| (session.clone(), seq)));
        looked += 1;
        let (id, event) = events.next().await;
        let properties = &event["properties"];
        let session = properties["session_id"].as_str().or_else(|| properties["sessionID"].as_str());
        let session = session.unwrap_or_default().to_owned();
        if event["type"] == "message.part.delta" {
            assert!(started.contains(&session), "{session} worked before it started");
            spoke.insert(session);
        } else if is_turn(&event, "started") {
            started.insert(session);
        } else if is_turn(&event, "ended") {
            assert_eq!(properties["outcome"], "idle");
            assert!(spoke.contains(&session), "{session} ended without a word");
            let (_, seq) = id.as_deref().and_then(|id| id.split_once('-')).expect("an id");
            ended.insert(session, seq.parse::<u64>().expect("a number"));
        }
    }
    // One that was not in the table had ended by then: its end is in the journal as it was right after that look.
    for (session, seq) in &absent {
        assert!(ended[session] <= *seq, "{session} was admitted and called idle");
    }
    println!("20 cold directories: {:?}, the table was looked at {looked} times", begun.elapsed());
    assert_eq!(rig.turns().await["activity"], "idle");
    rig.stop().await;
}

/// The sessions that a table shows.
fn listed(turns: &Value) -> HashSet<String> {
    let sessions = turns["sessions"].as_array().expect("sessions");
    sessions.iter().filter_map(|session| session["session_id"].as_str().map(str::to_owned)).collect()
}

#[tokio::test]
async fn prompts_that_begin_nothing() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let session = rig.session_in(rig.sandbox.work.clone()).await;

    // An agent that does not exist.
    let mut body = scripted(&ids::message_id(), "@stub say:never");
    body["agent"] = "nobody".into();
    assert_eq!(rig.prompt(&session, &body).await.status(), 204);
    let seen = session_turn(&mut events, &session, "ended").await;
    assert_eq!(phases(&seen, &session), ["admitted", "ended failed"], "{}", story(&seen));
    rig.idle().await;

    // The provider refuses.
    let id = rig.script(&session, "@stub status:400").await;
    let seen = turn(&mut events, &id, "ended").await;
    assert_eq!(phases(&seen, &session), ["admitted", "started", "ended idle"], "{}", story(&seen));
    let closed = seen.iter().any(|event| event["properties"]["info"]["error"]["name"] == "APIError");
    assert!(closed, "the answer is closed before the end: {}", story(&seen));

    // A note is stored, and is no turn.
    body = scripted(&ids::message_id(), "a note");
    body["noReply"] = true.into();
    assert_eq!(rig.prompt(&session, &body).await.status(), 204);
    let note = body["messageID"].clone();
    until(&mut events, "note", |event| event["properties"]["info"]["id"] == note).await;
    rig.idle().await;

    // A model that does not exist.
    // It stays the session's.
    let other = rig.session_in(rig.sandbox.work.clone()).await;
    body = scripted(&ids::message_id(), "@stub say:never");
    body["model"] = json!({"providerID": "scripted", "modelID": "nothing"});
    assert_eq!(rig.prompt(&other, &body).await.status(), 204);
    let seen = session_turn(&mut events, &other, "ended").await;
    assert_eq!(phases(&seen, &other), ["admitted", "started", "ended idle"], "{}", story(&seen));

    // A session that does not exist, and a body that is none.
    let nowhere =
        Session { id: "ses_0000000000000000000000000".to_owned(), directory: session.directory.clone() };
    assert_eq!(rig.prompt(&nowhere, &scripted(&ids::message_id(), "@stub say:never")).await.status(), 404);
    assert_eq!(rig.prompt(&session, &json!({"parts": 1})).await.status(), 400);
    rig.idle().await;
    let id = rig.script(&session, "@stub say:last").await;
    let seen = turn(&mut events, &id, "ended").await;
    let told = phases(&seen, &session);
    assert!(told.ends_with(&["admitted", "started", "ended idle"].map(str::to_owned)), "{told:?}");
    rig.stop().await;
}

#[tokio::test]
async fn the_same_ids_again_and_prompts_in_one_run() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let session = rig.session_in(rig.sandbox.work.clone()).await;
    let body = scripted(&ids::message_id(), "@stub text:n=20,d=50 >> say:done");
    let id = body["messageID"].as_str().expect("an id").to_owned();
    assert_eq!(rig.prompt(&session, &body).await.status(), 204);
    turn(&mut events, &id, "started").await;
    assert_eq!(rig.prompt(&session, &body).await.status(), 204);
    let seen = turn(&mut events, &id, "ended").await;
    assert_eq!(phases(&seen, &session), ["ended idle"], "one turn: {}", story(&seen));
    rig.idle().await;

    // When it was the newest, and had succeeded.
    assert_eq!(rig.prompt(&session, &body).await.status(), 204);
    let seen = turn(&mut events, &id, "ended").await;
    assert_eq!(phases(&seen, &session), ["admitted", "started", "ended idle"], "{}", story(&seen));
    assert_eq!(rig.asked(&session), 1, "it did not run again");

    // A prompt that comes while another one runs has the same idle.
    let first = rig.script(&session, "@stub text:n=20,d=50").await;
    turn(&mut events, &first, "started").await;
    let second = rig.script(&session, "@stub say:second").await;
    let seen = turn(&mut events, &second, "ended").await;
    assert_eq!(
        phases(&seen, &session),
        ["admitted", "started", "ended idle", "ended idle"],
        "{}",
        story(&seen)
    );
    rig.idle().await;
    rig.stop().await;
}

#[tokio::test]
async fn calls_that_last_as_long_as_their_turn() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let session = rig.cold_session().await;
    let plain = json!({"parts": [{"type": "text", "text": "@stub text:n=5,d=20 >> say:done"}]});
    let message = rig.call(&session, "message").json(&plain);
    let answer = timeout(LONG, message.send()).await.expect("in time").expect("an answer");
    assert_eq!(answer.status(), 200);
    answer.text().await.expect("a body");
    let seen = session_turn(&mut events, &session, "ended").await;
    assert_eq!(phases(&seen, &session), ["admitted", "started", "ended idle"], "{}", story(&seen));
    assert!(
        seen.iter().any(|event| is_turn(event, "started") && event["properties"]["message_id"].is_string())
    );
    assert!(
        seen.iter().all(|event| event["type"] != "berth.turn" || event["properties"]["origin"] == "external")
    );
    rig.idle().await;

    let shell = json!({"agent": "build", "command": "echo hello", "model": {"providerID": "scripted", "modelID": "m"}});
    let request = rig.call(&session, "shell").json(&shell);
    let answer = timeout(LONG, request.send()).await.expect("in time").expect("an answer");
    assert_eq!(answer.status(), 200);
    answer.text().await.expect("a body");
    let seen = session_turn(&mut events, &session, "ended").await;
    assert_eq!(phases(&seen, &session), ["admitted", "started", "ended idle"], "{}", story(&seen));
    rig.idle().await;

    let summarize = json!({"providerID": "scripted", "modelID": "m"});
    let request = rig.call(&session, "summarize").json(&summarize);
    let answer = timeout(LONG, request.send()).await.expect("in time").expect("an answer");
    assert_eq!(answer.status(), 200);
    answer.text().await.expect("a body");
    let seen = session_turn(&mut events, &session, "ended").await;
    assert_eq!(phases(&seen, &session), ["admitted", "started", "ended idle"], "{}", story(&seen));
    rig.idle().await;
    rig.stop().await;
}

#[tokio::test]
async fn subagents_belong_to_the_turn_and_an_abort_ends_them() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let session = rig.session_in(rig.sandbox.work.clone()).await;
    let id = rig
        .call(&session, "prompt_async")
        .json(&json!({"parts": [{"type": "text", "text": "scenario: subagent"}]}));
    assert_eq!(id.send().await.expect("an answer").status(), 204);
    let seen = session_turn(&mut events, &session, "ended").await;
    assert_eq!(phases(&seen, &session), ["admitted", "started", "ended idle"], "{}", story(&seen));
    assert_eq!(seen.iter().filter(|event| event["type"] == "berth.turn").count(), 3, "{}", story(&seen));
    rig.idle().await;

    let task = json!({"description": "x", "subagent_type": "general", "prompt": "@stub2 text:n=200,d=100"});
    let hidden = task.to_string().replace("@stub2", "\\u0040stub2");
    let id = rig.script(&session, &format!("@stub tool:task:{hidden} >> say:done")).await;
    let child = until(&mut events, "subagent", |event| {
        event["type"] == "session.created" && event["properties"]["info"]["parentID"] == session.id.as_str()
    })
    .await;
    let child =
        child.last().expect("an event")["properties"]["info"]["id"].as_str().expect("an id").to_owned();
    let speaks = |event: &Value| {
        event["type"] == "message.part.delta" && event["properties"]["sessionID"] == child.as_str()
    };
    until(&mut events, "word of the subagent", speaks).await;
    let turns = rig.turns().await;
    let listed = turns["sessions"].as_array().expect("sessions");
    let of_child = listed.iter().find(|listed| listed["session_id"] == child.as_str()).expect("the subagent");
    assert_eq!((&of_child["parent_id"], &of_child["busy"]), (&json!(session.id), &json!(true)), "{turns}");
    rig.abort(&session).await;
    let seen = turn(&mut events, &id, "ended").await;
    assert_eq!(outcome(&seen), "aborted", "{}", story(&seen));
    let marker = rig.script(&session, "@stub say:marker").await;
    let after = turn(&mut events, &marker, "ended").await;
    assert!(!after.iter().any(speaks), "the subagent went on: {}", story(&after));
    rig.idle().await;
    rig.stop().await;
}

#[tokio::test]
async fn a_kill_right_after_the_prompt_ends_its_turn() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let session = rig.cold_session().await;
    let id = rig.script(&session, "@stub say:never").await;
    rig.kill();
    let seen = turn(&mut events, &id, "ended").await;
    assert_eq!(outcome(&seen), "exited", "{}", story(&seen));
    until(&mut events, "restart", |event| event["type"] == "berth.serve.started").await;
    rig.idle().await;
    let again = rig.script(&session, "@stub say:again").await;
    let seen = turn(&mut events, &again, "ended").await;
    assert_eq!(outcome(&seen), "idle", "{}", story(&seen));
    rig.stop().await;
}

#[tokio::test]
async fn a_new_door_before_an_opencode_that_runs_finds_out_what_runs() {
    let rig = Rig::start().await;
    let busy = rig.cold_session().await;
    let idle_one = rig.cold_session().await;
    let mut events = rig.door.events("/global/event", None).await;
    let id = rig.script(&idle_one, "@stub say:done").await;
    turn(&mut events, &id, "ended").await;
    let until_told = bash("until [ -e go ]; do sleep 0.02; done");
    let id = rig.script(&busy, &format!("@stub {until_told} >> say:done")).await;
    turn(&mut events, &id, "started").await;
    let Rig { sandbox, door, .. } = &rig;
    let second = RunningDoor::start(sandbox.supervisor.watch(), |_| {}).await;
    let mut heard = second.events("/global/event", None).await;
    let known = async {
        loop {
            let turns = json_of(second.get("/berth/turns")).await;
            assert_ne!(turns["activity"], "idle", "{turns}");
            if turns["activity"] == "busy" {
                return turns;
            }
        }
    };
    let turns = timeout(LONG, known).await.expect("in time");
    let sessions = turns["sessions"].as_array().expect("sessions");
    assert_eq!(sessions.len(), 1, "{turns}");
    assert_eq!(
        (&sessions[0]["session_id"], &sessions[0]["busy"]),
        (&json!(busy.id), &json!(true)),
        "{turns}"
    );
    std::fs::write(PathBuf::from(&busy.directory).join("go"), "").expect("a file");
    let seen = session_turn(&mut heard, &busy, "ended").await;
    assert_eq!(phases(&seen, &busy), ["started", "ended idle"], "{}", story(&seen));
    idle(&second).await;
    idle(door).await;
    second.stop().await;
    rig.stop().await;
}
