//! Makes one list of changed files out of what opencode tells of each turn. Pure.
//!
//! opencode's patches have the whole file as context, so a file's state before the first turn that changed it and
//! after the last one are both in them, and the change from one to the other can be told in the usual short form. What
//! others did to the file between those turns is part of it.

use std::{collections::BTreeMap, time::Duration};

use berth_opencode::model::FileDiff;
use berth_wire::api::{FileChange, FileChangeStatus};
use similar::{ChangeTag, DiffOp, DiffTag, TextDiff};

/// Lines of context around a change.
const CONTEXT: usize = 3;
/// How long two states of a file are compared for the smallest difference; after that a larger one will do.
const COMPARE: Duration = Duration::from_millis(500);
/// Bound on all patches together, in bytes; later files go without.
const PATCHES: usize = 16 * 1024 * 1024;

/// What several turns did to one file.
#[derive(Debug)]
struct File {
    /// Its state before the first, and after the last. None where a patch did not tell.
    text: Option<(String, String)>,
    was_there: bool,
    is_there: bool,
    additions: u64,
    deletions: u64,
    /// Its patch as it came, when only one turn changed it.
    patch: Option<String>,
}

/// The changes of turns, oldest first, by path. What a later turn undid is not among them.
pub(crate) fn combine(turns: Vec<Vec<FileDiff>>) -> Vec<FileChange> {
    let mut files: BTreeMap<String, File> = BTreeMap::new();
    for diff in turns.into_iter().flatten().filter(|diff| !diff.file.is_empty()) {
        let file = File::new(&diff);
        match files.get_mut(&diff.file) {
            Some(earlier) => earlier.follow(file),
            None => {
                files.insert(diff.file, file);
            }
        }
    }
    let mut room = PATCHES;
    files.into_iter().filter_map(|(path, file)| file.into_change(path, &mut room)).collect()
}

impl File {
    fn new(diff: &FileDiff) -> Self {
        let patch = diff.patch.as_deref().filter(|patch| !patch.is_empty());
        Self {
            text: patch.and_then(states),
            was_there: diff.status != "added",
            is_there: diff.status != "deleted",
            additions: diff.additions,
            deletions: diff.deletions,
            patch: patch.map(str::to_owned),
        }
    }

    fn follow(&mut self, later: Self) {
        self.text = match (self.text.take(), later.text) {
            (Some((before, _)), Some((_, after))) => Some((before, after)),
            _ => None,
        };
        self.is_there = later.is_there;
        self.additions += later.additions;
        self.deletions += later.deletions;
        self.patch = None;
    }

    fn into_change(self, path: String, room: &mut usize) -> Option<FileChange> {
        let status = match (self.was_there, self.is_there) {
            (false, false) => return None,
            (false, true) => FileChangeStatus::Added,
            (true, true) => FileChangeStatus::Modified,
            (true, false) => FileChangeStatus::Deleted,
        };
        let (additions, deletions, patch) = match &self.text {
            Some((before, after)) if before == after && status == FileChangeStatus::Modified => {
                // Nothing is left of it, or nothing was told: only a file that is not text has no lines changed.
                if self.additions + self.deletions > 0 {
                    return None;
                }
                (0, 0, None)
            }
            Some((before, after)) => compare(&path, status, before, after),
            None => (self.additions, self.deletions, self.patch),
        };
        let patch = patch.filter(|patch| patch.len() <= *room);
        *room -= patch.as_ref().map_or(0, String::len);
        Some(FileChange { path, status, additions, deletions, patch })
    }
}

fn compare(path: &str, status: FileChangeStatus, before: &str, after: &str) -> (u64, u64, Option<String>) {
    let diff = TextDiff::configure().timeout(COMPARE).diff_lines(before, after);
    let count = |tag| diff.iter_all_changes().filter(|change| change.tag() == tag).count() as u64;
    let (additions, deletions) = (count(ChangeTag::Insert), count(ChangeTag::Delete));
    let (old, new) = (format!("a/{path}"), format!("b/{path}"));
    let (old, new) = match status {
        FileChangeStatus::Added => ("/dev/null", new.as_str()),
        FileChangeStatus::Modified => (old.as_str(), new.as_str()),
        FileChangeStatus::Deleted => (old.as_str(), "/dev/null"),
    };
    let hunks: String = diff.grouped_ops(CONTEXT).iter().map(|group| hunk(&diff, group)).collect();
    let patch = format!("--- {old}\n+++ {new}\n{hunks}");
    (additions, deletions, Some(patch).filter(|_| !hunks.is_empty()))
}

