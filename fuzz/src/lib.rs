//! What the fuzz targets do with their input. `cargo xtask fuzz` builds and runs them; CONTRIBUTING.md says how.
//!
//! Pure, but for reading the captures of `client/opencode` once.

mod captures;
mod input;
pub mod session;
mod spoil;
pub mod stream;
