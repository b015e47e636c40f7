//! `berth up --scripted`, and `berth run` and `berth chat` against it: the whole path, on a real opencode.

use std::time::Duration;

use nix::sys::signal::Signal;
use tokio::time::timeout;

use crate::{
    home::{Home, START_LIMIT, Up, processes_of},
    process::finish,
};

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
