//! The temporary directory of a test run: what tests leave in it goes with it. IO.
//!
//! opencode's runtime unpacks libraries of several megabytes into the temporary directory and never removes them. All
//! that starts an opencode must give it another directory (`BUN_TMPDIR`), so none of them may be found here.

use std::{fs, io, path::Path};

use tempfile::TempDir;

/// Removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Temporary(TempDir);

impl Temporary {
    /// Makes it.
    pub(crate) fn new() -> io::Result<Self> {
        tempfile::Builder::new().prefix("berth-tests-").tempdir().map(Self)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// How many libraries were unpacked into it.
    pub(crate) fn libraries(&self) -> io::Result<usize> {
        let names = fs::read_dir(self.path())?.map(|entry| entry.map(|entry| entry.file_name()));
        let names: Vec<_> = names.collect::<io::Result<_>>()?;
        Ok(names.iter().filter(|name| name.to_str().is_some_and(is_library)).count())
    }
}

/// `.bcfddfdfbedfff7c-00000000.so`
fn is_library(name: &str) -> bool {
    let stem = name.strip_suffix(".so").or_else(|| name.strip_suffix(".node"));
    let parts = stem.and_then(|stem| stem.strip_prefix('.')?.split_once('-'));
    let is_hexadecimal = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    parts.is_some_and(|(hash, count)| is_hexadecimal(hash) && is_hexadecimal(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unpacked_libraries_count() {
        let temporary = Temporary::new().unwrap();
        for name in [".tmp1A2b3C", "lib.so", ".x-1.so", ".bcfddfdfbedfff7c-00000000.txt"] {
            fs::write(temporary.path().join(name), "").unwrap();
        }
        assert_eq!(temporary.libraries().unwrap(), 0);
        for name in [".bcfddfdfbedfff7c-00000000.so", ".5effde57bdb3df7d-00000001.node"] {
            fs::write(temporary.path().join(name), "").unwrap();
        }
        assert_eq!(temporary.libraries().unwrap(), 2);
    }
}
