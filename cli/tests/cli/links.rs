//! A working directory that is reached through a symbolic link, on a real opencode: everything is the same as by its
//! real name.

use std::{fs, os::unix::fs::symlink, time::Duration};

use nix::sys::signal::Signal;
use serde_json::Value;
use tokio::{process::Command, time::timeout};

use crate::{
    home::{Home, Up},
    process::{Finished, LIMIT, finish},
    tmux::Tmux,
};

/// Real name `real/repo`, which `link` leads to.
struct Linked {
    home: Home,
    link: String,
    real: String,
}

impl Linked {
    fn new() -> Self {
        let home = Home::new();
        fs::create_dir_all(home.path("real/repo")).unwrap();
        symlink(home.path("real"), home.path("link")).unwrap();
        let path = |name: &str| home.path(name).to_str().unwrap().to_owned();
        let (link, real) = (path("link/repo"), path("real/repo"));
        let git = |arguments: &[&str]| {
            let mut command = std::process::Command::new("git");
            command.arg("-C").arg(&real).args(["-c", "user.name=x", "-c", "user.email=x@y"]).args(arguments);
            assert!(command.output().unwrap().status.success(), "git {arguments:?}");
        };
        git(&["init", "--quiet"]);
        fs::write(home.path("real/repo/a.txt"), "one\n").unwrap();
        git(&["add", "."]);
        git(&["commit", "--quiet", "-m", "a"]);
        Self { home, link, real }
    }

    /// In the directory by its link, as a shell does it that came there by `cd`.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.home.command(arguments);
        command.current_dir(&self.link).env("PWD", &self.link);
        command
    }

    async fn run(&self, arguments: &[&str]) -> Finished {
        finish(self.command(arguments), "").await
    }

    async fn listed(&self, directory: &str) -> usize {
        let list = self.run(&["sessions", "list", "--json", "--directory", directory]).await;
        assert_eq!(list.code, 0, "{}", list.err);
        list.out.lines().count()
    }
}

#[tokio::test]
async fn a_directory_through_a_link_works_by_both_names() {
    let linked = Linked::new();
    for given in [linked.link.clone(), format!("{}/", linked.link)] {
        let mut up = Up::start(&linked.home, &[&given]).await;
        let status: Value = serde_json::from_str(&linked.run(&["status", "--json"]).await.out).unwrap();
        assert_eq!(status["sandboxes"][0]["directory"], linked.real.as_str());

        // A file inside, named by the link, is not outside: nothing but what the script asks for needs a permission.
        let file = format!("{}/new.txt", linked.link);
        let _ = fs::remove_file(&file);
        let write =
            format!("@stub tool:write:{{\"filePath\":\"{file}\",\"content\":\"two\\n\"}} >> say:done");
        let run = linked.run(&["run", "--deny", &write]).await;
        assert_eq!((run.code, run.out.as_str()), (0, "done\n"), "{}", run.err);
        assert!(!run.err.contains("external_directory"), "{}", run.err);
        assert_eq!(fs::read_to_string(&file).unwrap(), "two\n");

        // A permission is asked for, and its answer arrives.
        let shell = "@stub tool:bash:{\"command\":\"pwd -P > where\",\"description\":\"where\"} >> say:asked";
        let run = linked.run(&["run", "--allow", "--session", "last", shell]).await;
        assert_eq!((run.code, run.out.as_str()), (0, "asked\n"), "{}", run.err);
        assert!(run.err.contains("? bash: "), "{}", run.err);
        assert_eq!(fs::read_to_string(linked.home.path("real/repo/where")).unwrap().trim(), linked.real);

        up.signal(Signal::SIGTERM);
        assert_eq!(up.ended().await, 0);
    }
}

#[tokio::test]
async fn sessions_of_a_directory_are_found_by_link_and_by_real_name() {
    let linked = Linked::new();
    let mut up = Up::start(&linked.home, &[&linked.link]).await;
    let run = linked.run(&["run", "@stub say:here"]).await;
    assert_eq!(run.code, 0, "{}", run.err);
    let slash = format!("{}/", linked.link);
    for name in [".", &linked.link, &linked.real, &slash] {
        assert_eq!(linked.listed(name).await, 1, "{name}");
    }
    assert_eq!(linked.listed("/").await, 0);
    // What the session changed is told by paths from its directory.
    let edit = format!(
        "@stub tool:write:{{\"filePath\":\"{}/b.txt\",\"content\":\"new\\n\"}} >> say:done",
        linked.link
    );
    let run = linked.run(&["run", "--allow", "--session", "last", &edit]).await;
    assert_eq!(run.code, 0, "{}", run.err);
    let told = async {
        // It is known some moments after the turn's end.
        while !linked.run(&["diff", "--stat"]).await.out.contains(" b.txt | ") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(LIMIT, told).await.expect("the change is told in time, by its path in the directory");
    up.signal(Signal::SIGTERM);
    assert_eq!(up.ended().await, 0);
}

#[tokio::test]
async fn cl_1_a_conversation_in_a_directory_through_a_link() {
    let linked = Linked::new();
    let mut up = Up::start(&linked.home, &[&linked.link]).await;
    let tmux = Tmux::start(&linked.command(&["chat"]), 100, 30);
    tmux.sees("/help").await;

    // A file inside, by the link: nobody is asked.
    let file = format!("{}/typed.txt", linked.link);
    tmux.enters(&format!(
        "@stub tool:write:{{\"filePath\":\"{file}\",\"content\":\"two\\n\"}} >> say:written"
    ));
    tmux.wait_for_count("✓ done", 1).await;
    assert!(!tmux.text().contains("external"), "{}", tmux.text());
    assert_eq!(fs::read_to_string(linked.home.path("real/repo/typed.txt")).unwrap(), "two\n");

    tmux.enters("@stub tool:bash:{\"command\":\"pwd -P > where\",\"description\":\"where\"} >> say:asked");
    tmux.sees("[y] once").await;
    tmux.press(&["y"]);
    tmux.wait_for_count("✓ done", 2).await;
    assert_eq!(fs::read_to_string(linked.home.path("real/repo/where")).unwrap().trim(), linked.real);

    // What it changed, and this very session, are found.
    tmux.enters("/diff");
    tmux.wait_for("typed.txt").await;
    tmux.enters("/sessions");
    tmux.sees("› ").await;
    tmux.press(&["C-c", "C-d"]);
    assert_eq!(tmux.code().await, 0);
    for name in [&linked.link, &linked.real] {
        assert_eq!(linked.listed(name).await, 1, "{name}");
    }
    up.signal(Signal::SIGTERM);
    assert_eq!(up.ended().await, 0);
}
