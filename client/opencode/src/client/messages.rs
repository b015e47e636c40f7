//! Messages of a session, page by page, and the state that a translator needs after a gap. IO.

use std::collections::BTreeMap;

use super::{Call, OpencodeClient, parse_json};
use crate::{
    error::ClientError,
    ids,
    model::{MessageWithParts, SessionInfo, SessionStatus},
    translate::Snapshot,
};

/// Messages of one page when reading back.
const PAGE: u32 = 100;
/// Bound on the messages that are read back: more than any turn has within its bound on steps.
const MAX_READ_BACK: usize = 2_000;
/// Bound on the subagents that are looked at, which is also one on their depth.
const MAX_SUBSESSIONS: usize = 64;

/// Some messages of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct MessagePage {
    /// Oldest first.
    pub messages: Vec<MessageWithParts>,
    /// Where the page before this one is found; none when this one has the oldest.
    pub before: Option<String>,
}

impl OpencodeClient {
    /// The newest `limit` messages, oldest first.
    pub async fn list_messages(
        &self,
        directory: &str,
        session: &str,
        limit: u32,
    ) -> Result<Vec<MessageWithParts>, ClientError> {
        Ok(self.message_page(directory, session, limit, None).await?.messages)
    }

    /// At most `limit` messages: the newest, or those before where an earlier page said so.
    pub async fn message_page(
        &self,
        directory: &str,
        session: &str,
        limit: u32,
        before: Option<&str>,
    ) -> Result<MessagePage, ClientError> {
        let path = ["session", session, "message"];
        let mut call = Call::get(&path).directory(directory).query("limit", limit.to_string());
        if let Some(before) = before {
            call = call.query("before", before);
        }
        let answer = self.read_answer(&call).await?;
        Ok(MessagePage { messages: parse_json(&answer)?, before: answer.next_cursor })
    }

    /// The newest messages, reaching back to this one, oldest first. When it is not there, back to some that are much
    /// older; never more than about 2,000.
    pub async fn messages_back_to(
        &self,
        directory: &str,
        session: &str,
        message: &str,
    ) -> Result<Vec<MessageWithParts>, ClientError> {
        let mut pages: Vec<Vec<MessageWithParts>> = Vec::new();
        let (mut before, mut count): (Option<String>, usize) = (None, 0);
        loop {
            let page = self.message_page(directory, session, PAGE, before.as_deref()).await?;
            let reached = |page: &MessageWithParts| {
                page.info.id == message || ids::is_much_older(&page.info.id, message)
            };
            let found = page.messages.iter().any(reached);
            count += page.messages.len();
            // A page without messages, or one that leads to itself, would have no end.
            let ends = found || page.messages.is_empty() || page.before == before || count >= MAX_READ_BACK;
            pages.push(page.messages);
            before = page.before;
            if ends || before.is_none() {
                return Ok(pages.into_iter().rev().flatten().collect());
            }
        }
    }

    /// What a translator needs after a gap or in doubt: the session's state, back to the message of its running prompt,
    /// or its newest messages. What the sessions do is read first, so that it is not newer than the messages; subagents
    /// after the requests, so that none asks that is not known.
    pub async fn snapshot(
        &self,
        directory: &str,
        root: &str,
        prompt: Option<&str>,
    ) -> Result<Snapshot, ClientError> {
        let mut statuses: BTreeMap<_, _> = self.session_status(directory).await?.into_iter().collect();
        let permissions = self.list_permissions(directory).await?;
        let questions = self.list_questions(directory).await?;
        let status = statuses.remove(root);
        let sessions = self.busy_subsessions(directory, root, &statuses).await?;
        statuses.retain(|id, _| sessions.iter().any(|session| session.id == *id));
        let messages = match prompt {
            Some(prompt) => self.messages_back_to(directory, root, prompt).await?,
            None => self.list_messages(directory, root, PAGE).await?,
        };
        Ok(Snapshot { messages, status, sessions, statuses, permissions, questions })
    }

    /// Sessions that work for this one, at any depth, each after its parent. One that waits for a person, or for a
    /// subagent of its own, is busy, too; idle ones have nothing to tell.
    async fn busy_subsessions(
        &self,
        directory: &str,
        root: &str,
        statuses: &BTreeMap<String, SessionStatus>,
    ) -> Result<Vec<SessionInfo>, ClientError> {
        let mut found: Vec<SessionInfo> = Vec::new();
        if statuses.is_empty() {
            return Ok(found);
        }
        let mut next = 0;
        let mut parent = root.to_owned();
        loop {
            for child in self.list_children(directory, &parent).await? {
                let known = child.id == root || found.iter().any(|session| session.id == child.id);
                if statuses.contains_key(&child.id) && !known && found.len() < MAX_SUBSESSIONS {
                    found.push(child);
                }
            }
            let Some(session) = found.get(next) else { return Ok(found) };
            parent.clone_from(&session.id);
            next += 1;
        }
    }
}
