//! `POST /berth/proof`: the door proves that it knows the password, to callers that have not sent it yet. IO.
//!
//! Anybody may ask. It costs less than reading the request, and the request is bounded in bytes and time.

use std::time::Duration;

use berth_wire::{
    problem::ProblemType,
    proof::{Challenge, NONCE_MAX, NONCE_MIN, Proof},
};
use http::Response;
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use secrecy::ExposeSecret;
use tokio::time::timeout;

use crate::{
    Door,
    refusal::{DoorBody, json, refuse},
};

/// Where it is.
pub(crate) const PATH: &str = "/berth/proof";

/// Longest body.
const BODY_MAX: usize = 1024;

/// Bound on its arrival.
const BODY_WAIT: Duration = Duration::from_secs(5);

/// Answers a challenge.
pub(crate) async fn serve(door: &Door, body: Incoming) -> Result<Response<DoorBody>, Response<DoorBody>> {
    let body = timeout(BODY_WAIT, Limited::new(body, BODY_MAX).collect()).await;
    let body =
        body.map_err(|_| refuse(ProblemType::RequestTimeout, "The challenge did not arrive in time."))?;
    let body = body.map_err(|_| refuse(ProblemType::BodyTooLarge, "A challenge has at most 1,024 bytes."))?;
    let challenge: Option<Challenge> = serde_json::from_slice(&body.to_bytes()).ok();
    let nonce = challenge.and_then(|challenge| challenge.bytes()).ok_or_else(|| {
        let detail = format!("Give {{\"nonce\": \"<base64 of {NONCE_MIN} to {NONCE_MAX} bytes>\"}}.");
        refuse(ProblemType::InvalidBody, detail)
    })?;
    let held = door.config.secrets.held();
    let passwords: Vec<&str> = held.passwords.iter().map(ExposeSecret::expose_secret).collect();
    let proof = Proof::new(&passwords, &nonce, door.config.pod_uid.as_deref());
    proof.map(|proof| json(&proof)).ok_or_else(|| refuse(ProblemType::Internal, "The door has no password."))
}
