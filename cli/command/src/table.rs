//! Rows in columns, within the width of a terminal. Pure.

use unicode_width::UnicodeWidthStr;

use crate::text::clean_line;

/// Blanks between two columns.
const GAP: usize = 2;
/// The last column gets at least this much, however narrow the terminal is.
const LAST_MIN: usize = 10;
/// Longest cell where there is no terminal, in characters.
const CELL_LIMIT: usize = 500;

/// Lines with the cells of `rows` under each other. Only the last column is cut, so that each line fits into `width`
/// columns where that is known. Cells lose whatever a terminal would obey.
pub fn lines(header: &[&str], rows: &[Vec<String>], width: Option<usize>) -> Vec<String> {
    let clean = |row: &Vec<String>| row.iter().map(|cell| clean_line(cell, CELL_LIMIT)).collect::<Vec<_>>();
    let header: Vec<String> = header.iter().map(|cell| (*cell).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows.iter().map(clean)).collect();
    let Some(last) = rows[0].len().checked_sub(1) else { return Vec::new() };
    let widest = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.width()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..last).map(widest).collect();
    let taken: usize = widths.iter().map(|width| width + GAP).sum();
    let room = width.map(|width| width.saturating_sub(taken).max(LAST_MIN));
    rows.iter().map(|row| line(row, &widths, room)).collect()
}

/// The text in lines of at most `width` columns, cut between words where that can be done. The first line begins with
/// `begin`, the others with as many blanks.
pub fn wrapped(begin: &str, text: &str, width: Option<usize>) -> Vec<String> {
    let indent = " ".repeat(begin.width());
    let Some(width) = width else { return vec![format!("{begin}{text}")] };
    let room = width.saturating_sub(indent.len()).max(LAST_MIN);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always one");
        if line.is_empty() {
            line.push_str(word);
        } else if line.width() + 1 + word.width() <= room {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    let begins = std::iter::once(begin).chain(std::iter::repeat(indent.as_str()));
    begins.zip(&lines).map(|(begin, line)| format!("{begin}{line}")).collect()
}

fn line(row: &[String], widths: &[usize], room: Option<usize>) -> String {
    let mut text = String::new();
    for (cell, width) in row.iter().zip(widths) {
        text.push_str(cell);
        text.extend(std::iter::repeat_n(' ', width - cell.width() + GAP));
    }
    if let Some(cell) = row.get(widths.len()) {
        text.push_str(&fitted(cell, room));
    }
    text.truncate(text.trim_end().len());
    text
}

/// The text, cut to `room` columns; what is cut off is marked.
fn fitted(text: &str, room: Option<usize>) -> String {
    let Some(room) = room.filter(|room| text.width() > *room) else { return text.to_owned() };
    let mut cut = String::new();
    for character in text.chars() {
        cut.push(character);
        if cut.width() > room.saturating_sub(1) {
            cut.pop();
            break;
        }
    }
    cut.truncate(cut.trim_end().len());
    cut + "…"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(rows: &[[&str; 3]]) -> Vec<Vec<String>> {
        rows.iter().map(|row| row.iter().map(|cell| (*cell).to_owned()).collect()).collect()
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = rows(&[["0198f2c4", "idle", "the login form"], ["1", "running", ""]]);
        let all = lines(&["ID", "STATE", "TITLE"], &rows, None);
        assert_eq!(
            all,
            ["ID        STATE    TITLE", "0198f2c4  idle     the login form", "1         running"]
        );
        let narrow = lines(&["ID", "STATE", "TITLE"], &rows, Some(30));
        assert_eq!(narrow[1], "0198f2c4  idle     the login…");
    }

    #[test]
    fn text_is_wrapped_between_words_under_its_beginning() {
        assert_eq!(wrapped("✓ a  ", "one two three four", Some(18)), ["✓ a  one two three", "     four"]);
        assert_eq!(wrapped("", "a-word-that-fits-nowhere x", Some(12)), ["a-word-that-fits-nowhere", "x"]);
        assert_eq!(wrapped("> ", "one two", None), ["> one two"]);
    }

    #[test]
    fn wide_characters_take_two_columns() {
        let rows = rows(&[["日本", "x", "日本語日本語日本語"], ["ab", "y", "z"]]);
        let all = lines(&["A", "B", "C"], &rows, Some(18));
        assert_eq!(all, ["A     B  C", "日本  x  日本語日…", "ab    y  z"]);
    }

    proptest! {
        #[test]
        fn lines_fit_and_obey_nothing(cells in prop::collection::vec(any::<[String; 2]>(), 0..5), width in 1_usize..80) {
            let rows: Vec<Vec<String>> = cells.iter().map(|row| row.to_vec()).collect();
            for line in lines(&["A", "B"], &rows, Some(width)) {
                prop_assert!(!line.chars().any(char::is_control), "{:?}", line);
            }
        }
    }
}
