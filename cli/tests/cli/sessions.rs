//! `berth run` with what can be given along.

use std::fs;

use berth_wire::api::PromptPart;

use crate::{
    fake::{Act, FakeServer, says, succeeds},
    process::{Berth, finish},
};

#[tokio::test]
async fn a_prompt_may_come_with_files_a_model_and_an_agent() {
    let server = FakeServer::start(vec![vec![says("a", 0, "ok\n"), succeeds()]]).await;
    let berth = Berth::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("note.txt");
    fs::write(&file, "hi").unwrap();
    let line = ["run", "--model", "p/m/x", "--agent", "plan", "--file", file.to_str().unwrap(), "read", "it"];
    let done = finish(berth.against(&server, &line), "").await;
    assert_eq!((done.code, done.out.as_str()), (0, "ok\n"), "{}", done.err);
    let [message] = server.messages().try_into().unwrap();
    assert_eq!(message.model.unwrap().to_string(), "p/m/x");
    assert_eq!(message.agent.as_deref(), Some("plan"));
    let url = "data:text/plain;base64,aGk=".to_owned();
    let file = PromptPart::File { mime: "text/plain".to_owned(), filename: Some("note.txt".to_owned()), url };
    assert_eq!(message.parts, [file, PromptPart::text("read it")]);
    for wrong in [&["run", "--model", "m", "x"][..], &["run", "--file", "/nowhere", "x"]] {
        let done = finish(berth.against(&server, wrong), "").await;
        assert!(done.code == 1 || done.code == 2, "{wrong:?}: {} {}", done.code, done.err);
    }
    assert_eq!(server.messages().len(), 1);
}

#[tokio::test]
async fn a_turn_that_takes_too_long_is_cancelled_and_is_6() {
    let server = FakeServer::start(vec![vec![says("a", 0, "half"), Act::Cancel]]).await;
    let done = finish(Berth::new().against(&server, &["run", "--timeout", "1", "x"]), "").await;
    assert_eq!((done.code, done.out.as_str()), (6, "half\n"), "{}", done.err);
    assert!(done.err.contains("not at its end after 1 s"), "{}", done.err);
    assert_eq!(server.cancels(), 1);
}
