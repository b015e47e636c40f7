//! The client and the translator against a fake of opencode that fails on demand: each fault ends in an error or an
//! end of its own, within its bound, and the client is usable after it.

#[cfg(test)]
mod answers;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod streams;
#[cfg(test)]
mod turns;
