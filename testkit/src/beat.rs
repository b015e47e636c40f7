//! Operations, drawn out into the single moments of an answer. Pure; lazy, so that 100,000 words cost no memory.

use std::{collections::VecDeque, time::Duration};

use crate::script::{MAX_PAUSE_MS, Op, Words};

/// One moment of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Beat {
    /// A piece of text.
    Text(String),
    /// A piece of reasoning.
    Thought(String),
    /// A tool call.
    Tool {
        /// Name of the tool.
        name: String,
        /// Arguments as they are sent.
        arguments: String,
    },
    /// A data line that is not JSON.
    Garbage,
    /// Nothing for a while.
    Pause(Duration),
    /// Nothing for so long that everybody gives up; then the connection is closed.
    Hang,
    /// The connection is closed.
    Cut,
    /// The body ends here, without the closing marks.
    Truncate,
    /// The proper end.
    Finish {
        /// Whether the answer claims to have been cut for its length.
        length: bool,
    },
}

/// The beats of one answer, in order. The last is `Hang`, `Cut`, `Truncate` or `Finish`.
#[derive(Debug)]
pub(crate) struct Beats {
    ops: VecDeque<Op>,
    /// Number of the next piece of the words at the front, and whether the pause before it is over.
    piece: (u32, bool),
    length: bool,
    over: bool,
}

impl Beats {
    /// The beats of these operations. `Status`, `HoldHeaders` and `DropFirst` were settled before the answer began
    /// and count as nothing here.
    pub(crate) fn new(ops: Vec<Op>) -> Self {
        Self { ops: ops.into(), piece: (0, true), length: false, over: false }
    }

    fn end_with(&mut self, beat: Beat) -> Beat {
        self.over = true;
        beat
    }

    /// The next beat of the words at the front; `None` when they are used up.
    fn next_word(&mut self, words: &Words, make: fn(String) -> Beat) -> Option<Beat> {
        let (index, paused) = self.piece;
        if index >= words.count {
            return None;
        }
        if !paused && words.delay_ms > 0 {
            self.piece = (index, true);
            return Some(Beat::Pause(Duration::from_millis(words.delay_ms)));
        }
        self.piece = (index + 1, false);
        Some(make(words.piece(index)))
    }

    fn words(&mut self, op: Op) -> Option<Beat> {
        let beat = match &op {
            Op::Text(words) => self.next_word(words, Beat::Text),
            Op::Think(words) => self.next_word(words, Beat::Thought),
            _ => None,
        };
        if beat.is_some() {
            self.ops.push_front(op);
        } else {
            self.piece = (0, true);
        }
        beat
    }
}

impl Iterator for Beats {
    type Item = Beat;

    fn next(&mut self) -> Option<Beat> {
        while !self.over {
            let Some(op) = self.ops.pop_front() else {
                let length = self.length;
                return Some(self.end_with(Beat::Finish { length }));
            };
            match op {
                Op::Text(_) | Op::Think(_) => {
                    if let Some(beat) = self.words(op) {
                        return Some(beat);
                    }
                }
                Op::Say(text) => return Some(Beat::Text(text)),
                Op::Reason(text) => return Some(Beat::Thought(text)),
                Op::Tool { name, arguments } => return Some(Beat::Tool { name, arguments }),
                Op::Sleep(ms) => return Some(Beat::Pause(Duration::from_millis(ms))),
                Op::BadJson => return Some(Beat::Garbage),
                Op::Hang => return Some(self.end_with(Beat::Hang)),
                Op::Drop => return Some(self.end_with(Beat::Cut)),
                Op::Eof => return Some(self.end_with(Beat::Truncate)),
                Op::Length => self.length = true,
                Op::Status(_) | Op::HoldHeaders | Op::DropFirst(_) => {}
            }
        }
        None
    }
}

/// How long a hang lasts.
pub(crate) const HANG: Duration = Duration::from_millis(MAX_PAUSE_MS);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Script;

    fn beats(step: &str) -> Vec<Beat> {
        let mut script: Script = step.parse().unwrap();
        Beats::new(script.steps.remove(0)).collect()
    }

    fn text(text: &str) -> Beat {
        Beat::Text(text.to_owned())
    }

    #[test]
    fn words_pause_between_pieces_only() {
        let pause = Beat::Pause(Duration::from_millis(20));
        assert_eq!(
            beats("text:n=3,d=20,w=a | text:n=1,d=20,w=b"),
            [
                text("a0 "),
                pause.clone(),
                text("a1 "),
                pause,
                text("a2 "),
                text("b0 "),
                Beat::Finish { length: false }
            ]
        );
        assert_eq!(beats("think:n=1"), [Beat::Thought("word0 ".to_owned()), Beat::Finish { length: false }]);
        assert_eq!(beats("text:n=0"), [Beat::Finish { length: false }]);
    }

    #[test]
    fn what_ends_an_answer_ends_it() {
        assert_eq!(beats("say:a | drop | say:b"), [text("a"), Beat::Cut]);
        assert_eq!(beats("say:a | eof | say:b"), [text("a"), Beat::Truncate]);
        assert_eq!(beats("hang | say:b"), [Beat::Hang]);
        assert_eq!(beats("length | say:a"), [text("a"), Beat::Finish { length: true }]);
        assert_eq!(
            beats("badjson | sleep:7"),
            [Beat::Garbage, Beat::Pause(Duration::from_millis(7)), Beat::Finish { length: false }]
        );
    }

    #[test]
    fn a_hundred_thousand_words_come_one_by_one() {
        let mut beats = Beats::new(vec![Op::Text(Words { count: 100_000, ..Words::default() })]);
        assert_eq!(beats.next(), Some(text("word0 ")));
        assert_eq!(beats.by_ref().last(), Some(Beat::Finish { length: false }));
        assert_eq!(beats.next(), None);
    }
}
