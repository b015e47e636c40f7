//! What is on the screen below the scrollback: what still changes, what waits, what is typed, and a line about the
//! state of things. Pure.

use jiff::Timestamp;

use super::Chat;
use crate::{
    chat::{
        editor::Layout,
        line::{Color, Line, Style},
        screen::{Frame, Place},
    },
    render::Tone,
    text::{clean_line, duration},
};

/// Waiting prompts that are listed.
const LISTED: usize = 4;
/// Rows below which only the most necessary is shown.
const SMALL: usize = 8;

impl Chat {
    /// Lines for the scrollback, and the frame below them, at `now`.
    pub(in crate::chat) fn frame(&mut self, now: Timestamp) -> (Vec<Line>, Frame) {
        self.now = now;
        self.present(now);
        self.settle();
        let frame = self.live(now);
        (std::mem::take(&mut self.finished), frame)
    }

    /// The last lines for the scrollback, when somebody leaves.
    pub(in crate::chat) fn farewell(&mut self, now: Timestamp) -> Vec<Line> {
        self.settle();
        let open = self.transcript.open(self.width, now);
        self.finished.extend(open);
        let id = self.session.id;
        if self.transcript.running().is_some() || !self.waiting.is_empty() || !self.sending.is_empty() {
            self.say(Tone::Note, "the agent goes on with what it does");
        }
        self.say(Tone::Note, &format!("come back with: berth chat --session {id}"));
        std::mem::take(&mut self.finished)
    }

    fn live(&mut self, now: Timestamp) -> Frame {
        let (width, height) = (self.width, self.height.max(1));
        let small = height < SMALL;
        let (typed, cursor) = self.typed(height);
        let menu = if small || self.picker.is_some() { Vec::new() } else { self.menu_lines() };
        let below: Vec<Line> = menu.into_iter().chain((height > 2).then(|| self.status(now))).collect();
        let mut above = self.transcript.open(width, now);
        let middle = self.middle(now);
        if !small && (!above.is_empty() || self.height >= SMALL) {
            above.push(Line::default());
        }
        above.extend(middle);
        let room = height.saturating_sub(typed.len() + below.len());
        let cut = above.len().saturating_sub(room);
        let mut lines: Vec<Line> = above.into_iter().skip(cut).collect();
        let row = lines.len() + cursor.row;
        lines.extend(typed);
        lines.extend(below);
        let lines = lines.iter().take(height).map(|line| line.truncated(width)).collect();
        Frame { lines, cursor: Place { row, column: cursor.column } }
    }

    /// What waits, and what somebody can choose from.
    fn middle(&mut self, now: Timestamp) -> Vec<Line> {
        let (none, rest) = (Line::default(), Line::plain("  "));
        let width = self.width;
        let mut lines = self.queue_lines();
        let choices = self.choices(now);
        lines.extend(choices.iter().flat_map(|line| line.wrapped(width, &none, &rest)));
        lines
    }

    fn queue_lines(&self) -> Vec<Line> {
        let sending =
            self.sending.iter().map(|sending| Line::dim(&format!("↑ {}", clean_line(&sending.text, 200))));
        // The first prompt of an idle session is not waiting for anything worth a word.
        let idle = self.transcript.running().is_none() && self.waiting.len() == 1;
        let waiting = self.waiting.iter().enumerate().map(|(at, waiting)| {
            let text = clean_line(&waiting.text, 200);
            if idle {
                Line::dim(&format!("↑ {text}"))
            } else {
                Line::dim(&format!("queued {}: {text}", at + 1))
            }
        });
        let all: Vec<Line> = waiting.chain(sending).map(|line| line.truncated(self.width)).collect();
        let hidden = all.len().saturating_sub(LISTED);
        let mut lines: Vec<Line> = all.into_iter().take(LISTED).collect();
        if hidden > 0 {
            lines.push(Line::dim(&format!("… and {hidden} more")));
        }
        lines
    }

    /// The picker, or the editor.
    fn typed(&self, height: usize) -> (Vec<Line>, Place) {
        if let Some(picker) = &self.picker {
            let lines = picker.lines((height * 2 / 3).max(1));
            return (lines, Place { row: 0, column: picker.cursor().min(self.width.saturating_sub(1)) });
        }
        let prompt = match self.words_prompt() {
            Some(words) => Line::new(Style::of(Color::Yellow), words),
            None => Line::new(Style::of(Color::Cyan).with(Style::BOLD), "› "),
        };
        let prompt = if prompt.width() + 4 > self.width { Line::plain("› ") } else { prompt };
        clipped(self.editor.layout(self.width, &prompt), (height / 2).max(1))
    }

    fn status(&self, now: Timestamp) -> Line {
        let mut line = self.doing(now);
        let session = &self.session;
        let mut about = vec![format!("{}/{}", session.namespace, session.sandbox)];
        about.extend(self.model.as_ref().map(ToString::to_string));
        about.extend(self.agent.clone());
        about.extend(session.title.clone());
        line.push(Style::DIM, &format!("  {}", clean_line(&about.join(" · "), 200)));
        line.truncated(self.width)
    }

    fn doing(&self, now: Timestamp) -> Line {
        let yellow = Style::of(Color::Yellow);
        if self.warned {
            return Line::new(yellow, "press Ctrl-C again to leave");
        }
        if self.away {
            return Line::new(Style::of(Color::Red), "no server; trying again");
        }
        if self.opening {
            return Line::new(yellow, "opening…");
        }
        let Some(running) = self.transcript.running() else {
            return Line::dim(if self.waiting.is_empty() && self.sending.is_empty() {
                "/help"
            } else {
                "sent"
            });
        };
        let took =
            duration(now.as_millisecond().saturating_sub(running.since.as_millisecond()) / 1000 * 1000);
        let took = took.replace(".0 s", " s");
        if self.cancelling == Some(running.turn) {
            return Line::new(yellow, "cancelling; Ctrl-C leaves");
        }
        if self.waits_for_person() {
            return Line::new(yellow, "waits for your answer");
        }
        Line::new(Style::of(Color::Green), &format!("● {took}")).and(Style::DIM, " Ctrl-C ends it")
    }
}

/// At most `rows` rows, those around the cursor.
fn clipped(layout: Layout, rows: usize) -> (Vec<Line>, Place) {
    let Layout { lines, cursor } = layout;
    let first = (cursor.row + 1).saturating_sub(rows);
    let lines = lines.into_iter().skip(first).take(rows).collect();
    (lines, Place { row: cursor.row - first, column: cursor.column })
}
