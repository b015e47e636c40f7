//! Requests for permissions and answers: when a tool asks, and what an answer does. No IO.

use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::world::World;

/// Which of the two lists a request is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AskKind {
    Permission,
    Question,
}

/// What a request was answered with.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Reply {
    Allow,
    Reject { message: Option<String> },
    Answers(Value),
    Dismiss,
}

/// An open request.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) kind: AskKind,
    pub(super) session: String,
    pub(super) directory: String,
    /// As it is listed and sent.
    pub(super) request: Value,
    /// Who waits; gone once its turn was aborted, though the request stays listed.
    answer: oneshot::Sender<Reply>,
}

/// Which permission a tool needs.
pub(super) fn permission_of(tool: &str) -> &str {
    match tool {
        "write" | "edit" | "patch" | "multiedit" => "edit",
        other => other,
    }
}

impl World {
    /// Opens a request and tells of it; `request` has everything but its id.
    pub(super) fn ask(
        &mut self,
        kind: AskKind,
        session: &str,
        mut request: Value,
        now: i64,
    ) -> oneshot::Receiver<Reply> {
        let (prefix, event) = match kind {
            AskKind::Permission => ("per", "permission.asked"),
            AskKind::Question => ("que", "question.asked"),
        };
        let id = self.new_id(prefix, now);
        request["id"] = json!(id);
        request["sessionID"] = json!(session);
        let (answer, waiting) = oneshot::channel();
        let directory =
            self.sessions.get(session).map(|session| session.directory.clone()).unwrap_or_default();
        let ask = Ask { kind, session: session.to_owned(), directory, request: request.clone(), answer };
        self.asks.insert(id, ask);
        self.publish(session, event, request, now);
        waiting
    }

    /// Open requests of the directory, those of aborted turns included.
    pub(super) fn open_asks(&self, kind: AskKind, directory: &str) -> Vec<Value> {
        let here = self.asks.values().filter(|ask| ask.kind == kind && ask.directory == directory);
        here.map(|ask| ask.request.clone()).collect()
    }

    /// Answers a permission; false when there is no such request.
    pub(super) fn reply_permission(
        &mut self,
        id: &str,
        reply: &str,
        message: Option<String>,
        now: i64,
    ) -> bool {
        let Some(ask) = self.take_ask(AskKind::Permission, id) else { return false };
        let session = ask.session.clone();
        if reply == "always" {
            let permission = ask.request["permission"].as_str().unwrap_or_default().to_owned();
            self.always.push((ask.directory.clone(), permission));
        }
        self.settle_permission(ask, reply, message, now);
        if reply == "reject" {
            let others: Vec<String> = self
                .asks
                .iter()
                .filter(|(_, ask)| ask.kind == AskKind::Permission && ask.session == session)
                .map(|(id, _)| id.clone())
                .collect();
            for other in others {
                if let Some(ask) = self.take_ask(AskKind::Permission, &other) {
                    self.settle_permission(ask, reply, None, now);
                }
            }
        }
        true
    }

    fn settle_permission(&mut self, ask: Ask, reply: &str, message: Option<String>, now: i64) {
        let properties = json!({ "sessionID": ask.session, "requestID": ask.request["id"], "reply": reply });
        self.publish(&ask.session, "permission.replied", properties, now);
        let reply = if reply == "reject" { Reply::Reject { message } } else { Reply::Allow };
        // Nobody waits any more when its turn was aborted.
        let _ = ask.answer.send(reply);
    }

    /// Answers questions, or dismisses them; false when there is no such request.
    pub(super) fn reply_question(&mut self, id: &str, answers: Option<&Value>, now: i64) -> bool {
        let Some(ask) = self.take_ask(AskKind::Question, id) else { return false };
        let mut properties = json!({ "sessionID": ask.session, "requestID": id });
        let (event, reply) = match answers {
            Some(answers) => {
                properties["answers"] = answers.clone();
                ("question.replied", Reply::Answers(answers.clone()))
            }
            None => ("question.rejected", Reply::Dismiss),
        };
        self.publish(&ask.session, event, properties, now);
        let _ = ask.answer.send(reply);
        true
    }

    fn take_ask(&mut self, kind: AskKind, id: &str) -> Option<Ask> {
        self.asks.get(id).filter(|ask| ask.kind == kind)?;
        self.asks.remove(id)
    }

    /// Whether the session's rules, the last that fits, or `by_default` make the permission one to ask for.
    pub(super) fn must_ask(&self, session: &str, permission: &str, by_default: bool) -> bool {
        let Some(state) = self.sessions.get(session) else { return false };
        if self
            .always
            .iter()
            .any(|(directory, allowed)| *directory == state.directory && allowed == permission)
        {
            return false;
        }
        let rules = state.info["permission"].as_array().map(Vec::as_slice).unwrap_or_default();
        let fits = |rule: &&Value| rule["permission"] == permission || rule["permission"] == "*";
        rules.iter().rfind(fits).map_or(by_default, |rule| rule["action"] == "ask")
    }
}
