//! What a request to opencode is for, by its method and path. Pure.
//!
//! opencode decides what a path means, and takes more than what stands in its document (measured on opencode 1.15.4
//! and 1.18.33, with the same result): it does not look at the case of fixed segments, drops empty segments and a slash at
//! the end, decodes percent-encoding once, within a segment, and ends the path at `;`, too. Dot segments mean nothing
//! to it. [`classify`] reads a path in the same way, so no spelling of a path has another class than the path.

use std::borrow::Cow;

use http::Method;
use percent_encoding::percent_decode_str;

/// What a request is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Class {
    /// It changes nothing, whatever opencode finds.
    Read,
    /// It starts work of a model, a tool or a terminal.
    Prompt {
        /// The session that works, where the work shows in events of that session.
        session: Option<String>,
    },
    /// It ends work.
    Abort {
        /// The session that works, where the work shows in events of that session.
        session: Option<String>,
    },
    /// It answers a permission request or a question.
    Reply,
    /// It may change anything else.
    Change {
        /// The session that it changes, if it is one's.
        session: Option<String>,
    },
    /// It opens a connection to a terminal.
    Tunnel,
    /// It is for nobody but the door.
    Forbidden,
}

impl Class {
    /// The session that it is about.
    pub(crate) fn session(&self) -> Option<&str> {
        match self {
            Self::Prompt { session } | Self::Abort { session } | Self::Change { session } => {
                session.as_deref()
            }
            Self::Read | Self::Reply | Self::Tunnel | Self::Forbidden => None,
        }
    }

    /// Its name, for labels and callers.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Prompt { .. } => "prompt",
            Self::Abort { .. } => "abort",
            Self::Reply => "reply",
            Self::Change { .. } => "change",
            Self::Tunnel => "tunnel",
            Self::Forbidden => "forbidden",
        }
    }
}

/// The class of a request with this method and this path, which has no query any more.
pub(crate) fn classify(method: &Method, path: &str) -> Class {
    let given = segments(path);
    let lower: Vec<String> = given.iter().map(|segment| segment.to_lowercase()).collect();
    let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
    if reads(method) {
        return match *lower {
            ["pty", _, "connect"] | ["api", "pty", _, "connect"] => Class::Tunnel,
            _ => Class::Read,
        };
    }
    let session = || given.get(1).map(|id| id.clone().into_owned());
    match *lower {
        ["config"] | ["global", "config" | "dispose" | "upgrade"] | ["instance", "dispose"] => {
            Class::Forbidden
        }
        ["session", _, "message" | "prompt_async" | "command" | "shell" | "summarize" | "init"]
            if *method == Method::POST =>
        {
            Class::Prompt { session: session() }
        }
        ["session", _, "abort"] => Class::Abort { session: session() },
        ["permission", _, "reply"]
        | ["question", _, "reply" | "reject"]
        | ["session", _, "permissions", _] => Class::Reply,
        ["session", _, ..] => Class::Change { session: session() },
        ["api", "session", _, ref rest @ ..] => second_version(rest),
        ["sync", "history"] => Class::Read,
        ["pty"] | ["api", "pty"] | ["tui", "submit-prompt" | "execute-command" | "publish"] => {
            Class::Prompt { session: None }
        }
        ["experimental", "project", _, "copy", "generate-name"] => Class::Prompt { session: None },
        _ => Class::Change { session: None },
    }
}

fn reads(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE].contains(method)
}

/// Below `/api/session/{id}`. These sessions are a world of their own: the events of the others do not tell of them
/// (measured on opencode 1.18.33), so the class names no session.
fn second_version(rest: &[&str]) -> Class {
    match *rest {
        ["wait"] => Class::Read,
        ["prompt" | "compact"] => Class::Prompt { session: None },
        ["interrupt"] => Class::Abort { session: None },
        ["permission", _, "reply"] | ["question", _, "reply" | "reject"] => Class::Reply,
        _ => Class::Change { session: None },
    }
}

/// The segments of a path as opencode sees them.
fn segments(path: &str) -> Vec<Cow<'_, str>> {
    let end = path.find([';', '?', '#']).unwrap_or(path.len());
    path[..end]
        .split('/')
        .filter(|segment| !segment.is_empty())
        .map(|segment| percent_decode_str(segment).decode_utf8_lossy())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    /// Every route of both documents, with its class.
    const ROUTES: &str = include_str!("../tests/fixtures/routes.txt");

    fn routes() -> impl Iterator<Item = (Method, &'static str, &'static str)> {
        ROUTES.lines().map(|line| {
            let mut words = line.split(' ');
            let mut word = || words.next().unwrap();
            (word().parse().unwrap(), word(), word())
        })
    }

    #[test]
    fn every_route_of_the_documents_has_its_class() {
        for (method, path, class) in routes() {
            assert_eq!(classify(&method, path).name(), class, "{method} {path}");
        }
        assert_eq!(routes().count(), 188);
    }

    #[test]
    fn a_class_names_the_session() {
        let prompt = classify(&Method::POST, "/Session/ses_Aa%5F1/prompt_async/");
        assert_eq!(prompt, Class::Prompt { session: Some("ses_Aa_1".to_owned()) });
        assert_eq!(classify(&Method::DELETE, "/session/s/message/m").session(), Some("s"));
        assert_eq!(classify(&Method::POST, "/session").session(), None);
        assert_eq!(classify(&Method::POST, "/api/session/s/prompt").session(), None);
    }

    #[test]
    fn every_spelling_that_opencode_takes_has_the_class() {
        let spellings = [
            "/instance/dispose",
            "//INSTANCE//%64ispose/",
            "/instance/dispose;x=/session",
            "/inst%61nce/dispose//",
        ];
        for path in spellings {
            assert_eq!(classify(&Method::POST, path), Class::Forbidden, "{path}");
        }
        for path in ["/instance%2fdispose", "/x/../instance/dispose", "/instance/%2564ispose"] {
            assert_eq!(classify(&Method::POST, path).name(), "change", "{path}");
        }
        assert_eq!(classify(&Method::from_bytes(b"PROPFIND").unwrap(), "/x").name(), "change");
    }

    proptest! {
        #[test]
        fn no_path_panics_and_no_spelling_changes_the_class(
            route in 0..188_usize,
            choices in proptest::collection::vec(0..4_u8, 80),
            tail in prop_oneof![Just(""), Just("/"), Just("//"), Just(";a=b"), Just(";/session")],
        ) {
            let (method, path, class) = routes().nth(route).unwrap();
            let mut spelled = String::new();
            for (letter, choice) in path.chars().zip(choices.into_iter().cycle()) {
                match choice {
                    1 if letter == '/' => spelled.push_str("//"),
                    2 if letter != '/' => write!(spelled, "%{:02x}", u32::from(letter)).unwrap(),
                    3 => spelled.extend(letter.to_uppercase()),
                    _ => spelled.push(letter),
                }
            }
            spelled.push_str(tail);
            prop_assert_eq!(classify(&method, &spelled).name(), class);
        }

        #[test]
        fn anything_parses_and_a_get_changes_nothing(path in "\\PC{0,40}", prefix in "/(pty|session|api)?") {
            let path = format!("{prefix}/{path}");
            let _ = classify(&Method::POST, &path);
            prop_assert!(!matches!(classify(&Method::GET, &path).name(), "change" | "prompt" | "abort" | "reply"));
        }
    }
}
