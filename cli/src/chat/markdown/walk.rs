//! From parsed Markdown to lines. Pure.

use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Tag, TagEnd};

use super::{DEEPEST, Markdown, table::Table};
use crate::chat::line::{Color, Line, Style};

/// Goes once through the events of a text.
pub(super) struct Walk<'m, 's> {
    markdown: &'m mut Markdown,
    events: std::iter::Peekable<std::vec::IntoIter<Event<'s>>>,
    depth: usize,
}

/// What is being built of a run of text with its emphasis and links.
#[derive(Default)]
struct Inline {
    lines: Vec<Line>,
    line: Line,
    styles: Vec<Style>,
    /// For each open link, its address and the text that was there before it.
    links: Vec<(String, usize)>,
}

impl Inline {
    fn style(&self) -> Style {
        self.styles.iter().fold(Style::PLAIN, |all, style| all.with(*style))
    }

    fn push(&mut self, text: &str) {
        let style = self.style();
        self.line.push(style, text);
    }

    fn finish(mut self) -> Vec<Line> {
        if !self.line.is_empty() || self.lines.is_empty() {
            self.lines.push(self.line);
        }
        self.lines
    }

    /// The address of a link behind its text, unless the text is the address.
    fn close_link(&mut self) {
        self.styles.pop();
        let Some((url, before)) = self.links.pop() else { return };
        let text = self.line.text();
        let shown = text.get(before..).unwrap_or(&text);
        if !url.is_empty() && url != shown && url.strip_prefix("mailto:") != Some(shown) {
            self.line.push(Style::DIM, &format!(" ({url})"));
        }
    }
}

impl<'m, 's> Walk<'m, 's> {
    pub(super) fn new(markdown: &'m mut Markdown, events: Vec<Event<'s>>) -> Self {
        Self { markdown, events: events.into_iter().peekable(), depth: 0 }
    }

    /// The units of the first block.
    pub(super) fn top(mut self, width: usize, skip: usize) -> Vec<Vec<Line>> {
        match self.events.next() {
            Some(Event::Start(Tag::List(start))) => self.items(start, width),
            Some(Event::Start(Tag::CodeBlock(kind))) => self.code(&kind, width, skip),
            Some(first) => vec![self.block(first, width)],
            None => Vec::new(),
        }
    }

    fn block(&mut self, first: Event<'s>, width: usize) -> Vec<Line> {
        let none = Line::default();
        match first {
            Event::Start(Tag::Paragraph) => wrapped(&self.inline(Style::PLAIN), width),
            Event::Start(Tag::Heading { level, .. }) => {
                let style = Style::BOLD.with(Style::of(Color::Blue));
                let mark = Line::new(style.with(Style::DIM), &format!("{} ", "#".repeat(level_of(level))));
                let rest = Line::plain(&" ".repeat(mark.width()));
                self.inline(style).iter().flat_map(|line| line.wrapped(width, &mark, &rest)).collect()
            }
            Event::Start(Tag::CodeBlock(kind)) => self.code(&kind, width, 0).concat(),
            Event::Start(Tag::List(start)) => self.items(start, width).concat(),
            Event::Start(Tag::BlockQuote(_)) => {
                let bar = Line::dim("│ ");
                let lines = self.container(inner(width, 2));
                let line = |line: Line| {
                    let mut with = bar.clone();
                    with.append(line.styled(Style::DIM));
                    with
                };
                lines.into_iter().map(line).collect()
            }
            Event::Start(Tag::Table(alignments)) => {
                let mut table = Table { alignments, rows: Vec::new() };
                self.rows(&mut table);
                table.lines(width)
            }
            Event::Start(Tag::HtmlBlock) => self.raw(width),
            Event::Start(_) => self.container(width),
            Event::Rule => vec![Line::dim(&"─".repeat(width.min(40)))],
            Event::Html(text) | Event::Text(text) => Line::plain(&text).wrapped(width, &none, &none),
            _ => Vec::new(),
        }
    }

