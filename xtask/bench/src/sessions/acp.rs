//! `opencode acp`, spawned for one message: what a program does that keeps no server. IO.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::pod::{Programs, rig::environment};

/// Longest wait for a line.
const LINE_BOUND: Duration = Duration::from_mins(1);

/// How it is spawned.
#[derive(Debug)]
pub(super) struct Acp {
    program: PathBuf,
    home: PathBuf,
    work: PathBuf,
    environment: Vec<(&'static str, String)>,
}

impl Acp {
    /// With a home of its own, which stays for the next message, and this configuration.
    pub(super) fn new(programs: &Programs, root: &Path, configuration: &str) -> anyhow::Result<Self> {
        let home = root.join("acp");
        std::fs::create_dir(&home)?;
        let mut environment = environment(&home, configuration.to_owned());
        environment.push(("XDG_CONFIG_HOME", programs.config_home.display().to_string()));
        Ok(Self { program: programs.opencode.clone(), work: root.join("work"), home, environment })
    }

    /// From its start to the first text of the answer, in milliseconds. It goes on to the answer's end before it is ended.
    pub(super) async fn first_delta(&self, prompt: &str) -> anyhow::Result<f64> {
        let begun = Instant::now();
        let mut command = Command::new(&self.program);
        command.arg("acp").current_dir(&self.home).env_clear();
        command.envs(self.environment.iter().map(|(name, value)| (*name, value.as_str())));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| self.program.display().to_string())?;
        let mut agent = Agent {
            input: child.stdin.take().context("its standard input")?,
            lines: BufReader::new(child.stdout.take().context("its standard output")?).lines(),
            first_text: None,
        };
        agent.call(1, "initialize", json!({ "protocolVersion": 1, "clientCapabilities": {} })).await?;
        let session = agent.call(2, "session/new", json!({ "cwd": self.work, "mcpServers": [] })).await?;
        let prompt = json!({
            "sessionId": session["sessionId"], "prompt": [{ "type": "text", "text": prompt }],
        });
        agent.call(3, "session/prompt", prompt).await?;
        child.kill().await?;
        let first_text = agent.first_text.context("the answer has no text")?;
        Ok(first_text.duration_since(begun).as_secs_f64() * 1e3)
    }
}

struct Agent {
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    first_text: Option<Instant>,
}

impl Agent {
    /// Calls a method, and gives its result.
    async fn call(&mut self, id: u64, method: &str, params: Value) -> anyhow::Result<Value> {
        let call = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        self.input.write_all(format!("{call}\n").as_bytes()).await?;
        loop {
            let line = timeout(LINE_BOUND, self.lines.next_line()).await.context("no line in time")?;
            let line = line?.with_context(|| format!("it ended before the result of {method}"))?;
            let message: Value = serde_json::from_str(&line).with_context(|| line.clone())?;
            if message["params"]["update"]["sessionUpdate"] == "agent_message_chunk" {
                self.first_text.get_or_insert_with(Instant::now);
            }
            if message["id"] == id {
                match message.get("result") {
                    Some(result) => return Ok(result.clone()),
                    None => bail!("{method} failed: {line}"),
                }
            }
        }
    }
}
