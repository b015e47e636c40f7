//! `berth sessions`, `berth diff` and `berth cp`, on a real opencode, and `berth run` with what can be given along.

use std::{fs, process::Stdio, time::Duration};

use berth_wire::{api::PromptPart, event::SessionEvent};
use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    fake::{Act, FakeServer, says, succeeds},
    home::{Home, Up},
    process::{Berth, Finished, LIMIT, finish},
};

/// Ids of all sessions, those that changed last first.
async fn ids(home: &Home, options: &[&str]) -> Vec<String> {
    let list = home.run(&[&["sessions", "list", "--json"], options].concat(), "").await;
    assert_eq!(list.code, 0, "{}", list.err);
    let id = |line: &str| serde_json::from_str::<Value>(line).unwrap()["id"].as_str().unwrap().to_owned();
    list.out.lines().map(id).collect()
}

#[tokio::test]
async fn sessions_are_listed_shown_renamed_exported_and_deleted() {
    let home = Home::new();
    let mut up = Up::start(&home, &[]).await;
    let none = home.run(&["sessions", "list"], "").await;
    assert_eq!((none.code, none.out.as_str()), (0, ""), "{}", none.err);
    assert!(none.err.contains("no session yet"), "{}", none.err);

    for words in ["first", "second"] {
        let run = home.run(&["run", &format!("@stub say:{words}")], "").await;
        assert_eq!(run.code, 0, "{}", run.err);
    }
    let [second, first] = ids(&home, &[]).await.try_into().unwrap();
    let table = home.run(&["sessions", "list"], "").await.out;
    assert!(table.starts_with("ID ") && table.lines().count() == 3, "{table}");

    // The ids were made within a minute: what is listed is enough to tell them apart, and no more.
    let short = table.lines().nth(2).unwrap().split_whitespace().next().unwrap().to_owned();
    assert!(first.starts_with(&short) && !second.starts_with(&short), "{short}");
    let rename = home.run(&["sessions", "rename", &short, "the", "login", "form"], "").await;
    assert_eq!(rename.code, 0, "{}", rename.err);
    assert_eq!(ids(&home, &["--title", "LOGIN"]).await, std::slice::from_ref(&first));
    assert_eq!(ids(&home, &["--state", "running"]).await, Vec::<String>::new());
    assert_eq!(ids(&home, &["--limit", "1"]).await, std::slice::from_ref(&first), "it changed last");

    let show = home.run(&["sessions", "show", &short], "").await;
    assert_eq!(show.code, 0, "{}", show.err);
    for told in ["the login form\n", &first, "› @stub say:first\n", "\nfirst\n", "✓ succeeded"] {
        assert!(show.out.contains(told), "{told:?} in {}", show.out);
    }
    let show = home.run(&["sessions", "show", "--json", "last"], "").await;
    assert_eq!(serde_json::from_str::<Value>(&show.out).unwrap()["text"], "first");

    let export = home.run(&["sessions", "export", &short], "").await;
    let events: Vec<SessionEvent> =
        export.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seqs: Vec<i64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=i64::try_from(events.len()).unwrap()).collect::<Vec<_>>());
    let page = home.run(&["sessions", "export", &short, "--format", "markdown", "-o", "page.md"], "").await;
    assert_eq!((page.code, page.out.as_str()), (0, ""), "{}", page.err);
    let page = fs::read_to_string(home.path("work/page.md")).unwrap();
    assert!(
        page.starts_with("# the login form\n") && page.contains("\n> @stub say:first\n\nfirst\n"),
        "{page}"
    );

    let both = home.run(&["sessions", "show", &first[..4]], "").await;
    assert_eq!(both.code, 4, "{}", both.err);
    assert!(both.err.contains("(the login form)"), "{}", both.err);
    let unasked = home.run(&["sessions", "delete", &short], "").await;
    assert_eq!(unasked.code, 2, "{}", unasked.err);
    let wrong = home.run(&["sessions", "delete", "--yes", &short, "ffffffff"], "").await;
    assert_eq!(wrong.code, 4, "{}", wrong.err);
    assert_eq!(ids(&home, &[]).await.len(), 2, "nothing was deleted");
    let delete = home.run(&["sessions", "delete", "--yes", &short], "").await;
    assert_eq!(delete.code, 0, "{}", delete.err);
    assert_eq!(ids(&home, &[]).await, [second]);
    up.signal(Signal::SIGTERM);
    assert_eq!(up.ended().await, 0);
}

