//! Typed client of opencode serve, and the pure translation of its events to ACP session updates.
