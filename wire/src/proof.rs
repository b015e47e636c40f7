//! How a door proves that it is the one that a caller means, before the caller sends it the password: HMAC-SHA256 of a
//! nonce of the caller's and the door's pod, under the password. Pure.
//!
//! Anybody may ask for proofs, and can try passwords on them offline: the password must be a random one of 128 bits or
//! more, as Berth makes them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// Sets these HMACs apart from all others under the same key.
const DOMAIN: &[u8] = b"berth door proof 1\0";

/// Bytes of the shortest nonce.
pub const NONCE_MIN: usize = 16;

/// Bytes of the longest nonce.
pub const NONCE_MAX: usize = 64;

/// Body of `POST /berth/proof`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Challenge {
    /// Base64 of [`NONCE_MIN`] to [`NONCE_MAX`] bytes that were never used before.
    pub nonce: String,
}

impl Challenge {
    /// A challenge with this nonce.
    pub fn new(nonce: &[u8]) -> Self {
        Self { nonce: STANDARD.encode(nonce) }
    }

    /// The nonce's bytes; `None` when it is not base64, too short or too long.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let bytes = STANDARD.decode(&self.nonce).ok()?;
        (NONCE_MIN..=NONCE_MAX).contains(&bytes.len()).then_some(bytes)
    }
}

/// Answer to a [`Challenge`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proof {
    /// Base64 of the HMAC under the current password.
    pub proof: String,
    /// The same under each password that holds, the current one first: the caller may know the one before.
    pub proofs: Vec<String>,
    /// UID of the pod whose door this is, if it is in one.
    pub pod_uid: Option<String>,
}

impl Proof {
    /// What a door with these passwords answers, the current one first; `None` without a password.
    pub fn new(passwords: &[&str], nonce: &[u8], pod_uid: Option<&str>) -> Option<Self> {
        let encode = |password: &&str| {
            STANDARD.encode(hmac(password, nonce, pod_uid.unwrap_or_default()).finalize().into_bytes())
        };
        let proofs: Vec<String> = passwords.iter().map(encode).collect();
        Some(Self { proof: proofs.first()?.clone(), proofs, pod_uid: pod_uid.map(str::to_owned) })
    }

    /// Whether this comes from a door that knows the password, and is that of the pod, if one is named. Takes as long
    /// for every wrong proof.
    pub fn verify(&self, password: &str, nonce: &[u8], pod_uid: Option<&str>) -> bool {
        let right_pod = pod_uid.is_none() || pod_uid == self.pod_uid.as_deref();
        let expected = hmac(password, nonce, self.pod_uid.as_deref().unwrap_or_default());
        let matches = |proof: &String| {
            STANDARD.decode(proof).is_ok_and(|proof| expected.clone().verify_slice(&proof).is_ok())
        };
        // A door has two passwords at most.
        right_pod && std::iter::once(&self.proof).chain(self.proofs.iter().take(2)).any(matches)
    }
}

fn hmac(password: &str, nonce: &[u8], pod_uid: &str) -> Hmac<Sha256> {
    let mut hmac = Hmac::<Sha256>::new_from_slice(password.as_bytes()).expect("any length is a key");
    hmac.update(DOMAIN);
    // The length keeps nonce and UID apart.
    hmac.update(&(nonce.len() as u64).to_be_bytes());
    hmac.update(nonce);
    hmac.update(pod_uid.as_bytes());
    hmac
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: &[u8] = b"0123456789abcdef";

    #[test]
    fn a_door_that_knows_the_password_is_believed_and_no_other() {
        let proof = Proof::new(&["current", "previous"], NONCE, Some("uid")).unwrap();
        assert_eq!(proof.proof, proof.proofs[0]);
        for password in ["current", "previous"] {
            assert!(proof.verify(password, NONCE, Some("uid")));
            assert!(proof.verify(password, NONCE, None));
            assert!(!proof.verify(password, NONCE, Some("other")));
            assert!(!proof.verify(password, b"0123456789abcdeF", None));
        }
        assert!(!proof.verify("other", NONCE, None));
        let renamed = Proof { pod_uid: Some("other".to_owned()), ..proof.clone() };
        assert!(!renamed.verify("current", NONCE, None), "the UID is part of the proof");
        for garbage in ["", "!", "AAAA"] {
            let garbage = Proof { proof: garbage.to_owned(), proofs: Vec::new(), pod_uid: None };
            assert!(!garbage.verify("current", NONCE, None));
        }
        assert_eq!(Proof::new(&[], NONCE, None), None);
    }

    /// Computed with Python's hmac and hashlib.
    #[test]
    fn vectors() {
        for (uid, expected) in [
            (None, "b8unat3IRXXRWPS1KP/2mGzrFAAIUNXt+KIOhSU8mb0="),
            (Some("6c1d-uid"), "JCKwsB6HxFGbLa3EPEC7CUDtmEMylaiuE87L5NKNBB0="),
        ] {
            assert_eq!(Proof::new(&["secret"], NONCE, uid).unwrap().proof, expected);
        }
    }

    #[test]
    fn nonces_are_bounded() {
        for (length, fits) in [(0, false), (15, false), (16, true), (64, true), (65, false)] {
            assert_eq!(Challenge::new(&vec![7; length]).bytes().is_some(), fits, "{length}");
        }
        assert_eq!(Challenge { nonce: "no base64".to_owned() }.bytes(), None);
    }
}
