//! What turns did to files, and the files themselves. IO.

use std::time::Duration;

use berth_wire::api::{FileEntry, Page};
use bytes::Bytes;
use serde_json::Value;

use super::{Answer, Call, OpencodeClient, content_type, header, transport};
use crate::{
    error::ClientError,
    model::{FileDiff, MessageWithParts, Role},
};

/// Messages of one page when reading back.
const PAGE: u32 = 100;
/// Bound on the pages that are read back.
const MAX_PAGES: usize = 100;

/// A file on its way.
#[derive(Debug)]
pub struct FileStream {
    response: reqwest::Response,
    idle: Duration,
}

impl FileStream {
    /// Its bytes, as far as they were counted when it was opened.
    pub fn length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// Media type, guessed from its name.
    pub fn content_type(&self) -> String {
        content_type(&self.response)
    }

    /// When it was last changed, as an HTTP date.
    pub fn last_modified(&self) -> Option<String> {
        header(&self.response, "last-modified")
    }

    /// The next bytes; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let limit = self.idle;
        let chunk = tokio::time::timeout(limit, self.response.chunk()).await;
        chunk.map_err(|_| ClientError::Timeout { limit })?.map_err(transport)
    }
}

impl OpencodeClient {
    /// What the turn of a prompt changed in files, as far as opencode keeps snapshots of them, which it does in a git
    /// repository and some moments after the turn's end. Without a message 1.18.33 says that nothing changed (measured).
    pub async fn list_diffs(
        &self,
        directory: &str,
        session: &str,
        message: &str,
    ) -> Result<Vec<FileDiff>, ClientError> {
        let path = ["session", session, "diff"];
        self.read(Call::get(&path).directory(directory).query("messageID", message)).await
    }

    /// What the session's turns changed in files, turn by turn, oldest first: what [`Self::list_diffs`] has of each,
    /// which is in the prompts' messages too. Of a very long session the newest turns only.
    pub async fn session_diffs(
        &self,
        directory: &str,
        session: &str,
    ) -> Result<Vec<Vec<FileDiff>>, ClientError> {
        let (mut before, mut turns): (Option<String>, Vec<Vec<FileDiff>>) = (None, Vec::new());
        for _ in 0..MAX_PAGES {
            let page = self.message_page(directory, session, PAGE, before.as_deref()).await?;
            turns.extend(page.messages.iter().rev().filter_map(diffs_of));
            // A page that leads to itself would have no end.
            if page.before.is_none() || page.before == before || page.messages.is_empty() {
                break;
            }
            before = page.before;
        }
        turns.reverse();
        Ok(turns)
    }

    /// What is in a directory beneath `directory`; an empty path is that one itself. Only a door answers this.
    pub async fn list_files(&self, directory: &str, path: &str) -> Result<Vec<FileEntry>, ClientError> {
        let call = Call::get(&["berth", "files"]).directory(directory).query("path", path);
        let page: Page<FileEntry> = self.read(call).await?;
        Ok(page.items)
    }

    /// Opens a file beneath `directory`. Only a door answers this.
    pub async fn open_file(&self, directory: &str, path: &str) -> Result<FileStream, ClientError> {
        let call = Call::get(&["berth", "files", "content"]).directory(directory).query("path", path);
        let limit = self.request_timeout;
        let sent = tokio::time::timeout(limit, self.request(&call)?.send()).await;
        let response = sent.map_err(|_| ClientError::Timeout { limit })?.map_err(transport)?;
        if response.status().is_success() {
            return Ok(FileStream { response, idle: self.idle_timeout });
        }
        let answer = tokio::time::timeout(limit, Answer::read(response)).await;
        Err(answer.map_err(|_| ClientError::Timeout { limit })??.into_error())
    }
}

/// What a prompt's turn changed; nothing where it changed nothing (1.15.4 says so with an empty list).
fn diffs_of(message: &MessageWithParts) -> Option<Vec<FileDiff>> {
    let Value::Array(diffs) = &message.info.summary["diffs"] else { return None };
    if message.info.role != Role::User || diffs.is_empty() {
        return None;
    }
    Some(diffs.iter().filter_map(|diff| serde_json::from_value(diff.clone()).ok()).collect())
}
