//! The translator against streams that real opencodes sent (1.15.4 and 1.18.33): the log it makes of them, and what a
//! stop, a gap or nonsense does to it. Pure.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests: a failure is a failed test")]

mod captures;
mod cases;
mod cuts;
mod fixtures;
mod fuzzed;
mod made;
mod properties;
mod replay;
mod rules;
