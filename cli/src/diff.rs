//! `berth diff`: what the agent changed in a session. Does IO.

use std::io;

use berth_client::BerthClient;
use berth_wire::api::{FileChange, FileChangeStatus};
use uuid::Uuid;

use crate::{
    choice::SessionChoice,
    connect::{self, ServerChoice},
    error::{CliError, Exit},
    output::Shape,
    printer::Printer,
    render::Tone,
    sessions,
    text::clean_line,
};

/// Most columns of the bars of `--stat`.
const BAR_LIMIT: u64 = 40;
/// What is said where there is nothing.
const NOTHING: &str = "nothing changed, as far as opencode knows: it keeps track in git repositories, and some moments \
                       after a turn's end";
/// Longest path that is shown, in characters.
const PATH_LIMIT: usize = 400;

/// `berth diff`, checked.
#[derive(Debug, Clone)]
pub struct DiffConfig {
    /// The server.
    pub server: ServerChoice,
    /// The session.
    pub session: SessionChoice,
    /// Only this turn.
    pub turn: Option<TurnChoice>,
    /// How it is shown.
    pub view: DiffView,
    /// The output streams.
    pub shape: Shape,
}

/// How a turn is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnChoice {
    /// By its place in the session, from 1.
    Ordinal(i64),
    /// By its id.
    Id(Uuid),
}

/// How changes are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffView {
    /// As a patch.
    Patch,
    /// As names and counts.
    Stat,
    /// As one JSON object.
    Json,
}

/// Shows it.
pub async fn diff(config: DiffConfig) -> Result<Exit, CliError> {
    let client = connect::client(&config.server)?;
    let session = sessions::find(&client, &config.session).await?;
    let turn = match config.turn {
        Some(choice) => Some(turn(&client, session.id, choice).await?),
        None => None,
    };
    let changes = client.diff(session.id, turn).await?;
    let mut printer = Printer::standard(config.shape);
    let shown = match config.view {
        DiffView::Patch => patch(&changes, &mut printer),
        DiffView::Stat => stat(&changes, &mut printer),
        DiffView::Json => json(session.id, &changes, &mut printer),
    };
    shown.and_then(|()| printer.flush()).map_err(CliError::Output)?;
    Ok(Exit::Succeeded)
}

async fn turn(client: &BerthClient, session: Uuid, choice: TurnChoice) -> Result<Uuid, CliError> {
    let ordinal = match choice {
        TurnChoice::Id(id) => return Ok(id),
        TurnChoice::Ordinal(ordinal) => ordinal,
    };
    let turns = client.list_turns(session).await?;
    let found = turns.iter().find(|turn| turn.ordinal == ordinal).map(|turn| turn.id);
    found.ok_or_else(|| {
        CliError::usage("--turn", format!("the session has {} turns, and no turn {ordinal}", turns.len()))
    })
}

fn json(session: Uuid, changes: &[FileChange], printer: &mut Printer) -> io::Result<()> {
    let value = serde_json::json!({ "session": session, "files": changes });
    printer.raw_line(&value.to_string())
}

fn patch(changes: &[FileChange], printer: &mut Printer) -> io::Result<()> {
    if changes.is_empty() {
        return printer.side(NOTHING);
    }
    for change in changes {
        for line in patch_lines(change) {
            printer.line(tone(&line), &line)?;
        }
    }
    Ok(())
}

/// The change of one file as lines of a patch, with a header that `git apply` and `patch -p1` take. Pure.
fn patch_lines(change: &FileChange) -> Vec<String> {
    let path = &change.path;
    let (old, new) = match change.status {
        FileChangeStatus::Added => ("/dev/null".to_owned(), format!("b/{path}")),
        FileChangeStatus::Modified => (format!("a/{path}"), format!("b/{path}")),
        FileChangeStatus::Deleted => (format!("a/{path}"), "/dev/null".to_owned()),
    };
    let mut lines = vec![format!("diff --git a/{path} b/{path}")];
    match change.status {
        FileChangeStatus::Added => lines.push("new file mode 100644".to_owned()),
        FileChangeStatus::Deleted => lines.push("deleted file mode 100644".to_owned()),
        FileChangeStatus::Modified => {}
    }
    let Some(patch) = &change.patch else {
        lines.push(format!("Binary files {old} and {new} differ"));
        return lines;
    };
    // Whatever header there is, ours is one that tools understand.
    let hunks: Vec<&str> = patch.split('\n').skip_while(|line| !line.starts_with("@@")).collect();
    let hunks = hunks.strip_suffix(&[""]).unwrap_or(&hunks);
    if !hunks.is_empty() {
        lines.extend([format!("--- {old}"), format!("+++ {new}")]);
        lines.extend(hunks.iter().map(|line| (*line).to_owned()));
    }
    lines
}

