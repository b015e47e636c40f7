//! `berth debug`: tools for whoever works on Berth: recordings of opencode's event stream, and what Berth makes of them.

use std::io::Write;

pub mod capture;
pub mod replay;

/// A line for the person, on standard error. When that is gone, the exit code still tells.
fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
