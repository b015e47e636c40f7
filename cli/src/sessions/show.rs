//! `berth sessions show`: the log, read as it was lived. Does IO.

use std::io;

use berth_client::BerthClient;
use berth_wire::api::Session;
use jiff::Timestamp;

use super::{
    export::each,
    list::state,
    transcript::{Entry, Transcript},
};
use crate::{
    error::{CliError, Exit},
    output::{Output, Shape},
    printer::Printer,
    render::{Piece, Tone},
    text::{ago, clean},
};

pub(super) async fn show(
    client: &BerthClient,
    session: &Session,
    json: bool,
    shape: Shape,
) -> Result<Exit, CliError> {
    if json {
        let mut printer = Printer::standard(shape);
        for turn in client.history(session.id).await? {
            let line = serde_json::to_string(&turn).map_err(io::Error::from).map_err(CliError::Output)?;
            printer.raw_line(&line).map_err(CliError::Output)?;
        }
        printer.flush().map_err(CliError::Output)?;
        return Ok(Exit::Succeeded);
    }
    // Everything is what was asked for: nothing of it goes to standard error.
    let color = shape.color && shape.out_terminal;
    let mut output = Output::standard(Shape { out_terminal: true, color, ..shape });
    for (tone, line) in heading(session) {
        output.note(tone, &line).map_err(CliError::Output)?;
    }
    let mut transcript = Transcript::default();
    each(client, session, |event| output.show(&pieces(transcript.take(&event))).map_err(CliError::Output))
        .await?;
    output.show(&pieces(transcript.end())).map_err(CliError::Output)?;
    Ok(Exit::Succeeded)
}

fn heading(session: &Session) -> Vec<(Tone, String)> {
    let title = session.title.clone().unwrap_or_else(|| "(no title)".to_owned());
    let now = Timestamp::now();
    let (created, changed) = (ago(session.created_at, now), ago(session.updated_at, now));
    let where_it_is = format!("{}/{}, {}", session.namespace, session.sandbox, session.directory);
    vec![
        (Tone::Ask, clean(&title)),
        (Tone::Note, format!("{}, {}", session.id, state(session.state))),
        (Tone::Note, format!("in {where_it_is}")),
        (Tone::Note, format!("created {created}, changed {changed}")),
    ]
}

fn pieces(entries: Vec<Entry>) -> Vec<Piece> {
    entries
        .into_iter()
        .flat_map(|entry| match entry {
            Entry::Prompt(text) => prompt(&text),
            Entry::Piece(piece) => vec![piece],
        })
        .collect()
}

fn prompt(text: &str) -> Vec<Piece> {
    let mut pieces = vec![Piece::Break, Piece::line(Tone::Tool, " ")];
    for (index, line) in text.lines().enumerate() {
        let mark = if index == 0 { '›' } else { ' ' };
        pieces.push(Piece::line(Tone::Ask, format!("{mark} {line}")));
    }
    pieces
}
