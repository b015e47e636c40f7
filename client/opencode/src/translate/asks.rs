//! Requests for permissions and answers that wait for a person: each is asked once and settled once. Pure.

use std::collections::VecDeque;

use berth_wire::event::{
    EventPayload, PermissionRequested, PermissionResolved, QuestionRequested, QuestionResolved, Resolution,
    ResolvedBy,
};
use serde::{Deserialize, Serialize};

use super::one_line;
use crate::model::{PermissionRequest, QuestionRequest};

/// How many settled requests are remembered: opencode lists those of aborted turns for ever.
const SETTLED_LIMIT: usize = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum AskKind {
    Permission,
    Question,
}

/// A request that waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenAsk {
    pub(super) id: String,
    pub(super) kind: AskKind,
    /// Tool call that waits, by its id in ACP, when it is the turn's session that asks.
    pub(super) call: Option<String>,
}

impl OpenAsk {
    fn resolved(self, resolution: Resolution) -> EventPayload {
        let by = ResolvedBy::Opencode;
        match self.kind {
            AskKind::Permission => EventPayload::PermissionResolved(PermissionResolved {
                permission_id: self.id,
                resolution,
                by,
            }),
            AskKind::Question => {
                EventPayload::QuestionResolved(QuestionResolved { question_id: self.id, resolution, by })
            }
        }
    }
}

/// Who asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Asker {
    /// The root session's tool call behind it, by its id in ACP.
    pub(super) call: Option<String>,
    /// It is a subagent that asks.
    pub(super) subagent: bool,
}

/// The requests of a session and its subagents.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Asks {
    open: Vec<OpenAsk>,
    settled: VecDeque<String>,
}

impl Asks {
    /// A permission is asked for.
    pub(super) fn permission(&mut self, request: &PermissionRequest, asker: Asker) -> Option<EventPayload> {
        self.admit(AskKind::Permission, &request.id, &asker)?;
        let title = if request.patterns.is_empty() {
            request.permission.clone()
        } else {
            format!("{}: {}", request.permission, request.patterns.join(", "))
        };
        Some(EventPayload::PermissionRequested(PermissionRequested {
            permission_id: request.id.clone(),
            permission: request.permission.clone(),
            patterns: request.patterns.clone(),
            always: request.always.clone(),
            tool_call_id: asker.call,
            title: one_line(&title),
            metadata: request.metadata.clone(),
            expires_at: None,
        }))
    }

    /// Questions are asked.
    pub(super) fn question(&mut self, request: &QuestionRequest, asker: Asker) -> Option<EventPayload> {
        self.admit(AskKind::Question, &request.id, &asker)?;
        Some(EventPayload::QuestionRequested(QuestionRequested {
            question_id: request.id.clone(),
            questions: request.questions.clone(),
            tool_call_id: asker.call,
        }))
    }

    /// `None` when it was seen before.
    fn admit(&mut self, kind: AskKind, id: &str, asker: &Asker) -> Option<()> {
        if self.open.iter().any(|ask| ask.id == id) || self.settled.iter().any(|settled| settled == id) {
            return None;
        }
        let call = asker.call.clone().filter(|_| !asker.subagent);
        self.open.push(OpenAsk { id: id.to_owned(), kind, call });
        Some(())
    }

    /// A request was answered; nothing when it was not open.
    pub(super) fn settle(&mut self, id: &str, resolution: Resolution) -> Option<EventPayload> {
        let index = self.open.iter().position(|ask| ask.id == id)?;
        let ask = self.open.remove(index);
        self.remember(&ask.id);
        Some(ask.resolved(resolution))
    }

    /// A person is waited for.
    pub(super) fn any_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// The turn ended: nobody can answer what is open.
    pub(super) fn drop_all(&mut self) -> Vec<EventPayload> {
        let open = std::mem::take(&mut self.open);
        for ask in &open {
            self.remember(&ask.id);
        }
        open.into_iter().map(|ask| ask.resolved(Resolution::Dropped)).collect()
    }

    fn remember(&mut self, id: &str) {
        if self.settled.len() == SETTLED_LIMIT {
            self.settled.pop_front();
        }
        self.settled.push_back(id.to_owned());
    }

    /// Open requests of a kind that opencode no longer lists.
    pub(super) fn missing(&self, kind: AskKind, listed: impl Fn(&str) -> bool) -> Vec<OpenAsk> {
        let gone = |ask: &&OpenAsk| ask.kind == kind && !listed(&ask.id);
        self.open.iter().filter(gone).cloned().collect()
    }
}
