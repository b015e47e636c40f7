//! The program on a terminal of its own: a person is asked, lines can be edited, Ctrl-C is a key.

use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use berth_wire::api::PermissionDecision;
use nix::pty::{Winsize, openpty};
use tokio::{process::Child, time::timeout};

use crate::{
    fake::{FakeServer, permission_script, says, succeeds},
    process::{Berth, LIMIT},
};

/// A program on a pseudo-terminal, and what its screen was told so far.
struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    /// Reads no more than it has begun to.
    deaf: Arc<AtomicBool>,
    _reader: JoinHandle<()>,
}

impl Terminal {
    fn start(server: &FakeServer, berth: &Berth, arguments: &[&str]) -> Self {
        Self::of(server, berth, arguments, "xterm")
    }

    /// A terminal of this type.
    fn of(server: &FakeServer, berth: &Berth, arguments: &[&str], kind: &str) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).unwrap();
        let stream = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        // `setsid --ctty` makes the pseudo-terminal the one whose Ctrl-C reaches the program.
        let inner = berth.against(server, arguments);
        let mut command = tokio::process::Command::new("setsid");
        command.args(["--ctty", "--wait"]).arg(inner.as_std().get_program()).args(inner.as_std().get_args());
        command.env_clear();
        for (name, value) in inner.as_std().get_envs() {
            command.env(name, value.unwrap());
        }
        command.env("PATH", "/usr/bin:/bin").env("TERM", kind).kill_on_drop(true);
        command.current_dir(inner.as_std().get_current_dir().unwrap());
        command.stdin(stream(&pty.slave)).stdout(stream(&pty.slave)).stderr(stream(&pty.slave));
        let child = command.spawn().unwrap();
        drop((command, pty.slave));
        let (screen, deaf) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let keyboard = File::from(pty.master);
        let reader = std::thread::spawn({
            let (mut master, screen) = (keyboard.try_clone().unwrap(), Arc::clone(&screen));
            let deaf = Arc::clone(&deaf);
            move || drop(copy(&mut master, &screen, &deaf))
        });
        Self { child, keyboard, screen, deaf, _reader: reader }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap()).into_owned()
    }

    /// Waits until the screen was told `text` after the first `from` bytes; returns where that ends.
    async fn wait_for(&self, text: &str, from: usize) -> usize {
        let search = async {
            loop {
                if let Some(at) = self.text().get(from..).and_then(|rest| rest.find(text)) {
                    return from + at + text.len();
                }
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, search).await.unwrap_or_else(|_| panic!("no {text:?} on:\n{}", self.text()))
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    async fn code(&mut self) -> i32 {
        let status = timeout(LIMIT, self.child.wait()).await.expect("the program ends").unwrap();
        status.code().unwrap()
    }
}

fn copy(master: &mut File, screen: &Mutex<Vec<u8>>, deaf: &AtomicBool) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        if deaf.load(Ordering::Relaxed) {
            return Ok(());
        }
        let count = master.read(&mut buffer)?;
        if count == 0 {
            return Ok(());
        }
        screen.lock().map_err(|_| io::Error::other("poisoned"))?.extend_from_slice(&buffer[..count]);
    }
}

const CTRL_C: &str = "\u{3}";
const CTRL_D: &str = "\u{4}";

#[tokio::test]
async fn a_person_is_asked_until_the_answer_is_clear() {
    let (server, berth) = (FakeServer::start(vec![permission_script()]).await, Berth::new());
    let mut terminal = Terminal::start(&server, &berth, &["run", "x"]);
    let asked = terminal.wait_for("[y]es once / [a]lways (touch *) / [n]o: ", 0).await;
    terminal.press("what?\n");
    let again = terminal.wait_for("[n]o: ", asked).await;
    terminal.press("y\n");
    terminal.wait_for("Done.", again).await;
    assert_eq!(terminal.code().await, 0);
    assert_eq!(server.answers()[0].decision, PermissionDecision::Once);
    let text = terminal.text();
    assert!(text.contains("\u{1b}[2ma file is wanted\u{1b}[0m\r\nI make a file.\r\n"), "{text:?}");
}

#[tokio::test]
async fn no_with_words_tells_the_agent() {
    let (server, berth) = (FakeServer::start(vec![permission_script()]).await, Berth::new());
    let mut terminal = Terminal::start(&server, &berth, &["run", "x"]);
    terminal.wait_for("[n]o: ", 0).await;
    terminal.press("n use git instead\n");
    assert_eq!(terminal.code().await, 4);
    let answer = &server.answers()[0];
    assert_eq!(
        (answer.decision, answer.message.as_deref()),
        (PermissionDecision::Reject, Some("use git instead"))
    );
}

#[tokio::test]
async fn ctrl_c_while_somebody_is_asked_cancels() {
    let (server, berth) = (FakeServer::start(vec![permission_script()]).await, Berth::new());
    let mut terminal = Terminal::start(&server, &berth, &["run", "x"]);
    terminal.wait_for("[n]o: ", 0).await;
    terminal.press(CTRL_C);
    assert_eq!(terminal.code().await, 3);
    assert_eq!((server.cancels(), server.answers().len()), (1, 0));
}

#[tokio::test]
async fn a_terminal_that_can_do_nothing_gets_plain_lines() {
    let scripts = vec![vec![says("a", 0, "an **answer**"), succeeds()]];
    let (server, berth) = (FakeServer::start(scripts).await, Berth::new());
    let mut terminal = Terminal::of(&server, &berth, &["chat"], "dumb");
    let ready = terminal.wait_for("> ", 0).await;
    terminal.press("hello\n");
    let answered = terminal.wait_for("✓ succeeded", ready).await;
    terminal.wait_for("> ", answered).await;
    terminal.press(CTRL_D);
    assert_eq!(terminal.code().await, 0);
    assert!(
        terminal.text().contains("an **answer**") && !terminal.text().contains('\u{1b}'),
        "{:?}",
        terminal.text()
    );
}

#[tokio::test]
async fn a_terminal_that_takes_nothing_can_be_left() {
    let text = "far more than its buffer holds\n\n".repeat(10_000);
    let (server, berth) =
        (FakeServer::start(vec![vec![says("a", 0, &text), succeeds()]]).await, Berth::new());
    let mut terminal = Terminal::start(&server, &berth, &["chat"]);
    terminal.wait_for("/help", 0).await;
    terminal.deaf.store(true, Ordering::Relaxed);
    terminal.press("go\r");
    let sent = async {
        while server.prompts().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    timeout(LIMIT, sent).await.expect("keys are read");
    terminal.press(CTRL_D);
    assert_eq!(terminal.code().await, 0);
}
