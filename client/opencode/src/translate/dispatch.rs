//! What each event, and each piece of a snapshot, does to the state and adds to the log. Pure.

use agent_client_protocol_schema::v1 as acp;
use berth_wire::{
    event::{EventPayload, MessageRemoved, ProviderRetry, Resolution, Voice},
    turn::TurnErrorReason,
};
use jiff::Timestamp;

use super::{
    SessionTranslator, Snapshot, Translation,
    asks::{AskKind, Asker, OpenAsk},
    outcome::{self, Ending},
    retry::Retry,
    text::Source,
    tool::CallOutcome,
    turn::{StepNews, Turn},
};
use crate::{
    event::{Event, PartDelta},
    ids,
    model::{
        ErrorInfo, MessageInfo, Part, PartKind, PermissionRequest, QuestionRequest, Role, SessionInfo,
        SessionStatus, Todo, ToolReference,
    },
};

impl SessionTranslator {
    pub(super) fn on_event(&mut self, event: &Event, out: &mut Vec<Translation>) {
        match event {
            Event::SessionCreated(info) | Event::SessionUpdated(info) => self.on_session(info, out),
            Event::SessionStatus { session_id, status } => self.on_status_of(session_id, status, out),
            Event::SessionIdle { session_id } => self.on_status_of(session_id, &SessionStatus::Idle, out),
            Event::SessionError { session_id: Some(session), error: Some(error) }
                if *session == self.root =>
            {
                self.on_error(error, out);
            }
            Event::MessageUpdated(info) => self.on_message(info, out),
            Event::MessageRemoved { session_id, message_id } if *session_id == self.root => {
                self.on_message_removed(message_id, out);
            }
            Event::PartRemoved { session_id, message_id, part_id } if *session_id == self.root => {
                self.on_part_removed(message_id, part_id, out);
            }
            Event::InstanceDisposed { directory } if self.is_of(directory) => self.on_disposed(out),
            Event::GlobalDisposed => self.on_disposed(out),
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
            self.on_subsession(info);
            return;
        }
        let Some(title) = info.chosen_title() else { return };
        if self.title.as_deref() != Some(title) {
            self.title = Some(title.to_owned());
            let update = acp::SessionInfoUpdate::new().title(title.to_owned());
            push(out, acp::SessionUpdate::SessionInfoUpdate(update).into());
        }
    }

    /// A session that is not the root: a subagent's of this turn, unless it was there before.
    pub(super) fn on_subsession(&mut self, info: &SessionInfo) {
        if let Some(turn) = self.turn.as_mut().filter(|turn| !turn.is_older(info.time.created)) {
            turn.family.note_session(&self.root, info);
        }
    }

    pub(super) fn on_status_of(&mut self, session: &str, status: &SessionStatus, out: &mut Vec<Translation>) {
        if session == self.root {
            return self.on_status(status, out);
        }
        let Some(turn) = &mut self.turn else { return };
        if let Some(retry) = turn.family.note_status(session, status) {
            push(out, told(&retry, turn.family.root_call(session)));
        }
    }

