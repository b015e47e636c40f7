//! `berth up --scripted`, and `berth run` and `berth chat` against it: the whole path, on a real opencode.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::process::{Finished, finish};

/// Starting opencode takes 2 to 6 s, on a busy machine several times that.
const START_LIMIT: Duration = Duration::from_secs(90);
/// The server drains, opencode is ended: seconds.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// The pinned opencode; a failure says how to get it.
fn opencode() -> PathBuf {
    let cache = std::env::vars_os().find(|(name, _)| name == "BERTH_CACHE").map(|(_, value)| value.into());
    let home = std::env::vars_os().find(|(name, _)| name == "HOME").map(|(_, value)| PathBuf::from(value));
    let cache: PathBuf = cache.or_else(|| Some(home?.join(".cache/berth"))).unwrap();
    let given = std::env::vars_os().find(|(name, _)| name == "BERTH_OPENCODE").map(|(_, value)| value.into());
    let choice = match given {
        Some(path) => berth_cli::up::OpencodeChoice::Given(path),
        None => berth_cli::up::OpencodeChoice::usual(&cache, None),
    };
    choice.find().unwrap_or_else(|error| panic!("{error}"))
}

/// A home directory of its own, with a workspace in it.
struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn state(&self) -> PathBuf {
        self.path(".local/state/berth")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_berth"));
        command.env_clear().env("HOME", self.directory.path()).env("PATH", "/usr/bin:/bin");
        command.env("BERTH_OPENCODE", opencode());
        command.args(arguments).current_dir(self.path("work")).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    async fn run(&self, arguments: &[&str], input: &str) -> Finished {
        finish(self.command(arguments), input).await
    }
}

/// A running `berth up`.
struct Up {
    child: Child,
    _out: Lines<BufReader<ChildStdout>>,
}

impl Up {
    async fn start(home: &Home, arguments: &[&str]) -> Self {
        let mut command = home.command(&["up", "--scripted", "--port", "0"]);
        let mut child = command.args(arguments).stderr(Stdio::inherit()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap()).lines();
        let note = home.state().join("server.json");
        let ready = async {
            while !note.exists() {
                assert!(child.try_wait().unwrap().is_none(), "berth up ended before it was ready");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(START_LIMIT, ready).await.expect("berth up is ready in time");
        Self { child, _out: out }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id().unwrap()).unwrap()), signal).unwrap();
    }

    async fn ended(&mut self) -> i32 {
        let status = timeout(STOP_LIMIT, self.child.wait()).await.expect("berth up ends in time").unwrap();
        status.code().unwrap()
    }
}

