//! What each event, and each piece of a snapshot, does to the state and adds to the log. Pure.

use agent_client_protocol_schema::v1 as acp;
use berth_wire::event::{EventPayload, ProviderRetry, Resolution, Voice};
use jiff::Timestamp;

use super::{
    SessionTranslator, Snapshot, Translation,
    asks::{AskKind, OpenAsk},
    outcome::{self, Ending},
    text::Source,
    tool::CallOutcome,
    turn::Turn,
};
use crate::{
    event::{Event, PartDelta},
    model::{
        ErrorInfo, MessageInfo, Part, PartKind, PermissionRequest, QuestionRequest, Role, SessionInfo,
        SessionStatus, Todo, ToolReference,
    },
};

/// Who asks for a permission or an answer.
struct Asker {
    /// The root's tool call behind it.
    call: Option<String>,
}

impl SessionTranslator {
    pub(super) fn on_event(&mut self, event: &Event, out: &mut Vec<Translation>) {
        match event {
            Event::SessionCreated(info) | Event::SessionUpdated(info) => self.on_session(info, out),
            Event::SessionStatus { session_id, status } if *session_id == self.root => {
                self.on_status(status, out);
            }
            Event::SessionIdle { session_id } if *session_id == self.root => {
                self.on_status(&SessionStatus::Idle, out);
            }
            Event::SessionError { session_id: Some(session), error: Some(error) }
                if *session == self.root =>
            {
                self.on_error(error, out);
            }
            Event::MessageUpdated(info) => self.on_message(info, out),
            Event::MessageRemoved { session_id, message_id } if *session_id == self.root => {
                self.on_removed(message_id, None, out);
            }
            Event::PartRemoved { session_id, message_id, part_id } if *session_id == self.root => {
                self.on_removed(message_id, Some(part_id), out);
            }
            Event::PartUpdated(part) => self.on_part(part, Source::Live, out),
            Event::PartDelta(delta) => self.on_delta(delta, out),
            Event::PermissionAsked(request) => self.on_permission(request, out),
            Event::QuestionAsked(request) => self.on_question(request, out),
            Event::PermissionReplied { request_id, reply, .. } => {
                self.on_resolved(request_id, permission_resolution(reply), out);
            }
            Event::QuestionReplied { request_id, .. } => {
                self.on_resolved(request_id, Resolution::Answered, out);
            }
            Event::QuestionRejected { request_id, .. } => {
                self.on_resolved(request_id, Resolution::Rejected, out);
            }
            Event::TodoUpdated { session_id, todos } if *session_id == self.root => {
                let plan = acp::Plan::new(todos.iter().filter_map(plan_entry).collect());
                push(out, acp::SessionUpdate::Plan(plan).into());
            }
            _ => {}
        }
    }

    fn on_session(&mut self, info: &SessionInfo, out: &mut Vec<Translation>) {
        if info.id != self.root {
            if let Some(turn) = &mut self.turn {
                turn.family.note_session(&self.root, info);
            }
            return;
        }
        let Some(title) = info.chosen_title() else { return };
        if self.title.as_deref() != Some(title) {
            self.title = Some(title.to_owned());
            let update = acp::SessionInfoUpdate::new().title(title.to_owned());
            push(out, acp::SessionUpdate::SessionInfoUpdate(update).into());
        }
    }

    pub(super) fn on_status(&mut self, status: &SessionStatus, out: &mut Vec<Translation>) {
        let Some(turn) = &mut self.turn else { return };
        if *status == SessionStatus::Idle {
            return turn.see_idle();
        }
        if turn.prompt_seen() {
            start(turn, out);
        }
        if !turn.is_started() {
            return;
        }
        if let Some(error) = turn.see_busy() {
            push(out, EventPayload::TurnError(error));
        }
        if let SessionStatus::Retry { attempt, message, next } = status
            && turn.see_retry(status)
        {
            extend(out, turn.texts.void_open());
            let next_at = Timestamp::from_millisecond(*next).ok().filter(|_| *next > 0);
            let (attempt, message) = (*attempt, message.clone());
            push(out, EventPayload::ProviderRetry(ProviderRetry { attempt, message, next_at }));
        }
    }

    fn on_error(&mut self, error: &ErrorInfo, out: &mut Vec<Translation>) {
        if self.echo_due && error.message().contains("\n    at ") {
            self.echo_due = false;
            return;
        }
        let Some(turn) = &mut self.turn else { return };
        let ending = outcome::of_error(error, None);
        if turn.is_started() {
            turn.see_error(ending);
        } else if ending != Ending::Aborted {
            self.echo_due = true;
            self.end(outcome::failed(outcome::refused(error)), out);
        }
    }

    pub(super) fn on_message(&mut self, info: &MessageInfo, out: &mut Vec<Translation>) {
        let Some(turn) = self.turn.as_mut().filter(|_| info.session_id == self.root) else { return };
        if info.role == Role::User && info.id == turn.user_message() {
            turn.see_prompt(info.time.created);
        }
        let earlier = &self.earlier;
        if info.role != Role::Assistant || !turn.owns(info, |id| earlier.iter().any(|old| old == id)) {
            return;
        }
        start(turn, out);
        if turn.see_step(info)
            && let Some(error) = turn.see_busy()
        {
            push(out, EventPayload::TurnError(error));
        }
    }

