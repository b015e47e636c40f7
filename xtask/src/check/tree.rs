//! What no file of the repository may hold: the host of a package registry, an absolute path of the machine it was
//! written on, an address in a lock file. Pure but for reading the files.

use std::fs;

use anyhow::bail;

use crate::{process::capture, workspace::Workspace};

/// Starts of host names of package registries, in two parts so that this file does not hold them itself.
const REGISTRY_HOSTS: [(&str, &str); 7] = [
    ("registry", "npmjs"),
    ("static", "crates"),
    ("index", "crates"),
    ("proxy", "golang"),
    ("files", "pythonhosted"),
    ("repo", "maven"),
    ("deb", "debian"),
];

/// A text file of the repository.
#[derive(Debug)]
pub(super) struct TextFile {
    /// Relative to the repository's root.
    pub(super) path: String,
    /// Its text.
    pub(super) text: String,
}

/// Every file that is tracked, or would be by `git add`, and is text (UTF-8).
pub(super) fn repository_files(workspace: &Workspace) -> anyhow::Result<Vec<TextFile>> {
    let tracked_or_new = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = capture(workspace.command("git").args(tracked_or_new))?;
    let read = |path: &str| {
        let text = String::from_utf8(fs::read(workspace.root.join(path)).ok()?).ok()?;
        Some(TextFile { path: path.to_owned(), text })
    };
    Ok(listed.split_terminator('\0').filter_map(read).collect())
}

/// Fails with every finding.
pub(super) fn check(workspace: &Workspace) -> anyhow::Result<()> {
    let forbidden = Forbidden::new(&[&workspace.home, &workspace.root].map(|path| path.to_string_lossy()));
    let files = repository_files(workspace)?;
    let findings: Vec<String> = files.iter().flat_map(|file| forbidden.find_in(file)).collect();
    if !findings.is_empty() {
        bail!("{} findings\n  {}", findings.len(), findings.join("\n  "));
    }
    Ok(())
}

struct Forbidden {
    hosts: Vec<String>,
    paths: Vec<String>,
}

impl Forbidden {
    fn new(machine_paths: &[impl AsRef<str>]) -> Self {
        let usual = ["root", "work"].map(|name| format!("/{name}/"));
        let machine = machine_paths.iter().map(|path| format!("{}/", path.as_ref().trim_end_matches('/')));
        // A home directory of "/" would forbid every path.
        let paths = usual.into_iter().chain(machine.filter(|path| path.len() > 2)).collect();
        Self { hosts: REGISTRY_HOSTS.map(|(first, second)| format!("{first}.{second}")).to_vec(), paths }
    }

    fn find_in(&self, file: &TextFile) -> Vec<String> {
        let is_npm_lock = file.path.ends_with("package-lock.json");
        let mut findings = Vec::new();
        for (index, line) in file.text.lines().enumerate() {
            let mut report = |what: &str| findings.push(format!("{}:{}: {what}", file.path, index + 1));
            if let Some(host) = self.hosts.iter().find(|host| line.contains(host.as_str())) {
                report(&format!("names a registry host ({host}…)"));
            }
            if let Some(path) = self.paths.iter().find(|path| has_absolute_path(line, path)) {
                report(&format!("holds a path of the machine it was written on ({path}…)"));
            }
            if is_npm_lock && line.trim_start().starts_with("\"resolved\":") {
                report("holds an address; npm leaves them out with omit-lockfile-registry-resolved=true");
            }
        }
        findings
    }
}

/// Whether `line` holds `path` as the beginning of a path, not inside a longer one (`/workspace` + `path`).
fn has_absolute_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "_-.}/".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let forbidden = Forbidden::new(&["/", "/home/somebody", "/builds/berth/"]);
        forbidden.find_in(&TextFile { path: path.to_owned(), text: text.to_owned() })
    }

    #[test]
    fn paths_of_the_machine_are_found_and_others_are_not() {
        let work = format!("/{}/", "work");
        for bad in [
            format!("cd {work}x"),
            format!("\"{work}x\""),
            "x=/builds/berth/a".to_owned(),
            "/home/somebody/x".to_owned(),
        ] {
            assert_eq!(findings("a.md", &format!("first\n{bad}\n")).len(), 1, "{bad}");
        }
        for good in [
            format!("/workspace{work}repo"),
            format!("{{cwd}}{work}"),
            "/home/else/x".to_owned(),
            "/".to_owned(),
        ] {
            assert_eq!(findings("a.md", &good), Vec::<String>::new(), "{good}");
        }
    }

    #[test]
    fn registry_hosts_and_lock_file_addresses_are_found() {
        let host = ["registry", "npmjs", "org"].join(".");
        assert_eq!(findings("a.md", &host).len(), 1);
        let line = "  \"resolved\": \"somewhere\",";
        assert_eq!(findings("x/package-lock.json", line).len(), 1);
        assert_eq!(findings("x/other.json", line).len(), 0);
        assert_eq!(
            findings("Cargo.lock", "source = \"registry+https://example.org/crates.io-index\"").len(),
            0
        );
    }
}
