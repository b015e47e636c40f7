//! opencode on this machine. Looks at the file system.

use std::{
    ffi::OsStr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use crate::error::PluginError;

/// The one that was named, else the first of the search path.
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf, PluginError> {
    match named {
        Some(path) if is_program(path) => Ok(path.to_owned()),
        Some(path) => Err(PluginError::NoOpencode(format!("{} is no program", path.display()))),
        None => search(search_path().as_deref()),
    }
}

#[expect(clippy::disallowed_methods, reason = "this is where the program reads the search path")]
fn search_path() -> Option<std::ffi::OsString> {
    std::env::var_os("PATH")
}

fn search(path: Option<&OsStr>) -> Result<PathBuf, PluginError> {
    let places = path.into_iter().flat_map(std::env::split_paths).map(|folder| folder.join("opencode"));
    let none =
        || PluginError::NoOpencode("opencode is not on this machine: no folder of PATH has it".to_owned());
    places.into_iter().find(|program| is_program(program)).ok_or_else(none)
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_program_of_the_path_is_taken_and_none_is_told_with_how_to_get_it() {
        let folders =
            [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let path = std::env::join_paths(folders.iter().map(tempfile::TempDir::path)).unwrap();
        fs::write(folders[0].path().join("opencode"), "no program").unwrap();
        let error = search(Some(&path)).unwrap_err();
        assert!(error.hint().unwrap().contains("npm install"), "{error}");
        for folder in &folders[1..] {
            let program = folder.path().join("opencode");
            fs::write(&program, "#!/bin/sh\n").unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        assert_eq!(search(Some(&path)).unwrap(), folders[1].path().join("opencode"));
        assert!(find(Some(Path::new("/nowhere/opencode"))).is_err());
        assert!(search(None).is_err());
    }
}
