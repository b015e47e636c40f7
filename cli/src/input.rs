//! Lines typed by a person, or piped in. Does blocking IO, on one thread of its own, so that nothing of it holds up
//! the program's end.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    os::fd::AsFd,
    path::{Path, PathBuf},
    sync::mpsc,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustyline::{Editor, error::ReadlineError, history::FileHistory};
use tokio::sync::oneshot;

/// Longest line that is read, in bytes; as much as the server takes for a prompt.
const LINE_LIMIT: u64 = 1024 * 1024;
/// How long it takes until a read that nobody waits for any more is noticed, in milliseconds.
const ABANDON_MS: u8 = 100;
/// Lines that the editor remembers.
const HISTORY_LENGTH: usize = 1000;

/// What came instead of, or as, a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A line, without its end.
    Text(String),
    /// Ctrl-C in the editor.
    Interrupted,
    /// The end of the input, or Ctrl-D.
    Closed,
}

enum Request {
    /// A line from the editor, behind this prompt.
    Edited(String, oneshot::Sender<io::Result<Line>>),
    /// A line as the terminal or pipe gives it.
    Plain(oneshot::Sender<io::Result<Line>>),
}

/// Reads standard input line by line, one line at a time.
#[derive(Debug)]
pub struct Input {
    requests: mpsc::Sender<Request>,
}

impl Input {
    /// Starts the reading thread; it reads nothing until it is asked. The editor remembers lines in `history`.
    pub fn start(history: Option<PathBuf>) -> io::Result<Self> {
        let (requests, queue) = mpsc::channel();
        let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut reader = Reader { plain: BufReader::new(file), editor: None, history };
        std::thread::Builder::new().name("input".to_owned()).spawn(move || reader.serve(&queue))?;
        Ok(Self { requests })
    }

    /// A line from the editor, behind `prompt`. Both standard input and output must be terminals.
    pub async fn edited(&self, prompt: &str) -> io::Result<Line> {
        let (reply, answer) = oneshot::channel();
        self.request(Request::Edited(prompt.to_owned(), reply), answer).await
    }

    /// A line as it comes. Dropping the future leaves what is typed later to the next read.
    pub async fn plain(&self) -> io::Result<Line> {
        let (reply, answer) = oneshot::channel();
        self.request(Request::Plain(reply), answer).await
    }

    async fn request(
        &self,
        request: Request,
        answer: oneshot::Receiver<io::Result<Line>>,
    ) -> io::Result<Line> {
        if self.requests.send(request).is_err() {
            return Ok(Line::Closed);
        }
        answer.await.unwrap_or(Ok(Line::Closed))
    }
}

struct Reader {
    plain: BufReader<File>,
    editor: Option<Editor<(), FileHistory>>,
    history: Option<PathBuf>,
}

impl Reader {
    fn serve(&mut self, queue: &mpsc::Receiver<Request>) {
        while let Ok(request) = queue.recv() {
            match request {
                Request::Edited(prompt, reply) => drop(reply.send(self.edited(&prompt))),
                Request::Plain(reply) => {
                    if let Some(line) = self.plain(&reply).transpose() {
                        drop(reply.send(line));
                    }
                }
            }
        }
    }

    fn edited(&mut self, prompt: &str) -> io::Result<Line> {
        let editor = match &mut self.editor {
            Some(editor) => editor,
            none => none.insert(open_editor(self.history.as_deref()).map_err(io::Error::other)?),
        };
        match editor.readline(prompt) {
            Ok(line) => {
                if let Some(history) = &self.history
                    && let Err(error) = editor.append_history(history)
                {
                    tracing::warn!(%error, path = %history.display(), "chat history cannot be kept");
                }
                Ok(Line::Text(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Interrupted),
            Err(ReadlineError::Eof) => Ok(Line::Closed),
            Err(ReadlineError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// The next line, or `None` once nobody waits for it.
    fn plain(&mut self, reply: &oneshot::Sender<io::Result<Line>>) -> io::Result<Option<Line>> {
        while self.plain.buffer().is_empty() {
            if reply.is_closed() {
                return Ok(None);
            }
            let mut files = [PollFd::new(self.plain.get_ref().as_fd(), PollFlags::POLLIN)];
            match poll(&mut files, PollTimeout::from(ABANDON_MS)) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                Ok(_) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let mut bytes = Vec::new();
        (&mut self.plain).take(LINE_LIMIT).read_until(b'\n', &mut bytes)?;
        if bytes.is_empty() {
            return Ok(Some(Line::Closed));
        }
        let text = String::from_utf8_lossy(&bytes);
        Ok(Some(Line::Text(text.trim_end_matches(['\n', '\r']).to_owned())))
    }
}

fn open_editor(history: Option<&Path>) -> rustyline::Result<Editor<(), FileHistory>> {
    let config = rustyline::Config::builder()
        .auto_add_history(true)
        .max_history_size(HISTORY_LENGTH)?
        .history_ignore_dups(true)?
        .build();
    let mut editor = Editor::with_config(config)?;
    if let Some(history) = history.filter(|history| history.exists())
        && let Err(error) = editor.load_history(history)
    {
        tracing::warn!(%error, path = %history.display(), "chat history cannot be read");
    }
    Ok(editor)
}
