//! Makes a session's log, and exactly one end of each turn, out of opencode's events. Pure: no IO and no clock.
//!
//! A [`SessionTranslator`] is fed every event of the session's directory and keeps little: of the turn that runs, which
//! messages are its steps, how much of each part is in the log, which requests are open. It is stored with the log, so
//! that it may be stopped and resumed after any event.
//!
//! # Which messages are the turn's
//!
//! Assistant messages that were made after our prompt, except answers to our earlier prompts: opencode may insert
//! messages of its own (a compaction, say), so the parent need not be our prompt. Of subagents only the requests for
//! permissions and answers are shown, as requests of the session, and the retries of their provider.
//!
//! # When a turn has ended
//!
//! It has started (our prompt was seen, then busy or an assistant message), its last assistant message is completed,
//! and the session was said to be idle after that. An idle without a completed message is a doubt
//! ([`SessionTranslator::in_doubt`]): reconciling settles it. So is one in a turn of which something may be missing in
//! the log: after a gap, however it was mended, and where the end of a text, or the `step-finish` part that follows
//! what the model said, was not seen of a step that completed. Then only a snapshot, which shows such steps whole, is
//! the end. An error while the session works on is no end. After an abort, the abort must have returned too, since
//! opencode finishes the message while it answers.
//!
//! # How an end is named
//!
//! | what was seen last | outcome |
//! |---|---|
//! | finish `stop` | succeeded, `end_turn` |
//! | finish `length`, `MessageOutputLengthError` | succeeded, `max_tokens` |
//! | finish `content-filter`, `ContentFilterError` | succeeded, `refusal` |
//! | finish `tool-calls`, a permission was rejected or a question dismissed | failed, `PermissionRejected` |
//! | finish `tool-calls` otherwise | failed, `OpencodeError` |
//! | finish `unknown` or `other` | failed, `ProviderStreamIncomplete` |
//! | the same three times running, without a tool call | aborted, then failed, `ProviderStreamIncomplete` |
//! | `MessageAbortedError`, or neither finish nor error | cancelled, whoever aborted it |
//! | `APIError` 401 or 403, `ProviderAuthError` | failed, `ProviderUnauthorized` |
//! | `APIError` 429 | failed, `RateLimited` |
//! | `APIError` 413 or words about the context, `ContextOverflowError` | failed, `ContextOverflow` |
//! | any other `APIError`, finish `error` | failed, `ProviderError` |
//! | `UnknownError` "Model not found" | failed, `ModelNotFound` |
//! | `UnknownError` "Agent not found" | failed, `AgentNotFound` |
//! | `UnknownError` "The user rejected permission" | failed, `PermissionRejected` |
//! | another error before the start | failed, `PromptRejected` |
//! | any other error | failed, `OpencodeError` |
//! | opencode exited | failed, `OpencodeExited` |
//! | the directory's instance was closed, and the turn left open | failed, `InstanceDisposed` |
//! | the turn's prompt was removed | aborted, then failed, `PromptRemoved` |
//! | begun, and idle in three snapshots running without a message, an error or an abort | handed over once more, then failed, `PromptSwallowed` |
//!
//! What [`crate::watchdog`] decides comes as [`SessionTranslator::request_abort`], and names the end.
//!
//! A cancel that was wanted makes it cancelled, unless the turn had come to an end of its own (a finish of its own, or
//! an error other than the abort).

use std::collections::{BTreeMap, VecDeque};

use berth_wire::{
    event::EventPayload,
    turn::{TurnError, TurnErrorReason, TurnOutcome},
};
use serde::{Deserialize, Serialize};

pub use self::observe::{Awaits, DueRetry, Observation};
use self::{
    asks::Asks,
    dispatch::extend,
    text::Source,
    turn::{SnapshotEnd, Turn},
};
use crate::{
    event::{Event, GlobalEvent},
    model::{
        MessageWithParts, ModelReference, PermissionRequest, QuestionRequest, SessionInfo, SessionStatus,
    },
};

mod asks;
mod dispatch;
mod family;
mod observe;
mod outcome;
mod retry;
mod text;
mod tool;
mod turn;

/// How many messages of earlier turns are remembered, so that late news of them is told apart.
const EARLIER_LIMIT: usize = 64;
/// How many removed messages are remembered, so that late news of them is not shown.
const REMOVED_LIMIT: usize = 32;

