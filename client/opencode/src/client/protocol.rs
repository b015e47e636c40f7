//! Which protocol an opencode speaks, by its version. Pure.
//!
//! Lines 1.15 to 1.18 speak one protocol: the same routes, bodies and events, of which the later ones have more. What
//! differs is here, as questions that calls ask. Another protocol would be another variant, and its calls another
//! module beside those of this one; everything above the client sees calls and [`crate::Event`]s only. See ADR 0006.

use serde_json::Value;

use super::Health;
use crate::error::ClientError;

/// Lines of opencode whose protocol is known, as the minor number of version 1.
const KNOWN_LINES: std::ops::RangeInclusive<u64> = 15..=18;

/// A protocol of opencode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Of versions 1.15 to 1.18.
    V1 {
        /// Second number of the version.
        minor: u64,
        /// Third number of the version.
        patch: u64,
    },
}

impl Protocol {
    /// The protocol of this version of opencode, if it is known.
    pub fn of_version(version: &str) -> Option<Self> {
        let release = version.split(['-', '+']).next().unwrap_or_default();
        let mut numbers = release.split('.').map(|number| number.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        let (major, minor, patch) = (next()?, next()?, next()?);
        (major == 1 && KNOWN_LINES.contains(&minor)).then_some(Self::V1 { minor, patch })
    }

    /// Reads the answer to `GET /global/health`.
    pub(super) fn of_health(answer: Result<Value, ClientError>) -> Result<(Self, Health), ClientError> {
        let seen = match answer {
            Ok(value) => match value["version"].as_str() {
                Some(version) => match Self::of_version(version) {
                    Some(protocol) => return Ok((protocol, Health { version: version.to_owned() })),
                    None => format!("version {}", version.chars().take(64).collect::<String>()),
                },
                None => "JSON without a version".to_owned(),
            },
            Err(ClientError::UnexpectedBody { seen }) => seen,
            // Other servers, and other lines, have no such route.
            Err(ClientError::Status { status: status @ (404 | 405), .. }) => {
                format!("HTTP {status} from /global/health")
            }
            Err(ClientError::NotFound { .. }) => "HTTP 404 from /global/health".to_owned(),
            Err(error) => return Err(error),
        };
        Err(ClientError::UnsupportedVersion { seen })
    }

    /// It says so when an answer is for a request that does not exist, or not any more. 1.15.4 says `true` instead
    /// (measured), 1.15.13 and later say 404.
    pub(super) fn denies_unknown_requests(self) -> bool {
        let Self::V1 { minor, patch } = self;
        minor > 15 || patch >= 13
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_known_lines_have_a_protocol() {
        for (version, known) in [
            ("1.15.0", true),
            ("1.15.4", true),
            ("1.18.33", true),
            ("1.18.33-dev.2", true),
            ("1.14.99", false),
            ("1.19.0", false),
            ("2.0.1", false),
            ("1.18", false),
            ("", false),
            ("x.y.z", false),
        ] {
            assert_eq!(Protocol::of_version(version).is_some(), known, "{version}");
        }
    }

    #[test]
    fn old_patches_do_not_tell_that_a_request_is_unknown() {
        for (version, denies) in [("1.15.4", false), ("1.15.13", true), ("1.16.0", true), ("1.18.33", true)] {
            assert_eq!(Protocol::of_version(version).unwrap().denies_unknown_requests(), denies, "{version}");
        }
    }
}
