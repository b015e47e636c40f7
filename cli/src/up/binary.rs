//! Where opencode is. Looks at the file system, runs nothing.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use super::UpError;

/// The version that Berth is built and tested against.
pub const OPENCODE_VERSION: &str = "1.18.33";

/// Where opencode may be, in order of preference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OpencodeChoice {
    /// Here and nowhere else.
    Given(PathBuf),
    /// At the first of these paths where there is a program.
    Search(Vec<PathBuf>),
}

impl OpencodeChoice {
    /// The usual places: the pinned package below `cache`, then the directories of `PATH`.
    pub fn usual(cache: &Path, path: Option<&std::ffi::OsStr>) -> Self {
        let processor = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
        let pinned = pinned_directory(cache)
            .join("node_modules")
            .join(format!("opencode-linux-{processor}"))
            .join("bin/opencode");
        let on_path = path.map(std::env::split_paths).into_iter().flatten();
        // A relative entry of PATH would mean another program in each directory.
        let on_path = on_path.filter(|entry| entry.is_absolute()).map(|entry| entry.join("opencode"));
        Self::Search(std::iter::once(pinned).chain(on_path).collect())
    }

    /// The program.
    pub fn find(&self) -> Result<PathBuf, UpError> {
        match self {
            Self::Given(path) if is_program(path) => Ok(path.clone()),
            Self::Given(path) => Err(UpError::OpencodeGiven { path: path.clone() }),
            Self::Search(places) => {
                places.iter().find(|place| is_program(place)).cloned().ok_or(UpError::OpencodeMissing)
            }
        }
    }
}

/// Where `make opencode` puts the pinned version and its configuration directory.
pub fn pinned_directory(cache: &Path) -> PathBuf {
    cache.join("opencode").join(OPENCODE_VERSION)
}

pub(crate) fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn place(path: &Path, mode: u32) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_pinned_one_comes_before_path() {
        let directory = tempfile::tempdir().unwrap();
        let cache = directory.path().join("cache");
        let (first, second) = (directory.path().join("first"), directory.path().join("second"));
        let path = std::env::join_paths([&first, &second]).unwrap();
        let choice = OpencodeChoice::usual(&cache, Some(&path));
        assert!(matches!(choice.find(), Err(UpError::OpencodeMissing)));
        place(&first.join("opencode"), 0o644);
        place(&second.join("opencode"), 0o755);
        assert_eq!(choice.find().unwrap(), second.join("opencode"));
        let OpencodeChoice::Search(places) = &choice else { panic!("{choice:?}") };
        place(&places[0], 0o755);
        assert_eq!(choice.find().unwrap(), places[0]);
        assert!(places[0].starts_with(cache.join("opencode/1.18.33/node_modules")));
    }

    #[test]
    fn a_given_path_is_taken_or_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("opencode");
        let choice = OpencodeChoice::Given(path.clone());
        assert!(choice.find().unwrap_err().to_string().contains(&path.display().to_string()));
        place(&path, 0o755);
        assert_eq!(choice.find().unwrap(), path);
    }
}
