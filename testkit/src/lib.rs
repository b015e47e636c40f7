//! Scripted model and other test doubles, for Berth's tests and its users'.
