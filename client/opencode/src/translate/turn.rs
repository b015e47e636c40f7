//! One turn: what was seen of it, and whether that proves its end. Pure.

use berth_wire::turn::{TurnError, TurnErrorReason, TurnOutcome, Usage};
use serde::{Deserialize, Serialize};

use super::{
    family::Family,
    outcome::{self, Ending},
    retry::Retry,
    text::Texts,
    tool::Tools,
};
use crate::ids;
use crate::model::{MessageInfo, ModelReference, SessionStatus, Tokens};

/// Steps that are kept one by one; of older ones only the usage is.
const KEPT_STEPS: usize = 32;
/// Steps running without a finish reason and without a tool call, after which the turn is aborted: opencode 1.18.33
/// calls the model again for ever (128 calls in 17 s were measured).
const UNKNOWN_FINISH_LIMIT: usize = 3;
/// Snapshots running that show an idle session without proof of the turn's end, after which it ends all the same.
const DOUBT_LIMIT: u8 = 3;

/// What is known of the session's idleness since the turn started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Idle {
    /// It works, as far as was seen.
    No,
    /// It was idle before the last step completed: on errors opencode says idle first, and once more at the end; it
    /// may also be the late second idle of the turn before.
    Early,
    /// It is idle, and the last step did not change since.
    Seen,
}

/// How far an abort has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Abort {
    None,
    Sent,
    Returned,
}

/// What a message tells of its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StepNews {
    /// The step begins.
    Begins,
    /// Nothing but details.
    Same,
}

/// What a snapshot proves, or proves together with those before it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum SnapshotEnd {
    /// The turn's end.
    Outcome(TurnOutcome),
    /// opencode took the prompt and went idle without having asked its model.
    Swallowed,
}

/// One call of the model, which is one assistant message of opencode.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts, each seen or not, in any combination")]
struct Step {
    id: String,
    completed: bool,
    /// Its `step-finish` part was seen, which comes after all that the model said.
    #[serde(default)]
    told: bool,
    finish: Option<String>,
    error: Option<Ending>,
    tokens: Tokens,
    cost: f64,
    /// A compaction's summary, which is not shown.
    summary: bool,
    model: Option<ModelReference>,
    /// How full the context is after it was told.
    usage_told: bool,
}

