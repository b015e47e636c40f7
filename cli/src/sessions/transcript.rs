//! The log of a session in the order in which it was lived: each turn begins with its prompt. Pure.

use std::collections::HashMap;

use berth_wire::{
    api::PromptPart,
    event::{EventPayload, SessionEvent, Voice},
};
use uuid::Uuid;

use crate::{
    render::{Pace, Piece, Renderer, Tone},
    text::clean,
};

/// What comes next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// A prompt.
    Prompt(String),
    /// Something that was said or done.
    Piece(Piece),
}

/// Turns the events of a session into entries.
#[derive(Default)]
pub(super) struct Transcript {
    renderers: HashMap<Uuid, Renderer>,
    /// Prompts that wait, in their order.
    waiting: Vec<(Uuid, Vec<PromptPart>)>,
}

impl Transcript {
    /// What the next event adds.
    pub(super) fn take(&mut self, event: &SessionEvent) -> Vec<Entry> {
        let Some(turn) = event.turn_id else {
            return Renderer::new(Pace::Settled).take(event).into_iter().map(Entry::Piece).collect();
        };
        let mut entries = Vec::new();
        match &event.payload {
            EventPayload::TurnQueued(queued) => self.waiting.push((turn, queued.prompt.clone())),
            EventPayload::TurnStarted(started) => {
                self.waiting.retain(|(waiting, _)| *waiting != turn);
                entries.push(prompt(&started.prompt));
            }
            // An end without a beginning: it was cancelled while it waited.
            EventPayload::TurnEnded(_) => {
                if let Some(index) = self.waiting.iter().position(|(waiting, _)| *waiting == turn) {
                    entries.push(prompt(&self.waiting.remove(index).1));
                }
            }
            _ => {}
        }
        let renderer = self.renderers.entry(turn).or_insert_with(|| Renderer::new(Pace::Settled));
        entries.extend(renderer.take(event).into_iter().map(Entry::Piece));
        if matches!(event.payload, EventPayload::TurnEnded(_)) {
            self.renderers.remove(&turn);
        }
        entries
    }

    /// What waits at the end of the log.
    pub(super) fn end(self) -> Vec<Entry> {
        let mut entries = vec![Entry::Piece(Piece::Break)];
        for (_, waiting) in &self.waiting {
            entries.push(prompt(waiting));
            entries.push(Entry::Piece(Piece::line(Tone::Note, "(waits)")));
        }
        entries
    }
}

fn prompt(parts: &[PromptPart]) -> Entry {
    let text = parts.iter().map(|part| clean(&part.summary())).collect::<Vec<_>>().join("\n");
    Entry::Prompt(text.trim().to_owned())
}

/// Entries as Markdown. What the agent wrote is Markdown already.
#[derive(Default)]
pub(super) struct Markdown {
    turns: usize,
    /// The last thing was a line of a list.
    in_list: bool,
    /// The last thing did not end its line.
    open: bool,
}

impl Markdown {
    pub(super) fn take(&mut self, entry: Entry) -> String {
        match entry {
            Entry::Prompt(text) => {
                self.turns += 1;
                let end = self.end();
                let quoted = text.replace('\n', "\n> ");
                format!("{end}\n## {}\n\n> {quoted}\n\n", self.turns)
            }
            Entry::Piece(Piece::Words { voice: Voice::Message, text }) => {
                let gap = if std::mem::take(&mut self.in_list) { "\n" } else { "" };
                self.open = !text.ends_with('\n');
                format!("{gap}{text}")
            }
            Entry::Piece(Piece::Words { voice: Voice::Thought, .. }) => String::new(),
            Entry::Piece(Piece::Break) => self.end(),
            Entry::Piece(Piece::Line { text, .. }) => {
                let end = self.end();
                let gap = if std::mem::replace(&mut self.in_list, true) { "" } else { "\n" };
                let item = text.trim().replace('`', "'");
                format!("{end}{gap}- `{item}`\n")
            }
        }
    }

    fn end(&mut self) -> String {
        if std::mem::take(&mut self.open) { "\n".to_owned() } else { String::new() }
    }
}

#[cfg(test)]
mod tests {
    use berth_wire::{
        api::PostMessage,
        event::{TurnQueued, TurnStarted},
        turn::{TurnOutcome, TurnStopReason},
    };
    use jiff::Timestamp;

    use super::*;

    fn log(payloads: Vec<(u128, EventPayload)>) -> Vec<Entry> {
        let mut transcript = Transcript::default();
        let mut entries = Vec::new();
        for (index, (turn, payload)) in payloads.into_iter().enumerate() {
            let seq = i64::try_from(index).unwrap() + 1;
            let (session_id, turn_id) = (Uuid::nil(), Some(Uuid::from_u128(turn)));
            let at = Timestamp::UNIX_EPOCH;
            entries.extend(transcript.take(&SessionEvent { session_id, seq, turn_id, at, payload }));
        }
        entries.extend(transcript.end());
        entries
    }

    fn queued(text: &str) -> EventPayload {
        EventPayload::TurnQueued(TurnQueued { prompt: PostMessage::text(text).parts })
    }

    fn started(text: &str) -> EventPayload {
        EventPayload::TurnStarted(TurnStarted { prompt: PostMessage::text(text).parts })
    }

    fn says(part: &str, text: &str) -> EventPayload {
        EventPayload::chunk(Voice::Message, part, 0, text)
    }

    fn example() -> Vec<Entry> {
        log(vec![
            (1, queued("first")),
            (2, queued("second")),
            (3, queued("third\nwith two lines")),
            (1, started("first")),
            (1, says("a", "one")),
            (1, says("b", "two")),
            (1, EventPayload::TurnEnded(TurnOutcome::succeeded(TurnStopReason::EndTurn))),
            (2, EventPayload::TurnEnded(TurnOutcome::cancelled())),
        ])
    }

    #[test]
    fn prompts_come_where_their_turns_began_or_ended() {
        let entries = example();
        let prompts = entries.iter().filter_map(|entry| match entry {
            Entry::Prompt(text) => Some(text.as_str()),
            Entry::Piece(_) => None,
        });
        assert_eq!(prompts.collect::<Vec<_>>(), ["first", "second", "third\nwith two lines"]);
    }

    #[test]
    fn markdown_keeps_parts_apart() {
        let mut markdown = Markdown::default();
        let page: String = example().into_iter().map(|entry| markdown.take(entry)).collect();
        let start = "\n## 1\n\n> first\n\none\ntwo\n\n- `✓ succeeded";
        assert!(page.starts_with(start), "{page}");
        assert!(page.ends_with("## 3\n\n> third\n> with two lines\n\n- `(waits)`\n"), "{page}");
    }
}
