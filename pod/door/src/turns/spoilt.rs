//! Which directories an abort may have spoilt. Pure.
//!
//! opencode makes what an instance needs (its tools, say) when the first run needs it, and keeps the outcome for as long
//! as the instance lives. An abort that comes while it is being made is kept as that outcome: from then on every run in
//! that directory ends at once as aborted, and its model is not asked (measured on opencode 1.18.33: an abort within
//! 0 to 100 ms after the beginning in a cold directory, about once in 15 times). A new instance is sound again.

use std::collections::HashSet;

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

/// The directories of one run of opencode.
#[derive(Debug, Default)]
pub(crate) struct Spoilt {
    asked: HashSet<String>,
    spoilt: HashSet<String>,
}

impl Spoilt {
    pub(crate) fn note(&mut self, directory: &str, signs: Signs) {
        if directory.is_empty() || signs == Signs::default() {
            return;
        }
        if signs.asked {
            self.spoilt.remove(directory);
            remember(&mut self.asked, directory);
        }
        if signs.interrupted || (signs.aborted && !self.asked.contains(directory)) {
            remember(&mut self.spoilt, directory);
        }
    }

    pub(crate) fn contains(&self, directory: &str) -> bool {
        self.spoilt.contains(directory)
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

fn remember(directories: &mut HashSet<String>, directory: &str) {
    if directories.len() < REMEMBERED {
        directories.insert(directory.to_owned());
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
        let cases: [(&[Signs], bool); 7] = [
            (&[], false),
            (&[ABORTED], true),
            (&[ASKED, ABORTED], false),
            (&[ABORTED, ASKED], false),
            (&[ABORTED, ASKED, ABORTED], false),
            (&[ASKED, INTERRUPTED], true),
            (&[INTERRUPTED, ABORTED], true),
        ];
        for (signs, spoilt) in cases {
            let mut directories = Spoilt::default();
            for signs in signs {
                directories.note("/w", *signs);
            }
            assert_eq!(directories.contains("/w"), spoilt, "{signs:?}");
            assert!(!directories.contains("/other"));
        }
    }

    #[test]
    fn a_new_instance_is_sound_and_knows_nothing() {
        let mut directories = Spoilt::default();
        directories.note("/w", ASKED);
        directories.disposed("/w");
        directories.note("/w", ABORTED);
        assert!(directories.contains("/w"));
        directories.disposed("/w");
        assert!(!directories.contains("/w"));
    }
}
