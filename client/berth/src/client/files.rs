//! What a session did to files, and the files themselves. Does IO.

use berth_wire::api::{FileChange, FileEntry, Page};
use bytes::Bytes;
use futures_util::Stream;
use reqwest::{Method, Response, header};
use uuid::Uuid;

use super::BerthClient;
use crate::ClientError;

/// A file's content on its way.
#[derive(Debug)]
pub struct FileContent {
    response: Response,
    base_url: String,
}

impl FileContent {
    /// Media type, as the server tells it.
    pub fn content_type(&self) -> &str {
        let value = self.response.headers().get(header::CONTENT_TYPE);
        value.and_then(|value| value.to_str().ok()).unwrap_or("application/octet-stream")
    }

    /// Its bytes, where the server tells their number.
    pub fn length(&self) -> Option<u64> {
        self.response.content_length()
    }

    /// The next bytes; `None` at the end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, ClientError> {
        let chunk = self.response.chunk().await;
        chunk.map_err(|source| ClientError::Unreachable { url: self.base_url.clone(), source })
    }

    /// All bytes in pieces.
    pub fn into_stream(self) -> impl Stream<Item = Result<Bytes, ClientError>> {
        futures_util::stream::try_unfold(self, |mut content| async move {
            Ok(content.chunk().await?.map(|chunk| (chunk, content)))
        })
    }
}

impl BerthClient {
    /// `GET /v1/sessions/{id}/diff`: files that the session changed, or one turn of it did.
    pub async fn diff(&self, session: Uuid, turn: Option<Uuid>) -> Result<Vec<FileChange>, ClientError> {
        let turn: Vec<_> = turn.iter().map(|turn| ("turn", turn.to_string())).collect();
        let page: Page<FileChange> =
            self.page(&["v1", "sessions", &session.to_string(), "diff"], &turn).await?;
        Ok(page.items)
    }

    /// `GET /v1/sessions/{id}/files`: what is in a directory beneath the session's own; `""` is that one itself.
    pub async fn list_files(&self, session: Uuid, path: &str) -> Result<Vec<FileEntry>, ClientError> {
        let page: Page<FileEntry> =
            self.page(&["v1", "sessions", &session.to_string(), "files"], &[("path", path)]).await?;
        Ok(page.items)
    }

    /// `GET /v1/sessions/{id}/files/content`: a file beneath the session's directory.
    pub async fn read_file(&self, session: Uuid, path: &str) -> Result<FileContent, ClientError> {
        let segments = ["v1", "sessions", &session.to_string(), "files", "content"];
        self.content(&segments, &[("path", path)]).await
    }

    /// `GET /v1/turns/{id}/parts/{index}`: what the `data:` URL of a prompt's part held, counted from 0.
    pub async fn read_part(&self, turn: Uuid, index: usize) -> Result<FileContent, ClientError> {
        self.content(&["v1", "turns", &turn.to_string(), "parts", &index.to_string()], &[]).await
    }

    async fn content(&self, path: &[&str], query: &[(&str, &str)]) -> Result<FileContent, ClientError> {
        let request = self.call(Method::GET, path).header(header::ACCEPT, "*/*").query(query);
        let response = self.accepted(request).await?;
        Ok(FileContent { response, base_url: self.base_url().to_owned() })
    }
}