/// `berth diff --stat` once it tells of `path`: changes are known some moments after the turn's end.
async fn changed(home: &Home, path: &str) -> Finished {
    let look = async {
        loop {
            let stat = home.run(&["diff", "--stat"], "").await;
            assert_eq!(stat.code, 0, "{}", stat.err);
            if stat.out.contains(path) {
                return stat;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LIMIT, look).await.expect("the change is told in time")
}

#[tokio::test]
async fn what_an_agent_changed_is_a_patch_that_git_takes_and_its_files_come_out() {
    let home = Home::new();
    let git = |arguments: &[&str]| {
        let mut command = std::process::Command::new("git");
        command.current_dir(home.path("work")).args(["-c", "user.name=x", "-c", "user.email=x@y"]);
        let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    git(&["init", "--quiet"]);
    fs::write(home.path("work/a.txt"), "one\ntwo\n").unwrap();
    git(&["add", "."]);
    git(&["commit", "--quiet", "-m", "a"]);
    let mut up = Up::start(&home, &[]).await;
    let write = |name: &str, text: &str| {
        let file = home.path("work").join(name);
        format!("@stub tool:write:{{\"filePath\":\"{}\",\"content\":\"{text}\"}} >> say:done", file.display())
    };
    let run = home.run(&["run", "--allow", &write("a.txt", "one\\n2\\n")], "").await;
    assert_eq!(run.code, 0, "{}", run.err);
    let run = home.run(&["run", "--allow", "--session", "last", &write("sub/b.txt", "new\\n")], "").await;
    assert_eq!(run.code, 0, "{}", run.err);

    let stat = changed(&home, "sub/b.txt").await;
    for told in [" a.txt ", " sub/b.txt ", "2 files changed, 2 lines added, 1 removed"] {
        assert!(stat.out.contains(told), "{told:?} in {}", stat.out);
    }
    let second = home.run(&["diff", "--stat", "--turn", "2"], "").await;
    assert!(second.out.contains("sub/b.txt") && !second.out.contains("a.txt "), "{}", second.out);
    let json: Value = serde_json::from_str(&home.run(&["diff", "--json"], "").await.out).unwrap();
    assert_eq!(json["files"].as_array().unwrap().len(), 2);
    let patch = home.run(&["diff", "last"], "").await;
    assert!(!patch.out.contains('\u{1b}'), "no colours in a pipe");
    fs::write(home.path("agent.patch"), &patch.out).unwrap();
    git(&["apply", "--reverse", "../agent.patch"]);
    assert_eq!(fs::read_to_string(home.path("work/a.txt")).unwrap(), "one\ntwo\n");
    assert!(!home.path("work/sub/b.txt").exists());
    git(&["apply", "../agent.patch"]);

    let copy = home.run(&["cp", "last:sub/b.txt", ".."], "").await;
    assert_eq!(copy.code, 0, "{}", copy.err);
    assert_eq!(fs::read_to_string(home.path("b.txt")).unwrap(), "new\n");
    let again = home.run(&["cp", "last:sub/b.txt", ".."], "").await;
    assert!(again.code == 1 && again.err.contains("--force"), "{}", again.err);
    let out = home.run(&["cp", "last:a.txt", "-"], "").await;
    assert_eq!((out.code, out.out.as_str()), (0, "one\n2\n"), "{}", out.err);
    let all = home.run(&["cp", "last:sub", "../copied"], "").await;
    assert_eq!(all.code, 0, "{}", all.err);
    assert_eq!(fs::read_to_string(home.path("copied/b.txt")).unwrap(), "new\n");
    let outside = home.run(&["cp", "last:../page.md", "-"], "").await;
    assert!(outside.code == 4 && outside.out.is_empty(), "{} {}", outside.code, outside.err);
    up.signal(Signal::SIGTERM);
    assert_eq!(up.ended().await, 0);
}

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
