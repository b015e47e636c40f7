//! `berth debug replay`: the translation of recordings as JSON lines, and a verdict on each. Does IO.

use std::{
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use berth_opencode::{
    Translation,
    replay::{
        Recording, Replay, SessionReplay, Told, Unreadable,
        manifest::{Entry, Manifest, Mismatch, Seen, Verdict},
    },
};
use berth_testkit::{
    fixture::Plain,
    validate::{Extent, Violation, check_replay},
};
use serde_json::{Value, json};

use super::note;
use crate::error::{CliError, Exit, error_chain};

/// Longest recording that is read, in bytes.
const RECORDING_LIMIT: u64 = 1024 * 1024 * 1024;

/// `berth debug replay`, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplayConfig {
    /// The recordings; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// What they are expected to come to.
    pub manifest: Option<PathBuf>,
    /// Only what two recordings of the same doings have in common.
    pub plain: bool,
}

/// Replays each recording. Fails when one is not complete, or, with a manifest, not what that says.
pub fn replay(config: &ReplayConfig) -> Result<Exit, CliError> {
    let manifest = config.manifest.as_deref().map(read_manifest).transpose()?;
    let mut out = BufWriter::new(io::stdout().lock());
    let mut good = 0;
    for file in &config.files {
        let replay = Replay::of(Recording::read(read(file)?));
        let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy();
        let plain = config.plain.then(Plain::default);
        write_lines(&mut out, &name, &replay, plain).map_err(CliError::Output)?;
        good += usize::from(judge(&name, &replay, manifest.as_ref()));
    }
    let (count, as_what) =
        (config.files.len(), if manifest.is_some() { "as the manifest says" } else { "complete" });
    if count > 1 {
        note(&format!("{good} of {count} recordings are {as_what}"));
    }
    Ok(if good == count { Exit::Succeeded } else { Exit::Failed })
}

fn read_manifest(path: &Path) -> Result<Manifest, CliError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| CliError::Read { path: path.to_owned(), source })?;
    Manifest::read(&text).map_err(|error| CliError::BadFile {
        path: path.to_owned(),
        reason: format!("not a manifest of recordings: {error}"),
    })
}

/// The bytes of a recording.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let fault = |source| CliError::Read { path: path.to_owned(), source };
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(fault)?)
    };
    let mut bytes = Vec::new();
    source.take(RECORDING_LIMIT).read_to_end(&mut bytes).map_err(fault)?;
    if bytes.len() as u64 == RECORDING_LIMIT {
        let reason = format!("{RECORDING_LIMIT} bytes or more; cut it into pieces");
        return Err(CliError::BadFile { path: path.to_owned(), reason });
    }
    Ok(bytes)
}

fn write_lines(
    out: &mut impl Write,
    file: &str,
    replay: &Replay,
    mut plain: Option<Plain>,
) -> io::Result<()> {
    for session in &replay.sessions {
        for told in &session.told {
            let (turn, (kind, payload)) = (told.turn, kind_and_payload(told));
            let id = &session.root.id;
            let line = match &mut plain {
                Some(plain) => {
                    plain.value(json!({ "session": id, "turn": turn, "kind": kind, "payload": payload }))
                }
                None => json!({
                    "file": file, "session": id, "turn": turn, "event": told.at + 1, "kind": kind, "payload": payload,
                }),
            };
            writeln!(out, "{line}")?;
        }
    }
    out.flush()
}

fn kind_and_payload(told: &Told) -> (String, Value) {
    match &told.item {
        Translation::Update(payload) => payload.to_parts(),
        Translation::Started => ("turn_started".to_owned(), json!({})),
        Translation::Swallowed => ("prompt_swallowed".to_owned(), json!({})),
        Translation::Ended(outcome) => ("turn_ended".to_owned(), json!(outcome)),
        Translation::Abort(error) => ("abort".to_owned(), json!(error)),
    }
}

/// Says what a recording came to; true when that is good.
fn judge(file: &str, replay: &Replay, manifest: Option<&Manifest>) -> bool {
    for Unreadable { frame, why } in &replay.unreadable {
        note(&format!("{file}: frame {frame}: {}", error_chain(why)));
    }
    let mut violations = 0;
    for session in &replay.sessions {
        for Violation { at, what } in violations_of(session) {
            violations += 1;
            note(&format!("{file}: session {}: event {}: {what}", session.root.id, at + 1));
        }
    }
    let seen = Seen::of(replay, violations);
    let Some(manifest) = manifest else {
        note(&format!("{file}: {seen}"));
        return seen.verdict == Verdict::Complete;
    };
    match manifest.compare(file, &seen) {
        Ok(()) => note(&format!("{file}: {seen}, as the manifest says")),
        Err(Mismatch::Differs { expected, seen }) => {
            note(&format!("{file}: not what the manifest says\n  expected {expected}\n  seen     {seen}"));
            return false;
        }
        Err(Mismatch::NotListed(seen)) => {
            note(&format!(
                "{file}: {seen}; not in the manifest. Its entry would be:\n{}",
                suggestion(file, &seen)
            ));
            return false;
        }
    }
    true
}

fn violations_of(session: &SessionReplay) -> Vec<Violation> {
    let ended = session.turns().iter().all(|turn| turn.end.is_end());
    let extent = if ended { Extent::Whole } else { Extent::SoFar };
    check_replay(&session.log().collect::<Vec<_>>(), &session.root.final_texts, extent)
}

fn suggestion(file: &str, seen: &Seen) -> String {
    let version = file.split('-').next().filter(|version| version.starts_with(|c: char| c.is_ascii_digit()));
    let entry =
        Entry { version: version.unwrap_or("?").to_owned(), shows: "?".to_owned(), expected: seen.clone() };
    let manifest = Manifest { entries: [(file.to_owned(), entry)].into() };
    serde_json::to_string_pretty(&manifest).unwrap_or_else(|error| error.to_string())
}