/// Where the session's turn stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TurnPhase {
    /// No turn of ours.
    Idle,
    /// A prompt is being handed over, or was, and opencode has not begun: idleness means nothing yet.
    Admitted,
    /// opencode has begun.
    Started,
}

/// What follows from an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Translation {
    /// An entry for the session's log.
    Update(EventPayload),
    /// opencode has begun the turn.
    Started,
    /// opencode has begun the turn, and gone idle without having asked its model: as far as is known nothing of it was
    /// done. Hand the same prompt over again, under the same ids; it counts as not begun. Said once in a turn.
    Swallowed,
    /// The turn must not go on: abort it; it then ends with this error.
    Abort(TurnError),
    /// The turn's end; nothing of the turn follows.
    Ended(TurnOutcome),
}

/// State of a session as read over HTTP. Read `status` before `messages`, and apply no event in between: what the
/// status says must not be newer than the messages.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// The session's newest messages, oldest first, reaching back to the turn's prompt.
    pub messages: Vec<MessageWithParts>,
    /// What the session does; absent when it is not listed, which means idle.
    pub status: Option<SessionStatus>,
    /// Sessions that work for this one, at any depth, each after its parent. Read them after the requests: a subagent may
    /// be made, and ask, meanwhile.
    pub sessions: Vec<SessionInfo>,
    /// What those do, by id; idle ones are absent.
    pub statuses: BTreeMap<String, SessionStatus>,
    /// The directory's requests for permissions.
    pub permissions: Vec<PermissionRequest>,
    /// The directory's requests for answers.
    pub questions: Vec<QuestionRequest>,
}

/// How much a model takes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ContextSize {
    model: ModelReference,
    tokens: u64,
}

/// The translation of one session: feed it every event, and keep it with the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionTranslator {
    root: String,
    /// The directory whose instance it is of, once an event told it: the real path, without symbolic links.
    directory: Option<String>,
    /// The title that was told last.
    title: Option<String>,
    /// The agent that was told last.
    mode: Option<String>,
    /// How much the model in use takes, where the caller told it.
    context: Option<ContextSize>,
    /// US dollars of the turns that have ended.
    cost: f64,
    /// Messages that were removed.
    removed: VecDeque<String>,
    /// Removals of what is not known.
    ignored: u64,
    /// Our prompts, and their steps, of turns that have ended.
    earlier: VecDeque<String>,
    /// The last turn ended by a `session.error`; opencode repeats that with a stack trace, even after idle.
    echo_due: bool,
    /// The error that a snapshot showed as the last turn's end: the events that tell it may still be on their way.
    #[serde(default)]
    untold: Option<TurnError>,
    asks: Asks,
    turn: Option<Box<Turn>>,
}

impl SessionTranslator {
    /// For the session of opencode with this id (`ses_...`).
    pub fn new(root: &str) -> Self {
        Self {
            root: root.to_owned(),
            directory: None,
            title: None,
            mode: None,
            context: None,
            cost: 0.0,
            removed: VecDeque::new(),
            ignored: 0,
            earlier: VecDeque::new(),
            echo_due: false,
            untold: None,
            asks: Asks::default(),
            turn: None,
        }
    }

    /// A prompt is about to be handed over under this message id. Store the state before handing it over. A turn that
    /// has not ended is forgotten without an end: that is a fault of the caller.
    pub fn begin_turn(&mut self, user_message_id: &str) {
        self.turn = Some(Box::new(Turn::new(user_message_id)));
    }

    /// Where the turn stands.
    pub fn phase(&self) -> TurnPhase {
        match &self.turn {
            None => TurnPhase::Idle,
            Some(turn) if turn.is_started() => TurnPhase::Started,
            Some(_) => TurnPhase::Admitted,
        }
    }