    /// What is in a quote or in an item of a list, up to its end.
    fn container(&mut self, width: usize) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        let mut loose = false;
        loop {
            let block = match self.events.peek() {
                None => return lines,
                Some(Event::End(_)) => {
                    self.events.next();
                    return lines;
                }
                Some(Event::Start(tag)) if is_block(tag) => {
                    let list = matches!(tag, Tag::List(_));
                    if loose && !list && !lines.is_empty() {
                        lines.push(Line::default());
                    }
                    let Some(first) = self.events.next() else { return lines };
                    self.block(first, width)
                }
                Some(Event::Rule) => {
                    self.events.next();
                    vec![Line::dim("───")]
                }
                Some(_) => wrapped(&self.inline_run(), width),
            };
            loose = true;
            lines.extend(block);
        }
    }

    fn items(&mut self, start: Option<u64>, width: usize) -> Vec<Vec<Line>> {
        let mut items = Vec::new();
        let mut number = start;
        self.depth += 1;
        while let Some(Event::Start(Tag::Item)) = self.events.peek() {
            self.events.next();
            let mark = match &mut number {
                None => "• ".to_owned(),
                Some(number) => {
                    let mark = format!("{number}. ");
                    *number = number.saturating_add(1);
                    mark
                }
            };
            let columns = if self.depth > DEEPEST { 0 } else { mark.chars().count() };
            let lines = self.container(inner(width, columns));
            items.push(indented(&Line::new(Style::of(Color::Cyan), &mark), columns, lines));
        }
        self.depth -= 1;
        // The list's own end.
        self.events.next();
        items
    }

    fn code(&mut self, kind: &CodeBlockKind<'_>, width: usize, skip: usize) -> Vec<Vec<Line>> {
        let mut text = String::new();
        for event in self.events.by_ref() {
            match event {
                Event::Text(more) => text.push_str(&more),
                Event::End(_) => break,
                _ => {}
            }
        }
        let language = match kind {
            CodeBlockKind::Fenced(language) => language,
            CodeBlockKind::Indented => "",
        };
        let lines: Vec<&str> = text.lines().collect();
        let indent = Line::plain("  ");
        let fold = |line: Line| line.folded(width, &indent, &indent);
        self.markdown.code(language, &lines, skip).into_iter().map(fold).collect()
    }

    fn raw(&mut self, width: usize) -> Vec<Line> {
        let mut text = String::new();
        for event in self.events.by_ref() {
            match event {
                Event::Html(more) | Event::Text(more) => text.push_str(&more),
                Event::End(_) => break,
                _ => {}
            }
        }
        let none = Line::default();
        text.lines().flat_map(|line| Line::plain(line).wrapped(width, &none, &none)).collect()
    }

    fn rows(&mut self, table: &mut Table) {
        while let Some(event) = self.events.next() {
            match event {
                Event::Start(Tag::TableHead | Tag::TableRow) => table.rows.push(Vec::new()),
                Event::Start(Tag::TableCell) => {
                    let cell = self.inline(Style::PLAIN).into_iter().reduce(|mut all, line| {
                        all.push(Style::PLAIN, " ");
                        all.append(line);
                        all
                    });
                    if let Some(row) = table.rows.last_mut() {
                        row.push(cell.unwrap_or_default());
                    }
                }
                Event::End(TagEnd::Table) => return,
                _ => {}
            }
        }
    }

    /// A run of text up to the end of what holds it, which is taken too.
    fn inline(&mut self, style: Style) -> Vec<Line> {
        let mut inline = Inline { styles: vec![style], ..Inline::default() };
        while self.inline_event(&mut inline) {}
        self.events.next();
        inline.finish()
    }

    /// A run of text that stands by itself in an item of a tight list; what ends it is left.
    fn inline_run(&mut self) -> Vec<Line> {
        let mut inline = Inline::default();
        while self.inline_event(&mut inline) {}
        inline.finish()
    }

    /// Takes the next event when it belongs to a run of text.
    fn inline_event(&mut self, inline: &mut Inline) -> bool {
        let belongs = match self.events.peek() {
            None | Some(Event::Rule) => false,
            Some(Event::Start(tag)) => !is_block(tag),
            Some(Event::End(tag)) => is_inline_end(*tag),
            Some(_) => true,
        };
        if belongs && let Some(event) = self.events.next() {
            self.add(inline, event);
        }
        belongs
    }

    fn add(&self, inline: &mut Inline, event: Event<'s>) {
        let marks = self.markdown.marks;
        match event {
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => inline.push(&text),
            Event::Code(text) if marks => inline.push(&format!("`{text}`")),
            Event::Code(text) => {
                let style = inline.style().with(Style::of(Color::Cyan));
                inline.line.push(style, &text);
            }
            Event::SoftBreak => inline.push(" "),
            Event::HardBreak => inline.lines.push(std::mem::take(&mut inline.line)),
            Event::TaskListMarker(done) => inline.push(if done { "☑ " } else { "☐ " }),
            Event::FootnoteReference(name) => inline.push(&format!("[^{name}]")),
            Event::Start(Tag::Link { dest_url, .. }) => {
                inline.links.push((dest_url.to_string(), inline.line.text().len()));
                inline.styles.push(Style { underline: true, ..Style::PLAIN });
            }
            Event::Start(Tag::Image { dest_url, .. }) => {
                inline.push("image: ");
                inline.links.push((dest_url.to_string(), inline.line.text().len()));
                inline.styles.push(Style::PLAIN);
            }
            Event::Start(tag) => {
                let (style, mark) = emphasis(&tag);
                if marks {
                    inline.push(mark);
                }
                inline.styles.push(style);
            }
            Event::End(TagEnd::Link | TagEnd::Image) => inline.close_link(),
            Event::End(tag) => {
                inline.styles.pop();
                if marks {
                    inline.push(mark_of(tag));
                }
            }
            _ => {}
        }
    }
}

