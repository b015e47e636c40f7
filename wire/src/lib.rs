//! What crosses process borders in Berth, and nothing else.
//!
//! - [`admission`]: the door's fence and gate.
//! - [`api`]: DTOs of the server's HTTP API.
//! - [`event`]: the session event log's payloads (ACP `session/update` shapes and Berth's own kinds).
//! - [`turn`]: states, outcomes and error reasons of a turn.
//! - [`door`]: the door's cursor, its own events and its refusals.
//! - [`problem`]: problem+json (RFC 9457) with stable types.
//! - [`proof`]: how a door proves that it is the one that a caller means.
//! - [`sse`]: the one reader and writer of server-sent events.
//!
//! Everything here is pure, but for the reader, which drives a byte stream that its caller opened.

pub mod admission;
pub mod api;
pub mod door;
pub mod event;
pub mod problem;
pub mod proof;
pub mod sse;
pub mod turn;
