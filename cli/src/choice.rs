//! How a person names a session: by its id, by the beginning of it, or as the last one. Pure.

use std::{fmt, str::FromStr};

use uuid::Uuid;

/// Shortest beginning of an id that is taken for one.
const PREFIX_MIN: usize = 4;
/// What names the session that changed last.
const LAST: &str = "last";

/// A session as it was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionChoice {
    /// By its whole id.
    Id(Uuid),
    /// By the beginning of its id: lower-case hexadecimal digits, at the places of an id's dashes dashes.
    Prefix(String),
    /// As the one that changed last.
    Last,
}

/// Why a text names no session.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "a session is named by its id, by at least {PREFIX_MIN} characters from the beginning of it, or as `{LAST}`"
)]
pub struct NoChoice;

impl FromStr for SessionChoice {
    type Err = NoChoice;

    fn from_str(text: &str) -> Result<Self, NoChoice> {
        let text = text.trim();
        if text.eq_ignore_ascii_case(LAST) {
            return Ok(Self::Last);
        }
        if let Ok(id) = text.parse() {
            return Ok(Self::Id(id));
        }
        let digits: String = text.chars().filter(|c| *c != '-').collect::<String>().to_ascii_lowercase();
        let is_prefix =
            (PREFIX_MIN..32).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_prefix { Ok(Self::Prefix(dashed(&digits))) } else { Err(NoChoice) }
    }
}

impl fmt::Display for SessionChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Prefix(prefix) => f.write_str(prefix),
            Self::Last => f.write_str(LAST),
        }
    }
}

/// The beginning of an id with its dashes, of its digits.
fn dashed(digits: &str) -> String {
    let mut text = String::with_capacity(36);
    for (index, digit) in digits.chars().enumerate() {
        if matches!(index, 8 | 12 | 16 | 20) {
            text.push('-');
        }
        text.push(digit);
    }
    text
}

/// The shortest beginning of `id`, of at least 8 characters, that no other of `ids` shares.
pub fn short(id: Uuid, ids: &[Uuid]) -> String {
    let text = id.to_string();
    let others = ids.iter().filter(|other| **other != id).map(Uuid::to_string);
    let shared = others.map(|other| text.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count());
    let length = shared.max().map_or(8, |shared| (shared + 1).max(8));
    // A dash at the end says nothing.
    let length = if text.as_bytes().get(length - 1) == Some(&b'-') { length + 1 } else { length };
    text.chars().take(length).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_beginnings_and_the_last_are_told_apart() {
        let id = Uuid::from_u128(0x0198_f2c4_1a2b_7000_8000_0000_0000_0001);
        let prefix = |text: &str| Ok(SessionChoice::Prefix(text.to_owned()));
        let cases = [
            ("last", Ok(SessionChoice::Last)),
            (&*id.to_string(), Ok(SessionChoice::Id(id))),
            (" 0198F2C4 ", prefix("0198f2c4")),
            ("0198f2c41a", prefix("0198f2c4-1a")),
            ("0198f2c4-1a2b-7", prefix("0198f2c4-1a2b-7")),
            ("0198f2c4-", prefix("0198f2c4")),
            ("019", Err(NoChoice)),
            ("the login form", Err(NoChoice)),
            ("", Err(NoChoice)),
        ];
        for (text, choice) in cases {
            assert_eq!(text.parse(), choice, "{text:?}");
        }
    }

    #[test]
    fn what_is_short_is_as_long_as_it_must_be() {
        let ids = [
            0x0198_f2c4_1a2b_7000_8000_0000_0000_0001,
            0x0198_f2c4_1a2c_7000_8000_0000_0000_0002,
            0x0198_f2c5_1a2b_7000_8000_0000_0000_0003,
        ]
        .map(Uuid::from_u128);
        assert_eq!(ids.map(|id| short(id, &ids)), ["0198f2c4-1a2b", "0198f2c4-1a2c", "0198f2c5"]);
        assert_eq!(short(ids[0], &[]), "0198f2c4");
    }

    proptest! {
        #[test]
        fn what_is_short_names_the_session_and_no_other(values in prop::collection::vec(0_u128..1 << 70, 1..20)) {
            let ids: Vec<Uuid> = values.iter().map(|value| Uuid::from_u128(value << 40)).collect();
            for id in &ids {
                let text = short(*id, &ids);
                let found: Vec<_> = ids.iter().filter(|other| other.to_string().starts_with(&text)).collect();
                prop_assert!(found.iter().all(|other| *other == id), "{}", text);
                prop_assert!(text.parse::<SessionChoice>().is_ok());
            }
        }

        #[test]
        fn any_text_is_taken_or_refused(text in any::<String>()) {
            let _ = text.parse::<SessionChoice>();
        }
    }
}
