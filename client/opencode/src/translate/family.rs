//! Which sessions are subagents, at any depth, of the turn's session. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::model::{SessionInfo, ToolPart};

/// Bound on the depth that is followed.
const MAX_DEPTH: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    /// The session that it works for.
    parent: String,
    /// The task call of the root session that it works for, once known.
    call: Option<String>,
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
            let parent = parent.to_owned();
            self.members.entry(info.id.clone()).or_insert(Member { parent, call: None });
        }
    }

    /// A task call of `session` tells the child that it works through.
    pub(super) fn note_task(&mut self, session: &str, tool: &ToolPart) {
        let Some(child) = tool.state.metadata["sessionId"].as_str().filter(|child| *child != session) else {
            return;
        };
        let member = Member { parent: session.to_owned(), call: None };
        self.members.entry(child.to_owned()).or_insert(member).call = Some(tool.call_id.clone());
    }

    /// The session is a subagent of the turn.
    pub(super) fn contains(&self, session: &str) -> bool {
        self.members.contains_key(session)
    }

    /// The task call of the root session that `session` works for.
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
