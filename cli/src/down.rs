//! `berth down`: ends what `berth up` started, and says how that went. Does IO.

use std::{fmt::Write as _, io, time::Duration};

use tokio::time::{Instant, timeout};

use crate::{
    connect::{self, ServerChoice},
    error::{CliError, Exit},
    interrupts::Interrupts,
    output::{Output, Shape},
    process::Process,
    render::Tone,
    sessions,
    state::{Holder, ServerNote, StateDir},
    text::duration,
};

/// How long the server may take to say what runs; it is ended whether it says so or not.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// How long a killed process may take to be gone.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// `berth down`, checked.
#[derive(Debug, Clone)]
pub struct DownConfig {
    /// The data directory.
    pub state: StateDir,
    /// How long it may take to end by itself.
    pub limit: Duration,
    /// The output streams.
    pub shape: Shape,
}

/// Ends it, or says that nothing is up.
pub async fn down(config: DownConfig) -> Result<Exit, CliError> {
    let DownConfig { state, limit, shape } = config;
    let mut output = Output::standard(shape);
    let mut say = |tone, text: &str| output.note(tone, text).map_err(CliError::Output);
    let mut interrupts = Interrupts::of_process().map_err(CliError::Signals)?;
    let Some((note, process)) = running(&state)? else {
        say(Tone::Note, &format!("nothing is up in {}", state.root().display()))?;
        return Ok(Exit::Succeeded);
    };
    let running = timeout(ASK_LIMIT, open_turns(&state)).await.ok().flatten().unwrap_or_default();
    say(Tone::Note, &format!("ending process {}{}", note.pid, at(&note)))?;
    let begin = Instant::now();
    process.terminate().map_err(|source| failed(&note, source))?;
    let ended = tokio::select! {
        ended = timeout(limit, process.ended()) => ended.is_ok(),
        () = interrupts.next() => {
            say(Tone::Note, "not waited for; it ends by itself")?;
            return Ok(Exit::Cancelled);
        }
    };
    if !ended {
        say(Tone::Bad, &format!("it did not end within {} s: killing it", limit.as_secs()))?;
        process.kill().map_err(|source| failed(&note, source))?;
        timeout(KILL_LIMIT, process.ended())
            .await
            .map_err(|_| {
                failed(&note, io::Error::other(format!("it is still there {} s after", KILL_LIMIT.as_secs())))
            })?
            .map_err(|source| failed(&note, source))?;
    }
    say(Tone::Good, &told(&note, begin.elapsed(), ended, running))?;
    Ok(Exit::Succeeded)
}

/// The process that is up.
fn running(state: &StateDir) -> Result<Option<(ServerNote, Process)>, CliError> {
    let read = |source| CliError::Read { path: state.lock(), source };
    let note = match state.holder().map_err(read)? {
        Holder::Nobody => return Ok(None),
        Holder::Known(note) => note,
        Holder::Unknown => {
            let reason = "held by a process that does not say who it is: `fuser` tells its number".to_owned();
            return Err(CliError::BadFile { path: state.lock(), reason });
        }
    };
    let start = note.process_start.clone().unwrap_or_default();
    let process = Process::find(note.pid, &start).map_err(|source| failed(&note, source))?;
    Ok(process.map(|process| (note, process)))
}

fn failed(note: &ServerNote, source: io::Error) -> CliError {
    CliError::Down { pid: note.pid, source }
}

/// Turns that have not ended, as far as the server says so.
async fn open_turns(state: &StateDir) -> Option<usize> {
    let choice = ServerChoice { url: None, token_file: None, state: state.clone() };
    let client = connect::client(&choice).ok()?;
    let mut count = 0;
    for sandbox in client.list_sandboxes().await.ok()? {
        let sessions = sessions::busy(&client, &sandbox.namespace, &sandbox.name).await.ok()?;
        count += sessions.iter().map(|session| session.open_turns.len()).sum::<usize>();
    }
    Some(count)
}

fn at(note: &ServerNote) -> String {
    if note.is_published() { format!(", at {}", note.url) } else { ", which is starting".to_owned() }
}

fn told(note: &ServerNote, took: Duration, by_itself: bool, running: usize) -> String {
    let took = duration(i64::try_from(took.as_millis()).unwrap_or(i64::MAX));
    let how = if by_itself { "ended" } else { "was killed" };
    let mut text = format!("process {} {how} after {took}; nothing is up any more", note.pid);
    if running > 0 {
        let turns = if running == 1 { "1 turn was" } else { "turns were" };
        let count = if running == 1 { String::new() } else { format!("{running} ") };
        let _ = write!(
            text,
            "; {count}{turns} not at an end: what waited goes on with the next `berth up`, what ran ends as failed"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_what_was_done() {
        let note = ServerNote { url: String::new(), pid: 7, process_start: None, since: None, log: None };
        let second = Duration::from_millis(1200);
        assert_eq!(told(&note, second, true, 0), "process 7 ended after 1.2 s; nothing is up any more");
        let killed = told(&note, second, false, 1);
        assert!(
            killed.starts_with("process 7 was killed") && killed.contains("; 1 turn was not"),
            "{killed}"
        );
        assert!(told(&note, second, true, 3).contains("; 3 turns were not"));
    }
}
