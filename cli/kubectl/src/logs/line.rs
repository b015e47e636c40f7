//! One line of a container's log: whose it is, and what it says. Pure.
//!
//! Supervisor and sidecar write one JSON object a line. What opencode says is in the supervisor's, with `source`
//! `opencode`. Other lines are what a program said before it had a log, or at its end.

use serde_json::{Map, Value};

use crate::args::Part;

/// How grave it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Error,
    Warn,
    Info,
    Debug,
}

/// A line, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    /// opencode said it.
    pub(super) of_opencode: bool,
    pub(super) level: Option<Level>,
    pub(super) text: String,
}

impl Line {
    /// Whether it belongs to this part, of those that are in the same container.
    pub(super) fn is_of(&self, part: Part) -> bool {
        match part {
            Part::Opencode => self.of_opencode,
            Part::Supervisor => !self.of_opencode,
            Part::Sidecar | Part::Seed => true,
        }
    }
}

/// Members of a line that are shown before the others, or not at all.
const KNOWN: [&str; 4] = ["timestamp", "level", "message", "target"];

/// Makes sense of a line; one that makes none stays as it is.
pub(super) fn read(raw: &str) -> Line {
    let Ok(Value::Object(members)) = serde_json::from_str::<Value>(raw) else {
        return Line { of_opencode: false, level: None, text: raw.to_owned() };
    };
    let text = |name: &str| members.get(name).and_then(Value::as_str);
    let level = text("level").and_then(level);
    let opencode = text("line").filter(|_| text("source") == Some("opencode"));
    if let Some(line) = opencode {
        return Line {
            of_opencode: true,
            level: level.filter(|level| *level != Level::Info),
            text: line.to_owned(),
        };
    }
    let time = text("timestamp").unwrap_or_default();
    let words = [time, text("level").unwrap_or_default(), text("message").unwrap_or_default()];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    let text = words.join(" ") + &fields(&members);
    Line { of_opencode: false, level, text }
}

fn level(name: &str) -> Option<Level> {
    Some(match name {
        "ERROR" => Level::Error,
        "WARN" => Level::Warn,
        "INFO" => Level::Info,
        "DEBUG" | "TRACE" => Level::Debug,
        _ => return None,
    })
}

fn fields(members: &Map<String, Value>) -> String {
    let rest = members.iter().filter(|(name, _)| !KNOWN.contains(&name.as_str()));
    rest.map(|(name, value)| match value {
        Value::String(text) if !text.contains(char::is_whitespace) => format!(" {name}={text}"),
        other => format!(" {name}={other}"),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPENCODE: &str = r#"{"timestamp":"2026-01-01T00:00:00.1Z","level":"WARN","message":"opencode says","source":"opencode","line":"level=WARN service=x slow","target":"berth_serve::output"}"#;
    const SUPERVISOR: &str = r#"{"timestamp":"2026-01-01T00:00:00.2Z","level":"INFO","message":"opencode runs","boot":2,"version":"1.18.33","why":"it was asked to","target":"berth_serve::runner"}"#;
    const PANIC: &str = "thread 'main' panicked at src/main.rs:1:1:";

    #[test]
    fn what_opencode_says_is_shown_as_it_said_it() {
        let line = read(OPENCODE);
        assert_eq!(line.text, "level=WARN service=x slow");
        assert_eq!((line.of_opencode, line.level), (true, Some(Level::Warn)));
    }

    #[test]
    fn other_lines_are_a_sentence_with_its_fields() {
        let line = read(SUPERVISOR);
        assert_eq!(
            line.text,
            "2026-01-01T00:00:00.2Z INFO opencode runs boot=2 version=1.18.33 why=\"it was asked to\""
        );
        assert_eq!(read(PANIC), Line { of_opencode: false, level: None, text: PANIC.to_owned() });
        for odd in ["", "7", "[1]", "{}", "{\"level\":7}", "{\"source\":\"opencode\"}"] {
            let _ = read(odd);
        }
    }

    #[test]
    fn each_line_of_the_agents_container_is_of_one_part() {
        for (raw, opencode) in [(OPENCODE, true), (SUPERVISOR, false), (PANIC, false)] {
            let line = read(raw);
            assert_eq!((line.is_of(Part::Opencode), line.is_of(Part::Supervisor)), (opencode, !opencode));
            assert!(line.is_of(Part::Sidecar) && line.is_of(Part::Seed));
        }
    }
}