/// Width of what is indented by `columns`; a little is left in any case.
fn inner(width: usize, columns: usize) -> usize {
    width.saturating_sub(columns).max(4)
}

fn wrapped(lines: &[Line], width: usize) -> Vec<Line> {
    let none = Line::default();
    lines.iter().flat_map(|line| line.wrapped(width, &none, &none)).collect()
}

fn indented(mark: &Line, columns: usize, lines: Vec<Line>) -> Vec<Line> {
    if lines.is_empty() {
        return vec![mark.clone()];
    }
    let blank = Line::plain(&" ".repeat(columns));
    let indent = |(at, line): (usize, Line)| {
        if at > 0 && line.is_empty() {
            return line;
        }
        let mut with = if at == 0 { mark.clone() } else { blank.clone() };
        with.append(line);
        with
    };
    lines.into_iter().enumerate().map(indent).collect()
}

fn level_of(level: HeadingLevel) -> usize {
    match level {
        HeadingLevel::H1 => 1,
        HeadingLevel::H2 => 2,
        HeadingLevel::H3 => 3,
        HeadingLevel::H4 => 4,
        HeadingLevel::H5 => 5,
        HeadingLevel::H6 => 6,
    }
}

fn emphasis(tag: &Tag<'_>) -> (Style, &'static str) {
    match tag {
        Tag::Emphasis => (Style { italic: true, ..Style::PLAIN }, "*"),
        Tag::Strong => (Style::BOLD, "**"),
        Tag::Strikethrough => (Style { strike: true, ..Style::PLAIN }, "~~"),
        _ => (Style::PLAIN, ""),
    }
}

fn mark_of(tag: TagEnd) -> &'static str {
    match tag {
        TagEnd::Emphasis => "*",
        TagEnd::Strong => "**",
        TagEnd::Strikethrough => "~~",
        _ => "",
    }
}

fn is_inline_end(tag: TagEnd) -> bool {
    matches!(
        tag,
        TagEnd::Emphasis
            | TagEnd::Strong
            | TagEnd::Strikethrough
            | TagEnd::Link
            | TagEnd::Image
            | TagEnd::Superscript
            | TagEnd::Subscript
    )
}

fn is_block(tag: &Tag<'_>) -> bool {
    !matches!(
        tag,
        Tag::Emphasis
            | Tag::Strong
            | Tag::Strikethrough
            | Tag::Link { .. }
            | Tag::Image { .. }
            | Tag::Superscript
            | Tag::Subscript
    )
}
