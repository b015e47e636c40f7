//! `GET /berth/files` and `GET /berth/files/content`: the files of a session's directory, as they are. IO.
//!
//! opencode's own routes for files trim them, refuse what is not UTF-8, and take a missing file for an empty one
//! (measured on opencode 1.18.33). The agent may put anything at a path while it is opened, so every step of a path is
//! taken beneath the directory that was opened before it: a link that leads out of it is refused, one that stays in it
//! is followed.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use berth_wire::{
    api::{FileEntry, FileKind, Page},
    problem::{Problem, ProblemType},
};
use cap_std::{
    ambient_authority,
    fs::{Dir, DirEntry, File, OpenOptions, OpenOptionsExt},
};
use futures_util::TryStreamExt;
use http::{HeaderValue, Response, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use nix::fcntl::OFlag;
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use crate::{
    Door,
    refusal::{BodyError, DoorBody, json, problem, refuse},
};

/// Most entries of a directory that is listed.
const ENTRIES_MAX: usize = 10_000;
/// Bytes that are read at once.
const CHUNK: usize = 64 * 1024;

type Answer = Result<Response<DoorBody>, Response<DoorBody>>;

/// Why there is no file, or no list.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("there is no such file or directory")]
    NotFound,
    #[error("{0}")]
    Unusable(&'static str),
    #[error("it cannot be read: {0}")]
    Io(io::Error),
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::NotFound,
            io::ErrorKind::PermissionDenied => {
                Self::Unusable("it leads out of the session's directory, or may not be read")
            }
            io::ErrorKind::NotADirectory => Self::Unusable("a part of the path is no directory"),
            io::ErrorKind::IsADirectory => Self::Unusable("it is a directory"),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => {
                Self::Unusable("it is no path that can be opened")
            }
            _ => Self::Io(error),
        }
    }
}

impl FileError {
    fn answer(&self) -> Response<DoorBody> {
        let kind = match self {
            Self::NotFound => ProblemType::NotFound,
            Self::Unusable(_) | Self::Io(_) => ProblemType::Invalid,
        };
        problem(&Problem::new(kind, self.to_string()).with("object", "file").with("field", "path"))
    }
}

/// Why a request asks for nothing that there could be.
enum NotAsked {
    NoFiles,
    /// The directory is not beneath this one.
    Elsewhere(PathBuf),
}

impl NotAsked {
    fn answer(&self) -> Response<DoorBody> {
        match self {
            Self::NoFiles => refuse(ProblemType::NotFound, "This door hands out no files."),
            Self::Elsewhere(root) => {
                let detail = format!("Give a directory beneath {}.", root.display());
                refuse(ProblemType::InvalidParameter, detail)
            }
        }
    }
}

/// What is asked for: a path beneath a directory beneath the root.
struct Asked {
    root: PathBuf,
    directory: PathBuf,
    path: PathBuf,
}

impl Asked {
    fn new(door: &Door, query: Option<&str>) -> Result<Self, NotAsked> {
        let root = door.config.files.clone().ok_or(NotAsked::NoFiles)?;
        let (mut directory, mut path) = (root.clone(), PathBuf::new());
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            match &*name {
                "directory" => directory = PathBuf::from(value.into_owned()),
                "path" => path = PathBuf::from(value.into_owned()),
                _ => {}
            }
        }
        match directory.strip_prefix(&root).map(Path::to_owned) {
            Ok(directory) => Ok(Self { root, directory, path }),
            Err(_) => Err(NotAsked::Elsewhere(root)),
        }
    }

    fn open_directory(&self) -> Result<Dir, FileError> {
        let root = Dir::open_ambient_dir(&self.root, ambient_authority())?;
        Ok(if self.directory.as_os_str().is_empty() { root } else { root.open_dir(&self.directory)? })
    }
}

/// `GET /berth/files`
pub(crate) async fn list(door: &Arc<Door>, query: Option<&str>) -> Answer {
    let asked = Asked::new(door, query).map_err(|why| why.answer())?;
    let items = off_thread(move || entries(&asked)).await?;
    Ok(json(&Page::whole(items)))
}

/// `GET /berth/files/content`
pub(crate) async fn content(door: &Arc<Door>, query: Option<&str>) -> Answer {
    let asked = Asked::new(door, query).map_err(|why| why.answer())?;
    let kind = mime_guess::from_path(&asked.path).first_or_octet_stream();
    let (file, length, modified) = off_thread(move || open(&asked)).await?;
    let file = tokio::fs::File::from_std(file.into_std());
    // A file that grows meanwhile ends where it ended; one that shrinks breaks the answer off.
    let bytes = ReaderStream::with_capacity(file.take(length), CHUNK);
    let frames = bytes.map_ok(Frame::data).map_err(BodyError::from);
    let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    if let Ok(kind) = HeaderValue::from_str(kind.as_ref()) {
        headers.insert(header::CONTENT_TYPE, kind);
    }
    if let Some(modified) = modified.and_then(|date| HeaderValue::from_str(&date).ok()) {
        headers.insert(header::LAST_MODIFIED, modified);
    }
    Ok(response)
}

/// Files may be on a disk that is slow.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, FileError> + Send + 'static,
) -> Result<T, Response<DoorBody>> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.unwrap_or(Err(FileError::Unusable("it could not be looked at")));
    done.map_err(|error| error.answer())
}

fn open(asked: &Asked) -> Result<(File, u64, Option<String>), FileError> {
    if asked.path.as_os_str().is_empty() {
        return Err(FileError::Unusable("it is a directory"));
    }
    let mut options = OpenOptions::new();
    // A pipe without a writer would hold the thread for ever.
    options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = asked.open_directory()?.open_with(&asked.path, &options)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(FileError::Unusable("it is a directory"));
    }
    if !metadata.is_file() {
        return Err(FileError::Unusable("it is not a regular file"));
    }
    let modified = metadata.modified().ok().map(|time| httpdate::fmt_http_date(time.into_std()));
    Ok((file, metadata.len(), modified))
}

fn entries(asked: &Asked) -> Result<Vec<FileEntry>, FileError> {
    let base = asked.open_directory()?;
    let directory = if asked.path.as_os_str().is_empty() { base } else { base.open_dir(&asked.path)? };
    let mut entries = Vec::new();
    for entry in directory.entries()? {
        entries.extend(describe(&directory, &asked.path, &entry?));
        if entries.len() > ENTRIES_MAX {
            return Err(FileError::Unusable("it has more than 10,000 entries"));
        }
    }
    entries.sort_by(|one: &FileEntry, other| one.name.cmp(&other.name));
    Ok(entries)
}

/// Files and directories, and links to such that stay beneath; a name that is not UTF-8 could not be asked for.
fn describe(directory: &Dir, path: &Path, entry: &DirEntry) -> Option<FileEntry> {
    let name = entry.file_name().into_string().ok()?;
    let metadata = directory.metadata(&name).ok()?;
    let kind = match (metadata.is_file(), metadata.is_dir()) {
        (true, _) => FileKind::File,
        (_, true) => FileKind::Directory,
        _ => return None,
    };
    Some(FileEntry {
        path: path.join(&name).to_str()?.to_owned(),
        size: (kind == FileKind::File).then(|| metadata.len()),
        ignored: name == ".git",
        kind,
        name,
    })
}
