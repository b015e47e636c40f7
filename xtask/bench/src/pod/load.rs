//! The loads that the journal is designed for, event by event, as opencode 1.18.33 sends them. Pure.
//!
//! The same loads run in virtual time in the door's own tests (`pod/door/src/journal/ring/tests/load.rs`).

use berth_wire::sse::write_event;

/// Sessions of a load.
const SESSIONS: u32 = 20;

/// Milliseconds between two updates of a command.
const UPDATE_EVERY: u32 = 500;

/// Bytes of a command's output of which an update tells at most.
const OUTPUT_MAX: u32 = 50_000;

/// A load, in steps of a millisecond.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    /// Sessions that stream text, 50 deltas a second each.
    streams: u32,
    /// Sessions with a command that prints.
    commands: u32,
    /// Bytes that a command prints between two updates.
    growth: u32,
    /// Milliseconds from one command of a session to its next.
    command_every: u32,
}

/// One command that prints 100 KB/s of updates, and 20 sessions that stream.
pub(crate) const DESIGN: Load =
    Load { name: "design", streams: SESSIONS, commands: 1, growth: 1_000, command_every: 60_000 };

/// 20 of these commands, one after the other in each session.
pub(crate) const CHATTY: Load =
    Load { name: "chatty", streams: 0, commands: SESSIONS, growth: 2_500, command_every: 18_000 };

impl Load {
    /// Milliseconds after which a minute and what came before it has passed.
    pub(crate) const LENGTH: u32 = 90_000;

    /// The events of a millisecond, each as a frame of its own.
    pub(crate) fn at(&self, millisecond: u32) -> Vec<Vec<u8>> {
        // Spread: no two sessions send in the same millisecond.
        let turn = millisecond % SESSIONS;
        let mut frames = Vec::new();
        if turn < self.streams {
            frames.push(delta(turn));
        }
        for command in (0..self.commands).filter(|command| command % SESSIONS == turn) {
            frames.extend(self.command(command, millisecond - turn));
        }
        frames
    }

    fn command(&self, session: u32, millisecond: u32) -> Vec<Vec<u8>> {
        let (nth, within) = (millisecond / self.command_every, millisecond % self.command_every);
        if within % UPDATE_EVERY != 0 {
            return Vec::new();
        }
        let part = format!("prt_{session}_{nth}");
        let size = (self.growth * within / UPDATE_EVERY).min(OUTPUT_MAX);
        match within {
            0 => vec![tool(&part, "pending", 0), tool(&part, "running", 0)],
            // The last one tells it twice.
            _ if within + UPDATE_EVERY >= self.command_every => vec![tool(&part, "completed", 2 * size)],
            _ => vec![tool(&part, "running", size)],
        }
    }
}

/// A session that streams text, in frames as large as opencode's.
fn delta(session: u32) -> Vec<u8> {
    let id = format!("{session:026}");
    frame(&format!(
        r#"{{"directory":"/workspace/sessions/ses_{id}","project":"{id}00112233445566","payload":{{"id":"evt_{id}","type":"message.part.delta","properties":{{"sessionID":"ses_{id}","messageID":"msg_{id}","partID":"prt_{id}","field":"text","delta":"words of "}}}}}}"#
    ))
}

fn tool(part: &str, status: &str, size: u32) -> Vec<u8> {
    let output = "x".repeat(size as usize);
    frame(&format!(
        r#"{{"directory":"/workspace/repo","payload":{{"type":"message.part.updated","properties":{{"part":{{"id":"{part}","sessionID":"ses_{part}","type":"tool","state":{{"status":"{status}","metadata":{{"output":"{output}"}}}}}}}}}}}}"#
    ))
}

fn frame(json: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_event(&mut bytes, None, None, json);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(load: Load, milliseconds: std::ops::Range<u32>) -> Vec<Vec<u8>> {
        milliseconds.flat_map(|millisecond| load.at(millisecond)).collect()
    }

    #[test]
    fn the_design_load_has_its_rates() {
        let frames = all(DESIGN, 50_000..51_000);
        let deltas = frames.iter().filter(|frame| String::from_utf8_lossy(frame).contains("part.delta"));
        assert_eq!(deltas.count(), 1_000);
        let printed: usize = frames.iter().map(Vec::len).filter(|size| *size > 10_000).sum();
        assert!((95_000..105_000).contains(&printed), "{printed} bytes of a command in a second");
    }

    #[test]
    fn each_command_begins_and_ends() {
        let text = String::from_utf8(all(CHATTY, 0..18_000).concat()).unwrap();
        for status in ["pending", "completed"] {
            assert_eq!(text.matches(&format!(r#""status":"{status}""#)).count(), 20, "{status}");
        }
        assert_eq!(text.matches(r#""status":"running""#).count(), 20 * 35);
    }
}
