//! Stored text that may be damaged: a column whose bytes are no text must not take with it what stands beside it. Pure.

use sqlx::{
    Decode, Sqlite, Type,
    error::BoxDynError,
    sqlite::{SqliteTypeInfo, SqliteValueRef},
};

/// A column of text, in which U+FFFD stands for what is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Text {
    shown: String,
    whole: bool,
}

impl Text {
    /// Its length in bytes, as it can be shown.
    pub(super) fn len(&self) -> usize {
        self.shown.len()
    }

    /// As it can be shown.
    pub(super) fn shown(self) -> String {
        self.shown
    }

    /// As it was stored; none where it is damaged.
    pub(super) fn whole(self) -> Option<String> {
        Some(self.shown).filter(|_| self.whole)
    }
}

impl<'r> Decode<'r, Sqlite> for Text {
    fn decode(value: SqliteValueRef<'r>) -> Result<Self, BoxDynError> {
        let shown = String::from_utf8_lossy(<&[u8]>::decode(value)?);
        Ok(Self { whole: matches!(shown, std::borrow::Cow::Borrowed(_)), shown: shown.into_owned() })
    }
}

impl Type<Sqlite> for Text {
    fn type_info() -> SqliteTypeInfo {
        <str as Type<Sqlite>>::type_info()
    }

    fn compatible(ty: &SqliteTypeInfo) -> bool {
        <str as Type<Sqlite>>::compatible(ty)
    }
}