    pub(super) fn on_status(&mut self, status: &SessionStatus, out: &mut Vec<Translation>) {
        let Some(turn) = &mut self.turn else { return };
        if *status == SessionStatus::Idle {
            turn.note_retry(status);
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
        if let Some(retry) = turn.note_retry(status) {
            extend(out, turn.texts.void_open());
            push(out, told(&retry, None));
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
        } else if ending != Ending::Aborted && !self.is_late(&ending) {
            self.echo_due = true;
            self.end(outcome::failed(outcome::refused(error)), out);
        }
    }

    /// It is the error of the turn before, whose end a snapshot showed sooner than the events.
    fn is_late(&self, ending: &Ending) -> bool {
        let (Ending::Failed(error), Some(untold)) = (ending, &self.untold) else { return false };
        (error.reason, &error.message) == (untold.reason, &untold.message)
    }

    pub(super) fn on_message(&mut self, info: &MessageInfo, out: &mut Vec<Translation>) {
        let Some(turn) = self.turn.as_mut().filter(|_| info.session_id == self.root) else { return };
        if info.role == Role::User && info.id == turn.user_message() {
            turn.see_prompt(info.time.created);
        }
        let (earlier, removed) = (&self.earlier, &self.removed);
        let is_past = |id: &str| earlier.iter().chain(removed).any(|old| old == id);
        if info.role != Role::Assistant || !turn.owns(info, is_past) {
            return;
        }
        start(turn, out);
        if turn.see_step(info) == StepNews::Begins {
            if let Some(error) = turn.see_busy() {
                push(out, EventPayload::TurnError(error));
            }
            self.tell_mode(info, out);
        }
        self.tell_usage(out);
    }

    /// The agent of the steps is what ACP calls a mode. Summaries are written by an agent of their own.
    fn tell_mode(&mut self, info: &MessageInfo, out: &mut Vec<Translation>) {
        let Some(agent) = info.agent.as_deref().filter(|_| !info.is_summary()) else { return };
        if self.mode.as_deref() != Some(agent) {
            self.mode = Some(agent.to_owned());
            let update = acp::CurrentModeUpdate::new(agent.to_owned());
            push(out, acp::SessionUpdate::CurrentModeUpdate(update).into());
        }
    }

    /// Tells how full the context is after each step, where the model's size is known.
    pub(super) fn tell_usage(&mut self, out: &mut Vec<Translation>) {
        let (Some(turn), Some(context)) = (&mut self.turn, &self.context) else { return };
        let used = turn.take_contexts(&context.model);
        let cost = self.cost + turn.usage().unwrap_or_default().cost_usd;
        for used in used {
            let cost = (cost > 0.0).then(|| acp::Cost::new(cost, "USD"));
            let update = acp::UsageUpdate::new(used, context.tokens).cost(cost);
            push(out, acp::SessionUpdate::UsageUpdate(update).into());
        }
    }

    pub(super) fn on_part(&mut self, part: &Part, source: Source, out: &mut Vec<Translation>) {
        let Some(turn) = &mut self.turn else { return };
        if let PartKind::Tool(tool) = &part.kind
            && (turn.shows(&part.message_id) || turn.family.contains(&part.session_id))
        {
            turn.family.note_call(&part.session_id, &part.id, tool);
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
            PartKind::StepFinish(_) => {
                turn.texts.not_text(id);
                turn.see_step_finish(message);
            }
            PartKind::Other => turn.texts.not_text(id),
        }
    }

    fn on_delta(&mut self, delta: &PartDelta, out: &mut Vec<Translation>) {
        let Some(turn) = &mut self.turn else { return };
        if delta.session_id == self.root && delta.field == "text" && turn.shows(&delta.message_id) {
            extend(out, turn.texts.delta(&delta.part_id, &delta.delta));
        }
    }

    /// The running turn's prompt cannot be answered any more, a step of it is void, and what is older is told: whose turn
    /// it was of, if any, the log knows, also of turns that are long past. Anything else is counted.
    fn on_message_removed(&mut self, message: &str, out: &mut Vec<Translation>) {
        if self.removed.iter().any(|removed| removed == message) {
            self.ignored = self.ignored.saturating_add(1);
            return;
        }
        if self.turn.as_ref().is_some_and(|turn| turn.user_message() == message) {
            self.remember_removed(message);
            return self.on_prompt_removed(out);
        }
        if let Some(turn) = self.turn.as_mut().filter(|turn| turn.has_step(message)) {
            extend(out, turn.texts.remove(None, message));
            extend(out, turn.tools.remove(None, message));
            turn.forget_step(message);
        } else if self.is_earlier_message(message) {
            let removed = MessageRemoved { message_id: message.to_owned() };
            push(out, EventPayload::MessageRemoved(removed));
        } else {
            self.ignored = self.ignored.saturating_add(1);
            return;
        }
        self.remember_removed(message);
    }

    /// The message is of before the turn that runs, as far as can be told.
    fn is_earlier_message(&self, message: &str) -> bool {
        let is_older = self
            .turn
            .as_ref()
            .map_or_else(|| ids::tells_time(message), |turn| turn.is_older_message(message));
        is_older || self.earlier.iter().any(|earlier| earlier == message)
    }

    fn on_prompt_removed(&mut self, out: &mut Vec<Translation>) {
        let Some(turn) = &mut self.turn else { return };
        let message = "The turn's prompt was removed from opencode's session while it ran. Send it again.";
        let error = outcome::error(TurnErrorReason::PromptRemoved, message);
        if turn.is_started() {
            turn.request_abort(error.clone());
            out.push(Translation::Abort(error));
        } else {
            self.end(outcome::failed(error), out);
        }
    }

    fn on_part_removed(&mut self, message: &str, part: &str, out: &mut Vec<Translation>) {
        match self.turn.as_mut().filter(|turn| turn.shows(message)) {
            Some(turn) => {
                extend(out, turn.texts.remove(Some(part), message));
                extend(out, turn.tools.remove(Some(part), message));
            }
            None => self.ignored = self.ignored.saturating_add(1),
        }
    }

    /// The directory's instance was closed. opencode aborts its turns before it says so; one that has not ended by then
    /// never will. Before the start it may still be taken by the next instance.
    fn on_disposed(&mut self, out: &mut Vec<Translation>) {
        if self.turn.as_ref().is_some_and(|turn| turn.is_started()) {
            let message = "opencode closed the session's directory in the middle of the turn. What it had said is kept, \
                           and nothing was run again. Send another prompt to go on.";
            self.end(outcome::failed(outcome::error(TurnErrorReason::InstanceDisposed, message)), out);
        }
    }

    fn on_permission(&mut self, request: &PermissionRequest, out: &mut Vec<Translation>) {
        if let Some(asker) = self.asker(&request.id, &request.session_id, request.tool.as_ref()) {
            extend(out, self.asks.permission(request, asker));
        }
    }

    fn on_question(&mut self, request: &QuestionRequest, out: &mut Vec<Translation>) {
        if let Some(asker) = self.asker(&request.id, &request.session_id, request.tool.as_ref()) {
            extend(out, self.asks.question(request, asker));
        }
    }

    /// Who asks, if it is of the turn. Requests of aborted turns stay listed for ever, so one of the root counts only
    /// while its message is open, and none that is older than the prompt. A `doom_loop` names no message.
    fn asker(&self, request: &str, session: &str, tool: Option<&ToolReference>) -> Option<Asker> {
        let turn = self.turn.as_ref().filter(|turn| turn.is_started() && !turn.is_older_id(request))?;
        if session != self.root {
            let call = turn.family.root_call(session);
            return turn.family.contains(session).then_some(Asker { call, subagent: true });
        }
        let open = tool.is_none_or(|tool| turn.is_open_step(&tool.message_id));
        open.then(|| Asker { call: tool.and_then(|tool| turn.tools.id_of(tool)), subagent: false })
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

    /// What subagents do now; those that are not listed do nothing.
    pub(super) fn reconcile_statuses(&mut self, snapshot: &Snapshot, out: &mut Vec<Translation>) {
        for session in &snapshot.sessions {
            let status = snapshot.statuses.get(&session.id).unwrap_or(&SessionStatus::Idle);
            self.on_status_of(&session.id, status, out);
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

/// `call` is the one whose subagent waits.
fn told(retry: &Retry, call: Option<String>) -> EventPayload {
    let next_at = Timestamp::from_millisecond(retry.next).ok().filter(|_| retry.next > 0);
    let (attempt, message) = (retry.attempt, retry.message.clone());
    EventPayload::ProviderRetry(ProviderRetry { attempt, message, next_at, tool_call_id: call })
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
