//! What a runner holds in memory of a session that has something to do.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use berth_opencode::{Prompt, PromptContent, SessionTranslator, Watchdog, WatchdogLimits};
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
    /// What is known of opencode's session.
    pub(super) standing: Standing,
    /// Nothing is started before this moment.
    pub(super) not_before: Option<Instant>,
    /// Since when the oldest queued turn could not be started.
    pub(super) blocked_since: Option<Instant>,
    /// State must be read again: events may have been missed.
    pub(super) reconcile: bool,
    /// Unsettled asks.
    pub(super) asks: BTreeMap<String, Ask>,
    /// What was told to opencode about asks, until it confirms.
    pub(super) settled: HashMap<String, Settlement>,
}

/// What is known of opencode's session in this run of opencode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing: whether it exists must be looked up before the next prompt.
    Unverified,
    /// It exists, and the turn before came to an end of its own.
    Verified,
    /// The turn before did not: it must be proved idle before the next prompt.
    InDoubt,
}

/// An ask that waits.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) request: EventPayload,
    pub(super) expires_at: Timestamp,
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
        let stored = work.translator.as_deref();
        let translator = stored.and_then(|text| match serde_json::from_str(text) {
            Ok(translator) => Some(translator),
            Err(error) => {
                tracing::error!(session_id = %work.id, %error, "stored translator state is not understood");
                None
            }
        });
        let turn = work.running.as_ref().and_then(|turn| Running::resumed(turn, limits, now));
        let asks = work
            .asks
            .iter()
            .map(|ask| (ask.id.clone(), Ask { request: ask.request.clone(), expires_at: ask.expires_at }));
        Self {
            translator,
            changed: false,
            asks: asks.collect(),
            turn,
            busy: false,
            standing: Standing::Unverified,
            not_before: None,
            blocked_since: None,
            reconcile: false,
            settled: HashMap::new(),
            work,
        }
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
        self.turn.is_none()
            && !self.busy
            && !self.work.deleted
            && self.work.queued.is_some()
            && self.not_before.is_none_or(|moment| moment <= now)
    }

    /// True when the session needs nobody's care.
    pub(super) fn is_done(&self) -> bool {
        self.turn.is_none() && self.work.queued.is_none() && !self.work.deleted && !self.busy
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
            watchdog: Watchdog::new(limits, Duration::ZERO, now),
        }
    }

    /// A turn that another owner, or this process before its restart, had started: its prompt may not have left.
    fn resumed(turn: &OpenTurn, limits: WatchdogLimits, now: Instant) -> Option<Self> {
        let mut running = Self::new(turn, turn.message_id.clone()?, limits, now);
        running.repost = Some(Repost::SameBoot);
        let used = turn.started_at.map(|started| Timestamp::now().duration_since(started));
        let used = used.and_then(|used| used.try_into().ok()).unwrap_or_default();
        running.watchdog = Watchdog::new(limits, used, now);
        Some(running)
    }

    /// The prompt for opencode. Part ids follow from the message id, so that sending it again repeats them.
    pub(super) fn to_prompt(&self) -> Prompt {
        let stem = self.message_id.strip_prefix("msg_").unwrap_or(&self.message_id);
        let stem: String = stem.chars().take(24).collect();
        let part = |(index, part): (usize, &PromptPart)| berth_opencode::PromptPart {
            id: format!("prt_{stem}{index:02}"),
            content: PromptContent::Text(part.text().to_owned()),
        };
        Prompt::new(self.message_id.clone(), self.prompt.iter().enumerate().map(part).collect())
    }
}
