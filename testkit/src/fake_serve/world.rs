//! What the fake knows: sessions, messages and open requests. Each change goes out as the events that opencode would
//! send. Holds no time and does no IO but for handing events to their subscribers.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;

use super::{
    asks::Ask,
    fault::{StreamFault, TurnFault},
    ids::Ids,
    shapes::{self, Place, Voice},
    unruly::{Outgoing, Unruly},
};

/// Events that a subscriber may be behind; one that is further behind is cut off.
const BACKLOG: usize = 16 * 1024;

/// What subscribers are told.
#[derive(Debug, Clone)]
pub(super) enum Signal {
    /// An event.
    Event(std::sync::Arc<Outgoing>),
    /// The open streams are to be spoiled.
    Spoil(StreamFault),
}

/// A prompt that waits for its turn.
#[derive(Debug, Clone)]
pub(super) struct Queued {
    pub(super) message: String,
    pub(super) parts: Vec<Value>,
    pub(super) voice: Voice,
    pub(super) spoiled: Option<TurnFault>,
    pub(super) streams: Option<StreamFault>,
    /// It was taken before: its message and parts are there.
    pub(super) again: bool,
}

/// A turn that runs.
#[derive(Debug, Clone)]
pub(super) struct Running {
    /// Ends it, as an abort does.
    pub(super) abort: CancellationToken,
    /// It has ended.
    pub(super) done: CancellationToken,
}

#[derive(Debug)]
struct Message {
    info: Value,
    parts: Vec<Value>,
}

/// A session and what runs in it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) info: Value,
    pub(super) directory: String,
    pub(super) status: Option<Value>,
    pub(super) running: Option<Running>,
    pub(super) queue: VecDeque<Queued>,
    pub(super) unruly: Unruly,
    messages: Vec<Message>,
    seq: u64,
}

/// All of it.
#[derive(Debug)]
pub(super) struct World {
    version: String,
    ids: Ids,
    feed: broadcast::Sender<Signal>,
    /// By id, which puts the newest first.
    pub(super) sessions: BTreeMap<String, Session>,
    pub(super) asks: BTreeMap<String, Ask>,
    /// Directories and permissions that were answered with `always`.
    pub(super) always: Vec<(String, String)>,
}

impl World {
    pub(super) fn new(version: &str) -> Self {
        Self {
            version: version.to_owned(),
            ids: Ids::default(),
            feed: broadcast::channel(BACKLOG).0,
            sessions: BTreeMap::new(),
            asks: BTreeMap::new(),
            always: Vec::new(),
        }
    }

    pub(super) fn subscribe(&self) -> broadcast::Receiver<Signal> {
        self.feed.subscribe()
    }

    pub(super) fn new_id(&mut self, prefix: &str, now: i64) -> String {
        self.ids.next(prefix, now)
    }

    /// Spoils the streams that are open.
    pub(super) fn spoil_streams(&self, fault: StreamFault) {
        // Nobody who listens is nobody to tell.
        let _ = self.feed.send(Signal::Spoil(fault));
    }

    /// Sends an event of a session, which need not exist.
    pub(super) fn publish(&mut self, session: &str, kind: &str, properties: Value, now: i64) {
        let directory = self.sessions.get(session).map(|session| session.directory.clone());
        let mut event = self.event(directory, kind, properties, now);
        let Some(state) = self.sessions.get_mut(session) else { return self.send(event) };
        if is_kept(kind) {
            let (id, data) = (&event.payload["id"], &event.payload["properties"]);
            let sync = json!({
                "id": id, "type": format!("{kind}.1"), "seq": state.seq, "aggregateID": session, "data": data,
            });
            state.seq += 1;
            event.sync = Some(json!({ "type": "sync", "syncEvent": sync, "id": id }));
        }
        for event in state.unruly.pass(event) {
            self.send(event);
        }
    }

