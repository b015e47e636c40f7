//! Lines that begin with a slash, and what a line can be completed to. Pure.

/// A command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Sessions,
    New,
    Model,
    Agent,
    Diff,
    Cancel,
    Drop,
    Retry,
    Rename,
    Thoughts,
    Help,
    Quit,
}

/// A command as a person sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Described {
    pub(super) command: Command,
    pub(super) name: &'static str,
    /// What may follow it.
    pub(super) argument: &'static str,
    pub(super) help: &'static str,
}

impl Described {
    /// The command with what may follow it.
    pub(super) fn usage(&self) -> String {
        format!("/{} {}", self.name, self.argument).trim_end().to_owned()
    }
}

const fn described(
    command: Command,
    name: &'static str,
    argument: &'static str,
    help: &'static str,
) -> Described {
    Described { command, name, argument, help }
}

/// All commands, in the order of `/help`.
pub(super) const COMMANDS: [Described; 12] = [
    described(Command::Sessions, "sessions", "[WORDS]", "choose another session of this sandbox"),
    described(Command::New, "new", "", "begin a new session"),
    described(Command::Model, "model", "[PROVIDER/MODEL]", "choose the model for what you ask next"),
    described(Command::Agent, "agent", "[NAME]", "choose the agent for what you ask next"),
    described(Command::Diff, "diff", "[turn]", "what the session, or its last turn, changed in files"),
    described(Command::Cancel, "cancel", "", "end what runs, and drop what waits"),
    described(Command::Drop, "drop", "[NUMBER]", "drop a prompt that waits; the last one without a number"),
    described(Command::Retry, "retry", "", "ask again what failed or was cancelled last"),
    described(Command::Rename, "rename", "TITLE", "give the session a title"),
    described(Command::Thoughts, "thoughts", "", "show the agent's thoughts whole, or as one line"),
    described(Command::Help, "help", "", "this"),
    described(Command::Quit, "quit", "", "leave; the agent goes on with what it does"),
];

/// Keys, for `/help`.
pub(super) const KEYS: [(&str, &str); 9] = [
    ("Enter", "send; while the agent works, the prompt waits for its turn"),
    ("Alt-Enter, Ctrl-J, \\ Enter", "a new line"),
    ("Up, Down", "prompts of before; in a text of several lines, its lines"),
    ("Tab", "complete a command, @file or @agent; answer what the agent asks"),
    ("Alt-Up", "take the last waiting prompt back to change it"),
    ("Ctrl-C", "end what the agent does; twice: leave"),
    ("Ctrl-D", "leave"),
    ("Ctrl-L", "clear the screen"),
    ("Ctrl-Z", "suspend"),
];

/// What a line is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Typed<'a> {
    Nothing,
    Command(Command, &'a str),
    /// A word behind a slash that is no command, or the beginning of several.
    Unknown(&'a str),
    Prompt(&'a str),
}

/// Understands a line. A command may be shortened as far as no other begins so.
pub(super) fn understand(line: &str) -> Typed<'_> {
    let line = line.trim();
    let Some(rest) = line.strip_prefix('/') else {
        return if line.is_empty() { Typed::Nothing } else { Typed::Prompt(line) };
    };
    let (word, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    // A path is a fair beginning of a prompt.
    if word.is_empty() || !word.chars().all(char::is_alphabetic) {
        return Typed::Prompt(line);
    }
    let whole = COMMANDS.iter().find(|known| known.name == word || (word == "exit" && known.name == "quit"));
    let mut begun = COMMANDS.iter().filter(|known| known.name.starts_with(word));
    match (whole, begun.next(), begun.next()) {
        (Some(known), ..) | (None, Some(known), None) => Typed::Command(known.command, argument.trim()),
        _ => Typed::Unknown(&line[..=word.len()]),
    }
}

/// The commands that the beginning of a line may mean; none once it goes on behind the command.
pub(super) fn begun(line: &str) -> Vec<&'static Described> {
    match line.strip_prefix('/') {
        Some(word) if word.chars().all(char::is_alphabetic) => {
            COMMANDS.iter().filter(|known| known.name.starts_with(word)).collect()
        }
        _ => Vec::new(),
    }
}

/// The mention that is being typed at the end of `before`: where its `@` is, and what follows it.
pub(super) fn mention(before: &str) -> Option<(usize, &str)> {
    let start = before
        .rfind(char::is_whitespace)
        .map_or(0, |at| at + before[at..].chars().next().map_or(1, char::len_utf8));
    let word = before[start..].strip_prefix('@')?;
    Some((start, word))
}

/// All mentions of a text, without their `@`, and without punctuation behind them.
pub(super) fn mentions(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split_whitespace().filter_map(|word| word.strip_prefix('@'));
    words
        .map(|word| word.trim_end_matches([',', ';', ':', '.', '!', '?', ')', '"', '\'']))
        .filter(|word| !word.is_empty())
}

/// A path's directory, with its last slash, and the rest.
pub(super) fn split_path(path: &str) -> (&str, &str) {
    path.rfind('/').map_or(("", path), |slash| path.split_at(slash + 1))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn commands_and_prompts() {
        let cases = [
            ("  ", Typed::Nothing),
            ("/help ", Typed::Command(Command::Help, "")),
            ("/exit", Typed::Command(Command::Quit, "")),
            ("/ses", Typed::Command(Command::Sessions, "")),
            ("/rename  a new title ", Typed::Command(Command::Rename, "a new title")),
            ("/re", Typed::Unknown("/re")),
            ("/halp me", Typed::Unknown("/halp")),
            ("/etc/hosts: explain it", Typed::Prompt("/etc/hosts: explain it")),
            ("/", Typed::Prompt("/")),
            (" fix it ", Typed::Prompt("fix it")),
        ];
        for (line, typed) in cases {
            assert_eq!(understand(line), typed, "{line:?}");
        }
    }

    #[test]
    fn a_slash_offers_all_commands_and_letters_fewer() {
        let names = |line| begun(line).iter().map(|known| known.name).collect::<Vec<_>>();
        assert_eq!(names("/").len(), COMMANDS.len());
        assert_eq!(names("/re"), ["retry", "rename"]);
        assert!(names("/model ").is_empty() && names("x").is_empty());
    }

    #[test]
    fn mentions_are_found() {
        assert_eq!(mention("look at @src/ma"), Some((8, "src/ma")));
        assert_eq!(mention("@"), Some((0, "")));
        assert_eq!(mention("世\u{3000}@a"), Some((6, "a")));
        assert_eq!(mention("me@home"), None);
        assert_eq!(mention("@a b"), None);
        assert_eq!(mentions("see @a.txt, @b/c and @d.").collect::<Vec<_>>(), ["a.txt", "b/c", "d"]);
        assert_eq!(split_path("a/b/c"), ("a/b/", "c"));
        assert_eq!(split_path("c"), ("", "c"));
    }

    proptest! {
        #[test]
        fn no_line_makes_it_panic(line in any::<String>()) {
            understand(&line);
            begun(&line);
            mention(&line);
            mentions(&line).count();
        }
    }
}
