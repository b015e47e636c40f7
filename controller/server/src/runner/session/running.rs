//! A turn that runs: its prompt, how far that got, and its clocks. Pure.

use std::time::Duration;

use berth_opencode::{ModelReference, Prompt, PromptContent, Watchdog, WatchdogLimits};
use berth_wire::{api::PromptPart, turn::TurnError};
use tokio::time::Instant;
use uuid::Uuid;

use super::unasked::Ends;
use crate::store::{OpenTurn, TurnOptions};

/// Characters of the message id that part ids repeat: they end in two digits, which keep the parts' order.
const STEM: usize = 24;
/// Used wall clock is stored after so much of it.
const ACTIVE_STEP: Duration = Duration::from_secs(5);

/// A running turn.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: Uuid,
    prompt: Vec<PromptPart>,
    options: TurnOptions,
    pub(super) message_id: String,
    pub(super) delivery: Delivery,
    /// An abort is on its way.
    pub(super) aborting: bool,
    /// Aborts that did not arrive, and when the next one may leave.
    pub(super) abort_failures: u32,
    pub(super) abort_not_before: Option<Instant>,
    /// Since when it is to end.
    pub(super) unwanted_since: Option<Instant>,
    pub(super) watchdog: Watchdog,
    pub(super) ends: Ends,
    /// When something was heard of it last.
    pub(super) heard_at: Instant,
    /// How much of its wall clock was stored as used.
    stored_active: Duration,
}

/// How far the prompt got.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    /// The prompt, or a look for it, is on its way to opencode.
    pub(super) calling: bool,
    /// It may have to be sent again: it was not taken for sure, or opencode was started anew.
    pub(super) doubt: Option<Doubt>,
    /// It has not begun in time, as far as events tell: the last look decides whether this ends the turn.
    pub(super) late: Option<TurnError>,
    /// When a prompt that may not have arrived must have; none while nothing speaks against its arrival.
    pub(super) by: Option<Instant>,
    /// Since when the gate keeps it out.
    pub(super) gated_since: Option<Instant>,
}

/// Why a prompt may have to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Doubt {
    /// The call broke, or opencode passed the prompt over. The same ids are safe while it has not begun.
    SameBoot,
    /// opencode was started anew: only if no assistant answered this prompt before.
    OtherBoot,
}

impl Running {
    pub(super) fn new(turn: &OpenTurn, message_id: String, limits: WatchdogLimits, now: Instant) -> Self {
        Self {
            id: turn.id,
            prompt: turn.prompt.clone(),
            options: turn.options.clone(),
            message_id,
            delivery: Delivery::default(),
            aborting: false,
            abort_failures: 0,
            abort_not_before: None,
            unwanted_since: None,
            ends: Ends::default(),
            watchdog: Watchdog::new(limits, turn.active, now),
            heard_at: now,
            stored_active: turn.active,
        }
    }

    /// A turn that another owner, or this process before its restart, had started: its prompt may not have left.
    pub(super) fn resumed(turn: &OpenTurn, limits: WatchdogLimits, now: Instant) -> Option<Self> {
        let mut running = Self::new(turn, turn.message_id.clone()?, limits, now);
        running.delivery.doubt = Some(Doubt::SameBoot);
        Some(running)
    }

    /// The trace that its prompt came in.
    pub(super) fn traceparent(&self) -> Option<&str> {
        self.options.traceparent.as_deref()
    }

    /// How much of its wall clock is used, when that is to be stored.
    pub(super) fn active_to_store(&mut self) -> Option<Duration> {
        let active = self.watchdog.active();
        let step = active.saturating_sub(self.stored_active) >= ACTIVE_STEP;
        step.then(|| {
            self.stored_active = active;
            active
        })
    }

    /// The prompt for opencode. Part ids follow from the message id, so that sending it again repeats them.
    pub(super) fn to_prompt(&self) -> Prompt {
        let stem = self.message_id.strip_prefix("msg_").unwrap_or(&self.message_id);
        let stem: String = stem.chars().take(STEM).collect();
        let part = |(index, part): (usize, &PromptPart)| berth_opencode::PromptPart {
            id: format!("prt_{stem}{index:02}"),
            content: content_of(part),
        };
        let model = self.options.model.as_ref().map(|model| ModelReference {
            provider_id: model.provider_id.clone(),
            model_id: model.model_id.clone(),
        });
        let parts = self.prompt.iter().enumerate().map(part).collect();
        Prompt { model, agent: self.options.agent.clone(), ..Prompt::new(&*self.message_id, parts) }
    }
}

/// A part in opencode's form.
pub(in super::super) fn content_of(part: &PromptPart) -> PromptContent {
    match part {
        PromptPart::Text { text } => PromptContent::Text(text.clone()),
        PromptPart::File { mime, filename, url } => {
            PromptContent::File { mime: mime.clone(), url: url.clone(), filename: filename.clone() }
        }
        PromptPart::Agent { name } => PromptContent::Agent(name.clone()),
    }
}
