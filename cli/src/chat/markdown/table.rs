//! Tables: side by side where the columns fit, else row by row. Pure.

use pulldown_cmark::Alignment;

use crate::chat::line::{Line, Style};

/// Least columns of characters that a column of a table is narrowed to.
const LEAST_COLUMN: usize = 6;
const GAP: &str = " │ ";
const GAP_WIDTH: usize = 3;

/// A table's cells; the first row is its head.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) alignments: Vec<Alignment>,
    pub(super) rows: Vec<Vec<Line>>,
}

impl Table {
    pub(super) fn lines(&self, width: usize) -> Vec<Line> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        if columns == 0 {
            return Vec::new();
        }
        let natural: Vec<usize> = (0..columns)
            .map(|column| {
                self.rows.iter().filter_map(|row| row.get(column)).map(Line::width).max().unwrap_or(0)
            })
            .collect();
        match narrowed(natural, width.saturating_sub((columns - 1) * GAP_WIDTH)) {
            Some(widths) => self.side_by_side(&widths),
            None => self.one_by_one(width),
        }
    }

    fn side_by_side(&self, widths: &[usize]) -> Vec<Line> {
        let mut lines = Vec::new();
        for (number, row) in self.rows.iter().enumerate() {
            let style = if number == 0 { Style::BOLD } else { Style::PLAIN };
            lines.extend(self.row(row, widths, style));
            if number == 0 {
                let rules: Vec<String> = widths.iter().map(|&width| "─".repeat(width)).collect();
                lines.push(Line::dim(&rules.join("─┼─")));
            }
        }
        lines
    }

    fn row(&self, row: &[Line], widths: &[usize], style: Style) -> Vec<Line> {
        let empty = Line::default();
        let cells: Vec<Vec<Line>> = widths
            .iter()
            .enumerate()
            .map(|(column, &width)| row.get(column).unwrap_or(&empty).wrapped(width, &empty, &empty))
            .collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(0);
        let line = |at: usize| {
            let mut line = Line::default();
            for (column, cell) in cells.iter().enumerate() {
                if column > 0 {
                    line.push(Style::DIM, GAP);
                }
                let cell = cell.get(at).unwrap_or(&empty).clone().styled(style);
                let last = column + 1 == cells.len();
                self.align(column, cell, widths[column], last, &mut line);
            }
            line
        };
        (0..height).map(line).collect()
    }

    fn align(&self, column: usize, cell: Line, width: usize, last: bool, line: &mut Line) {
        let free = width.saturating_sub(cell.width());
        let left = match self.alignments.get(column) {
            Some(Alignment::Right) => free,
            Some(Alignment::Center) => free / 2,
            _ => 0,
        };
        line.push(Style::PLAIN, &" ".repeat(left));
        line.append(cell);
        if !last {
            line.push(Style::PLAIN, &" ".repeat(free - left));
        }
    }

    /// Each row as lines `head: cell`.
    fn one_by_one(&self, width: usize) -> Vec<Line> {
        let Some((head, rows)) = self.rows.split_first() else { return Vec::new() };
        let rest = Line::plain("  ");
        let mut lines = Vec::new();
        for row in if rows.is_empty() { std::slice::from_ref(head) } else { rows } {
            if !lines.is_empty() {
                lines.push(Line::dim("──"));
            }
            for (column, cell) in row.iter().enumerate() {
                let mut line = Line::default();
                if let Some(name) = head.get(column).filter(|name| !name.is_empty() && !rows.is_empty()) {
                    line.append(name.clone().styled(Style::BOLD));
                    line.push(Style::PLAIN, ": ");
                }
                line.append(cell.clone());
                lines.extend(line.wrapped(width, &Line::default(), &rest));
            }
        }
        lines
    }
}

/// Widths that fit into `room`, taken from the widest columns; `None` when that would leave too little of them.
fn narrowed(mut widths: Vec<usize>, room: usize) -> Option<Vec<usize>> {
    let mut over = widths.iter().sum::<usize>().saturating_sub(room);
    while over > 0 {
        let widest = widths.iter_mut().max()?;
        if *widest <= LEAST_COLUMN {
            return None;
        }
        *widest -= 1;
        over -= 1;
    }
    Some(widths)
}
