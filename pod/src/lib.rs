//! The inside of a sandbox: supervision of opencode serve, and the door in front of it.
