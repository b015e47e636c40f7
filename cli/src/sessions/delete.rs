//! `berth sessions delete`. Does IO.

use berth_client::BerthClient;

use super::{find, named};
use crate::{
    choice::SessionChoice,
    error::{CliError, Exit},
    input::{Input, Line},
    output::{Output, Shape},
    render::Tone,
};

pub(super) async fn delete(
    client: &BerthClient,
    choices: &[SessionChoice],
    yes: bool,
    person: bool,
    shape: Shape,
) -> Result<Exit, CliError> {
    let mut output = Output::standard(shape);
    // All are found before the first is deleted: a wrong one deletes none.
    let mut sessions = Vec::new();
    for choice in choices {
        let session = find(client, choice).await?;
        if sessions.iter().all(|known: &berth_wire::api::Session| known.id != session.id) {
            sessions.push(session);
        }
    }
    if !yes && !person {
        return Err(CliError::usage("--yes", "needed where nobody can be asked"));
    }
    for session in &sessions {
        let open = session.open_turns.len();
        let running = if open == 0 { String::new() } else { format!(", with {open} open turn(s)") };
        let text = format!("session {}{running}", named(session, &session.id.to_string()));
        output.note(Tone::Ask, &text).map_err(CliError::Output)?;
    }
    if !yes && !confirmed(&mut output, sessions.len()).await? {
        output.note(Tone::Note, "nothing was deleted").map_err(CliError::Output)?;
        return Ok(Exit::Cancelled);
    }
    for session in &sessions {
        client.delete_session(session.id).await?;
    }
    output.note(Tone::Good, "deleted").map_err(CliError::Output)?;
    Ok(Exit::Succeeded)
}

async fn confirmed(output: &mut Output, count: usize) -> Result<bool, CliError> {
    let what = if count == 1 { "it".to_owned() } else { format!("these {count}") };
    output.prompt(&format!("delete {what}? [y]es / [n]o: ")).map_err(CliError::Output)?;
    let input = Input::start().map_err(CliError::Input)?;
    let line = input.line().await.map_err(CliError::Input)?;
    Ok(matches!(line, Line::Text(text) if matches!(text.trim().to_lowercase().as_str(), "y" | "yes")))
}
