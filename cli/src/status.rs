//! `berth status`: what is up, and how it stands. Does IO.

use std::{fmt::Write as _, path::PathBuf};

use berth_client::BerthClient;
use berth_wire::api::{Sandbox, SandboxPhase};
use jiff::Timestamp;
use serde::Serialize;

use crate::{
    connect::{self, ServerChoice},
    error::{CliError, Exit},
    output::Shape,
    printer::Printer,
    render::Tone,
    sessions,
    state::{Holder, ServerNote},
    table,
    text::ago,
};

/// `berth status`, checked.
#[derive(Debug, Clone)]
pub struct StatusConfig {
    /// The server.
    pub server: ServerChoice,
    /// One JSON object instead of text.
    pub json: bool,
    /// The output streams.
    pub shape: Shape,
}

/// What is told.
#[derive(Debug, Serialize)]
struct Status {
    /// Base address of the server.
    url: String,
    /// The process of local mode; absent for another server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
    /// When that was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
    /// Where it logs to, when it runs in the background.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<PathBuf>,
    /// Data directory of local mode.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<PathBuf>,
    sandboxes: Vec<SandboxStatus>,
}

#[derive(Debug, Serialize)]
struct SandboxStatus {
    #[serde(flatten)]
    sandbox: Sandbox,
    /// Sessions that have something to do.
    busy_sessions: usize,
    /// Turns that have not ended.
    open_turns: usize,
}

/// Shows it. Nothing up is an error, with its own exit code.
pub async fn status(config: StatusConfig) -> Result<Exit, CliError> {
    let StatusConfig { server, json, shape } = config;
    let client = connect::client(&server)?;
    let sandboxes = sandboxes(&client).await?;
    let url = client.base_url().trim_end_matches('/').to_owned();
    let local = local(&server, &url);
    let data = local.is_some().then(|| server.state.root().to_owned());
    let (pid, since, log) = local.map_or((None, None, None), |note| (Some(note.pid), note.since, note.log));
    let status = Status { url, pid, since, log, data, sandboxes };
    show(&status, json, shape).map_err(CliError::Output)?;
    Ok(Exit::Succeeded)
}

/// The process of local mode, if it is that server.
fn local(server: &ServerChoice, url: &str) -> Option<ServerNote> {
    match server.state.holder() {
        Ok(Holder::Known(note)) if note.url.trim_end_matches('/') == url => Some(note),
        _ => None,
    }
}

async fn sandboxes(client: &BerthClient) -> Result<Vec<SandboxStatus>, CliError> {
    let mut found = Vec::new();
    for sandbox in client.list_sandboxes().await? {
        let busy = sessions::busy(client, &sandbox.namespace, &sandbox.name).await?;
        let (busy_sessions, open_turns) =
            (busy.len(), busy.iter().map(|session| session.open_turns.len()).sum());
        found.push(SandboxStatus { sandbox, busy_sessions, open_turns });
    }
    Ok(found)
}

fn show(status: &Status, json: bool, shape: Shape) -> std::io::Result<()> {
    let mut output = Printer::standard(shape);
    if json {
        output.raw_line(&serde_json::to_string(status)?)?;
        return output.flush();
    }
    let mut line = format!("Berth is up at {}", status.url);
    if let Some(pid) = status.pid {
        let _ = write!(line, ", process {pid}");
    }
    if let Some(since) = status.since {
        let _ = write!(line, ", started {}", ago(since, Timestamp::now()));
    }
    output.line(Tone::Good, &line)?;
    let row = |status: &SandboxStatus| {
        let SandboxStatus { sandbox, busy_sessions, open_turns } = status;
        let name = format!("{}/{}", sandbox.namespace, sandbox.name);
        let version = sandbox.opencode_version.clone().unwrap_or_else(|| "-".to_owned());
        let work = match busy_sessions {
            0 => "idle".to_owned(),
            1 => format!("1 session, {open_turns} open"),
            count => format!("{count} sessions, {open_turns} open"),
        };
        vec![name, phase(sandbox.phase).to_owned(), version, work, sandbox.directory.clone()]
    };
    let rows: Vec<_> = status.sandboxes.iter().map(row).collect();
    for line in table::lines(&["SANDBOX", "STATE", "OPENCODE", "TURNS", "DIRECTORY"], &rows, output.width()) {
        output.line(Tone::Tool, &line)?;
    }
    if let Some(data) = &status.data {
        output.line(Tone::Note, &format!("data in {}", data.display()))?;
    }
    if let Some(log) = &status.log {
        output.line(Tone::Note, &format!("logs to {}", log.display()))?;
    }
    output.flush()
}

fn phase(phase: SandboxPhase) -> &'static str {
    match phase {
        SandboxPhase::Starting => "starting",
        SandboxPhase::Ready => "ready",
        SandboxPhase::Stopped => "stopped",
        SandboxPhase::Unreachable => "unreachable",
    }
}
