//! `berth sessions export`: the whole log as JSON lines, or the conversation as Markdown. Does IO.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use berth_client::BerthClient;
use berth_wire::{api::Session, event::SessionEvent};

use super::{
    TITLE_LIMIT,
    transcript::{Markdown, Transcript},
};
use crate::{
    args::ExportFormat,
    error::{CliError, Exit},
    text::clean_line,
};

pub(super) async fn export(
    client: &BerthClient,
    session: &Session,
    format: ExportFormat,
    output: Option<&Path>,
) -> Result<Exit, CliError> {
    let mut sink = Sink::open(output)?;
    match format {
        ExportFormat::Jsonl => {
            each(client, session, |event| {
                let mut line = serde_json::to_vec(&event).map_err(|error| sink.failed(error.into()))?;
                line.push(b'\n');
                sink.write(&line)
            })
            .await?;
        }
        ExportFormat::Markdown => {
            sink.write(heading(session).as_bytes())?;
            let (mut transcript, mut markdown) = (Transcript::default(), Markdown::default());
            each(client, session, |event| {
                let entries = transcript.take(&event).into_iter();
                let text: String = entries.map(|entry| markdown.take(entry)).collect();
                sink.write(text.as_bytes())
            })
            .await?;
            let rest: String = transcript.end().into_iter().map(|entry| markdown.take(entry)).collect();
            sink.write(rest.as_bytes())?;
        }
    }
    sink.finish()
}

/// Calls `see` with each event of the log as it is now.
pub(super) async fn each(
    client: &BerthClient,
    session: &Session,
    mut see: impl FnMut(SessionEvent) -> Result<(), CliError>,
) -> Result<(), CliError> {
    let mut events = client.events(session.id, 0);
    let mut last = 0;
    while last < session.last_seq {
        let event = events.next().await?;
        last = event.seq;
        see(event)?;
    }
    Ok(())
}

/// Where it is written to: a file takes the place of an older one only when it is whole.
struct Sink {
    writer: Box<dyn Write + Send>,
    /// The file, and the one beside it that is written.
    file: Option<(std::path::PathBuf, std::path::PathBuf)>,
}

impl Sink {
    fn open(output: Option<&Path>) -> Result<Self, CliError> {
        let Some(path) = output.filter(|path| *path != Path::new("-")) else {
            return Ok(Self { writer: Box::new(BufWriter::new(io::stdout())), file: None });
        };
        let beside = path.with_added_extension("part");
        let file =
            File::create(&beside).map_err(|source| CliError::Write { path: path.to_owned(), source })?;
        Ok(Self { writer: Box::new(BufWriter::new(file)), file: Some((path.to_owned(), beside)) })
    }

    fn failed(&self, source: io::Error) -> CliError {
        match &self.file {
            Some((path, _)) => CliError::Write { path: path.clone(), source },
            None => CliError::Output(source),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        self.writer.write_all(bytes).map_err(|error| self.failed(error))
    }

    fn finish(mut self) -> Result<Exit, CliError> {
        self.writer.flush().map_err(|error| self.failed(error))?;
        if let Some((path, beside)) = &self.file {
            std::fs::rename(beside, path).map_err(|error| self.failed(error))?;
        }
        Ok(Exit::Succeeded)
    }
}

fn heading(session: &Session) -> String {
    let title = session.title.as_deref().unwrap_or("A session with an agent");
    let title = clean_line(title, TITLE_LIMIT);
    format!(
        "# {title}\n\n- session: {}\n- sandbox: {}/{}\n- directory: {}\n- created: {:.0}\n",
        session.id, session.namespace, session.sandbox, session.directory, session.created_at
    )
}
