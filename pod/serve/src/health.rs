//! Whether opencode answers, and in a version that Berth speaks. The judgement is pure, the questions are IO.

use std::{net::SocketAddr, time::Duration};

use berth_opencode::Protocol;
use http::StatusCode;
use secrecy::SecretString;
use tokio::time::sleep;

use crate::exchange::{ExchangeError, Question, exchange};

/// Pause between attempts during the start.
const PAUSE: Duration = Duration::from_millis(100);

/// The route that tells.
const PATH: &str = "/global/health";

/// What an answer says.
#[derive(Debug, PartialEq, Eq)]
enum Judged {
    /// An opencode that Berth speaks to, of this version.
    Speaks(String),
    /// Something else, in words, such as `version 2.0.0`.
    Foreign(String),
    /// An opencode that is not well, or not yet.
    NotWell,
}

/// Asks until there is an answer, and gives its version; the error is what it is when Berth does not speak to it, in
/// words. Each attempt has a connection of its own and `bound`, since a request that comes before opencode is wired is
/// never answered. The caller bounds the whole.
pub(crate) async fn wait(
    address: SocketAddr,
    password: &SecretString,
    bound: Duration,
) -> Result<String, String> {
    loop {
        match ask(address, password, bound).await {
            Ok((status, body)) => match judge(status, &body) {
                Judged::Speaks(version) => return Ok(version),
                Judged::Foreign(seen) => return Err(seen),
                Judged::NotWell => tracing::debug!(%status, "opencode listens and is not well yet"),
            },
            Err(error) => {
                tracing::debug!(error = &error as &dyn std::error::Error, "opencode gives no answer yet");
            }
        }
        sleep(PAUSE).await;
    }
}

/// Whether it answers, and well, within `bound`.
pub(crate) async fn check(address: SocketAddr, password: &SecretString, bound: Duration) -> bool {
    match ask(address, password, bound).await {
        Ok((StatusCode::OK, _)) => true,
        Ok((status, _)) => {
            tracing::warn!(%status, "opencode is not well");
            false
        }
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "opencode does not answer");
            false
        }
    }
}

async fn ask(
    address: SocketAddr,
    password: &SecretString,
    bound: Duration,
) -> Result<(StatusCode, hyper::body::Bytes), ExchangeError> {
    exchange(Question::get(address, PATH, Some(password.clone())), bound).await
}

fn judge(status: StatusCode, body: &[u8]) -> Judged {
    if status == StatusCode::NOT_FOUND || status == StatusCode::METHOD_NOT_ALLOWED {
        return Judged::Foreign(format!("HTTP {} from {PATH}", status.as_u16()));
    }
    if status != StatusCode::OK {
        return Judged::NotWell;
    }
    let Ok(body) = serde_json::from_slice::<serde_json::Value>(body) else {
        return Judged::Foreign(format!("an answer from {PATH} that is not JSON"));
    };
    match body["version"].as_str() {
        Some(version) if Protocol::of_version(version).is_some() => Judged::Speaks(version.to_owned()),
        Some(version) => Judged::Foreign(format!("version {}", version.chars().take(64).collect::<String>())),
        None => Judged::Foreign("JSON without a version".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_judged() {
        let foreign = |seen: &str| Judged::Foreign(seen.to_owned());
        for (status, body, judged) in [
            (200, r#"{"healthy":true,"version":"1.18.33"}"#, Judged::Speaks("1.18.33".to_owned())),
            (200, r#"{"version":"2.0.1"}"#, foreign("version 2.0.1")),
            (200, "{}", foreign("JSON without a version")),
            (200, "<html>", foreign("an answer from /global/health that is not JSON")),
            (404, "", foreign("HTTP 404 from /global/health")),
            (500, r#"{"version":"1.18.33"}"#, Judged::NotWell),
            (401, "", Judged::NotWell),
        ] {
            assert_eq!(judge(StatusCode::from_u16(status).unwrap(), body.as_bytes()), judged, "{body}");
        }
    }
}
