//! The session server: HTTP API, turn runner, event log and its store.
