//! Any text as a request's head before the door: no panic; nobody passes without the password; no token, no credentials
//! of the caller and no header of the connection go to opencode, and what it is asked for is what was admitted.

#![no_main]

use berth_door::examine;
use libfuzzer_sys::fuzz_target;

/// In base64 and with the user, this is what the seeds give.
const PASSWORD: &str = "p";

fuzz_target!(|head: &str| {
    let Some(seen) = examine::request(head, PASSWORD) else { return };
    assert!(!seen.holds_token, "{seen:?}");
    assert!(seen.keeps_path, "{seen:?}");
    assert!(seen.crossed.is_empty(), "{seen:?}");
    let other = examine::request(head, "a password that no input holds").expect("it was read before");
    assert!(!other.is_authenticated, "{other:?}");
});
