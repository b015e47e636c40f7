//! Asks opencode whether it answers, and whether it is of a version that Berth speaks. IO.

use std::{net::SocketAddr, time::Duration};

use http::StatusCode;
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use secrecy::SecretString;
use serde::Deserialize;
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::upstream;

/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// Longest answer that is read.
const BODY_MAX: usize = 64 * 1024;

/// Minor versions of opencode 1 that Berth speaks.
const MINORS: std::ops::RangeInclusive<u64> = 15..=18;

#[derive(Deserialize)]
struct Health {
    healthy: bool,
    version: String,
}

/// Asks until opencode answers, each time over a fresh connection with `bound`, since a request that comes before
/// opencode is wired is never answered. Gives the version. The caller bounds the whole.
pub(super) async fn wait(address: SocketAddr, password: &SecretString, bound: Duration) -> String {
    loop {
        if let Ok(Some(version)) = timeout(bound, ask(address, password)).await {
            return version;
        }
        sleep(PAUSE).await;
    }
}

async fn ask(address: SocketAddr, password: &SecretString) -> Option<String> {
    let tracker = TaskTracker::new();
    let request = upstream::get("/global/health", address, &upstream::basic(password));
    let response = upstream::send(address, request, &tracker).await.ok()?;
    if response.status() != StatusCode::OK {
        return None;
    }
    let body = Limited::new(response.into_body(), BODY_MAX).collect().await.ok()?.to_bytes();
    parse(&body)
}

fn parse(body: &Bytes) -> Option<String> {
    let health: Health = serde_json::from_slice(body).ok()?;
    health.healthy.then_some(health.version)
}

/// Whether Berth speaks the protocol of this version.
pub(super) fn speaks(version: &str) -> bool {
    let mut numbers = version.split('.').map(str::parse::<u64>);
    matches!((numbers.next(), numbers.next()), (Some(Ok(1)), Some(Ok(minor))) if MINORS.contains(&minor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_lines_are_spoken() {
        for version in ["1.15.4", "1.18.33", "1.18.33-beta"] {
            assert!(speaks(version), "{version}");
        }
        for version in ["", "1", "0.15.4", "1.14.9", "1.19.0", "2.15.0", "1.x.1", "local"] {
            assert!(!speaks(version), "{version}");
        }
    }

    #[test]
    fn an_answer_that_is_not_healths_is_none() {
        let parse = |text: &str| parse(&Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(parse(r#"{"healthy":true,"version":"1.18.33","new":1}"#), Some("1.18.33".to_owned()));
        for text in ["", "<html>", "{}", r#"{"healthy":false,"version":"1.18.33"}"#] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
