//! Which directories an abort may have spoilt. Pure.
//!
//! opencode makes what an instance needs (its tools, say) when the first run needs it, and keeps the outcome for as long
//! as the instance lives. An abort that comes while it is being made is kept as that outcome: from then on every run in
//! that directory ends at once as aborted, and its model is not asked (measured on opencode 1.18.33: an abort within
//! 0 to 100 ms after the beginning in a cold directory, about once in 15 times). A new instance is sound again.

use std::collections::{HashMap, HashSet};

/// Directories that are remembered of each kind. Of one beyond it nothing is known, so an abort there is a suspicion.
const REMEMBERED: usize = 4096;

/// What the events of a session say about its directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Signs {
    /// A run there has asked its model: everything that a run needs has been made.
    pub(crate) asked: bool,
    /// What runs there is being aborted.
    pub(crate) aborted: bool,
    /// A run there ended as aborted, and nobody asked for that.
    pub(crate) interrupted: bool,
}

/// Why a directory counts as spoilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spoil {
    /// An abort may have met an instance that was still being made.
    Suspected,
    /// A run there was swallowed.
    Seen,
}

/// The directories of one run of opencode.
#[derive(Debug, Default)]
pub(crate) struct Spoilt {
    asked: HashSet<String>,
    spoilt: HashMap<String, Spoil>,
}

impl Spoilt {
    pub(crate) fn note(&mut self, directory: &str, signs: Signs) {
        if directory.is_empty() || signs == Signs::default() {
            return;
        }
        if signs.asked {
            self.spoilt.remove(directory);
            if self.asked.len() < REMEMBERED {
                self.asked.insert(directory.to_owned());
            }
        }
        if signs.interrupted {
            self.remember(directory, Spoil::Seen);
        } else if signs.aborted && !self.asked.contains(directory) {
            self.remember(directory, Spoil::Suspected);
        }
    }

    /// What was seen is not doubted again.
    fn remember(&mut self, directory: &str, spoil: Spoil) {
        if let Some(known) = self.spoilt.get_mut(directory) {
            if spoil == Spoil::Seen {
                *known = spoil;
            }
        } else if self.spoilt.len() < REMEMBERED {
            self.spoilt.insert(directory.to_owned(), spoil);
        }
    }

    pub(crate) fn get(&self, directory: &str) -> Option<Spoil> {
        self.spoilt.get(directory).copied()
    }

    /// Its instance is gone.
    pub(crate) fn disposed(&mut self, directory: &str) {
        self.asked.remove(directory);
        self.spoilt.remove(directory);
    }

    /// It cannot be renewed: it is taken as it is.
    pub(crate) fn forgive(&mut self, directory: &str) {
        self.spoilt.remove(directory);
    }

    /// opencode is gone.
    pub(crate) fn clear(&mut self) {
        self.asked.clear();
        self.spoilt.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Signs = Signs { asked: true, aborted: false, interrupted: false };
    const ABORTED: Signs = Signs { asked: false, aborted: true, interrupted: false };
    const INTERRUPTED: Signs = Signs { asked: false, aborted: false, interrupted: true };

    #[test]
    fn what_was_seen_last_counts() {
        let cases: [(&[Signs], Option<Spoil>); 8] = [
            (&[], None),
            (&[ABORTED], Some(Spoil::Suspected)),
            (&[ASKED, ABORTED], None),
            (&[ABORTED, ASKED], None),
            (&[ABORTED, ASKED, ABORTED], None),
            (&[ASKED, INTERRUPTED], Some(Spoil::Seen)),
            (&[INTERRUPTED, ABORTED], Some(Spoil::Seen)),
            (&[ABORTED, INTERRUPTED], Some(Spoil::Seen)),
        ];
        for (signs, spoilt) in cases {
            let mut directories = Spoilt::default();
            for signs in signs {
                directories.note("/w", *signs);
            }
            assert_eq!(directories.get("/w"), spoilt, "{signs:?}");
            assert_eq!(directories.get("/other"), None);
        }
    }

    #[test]
    fn a_new_instance_is_sound_and_knows_nothing() {
        let mut directories = Spoilt::default();
        directories.note("/w", ASKED);
        directories.disposed("/w");
        directories.note("/w", ABORTED);
        assert_eq!(directories.get("/w"), Some(Spoil::Suspected));
        directories.disposed("/w");
        assert_eq!(directories.get("/w"), None);
    }
}
