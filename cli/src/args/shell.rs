//! `berth completions` and `berth man`, as they are typed. Pure.

use std::path::PathBuf;

use clap::{Args as ClapArgs, ValueEnum};

/// A shell that can complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

/// `berth completions`
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  berth completions bash > ~/.local/share/bash-completion/completions/berth
  berth completions zsh > ~/.zfunc/_berth         with `fpath+=~/.zfunc` before `compinit` in ~/.zshrc
  berth completions fish > ~/.config/fish/completions/berth.fish
  source <(berth completions bash)                for this shell only")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// `berth man`
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  berth man | man -l -
  berth man sessions export | man -l -
  berth man --output ~/.local/share/man/man1      all of them; then `man berth-run`")]
pub struct ManArgs {
    /// The command whose page is written to standard output [default: berth itself]
    #[arg(value_name = "COMMAND", conflicts_with = "output")]
    pub command: Vec<String>,
    /// Write all pages into this directory
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}
