//! Lines of code in colour. Pure.

use synoptic::{Highlighter, TokOpt, from_extension};

use super::Markdown;
use crate::chat::line::{Color, Line, Style};

const TAB_WIDTH: usize = 4;
/// Lines before those that are wanted which the highlighter sees: enough for most comments and texts of several
/// lines, and few enough for a block that grows by a line at a time.
const CONTEXT: usize = 50;
/// Longest line that is highlighted, in bytes; longer ones are data.
const LINE_LIMIT: usize = 2000;

/// The name under which the highlighter knows a language.
fn extension(language: &str) -> &str {
    match language {
        "rust" => "rs",
        "python" | "python3" => "py",
        "javascript" | "jsx" | "mjs" | "node" => "js",
        "typescript" => "ts",
        "golang" => "go",
        "shell" | "console" | "zsh" | "bash" | "sh-session" => "sh",
        "jsonc" | "json5" | "jsonl" => "json",
        "csharp" | "c#" => "cs",
        "kotlin" => "kt",
        "haskell" => "hs",
        "patch" => "diff",
        "svg" => "xml",
        "postgresql" | "sqlite" | "mysql" => "sql",
        other => other,
    }
}

fn style(kind: &str) -> Style {
    match kind {
        "comment" | "quote" => Style::DIM,
        "string" | "insertion" => Style::of(Color::Green),
        "keyword" | "tag" | "kw" => Style::of(Color::Magenta),
        "digit" | "boolean" => Style::of(Color::Cyan),
        "function" | "key" | "namespace" => Style::of(Color::Blue),
        "struct" | "attribute" | "header" | "heading" => Style::of(Color::Yellow),
        "deletion" => Style::of(Color::Red),
        _ => Style::PLAIN,
    }
}

impl Markdown {
    /// The lines from `skip` on in colour; those before come out empty.
    pub(super) fn code(&mut self, language: &str, lines: &[&str], skip: usize) -> Vec<Line> {
        let plain = |line: &&str| Line::plain(line);
        let language = language.split([',', ' ', '{']).next().unwrap_or_default().to_lowercase();
        let mut out = vec![Line::default(); skip.min(lines.len())];
        let wanted = &lines[out.len()..];
        if language.is_empty() || self.marks || wanted.iter().any(|line| line.len() > LINE_LIMIT) {
            out.extend(wanted.iter().map(plain));
            return out;
        }
        let context = &lines[out.len().saturating_sub(CONTEXT)..];
        let mut highlighter = self.highlighter(&language);
        let owned: Vec<String> = context.iter().map(|&line| line.to_owned()).collect();
        highlighter.run(&owned);
        let first = owned.len() - wanted.len();
        out.extend(
            owned.iter().enumerate().skip(first).map(|(at, text)| highlighted(&highlighter, at, text)),
        );
        out
    }

    fn highlighter(&mut self, language: &str) -> Highlighter {
        let extension = extension(language);
        let make = || from_extension(extension, TAB_WIDTH).unwrap_or_else(|| Highlighter::new(TAB_WIDTH));
        self.highlighters.entry(extension.to_owned()).or_insert_with(make).clone()
    }
}

fn highlighted(highlighter: &Highlighter, at: usize, text: &str) -> Line {
    let mut line = Line::default();
    for token in highlighter.line(at, text) {
        match token {
            TokOpt::Some(text, kind) => line.push(style(&kind), &text),
            TokOpt::None(text) => line.push(Style::PLAIN, &text),
        }
    }
    line
}
