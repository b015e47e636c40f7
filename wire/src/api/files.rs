//! What a session did to files, and the files themselves.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileChangeStatus {
    /// It is new.
    Added,
    /// It was there before.
    Modified,
    /// It is gone.
    Deleted,
}

/// A file that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileChange {
    /// Path from the session's directory.
    pub path: String,
    /// What happened to it.
    pub status: FileChangeStatus,
    /// Lines added.
    pub additions: u64,
    /// Lines removed.
    pub deletions: u64,
    /// The change as a unified diff; absent for what is not text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<String>,
}

/// What an entry of a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FileKind {
    /// A file.
    File,
    /// A directory.
    Directory,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FileEntry {
    /// Its name.
    pub name: String,
    /// Path from the session's directory.
    pub path: String,
    /// What it is.
    pub kind: FileKind,
    /// Bytes of a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// It is not the project's own: `.git`.
    #[serde(default)]
    pub ignored: bool,
}