    /// Somebody wants the turn cancelled. May be called at any time, and again; without a turn it does nothing.
    pub fn request_cancel(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.request_cancel();
        }
    }

    /// The turn must not go on, for a reason of the caller's: it ends with this error once opencode has stopped.
    pub fn request_abort(&mut self, error: TurnError) {
        if let Some(turn) = &mut self.turn {
            turn.request_abort(error);
        }
    }

    /// Somebody wants the turn to end: a person, the caller, or the translation itself.
    pub fn abort_wanted(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.abort_wanted())
    }

    /// The error with which the turn is to end once it was aborted, unless a person wants that.
    pub fn verdict(&self) -> Option<TurnError> {
        self.turn.as_ref().and_then(|turn| turn.verdict())
    }

    /// An abort is wanted, can work, and was not sent. Never true before the start, when opencode would answer it and
    /// run the prompt all the same.
    pub fn abort_due(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.abort_due())
    }

    /// The abort is being sent.
    pub fn abort_sent(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.abort_sent();
        }
    }

    /// The abort got no answer, or whoever sent it is gone: it is due again. Call it after resuming, too.
    pub fn abort_failed(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.abort_failed();
        }
    }

    /// The abort was answered.
    pub fn abort_returned(&mut self) -> Vec<Translation> {
        let mut out = Vec::new();
        if let Some(turn) = &mut self.turn {
            turn.abort_returned();
        }
        self.check_end(&mut out);
        out
    }

    /// opencode was said to be idle, but nothing proves the turn's end: when this lasts, read a [`Snapshot`] and
    /// [`Self::reconcile`], not more often than once a second. It takes three before an unproved end is believed.
    pub fn in_doubt(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.in_doubt())
    }

    /// The message id of the running turn's prompt: a [`Snapshot`] must reach back to it.
    pub fn prompt(&self) -> Option<&str> {
        self.turn.as_ref().map(|turn| turn.user_message())
    }

    /// The model of the turn's newest step, when it is not known how much it takes: see [`Self::set_context_size`].
    pub fn unsized_model(&self) -> Option<&ModelReference> {
        let model = self.turn.as_ref()?.model()?;
        let known = self.context.as_ref().is_some_and(|context| context.model == *model);
        (!known).then_some(model)
    }

    /// The model takes so many tokens: each step of it that ends is followed by a `usage_update` from now on.
    pub fn set_context_size(&mut self, model: ModelReference, tokens: u64) -> Vec<Translation> {
        let mut out = Vec::new();
        self.context = Some(ContextSize { model, tokens });
        self.tell_usage(&mut out);
        out
    }

    /// How many removals of unknown messages and parts there were.
    pub fn ignored_removals(&self) -> u64 {
        self.ignored
    }

    /// The event is of this session or one of its subagents; [`Self::apply`] of any other changes nothing.
    pub fn concerns(&self, event: &GlobalEvent) -> bool {
        match &event.event {
            Event::InstanceDisposed { directory } => return self.is_of(directory),
            Event::GlobalDisposed => return true,
            _ => {}
        }
        let related = |session: &str| {
            session == self.root || self.turn.as_ref().is_some_and(|turn| turn.family.contains(session))
        };
        event.event.session_id().is_some_and(related) || event.event.parent_id().is_some_and(related)
    }

    fn is_of(&self, directory: &str) -> bool {
        self.directory.as_deref() == Some(directory)
    }

    /// Learns the session's directory from what is sent about it.
    fn note_directory(&mut self, event: &GlobalEvent) {
        if event.event.session_id() != Some(&self.root) {
            return;
        }
        let told = match &event.event {
            Event::SessionCreated(info) | Event::SessionUpdated(info) => Some(&info.directory),
            _ => event.directory.as_ref(),
        };
        if let Some(told) = told.filter(|told| !told.is_empty())
            && self.directory.as_ref() != Some(told)
        {
            self.directory = Some(told.clone());
        }
    }

    /// Takes the next event. Events of other sessions, and the door's own, change nothing.
    pub fn apply(&mut self, event: &GlobalEvent) -> Vec<Translation> {
        let mut out = Vec::new();
        self.note_directory(event);
        self.on_event(&event.event, &mut out);
        self.check_endless(&mut out);
        self.check_end(&mut out);
        out
    }

    /// Events may have been missed: text parts that are open wait for their whole text, and only a snapshot proves the
    /// turn's end. [`Self::reconcile`] next.
    pub fn mark_gap(&mut self) {
        if let Some(turn) = &mut self.turn {
            turn.mark_gap();
        }
    }

    /// Events may have been missed, and nothing was reconciled since.
    pub fn has_gap(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.texts.has_gap())
    }

    /// Takes the state that was read after a gap or in doubt.
    pub fn reconcile(&mut self, snapshot: &Snapshot) -> Vec<Translation> {
        let mut out = Vec::new();
        for message in &snapshot.messages {
            self.on_message(&message.info, &mut out);
            for part in &message.parts {
                self.on_part(part, Source::Snapshot, &mut out);
            }
        }
        for session in &snapshot.sessions {
            self.on_subsession(session);
        }
        self.reconcile_statuses(snapshot, &mut out);
        self.reconcile_asks(snapshot, &mut out);
        if let Some(turn) = &mut self.turn {
            turn.texts.gap_closed();
        }
        self.on_status(snapshot.status.as_ref().unwrap_or(&SessionStatus::Idle), &mut out);
        self.check_endless(&mut out);
        match self.turn.as_mut().and_then(|turn| turn.end_by_snapshot()) {
            Some(SnapshotEnd::Outcome(outcome)) => {
                let untold = outcome.error.clone();
                self.end(outcome, &mut out);
                self.untold = untold;
            }
            Some(SnapshotEnd::Swallowed) => self.on_swallowed(&mut out),
            None => {}
        }
        out
    }

    /// The first time the prompt is to be handed over again, the second time that ends the turn.
    fn on_swallowed(&mut self, out: &mut Vec<Translation>) {
        if self.turn.as_mut().is_some_and(|turn| turn.begin_again()) {
            return out.push(Translation::Swallowed);
        }
        let message = "opencode took the prompt twice and went idle each time without asking its model. Nothing was done. \
                       Send it again.";
        self.end(outcome::failed(outcome::error(TurnErrorReason::PromptSwallowed, message)), out);
    }

    /// opencode ended, for the reason in `detail`. Text that was streamed stays: nothing streams it anew. Before the
    /// start, the prompt may instead be handed over again to the next run of opencode; then do not call this.
    pub fn serve_exited(&mut self, detail: &str) -> Vec<Translation> {
        let message = format!(
            "opencode ended in the middle of the turn ({detail}). What it had said is kept, and nothing was run again. \
             Send another prompt to go on."
        );
        self.fail(outcome::error(TurnErrorReason::OpencodeExited, message))
    }

    /// The turn cannot be brought to an end otherwise: ends it with this error. Without a turn it does nothing.
    pub fn fail(&mut self, error: TurnError) -> Vec<Translation> {
        let mut out = Vec::new();
        self.end(outcome::failed(error), &mut out);
        out
    }

    /// The prompt was never taken by opencode and is not wanted any more: cancelled, or failed with the error that was
    /// given to [`Self::request_abort`].
    pub fn cancel_unsent(&mut self) -> Vec<Translation> {
        let mut out = Vec::new();
        self.end(self.verdict().map_or_else(TurnOutcome::cancelled, outcome::failed), &mut out);
        out
    }

    fn remember_removed(&mut self, message: &str) {
        self.removed.push_back(message.to_owned());
        let excess = self.removed.len().saturating_sub(REMOVED_LIMIT);
        self.removed.drain(..excess);
    }

    fn check_endless(&mut self, out: &mut Vec<Translation>) {
        if let Some(error) = self.turn.as_mut().and_then(|turn| turn.see_endless()) {
            out.push(Translation::Abort(error));
        }
    }

    fn check_end(&mut self, out: &mut Vec<Translation>) {
        if let Some(outcome) = self.turn.as_ref().and_then(|turn| turn.proven_end()) {
            self.end(outcome, out);
        }
    }

    /// The one place where a turn ends.
    fn end(&mut self, mut outcome: TurnOutcome, out: &mut Vec<Translation>) {
        let Some(mut turn) = self.turn.take() else { return };
        extend(out, self.asks.drop_all());
        extend(out, turn.tools.fail_open("The turn ended before this tool did."));
        outcome.usage = turn.usage();
        self.cost += outcome.usage.unwrap_or_default().cost_usd;
        self.echo_due |= turn.ended_by_report();
        self.untold = None;
        let messages = std::iter::once(turn.user_message()).chain(turn.step_ids());
        self.earlier.extend(messages.map(str::to_owned));
        let excess = self.earlier.len().saturating_sub(EARLIER_LIMIT);
        self.earlier.drain(..excess);
        out.push(Translation::Ended(outcome));
    }
}

/// The first line, bounded, for titles.
fn one_line(text: &str) -> String {
    const LIMIT: usize = 160;
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
    let cut = line.chars().count() > LIMIT || line.len() < text.trim().len();
    let short: String = line.chars().take(LIMIT).collect();
    if cut { format!("{short}…") } else { short }
}
