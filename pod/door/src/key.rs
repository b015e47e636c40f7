//! Names for what calls make, so that nobody looks for it, or makes it again, while a call that makes it still goes on.
//! Pure.
//!
//! A caller that gave a call up cannot know when it ends: the door carries it to its end, and opencode may store what it
//! made long after a list was read that does not hold it yet. See [`crate::admission::Admission::keep`].

use berth_wire::admission::KEY_HEADER;
use http::HeaderMap;

/// Longest key, in bytes.
const LONGEST: usize = 128;

/// What a caller calls the thing that a call makes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key(String);

/// A header that is no key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Berth-Key comes once, with 1 to 128 visible ASCII characters")]
pub(crate) struct KeyError;

impl Key {
    /// The key of a request with these headers, if it has one.
    pub(crate) fn of(headers: &HeaderMap) -> Result<Option<Self>, KeyError> {
        let mut values = headers.get_all(KEY_HEADER).iter();
        let Some(value) = values.next() else { return Ok(None) };
        let bytes = value.as_bytes();
        let is_key = (1..=LONGEST).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
        let text = value.to_str().ok().filter(|_| is_key && values.next().is_none());
        text.map(|text| Some(Self(text.to_owned()))).ok_or(KeyError)
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn headers(values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(KEY_HEADER, HeaderValue::from_bytes(value).expect("a value"));
        }
        headers
    }

    fn key(values: &[&[u8]]) -> Result<Option<Key>, KeyError> {
        Key::of(&headers(values))
    }

    #[test]
    fn a_key_comes_once_and_is_short_and_visible() {
        assert_eq!(key(&[]), Ok(None));
        assert_eq!(key(&[b"s-1"]), Ok(Some(Key("s-1".to_owned()))));
        assert!(key(&[&[b'x'; LONGEST]]).is_ok());
        for wrong in [&b""[..], b"a b", b"a\tb", "ä".as_bytes(), &[b'x'; LONGEST + 1]] {
            assert_eq!(key(&[wrong]), Err(KeyError), "{wrong:?}");
        }
        assert_eq!(key(&[b"a", b"a"]), Err(KeyError));
    }

    proptest! {
        #[test]
        fn no_header_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(value) = HeaderValue::from_bytes(&bytes) {
                let _ = key(&[value.as_bytes()]);
            }
        }
    }
}
