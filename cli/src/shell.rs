//! `berth completions` and `berth man`: what shells and readers of manuals need, made of the command line itself. IO
//! only where it is written.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use clap::Command;
use clap_complete::generate;

use crate::{
    args::{self, Shell},
    error::{CliError, Exit},
};

/// `berth completions`, checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionsConfig {
    /// The shell.
    pub shell: Shell,
}

/// `berth man`, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManConfig {
    /// One page to standard output: that of this command.
    Page(Vec<String>),
    /// All pages into this directory.
    Directory(PathBuf),
}

/// Writes the script to standard output.
pub fn completions(config: CompletionsConfig) -> Result<Exit, CliError> {
    write_out(&script(config.shell))
}

/// Writes one page or all of them.
pub fn man(config: ManConfig) -> Result<Exit, CliError> {
    match config {
        ManConfig::Page(words) => {
            let pages = pages()?;
            let name = std::iter::once("berth").chain(words.iter().map(String::as_str)).collect::<Vec<_>>();
            let name = name.join("-");
            let page = pages.iter().find(|page| page.name == name);
            let page = page.ok_or_else(|| {
                let reason = format!("there is no page {name}; there are: {}", names(&pages));
                CliError::usage("COMMAND", reason)
            })?;
            write_out(&page.text)
        }
        ManConfig::Directory(directory) => write_pages(&directory),
    }
}

/// The completion script of a shell.
pub fn script(shell: Shell) -> Vec<u8> {
    let mut command = args::command();
    let mut script = Vec::new();
    match shell {
        Shell::Bash => generate(clap_complete::Shell::Bash, &mut command, "berth", &mut script),
        Shell::Zsh => generate(clap_complete::Shell::Zsh, &mut command, "berth", &mut script),
        Shell::Fish => generate(clap_complete::Shell::Fish, &mut command, "berth", &mut script),
    }
    script
}

/// A man page of section 1.
#[derive(Debug, Clone)]
pub struct Page {
    /// Its name, such as `berth-run`.
    pub name: String,
    /// Its source, in roff.
    pub text: Vec<u8>,
}

/// All man pages.
pub fn pages() -> Result<Vec<Page>, CliError> {
    let mut command = args::command();
    command.build();
    let mut pages = Vec::new();
    collect(&command, "berth", &mut pages).map_err(CliError::Output)?;
    Ok(pages)
}

fn collect(command: &Command, name: &str, pages: &mut Vec<Page>) -> io::Result<()> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).title(name.to_owned()).render(&mut text)?;
    pages.push(Page { name: name.to_owned(), text });
    let visible = |command: &&Command| !command.is_hide_set() && command.get_name() != "help";
    for subcommand in command.get_subcommands().filter(visible) {
        collect(subcommand, &format!("{name}-{}", subcommand.get_name()), pages)?;
    }
    Ok(())
}

fn names(pages: &[Page]) -> String {
    pages.iter().map(|page| page.name.as_str()).collect::<Vec<_>>().join(", ")
}

fn write_pages(directory: &Path) -> Result<Exit, CliError> {
    let failed = |path: &Path, source| CliError::Write { path: path.to_owned(), source };
    fs::create_dir_all(directory).map_err(|source| failed(directory, source))?;
    for page in pages()? {
        let path = directory.join(format!("{}.1", page.name));
        fs::write(&path, page.text).map_err(|source| failed(&path, source))?;
    }
    Ok(Exit::Succeeded)
}

fn write_out(bytes: &[u8]) -> Result<Exit, CliError> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(CliError::Output)?;
    Ok(Exit::Succeeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_completes_every_command() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(script(shell)).unwrap();
            for word in ["sessions", "doctor", "token-file", "export"] {
                assert!(script.contains(word), "{shell:?}: {word}");
            }
        }
    }

    #[test]
    fn every_command_has_a_page_with_its_examples() {
        let pages = pages().unwrap();
        for name in ["berth", "berth-run", "berth-sessions-export", "berth-doctor"] {
            let page = pages.iter().find(|page| page.name == name).unwrap();
            let text = String::from_utf8(page.text.clone()).unwrap();
            assert!(text.contains("Examples:"), "{name}: {text}");
        }
    }
}
