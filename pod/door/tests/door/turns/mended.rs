//! DR-1: an agent breaks the configuration of its own directory, and mends it.

use std::path::Path;

use berth_wire::door::ExitCause;

use super::*;
use crate::{housekeeping::count, real_opencode::START};

/// What an agent writes in the middle of its work.
const BROKEN: &str = "{\"permission\": {\"bash\": \"ask\"";

/// Tries a prompt that must not run, and gives opencode's words.
async fn refused(rig: &Rig, session: &Session) -> String {
    let response = rig.prompt(session, &scripted(&ids::message_id(), "@stub say:never")).await;
    let status = response.status();
    let words = response.text().await.expect("a body");
    assert_eq!(status, 400, "{words}");
    words
}

/// Plays a turn to its end.
async fn plays(rig: &Rig, session: &Session, events: &mut Events) {
    let id = rig.script(session, "@stub say:fine").await;
    let seen = turn(events, &id, "ended").await;
    assert_eq!(outcome(&seen), "idle", "{}", story(&seen));
}

fn boot(rig: &Rig) -> u64 {
    rig.sandbox.supervisor.watch().borrow().boot
}

fn exits(rig: &Rig) -> Vec<ExitCause> {
    let state = rig.sandbox.supervisor.watch();
    state.borrow().exits.iter().map(|exit| exit.cause).collect()
}

/// A session in a directory with this configuration, which opencode has not read yet.
async fn seeded(rig: &Rig, events: &mut Events, configuration: &str) -> (Session, PathBuf) {
    let session = rig.cold_session().await;
    let file = PathBuf::from(&session.directory).join("opencode.json");
    close(rig, &session, events).await;
    std::fs::write(&file, configuration).expect("a file");
    (session, file)
}

async fn close(rig: &Rig, session: &Session, events: &mut Events) {
    plays(rig, session, events).await;
    rig.idle().await;
    rig.dispose(session).await;
    let disposed = |event: &Value| {
        let closed = &event["properties"]["directory"];
        event["type"] == "server.instance.disposed" && closed == session.directory.as_str()
    };
    until(events, "disposal", disposed).await;
}

#[tokio::test]
async fn dr_1_a_broken_configuration_blocks_nothing_and_works_again_when_it_is_mended() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let broken = rig.cold_session().await;
    let other = rig.cold_session().await;
    let file = Path::new(&broken.directory).join("opencode.json");
    let write = bash(&format!("printf '{BROKEN}' > opencode.json"));
    let id = rig.script(&broken, &format!("@stub {write} >> say:done")).await;
    turn(&mut events, &id, "ended").await;
    assert!(file.is_file());
    close(&rig, &broken, &mut events).await;

    let words = refused(&rig, &broken).await;
    assert!(words.contains("ConfigJsonError") && words.contains("opencode.json"), "{words}");
    assert!(words.contains("at line 1, column 30"), "{words}");
    assert_eq!(rig.turns().await["activity"], "idle");
    let abort = rig.call(&broken, "abort").send().await.expect("an answer");
    assert_eq!(abort.status(), 400);
    plays(&rig, &other, &mut events).await;

    // A door that comes anew is not held up either.
    let second = RunningDoor::start(rig.sandbox.supervisor.watch(), |_| {}).await;
    second.ready().await;
    idle(&second).await;
    second.stop().await;

    assert_eq!(refused(&rig, &broken).await, words, "it is the same failure");
    assert_eq!(boot(&rig), 1, "opencode was not started anew");
    std::fs::write(&file, "{}").expect("the file is mended");
    plays(&rig, &broken, &mut events).await;
    assert_eq!((boot(&rig), exits(&rig)), (2, vec![ExitCause::Reconfigured]));
    assert_eq!(count(&rig.counters, "reconfigured"), 1);
    assert_eq!(count(&rig.counters, "mendings_put_off"), 0);
    plays(&rig, &other, &mut events).await;
    plays(&rig, &broken, &mut events).await;
    assert_eq!(boot(&rig), 2);
    rig.stop().await;
}

#[tokio::test]
async fn dr_1_each_change_of_the_file_costs_one_start_and_no_loop() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let (broken, file) = seeded(&rig, &mut events, r#"{"permission": 7}"#).await;
    let words = refused(&rig, &broken).await;
    assert!(words.contains("ConfigInvalidError") && words.contains("permission"), "{words}");
    std::fs::write(&file, BROKEN).expect("an edit");
    for _ in 0..3 {
        let words = refused(&rig, &broken).await;
        assert!(words.contains("ConfigJsonError") && words.contains("at line 1, column 30"), "{words}");
    }
    assert_eq!((boot(&rig), exits(&rig)), (2, vec![ExitCause::Reconfigured]));

    // Too early for another start, which comes by itself.
    std::fs::remove_file(&file).expect("the file is gone");
    let status = rig.door.get(&format!("/session/status?directory={}", broken.directory));
    let early = status.send().await.expect("an answer").status();
    let mut serve = rig.sandbox.supervisor.watch();
    let third = timeout(START, serve.wait_for(|state| state.boot == 3 && state.address.is_some())).await;
    let exits = third.expect("in time").expect("a supervisor").exits.clone();
    let apart = exits[1].at.duration_since(exits[0].at);
    assert!(apart.as_secs_f64() > 9.0, "{apart:?}");
    assert_eq!((exits.len(), exits[1].cause), (2, ExitCause::Reconfigured));
    assert_eq!(count(&rig.counters, "mendings_put_off"), u64::from(early == 400));
    plays(&rig, &broken, &mut events).await;
    assert_eq!((boot(&rig), count(&rig.counters, "reconfigured")), (3, 2));
    rig.stop().await;
}

#[tokio::test]
async fn dr_1_what_runs_elsewhere_comes_to_its_end_first() {
    let rig = Rig::start().await;
    let mut events = rig.door.events("/global/event", None).await;
    let (broken, file) = seeded(&rig, &mut events, BROKEN).await;
    refused(&rig, &broken).await;
    let other = rig.cold_session().await;
    let release = rig.sandbox.work.join("release");
    let wait = bash(&format!("until test -e {}; do sleep 0.1; done; echo whole", release.display()));
    let id = rig.script(&other, &format!("@stub {wait} >> say:done")).await;
    let runs = |event: &Value| event["properties"]["part"]["state"]["status"] == "running";
    until(&mut events, "tool", runs).await;
    std::fs::write(&file, "{}").expect("the file is mended");
    refused(&rig, &broken).await;
    assert_eq!((boot(&rig), count(&rig.counters, "mendings_put_off")), (1, 1));
    let turns = rig.turns().await;
    assert_eq!(turns["sessions"][0]["session_id"], other.id.as_str(), "{turns}");
    std::fs::write(&release, "").expect("a file");
    let seen = until(&mut events, "end of opencode", |event| event["type"] == "berth.serve.exited").await;
    let ended =
        seen.iter().find(|event| is_turn(event, "ended") && event["properties"]["message_id"] == id.as_str());
    assert_eq!(ended.expect("its end")["properties"]["outcome"], "idle", "{}", story(&seen));
    assert_eq!(seen.last().expect("an end")["properties"]["cause"], "Reconfigured");
    plays(&rig, &broken, &mut events).await;
    assert_eq!(boot(&rig), 2);
    rig.stop().await;
}
