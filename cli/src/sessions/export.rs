//! `berth sessions export`: the whole log as JSON lines, or the conversation as Markdown. Does IO.

use std::{
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
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
    replacement::Replacement,
    text::clean_line,
};

/// Mode of the file, less the umask.
const MODE: u32 = 0o666;

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
enum Sink {
    Output(BufWriter<io::Stdout>),
    File { path: PathBuf, file: BufWriter<Replacement> },
}

impl Sink {
    fn open(output: Option<&Path>) -> Result<Self, CliError> {
        let Some(path) = output.filter(|path| *path != Path::new("-")) else {
            return Ok(Self::Output(BufWriter::new(io::stdout())));
        };
        let failed = |source| CliError::Write { path: path.to_owned(), source };
        let file = Replacement::begin(path, MODE).map_err(failed)?;
        Ok(Self::File { path: path.to_owned(), file: BufWriter::new(file) })
    }

    fn failed(&self, source: io::Error) -> CliError {
        match self {
            Self::File { path, .. } => CliError::Write { path: path.clone(), source },
            Self::Output(_) => CliError::Output(source),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CliError> {
        let written = match self {
            Self::File { file, .. } => file.write_all(bytes),
            Self::Output(out) => out.write_all(bytes),
        };
        written.map_err(|error| self.failed(error))
    }

    fn finish(self) -> Result<Exit, CliError> {
        match self {
            Self::Output(mut out) => out.flush().map_err(CliError::Output)?,
            Self::File { path, file } => {
                let failed = |source| CliError::Write { path, source };
                let whole = file.into_inner().map_err(io::IntoInnerError::into_error);
                whole.and_then(|file| file.finish(true)).map_err(failed)?;
            }
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
