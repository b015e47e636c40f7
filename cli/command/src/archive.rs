//! A diagnostics archive: its files, each without secrets, and the writing of it. IO in [`write`] only.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use berth_testkit::fixture::Redactor;
use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use serde_json::Value;

use crate::replacement::Replacement;

/// The directory that everything is in.
const ROOT: &str = "berth-diagnostics";

/// A file of the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its path, relative to the archive's directory.
    pub name: String,
    /// Its content.
    pub text: String,
}

impl Member {
    /// A text.
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into() }
    }

    /// JSON, for people too.
    pub fn json(name: impl Into<String>, value: &Value) -> Self {
        Self::new(name, format!("{value:#}\n"))
    }

    /// The same file without secrets. JSON also loses what only its names tell.
    #[must_use]
    pub fn redacted(self, redactor: &Redactor) -> Self {
        let is_json = Path::new(&self.name).extension().is_some_and(|extension| extension == "json");
        let text = match serde_json::from_str(&self.text) {
            Ok(value) if is_json => redactor.text(&format!("{:#}\n", redactor.value(value))),
            _ => redactor.text(&self.text),
        };
        Self { name: redactor.text(&self.name), text }
    }
}

/// Writes the archive, for its owner only. It takes its place when it is whole.
pub fn write(path: &Path, members: &[Member]) -> io::Result<()> {
    let file = Replacement::begin(path, 0o600)?;
    archive(file.file(), members)?;
    file.finish(true)
}

fn archive(file: &File, members: &[Member]) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    let time = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    for member in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(member.text.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(time);
        archive.append_data(&mut header, format!("{ROOT}/{}", member.name), member.text.as_bytes())?;
    }
    let mut file = archive.into_inner()?.finish()?;
    file.flush()?;
    file.sync_all()
}
