//! `berth cp`: files out of a session's working directory. Does IO.

use std::{
    fs,
    io::{self, Write},
    path::{Component, Path, PathBuf},
};

use berth_client::{BerthClient, ClientError};
use berth_wire::{
    api::{FileEntry, FileKind},
    problem::{Problem, ProblemType},
};
use uuid::Uuid;

use crate::{
    choice::SessionChoice,
    connect::{self, ServerChoice},
    error::{CliError, Exit},
    output::{Output, Shape},
    render::Tone,
    replacement::Replacement,
    sessions,
};

/// Most files of one directory, with everything beneath it.
const FILES_MAX: usize = 100_000;

/// Mode of the files, less the umask.
const MODE: u32 = 0o666;

/// `berth cp`, checked.
#[derive(Debug, Clone)]
pub struct CopyConfig {
    /// The server.
    pub server: ServerChoice,
    /// The session.
    pub session: SessionChoice,
    /// Path from its working directory.
    pub path: String,
    /// Where to.
    pub to: Destination,
    /// Files that are there already are replaced.
    pub force: bool,
    /// The output streams.
    pub shape: Shape,
}

/// Where to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    StandardOutput,
    /// This file, or into this directory if it is one.
    Path(PathBuf),
}

/// Copies it.
pub async fn copy(config: CopyConfig) -> Result<Exit, CliError> {
    let client = connect::client(&config.server)?;
    let session = sessions::find(&client, &config.session).await?.id;
    let to = match config.to {
        Destination::StandardOutput => {
            let mut out = io::BufWriter::new(io::stdout());
            download(&client, session, &config.path, |bytes| out.write_all(bytes), CliError::Output).await?;
            out.flush().map_err(CliError::Output)?;
            return Ok(Exit::Succeeded);
        }
        Destination::Path(path) => path,
    };
    let to = if to.is_dir() { to.join(base_name(&config.path)) } else { to };
    let copied = match file(&client, session, &config.path, &to, config.force).await {
        Ok(()) => 1,
        // What is no file may be a directory.
        Err(error) if !is_no_file(&error) => return Err(error),
        Err(error) => match directory(&client, session, &config.path, &to, config.force).await? {
            Some(count) => count,
            None => return Err(error),
        },
    };
    let what = if copied == 1 { "1 file".to_owned() } else { format!("{copied} files") };
    let note = format!("{what} copied to {}", to.display());
    Output::standard(config.shape).note(Tone::Note, &note).map_err(CliError::Output)?;
    Ok(Exit::Succeeded)
}

/// The last name of a path; that of the whole working directory is `files`.
fn base_name(path: &str) -> &str {
    path.trim_end_matches('/')
        .rsplit('/')
        .next()
        .filter(|name| !matches!(*name, "" | "." | ".."))
        .unwrap_or("files")
}

async fn file(
    client: &BerthClient,
    session: Uuid,
    path: &str,
    to: &Path,
    force: bool,
) -> Result<(), CliError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AlreadyExists if !force => is_there(to),
        _ => CliError::Write { path: to.to_owned(), source },
    };
    if !force && to.exists() {
        return Err(is_there(to));
    }
    let mut begun: Option<Replacement> = None;
    let begin = || Replacement::begin(to, MODE);
    let write = |bytes: &[u8]| {
        let file = match &mut begun {
            Some(file) => file,
            None => begun.insert(begin()?),
        };
        file.write_all(bytes)
    };
    download(client, session, path, write, failed).await?;
    let file = match begun {
        Some(file) => file,
        None => begin().map_err(failed)?,
    };
    file.finish(force).map_err(failed)
}

fn is_there(to: &Path) -> CliError {
    CliError::BadFile { path: to.to_owned(), reason: "is there already: --force replaces it".to_owned() }
}

async fn download(
    client: &BerthClient,
    session: Uuid,
    path: &str,
    mut write: impl FnMut(&[u8]) -> io::Result<()>,
    failed: impl Fn(io::Error) -> CliError,
) -> Result<(), CliError> {
    let mut content = client.read_file(session, path).await?;
    while let Some(chunk) = content.chunk().await? {
        write(&chunk).map_err(&failed)?;
    }
    Ok(())
}

/// Copies a directory with everything in it; `None` when it is none.
async fn directory(
    client: &BerthClient,
    session: Uuid,
    path: &str,
    to: &Path,
    force: bool,
) -> Result<Option<usize>, CliError> {
    let Some(entries) = entries(client, session, path).await? else { return Ok(None) };
    let mut left = vec![(to.to_owned(), entries)];
    let mut count = 0;
    while let Some((to, entries)) = left.pop() {
        fs::create_dir_all(&to).map_err(|source| CliError::Write { path: to.clone(), source })?;
        for entry in entries {
            if !is_plain_name(&entry.name) {
                continue;
            }
            let target = to.join(&entry.name);
            match entry.kind {
                FileKind::File => {
                    file(client, session, &entry.path, &target, force).await?;
                    count += 1;
                }
                FileKind::Directory => {
                    if let Some(inner) = self::entries(client, session, &entry.path).await? {
                        left.push((target, inner));
                    }
                }
            }
            if count > FILES_MAX {
                let reason = format!("more than {FILES_MAX} files are in it; copy parts of it");
                return Err(CliError::usage("SESSION:PATH", reason));
            }
        }
    }
    Ok(Some(count))
}

async fn entries(
    client: &BerthClient,
    session: Uuid,
    path: &str,
) -> Result<Option<Vec<FileEntry>>, CliError> {
    match client.list_files(session, path).await {
        Ok(entries) => Ok(Some(entries)),
        Err(ClientError::Problem(problem)) if is_about_path(&problem) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_no_file(error: &CliError) -> bool {
    matches!(error, CliError::Client(ClientError::Problem(problem)) if is_about_path(problem))
}

fn is_about_path(problem: &Problem) -> bool {
    matches!(problem.status, 400 | 404 | 422) && problem.problem_type() != Some(ProblemType::FileTooLarge)
}

/// What a server calls a file stays in the directory that it is copied to.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        for good in ["a", "a b", ".hidden", "..."] {
            assert!(is_plain_name(good), "{good:?}");
        }
        for bad in ["", ".", "..", "a/b", "/a", "../a", "a/"] {
            assert!(!is_plain_name(bad), "{bad:?}");
        }
        let cases =
            [("a/b.txt", "b.txt"), ("docs/", "docs"), ("", "files"), (".", "files"), ("a/..", "files")];
        for (path, name) in cases {
            assert_eq!(base_name(path), name, "{path:?}");
        }
    }
}
