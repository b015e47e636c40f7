//! opencode's own clients at the door, unmodified: its SDK for JavaScript, `opencode attach` in a terminal, and curl. On a
//! real opencode.

use std::{path::Path, process::Stdio, time::Duration};

use berth_tests::{Stack, opencode_program, sdk_modules, within};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::{Instant, sleep, timeout},
};

const SDK: &str = include_str!("../clients/sdk.mjs");

/// Bound on a client that is a program of its own, on a machine that does other things too.
const PROGRAM: Duration = Duration::from_secs(90);

async fn run(command: &mut Command, what: &str) -> String {
    let ended = timeout(PROGRAM, command.kill_on_drop(true).output()).await;
    assert!(ended.is_ok(), "{what} does not end");
    let output = ended.ok().and_then(Result::ok);
    assert!(output.is_some(), "{what} is needed for this test, and cannot be run");
    let output = output.expect("it was run");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {}: {error}", output.status);
    String::from_utf8(output.stdout).expect("a program's output is text")
}

#[tokio::test]
async fn the_sdk_for_javascript() {
    let stack = Stack::start().await;
    stack.opencode_pid().await;
    let folder = tempfile::tempdir().expect("a folder can be made");
    std::fs::write(folder.path().join("sdk.mjs"), SDK).expect("the program can be written");
    std::os::unix::fs::symlink(sdk_modules(), folder.path().join("node_modules")).expect("a link");
    let mut node = Command::new("node");
    node.arg("sdk.mjs")
        .current_dir(folder.path())
        .env("DOOR_URL", format!("http://{}", stack.door))
        .env("DOOR_DIRECTORY", &stack.work)
        .env("DOOR_PASSWORD", stack.door_password.expose_secret());
    let output = run(&mut node, "node").await;
    let seen: Value = serde_json::from_str(&output).expect("one line of JSON");
    let expected = json!({
        "text": "hello-from-the-model", "aborted": true, "roles": ["user", "assistant", "user", "assistant"],
        "lastError": "MessageAbortedError", "listed": true, "missing": 404, "own": ["berth.turn"],
    });
    assert_eq!(seen, expected);
    stack.stop().await;
}

#[tokio::test]
async fn curl_reads_the_events_as_they_come() {
    let stack = Stack::start().await;
    stack.opencode_pid().await;
    let mut curl = Command::new("curl");
    let user = format!("opencode:{}", stack.door_password.expose_secret());
    let url = format!("http://{}/global/event", stack.door);
    curl.args(["-sS", "-N", "--noproxy", "*", "-u", &user, &url]).stdout(Stdio::piped()).kill_on_drop(true);
    let mut curl = curl.spawn().expect("curl is needed for this test");
    let mut lines = BufReader::new(curl.stdout.take().expect("a pipe")).lines();
    let mut line = async || within("a line", lines.next_line()).await.expect("text").expect("no end");
    assert!(line().await.contains("server.connected"));
    let session = stack.session().await;
    stack.post(session.id, "@stub text:n=3,d=5").await;
    let mut ids = 0;
    loop {
        let line = line().await;
        ids += usize::from(line.starts_with("id: "));
        if line.starts_with("data: ") && line.contains("session.idle") {
            break;
        }
    }
    assert!(ids > 5, "{ids}");
    curl.kill().await.expect("curl ends");
    stack.stop().await;
}

/// A terminal with a program in it, in a tmux server of its own.
struct Terminal {
    socket: std::path::PathBuf,
}

impl Terminal {
    async fn tmux(&self, arguments: &[&str]) -> String {
        let mut tmux = Command::new("tmux");
        run(tmux.arg("-S").arg(&self.socket).args(["-f", "/dev/null"]).args(arguments), "tmux").await
    }

    async fn start(home: &Path, program: &Path, url: &str, password: &str) -> Self {
        let terminal = Self { socket: home.join("tmux") };
        let mut tmux = Command::new("tmux");
        tmux.arg("-S").arg(&terminal.socket).args([
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "160",
            "-y",
            "48",
        ]);
        tmux.arg(program).args(["attach", url]);
        // The terminal's program has a home of its own, leaves what it unpacks there, and asks nobody for anything.
        for name in ["CONFIG", "DATA", "STATE", "CACHE"] {
            tmux.env(format!("XDG_{name}_HOME"), home);
        }
        tmux.env("HOME", home).env("BUN_TMPDIR", home);
        for name in ["MODELS_FETCH", "AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS"] {
            tmux.env(format!("OPENCODE_DISABLE_{name}"), "1");
        }
        tmux.env("TERM", "xterm-256color").env("OPENCODE_SERVER_PASSWORD", password).current_dir(home);
        run(&mut tmux, "tmux").await;
        terminal
    }

    /// Waits until the screen shows something, and gives the screen.
    async fn shows(&self, what: &str) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]).await;
            if screen.contains(what) {
                return screen;
            }
            assert!(begun.elapsed() < PROGRAM, "{what:?} is not shown:\n{screen}");
            sleep(Duration::from_millis(200)).await;
        }
    }
}

#[tokio::test]
async fn opencode_attach_in_a_terminal() {
    let stack = Stack::start().await;
    stack.opencode_pid().await;
    let home = tempfile::tempdir().expect("a folder can be made");
    let url = format!("http://{}", stack.door);
    let terminal =
        Terminal::start(home.path(), &opencode_program(), &url, stack.door_password.expose_secret()).await;
    // The empty prompt, with the model that the sandbox is configured for.
    terminal.shows("Ask anything").await;
    terminal.tmux(&["send-keys", "-l", "scenario: text"]).await;
    terminal.shows("scenario: text").await;
    terminal.tmux(&["send-keys", "Enter"]).await;
    let screen = terminal.shows("and uses no tool.").await;
    assert!(screen.contains("This answer comes in four pieces"), "{screen}");
    terminal.tmux(&["kill-server"]).await;
    stack.stop().await;
}
