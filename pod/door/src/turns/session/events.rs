//! What the events of a session say of its turns: which began, which went on, and which may have ended. Pure.

use std::{collections::VecDeque, time::Duration};

use berth_wire::door::{TurnEnding, TurnOrigin};

use super::{
    super::turn::{Abort, Now, Out, Quiet, Stage, Turn},
    AFTER_ABORT, AFTER_RUN, Session,
};

/// Ids of user messages and of open answers that are remembered, each.
const REMEMBERED: usize = 64;

/// After an error without a beginning, how long the beginning may take: the error may be of the turn before.
const AFTER_ERROR: Duration = Duration::from_secs(1);

/// How far apart opencode's clock of message times and ours may be, in milliseconds.
const SKEW_MS: i64 = 5_000;

impl Session {
    pub(crate) fn user(&mut self, message: &str, created: Option<i64>, now: Now, out: &mut Out) {
        self.hears(now);
        let known = self.users.iter().any(|user| user == message);
        if !known {
            remember(&mut self.users, message);
        }
        let at = self.turns.iter().position(|turn| !turn.seen() && turn.has_id(message));
        let at = at.or_else(|| if known { None } else { self.nameless(created) });
        let Some(at) = at else { return };
        if let Some(turn) = self.turns.get_mut(at) {
            turn.stage = turn.stage.max(Stage::Seen);
            turn.message_id = Some(message.to_owned());
            (turn.check, turn.errored) = (turn.check.filter(|_| turn.answered), false);
        }
        self.announce(at, out);
        if self.turns.get(at).is_some_and(Turn::is_note) {
            self.end(at, TurnEnding::Idle, out);
        }
    }

    /// The oldest prompt whose id is opencode's choice and that may be this message.
    fn nameless(&self, created: Option<i64>) -> Option<usize> {
        let fits = |turn: &Turn| created.is_none_or(|at| at + SKEW_MS >= turn.since.as_millisecond());
        self.turns.iter().position(|turn| !turn.seen() && turn.message_id.is_none() && fits(turn))
    }

    pub(crate) fn assistant(
        &mut self,
        message: &str,
        parent: Option<&str>,
        completed: bool,
        now: Now,
        out: &mut Out,
    ) {
        self.hears(now);
        if completed {
            self.open.retain(|open| open != message);
            self.closed(message, now);
        } else if !self.open.iter().any(|open| open == message) && self.open.len() < REMEMBERED {
            self.open.push(message.to_owned());
        }
        let Some(parent) = parent else { return };
        if let Some(at) = self.turns.iter().rposition(|turn| turn.has_id(parent)) {
            self.start(at, out);
            if !completed {
                self.revive(at, out);
            }
        } else if !completed && !self.users.iter().any(|user| user == parent) {
            // Its prompt was not told of: the event was lost, or it is older than this table.
            remember(&mut self.users, parent);
            if let Some(at) = self.nameless(None) {
                self.turns.get_mut(at).into_iter().for_each(|turn| turn.message_id = Some(parent.to_owned()));
                self.start(at, out);
            }
        }
        if !completed && self.busy {
            self.notice(Some(parent), now, out);
        }
    }

    /// The answer to a prompt ended as aborted. Those of subagents end so with their parent's.
    pub(crate) fn answer_aborted(&mut self, prompt: Option<&str>) {
        let turn = self.turns.iter_mut().find(|turn| prompt.is_some_and(|prompt| turn.has_id(prompt)));
        let unasked =
            turn.filter(|turn| turn.abort == Abort::None && self.aborts == 0 && self.parent.is_none());
        if let Some(turn) = unasked {
            turn.abort = Abort::Unasked;
            self.signs.interrupted = true;
        }
    }

    /// A run for which nobody asked through this door; those of subagents belong to their parent's.
    pub(crate) fn notice(&mut self, prompt: Option<&str>, now: Now, out: &mut Out) {
        if self.turns.iter().any(Turn::started) || self.parent.is_some() {
            return;
        }
        let mut turn = Turn::new(TurnOrigin::External, now);
        turn.message_id = prompt.map(str::to_owned);
        turn.announced = true;
        self.turns.push(turn);
        self.start(self.turns.len() - 1, out);
    }

    pub(crate) fn busy(&mut self, now: Now, out: &mut Out) {
        self.hears(now);
        self.busy = true;
        // A run is busy when it begins, and again when it asks its model for an answer that it opened.
        self.signs.asked |= !self.open.is_empty();
        for at in 0..self.turns.len() {
            if self.turns.get(at).is_some_and(Turn::seen) {
                self.start(at, out);
            }
        }
    }

    pub(crate) fn idle(&mut self, now: Now) {
        self.hears(now);
        if self.stale_idle.is_some_and(|until| now.elapsed < until) {
            let check = now.elapsed + AFTER_ABORT;
            self.turns.iter_mut().filter(|turn| turn.runs()).for_each(|turn| turn.check = Some(check));
            return;
        }
        (self.busy, self.idle_since) = (false, now.elapsed);
        let open = std::mem::take(&mut self.open);
        for turn in &mut self.turns {
            if turn.runs() {
                let mut waits_for = turn.quiet.take().map(|quiet| quiet.waits_for).unwrap_or_default();
                waits_for.extend_from_slice(&open);
                turn.quiet = Some(Quiet { since: now.elapsed, waits_for });
                turn.check = None;
            } else if turn.seen() && !turn.started() {
                turn.check = turn.check.or(Some(now.elapsed + AFTER_RUN));
            }
        }
    }

    pub(crate) fn error(&mut self, now: Now) {
        self.heard = now.elapsed;
        for turn in self.turns.iter_mut().filter(|turn| turn.waits() && !turn.seen()) {
            turn.errored = true;
            turn.check = turn.check.or(Some(now.elapsed + AFTER_ERROR));
        }
    }

    pub(crate) fn deleted(&mut self) {
        self.deleted = true;
    }

    /// The instance in which it ran is gone.
    pub(crate) fn disposed(&mut self, now: Now, out: &mut Out) {
        (self.busy, self.idle_since) = (false, now.elapsed);
        self.open.clear();
        self.end_where(Turn::started, TurnEnding::Disposed, out);
        let check = now.elapsed + AFTER_RUN;
        self.turns.iter_mut().filter(|turn| turn.seen()).for_each(|turn| turn.check = Some(check));
    }

    /// opencode itself is gone.
    pub(crate) fn exited(&mut self, out: &mut Out) {
        self.busy = false;
        self.open.clear();
        self.stale_idle = None;
        (self.asking, self.not_before) = (false, Duration::ZERO);
        self.end_where(|_| true, TurnEnding::Exited, out);
    }

    /// Events were missed.
    pub(crate) fn missed(&mut self, now: Now) {
        self.open.clear();
        for turn in &mut self.turns {
            turn.quiet.iter_mut().for_each(|quiet| quiet.waits_for.clear());
            turn.check = Some(now.elapsed);
        }
    }
}

fn remember(ids: &mut VecDeque<String>, id: &str) {
    if ids.len() == REMEMBERED {
        ids.pop_front();
    }
    ids.push_back(id.to_owned());
}
