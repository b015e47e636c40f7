//! Which sessions are subagents, at any depth, of the turn's session, and what they do. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{retry::Retry, tool};
use crate::model::{SessionInfo, SessionStatus, ToolPart, ToolStatus};

/// Bound on the depth that is followed.
const MAX_DEPTH: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    /// The session that it works for.
    parent: String,
    /// The task call that it works through, by its id in ACP, once known.
    call: Option<String>,
    /// The last retry of its provider.
    retry: Option<Retry>,
    /// Its calls that run, by part id.
    runs: BTreeSet<String>,
}

/// The subagents of one turn.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Family {
    members: BTreeMap<String, Member>,
}

impl Family {
    /// A session was made or changed.
    pub(super) fn note_session(&mut self, root: &str, info: &SessionInfo) {
        let Some(parent) = info.parent_id.as_deref() else { return };
        if (parent == root || self.contains(parent)) && info.id != root {
            self.add(&info.id, parent);
        }
    }

    fn add(&mut self, session: &str, parent: &str) -> &mut Member {
        let member = Member { parent: parent.to_owned(), call: None, retry: None, runs: BTreeSet::new() };
        self.members.entry(session.to_owned()).or_insert(member)
    }

    /// A call of the turn's session or of a subagent: one that gives work away tells through which session.
    pub(super) fn note_call(&mut self, session: &str, part: &str, call: &ToolPart) {
        if let Some(child) = tool::child(call).filter(|child| child != session) {
            self.add(&child, session).call = Some(part.to_owned());
        }
        if let Some(member) = self.members.get_mut(session) {
            if call.state.status == ToolStatus::Running && call.tool != "task" {
                member.runs.insert(part.to_owned());
            } else {
                member.runs.remove(part);
            }
        }
    }

    /// What a subagent does; its retry, when it was not told before.
    pub(super) fn note_status(&mut self, session: &str, status: &SessionStatus) -> Option<Retry> {
        let member = self.members.get_mut(session)?;
        if *status == SessionStatus::Idle {
            member.runs.clear();
        }
        Retry::note(&mut member.retry, status)
    }

    /// The session is a subagent of the turn.
    pub(super) fn contains(&self, session: &str) -> bool {
        self.members.contains_key(session)
    }

    /// A subagent runs a call of its own.
    pub(super) fn any_runs(&self) -> bool {
        self.members.values().any(|member| !member.runs.is_empty())
    }

    /// Retries that subagents wait for.
    pub(super) fn retries(&self) -> impl Iterator<Item = &Retry> {
        self.members.values().filter_map(|member| member.retry.as_ref()).filter(|retry| retry.waits)
    }

    /// The task call of the root session that `session` works for, by its id in ACP.
    pub(super) fn root_call(&self, session: &str) -> Option<String> {
        let mut member = self.members.get(session)?;
        for _ in 0..MAX_DEPTH {
            match self.members.get(&member.parent) {
                Some(parent) => member = parent,
                None => return member.call.clone(),
            }
        }
        None
    }
}
