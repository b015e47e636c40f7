//! Typed client of Berth's own HTTP API.
