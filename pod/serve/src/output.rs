//! opencode's output: a bounded file, the last lines for reports, and the line that says where it listens.

use std::{
    collections::VecDeque,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    sync::watch,
};
use tracing::Level;

/// Longest part of a line that is kept, in bytes.
const LINE_MAX: u64 = 16 * 1024;

/// Bytes of the last lines that a report carries.
const TAIL_MAX: usize = 4 * 1024;

/// Bytes of the file before it is set aside; one older file is kept.
const FILE_MAX: u64 = 5 * 1024 * 1024;

/// Where opencode says that it listens, if this line says so. Only the loopback interface counts: its password is
/// sent there.
pub(crate) fn listening(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once("opencode server listening on http://")?;
    let address: SocketAddr = address.trim().trim_end_matches('/').parse().ok()?;
    address.ip().is_loopback().then_some(address)
}

/// The level that opencode gave a line. It writes `timestamp=... level=WARN ...` (measured on opencode 1.18.33) or
/// `WARN  2026-... +1ms ...` (on 1.15.4); most of its standard output has none.
fn level(line: &str) -> Option<Level> {
    let mut words = line.split_ascii_whitespace().take(3);
    let named = words.clone().find_map(|word| word.strip_prefix("level=")).or_else(|| words.next())?;
    match named {
        "DEBUG" => Some(Level::DEBUG),
        "INFO" => Some(Level::INFO),
        "WARN" => Some(Level::WARN),
        "ERROR" | "FATAL" => Some(Level::ERROR),
        _ => None,
    }
}

/// Says it again in our log. What opencode takes for an error is mostly a model's or a tool's: nobody must look at once,
/// so it is a warning here.
fn log(line: &str) {
    match level(line).unwrap_or(Level::INFO) {
        Level::WARN | Level::ERROR => tracing::warn!(source = "opencode", line, "opencode says"),
        Level::INFO => tracing::info!(source = "opencode", line, "opencode says"),
        _ => tracing::debug!(source = "opencode", line, "opencode says"),
    }
}

/// Takes the output of one run.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    inner: Arc<Mutex<Inner>>,
    address: watch::Sender<Option<SocketAddr>>,
}

#[derive(Debug)]
struct Inner {
    /// None when it cannot be opened: opencode runs all the same.
    file: Option<LogFile>,
    tail: VecDeque<String>,
    tail_bytes: usize,
    write_failed: bool,
}

impl Output {
    /// Output that is appended to the file at `path`, if that can be written.
    pub(crate) fn open(path: PathBuf) -> Self {
        let file = LogFile::open(path, FILE_MAX).inspect_err(|error| {
            tracing::warn!(%error, "opencode's output cannot be kept in its file");
        });
        let inner = Inner { file: file.ok(), tail: VecDeque::new(), tail_bytes: 0, write_failed: false };
        Self { inner: Arc::new(Mutex::new(inner)), address: watch::Sender::new(None) }
    }

    /// Waits for the line that says where opencode listens; for ever when it never comes.
    pub(crate) async fn address(&self) -> SocketAddr {
        let mut receiver = self.address.subscribe();
        match receiver.wait_for(Option::is_some).await.map(|address| *address) {
            Ok(Some(address)) => address,
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }

    /// The last lines.
    pub(crate) fn tail(&self) -> String {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.tail.iter().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Reads lines until the pipe closes.
    pub(crate) async fn read(self, pipe: impl AsyncRead + Unpin) {
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        loop {
            line.clear();
            match (&mut reader).take(LINE_MAX).read_until(b'\n', &mut line).await {
                Ok(0) => return,
                Ok(_) => self.take(String::from_utf8_lossy(&line).trim_end()),
                Err(error) => {
                    tracing::warn!(%error, "opencode's output cannot be read");
                    return;
                }
            }
        }
    }

    fn take(&self, line: &str) {
        log(line);
        if let Some(address) = listening(line) {
            self.address.send_replace(Some(address));
        }
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Err(error)) = inner.file.as_mut().map(|file| file.write_line(line))
            && !std::mem::replace(&mut inner.write_failed, true)
        {
            tracing::warn!(%error, "opencode's output cannot be written to its file");
        }
        inner.push_tail(line);
    }
}

impl Inner {
    fn push_tail(&mut self, line: &str) {
        let line = truncate(line, TAIL_MAX);
        self.tail_bytes += line.len();
        self.tail.push_back(line.to_owned());
        while self.tail_bytes > TAIL_MAX || self.tail.len() > 64 {
            self.tail_bytes -= self.tail.pop_front().map_or(0, |line| line.len());
        }
    }
}

fn truncate(line: &str, limit: usize) -> &str {
    &line[..line.floor_char_boundary(limit)]
}

/// A file that is set aside as `<name>.1` when it is full.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    limit: u64,
}

