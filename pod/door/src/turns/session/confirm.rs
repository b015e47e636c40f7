//! The confirmation of what a session's events left open: when opencode is asked where it stands, and what follows
//! from its answer. Pure.

use std::time::Duration;

use berth_wire::door::TurnEnding;

use super::{
    super::turn::{Abort, Action, Note, Now, Out, Turn},
    Session,
};

/// How long an answer may stay open after its session went idle.
const SETTLE: Duration = Duration::from_secs(5);

/// Silence of a session in which something runs, after which opencode is asked.
const SILENCE: Duration = Duration::from_mins(1);

/// Between two questions about a session.
const AGAIN: Duration = Duration::from_secs(2);

/// Questions without an answer after which the table decides without.
const UNANSWERED: u8 = 3;

/// A message as opencode lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) id: String,
    /// The prompt that it answers.
    pub(crate) parent: Option<String>,
    pub(crate) completed: bool,
}

/// What opencode says about a session when it is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// It answered: whether it works in the session, and the newest messages.
    Answered { busy: bool, messages: Vec<Listed> },
    /// The session's directory cannot be used, so nothing can run there: its configuration is broken, say.
    Broken,
    /// It did not answer.
    Silent,
}

impl Session {
    /// When opencode is to be asked about it.
    pub(crate) fn deadline(&self, start_bound: Duration) -> Option<Duration> {
        if self.asking {
            return None;
        }
        let due = self.turns.iter().filter_map(|turn| self.due(turn, start_bound));
        due.chain(self.busy.then_some(self.heard + SILENCE)).min().map(|due| due.max(self.not_before))
    }

    fn due(&self, turn: &Turn, start_bound: Duration) -> Option<Duration> {
        let by_bound = if let Some(quiet) = &turn.quiet {
            Some(quiet.since + SETTLE)
        } else if turn.started() {
            Some(self.heard + SILENCE)
        } else if self.busy {
            None
        } else {
            // Its answer comes after its instance has booted; one that is not answered at all gets twice the time.
            let from = turn.accepted.unwrap_or(turn.admitted + start_bound);
            Some(from.max(self.idle_since) + start_bound)
        };
        [by_bound, turn.check].into_iter().flatten().min()
    }

    /// Asks for a confirmation when it is due.
    pub(crate) fn tick(&mut self, now: Now, start_bound: Duration, out: &mut Out) {
        if self.deadline(start_bound).is_some_and(|due| due <= now.elapsed) {
            self.asking = true;
            let (session, directory) = (self.id.clone(), self.directory.clone());
            out.actions.push(Action::Confirm { session, directory });
        }
    }

    /// What opencode said when it was asked.
    pub(crate) fn confirmed(&mut self, evidence: &Evidence, now: Now, start_bound: Duration, out: &mut Out) {
        self.asking = false;
        self.not_before = now.elapsed + AGAIN;
        if let Evidence::Answered { busy: true, .. } = evidence {
            self.goes_on(now, out);
            return;
        }
        if *evidence != Evidence::Silent {
            self.busy = false;
        }
        let mut at = 0;
        while let Some(turn) = self.turns.get(at) {
            let due = self.due(turn, start_bound).is_some_and(|due| due <= now.elapsed);
            if let Some(ending) = due.then(|| verdict(turn, evidence)).flatten() {
                out.restart |= ending == TurnEnding::NeverStarted && turn.accepted.is_some() && !self.deleted;
                self.end(at, ending, out);
            } else {
                self.put_off(at, due, evidence);
                at += 1;
            }
        }
    }

    fn goes_on(&mut self, now: Now, out: &mut Out) {
        self.busy(now, out);
        for at in 0..self.turns.len() {
            self.revive(at, out);
            let Some(turn) = self.turns.get_mut(at) else { break };
            turn.check = None;
            if turn.runs() && turn.abort == Abort::Returned {
                self.send_abort(at, out);
            }
        }
    }

    fn put_off(&mut self, at: usize, due: bool, evidence: &Evidence) {
        let Some(turn) = self.turns.get_mut(at).filter(|_| due) else { return };
        match evidence {
            Evidence::Silent => turn.unanswered += 1,
            Evidence::Answered { .. } | Evidence::Broken if turn.errored => turn.unanswered += 1,
            Evidence::Answered { .. } | Evidence::Broken => {
                (turn.check, turn.unanswered) = (None, 0);
                self.heard = self.not_before;
            }
        }
    }
}

/// How a turn ended that is due, when opencode does not work in its session; `None` while it may go on.
fn verdict(turn: &Turn, evidence: &Evidence) -> Option<TurnEnding> {
    let messages = match evidence {
        Evidence::Silent if turn.unanswered + 1 < UNANSWERED => return None,
        Evidence::Silent | Evidence::Broken if turn.started() => return Some(TurnEnding::Unknown),
        Evidence::Broken => return Some(TurnEnding::Failed),
        Evidence::Silent => [].as_slice(),
        Evidence::Answered { messages, .. } => messages.as_slice(),
    };
    let id = turn.message_id.as_deref();
    let answers = || messages.iter().filter(|message| id.is_some() && message.parent.as_deref() == id);
    if turn.started() {
        let open = turn.quiet.is_none() && answers().any(|message| !message.completed);
        return (!open).then_some(TurnEnding::Idle);
    }
    let stored = messages.iter().any(|message| Some(message.id.as_str()) == id);
    let may_be_note = turn.note == Note::Maybe && stored;
    if turn.is_note() || turn.answered || may_be_note || answers().next().is_some() {
        Some(TurnEnding::Idle)
    } else if turn.abort == Abort::Armed && turn.seen() {
        Some(TurnEnding::Aborted)
    } else if turn.errored {
        // When it is stored, its beginning may be on the way.
        (!stored || turn.unanswered > 0).then_some(TurnEnding::Failed)
    } else if turn.seen() && turn.check.is_some() {
        // It was queued in a run that ended without it.
        Some(TurnEnding::Idle)
    } else {
        Some(TurnEnding::NeverStarted)
    }
}
