//! What the door itself asks of opencode, for its own housekeeping. IO.

use std::time::Duration;

use http::{Method, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::timeout;

use crate::{Door, broken::Question, mend, passage::Passage, upstream};

/// Bytes of one answer.
const BYTES: usize = 1024 * 1024;

/// Asks a route of a directory, within a bound; nothing when no whole answer came.
pub(crate) async fn ask(
    door: &Door,
    method: Method,
    route: &str,
    directory: &str,
    bound: Duration,
) -> Option<(StatusCode, Bytes)> {
    let Passage::Open { address, boot_id } = door.passage.borrow().clone() else { return None };
    let path = format!("{route}?directory={}", utf8_percent_encode(directory, NON_ALPHANUMERIC));
    let mut request = upstream::get(&path, address, &door.upstream.get());
    *request.method_mut() = method;
    let exchange = async {
        let response = upstream::send(address, request, &door.tracker).await.ok()?;
        let status = response.status();
        let body = Limited::new(response.into_body(), BYTES).collect().await.ok()?;
        Some((status, body.to_bytes()))
    };
    let question = Question { boot_id, directory: directory.to_owned(), asked: Timestamp::now() };
    let (status, body) = timeout(bound, exchange).await.ok().flatten()?;
    mend::note(door, &question, status, &body).await;
    Some((status, body))
}
