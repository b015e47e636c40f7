//! Files beneath the sandbox's directory, and nothing else.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use berth_serve::ServeState;
use berth_wire::problem::{Problem, ProblemType};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::watch;

use crate::rig::{RunningDoor, within};

struct Files {
    door: RunningDoor,
    work: PathBuf,
    _serve: watch::Sender<ServeState>,
    _folder: TempDir,
}

impl Files {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().canonicalize().unwrap().join("work");
        std::fs::create_dir_all(work.join("sub/.git")).unwrap();
        std::fs::write(folder.path().join("secret"), "s").unwrap();
        let (sender, serve) = watch::channel(ServeState::new(PathBuf::from("/work")));
        let root = work.clone();
        let door = RunningDoor::start(serve, |config| config.files = Some(root)).await;
        Self { door, work, _serve: sender, _folder: folder }
    }

    async fn ask(&self, route: &str, directory: &Path, path: &str) -> reqwest::Response {
        let directory = directory.to_str().unwrap();
        let query = [("directory", directory), ("path", path)];
        within("an answer", self.door.get(route).query(&query).send()).await.unwrap()
    }

    async fn content(&self, path: &str) -> reqwest::Response {
        self.ask("/berth/files/content", &self.work, path).await
    }

    async fn refusal(&self, path: &str) -> Problem {
        let answer = self.content(path).await;
        assert!(!answer.status().is_success(), "{path:?}");
        answer.json().await.unwrap()
    }

    async fn list(&self, path: &str) -> Vec<Value> {
        let answer = self.ask("/berth/files", &self.work, path).await;
        assert_eq!(answer.status(), 200, "{path:?}");
        let page: Value = answer.json().await.unwrap();
        page["items"].as_array().unwrap().clone()
    }
}

#[tokio::test]
async fn files_come_as_they_are() {
    let files = Files::new().await;
    let odd: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    for (name, bytes, kind) in [
        ("a.txt", &b"  text\r\n\n"[..], "text/plain"),
        ("latin.txt", b"\xe9\n", "text/plain"),
        ("empty", b"", "application/octet-stream"),
        ("odd.png", &odd, "image/png"),
        ("sp ace & %41 \u{e4}.json", b"{}", "application/json"),
    ] {
        std::fs::write(files.work.join(name), bytes).unwrap();
        let answer = files.content(name).await;
        assert_eq!(answer.status(), 200, "{name}");
        assert_eq!(answer.headers()["content-type"], kind, "{name}");
        assert_eq!(answer.headers()["content-length"], bytes.len().to_string().as_str());
        assert!(answer.headers().contains_key("last-modified"));
        assert_eq!(answer.bytes().await.unwrap(), bytes, "{name}");
    }
    let below = files.ask("/berth/files/content", &files.work.join("sub"), "../a.txt").await;
    assert_eq!(below.status(), 422, "the directory that was named is the bound");
}

#[tokio::test]
async fn no_path_leads_out_and_none_blocks() {
    let files = Files::new().await;
    let work = &files.work;
    symlink("/etc/passwd", work.join("absolute")).unwrap();
    symlink("../secret", work.join("relative")).unwrap();
    symlink("..", work.join("sub/up")).unwrap();
    symlink("..", work.join("out")).unwrap();
    symlink("loop", work.join("loop")).unwrap();
    std::fs::write(work.join("a.txt"), "a").unwrap();
    symlink("../a.txt", work.join("sub/inside")).unwrap();
    nix::unistd::mkfifo(&work.join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(files.content("sub/inside").await.text().await.unwrap(), "a", "a link that stays beneath");
    assert_eq!(files.content("sub/up/a.txt").await.text().await.unwrap(), "a");
    for path in [
        "absolute",
        "relative",
        "out/secret",
        "../secret",
        "/etc/passwd",
        "sub",
        "pipe",
        "loop",
        "",
        "a.txt/x",
    ] {
        let refused = files.refusal(path).await;
        assert_eq!(refused.problem_type(), Some(ProblemType::Invalid), "{path:?}: {refused}");
        assert_eq!(refused.extensions["field"], "path");
    }
    let missing = files.refusal("nope").await;
    assert_eq!(missing.problem_type(), Some(ProblemType::NotFound));
    assert_eq!(missing.extensions["object"], "file");
    for directory in ["/", "/etc", work.parent().unwrap().to_str().unwrap()] {
        let answer = files.ask("/berth/files/content", Path::new(directory), "secret").await;
        assert_eq!(answer.status(), 400, "{directory}");
    }
    let names: Vec<_> = files.list("").await.iter().map(|entry| entry["name"].clone()).collect();
    assert_eq!(names, ["a.txt", "sub"], "what leads out, and what is no file, is not listed");
}

#[tokio::test]
async fn directories_are_listed_by_name() {
    let files = Files::new().await;
    for name in ["b", "a"] {
        std::fs::write(files.work.join("sub").join(name), "12").unwrap();
    }
    let listed = files.list("sub").await;
    let seen: Vec<_> = listed
        .iter()
        .map(|entry| {
            let text = |name: &str| entry[name].as_str().unwrap();
            (text("path"), text("kind"), entry["size"].as_u64(), entry["ignored"].as_bool().unwrap())
        })
        .collect();
    assert_eq!(
        seen,
        [
            ("sub/.git", "directory", None, true),
            ("sub/a", "file", Some(2), false),
            ("sub/b", "file", Some(2), false),
        ]
    );
    let anonymous = reqwest::get(files.door.url("/berth/files")).await.unwrap();
    assert_eq!(anonymous.status(), 401);
    let (_sender, serve) = watch::channel(ServeState::new(PathBuf::from("/work")));
    let without = RunningDoor::start(serve, |_| {}).await;
    assert_eq!(without.get("/berth/files").send().await.unwrap().status(), 404);
}