    pub(super) fn on_part(&mut self, part: &Part, source: Source, out: &mut Vec<Translation>) {
        let Some(turn) = &mut self.turn else { return };
        if let PartKind::Tool(tool) = &part.kind
            && (turn.shows(&part.message_id) || turn.family.contains(&part.session_id))
        {
            turn.family.note_task(&part.session_id, tool);
        }
        if part.session_id != self.root || !turn.shows(&part.message_id) {
            return;
        }
        let (id, message) = (part.id.as_str(), part.message_id.as_str());
        match &part.kind {
            PartKind::Text(text) => extend(out, turn.texts.part(id, message, Voice::Message, text, source)),
            PartKind::Reasoning(text) => {
                extend(out, turn.texts.part(id, message, Voice::Thought, text, source));
            }
            PartKind::Tool(tool) => {
                turn.texts.not_text(id);
                extend(out, turn.tools.part(id, message, tool));
            }
            PartKind::StepStart => extend(out, turn.texts.void_before(message, id)),
            PartKind::StepFinish(_) | PartKind::Other => turn.texts.not_text(id),
        }
    }

    fn on_delta(&mut self, delta: &PartDelta, out: &mut Vec<Translation>) {
        let Some(turn) = &mut self.turn else { return };
        if delta.session_id == self.root && delta.field == "text" && turn.shows(&delta.message_id) {
            extend(out, turn.texts.delta(&delta.part_id, &delta.delta));
        }
    }

    fn on_removed(&mut self, message: &str, part: Option<&str>, out: &mut Vec<Translation>) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.shows(message)) else { return };
        extend(out, turn.texts.remove(part, message));
        if part.is_none() {
            turn.forget_step(message);
        }
    }

    fn on_permission(&mut self, request: &PermissionRequest, out: &mut Vec<Translation>) {
        if let Some(asker) = self.asker(&request.session_id, request.tool.as_ref()) {
            extend(out, self.asks.permission(request, asker.call));
        }
    }

    fn on_question(&mut self, request: &QuestionRequest, out: &mut Vec<Translation>) {
        if let Some(asker) = self.asker(&request.session_id, request.tool.as_ref()) {
            extend(out, self.asks.question(request, asker.call));
        }
    }

    /// Who asks, if it is of the turn. Requests of aborted turns stay listed for ever, so one of the root counts only
    /// while its message is open.
    fn asker(&self, session: &str, tool: Option<&ToolReference>) -> Option<Asker> {
        let turn = self.turn.as_ref()?;
        if session != self.root {
            return turn.family.contains(session).then(|| Asker { call: turn.family.root_call(session) });
        }
        match tool {
            Some(tool) => {
                turn.is_open_step(&tool.message_id).then(|| Asker { call: Some(tool.call_id.clone()) })
            }
            None => Some(Asker { call: None }),
        }
    }

    fn on_resolved(&mut self, request: &str, resolution: Resolution, out: &mut Vec<Translation>) {
        let Some(payload) = self.asks.settle(request, resolution) else { return };
        push(out, payload);
        if resolution == Resolution::Rejected
            && let Some(turn) = &mut self.turn
        {
            turn.see_rejection();
        }
    }

    pub(super) fn reconcile_asks(&mut self, snapshot: &Snapshot, out: &mut Vec<Translation>) {
        let (permissions, questions) = (&snapshot.permissions, &snapshot.questions);
        let gone =
            self.asks.missing(AskKind::Permission, |id| permissions.iter().any(|request| request.id == id));
        for ask in &gone {
            self.on_missing(ask, Resolution::Once, out);
        }
        let gone =
            self.asks.missing(AskKind::Question, |id| questions.iter().any(|request| request.id == id));
        for ask in &gone {
            self.on_missing(ask, Resolution::Answered, out);
        }
        for request in permissions {
            self.on_permission(request, out);
        }
        for request in questions {
            self.on_question(request, out);
        }
    }

    /// A request was settled unseen; its tool call tells how, if it is one of ours.
    fn on_missing(&mut self, ask: &OpenAsk, granted: Resolution, out: &mut Vec<Translation>) {
        let turn = self.turn.as_ref();
        let call = ask.call.as_deref().and_then(|call| turn.and_then(|turn| turn.tools.outcome(call)));
        let resolution = match call {
            Some(CallOutcome::Went) => granted,
            Some(CallOutcome::Rejected) => Resolution::Rejected,
            Some(CallOutcome::Failed) | None => Resolution::Dropped,
        };
        self.on_resolved(&ask.id, resolution, out);
    }
}

fn start(turn: &mut Turn, out: &mut Vec<Translation>) {
    if turn.start() {
        out.push(Translation::Started);
    }
}

fn push(out: &mut Vec<Translation>, payload: EventPayload) {
    out.push(Translation::Update(payload));
}

pub(super) fn extend(out: &mut Vec<Translation>, payloads: impl IntoIterator<Item = EventPayload>) {
    out.extend(payloads.into_iter().map(Translation::Update));
}

fn permission_resolution(reply: &str) -> Resolution {
    match reply {
        "once" => Resolution::Once,
        "always" => Resolution::Always,
        _ => Resolution::Rejected,
    }
}

/// ACP knows no cancelled entries: they leave the plan.
fn plan_entry(todo: &Todo) -> Option<acp::PlanEntry> {
    let status = match todo.status.as_str() {
        "in_progress" => acp::PlanEntryStatus::InProgress,
        "completed" => acp::PlanEntryStatus::Completed,
        "cancelled" => return None,
        _ => acp::PlanEntryStatus::Pending,
    };
    let priority = match todo.priority.as_str() {
        "high" => acp::PlanEntryPriority::High,
        "low" => acp::PlanEntryPriority::Low,
        _ => acp::PlanEntryPriority::Medium,
    };
    Some(acp::PlanEntry::new(todo.content.clone(), priority, status))
}
