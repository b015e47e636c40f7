//! `berth run`: one prompt, its answer, and an exit code. Does IO.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use berth_wire::api::{PostMessage, PromptPart};
use tokio::io::AsyncReadExt;

use crate::{
    attachment,
    config::{PromptSource, RunConfig, not_blank},
    connect,
    error::{CliError, Exit},
    input::Input,
    interrupts::Interrupts,
    output::{Output, Shape},
    render::Tone,
    turn::{Conversation, End, View, open_session, patient},
};

/// Longest prompt that is read from standard input, in bytes; the server's own bound is far below.
const PROMPT_LIMIT: u64 = 64 * 1024 * 1024;

/// Runs one prompt to its end.
pub async fn run(config: RunConfig) -> Result<Exit, CliError> {
    let client = connect::client(&config.server)?;
    let mut parts = Vec::new();
    for file in &config.files {
        parts.push(attachment::part(file)?);
    }
    let prompt = match config.prompt {
        PromptSource::Text(text) => text,
        PromptSource::StandardInput => read_prompt().await?,
    };
    parts.push(PromptPart::text(prompt));
    let message = PostMessage { parts, model: config.model, agent: config.agent };
    let mut clock = Clock::start(config.limit)?;
    let session = tokio::select! {
        session = open_session(&client, &config.target) => session?,
        () = clock.interrupts.next() => return Ok(clock.cancelled()),
    };
    let (view, shape) = if config.json {
        (View::Json, Shape { out_terminal: false, ..config.shape })
    } else {
        (View::Text, config.shape)
    };
    let late = Arc::clone(&clock.late);
    let mut conversation = Conversation {
        client: patient(client, config.patience),
        answers: config.answers,
        view,
        output: Output::standard(shape),
        input: Input::start().map_err(CliError::Input)?,
        interrupts: clock.interrupts,
        last_seq: session.last_seq,
        session,
        patience: config.patience,
    };
    let end = match conversation.message(&message).await {
        Ok(end) => end,
        Err(error) => return Err(lost(&mut conversation, error)),
    };
    let limit = config.limit.filter(|_| late.load(Ordering::Relaxed));
    finish(&mut conversation, &end, limit)
}

/// Says where to look later, when the server did not come back in time.
fn lost(conversation: &mut Conversation, error: CliError) -> CliError {
    if error.exit() != Exit::Unreachable {
        return error;
    }
    let note = format!(
        "what becomes of the turn is told by `berth sessions show {}`, once the server is back",
        conversation.session.id
    );
    match conversation.output.note(Tone::Note, &note) {
        Ok(()) => error,
        Err(failed) => CliError::Output(failed),
    }
}

/// Ctrl-C, and the end of the time that the turn has.
struct Clock {
    interrupts: Interrupts,
    /// The time is over, and that is why there was an interrupt.
    late: Arc<AtomicBool>,
}

impl Clock {
    fn start(limit: Option<Duration>) -> Result<Self, CliError> {
        let interrupts = match limit {
            Some(limit) => Interrupts::of_process_or_after(limit),
            None => Interrupts::of_process().map(|interrupts| (interrupts, Arc::default())),
        };
        let (interrupts, late) = interrupts.map_err(CliError::Signals)?;
        Ok(Self { interrupts, late })
    }

    fn cancelled(&self) -> Exit {
        if self.late.load(Ordering::Relaxed) { Exit::TimedOut } else { Exit::Cancelled }
    }
}

/// `late`: the time that was over, when the turn was cancelled for that.
fn finish(conversation: &mut Conversation, end: &End, late: Option<Duration>) -> Result<Exit, CliError> {
    let id = conversation.session.id;
    let (exit, note) = match end {
        End::Ended(outcome) => (Exit::of(outcome), format!("go on with: berth run --session {id} \"...\"")),
        End::Left => (Exit::Cancelled, format!("left before the turn's end; its session is {id}")),
    };
    let (exit, note) = match late {
        Some(limit) if exit == Exit::Cancelled => {
            (Exit::TimedOut, format!("not at its end after {} s; its session is {id}", limit.as_secs()))
        }
        _ => (exit, note),
    };
    if conversation.view == View::Text {
        conversation.output.note(Tone::Note, &note).map_err(CliError::Output)?;
    }
    Ok(exit)
}

async fn read_prompt() -> Result<String, CliError> {
    let mut bytes = Vec::new();
    tokio::io::stdin().take(PROMPT_LIMIT).read_to_end(&mut bytes).await.map_err(CliError::Input)?;
    if bytes.len() as u64 == PROMPT_LIMIT {
        return Err(CliError::usage("PROMPT", format!("standard input holds {PROMPT_LIMIT} bytes or more")));
    }
    match String::from_utf8(bytes) {
        Ok(text) => not_blank(text),
        Err(_) => Err(CliError::usage("PROMPT", "standard input is not UTF-8 text")),
    }
}
