//! What was learnt of the sandbox, for completion: its files, agents and models; and the parts of a prompt that
//! mentions them. Pure.

use std::collections::{HashMap, HashSet};

use berth_wire::api::{AgentInfo, AgentMode, FileEntry, FileKind, PARTS_MAX, PromptPart};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use super::Effect;
use crate::chat::commands::{mentions, split_path};

/// What is encoded in the path of a `file://` URL.
const PATH: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>').add(b'?').add(b'`').add(b'%');
/// Directories whose files are remembered.
const DIRECTORIES: usize = 200;

/// Directories, by path from the session's own with a slash at the end, and agents.
#[derive(Debug, Default)]
pub(super) struct Listing {
    directories: HashMap<String, Vec<FileEntry>>,
    agents: Option<Vec<AgentInfo>>,
    asked: HashSet<Question>,
}

/// What was asked for already.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Question {
    Files(String),
    Agents,
}

impl Listing {
    /// What has to be asked for to complete this mention; each only once.
    pub(super) fn wants(&mut self, mention: &str) -> Vec<Effect> {
        let (directory, _) = split_path(mention);
        let mut wanted = Vec::new();
        if self.asked.len() < DIRECTORIES && self.asked.insert(Question::Files(directory.to_owned())) {
            wanted.push(Effect::ListFiles(directory.to_owned()));
        }
        if self.asked.insert(Question::Agents) {
            wanted.push(Effect::ListAgents);
        }
        wanted
    }

    /// What is in a directory.
    pub(super) fn files(&mut self, directory: String, entries: Vec<FileEntry>) {
        self.directories.insert(directory, entries);
    }

    /// Looks again where that was not possible.
    pub(super) fn forget(&mut self, directory: &str) {
        self.asked.remove(&Question::Files(directory.to_owned()));
    }

    pub(super) fn agents(&mut self, agents: Vec<AgentInfo>) {
        self.agents = Some(agents);
    }

    /// What the mention may become: its text, and what it is.
    pub(super) fn completions(&self, mention: &str) -> Vec<(String, String)> {
        let (directory, begun) = split_path(mention);
        let begun = begun.to_lowercase();
        let fits = |name: &str| {
            name.to_lowercase().starts_with(&begun) && (!name.starts_with('.') || begun.starts_with('.'))
        };
        let agents = self.subagents().filter(|agent| directory.is_empty() && fits(&agent.name));
        let agents = agents.map(|agent| (agent.name.clone(), "agent".to_owned()));
        let entries = self.directories.get(directory).into_iter().flatten();
        let files = entries.filter(|entry| fits(&entry.name) && !entry.ignored).map(|entry| {
            let slash = if entry.kind == FileKind::Directory { "/" } else { "" };
            (format!("{directory}{}{slash}", entry.name), String::new())
        });
        agents.chain(files).collect()
    }

    fn subagents(&self) -> impl Iterator<Item = &AgentInfo> {
        self.agents.iter().flatten().filter(|agent| agent.mode != AgentMode::Primary)
    }

    /// The parts of a prompt: its text, and what it mentions, as far as that is known to exist.
    pub(super) fn parts(&self, text: &str, root: &str) -> Vec<PromptPart> {
        let mut parts = vec![PromptPart::text(text)];
        let mut seen = HashSet::new();
        for mention in mentions(text).filter(|mention| seen.insert(*mention)) {
            if parts.len() >= PARTS_MAX {
                break;
            }
            parts.extend(self.part(mention, root));
        }
        parts
    }

    fn part(&self, mention: &str, root: &str) -> Option<PromptPart> {
        if self.subagents().any(|agent| agent.name == mention) {
            return Some(PromptPart::Agent { name: mention.to_owned() });
        }
        let path = mention.trim_end_matches('/');
        let (directory, name) = split_path(path);
        let entry = self.directories.get(directory)?.iter().find(|entry| entry.name == name)?;
        let mime = match entry.kind {
            FileKind::Directory => "application/x-directory",
            FileKind::File => media_type(name),
        };
        let url = format!("file://{}/{}", root.trim_end_matches('/'), path);
        let url = utf8_percent_encode(&url, PATH).to_string();
        Some(PromptPart::File { mime: mime.to_owned(), filename: Some(path.to_owned()), url })
    }
}

/// Images and documents that models take as such; all else is text to them.
fn media_type(name: &str) -> &'static str {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension).to_lowercase();
    match extension.as_str() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "gif" => "image/gif",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        _ => "text/plain",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing() -> Listing {
        let entry = |name: &str, kind| FileEntry {
            name: name.to_owned(),
            path: name.to_owned(),
            kind,
            size: None,
            ignored: name == "target",
        };
        let mut listing = Listing::default();
        let root = ["src", "target", ".git"].map(|name| entry(name, FileKind::Directory)).to_vec();
        listing.files(String::new(), root);
        let files = ["a b.png", "main.rs", "Makefile"].map(|name| entry(name, FileKind::File)).to_vec();
        listing.files("src/".to_owned(), files);
        let agent =
            |name: &str, mode| AgentInfo { name: name.to_owned(), description: None, mode, model: None };
        listing.agents(vec![agent("build", AgentMode::Primary), agent("scout", AgentMode::Subagent)]);
        listing
    }

    fn names(listing: &Listing, mention: &str) -> Vec<String> {
        listing.completions(mention).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn files_and_subagents_are_offered() {
        let listing = listing();
        assert_eq!(names(&listing, ""), ["scout", "src/"]);
        assert_eq!(names(&listing, "."), [".git/"]);
        assert_eq!(names(&listing, "src/MA"), ["src/main.rs", "src/Makefile"]);
        assert!(names(&listing, "nowhere/").is_empty());
    }

    #[test]
    fn each_directory_is_asked_for_once_unless_that_failed() {
        let mut listing = Listing::default();
        let files = |directory: &str| Effect::ListFiles(directory.to_owned());
        assert_eq!(listing.wants("sr"), [files(""), Effect::ListAgents]);
        assert_eq!(listing.wants("src"), []);
        assert_eq!(listing.wants("src/m"), [files("src/")]);
        listing.forget("src/");
        assert_eq!(listing.wants("src/"), [files("src/")]);
    }

    #[test]
    fn what_is_mentioned_and_known_becomes_a_part() {
        let parts = listing().parts("ask @scout about @src/main.rs, @src/ and @unknown", "/w/it");
        let file = |mime: &str, path: &str| PromptPart::File {
            mime: mime.to_owned(),
            filename: Some(path.to_owned()),
            url: format!("file:///w/it/{path}"),
        };
        assert_eq!(
            parts[1..],
            [
                PromptPart::Agent { name: "scout".to_owned() },
                file("text/plain", "src/main.rs"),
                file("application/x-directory", "src"),
            ]
        );
        assert_eq!(media_type("a.PNG"), "image/png");
    }
}
