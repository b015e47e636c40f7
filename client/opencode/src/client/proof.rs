//! Asks a door to prove that it knows the password, before the password is sent to it. IO.
//!
//! While a door's program is down, something else in its pod may take its port, and another pod may get its address.
//! The proof travels on a connection of the same pool as the calls that follow, and is asked for again when a call got
//! no answer: from then on, connections are new ones.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use berth_wire::proof::{Challenge, Proof};
use reqwest::StatusCode;
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use tokio::sync::Mutex;

use super::{Answer, Call, OpencodeClient, parse_json, transport};
use crate::error::ClientError;

/// What is to be proved, and whether it was.
pub(super) struct Prover {
    password: SecretString,
    pod_uid: Option<String>,
    is_proved: AtomicBool,
    /// One proof at a time; the others wait for it.
    turn: Mutex<()>,
}

impl fmt::Debug for Prover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prover").field("is_proved", &self.is_proved).finish_non_exhaustive()
    }
}

impl Prover {
    pub(super) fn new(password: SecretString, pod_uid: Option<String>) -> Self {
        Self { password, pod_uid, is_proved: AtomicBool::new(false), turn: Mutex::new(()) }
    }
}

impl OpencodeClient {
    /// Lets the door prove itself, unless it did.
    pub(super) async fn prove(&self) -> Result<(), ClientError> {
        let Some(prover) = &self.prover else { return Ok(()) };
        let _turn = prover.turn.lock().await;
        if !prover.is_proved.load(Ordering::SeqCst) {
            let nonce: [u8; 32] = rand::random();
            if !self.ask_for_proof(&nonce).await?.is_some_and(|proof| {
                proof.verify(prover.password.expose_secret(), &nonce, prover.pod_uid.as_deref())
            }) {
                return Err(ClientError::PortTaken);
            }
            prover.is_proved.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Has the next call ask for a proof again.
    pub(super) fn distrust(&self) {
        if let Some(prover) = &self.prover {
            prover.is_proved.store(false, Ordering::SeqCst);
        }
    }

    /// The proof, or `None` from something that is no door.
    async fn ask_for_proof(&self, nonce: &[u8]) -> Result<Option<Proof>, ClientError> {
        let challenge = json!(Challenge::new(nonce));
        let call = Call::post(&["berth", "proof"], challenge);
        let response = self.anonymous_request(&call)?.send().await.map_err(transport)?;
        let answer = Answer::read(response).await?;
        if answer.status == StatusCode::OK { Ok(parse_json(&answer).ok()) } else { Ok(None) }
    }
}