fn tone(line: &str) -> Tone {
    match line.as_bytes().first() {
        _ if line.starts_with("--- ") || line.starts_with("+++ ") || line.starts_with("diff ") => Tone::Ask,
        Some(b'+') => Tone::Good,
        Some(b'-') => Tone::Bad,
        Some(b'@') => Tone::Note,
        _ => Tone::Tool,
    }
}

fn stat(changes: &[FileChange], printer: &mut Printer) -> io::Result<()> {
    if changes.is_empty() {
        return printer.side(NOTHING);
    }
    for line in stat_lines(changes) {
        printer.line(Tone::Tool, &line)?;
    }
    Ok(())
}

/// Names and counts, and a bar for each, as git shows them. Pure.
fn stat_lines(changes: &[FileChange]) -> Vec<String> {
    let path = |change: &FileChange| clean_line(&change.path, PATH_LIMIT);
    let widest = changes.iter().map(|change| path(change).chars().count()).max().unwrap_or(0);
    let most = changes.iter().map(|change| change.additions + change.deletions).max().unwrap_or(0);
    let scaled = |count: u64| {
        let columns = if most > BAR_LIMIT { (count * BAR_LIMIT).div_ceil(most) } else { count };
        usize::try_from(columns).unwrap_or(0)
    };
    let mut lines: Vec<String> = changes
        .iter()
        .map(|change| {
            let count = change.additions + change.deletions;
            let (plus, minus) = ("+".repeat(scaled(change.additions)), "-".repeat(scaled(change.deletions)));
            let note = match (change.status, &change.patch) {
                (_, None) => " (not text)",
                (FileChangeStatus::Added, _) => " (new)",
                (FileChangeStatus::Deleted, _) => " (gone)",
                (FileChangeStatus::Modified, _) => "",
            };
            format!(" {:<widest$} | {count:>4} {plus}{minus}{note}", path(change))
        })
        .collect();
    let (additions, deletions) = changes
        .iter()
        .fold((0, 0), |(plus, minus), change| (plus + change.additions, minus + change.deletions));
    let counted = |count: u64, noun| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
    let (files, added) = (counted(changes.len() as u64, "file"), counted(additions, "line"));
    lines.push(format!(" {files} changed, {added} added, {deletions} removed"));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(path: &str, status: FileChangeStatus, patch: Option<&str>) -> FileChange {
        let patch = patch.map(ToOwned::to_owned);
        FileChange { path: path.to_owned(), status, additions: 2, deletions: 1, patch }
    }

    #[test]
    fn a_patch_has_a_header_that_tools_take() {
        let given = "Index: a.txt\n=====\n--- a.txt\n+++ a.txt\n@@ -1 +1,2 @@\n-a\n+b\n+c\n\\ No newline at end of file\n";
        let lines = patch_lines(&change("a.txt", FileChangeStatus::Modified, Some(given)));
        let wanted = "diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1,2 @@\n-a\n+b\n+c\n\\ No newline at end of file";
        assert_eq!(lines.join("\n"), wanted);
        let lines = patch_lines(&change("n", FileChangeStatus::Added, Some("@@ -0,0 +1 @@\n+x\n")));
        assert_eq!(lines[1..4], ["new file mode 100644", "--- /dev/null", "+++ b/n"]);
        let lines = patch_lines(&change("x.png", FileChangeStatus::Deleted, None));
        assert_eq!(lines[2], "Binary files a/x.png and /dev/null differ");
    }

    #[test]
    fn counts_have_bars_that_fit() {
        let mut long = change("src/long.rs", FileChangeStatus::Modified, Some("@@"));
        (long.additions, long.deletions) = (300, 100);
        let lines = stat_lines(&[long, change("a", FileChangeStatus::Added, Some("@@"))]);
        assert_eq!(lines[0], format!(" src/long.rs |  400 {}{}", "+".repeat(30), "-".repeat(10)));
        assert_eq!(lines[1], " a           |    3 +- (new)");
        assert_eq!(lines[2], " 2 files changed, 302 lines added, 101 removed");
        let mut one = change("a", FileChangeStatus::Modified, Some("@@"));
        one.additions = 1;
        assert_eq!(stat_lines(&[one])[1], " 1 file changed, 1 line added, 1 removed");
    }
}
