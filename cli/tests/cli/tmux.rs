//! The program in tmux: a terminal that really wraps, scrolls and changes its size, and that can be read.

use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    time::{Duration, Instant},
};

/// A condition comes true far quicker; on a busy machine with a real opencode, it may take long.
const LIMIT: Duration = Duration::from_mins(1);
/// Seconds that tmux has for a single call.
const CALL_LIMIT: &str = "30";
/// How often it is looked.
const LOOK: Duration = Duration::from_millis(25);

/// tmux as these tests want it: nothing of the user's, nothing on the screen but the program.
const CONFIGURATION: &str = "\
set -g status off
set -g remain-on-exit on
set -g remain-on-exit-format ''
set -g escape-time 0
set -g history-limit 100000
set -g default-terminal tmux-256color
";

/// A terminal with one program.
pub(crate) struct Tmux {
    directory: tempfile::TempDir,
}

impl Tmux {
    /// Runs the command, with its environment and its directory, on a screen of this size.
    pub(crate) fn start(command: &tokio::process::Command, width: usize, height: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("conf"), CONFIGURATION).unwrap();
        let tmux = Self { directory };
        let inner = command.as_std();
        let (width, height) = (width.to_string(), height.to_string());
        let mut start = tmux.tmux();
        start.args(["new-session", "-d", "-s", "t", "-x", &width, "-y", &height]);
        start.arg("-c").arg(inner.get_current_dir().unwrap());
        start.args(["env", "-i", "TERM=tmux-256color", "PATH=/usr/bin:/bin", "LANG=C.UTF-8"]);
        for (name, value) in inner.get_envs() {
            if let Some(value) = value {
                start.arg(format!("{}={}", name.display(), value.display()));
            }
        }
        start.args(["sh", "-c", "\"$@\"; echo $? > \"$0\""]).arg(tmux.path("code"));
        start.arg(inner.get_program()).args(inner.get_args());
        run(&mut start);
        tmux
    }

    fn tmux(&self) -> Command {
        // A call that tmux does not answer must not hold up the tests for ever.
        let mut command = Command::new("timeout");
        command
            .args(["--signal=KILL", CALL_LIMIT, "tmux"])
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LANG", "C.UTF-8");
        command.arg("-S").arg(self.path("socket")).arg("-f").arg(self.path("conf"));
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let output = run(self.tmux().args(arguments));
        String::from_utf8(output.stdout).unwrap()
    }

    /// What is on the screen, line by line.
    pub(crate) fn screen(&self) -> Vec<String> {
        lines(&self.ask(&["capture-pane", "-p", "-t", "t"]))
    }

    /// The scrollback and the screen.
    pub(crate) fn all(&self) -> Vec<String> {
        lines(&self.ask(&["capture-pane", "-p", "-S", "-", "-t", "t"]))
    }

    /// The same in one text; lines that the terminal had to break are whole.
    pub(crate) fn text(&self) -> String {
        self.ask(&["capture-pane", "-p", "-J", "-S", "-", "-t", "t"])
    }

    /// The same with colours and other styles as escape sequences.
    pub(crate) fn styled(&self) -> String {
        self.ask(&["capture-pane", "-p", "-e", "-S", "-", "-t", "t"])
    }

    /// The title that a program can give to its terminal.
    pub(crate) fn title(&self) -> String {
        self.ask(&["display-message", "-p", "-t", "t", "#{pane_title}"]).trim().to_owned()
    }

    /// The program's exit code, once it has ended. From the shell around it: tmux 3.3a now and then overlooks that its
    /// child has ended, and never says how.
    pub(crate) async fn code(&self) -> i32 {
        let path = self.path("code");
        self.until("its end", || std::fs::read_to_string(&path).ok()?.trim().parse().ok()).await
    }

    /// Waits until there is `text`, on the screen or above it.
    pub(crate) async fn wait_for(&self, text: &str) {
        self.until(text, || self.text().contains(text).then_some(())).await;
    }

    /// Waits until there is `text` on the screen.
    pub(crate) async fn sees(&self, text: &str) {
        self.until(text, || self.screen().iter().any(|line| line.contains(text)).then_some(())).await;
    }

    /// Waits until there is no `text` on the screen.
    pub(crate) async fn sees_no(&self, text: &str) {
        let gone = || self.screen().iter().all(|line| !line.contains(text)).then_some(());
        self.until(&format!("no {text}"), gone).await;
    }

    /// Waits until `text` is there so many times, and no more.
    pub(crate) async fn wait_for_count(&self, text: &str, count: usize) {
        self.until(&format!("{count} times {text}"), || {
            (self.text().matches(text).count() == count).then_some(())
        })
        .await;
    }

    async fn until<T>(&self, what: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(began.elapsed() < LIMIT, "{what:?} is not to be seen in:\n{}", self.text());
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Types text, letter by letter.
    pub(crate) fn types(&self, text: &str) -> &Self {
        run(self.tmux().args(["send-keys", "-t", "t", "-l", "--", text]));
        self
    }

    /// Presses keys, by tmux's names for them.
    pub(crate) fn press(&self, keys: &[&str]) -> &Self {
        run(self.tmux().args(["send-keys", "-t", "t"]).args(keys));
        self
    }

    /// Types a line.
    pub(crate) fn enters(&self, line: &str) -> &Self {
        self.types(line).press(&["Enter"])
    }

    /// Pastes, as a terminal with bracketed paste does.
    pub(crate) fn pastes(&self, text: &str) {
        run(self.tmux().args(["set-buffer", "--", text]));
        run(self.tmux().args(["paste-buffer", "-p", "-t", "t"]));
    }

    /// The terminal has another size.
    pub(crate) fn resize(&self, width: usize, height: usize) {
        let (width, height) = (width.to_string(), height.to_string());
        run(self.tmux().args(["resize-window", "-t", "t", "-x", &width, "-y", &height]));
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // Whoever looks at a failed test wants to know about that, not about this.
        let _ = self.tmux().arg("kill-server").output();
    }
}

fn lines(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(|line| line.trim_end().to_owned()).collect();
    while lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("tmux is needed for this test: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// True when only its owner can read the file.
pub(crate) fn is_private(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777 == 0o600
}