/// One hunk of a unified diff. The crate's own have headers that are not right where a change was moved.
fn hunk(diff: &TextDiff<'_, '_, '_, str>, group: &[DiffOp]) -> String {
    let (mut lines, mut old_count, mut new_count) = (String::new(), 0, 0);
    for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
        let tag = change.tag();
        old_count += usize::from(tag != ChangeTag::Insert);
        new_count += usize::from(tag != ChangeTag::Delete);
        lines.push_str(&tag.to_string());
        lines.push_str(change.value());
        if change.missing_newline() {
            lines.push_str("\n\\ No newline at end of file\n");
        }
    }
    // It begins with what stayed, whose place is sure, or with the file.
    let first = group.first().filter(|op| op.tag() == DiffTag::Equal);
    let (old, new) = first.map_or((0, 0), |op| (op.old_range().start, op.new_range().start));
    format!("@@ -{} +{} @@\n{lines}", place(old, old_count), place(new, new_count))
}

/// Where lines are, counted from 1; no lines are after the line before.
fn place(start: usize, count: usize) -> String {
    format!("{},{count}", start + usize::from(count > 0))
}

/// Both states of a file, from a patch whose context is the whole file; nothing when it is not.
fn states(patch: &str) -> Option<(String, String)> {
    let (mut before, mut after) = (String::new(), String::new());
    let mut lines = patch.split_inclusive('\n').skip_while(|line| !line.starts_with("@@"));
    if !begins_at_the_top(lines.next()?) {
        return None;
    }
    let mut last = ' ';
    for line in lines {
        let (kind, text) = line.split_at_checked(1)?;
        last = match kind {
            " " => {
                before.push_str(text);
                after.push_str(text);
                ' '
            }
            "-" => {
                before.push_str(text);
                '-'
            }
            "+" => {
                after.push_str(text);
                '+'
            }
            // No newline at the end of what came last.
            "\\" => {
                let both = last == ' ';
                for (state, meant) in [(&mut before, both || last == '-'), (&mut after, both || last == '+')]
                {
                    if meant && state.ends_with('\n') {
                        state.pop();
                    }
                }
                last
            }
            "\n" => last,
            _ => return None,
        };
    }
    Some((before, after))
}

