//! What an opencode that sent some events would answer when its state is read. Pure.

use crate::{
    event::Event,
    model::{MessageWithParts, Part, SessionStatus},
    translate::Snapshot,
};

impl Snapshot {
    /// Takes an event of a recording into the state of session `root`. Deltas change nothing: the text of an open part
    /// is empty.
    pub fn take(&mut self, root: &str, event: &Event) {
        match event {
            Event::MessageUpdated(info) if info.session_id == root => {
                match self.messages.iter_mut().find(|message| message.info.id == info.id) {
                    Some(message) => message.info = (**info).clone(),
                    None => {
                        self.messages.push(MessageWithParts { info: (**info).clone(), parts: Vec::new() });
                    }
                }
            }
            Event::MessageRemoved { message_id, .. } => {
                self.messages.retain(|message| message.info.id != *message_id);
            }
            Event::PartUpdated(part) if part.session_id == root => take_part(self, part),
            Event::PartRemoved { part_id, .. } => {
                for message in &mut self.messages {
                    message.parts.retain(|part| part.id != *part_id);
                }
            }
            Event::SessionCreated(info) if info.parent_id.is_some() => self.sessions.push(info.clone()),
            Event::SessionStatus { session_id, status } => take_status(self, root, session_id, status),
            Event::SessionIdle { session_id } => take_status(self, root, session_id, &SessionStatus::Idle),
            Event::PermissionAsked(request) => self.permissions.push(request.clone()),
            Event::PermissionReplied { request_id, .. } => {
                self.permissions.retain(|other| other.id != *request_id);
            }
            Event::QuestionAsked(request) => self.questions.push(request.clone()),
            Event::QuestionReplied { request_id, .. } | Event::QuestionRejected { request_id, .. } => {
                self.questions.retain(|other| other.id != *request_id);
            }
            _ => {}
        }
    }
}

fn take_status(snapshot: &mut Snapshot, root: &str, session: &str, status: &SessionStatus) {
    let busy = Some(status).filter(|status| **status != SessionStatus::Idle).cloned();
    if session == root {
        snapshot.status = busy;
        return;
    }
    snapshot.statuses.remove(session);
    snapshot.statuses.extend(busy.map(|status| (session.to_owned(), status)));
}

fn take_part(snapshot: &mut Snapshot, part: &Part) {
    let Some(message) = snapshot.messages.iter_mut().find(|message| message.info.id == part.message_id)
    else {
        return;
    };
    match message.parts.iter_mut().find(|other| other.id == part.id) {
        Some(other) => *other = part.clone(),
        None => message.parts.push(part.clone()),
    }
    message.parts.sort_by(|a, b| a.id.cmp(&b.id));
}
