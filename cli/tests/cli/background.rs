//! `berth up --detach`, `berth status` and `berth down`, on a real opencode.

use std::{fs, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    home::{Home, START_LIMIT, STOP_LIMIT, Up, processes_of},
    process::{Finished, error_lines, finished, wait_for},
};

const DETACH: [&str; 5] = ["up", "--detach", "--scripted", "--port", "0"];

/// A home in which something may run in the background; a test that failed leaves nothing behind.
struct Background(Home);

impl Background {
    fn new() -> Self {
        Self(Home::new())
    }

    async fn run(&self, arguments: &[&str]) -> Finished {
        // Starting takes longer than anything else.
        let child = self.0.command(arguments).spawn().unwrap();
        timeout(START_LIMIT, finished(child)).await.expect("the program ends")
    }

    fn note(&self) -> Value {
        serde_json::from_slice(&fs::read(self.0.state().join("server.json")).unwrap()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        let pid = self.note()["pid"].as_i64().unwrap();
        kill(Pid::from_raw(i32::try_from(pid).unwrap()), signal).unwrap();
    }

    async fn gone(&self) {
        let gone = async {
            while !processes_of(self.0.directory.path()).is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(STOP_LIMIT, gone).await.expect("nothing is left");
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let Ok(text) = fs::read(self.0.state().join("lock")) else { return };
        let pid = serde_json::from_slice::<Value>(&text).ok().and_then(|note| note["pid"].as_i64());
        if let Some(pid) = pid.and_then(|pid| i32::try_from(pid).ok())
            && processes_of(self.0.directory.path()).iter().any(|command| command.contains("--detached"))
        {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }
}

#[tokio::test]
async fn it_starts_in_the_background_is_seen_and_ends() {
    let home = Background::new();
    let nothing = home.run(&["status"]).await;
    assert_eq!(nothing.code, 5, "{}", nothing.err);
    assert!(nothing.err.contains("berth up"), "{}", nothing.err);

    let up = home.run(&DETACH).await;
    assert_eq!(up.code, 0, "{}", up.err);
    let note = home.note();
    let (url, log) = (note["url"].as_str().unwrap(), note["log"].as_str().unwrap());
    for told in [url, log, &format!("process {}", note["pid"]), "`berth down` ends it", "berth run"] {
        assert!(up.err.contains(told), "{told:?} in {}", up.err);
    }
    assert!(fs::read_to_string(log).unwrap().contains("Berth is up at"), "the log begins");

    let second = home.run(&DETACH).await;
    assert_eq!(second.code, 4, "{}", second.err);
    assert!(second.err.contains(url) && second.err.contains("berth down"), "{}", second.err);

    let run = home.run(&["run", "@stub say:hello"]).await;
    assert_eq!((run.code, run.out.as_str()), (0, "hello\n"), "{}", run.err);
    let status = home.run(&["status"]).await;
    assert_eq!(status.code, 0, "{}", status.err);
    for told in [url, "local/default  ready", "idle", log] {
        assert!(status.out.contains(told), "{told:?} in {}", status.out);
    }
    let status: Value = serde_json::from_str(&home.run(&["status", "--json"]).await.out).unwrap();
    assert_eq!(status["pid"], note["pid"]);
    assert_eq!(status["sandboxes"][0]["phase"], "ready");
    assert_eq!(status["sandboxes"][0]["open_turns"], 0);

    let down = home.run(&["down"]).await;
    assert_eq!(down.code, 0, "{}", down.err);
    assert!(down.err.contains(&format!("process {} ended after", note["pid"])), "{}", down.err);
    home.gone().await;
    let again = home.run(&["down"]).await;
    assert_eq!((again.code, again.err.contains("nothing is up")), (0, true), "{}", again.err);
}

#[tokio::test]
async fn what_does_not_start_says_why() {
    let home = Background::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let up = home.run(&["up", "--detach", "--scripted", "--port", &port]).await;
    assert_eq!(up.code, 1, "{}", up.err);
    assert!(up.err.contains("exit code 2") && up.err.contains(&format!("{port} on 127.0.0.1")), "{}", up.err);
    let missing = home.run(&["up", "--detach", "--opencode", "/nowhere"]).await;
    assert_eq!(missing.code, 2, "{}", missing.err);
    home.gone().await;
}

#[tokio::test]
async fn two_that_start_at_once_leave_one() {
    let home = Background::new();
    let (first, second) = tokio::join!(home.run(&DETACH), home.run(&DETACH));
    let mut codes = [first.code, second.code];
    codes.sort_unstable();
    assert_eq!(codes, [0, 4], "{}\n{}", first.err, second.err);
    assert_eq!(home.run(&["down"]).await.code, 0);
    home.gone().await;
}

#[tokio::test]
async fn one_that_does_not_listen_is_killed_and_the_next_one_starts() {
    let home = Background::new();
    assert_eq!(home.run(&DETACH).await.code, 0);
    let pid = home.note()["pid"].clone();
    home.signal(Signal::SIGSTOP);
    let down = home.run(&["down", "--timeout", "1"]).await;
    assert_eq!(down.code, 0, "{}", down.err);
    assert!(down.err.contains(&format!("process {pid} was killed after")), "{}", down.err);
    home.gone().await;
    let status = home.run(&["status"]).await;
    assert_eq!(status.code, 5, "{}", status.err);
    assert_eq!(home.run(&DETACH).await.code, 0);
    assert_ne!(home.note()["pid"], pid);
    assert_eq!(home.run(&["down"]).await.code, 0);
    home.gone().await;
}

#[tokio::test]
async fn down_ends_one_in_another_terminal_too() {
    let home = Background::new();
    let mut up = Up::start(&home.0, &[]).await;
    let down = home.run(&["down"]).await;
    assert_eq!(down.code, 0, "{}", down.err);
    assert_eq!(up.ended().await, 0);
}

#[tokio::test]
async fn a_client_follows_a_server_that_comes_back_at_another_port() {
    let home = Background::new();
    assert_eq!(home.run(&DETACH).await.code, 0);
    let first = home.note()["url"].clone();
    // It is told what to wait for only when it has begun.
    let prompt =
        "@stub tool:bash:{\"command\":\"touch begun; sleep 600\",\"description\":\"wait\"} >> say:no";
    let mut running = home.0.command(&["run", "--allow", prompt]).spawn().unwrap();
    let mut lines = error_lines(&mut running);
    let begun = async {
        while !home.0.path("work/begun").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(START_LIMIT, begun).await.expect("the tool runs");
    assert_eq!(home.run(&["down"]).await.code, 0);
    wait_for(&mut lines, "the server cannot be reached; waiting up to 10 min 00 s for it to come back").await;
    assert_eq!(home.run(&DETACH).await.code, 0);
    assert_ne!(home.note()["url"], first);
    // The end of the turn is told.
    wait_for(&mut lines, "✗ failed").await;
    let done = timeout(START_LIMIT, finished(running)).await.expect("the client comes to an end");
    assert_eq!(done.code, 1);
    assert_eq!(home.run(&["down"]).await.code, 0);
    home.gone().await;
}
