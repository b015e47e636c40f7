//! `berth run`: one prompt, its answer, and an exit code. Does IO.

use tokio::io::AsyncReadExt;

use crate::{
    config::{PromptSource, RunConfig, not_blank},
    connect,
    error::{CliError, Exit},
    input::Input,
    interrupts::Interrupts,
    output::{Output, Shape},
    render::Tone,
    turn::{Conversation, End, View, open_session},
};

/// Longest prompt that is read from standard input, in bytes; the server's own bound is far below.
const PROMPT_LIMIT: u64 = 64 * 1024 * 1024;

/// Runs one prompt to its end.
pub async fn run(config: RunConfig) -> Result<Exit, CliError> {
    let client = connect::client(&config.server)?;
    let prompt = match config.prompt {
        PromptSource::Text(text) => text,
        PromptSource::StandardInput => read_prompt().await?,
    };
    let mut interrupts = Interrupts::of_process().map_err(CliError::Signals)?;
    let session = tokio::select! {
        session = open_session(&client, &config.target) => session?,
        () = interrupts.next() => return Ok(Exit::Cancelled),
    };
    let (view, shape) = if config.json {
        (View::Json, Shape { out_terminal: false, ..config.shape })
    } else {
        (View::Text, config.shape)
    };
    let mut conversation = Conversation {
        client,
        answers: config.answers,
        view,
        output: Output::standard(shape),
        input: Input::start(None).map_err(CliError::Input)?,
        interrupts,
        last_seq: session.last_seq,
        session,
    };
    let end = conversation.turn(&prompt).await?;
    finish(&mut conversation, &end)
}

fn finish(conversation: &mut Conversation, end: &End) -> Result<Exit, CliError> {
    let id = conversation.session.id;
    let (exit, note) = match end {
        End::Ended(outcome) => (Exit::of(outcome), format!("go on with: berth run --session {id} \"...\"")),
        End::Left => (Exit::Cancelled, format!("left before the turn's end; its session is {id}")),
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
