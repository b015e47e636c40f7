//! The diagnostics archive: what helps whoever is asked for help, without secrets. Does IO.

use std::{
    ffi::OsString,
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use berth_command::{
    archive::{self, Member},
    check::{self, Check},
    secrets::without_secrets,
};
use berth_serve::log_file;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    DoctorConfig,
    files::sandboxes,
    opencode::{read_config, version},
    secrets::redactor,
    server,
};
use crate::{args::PROVIDER_VARIABLES, error::CliError};

/// Most of each log, in bytes: its end.
const LOG_MAX: u64 = 256 * 1024;
/// Most entries of the listing of the data directory.
const LISTED_MAX: usize = 2_000;
/// How deep that goes.
const DEPTH_MAX: usize = 4;

/// Writes it. What is there takes its place only when it is whole.
pub(super) async fn write(path: &Path, config: &DoctorConfig, checks: &[Check]) -> Result<(), CliError> {
    let members = collect(config, checks).await;
    archive::write(path, &members).map_err(|source| CliError::Write { path: path.to_owned(), source })
}

/// Everything that goes in. Every text passes the redactor, whatever it is.
async fn collect(config: &DoctorConfig, checks: &[Check]) -> Vec<Member> {
    let redactor = redactor(config);
    let mut members = vec![
        Member::json("doctor.json", &check::json(checks)),
        Member::json("versions.json", &versions(config).await),
        Member::new("environment.txt", environment(config)),
        Member::new("data.txt", listing(config.server.state.root())),
        Member::json("server.json", &server_state(config).await),
    ];
    let configs = read_config(config).into_iter().enumerate();
    members.extend(configs.map(|(index, (path, value))| {
        let value = json!({ "path": path, "content": without_secrets(value, &redactor) });
        Member::json(format!("config/{index}.json"), &value)
    }));
    members.extend(logs(config));
    members.into_iter().map(|member| member.redacted(&redactor)).collect()
}

async fn versions(config: &DoctorConfig) -> Value {
    let program = config.opencode.find().ok();
    let opencode = match &program {
        Some(program) => version(program).await.unwrap_or_else(|why| why),
        None => "not found".to_owned(),
    };
    let system = rustix::system::uname();
    let text = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
    json!({
        "berth": env!("CARGO_PKG_VERSION"),
        "opencode": opencode,
        "opencode_path": program,
        "system": text(system.sysname()),
        "kernel": text(system.release()),
        "machine": text(system.machine()),
        "distribution": distribution(),
        "time": Timestamp::now(),
    })
}

fn distribution() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(line.trim_matches('"').to_owned())
}

/// Variables that matter here: the values of those that are no secrets, and that the others are set.
fn environment(config: &DoctorConfig) -> String {
    let shown = |name: &str| {
        matches!(name, "BERTH_SERVER" | "BERTH_DATA" | "BERTH_CACHE" | "BERTH_OPENCODE" | "BERTH_TOKEN_FILE")
            || matches!(name, "RUST_LOG" | "NO_COLOR" | "TERM" | "LANG" | "PATH" | "SHELL")
            || name.starts_with("XDG_")
    };
    let named = |name: &str| {
        let upper = name.to_ascii_uppercase();
        PROVIDER_VARIABLES.contains(&name)
            || ["BERTH_", "OPENCODE_"].iter().any(|start| upper.starts_with(start))
            || ["_PROXY", "_API_KEY"].iter().any(|end| upper.ends_with(end))
    };
    let line = |(name, value): (&OsString, &OsString)| {
        let name = name.to_string_lossy();
        match (shown(&name), named(&name)) {
            (true, _) => Some(format!("{name}={}\n", value.to_string_lossy())),
            (_, true) => Some(format!("{name} is set\n")),
            _ => None,
        }
    };
    config.environment.iter().filter_map(line).collect()
}

/// What is in the data directory: names, sizes, rights and times. What opencode keeps is only named.
fn listing(root: &Path) -> String {
    let mut text = String::from("mode size changed path\n");
    let mut left = vec![(root.to_owned(), 0)];
    let mut count = 0;
    while let Some((path, depth)) = left.pop() {
        count += 1;
        if count > LISTED_MAX {
            text += "...\n";
            break;
        }
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let changed = Timestamp::from_second(metadata.mtime()).unwrap_or_default();
        let mode = metadata.permissions().mode() & 0o7777;
        let _ = writeln!(text, "{mode:04o} {} {changed:.0} {}", metadata.len(), path.display());
        if metadata.is_dir() && depth < DEPTH_MAX {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            let mut entries: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            entries.sort();
            left.extend(entries.into_iter().rev().map(|path| (path, depth + 1)));
        }
    }
    text
}

async fn server_state(config: &DoctorConfig) -> Value {
    let note = server::up(config);
    let sandboxes = match server::sandboxes(config).await {
        Ok(sandboxes) => json!(sandboxes),
        Err(why) => json!({ "error": why }),
    };
    json!({ "local": note, "sandboxes": sandboxes })
}

fn logs(config: &DoctorConfig) -> Vec<Member> {
    let state = &config.server.state;
    let log = state.log();
    let mut files = vec![
        ("logs/berth.log".to_owned(), log.clone()),
        ("logs/berth.log.1".to_owned(), log.with_added_extension("1")),
        ("exits.jsonl".to_owned(), state.exits()),
    ];
    for (name, data) in sandboxes(state.root()) {
        files.push((format!("logs/{name}/opencode.log"), log_file(&data)));
        files.extend(own_logs(&name, &data));
    }
    files.into_iter().filter_map(|(name, path)| Some(Member::new(name, tail(&path).ok()?))).collect()
}

/// The newest log that opencode itself wrote.
fn own_logs(name: &str, data: &Path) -> Option<(String, PathBuf)> {
    let entries = fs::read_dir(data.join("data/opencode/log")).ok()?.flatten();
    let newest = entries
        .map(|entry| entry.path())
        .max_by_key(|path| fs::metadata(path).map(|metadata| metadata.mtime()).unwrap_or_default())?;
    Some((format!("logs/{name}/opencode-own.log"), newest))
}

/// The end of a file, from the beginning of a line: a piece of a secret could not be told for one.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(LOG_MAX);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(LOG_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let whole = if from == 0 { &text } else { text.split_once('\n').map_or("", |(_, rest)| rest) };
    Ok(whole.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_begins_with_a_whole_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        fs::write(&path, "one\ntwo\n").unwrap();
        assert_eq!(tail(&path).unwrap(), "one\ntwo\n");
        let line = "x".repeat(99);
        fs::write(&path, format!("{line}\n").repeat(5_000)).unwrap();
        let text = tail(&path).unwrap();
        assert!(text.len() as u64 <= LOG_MAX && text.lines().all(|found| found == line));
    }
}
