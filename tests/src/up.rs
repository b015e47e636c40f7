//! `berth up` as a process of its own.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
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
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
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
        let file = self.server_file().expect("server.json is there");
        let url = file["url"].as_str().expect("server.json has a url");
        let token = std::fs::read_to_string(self.data().join("token")).expect("the token is there");
        BerthClient::new(url, SecretString::from(token.trim())).expect("a plain URL")
    }

    /// Kills it with SIGKILL, and starts another one on the same data.
    pub async fn kill_and_restart(mut self) -> Self {
        self.child.kill().await.expect("berth up can be killed");
        Self::start_in(self.folder).await
    }

    /// Ends it with SIGTERM; checks its exit code and that no process is left.
    pub async fn stop(mut self) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status().await.expect("kill runs");
        assert!(sent.success());
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
