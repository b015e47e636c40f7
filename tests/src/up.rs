//! `berth up` as a process of its own.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use berth_client::BerthClient;
use secrecy::SecretString;
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{
    programs::berth_program,
    stack::processes_in,
    wait::{BOUND, within},
};

/// A `berth up --scripted`, with a data folder that outlives it.
#[derive(Debug)]
pub struct UpProcess {
    child: Child,
    folder: TempDir,
}

impl UpProcess {
    /// Starts it in a new folder, and waits until it is ready.
    pub async fn start() -> Self {
        Self::start_in(tempfile::tempdir().expect("a folder can be made")).await
    }

    async fn start_in(folder: TempDir) -> Self {
        let work = folder.path().join("work");
        std::fs::create_dir_all(&work).expect("a folder can be made");
        let child = Command::new(berth_program())
            .args(["up", "--scripted", "--port", "0", "--data"])
            .arg(folder.path().join("data"))
            .arg(&work)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("berth starts");
        let up = Self { child, folder };
        within("berth up to be ready", async {
            while up.server_pid() != up.child.id() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        })
        .await;
        up
    }

    fn server_file(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&std::fs::read(self.data().join("server.json")).ok()?).ok()
    }

    fn server_pid(&self) -> Option<u32> {
        self.server_file()?["pid"].as_u64()?.try_into().ok()
    }

    /// The data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The sandbox's working directory.
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("berth up runs")
    }

    /// A client of it.
    pub fn client(&self) -> BerthClient {
        let (url, token) = self.address();
        BerthClient::new(&url, SecretString::from(token)).expect("a plain URL")
    }

    /// Base address and token, for programs that are not ours.
    pub fn address(&self) -> (String, String) {
        let file = self.server_file().expect("server.json is there");
        let token = std::fs::read_to_string(self.data().join("token")).expect("the token is there");
        (file["url"].as_str().expect("server.json has a url").to_owned(), token.trim().to_owned())
    }

    /// What the server counts, as text.
    pub async fn metrics(&self) -> String {
        let (url, _) = self.address();
        let answer = reqwest::get(format!("{url}/metrics")).await.expect("the server answers");
        answer.text().await.expect("text")
    }

    /// Kills it with SIGKILL, and starts another one on the same data.
    pub async fn kill_and_restart(mut self) -> Self {
        self.child.kill().await.expect("berth up can be killed");
        Self::start_in(self.folder).await
    }

    async fn terminate(&self) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().await.expect("kill runs");
        assert!(sent.success());
    }

    /// Ends it with SIGTERM, and does not wait for what it does then: the time from the second one to its end.
    pub async fn stop_twice(mut self) -> Duration {
        self.terminate().await;
        let begun = Instant::now();
        while self.child.try_wait().expect("it can be waited for").is_none() {
            assert!(begun.elapsed() < BOUND, "it does not end");
            self.terminate().await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        begun.elapsed()
    }

    /// Ends it with SIGTERM; checks its exit code and that no process is left.
    pub async fn stop(mut self) {
        self.terminate().await;
        let status = tokio::time::timeout(BOUND, self.child.wait()).await.expect("it ends in time");
        assert_eq!(status.expect("it ends").code(), Some(0));
        let left = self.processes();
        assert!(left.is_empty(), "processes are left: {left:?}");
    }

    /// Processes that work in its folder.
    pub fn processes(&self) -> Vec<u32> {
        processes_in(Path::new(self.folder.path()))
    }
}
