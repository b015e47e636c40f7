//! Spans of time as manifests write them (`90s`, `15m`, `1h30m`, `7d`): read, and bounded. Pure.

use std::time::Duration;

/// Longest span: ten years. More is meant by saying nothing.
const MAX: u64 = 3650 * 24 * 3600;

/// Text that is no span of time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no span of time: write one such as 90s, 15m, 1h30m or 7d, above zero and of at most 3650d")]
pub struct SpanError(String);

/// Reads whole numbers, each with its unit: days, hours, minutes or seconds.
pub fn parse(text: &str) -> Result<Duration, SpanError> {
    let seconds = read(text).filter(|seconds| (1..=MAX).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| SpanError(text.chars().take(64).collect()))
}

fn read(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let number: u64 = rest[..end].parse().ok()?;
        let unit = match rest.as_bytes()[end] {
            b'd' => 24 * 3600,
            b'h' => 3600,
            b'm' => 60,
            b's' => 1,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(unit)?)?;
        rest = &rest[end + 1..];
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spans_are_read() {
        for (text, seconds) in
            [("90s", 90), ("15m", 900), ("1h30m", 5400), ("7d", 604_800), ("0h1s", 1), ("3650d", MAX)]
        {
            assert_eq!(parse(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in
            ["", "5", "0s", "0h0m", "h", "-1h", "1.5h", "1w", "1 h", "3651d", "99999999999999999999s", "1hé"]
        {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains("such as 90s"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,24}") {
            let _ = parse(&text);
        }

        #[test]
        fn what_looks_like_a_span_is_read_or_refused(text in "([0-9]{0,20}[dhms]){0,4}") {
            if let Ok(span) = parse(&text) {
                prop_assert!((1..=MAX).contains(&span.as_secs()));
            }
        }
    }
}