impl LogFile {
    fn open(path: PathBuf, limit: u64) -> io::Result<Self> {
        let file = append(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Self { path, file, bytes, limit })
    }

    fn write_line(&mut self, line: &str) -> io::Result<()> {
        if self.bytes > 0 && self.bytes + line.len() as u64 >= self.limit {
            fs::rename(&self.path, self.path.with_added_extension("1"))?;
            self.file = append(&self.path)?;
            self.bytes = 0;
        }
        self.bytes += line.len() as u64 + 1;
        self.file.write_all(format!("{line}\n").as_bytes())
    }
}

/// The agent may have put something else there: a pipe that nobody reads is an error and no wait.
fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(nix::libc::O_NONBLOCK).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_listening_line_is_found_and_nothing_else() {
        let expected: SocketAddr = "127.0.0.1:4095".parse().unwrap();
        assert_eq!(listening("opencode server listening on http://127.0.0.1:4095"), Some(expected));
        assert_eq!(listening("opencode server listening on http://127.0.0.1:4095/"), Some(expected));
        for line in [
            "",
            "listening",
            "opencode server listening on http://",
            "opencode server listening on http://192.0.2.1:1",
        ] {
            assert_eq!(listening(line), None, "{line:?}");
        }
    }

    #[test]
    fn levels_are_opencodes_own() {
        for (line, expected) in [
            ("timestamp=2026-11-30T12:53:29.228Z level=WARN run=2f message=loading", Some(Level::WARN)),
            ("INFO  2026-11-30T12:53:29 +0ms service=default", Some(Level::INFO)),
            ("ERROR 2026-11-30T12:53:29 +0ms x", Some(Level::ERROR)),
            ("opencode server listening on http://127.0.0.1:1", None),
            ("a message about level=ERROR", None),
            ("", None),
        ] {
            assert_eq!(level(line), expected, "{line}");
        }
    }

    #[tokio::test]
    async fn output_is_kept_within_its_bounds() {
        let directory = tempfile::tempdir().unwrap();
        let output = Output::open(directory.path().join("log"));
        let mut bytes = b"opencode server listening on http://127.0.0.1:7\n\xff\xfe broken utf-8\n".to_vec();
        bytes.extend("é".repeat(40_000).into_bytes());
        bytes.extend((0..200).flat_map(|n| format!("\nline {n}").into_bytes()));
        output.clone().read(bytes.as_slice()).await;
        assert_eq!(output.address().await, "127.0.0.1:7".parse().unwrap());
        let tail = output.tail();
        assert!(tail.len() <= TAIL_MAX + 64 && tail.ends_with("line 199"), "{tail}");
    }

    #[test]
    fn a_full_file_is_set_aside_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut file = LogFile::open(path.clone(), 64).unwrap();
        for n in 0..100 {
            file.write_line(&format!("line {n:02}")).unwrap();
        }
        let sizes = [&path, &path.with_added_extension("1")].map(|path| fs::metadata(path).unwrap().len());
        assert!(sizes.iter().all(|size| (8..=64).contains(size)), "{sizes:?}");
        assert!(fs::read_to_string(&path).unwrap().ends_with("line 99\n"));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
