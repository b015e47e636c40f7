//! Finds the opencode that tests run: the one that `BERTH_OPENCODE` names, or that of `make opencode` in Berth's cache.
//! Reads the environment and looks at the file system.

use std::path::{Path, PathBuf};

/// Version that `make opencode` installs.
pub const PINNED: &str = "1.18.33";

#[expect(clippy::disallowed_methods, reason = "this is where tests read their environment")]
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Berth's cache: `BERTH_CACHE`, or `.cache/berth` at home.
///
/// # Panics
///
/// When the environment names neither a cache nor a home.
pub fn cache() -> PathBuf {
    let cache = variable("BERTH_CACHE").or_else(|| Some(variable("HOME")?.join(".cache/berth")));
    cache.expect("BERTH_CACHE or HOME is set")
}

fn home(version: &str) -> PathBuf {
    cache().join("opencode").join(version)
}

/// The opencode that tests run, by its real path.
///
/// # Panics
///
/// When there is none, with how to get it.
pub fn opencode_program() -> PathBuf {
    real(&variable("BERTH_OPENCODE").unwrap_or_else(|| installed(PINNED)), "opencode")
}

/// The old opencode that Berth still speaks to, 1.15.4, by its real path.
///
/// # Panics
///
/// When it is not in the cache, with how to get it.
pub fn old_opencode_program() -> PathBuf {
    real(&installed("1.15.4"), "opencode-old")
}

fn installed(version: &str) -> PathBuf {
    home(version).join("node_modules/opencode-linux-x64/bin/opencode")
}

#[expect(clippy::panic, reason = "this is how a test fails")]
fn real(program: &Path, target: &str) -> PathBuf {
    let Ok(real) = program.canonicalize() else {
        panic!("there is no opencode at {}: `make {target}` gets it", program.display())
    };
    real
}

/// A configuration directory (`XDG_CONFIG_HOME`) into which opencode has nothing to install, where `make opencode` made
/// one. In another it installs packages at its start.
pub fn opencode_config_home() -> Option<PathBuf> {
    Some(home(PINNED).join("config")).filter(|config| config.is_dir())
}
