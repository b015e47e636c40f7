//! What can be wrong with a database file, in words that say what to do. Pure.

use std::fmt;

/// Something that a person can mend, and the server cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The disk is full.
    DiskFull,
    /// It may be read only.
    ReadOnly,
    /// It is damaged.
    Damaged,
    /// It is something else.
    NotADatabase,
    /// It cannot be opened.
    NoAccess,
    /// The disk, or the file system, failed.
    Disk,
    /// Another program has it locked for longer than we wait.
    Locked,
}

/// `SQLITE_IOERR_SHMSIZE`: the disk was full when the index of the log of changes was made larger.
const SHARED_MEMORY_SIZE: i32 = 4874;

impl Fault {
    /// By SQLite's result code, an extended one too; none for what is a defect of ours, such as a broken constraint.
    pub(super) fn of_sqlite(code: i32) -> Option<Self> {
        if code == SHARED_MEMORY_SIZE {
            return Some(Self::DiskFull);
        }
        match code & 0xff {
            3 | 14 | 23 => Some(Self::NoAccess),
            5 | 6 => Some(Self::Locked),
            8 => Some(Self::ReadOnly),
            10 => Some(Self::Disk),
            11 => Some(Self::Damaged),
            13 => Some(Self::DiskFull),
            26 => Some(Self::NotADatabase),
            _ => None,
        }
    }

    pub(super) fn of(error: &sqlx::Error) -> Option<Self> {
        Self::of_sqlite(error.as_database_error()?.code()?.parse().ok()?)
    }
}

impl fmt::Display for Fault {
    /// What is wrong with it and what to do, after the name of the file.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DiskFull => "is on a full disk: free some space there, and the server goes on by itself",
            Self::ReadOnly => "cannot be written: let this user write to it and to its folder",
            Self::Damaged => {
                "is damaged: stop the server, keep a copy of the file, and restore a backup of it, or save what can be \
                 read with SQLite's own `.recover`"
            }
            Self::NotADatabase => "is not an SQLite database: name another file, or move this one away",
            Self::NoAccess => "cannot be opened: its folder must exist, and this user must be able to read and write there",
            Self::Disk => "cannot be read or written: look at its disk; the system's log may say more",
            Self::Locked => "is locked by another program: end that, or wait for it",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_codes_are_told_apart_and_defects_of_ours_are_no_faults() {
        for (code, fault) in [
            (13, Some(Fault::DiskFull)),
            (4874, Some(Fault::DiskFull)),
            (778, Some(Fault::Disk)),
            (1032, Some(Fault::ReadOnly)),
            (267, Some(Fault::Damaged)),
            (26, Some(Fault::NotADatabase)),
            (14, Some(Fault::NoAccess)),
            (517, Some(Fault::Locked)),
            (1, None),
            (1555, None),
            (19, None),
        ] {
            assert_eq!(Fault::of_sqlite(code), fault, "{code}");
        }
    }
}
