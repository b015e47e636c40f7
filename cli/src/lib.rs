//! The berth command.