impl Step {
    /// Tokens that the next step finds in its context.
    fn context(&self) -> u64 {
        let tokens = &self.tokens;
        [tokens.input, tokens.output, tokens.cache.read, tokens.cache.write]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// A turn that has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "facts, each seen or not, in any combination")]
pub(super) struct Turn {
    /// Message id of our prompt.
    user: String,
    /// When opencode stored it, in milliseconds of its clock; absent until it was seen.
    user_created: Option<i64>,
    started: bool,
    idle: Idle,
    doubts: u8,
    steps: Vec<Step>,
    /// Id of the newest step that is no longer kept.
    retired: Option<String>,
    retired_usage: Option<Usage>,
    retired_steps: u64,
    /// A `session.error` that has not turned out to be the end.
    error: Option<Ending>,
    rejected: bool,
    cancel: bool,
    verdict: Option<TurnError>,
    abort: Abort,
    retry: Option<Retry>,
    /// How often opencode passed the prompt over.
    #[serde(default)]
    swallows: u8,
    /// Events of it may have been missed: only a snapshot proves its end.
    #[serde(default)]
    missed: bool,
    pub(super) texts: Texts,
    pub(super) tools: Tools,
    pub(super) family: Family,
}

impl Turn {
    pub(super) fn new(user: &str) -> Self {
        Self {
            user: user.to_owned(),
            user_created: None,
            started: false,
            idle: Idle::No,
            doubts: 0,
            steps: Vec::new(),
            retired: None,
            retired_usage: None,
            retired_steps: 0,
            error: None,
            rejected: false,
            cancel: false,
            verdict: None,
            abort: Abort::None,
            retry: None,
            swallows: 0,
            missed: false,
            texts: Texts::default(),
            tools: Tools::default(),
            family: Family::default(),
        }
    }

    pub(super) fn is_started(&self) -> bool {
        self.started
    }

    pub(super) fn user_message(&self) -> &str {
        &self.user
    }

    pub(super) fn prompt_seen(&self) -> bool {
        self.user_created.is_some()
    }

    pub(super) fn see_prompt(&mut self, created: i64) {
        self.user_created.get_or_insert(created);
    }

    /// True the first time, also where opencode passed the prompt over then.
    pub(super) fn start(&mut self) -> bool {
        !std::mem::replace(&mut self.started, true) && self.swallows == 0
    }

    pub(super) fn request_cancel(&mut self) {
        self.cancel = true;
    }

    pub(super) fn request_abort(&mut self, error: TurnError) {
        self.verdict.get_or_insert(error);
    }

    pub(super) fn abort_wanted(&self) -> bool {
        self.cancel || self.verdict.is_some()
    }

    pub(super) fn verdict(&self) -> Option<TurnError> {
        self.verdict.clone()
    }

    pub(super) fn abort_due(&self) -> bool {
        self.started && self.abort_wanted() && self.abort == Abort::None
    }

    pub(super) fn abort_sent(&mut self) {
        self.abort = Abort::Sent;
    }

    pub(super) fn abort_failed(&mut self) {
        if self.abort == Abort::Sent {
            self.abort = Abort::None;
        }
    }

    pub(super) fn abort_returned(&mut self) {
        self.abort = Abort::Returned;
    }

    pub(super) fn in_doubt(&self) -> bool {
        self.started && self.idle != Idle::No
    }

    /// A permission was rejected or a question dismissed.
    pub(super) fn see_rejection(&mut self) {
        self.rejected = true;
    }

    /// The message is a step of this turn.
    pub(super) fn has_step(&self, message: &str) -> bool {
        self.steps.iter().any(|step| step.id == message)
    }

    /// The message is a step of this turn whose parts are shown.
    pub(super) fn shows(&self, message: &str) -> bool {
        self.steps.iter().any(|step| step.id == message && !step.summary)
    }

    /// The message is a step of this turn that has not completed.
    pub(super) fn is_open_step(&self, message: &str) -> bool {
        self.steps.iter().any(|step| step.id == message && !step.completed)
    }

    /// Ids of the steps that are kept.
    pub(super) fn step_ids(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().map(|step| step.id.as_str())
    }

    /// The assistant message belongs to this turn: it answers our prompt, or was made after it and answers no earlier
    /// prompt of ours. opencode inserts messages of its own in a turn, so the parent need not be our prompt.
    pub(super) fn owns(&self, info: &MessageInfo, is_earlier: impl Fn(&str) -> bool) -> bool {
        let retired = self.retired.as_deref().is_some_and(|retired| info.id.as_str() <= retired);
        if retired || is_earlier(&info.id) {
            return false;
        }
        let parent = info.parent_id.as_deref();
        parent == Some(self.user.as_str())
            || (self.user_created.is_some_and(|created| info.time.created >= created)
                && !parent.is_some_and(is_earlier))
    }

    /// Takes the state of a step.
    pub(super) fn see_step(&mut self, info: &MessageInfo) -> StepNews {
        let completed = info.time.completed.is_some();
        let error = info.error.as_ref().map(|error| outcome::of_error(error, info.time.completed));
        if let Some(step) = self.steps.iter_mut().find(|step| step.id == info.id) {
            if completed && !step.completed {
                self.doubts = 0;
                self.idle = if self.idle == Idle::No { Idle::No } else { Idle::Early };
            }
            step.completed |= completed;
            step.finish = info.finish.clone().or_else(|| step.finish.take());
            step.error = error.or_else(|| step.error.take());
            (step.tokens, step.cost) = (info.tokens, info.cost);
            return StepNews::Same;
        }
        self.idle = Idle::No;
        self.doubts = 0;
        // opencode 1.18.33 was seen to go on with the next step after it had answered an abort, where a subagent's
        // subagent waited for a permission.
        if self.abort == Abort::Returned {
            self.abort = Abort::None;
        }
        self.steps.push(Step {
            id: info.id.clone(),
            completed,
            told: false,
            finish: info.finish.clone(),
            error,
            tokens: info.tokens,
            cost: info.cost,
            summary: info.is_summary(),
            model: info.model(),
            usage_told: false,
        });
        self.steps.sort_by(|a, b| a.id.cmp(&b.id));
        self.retire();
        StepNews::Begins
    }

    /// The model has said all that it says in this step.
    pub(super) fn see_step_finish(&mut self, message: &str) {
        if let Some(step) = self.steps.iter_mut().find(|step| step.id == message) {
            step.told = true;
        }
    }

    /// Events may have been missed.
    pub(super) fn mark_gap(&mut self) {
        self.missed = true;
        self.texts.mark_gap();
    }

    /// How many calls of the model it took so far.
    pub(super) fn step_count(&self) -> u64 {
        self.retired_steps.saturating_add(self.steps.len() as u64)
    }

    /// The model of the newest step.
    pub(super) fn model(&self) -> Option<&ModelReference> {
        self.steps.last()?.model.as_ref()
    }

    /// Tokens in the context after each step of `model` that has completed since this was asked last.
    pub(super) fn take_contexts(&mut self, model: &ModelReference) -> Vec<u64> {
        let fresh = |step: &&mut Step| {
            step.completed && !step.usage_told && !step.summary && step.model.as_ref() == Some(model)
        };
        let steps = self.steps.iter_mut().filter(fresh);
        let told = steps.map(|step| {
            step.usage_told = true;
            step.context()
        });
        told.filter(|tokens| *tokens > 0).collect()
    }

    /// The message was removed.
    pub(super) fn forget_step(&mut self, message: &str) {
        self.steps.retain(|step| step.id != message);
    }

    /// Keeps the state small: of steps that are long done only the usage is of interest.
    fn retire(&mut self) {
        while self.steps.len() > KEPT_STEPS {
            let step = &self.steps[0];
            if !step.completed || !self.texts.is_settled(&step.id) || !self.tools.is_settled(&step.id) {
                return;
            }
            let step = self.steps.remove(0);
            self.retired_usage = Some(added(self.retired_usage.unwrap_or_default(), &step));
            self.retired_steps += 1;
            self.texts.forget(&step.id);
            self.tools.forget(&step.id);
            self.retired = Some(step.id);
        }
    }

    /// The session works; returns an error that was reported and turned out not to be the end.
    pub(super) fn see_busy(&mut self) -> Option<TurnError> {
        self.idle = Idle::No;
        self.doubts = 0;
        match self.error.take() {
            Some(Ending::Failed(error)) => Some(error),
            _ => None,
        }
    }

    /// Takes the session's status; its retry, when it was not told before.
    pub(super) fn note_retry(&mut self, status: &SessionStatus) -> Option<Retry> {
        Retry::note(&mut self.retry, status)
    }

    /// Retries that are waited for, by the session itself or by subagents.
    pub(super) fn retries(&self) -> impl Iterator<Item = &Retry> {
        self.retry.iter().filter(|retry| retry.waits).chain(self.family.retries())
    }

    /// The session was made before our prompt was stored, so that it is not of this turn.
    pub(super) fn is_older(&self, created: i64) -> bool {
        created > 0 && self.user_created.is_some_and(|prompt| created < prompt)
    }

    /// What opencode made under this id is older than our prompt.
    pub(super) fn is_older_id(&self, id: &str) -> bool {
        self.user_created.is_some_and(|prompt| ids::is_made_before(id, prompt))
    }

    /// The message was there before our prompt: nothing else can be, as long as that was not stored.
    pub(super) fn is_older_message(&self, id: &str) -> bool {
        ids::tells_time(id) && (!self.prompt_seen() || self.is_older_id(id))
    }

    /// The session is idle. Means nothing before the start.
    pub(super) fn see_idle(&mut self) {
        if self.started {
            self.idle = Idle::Seen;
        }
    }

    /// Something went wrong in the session; the first word counts, later ones repeat it with a stack trace.
    pub(super) fn see_error(&mut self, ending: Ending) {
        self.error.get_or_insert(ending);
    }

    /// The verdict that the turn must be aborted, the first time that it is due.
    pub(super) fn see_endless(&mut self) -> Option<TurnError> {
        let endless = |step: &&Step| {
            step.completed
                && step.error.is_none()
                && matches!(step.finish.as_deref(), Some("unknown" | "other"))
                && !self.tools.has_calls(&step.id)
        };
        let running = self.steps.iter().rev().take_while(endless).count();
        if running < UNKNOWN_FINISH_LIMIT || self.verdict.is_some() {
            return None;
        }
        self.verdict = Some(outcome::stream_incomplete());
        self.verdict.clone()
    }

    /// It has started, nothing goes on as far as was seen, and nothing may have been missed.
    fn is_quiet(&self) -> bool {
        self.started && self.idle == Idle::Seen && self.abort != Abort::Sent && !self.texts.has_gap()
    }

    /// Something of a step that ended by itself was not seen.
    fn lacks_something(&self) -> bool {
        let ended =
            |step: &&Step| step.completed && step.error.is_none() && step.finish.is_some() && !step.summary;
        let mut ended = self.steps.iter().filter(ended);
        ended.any(|step| !step.told || !self.texts.is_settled(&step.id))
    }

    /// The outcome, if the events that were seen prove the end, and that nothing of the turn is missing in the log. The
    /// words "completed" and "idle" alone do not: what came before them may not have been heard, and opencode 1.18.33
    /// was read to send messages as they are when they leave, and not as they were when it happened.
    pub(super) fn proven_end(&self) -> Option<TurnOutcome> {
        if self.missed || self.lacks_something() { None } else { self.seen_end() }
    }

    fn seen_end(&self) -> Option<TurnOutcome> {
        if !self.is_quiet() {
            return None;
        }
        match self.steps.last() {
            Some(step) if step.completed => Some(self.outcome_of(step)),
            Some(_) => None,
            None => match &self.error {
                Some(ending) => Some(self.outcome_without_step(ending.clone())),
                None => (self.abort == Abort::Returned).then(|| self.outcome_without_step(Ending::Aborted)),
            },
        }
    }

    /// As [`Self::proven_end`] after a snapshot, which shows whole what has ended, but may have been read while the session
    /// went on: tool calls as the last word are no proof then. After a few snapshots without one the turn ends as far as
    /// it can be told.
    pub(super) fn end_by_snapshot(&mut self) -> Option<SnapshotEnd> {
        let last = self.steps.last();
        let stopped_short = last.is_some_and(|step| {
            let by_rejection = self.tools.ended_by_rejection(&step.id);
            step.error.is_none() && step.finish.as_deref() == Some("tool-calls") && !by_rejection
        });
        if !stopped_short && let Some(outcome) = self.seen_end() {
            return Some(SnapshotEnd::Outcome(outcome));
        }
        if !self.is_quiet() {
            return None;
        }
        self.doubts += 1;
        (self.doubts >= DOUBT_LIMIT).then(|| self.doubtful_end())
    }

    /// The prompt is handed over once more, as if nothing had been seen but it; false when that was done before.
    pub(super) fn begin_again(&mut self) -> bool {
        self.started = false;
        self.idle = Idle::No;
        self.doubts = 0;
        self.swallows = self.swallows.saturating_add(1);
        self.swallows == 1
    }

    /// Nothing came of the prompt, and nobody and no error is to blame.
    fn is_swallowed(&self) -> bool {
        self.step_count() == 0 && self.error.is_none() && !self.abort_wanted() && self.abort == Abort::None
    }

    fn doubtful_end(&self) -> SnapshotEnd {
        if self.is_swallowed() {
            return SnapshotEnd::Swallowed;
        }
        SnapshotEnd::Outcome(match self.steps.last() {
            Some(step) if step.completed => self.outcome_of(step),
            _ => {
                let left_open = || {
                    let message =
                        "opencode went idle and left its answer open. Send another prompt to go on.";
                    Ending::Failed(outcome::error(TurnErrorReason::OpencodeError, message))
                };
                self.outcome_without_step(self.error.clone().unwrap_or_else(left_open))
            }
        })
    }

    fn outcome_of(&self, step: &Step) -> TurnOutcome {
        if let Some(ending) = &step.error {
            let by_itself = *ending != Ending::Aborted;
            return if by_itself { ending.clone().into_outcome() } else { self.interrupted(Ending::Aborted) };
        }
        let rejected = self.rejected || self.tools.ended_by_rejection(&step.id);
        match outcome::of_finish(step.finish.as_deref(), rejected) {
            ending @ Ending::Stopped(_) => ending.into_outcome(),
            ending => self.interrupted(ending),
        }
    }

    fn outcome_without_step(&self, ending: Ending) -> TurnOutcome {
        let aborted = self.abort == Abort::Returned || ending == Ending::Aborted;
        if aborted { self.interrupted(ending) } else { ending.into_outcome() }
    }

    /// The turn did not come to an end of its own: our reason for the abort, if there was one, else `ending`.
    fn interrupted(&self, ending: Ending) -> TurnOutcome {
        match &self.verdict {
            Some(verdict) => outcome::failed(verdict.clone()),
            None if self.cancel && self.abort == Abort::Returned => TurnOutcome::cancelled(),
            None => ending.into_outcome(),
        }
    }

    /// True when the end was told by `session.error` alone, which opencode repeats a little later.
    pub(super) fn ended_by_report(&self) -> bool {
        self.steps.is_empty() && self.error.is_some()
    }

    /// Tokens and cost of the steps; none when there was no step.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.steps.iter().fold(self.retired_usage, |usage, step| Some(added(usage.unwrap_or_default(), step)))
    }
}

fn added(usage: Usage, step: &Step) -> Usage {
    let tokens = &step.tokens;
    Usage {
        input_tokens: usage.input_tokens.saturating_add(tokens.input),
        output_tokens: usage.output_tokens.saturating_add(tokens.output),
        reasoning_tokens: usage.reasoning_tokens.saturating_add(tokens.reasoning),
        cache_read_tokens: usage.cache_read_tokens.saturating_add(tokens.cache.read),
        cache_write_tokens: usage.cache_write_tokens.saturating_add(tokens.cache.write),
        cost_usd: usage.cost_usd + step.cost,
    }
}
