//! Unified diffs in a tool call's metadata: which files they change, where, and the text before and after. Pure.
//!
//! opencode 1.15 and 1.18 put one into `diff` for `edit`, and one for each file into `files` for `apply_patch`. A text
//! that is no unified diff shows no change.

use agent_client_protocol_schema::v1 as acp;
use serde_json::Value;

/// The change to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilePatch<'a> {
    /// Absolute path.
    pub(super) path: &'a str,
    /// First line that changed, from 1, as it is numbered after the change.
    pub(super) line: Option<u64>,
    /// The hunks before the change; none for a file that was made.
    old: Option<String>,
    /// The hunks after it.
    new: String,
}

impl FilePatch<'_> {
    pub(super) fn into_diff(self) -> acp::Diff {
        acp::Diff::new(self.path, self.new).old_text(self.old)
    }
}

/// The files of an `apply_patch`, once it has run.
pub(super) fn files(metadata: &Value) -> Vec<FilePatch<'_>> {
    let files = metadata["files"].as_array().map(Vec::as_slice).unwrap_or_default();
    files.iter().filter_map(file).collect()
}

fn file(file: &Value) -> Option<FilePatch<'_>> {
    let moved = file["movePath"].as_str().filter(|path| path.starts_with('/'));
    let path = moved.or_else(|| file["filePath"].as_str())?;
    let hunks = Hunks::read(file["patch"].as_str()?);
    let made = hunks.old.is_empty();
    Some(FilePatch { path, line: hunks.line, old: (!made).then_some(hunks.old), new: hunks.new })
}

/// First line that an `edit` changed, once it has run.
pub(super) fn first_line(metadata: &Value) -> Option<u64> {
    Hunks::read(metadata["diff"].as_str()?).line
}

#[derive(Default)]
struct Hunks {
    line: Option<u64>,
    old: String,
    new: String,
}

impl Hunks {
    fn read(patch: &str) -> Self {
        let mut hunks = Self::default();
        let mut next = None;
        for line in patch.split_inclusive('\n') {
            if let Some(header) = line.strip_prefix("@@ ") {
                next = start(header);
                continue;
            }
            let Some(number) = &mut next else { continue };
            hunks.take(line, number);
        }
        hunks
    }

    /// Takes a line of a hunk; `number` is that of the next line after the change.
    fn take(&mut self, line: &str, number: &mut u64) {
        if let Some(text) = line.strip_prefix(' ') {
            self.old.push_str(text);
            self.new.push_str(text);
            *number = number.saturating_add(1);
        } else if let Some(text) = line.strip_prefix('-') {
            self.line.get_or_insert(*number);
            self.old.push_str(text);
        } else if let Some(text) = line.strip_prefix('+') {
            self.line.get_or_insert(*number);
            self.new.push_str(text);
            *number = number.saturating_add(1);
        }
    }
}

/// The first line after the change of a hunk's header: 7 of `-5,2 +7,3 @@`.
fn start(header: &str) -> Option<u64> {
    let after = header.split_whitespace().find_map(|word| word.strip_prefix('+'))?;
    after.split(',').next()?.parse().ok()
}