    /// Sends an event of a directory, of no session and not kept.
    pub(super) fn publish_in(&mut self, directory: Option<String>, kind: &str, properties: Value, now: i64) {
        let event = self.event(directory, kind, properties, now);
        self.send(event);
    }

    fn event(&mut self, directory: Option<String>, kind: &str, properties: Value, now: i64) -> Outgoing {
        let mut payload = json!({ "id": self.ids.next("evt", now), "type": kind });
        payload["properties"] = properties;
        Outgoing { directory, payload, sync: None }
    }

    /// Nobody who listens is nobody to tell.
    fn send(&self, event: Outgoing) {
        let _ = self.feed.send(Signal::Event(std::sync::Arc::new(event)));
    }

    pub(super) fn create(&mut self, directory: &str, body: &Value, now: i64) -> Value {
        let id = self.ids.session(now);
        let info = shapes::session(&id, self.sessions.len(), directory, &self.version, body, now);
        let session = Session {
            info: info.clone(),
            directory: directory.to_owned(),
            status: None,
            running: None,
            queue: VecDeque::new(),
            unruly: Unruly::default(),
            messages: Vec::new(),
            seq: 0,
        };
        self.sessions.insert(id.clone(), session);
        self.publish(&id, "session.created", json!({ "sessionID": id, "info": info }), now);
        info
    }

    /// Changes a session's own fields and tells of it.
    pub(super) fn update(&mut self, id: &str, now: i64, change: impl FnOnce(&mut Value)) -> Option<Value> {
        let session = self.sessions.get_mut(id)?;
        change(&mut session.info);
        let info = session.info.clone();
        self.publish(id, "session.updated", json!({ "sessionID": id, "info": info }), now);
        Some(info)
    }

    pub(super) fn delete(&mut self, id: &str, now: i64) -> bool {
        let Some(info) = self.sessions.get(id).map(|session| session.info.clone()) else { return false };
        self.publish(id, "session.deleted", json!({ "sessionID": id, "info": info }), now);
        self.sessions.remove(id);
        true
    }

    /// Sessions of the directory, the newest first.
    pub(super) fn list(&self, directory: &str, limit: usize) -> Vec<Value> {
        let here = self.sessions.values().filter(|session| session.directory == directory);
        here.take(limit).map(|session| session.info.clone()).collect()
    }

    pub(super) fn children(&self, parent: &str) -> Vec<Value> {
        let of = self.sessions.values().filter(|session| session.info["parentID"] == parent);
        of.map(|session| session.info.clone()).collect()
    }

    /// What the directory's sessions do; idle ones are absent.
    pub(super) fn statuses(&self, directory: &str) -> Value {
        let here = self.sessions.iter().filter(|(_, session)| session.directory == directory);
        here.filter_map(|(id, session)| Some((id.clone(), session.status.clone()?))).collect()
    }

    /// The newest `limit` messages before the one of this id, oldest first; and whether there are older ones.
    pub(super) fn messages(
        &self,
        session: &str,
        limit: usize,
        before: Option<&str>,
    ) -> Option<(Vec<Value>, bool)> {
        let messages = &self.sessions.get(session)?.messages;
        let end = before.map_or(messages.len(), |id| {
            messages.iter().position(|message| message.info["id"] == id).unwrap_or(messages.len())
        });
        let start = end.saturating_sub(limit);
        let whole = |message: &Message| json!({ "info": message.info, "parts": message.parts });
        Some((messages[start..end].iter().map(whole).collect(), start > 0))
    }

    /// Whether a prompt of this id was taken before, and if so whether sending it again runs nothing: it is being
    /// worked on, or it is the newest and was answered without an error.
    pub(super) fn taken_before(&self, session: &str, message: &str) -> Option<bool> {
        let session = self.sessions.get(session)?;
        let prompt = session.messages.iter().position(|other| other.info["id"] == message)?;
        let newest = !session.messages[prompt + 1..].iter().any(|other| other.info["role"] == "user");
        let last = session.messages[prompt..].iter().rfind(|other| other.info["role"] == "assistant");
        let answered =
            last.is_some_and(|last| last.info["error"].is_null() && last.info["finish"].is_string());
        Some(session.running.is_some() || (newest && answered))
    }

