//! Supervisor and door against a real opencode.
