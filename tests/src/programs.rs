//! Finds the programs that the tests run.

use std::path::PathBuf;

#[expect(clippy::disallowed_methods, reason = "this is where the harness reads its environment")]
fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn cache() -> PathBuf {
    let cache = variable("BERTH_CACHE").or_else(|| Some(variable("HOME")?.join(".cache/berth")));
    cache.expect("HOME is set")
}

fn opencode_home() -> PathBuf {
    cache().join("opencode/1.18.33")
}

/// Modules of node with opencode's SDK.
pub fn sdk_modules() -> PathBuf {
    let modules = cache().join("tools/opencode-sdk/node_modules");
    let sdk = modules.join("@opencode-ai/sdk");
    assert!(sdk.is_dir(), "{} is missing: `cargo xtask test` installs it", sdk.display());
    modules
}

/// The pinned schemathesis.
pub fn schemathesis_program() -> PathBuf {
    let program = cache().join("tools/schemathesis/bin/schemathesis");
    assert!(program.is_file(), "{} is missing: `cargo xtask test` installs it", program.display());
    program
}

/// The pinned opencode.
pub fn opencode_program() -> PathBuf {
    let program = variable("BERTH_OPENCODE")
        .unwrap_or_else(|| opencode_home().join("node_modules/opencode-linux-x64/bin/opencode"));
    assert!(program.is_file(), "{} is missing: `make opencode` fetches it", program.display());
    program
}

/// A configuration directory that opencode has nothing to install into.
pub fn opencode_config_home() -> PathBuf {
    let home = opencode_home().join("config");
    assert!(home.is_dir(), "{} is missing: `make opencode` makes it", home.display());
    home
}

/// The `berth` program that was built with these tests.
pub fn berth_program() -> PathBuf {
    built_program("berth")
}

/// The plugin of kubectl that was built with these tests.
pub fn kubectl_berth_program() -> PathBuf {
    built_program("kubectl-berth")
}

/// A program of ours that was built with these tests.
pub(crate) fn built_program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let folder = test.parent().and_then(|deps| deps.parent()).expect("tests lie two folders deep");
    let program = folder.join(name);
    assert!(program.is_file(), "{} is missing: `cargo build --workspace` makes it", program.display());
    program
}

/// Where programs are looked for.
pub(crate) fn search_path() -> String {
    let path = variable("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    path.into_os_string().into_string().expect("PATH is plain text")
}
