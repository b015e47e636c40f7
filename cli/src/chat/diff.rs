//! Changes to files as coloured lines, with counts. Pure.

use std::time::Duration;

use similar::{ChangeTag, TextDiff};

use super::line::{Color, Line, Style};

/// Lines around a change that are shown with it.
const CONTEXT: usize = 2;
/// Texts larger than this, in bytes, are not compared.
const COMPARE_LIMIT: usize = 512 * 1024;
/// Longest time for a comparison; what is found after that is correct, but not the shortest.
const COMPARE_TIME: Duration = Duration::from_millis(50);

/// What changed in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) added: usize,
    pub(super) removed: usize,
    pub(super) lines: Vec<Line>,
}

impl Changes {
    /// Between two texts; a file that is new has no old one.
    pub(super) fn between(old: Option<&str>, new: &str) -> Self {
        let old = old.unwrap_or_default();
        if old.len() + new.len() > COMPARE_LIMIT {
            return Self { lines: vec![Line::dim("(too large to compare here)")], ..Self::default() };
        }
        let diff = TextDiff::configure().timeout(COMPARE_TIME).diff_lines(old, new);
        let mut changes = Self::default();
        for (number, group) in diff.grouped_ops(CONTEXT).iter().enumerate() {
            if number > 0 {
                changes.lines.push(Line::dim("  ⋯"));
            }
            for change in group.iter().flat_map(|op| diff.iter_changes(op)) {
                let text = change.value().trim_end_matches(['\n', '\r']);
                match change.tag() {
                    ChangeTag::Insert => changes.add(text),
                    ChangeTag::Delete => changes.remove(text),
                    ChangeTag::Equal => changes.lines.push(Line::dim(&format!("  {text}"))),
                }
            }
        }
        changes
    }

    /// As a unified diff tells; the names of the files are left out.
    pub(super) fn of_patch(patch: &str) -> Self {
        let mut changes = Self::default();
        let mut began = false;
        for line in patch.lines() {
            if let Some(place) = line.strip_prefix("@@") {
                began = true;
                changes.lines.push(Line::new(Style::of(Color::Cyan), &format!("@@{place}")));
            } else if !began {
                // Headers: `diff`, `Index:`, `---`, `+++` and the like.
            } else if let Some(text) = line.strip_prefix('+') {
                changes.add(text);
            } else if let Some(text) = line.strip_prefix('-') {
                changes.remove(text);
            } else {
                let text = line.strip_prefix(' ').unwrap_or(line);
                changes.lines.push(Line::dim(&format!("  {text}")));
            }
        }
        changes
    }

    /// How much changed: `+3 -1`.
    pub(super) fn counts(&self) -> Line {
        counts(self.added as u64, self.removed as u64)
    }

    /// The lines broken to `width` behind `indent`, at most `limit` of them.
    pub(super) fn shown(&self, width: usize, limit: usize, indent: &Line) -> Vec<Line> {
        let mut rest = indent.clone();
        rest.push(Style::PLAIN, "  ");
        let mut lines: Vec<Line> = Vec::new();
        for (at, line) in self.lines.iter().enumerate() {
            if at >= limit {
                let hidden = self.lines.len() - at;
                let mut more = indent.clone();
                more.push(Style::DIM, &format!("… {hidden} more {}", plural(hidden, "line")));
                lines.push(more);
                break;
            }
            lines.extend(line.folded(width, indent, &rest));
        }
        lines
    }

    fn add(&mut self, text: &str) {
        self.added += 1;
        self.lines.push(Line::new(Style::of(Color::Green), &format!("+ {text}")));
    }

    fn remove(&mut self, text: &str) {
        self.removed += 1;
        self.lines.push(Line::new(Style::of(Color::Red), &format!("- {text}")));
    }
}

/// `+3 -1`, in colours.
pub(super) fn counts(added: u64, removed: u64) -> Line {
    Line::new(Style::of(Color::Green), &format!("+{added}"))
        .and(Style::PLAIN, " ")
        .and(Style::of(Color::Red), &format!("-{removed}"))
}

/// A noun for this many.
pub(super) fn plural(count: usize, noun: &str) -> String {
    if count == 1 { noun.to_owned() } else { format!("{noun}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(changes: &Changes, limit: usize) -> Vec<String> {
        changes.shown(20, limit, &Line::plain(" ")).iter().map(Line::text).collect()
    }

    #[test]
    fn texts_are_compared_by_lines() {
        let changes = Changes::between(Some("one\ntwo\nthree\n"), "one\nTWO\nthree\n");
        assert_eq!((changes.added, changes.removed), (1, 1));
        assert_eq!(texts(&changes, 9), ["   one", " - two", " + TWO", "   three"]);
        assert_eq!(changes.counts().text(), "+1 -1");
        assert_eq!(texts(&Changes::between(None, "new\n"), 9), [" + new"]);
    }

    #[test]
    fn what_is_left_out_is_said() {
        let changes = Changes::between(None, "1\n2\n3\n4\n");
        assert_eq!(texts(&changes, 2), [" + 1", " + 2", " … 2 more lines"]);
        assert_eq!(texts(&changes, 3).last().unwrap(), " … 1 more line");
    }

    #[test]
    fn a_patch_is_read() {
        let patch = "Index: a\n--- a\n+++ a\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n--- a/b\n three\n";
        let changes = Changes::of_patch(patch);
        assert_eq!((changes.added, changes.removed), (1, 2));
        assert_eq!(
            texts(&changes, 9),
            [" @@ -1,3 +1,3 @@", "   one", " - two", " + TWO", " - -- a/b", "   three"]
        );
    }

    #[test]
    fn long_lines_go_on_below() {
        let changes = Changes::between(None, "a line that is long\n");
        assert_eq!(texts(&changes, 9), [" + a line that is lo", "   ng"]);
    }

    #[test]
    fn what_is_huge_is_not_compared() {
        let huge = "x\n".repeat(COMPARE_LIMIT);
        assert_eq!(Changes::between(None, &huge).lines.len(), 1);
    }
}
