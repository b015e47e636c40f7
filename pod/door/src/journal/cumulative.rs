//! Which updates tell the whole state of something, so that a later one makes an earlier one superfluous. Pure.
//!
//! opencode tells the state of a tool call again with each piece of its output: one chatty command makes 100 KB/s of
//! updates (measured on opencode 1.18.33), of which only the last says something that the next does not.
//!
//! # What stays
//!
//! Of the updates with one *subject* in one *phase*, the first and the last: who reads late still sees a call
//! pending, then running, then completed, each at its place among the other events. So does the last one before the
//! session went idle, so that each turn keeps its own end.
//!
//! | kind | subject | phase |
//! |---|---|---|
//! | `message.part.updated` of a tool | the part | its status, and whether it names a subagent's session |
//! | `message.updated` | the message | its role, finish, and whether it is completed and has an error |
//! | `session.updated`, `session.diff`, `todo.updated` | the session | one |
//!
//! Text and reasoning parts are never superseded: their few updates are what the deltas between them stand on. Nor is
//! any other kind.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use serde::{Deserialize, de::IgnoredAny};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum SubjectKind {
    ToolPart,
    Message,
    Session,
    Todos,
    Diff,
    /// A session went idle: what came before is not superseded by what comes after.
    Idle,
}

/// What an update is the state of.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Subject {
    kind: SubjectKind,
    id: Box<str>,
}

/// What an event says about a subject.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct News {
    subject: Subject,
    session: Box<str>,
    /// Updates in the same phase differ in nothing that must be seen.
    phase: Box<str>,
}

#[derive(Deserialize)]
struct PartProperties<'a> {
    #[serde(borrow)]
    part: PartFields<'a>,
}

#[derive(Deserialize)]
struct PartFields<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(rename = "sessionID", borrow)]
    session: Cow<'a, str>,
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    state: Option<StateFields<'a>>,
}

#[derive(Deserialize)]
struct StateFields<'a> {
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(default)]
    metadata: Option<MetadataFields>,
}

#[derive(Deserialize)]
struct MetadataFields {
    #[serde(rename = "sessionId", default)]
    session: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct MessageProperties<'a> {
    #[serde(borrow)]
    info: MessageFields<'a>,
}

#[derive(Deserialize)]
struct MessageFields<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(rename = "sessionID", borrow)]
    session: Cow<'a, str>,
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(default)]
    time: Option<TimeFields>,
    #[serde(default)]
    finish: Option<String>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct TimeFields {
    #[serde(default)]
    completed: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct InSession<'a> {
    #[serde(rename = "sessionID", borrow)]
    session: Cow<'a, str>,
}

impl News {
    /// Reads what an event of this kind says; `None` when it is no such update, or of a shape that is not known.
    pub(super) fn read(kind: &str, properties: &str) -> Option<Self> {
        let of_session = |kind| {
            let InSession { session } = serde_json::from_str(properties).ok()?;
            Some(Self::new(kind, &session, &session, ""))
        };
        match kind {
            "message.part.updated" => Self::read_part(properties),
            "message.updated" => Self::read_message(properties),
            "session.updated" => of_session(SubjectKind::Session),
            "session.diff" => of_session(SubjectKind::Diff),
            "todo.updated" => of_session(SubjectKind::Todos),
            "session.idle" => of_session(SubjectKind::Idle),
            _ => None,
        }
    }

    fn new(kind: SubjectKind, id: &str, session: &str, phase: &str) -> Self {
        Self { subject: Subject { kind, id: id.into() }, session: session.into(), phase: phase.into() }
    }

    fn read_part(properties: &str) -> Option<Self> {
        let PartProperties { part } = serde_json::from_str(properties).ok()?;
        let state = part.state.filter(|_| part.kind == "tool")?;
        let linked = state.metadata.is_some_and(|metadata| metadata.session.is_some());
        let phase =
            if linked { format!("{} with a session", state.status) } else { state.status.into_owned() };
        Some(Self::new(SubjectKind::ToolPart, &part.id, &part.session, &phase))
    }

    fn read_message(properties: &str) -> Option<Self> {
        let MessageProperties { info } = serde_json::from_str(properties).ok()?;
        let completed = info.time.is_some_and(|time| time.completed.is_some());
        let phase = format!("{} {completed} {} {:?}", info.role, info.error.is_some(), info.finish);
        Some(Self::new(SubjectKind::Message, &info.id, &info.session, &phase))
    }
}

#[derive(Debug)]
struct Newest {
    phase: Box<str>,
    position: u64,
    /// It is the first in its phase, which stays.
    first: bool,
}

/// The newest update of each subject in the ring.
#[derive(Debug, Default)]
pub(super) struct Index {
    newest: HashMap<Arc<Subject>, Newest>,
}

impl Index {
    /// Takes note of an update at this position. Gives its subject, and the position of the one that it supersedes.
    pub(super) fn note(&mut self, news: News, position: u64) -> (Arc<Subject>, Option<u64>) {
        let News { subject, session, phase } = news;
        let idle = self.newest.get(&Subject { kind: SubjectKind::Idle, id: session });
        let idle = idle.map_or(0, |idle| idle.position);
        let Some((subject, before)) = self.newest.remove_entry(&subject) else {
            let subject = Arc::new(subject);
            self.newest.insert(Arc::clone(&subject), Newest { phase, position, first: true });
            return (subject, None);
        };
        let first = before.phase != phase || before.position < idle || subject.kind == SubjectKind::Idle;
        let superseded = (!first && !before.first).then_some(before.position);
        self.newest.insert(Arc::clone(&subject), Newest { phase, position, first });
        (subject, superseded)
    }

    /// The update at this position is no longer in the ring.
    pub(super) fn forget(&mut self, subject: &Arc<Subject>, position: u64) {
        if self.newest.get(subject).is_some_and(|newest| newest.position == position) {
            self.newest.remove(subject);
        }
    }

    /// Nothing that is in the ring is superseded any more.
    pub(super) fn clear(&mut self) {
        self.newest.clear();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.newest.len()
    }
}
