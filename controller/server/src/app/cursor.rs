//! Cursors of lists: where a page ended, as an opaque text. Pure.
//!
//! A cursor names the last item of its page by what the list is ordered by and what never changes, so that items which
//! come or go move nobody's place.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use berth_wire::api::ListOrder;
use uuid::Uuid;

use super::AppError;

/// Where a page ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cursor {
    /// A list of sessions.
    Session(Uuid),
    /// A list of turns, in this order: the position in the session.
    Turn(ListOrder, i64),
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = match self {
            Self::Session(id) => format!("s{}", id.simple()),
            Self::Turn(ListOrder::Oldest, ordinal) => format!("o{ordinal}"),
            Self::Turn(ListOrder::Newest, ordinal) => format!("n{ordinal}"),
        };
        f.write_str(&URL_SAFE_NO_PAD.encode(plain))
    }
}

impl Cursor {
    fn parse(text: &str) -> Option<Self> {
        let plain = String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
        let (kind, rest) = plain.split_at_checked(1)?;
        Some(match kind {
            "s" => Self::Session(rest.parse().ok()?),
            "o" => Self::Turn(ListOrder::Oldest, rest.parse().ok()?),
            "n" => Self::Turn(ListOrder::Newest, rest.parse().ok()?),
            _ => return None,
        })
    }

    /// Of a list of sessions.
    pub(super) fn session(text: &str) -> Result<Uuid, AppError> {
        match Self::parse(text) {
            Some(Self::Session(id)) => Ok(id),
            _ => Err(foreign()),
        }
    }

    /// Of a list of turns in this order.
    pub(super) fn turn(text: &str, order: ListOrder) -> Result<i64, AppError> {
        match Self::parse(text) {
            Some(Self::Turn(made_for, ordinal)) if made_for == order => Ok(ordinal),
            _ => Err(foreign()),
        }
    }
}

fn foreign() -> AppError {
    let reason =
        "must be next_cursor of a page of this list, in the same order; leave it out for the first page";
    AppError::InvalidParameter { name: "cursor", reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_cursor_is_good_for_its_own_list_only() {
        let id = Uuid::now_v7();
        let session = Cursor::Session(id).to_string();
        assert_eq!(Cursor::session(&session).unwrap(), id);
        let turn = Cursor::Turn(ListOrder::Newest, 7).to_string();
        assert_eq!(Cursor::turn(&turn, ListOrder::Newest).unwrap(), 7);
        assert!(Cursor::turn(&turn, ListOrder::Oldest).is_err());
        assert!(Cursor::turn(&session, ListOrder::Newest).is_err());
        assert!(Cursor::session(&turn).is_err());
    }

    proptest! {
        #[test]
        fn nonsense_is_no_cursor(text in "\\PC{0,40}") {
            if let Some(cursor) = Cursor::parse(&text) {
                prop_assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
            }
        }
    }
}
