//! Text from elsewhere made safe and fit for a terminal. Pure.
//!
//! What an agent says, and what its tools are called, comes from outside: it may hold escape sequences that
//! repaint the screen, or direction marks that make a command read as another one.

use std::borrow::Cow;

use jiff::Timestamp;

/// Characters that move the cursor, start an escape sequence, or reorder or hide what is read.
fn is_unsafe(character: char) -> bool {
    let control = character.is_control() && !matches!(character, '\n' | '\t');
    // The joiners U+200C and U+200D stay: emoji and some scripts need them.
    let direction = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    let line = matches!(character, '\u{2028}' | '\u{2029}');
    // The last ones are tags: letters that nobody sees.
    let invisible = matches!(
        character,
        '\u{180e}' | '\u{200b}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    control || direction || line || invisible
}

/// Several lines without anything that a terminal would obey or a reader could not see.
pub fn clean(text: &str) -> String {
    text.chars().filter(|character| !is_unsafe(*character)).collect()
}

/// One line of at most `limit` characters: line ends become blanks, and what is cut off is marked.
pub fn clean_line(text: &str, limit: usize) -> String {
    let mut line = String::new();
    let words = text.split(|c: char| c.is_whitespace()).map(clean);
    for word in words.filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(&word);
    }
    if line.chars().count() > limit {
        line = line.chars().take(limit.saturating_sub(1)).collect();
        line.push('…');
    }
    line
}

/// A duration as a person would say it: `0.3 s`, `12 s`, `2 min 05 s`.
pub fn duration(milliseconds: i64) -> String {
    let milliseconds = milliseconds.max(0);
    let seconds = milliseconds / 1000;
    match seconds {
        0..10 => format!("{seconds}.{} s", milliseconds % 1000 / 100),
        10..60 => format!("{seconds} s"),
        _ => format!("{} min {:02} s", seconds / 60, seconds % 60),
    }
}

/// How long before `now` that was, as a person would say it: `just now`, `5 min ago`, `3 d ago`.
pub fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(then).as_secs().max(0);
    match seconds {
        0..60 => "just now".to_owned(),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..86_400 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

/// The text as it may be written: [cleaned](clean) for a terminal, and as it is for everything else.
pub fn written(text: &str, to_terminal: bool) -> Cow<'_, str> {
    if to_terminal { Cow::Owned(clean(text)) } else { Cow::Borrowed(text) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        assert_eq!(clean("a\u{1b}[2Jb\r\u{9b}31mc\u{7}\nd\te"), "a[2Jb31mc\nd\te");
        assert_eq!(clean("rm \u{202e}txt.\u{2066}x"), "rm txt.x");
        assert_eq!(clean("a\u{e0072}\u{e006d}b\u{2028}c\u{61c}d"), "abcd");
        assert_eq!(clean("naïve 🦀"), "naïve 🦀");
    }

    #[test]
    fn a_line_is_one_line() {
        assert_eq!(clean_line("  ls -la\n\n  /tmp\t", 80), "ls -la /tmp");
        assert_eq!(clean_line("abcdef", 4), "abc…");
        assert_eq!(clean_line("abcd", 4), "abcd");
        assert_eq!(clean_line("", 4), "");
    }

    #[test]
    fn how_long_ago_reads_well() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let cases =
            [(-5, "just now"), (59, "just now"), (60, "1 min ago"), (7_200, "2 h ago"), (172_800, "2 d ago")];
        for (seconds, text) in cases {
            assert_eq!(ago(Timestamp::from_second(1_000_000 - seconds).unwrap(), now), text);
        }
    }

    #[test]
    fn durations_read_well() {
        let cases =
            [(-5, "0.0 s"), (340, "0.3 s"), (9_990, "9.9 s"), (12_400, "12 s"), (125_000, "2 min 05 s")];
        for (milliseconds, text) in cases {
            assert_eq!(duration(milliseconds), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_safe_line_within_its_bound(text in any::<String>(), limit in 1_usize..50) {
            let line = clean_line(&text, limit);
            prop_assert!(line.chars().count() <= limit);
            prop_assert!(!line.chars().any(|c| is_unsafe(c) || c == '\n' || c == '\t'));
        }
    }
}
