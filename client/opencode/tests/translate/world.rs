//! What `GET` would have answered after some events of a capture: the snapshots that a runner reads after a gap.

use berth_opencode::{
    Event, Snapshot,
    model::{MessageWithParts, Part},
};

use crate::replay::Capture;

/// The root's state after the first `count` events. Deltas change nothing: the text of an open part is empty.
pub(crate) fn snapshot(capture: &Capture, count: usize) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for event in &capture.events[..count] {
        take(&mut snapshot, &capture.root.id, &event.event);
    }
    snapshot
}

fn take(snapshot: &mut Snapshot, root: &str, event: &Event) {
    match event {
        Event::MessageUpdated(info) if info.session_id == root => {
            match snapshot.messages.iter_mut().find(|message| message.info.id == info.id) {
                Some(message) => message.info = (**info).clone(),
                None => {
                    snapshot.messages.push(MessageWithParts { info: (**info).clone(), parts: Vec::new() });
                }
            }
        }
        Event::PartUpdated(part) if part.session_id == root => take_part(snapshot, part),
        Event::SessionStatus { session_id, status } if session_id == root => {
            snapshot.status = Some(status.clone());
        }
        Event::SessionIdle { session_id } if session_id == root => snapshot.status = None,
        Event::PermissionAsked(request) => snapshot.permissions.push(request.clone()),
        Event::PermissionReplied { request_id, .. } => {
            snapshot.permissions.retain(|other| other.id != *request_id);
        }
        Event::QuestionAsked(request) => snapshot.questions.push(request.clone()),
        Event::QuestionReplied { request_id, .. } | Event::QuestionRejected { request_id, .. } => {
            snapshot.questions.retain(|other| other.id != *request_id);
        }
        _ => {}
    }
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
