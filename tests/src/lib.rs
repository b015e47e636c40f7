//! Integration tests on real opencode, and their harness.