/// `@@ -1,3 +1,4 @@`, or 0 for a state without lines. A second one would mean that something between was left out, and
/// begins with none of the signs of a line.
fn begins_at_the_top(header: &str) -> bool {
    let start = |sign: char| {
        let (_, rest) = header.split_once(sign)?;
        rest.split([',', ' ']).next()?.parse::<u64>().ok()
    };
    start('-').is_some_and(|line| line <= 1) && start('+').is_some_and(|line| line <= 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As opencode tells it.
    fn told(path: &str, before: Option<&str>, after: Option<&str>) -> FileDiff {
        let status = match (before, after) {
            (None, _) => "added",
            (_, None) => "deleted",
            _ => "modified",
        };
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        let diff = TextDiff::from_lines(before, after);
        let count = |tag| diff.iter_all_changes().filter(|change| change.tag() == tag).count() as u64;
        let hunks: String = diff.grouped_ops(1_000_000).iter().map(|group| hunk(&diff, group)).collect();
        let patch = format!("--- {path}\n+++ {path}\n{hunks}");
        FileDiff {
            file: path.to_owned(),
            patch: Some(format!("Index: {path}\n====\n{patch}")),
            status: status.to_owned(),
            additions: count(ChangeTag::Insert),
            deletions: count(ChangeTag::Delete),
        }
    }

    fn seen(changes: &[FileChange]) -> Vec<(&str, FileChangeStatus, u64, u64)> {
        changes
            .iter()
            .map(|change| (change.path.as_str(), change.status, change.additions, change.deletions))
            .collect()
    }

    #[test]
    fn several_turns_are_one_change() {
        let lines: Vec<String> = (0..100).map(|line| format!("line {line}\n")).collect();
        let long = lines.concat();
        let (middle, end) = (long.replace("line 50\n", "x\n"), long.replace("line 50\n", "y\nz\n"));
        let changes = combine(vec![
            vec![
                told("new", None, Some("a\n")),
                told("b", Some("1\n"), Some("2\n")),
                told("gone", Some("x\n"), None),
            ],
            vec![told("new", Some("a\n"), Some("a\nb")), told("b", Some("2\n"), Some("1\n"))],
            vec![told("long", Some(&long), Some(&middle)), told("short-lived", None, Some("x"))],
            vec![told("long", Some(&middle), Some(&end)), told("short-lived", Some("x"), None)],
        ]);
        assert_eq!(
            seen(&changes),
            [
                ("gone", FileChangeStatus::Deleted, 0, 1),
                ("long", FileChangeStatus::Modified, 2, 1),
                ("new", FileChangeStatus::Added, 2, 0),
            ]
        );
        assert_eq!(
            changes[2].patch.as_deref(),
            Some("--- /dev/null\n+++ b/new\n@@ -0,0 +1,2 @@\n+a\n+b\n\\ No newline at end of file\n")
        );
        let long = changes[1].patch.as_deref().unwrap();
        assert!(long.contains("@@ -48,7 +48,8 @@") && long.contains("-line 50\n+y\n+z\n"), "{long}");
    }

    #[test]
    fn what_is_not_text_has_no_patch() {
        let binary =
            FileDiff { file: "a.png".to_owned(), status: "modified".to_owned(), ..FileDiff::default() };
        let whole = FileDiff {
            patch: Some("Index: a.png\n===\n--- a.png\n+++ a.png\n".to_owned()),
            ..binary.clone()
        };
        for diff in [binary, whole] {
            let changes = combine(vec![vec![diff]]);
            assert_eq!(seen(&changes), [("a.png", FileChangeStatus::Modified, 0, 0)]);
        }
    }

    #[test]
    fn a_patch_that_is_not_the_whole_file_is_passed_on() {
        let patch = "--- a\n+++ a\n@@ -7,2 +7,2 @@\n x\n-y\n+z\n";
        let diff = FileDiff {
            file: "a".to_owned(),
            status: "modified".to_owned(),
            patch: Some(patch.to_owned()),
            additions: 1,
            deletions: 1,
        };
        let once = combine(vec![vec![diff.clone()]]);
        assert_eq!(once[0].patch.as_deref(), Some(patch));
        let twice = combine(vec![vec![diff.clone()], vec![diff]]);
        assert_eq!((twice[0].additions, twice[0].patch.as_deref()), (2, None));
    }

    /// What a patch makes of a text.
    fn applied(before: &str, patch: &str) -> String {
        let lines: Vec<&str> = before.split_inclusive('\n').collect();
        let (mut after, mut taken) = (String::new(), 0);
        for line in patch.split_inclusive('\n').skip(2) {
            let (kind, text) = line.split_at(1);
            match kind {
                "@" => {
                    let place = text.split(['-', ' ']).nth(2).unwrap();
                    let (start, count) = place.split_once(',').unwrap();
                    let start: usize = start.parse().unwrap();
                    let start = if count == "0" { start } else { start - 1 };
                    lines[taken..start].iter().for_each(|line| after.push_str(line));
                    taken = start;
                }
                " " | "-" => {
                    assert_eq!(lines[taken].trim_end_matches('\n'), text.trim_end_matches('\n'), "{patch}");
                    if kind == " " {
                        after.push_str(lines[taken]);
                    }
                    taken += 1;
                }
                "+" => after.push_str(text),
                other => panic!("{other}"),
            }
        }
        lines[taken..].iter().for_each(|line| after.push_str(line));
        after
    }

    proptest! {
        #[test]
        fn a_patch_makes_one_state_of_the_other(
            before in prop::collection::vec("[ab]", 0..24), after in prop::collection::vec("[ab]", 0..24),
        ) {
            let text = |lines: &[String]| lines.iter().fold(String::new(), |text, line| text + line + "\n");
            let (before, after) = (text(&before), text(&after));
            prop_assume!(before != after);
            let (_, _, patch) = compare("p", FileChangeStatus::Modified, &before, &after);
            prop_assert_eq!(applied(&before, &patch.unwrap()), after);
        }

        #[test]
        fn states_are_what_they_were(
            before in "([a-c \\-+@\\\\]{0,3}\n?){0,6}", after in "([a-c \\-+@\\\\]{0,3}\n?){0,6}",
        ) {
            prop_assume!(before != after);
            let diff = told("p", Some(&before), Some(&after));
            prop_assert_eq!(states(diff.patch.as_deref().unwrap()), Some((before, after)));
        }

        #[test]
        fn any_patch_is_read_without_a_panic(patch in "\\PC{0,80}") {
            let diff = FileDiff { file: "p".to_owned(), patch: Some(patch), ..FileDiff::default() };
            let _ = combine(vec![vec![diff.clone()], vec![diff]]);
        }
    }
}
