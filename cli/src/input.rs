//! Lines typed at a terminal in its usual mode, or piped in. Does blocking IO, on one thread of its own, so that nothing of it holds up
//! the program's end.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    os::fd::AsFd,
    sync::mpsc,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::sync::oneshot;

/// Longest line that is read, in bytes.
const LINE_LIMIT: u64 = 1024 * 1024;
/// How long it takes until a read that nobody waits for any more is noticed, in milliseconds.
const ABANDON_MS: u8 = 100;

/// What came instead of, or as, a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A line, without its end.
    Text(String),
    /// The end of the input, or Ctrl-D.
    Closed,
}

/// Where a line is to be sent.
type Request = oneshot::Sender<io::Result<Line>>;

/// Reads standard input line by line, one line at a time.
#[derive(Debug)]
pub struct Input {
    requests: mpsc::Sender<Request>,
}

impl Input {
    /// Starts the reading thread; it reads nothing until it is asked.
    pub fn start() -> io::Result<Self> {
        let (requests, queue) = mpsc::channel();
        let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut reader = Reader(BufReader::new(file));
        std::thread::Builder::new().name("input".to_owned()).spawn(move || reader.serve(&queue))?;
        Ok(Self { requests })
    }

    /// A line as it comes. Dropping the future leaves what is typed later to the next read.
    pub async fn line(&self) -> io::Result<Line> {
        let (reply, answer) = oneshot::channel();
        if self.requests.send(reply).is_err() {
            return Ok(Line::Closed);
        }
        answer.await.unwrap_or(Ok(Line::Closed))
    }
}

struct Reader(BufReader<File>);

impl Reader {
    fn serve(&mut self, queue: &mpsc::Receiver<Request>) {
        while let Ok(reply) = queue.recv() {
            if let Some(line) = self.line(&reply).transpose() {
                drop(reply.send(line));
            }
        }
    }

    /// The next line, or `None` once nobody waits for it.
    fn line(&mut self, reply: &Request) -> io::Result<Option<Line>> {
        while self.0.buffer().is_empty() {
            if reply.is_closed() {
                return Ok(None);
            }
            let mut files = [PollFd::new(self.0.get_ref().as_fd(), PollFlags::POLLIN)];
            match poll(&mut files, PollTimeout::from(ABANDON_MS)) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                Ok(_) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let mut bytes = Vec::new();
        (&mut self.0).take(LINE_LIMIT).read_until(b'\n', &mut bytes)?;
        if bytes.is_empty() {
            return Ok(Some(Line::Closed));
        }
        let text = String::from_utf8_lossy(&bytes);
        Ok(Some(Line::Text(text.trim_end_matches(['\n', '\r']).to_owned())))
    }
}
