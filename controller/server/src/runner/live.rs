//! What a runner holds in memory of a session that has something to do.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use berth_opencode::{Prompt, PromptContent, SessionTranslator, TurnPhase, Watchdog, WatchdogLimits};
use berth_wire::{api::PromptPart, event::EventPayload};
use jiff::Timestamp;
use tokio::time::Instant;
use uuid::Uuid;

use super::asks::Settlement;
use crate::store::{OpenTurn, SessionWork};

/// A session under the runner's care.
#[derive(Debug)]
pub(super) struct Live {
    /// The session's rows, as of the last look.
    pub(super) work: SessionWork,
    /// State of the translation; none before opencode's session is known.
    pub(super) translator: Option<SessionTranslator>,
    /// The translator may have changed since the last commit.
    pub(super) changed: bool,
    /// The turn that runs.
    pub(super) turn: Option<Running>,
    /// A call about the session as a whole is under way (to ensure it, to delete it).
    pub(super) busy: bool,
    /// Prompts and aborts on their way to opencode, those of turns that have ended included: they must not meet the
    /// next turn.
    pub(super) in_flight: u32,
    /// What is known of opencode's session.
    pub(super) standing: Standing,
    /// Nothing is started before this moment.
    pub(super) not_before: Option<Instant>,
    /// The oldest queued turn could not be started.
    pub(super) blocked: Option<Blocked>,
    /// State must be read again: events may have been missed.
    pub(super) reconcile: bool,
    /// When state was last read.
    pub(super) reconciled_at: Option<Instant>,
    /// Since when there is nothing to do.
    pub(super) done_since: Option<Instant>,
    /// Unsettled asks.
    pub(super) asks: BTreeMap<String, Ask>,
    /// What was told to opencode about asks, until it confirms.
    pub(super) settled: HashMap<String, Settlement>,
}

/// What is known of opencode's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Whether it exists, and does nothing, must be looked up before the next prompt.
    Unverified,
    /// It exists, and the turn before, if any, came to an end of its own.
    Verified,
}

/// A queued turn that could not be started.
#[derive(Debug)]
pub(super) struct Blocked {
    pub(super) turn: Uuid,
    pub(super) since: Instant,
    /// What stood in the way, once that is known.
    pub(super) why: Option<String>,
}

/// An ask that waits.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) request: EventPayload,
    pub(super) expires_at: Timestamp,
    /// opencode refused the answer that it was given: the deadline is the next try.
    pub(super) refused: bool,
}

impl Ask {
    pub(super) fn new(request: EventPayload, expires_at: Timestamp) -> Self {
        Self { request, expires_at, refused: false }
    }
}

/// A running turn.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: Uuid,
    pub(super) prompt: Vec<PromptPart>,
    pub(super) message_id: String,
    /// The prompt is on its way to opencode.
    pub(super) posting: bool,
    /// The prompt may have to be sent again: it was not taken for sure, or opencode was started anew.
    pub(super) repost: Option<Repost>,
    /// An abort is on its way.
    pub(super) aborting: bool,
    /// Since when it is to end.
    pub(super) unwanted_since: Option<Instant>,
    /// When a prompt that may not have arrived must have; none while nothing speaks against its arrival.
    pub(super) hand_over_by: Option<Instant>,
    pub(super) watchdog: Watchdog,
}

/// Why a prompt may have to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repost {
    /// The call broke: nobody knows whether opencode took it. The same ids are safe while it has not started.
    SameBoot,
    /// opencode was started anew: only if no assistant answered this prompt before.
    OtherBoot,
}

impl Live {
    pub(super) fn new(work: SessionWork, limits: WatchdogLimits, now: Instant) -> Self {
        let turn = work.running.as_ref().and_then(|turn| Running::resumed(turn, limits, now));
        let translator = resume_translator(&work);
        let asks = work
            .asks
            .iter()
            .map(|ask| (ask.id.clone(), Ask::new(ask.request.clone(), ask.expires_at)))
            .collect();
        Self {
            reconcile: translator.as_ref().is_some_and(SessionTranslator::has_gap),
            translator,
            changed: false,
            asks,
            turn,
            busy: false,
            in_flight: 0,
            standing: Standing::Unverified,
            not_before: None,
            blocked: None,
            reconciled_at: None,
            done_since: None,
            settled: HashMap::new(),
            work,
        }
    }

