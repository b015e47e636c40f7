//! The berth command.

pub mod output;
pub mod render;
pub mod text;
