//! Who may pass: HTTP Basic with user `opencode`, or the same as `?auth_token=`, as opencode itself takes it. Pure.

use std::fmt;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderMap, header};
use secrecy::{ExposeSecret, SecretString};
use subtle::{Choice, ConstantTimeEq};

use crate::upstream::USER;

/// Query parameter with base64 of `user:password`, for clients that cannot set headers.
pub(crate) const TOKEN_PARAMETER: &str = "auth_token";

/// What a request says of its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// It gave the right password.
    Authenticated,
    /// It gave none.
    Anonymous,
    /// It gave something else.
    Rejected,
}

/// The right user and the passwords that hold.
#[derive(Clone)]
pub(crate) struct Credentials(Vec<SecretString>);

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

impl Credentials {
    pub(crate) fn new(passwords: &[SecretString]) -> Self {
        let pair = |password: &SecretString| format!("{USER}:{}", password.expose_secret()).into();
        Self(passwords.iter().map(pair).collect())
    }

    /// Who sent a request with these headers and this query.
    pub(crate) fn caller(&self, headers: &HeaderMap, query: Option<&str>) -> Caller {
        let header = headers.get(header::AUTHORIZATION);
        let token = query.and_then(token);
        if header.is_none() && token.is_none() {
            return Caller::Anonymous;
        }
        let from_header =
            header.is_some_and(|value| self.accepts(basic(value.as_bytes()).unwrap_or_default()));
        let from_token = token.is_some_and(|token| self.accepts(token.as_bytes()));
        if from_header || from_token { Caller::Authenticated } else { Caller::Rejected }
    }

    /// Whether this base64 is that of the right user and a password; takes as long for every one of its length, since
    /// it is compared with all of them.
    fn accepts(&self, base64: &[u8]) -> bool {
        let Ok(given) = STANDARD.decode(base64) else { return false };
        let none = Choice::from(0);
        self.0.iter().fold(none, |any, right| any | given.ct_eq(right.expose_secret().as_bytes())).into()
    }
}

/// The base64 of an `Authorization: Basic` value.
fn basic(value: &[u8]) -> Option<&[u8]> {
    let (scheme, rest) = value.split_at_checked(6)?;
    scheme.eq_ignore_ascii_case(b"basic ").then(|| rest.trim_ascii())
}

/// The token in a query. A plus sign is a space in a query, and base64 has plus signs and no spaces.
pub(crate) fn token(query: &str) -> Option<String> {
    form_urlencoded::parse(query.as_bytes())
        .find(|(name, _)| name == TOKEN_PARAMETER)
        .map(|(_, value)| value.replace(' ', "+"))
}

/// The query without the token, every other byte as it was; `None` when nothing is left.
pub(crate) fn without_token(query: &str) -> Option<String> {
    let is_token = |pair: &&str| {
        form_urlencoded::parse(pair.as_bytes()).next().is_some_and(|(name, _)| name == TOKEN_PARAMETER)
    };
    if !query.split('&').any(|pair| is_token(&pair)) {
        return Some(query.to_owned());
    }
    let kept: Vec<&str> = query.split('&').filter(|pair| !is_token(pair)).collect();
    (!kept.is_empty()).then(|| kept.join("&"))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn caller(credentials: &Credentials, header: Option<&str>, query: Option<&str>) -> Caller {
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert(header::AUTHORIZATION, HeaderValue::from_str(value).unwrap());
        }
        credentials.caller(&headers, query)
    }

    fn encode(text: &str) -> String {
        STANDARD.encode(text)
    }

    #[test]
    fn header_or_token_opens_and_nothing_else_does() {
        let credentials = Credentials::new(&["pass:word".into()]);
        let right = encode("opencode:pass:word");
        let header = format!("Basic {right}");
        let query = format!("directory=%2Fw&auth_token={}", right.replace('=', "%3D"));
        assert_eq!(caller(&credentials, Some(&header), None), Caller::Authenticated);
        assert_eq!(
            caller(&credentials, Some(&header.replace("Basic", "bASIC")), None),
            Caller::Authenticated
        );
        assert_eq!(caller(&credentials, None, Some(&query)), Caller::Authenticated);
        assert_eq!(caller(&credentials, Some("Basic eDp5"), Some(&query)), Caller::Authenticated);
        assert_eq!(caller(&credentials, None, None), Caller::Anonymous);
        assert_eq!(caller(&credentials, None, Some("directory=%2Fw")), Caller::Anonymous);
        let bearer = format!("Bearer {right}");
        let admin = format!("Basic {}", encode("admin:pass:word"));
        let prefix = format!("Basic {}", encode("opencode:pass:wor"));
        for header in ["", "Basic", "Basic ", "Basic !", &bearer, &admin, &prefix] {
            assert_eq!(caller(&credentials, Some(header), None), Caller::Rejected, "{header:?}");
        }
        assert_eq!(caller(&credentials, None, Some("auth_token=")), Caller::Rejected);
        assert!(!format!("{credentials:?}").contains("word"));
    }

    #[test]
    fn the_token_leaves_the_query_and_nothing_else_changes() {
        let cases = [
            ("auth_token=x", None),
            ("auth_token", None),
            ("a=1&auth_token=x&b=%2F+&c", Some("a=1&b=%2F+&c")),
            ("auth%5Ftoken=x&a", Some("a")),
            ("auth_token=x&auth_token=y", None),
            ("a=auth_token&&b", Some("a=auth_token&&b")),
            ("", Some("")),
        ];
        for (query, expected) in cases {
            assert_eq!(without_token(query).as_deref(), expected, "{query:?}");
        }
    }

    proptest! {
        #[test]
        fn any_password_opens_by_header_and_token(password in "\\PC{0,30}", other in "\\PC{0,30}") {
            let credentials = Credentials::new(&["first".into(), password.as_str().into()]);
            let right = encode(&format!("opencode:{password}"));
            let query: String = form_urlencoded::Serializer::new(String::new()).append_pair("auth_token", &right).finish();
            prop_assert_eq!(caller(&credentials, Some(&format!("Basic {right}")), None), Caller::Authenticated);
            prop_assert_eq!(caller(&credentials, None, Some(&query)), Caller::Authenticated);
            prop_assert_eq!(caller(&credentials, None, Some(&format!("auth_token={right}"))), Caller::Authenticated);
            let wrong = format!("Basic {}", encode(&format!("opencode:{other}")));
            let expected = if other == password || other == "first" { Caller::Authenticated } else { Caller::Rejected };
            prop_assert_eq!(caller(&credentials, Some(&wrong), None), expected);
        }

        #[test]
        fn no_header_or_query_panics_or_opens(header in "[ -~]{0,40}", query in "\\PC{0,40}") {
            let credentials = Credentials::new(&["a password that no generator hits".into()]);
            prop_assert_ne!(caller(&credentials, Some(&header), Some(&query)), Caller::Authenticated);
            if let Some(rest) = without_token(&query) {
                prop_assert!(token(&rest).is_none());
            }
        }
    }
}