    /// A running turn whose stored state was not understood gets a state in which it can be ended; true if there is one.
    pub(super) fn adopt_lost_turn(&mut self) -> bool {
        let known = self.translator.as_ref().is_some_and(|translator| translator.phase() != TurnPhase::Idle);
        let (Some(turn), Some(root), false) = (&self.turn, &self.work.opencode_session_id, known) else {
            return false;
        };
        self.translator.get_or_insert_with(|| SessionTranslator::new(root)).begin_turn(&turn.message_id);
        true
    }

    /// The translator's state, if it may have changed since it was last saved.
    pub(super) fn state_to_save(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        self.translator.as_ref().and_then(|translator| serde_json::to_string(translator).ok())
    }

    /// True when a turn waits, nothing runs, and nothing stands in the way.
    pub(super) fn can_start(&self, now: Instant) -> bool {
        self.is_quiet()
            && !self.work.deleted
            && self.work.queued.is_some()
            && self.not_before.is_none_or(|moment| moment <= now)
    }

    /// True when nothing runs and nothing is on its way to opencode.
    pub(super) fn is_quiet(&self) -> bool {
        self.turn.is_none() && !self.busy && self.in_flight == 0
    }

    /// True when the session needs nobody's care.
    pub(super) fn is_done(&self) -> bool {
        self.is_quiet() && self.work.queued.is_none() && !self.work.deleted
    }

    /// True when the session has needed nobody's care for `linger`: until then late events, such as a title, come.
    pub(super) fn is_over(&mut self, now: Instant, linger: Duration) -> bool {
        if !self.is_done() {
            self.done_since = None;
            return false;
        }
        self.standing = Standing::Unverified;
        now.saturating_duration_since(*self.done_since.get_or_insert(now)) >= linger
    }

    /// Notes that the oldest queued turn waits for what it needs.
    pub(super) fn block(&mut self, now: Instant) -> Option<&mut Blocked> {
        let turn = self.work.queued.as_ref()?.id;
        if self.blocked.as_ref().is_none_or(|blocked| blocked.turn != turn) {
            self.blocked = Some(Blocked { turn, since: now, why: None });
        }
        self.blocked.as_mut()
    }

    /// An ask's deadline has passed, and nobody has settled it.
    pub(super) fn has_late_ask(&self, now: Timestamp) -> bool {
        self.asks.iter().any(|(id, ask)| ask.expires_at <= now && !self.settled.contains_key(id))
    }
}

/// State of the translation as stored. Whoever sent an abort is gone.
fn resume_translator(work: &SessionWork) -> Option<SessionTranslator> {
    match serde_json::from_str::<SessionTranslator>(work.translator.as_ref()?) {
        Ok(mut translator) => {
            translator.abort_failed();
            Some(translator)
        }
        Err(error) => {
            tracing::error!(session_id = %work.id, %error, "stored translator state is not understood");
            None
        }
    }
}

fn content_of(part: &PromptPart) -> PromptContent {
    match part {
        PromptPart::Text { text } => PromptContent::Text(text.clone()),
        PromptPart::File { mime, filename, url } => {
            PromptContent::File { mime: mime.clone(), url: url.clone(), filename: filename.clone() }
        }
        PromptPart::Agent { name } => PromptContent::Agent(name.clone()),
    }
}

impl Running {
    pub(super) fn new(turn: &OpenTurn, message_id: String, limits: WatchdogLimits, now: Instant) -> Self {
        Self {
            id: turn.id,
            prompt: turn.prompt.clone(),
            message_id,
            posting: false,
            repost: None,
            aborting: false,
            unwanted_since: None,
            hand_over_by: None,
            watchdog: Watchdog::new(limits, Duration::ZERO, now),
        }
    }

    /// A turn that another owner, or this process before its restart, had started: its prompt may not have left. Its
    /// clock begins anew: how much of the time since its start somebody waited for a person is not known.
    fn resumed(turn: &OpenTurn, limits: WatchdogLimits, now: Instant) -> Option<Self> {
        let mut running = Self::new(turn, turn.message_id.clone()?, limits, now);
        running.repost = Some(Repost::SameBoot);
        Some(running)
    }

    /// The prompt for opencode. Part ids follow from the message id, so that sending it again repeats them.
    pub(super) fn to_prompt(&self) -> Prompt {
        let stem = self.message_id.strip_prefix("msg_").unwrap_or(&self.message_id);
        let stem: String = stem.chars().take(24).collect();
        let part = |(index, part): (usize, &PromptPart)| berth_opencode::PromptPart {
            id: format!("prt_{stem}{index:02}"),
            content: content_of(part),
        };
        Prompt::new(self.message_id.clone(), self.prompt.iter().enumerate().map(part).collect())
    }
}