    /// Stores a message, new or changed, and tells of it.
    pub(super) fn put_message(&mut self, session: &str, info: &Value, now: i64) {
        if let Some(session) = self.sessions.get_mut(session) {
            match session.messages.iter_mut().find(|message| message.info["id"] == info["id"]) {
                Some(message) => message.info = info.clone(),
                None => session.messages.push(Message { info: info.clone(), parts: Vec::new() }),
            }
        }
        self.publish(session, "message.updated", json!({ "sessionID": session, "info": info }), now);
    }

    /// Forgets a message and tells of it; of one that is not there it only tells.
    pub(super) fn remove_message(&mut self, session: &str, message: &str, now: i64) {
        if let Some(session) = self.sessions.get_mut(session) {
            session.messages.retain(|other| other.info["id"] != message);
        }
        self.publish(session, "message.removed", json!({ "sessionID": session, "messageID": message }), now);
    }

    /// Stores a part, new or changed, and tells of it.
    pub(super) fn put_part(&mut self, part: &Value, now: i64) {
        let session = part["sessionID"].as_str().unwrap_or_default().to_owned();
        if let Some(state) = self.sessions.get_mut(&session)
            && let Some(message) =
                state.messages.iter_mut().find(|message| message.info["id"] == part["messageID"])
        {
            match message.parts.iter_mut().find(|other| other["id"] == part["id"]) {
                Some(other) => *other = part.clone(),
                None => message.parts.push(part.clone()),
            }
        }
        let properties = json!({ "sessionID": session, "part": part, "time": now });
        self.publish(&session, "message.part.updated", properties, now);
    }

    /// Tells of more text; the stored part stays empty until it ends.
    pub(super) fn delta(&mut self, place: &Place, part: &str, text: &str, now: i64) {
        let properties = json!({
            "sessionID": place.session, "messageID": place.message, "partID": part, "field": "text", "delta": text,
        });
        self.publish(&place.session, "message.part.delta", properties, now);
    }

    pub(super) fn busy(&mut self, session: &str, now: i64) {
        self.set_status(session, json!({ "type": "busy" }), now);
    }

    pub(super) fn set_status(&mut self, session: &str, status: Value, now: i64) {
        let properties = json!({ "sessionID": session, "status": status });
        if let Some(state) = self.sessions.get_mut(session) {
            state.status = Some(status);
        }
        self.publish(session, "session.status", properties, now);
    }

    /// The session has nothing more to do.
    pub(super) fn idle(&mut self, session: &str, now: i64) {
        if let Some(state) = self.sessions.get_mut(session)
            && state.unruly.fault() != Some(TurnFault::NeverIdle)
        {
            state.status = None;
        }
        let status = json!({ "sessionID": session, "status": { "type": "idle" } });
        self.publish(session, "session.status", status, now);
        self.publish(session, "session.idle", json!({ "sessionID": session }), now);
    }

    pub(super) fn error(&mut self, session: &str, error: &Value, now: i64) {
        self.publish(session, "session.error", json!({ "sessionID": session, "error": error }), now);
    }

    /// What a kill and a new start leave: nothing runs, nothing is asked, and messages stay as they are.
    pub(super) fn forget_running(&mut self) {
        self.asks.clear();
        self.always.clear();
        for session in self.sessions.values_mut() {
            session.running = None;
            session.status = None;
            session.queue.clear();
            session.unruly = Unruly::default();
        }
    }
}

/// Whether opencode stores events of the kind, and so sends them as `sync` too.
fn is_kept(kind: &str) -> bool {
    matches!(
        kind,
        "session.created"
            | "session.updated"
            | "session.deleted"
            | "message.updated"
            | "message.part.updated"
    )
}