impl Drop for Up {
    /// A test that failed must not leave opencode behind: the program gets the time to end it.
    fn drop(&mut self) {
        if self.child.id().is_none() {
            return;
        }
        self.signal(Signal::SIGTERM);
        let until = std::time::Instant::now() + STOP_LIMIT;
        while matches!(self.child.try_wait(), Ok(None)) && std::time::Instant::now() < until {
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

/// Processes whose environment leads into this directory: opencode, and whatever its tools started.
fn processes_of(directory: &Path) -> Vec<String> {
    let needle = directory.to_str().unwrap().as_bytes();
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let found = entries.filter_map(|entry| {
        let environment = std::fs::read(entry.path().join("environ")).ok()?;
        let ours = environment.windows(needle.len()).any(|window| window == needle);
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        ours.then(|| String::from_utf8_lossy(&command).replace('\0', " "))
    });
    found.collect()
}

#[tokio::test]
async fn one_prompt_the_whole_way_and_nothing_left_behind() {
    let home = Home::new();
    let mut up = Up::start(&home, &[]).await;
    assert!(!processes_of(home.directory.path()).is_empty(), "opencode runs, and is found");

    let demo = home.run(&["run", "--allow", "scenario: demo"], "").await;
    assert_eq!(demo.code, 0, "{}", demo.err);
    assert!(!demo.out.trim().is_empty(), "the agent says something");
    for sign in ["? bash: ", "✓ ", "✓ succeeded"] {
        assert!(demo.err.contains(sign), "{sign:?} in {}", demo.err);
    }
    let files: Vec<_> = std::fs::read_dir(home.path("work")).unwrap().filter_map(Result::ok).collect();
    assert!(!files.is_empty(), "the agent wrote a file: {}", demo.err);

    let refused = home.run(&["run", "--deny", "scenario: permission"], "").await;
    assert_eq!(refused.code, 4, "{}", refused.err);

    let failed = home.run(&["run", "scenario: error-400"], "").await;
    assert_eq!(failed.code, 1, "{}", failed.err);

    let chat = home.run(&["chat"], "@stub say:first\n@stub say:second\n").await;
    assert_eq!((chat.code, chat.out.as_str()), (0, "first\nsecond\n"), "{}", chat.err);

    let second = home.run(&["up", "--scripted", "--port", "0"], "").await;
    assert_eq!(second.code, 4, "{}", second.err);
    let first = format!("process {}, at http://127.0.0.1:", up.child.id().unwrap());
    assert!(second.err.contains(&first), "{}", second.err);

    up.signal(Signal::SIGTERM);
    assert_eq!(up.ended().await, 0);
    assert_eq!(processes_of(home.directory.path()), Vec::<String>::new());
    assert!(!home.state().join("server.json").exists());
    let after = home.run(&["run", "x"], "").await;
    assert_eq!(after.code, 5, "{}", after.err);
}

#[tokio::test]
async fn sandboxes_are_apart_and_sessions_outlive_the_server() {
    let home = Home::new();
    std::fs::create_dir(home.path("api")).unwrap();
    std::fs::create_dir(home.path("web")).unwrap();
    let (api, web) =
        (format!("api={}", home.path("api").display()), format!("web={}", home.path("web").display()));
    let arguments = ["--sandbox", &api, "--sandbox", &web];
    let mut up = Up::start(&home, &arguments).await;
    let write = "@stub tool:bash:{\"command\":\"pwd > where\",\"description\":\"where\"} >> say:ok";
    let run = home.run(&["run", "--allow", "--sandbox", "web", write], "").await;
    assert_eq!((run.code, run.out.as_str()), (0, "ok\n"), "{}", run.err);
    assert!(home.path("web/where").exists() && !home.path("api/where").exists());
    let session = run.err.split("--session ").nth(1).unwrap().split(' ').next().unwrap().to_owned();

    up.signal(Signal::SIGINT);
    assert_eq!(up.ended().await, 0);
    let mut up = Up::start(&home, &arguments).await;
    let chat = home.run(&["chat", "--session", &session], "@stub say:again\n").await;
    assert_eq!((chat.code, chat.out.as_str()), (0, "again\n"), "{}", chat.err);
    assert!(chat.err.contains("› @stub tool:bash"), "the history is there: {}", chat.err);
    up.signal(Signal::SIGTERM);
    assert_eq!(up.ended().await, 0);
}

#[tokio::test]
async fn ctrl_c_reaches_the_agents_tool_and_the_next_prompt_is_clean() {
    let home = Home::new();
    let mut up = Up::start(&home, &[]).await;
    let slow =
        "@stub tool:bash:{\"command\":\"touch started; exec sleep 4711\",\"description\":\"wait\"} >> say:no";
    let child = home.command(&["run", "--allow", slow]).spawn().unwrap();
    let started = async {
        while !home.path("work/started").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(START_LIMIT, started).await.expect("the tool runs");
    crate::process::interrupt(&child);
    let done = crate::process::finished(child).await;
    assert_eq!(done.code, 3, "{}", done.err);
    assert!(done.err.contains("■ cancelled"), "{}", done.err);
    let left = processes_of(home.directory.path()).into_iter().filter(|command| command.contains("4711"));
    assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
    let next = home.run(&["run", "@stub say:clean"], "").await;
    assert_eq!((next.code, next.out.as_str()), (0, "clean\n"), "{}", next.err);
    up.signal(Signal::SIGTERM);
    assert_eq!(up.ended().await, 0);
}

#[tokio::test]
async fn without_opencode_the_error_says_how_to_get_it() {
    let home = Home::new();
    let mut command = home.command(&["up", "--scripted"]);
    command.env_remove("BERTH_OPENCODE").env("PATH", "/nowhere");
    let done = finish(command, "").await;
    assert_eq!(done.code, 1);
    assert!(done.err.contains("make opencode") && done.err.contains("npm install"), "{}", done.err);
    assert!(!home.state().exists(), "nothing was begun");
}
