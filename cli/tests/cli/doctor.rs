//! `berth doctor`: what it finds, and that no secret leaves with its archive.

use berth_testkit::ports;
use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Stdio};

use base64::{Engine, engine::general_purpose::STANDARD};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    home::{Home, Up},
    process::{Finished, finish},
};

async fn doctor(home: &Home, options: &[&str], variables: &[(&str, &str)]) -> Finished {
    let port = ports::free().port().to_string();
    let mut command = home.command(&[&["doctor", "--port", &port], options].concat());
    command.envs(variables.iter().copied());
    finish(command, "").await
}

fn check<'a>(found: &'a Value, name: &str) -> &'a Value {
    let checks = found["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("no {name} in {found}"))
}

fn write(path: &Path, text: &str, mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn a_machine_in_order_passes_and_is_left_as_it_was() {
    let home = Home::new();
    let done = doctor(&home, &["--json"], &[]).await;
    let found: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((done.code, &found["ok"]), (0, &Value::Bool(true)), "{found:#}");
    for (name, verdict) in [
        ("opencode", "good"),
        ("data directory", "good"),
        ("server", "note"),
        ("providers", "note"),
        ("port", "good"),
    ] {
        assert_eq!(check(&found, name)["verdict"], verdict, "{found:#}");
    }
    let left: Vec<_> =
        fs::read_dir(home.directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["work"], "it only looks");
    let text = doctor(&home, &[], &[]).await.out;
    assert!(text.contains("✓ opencode") && text.ends_with("nothing is in the way\n"), "{text}");
}

#[tokio::test]
async fn each_fault_is_found_and_comes_with_its_fix() {
    let home = Home::new();
    write(&home.path("old/opencode"), "#!/bin/sh\necho 2.0.1\n", 0o755);
    write(
        &home.path(".config/opencode/opencode.jsonc"),
        "{ \"model\": \"anthropic/claude\", // x\n }",
        0o644,
    );
    write(&home.path("work/opencode.json"), "{ broken", 0o644);
    write(&home.path(".local/share/opencode/auth.json"), "{}", 0o644);
    write(
        &home.path(".local/state/berth/server.json"),
        r#"{"url":"http://127.0.0.1:9","pid":4194300}"#,
        0o600,
    );
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let old = home.path("old/opencode");
    let line = ["doctor", "--json", "--port", &port, "--opencode", old.to_str().unwrap()];
    let mut command = home.command(&line);
    command.env("PATH", "/nowhere");
    let done = finish(command, "").await;
    let found: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((done.code, &found["ok"]), (1, &Value::Bool(false)), "{found:#}");
    let wanted = [
        ("opencode", "bad", "npm install"),
        ("providers", "bad", "ANTHROPIC_API_KEY"),
        ("configuration", "bad", "mend it"),
        ("port", "bad", "--port 0"),
        ("git", "note", "install git"),
        ("secret files", "bad", "chmod go-rwx"),
        ("leftovers", "note", "nothing to do"),
        ("server", "bad", "berth up"),
    ];
    for (name, verdict, fix) in wanted {
        let check = check(&found, name);
        assert_eq!(check["verdict"], verdict, "{check:#}");
        assert!(check["fix"].as_str().unwrap().contains(fix), "{check:#}");
    }
    let key = doctor(&home, &["--json"], &[("ANTHROPIC_API_KEY", "sk-of-the-test")]).await;
    let found: Value = serde_json::from_str(&key.out).unwrap();
    assert_eq!(check(&found, "providers")["verdict"], "good", "{found:#}");
    assert!(!key.out.contains("sk-of-the-test"));
}

/// Everything in the archive, names included, after each other.
fn unpacked(archive: &Path) -> String {
    let bytes = std::process::Command::new("tar").args(["-xzOf"]).arg(archive).output().unwrap();
    let names =
        std::process::Command::new("tar").args(["-tzvf"]).arg(archive).stdin(Stdio::null()).output().unwrap();
    assert!(bytes.status.success() && names.status.success());
    String::from_utf8(bytes.stdout).unwrap() + &String::from_utf8(names.stdout).unwrap()
}

#[tokio::test]
async fn no_secret_of_another_sandboxs_project_is_in_the_archive() {
    let home = Home::new();
    let secrets = [
        "orange-giraffe-in-project",
        "orange-giraffe-in-dot-folder",
        "orange-giraffe-above-it",
        "orange-giraffe-of-variable",
        "orange-giraffe-in-file",
        "orange-giraffe-in-broken",
    ];
    let project = home.path("elsewhere/project");
    let key = |value: &str| format!(r#"{{"provider":{{"x":{{"options":{{"apiKey":"{value}"}}}}}}}}"#);
    write(&project.join("opencode.json"), &key(secrets[0]), 0o644);
    write(&project.join(".opencode/opencode.jsonc"), &key(secrets[1]), 0o644);
    write(&home.path("elsewhere/opencode.json"), &key(secrets[2]), 0o644);
    write(&home.path("work/opencode.json"), &key("{env:PLAIN_NAME}"), 0o644);
    write(&home.path("work/.opencode/opencode.json"), &key("{file:../key.txt}"), 0o644);
    write(&home.path("work/key.txt"), &format!("{}\n", secrets[4]), 0o644);
    let mut up = Up::start(&home, &["--sandbox", &format!("other={}", project.display())]).await;
    // The server is down, and what its sandbox worked in is known all the same.
    up.signal(Signal::SIGTERM);
    assert_eq!(up.ended().await, 0);
    write(&project.join("opencode.jsonc"), &format!("{} \n broken", key(secrets[5])), 0o644);
    let log: String = secrets.iter().flat_map(|secret| ["opencode says ", secret, " here\n"]).collect();
    write(&home.state().join("sandboxes/other/opencode.log"), &log, 0o600);
    let variables = [("PLAIN_NAME", secrets[3])];
    doctor(&home, &["--bundle", "bundle.tar.gz"], &variables).await;
    let text = unpacked(&home.path("work/bundle.tar.gz"));
    assert_eq!(text.matches("opencode says REDACTED here").count(), secrets.len(), "{text}");
    for secret in secrets {
        assert!(!text.contains(secret), "{secret} is in the archive");
    }
}

#[tokio::test]
async fn no_secret_is_in_the_archive() {
    // Each in a place of its own. None looks like a key, but for the last ones, which nothing but their looks tells.
    let by_place = [
        "purple-elephant-in-auth",
        "purple-elephant-refresh",
        "purple-elephant-in-environment",
        "purple-elephant-of-gateway",
        "purple-elephant-in-options",
        "purple-elephant-in-mcp",
        "purple-elephant-in-header",
        "purple-elephant-argument",
        "purple-elephant-of-sandbox",
    ];
    let by_looks =
        ["ghp_0123456789abcdefghijABCDEFGHIJ012345", "sk-ant-0123456789abcdefghij", "hunter2hunter2"];
    let home = Home::new();
    let mut up = Up::start(&home, &[]).await;
    let token = fs::read_to_string(home.state().join("token")).unwrap().trim().to_owned();
    let auth = format!(
        r#"{{"anthropic":{{"type":"oauth","access":"{}","refresh":"{}"}}}}"#,
        by_place[0], by_place[1]
    );
    write(&home.path(".local/share/opencode/auth.json"), &auth, 0o600);
    let sandbox = home.state().join("sandboxes/default");
    write(
        &sandbox.join("data/opencode/auth.json"),
        &format!(r#"{{"x":{{"key":"{}"}}}}"#, by_place[8]),
        0o600,
    );
    let config = format!(
        r#"{{ // configuration
          "model": "anthropic/claude",
          "provider": {{ "anthropic": {{ "options": {{ "apiKey": "{}", "baseURL": "https://user:{}@host/v1" }} }} }},
          "mcp": {{ "x": {{ "command": ["npx", "serve", "{}"], "environment": {{ "PLAIN": "{}" }},
                          "headers": {{ "X-Thing": "{}" }} }} }} }}"#,
        by_place[4], by_looks[2], by_place[7], by_place[5], by_place[6]
    );
    write(&home.path(".config/opencode/opencode.json"), &config, 0o644);
    // Logs that repeat all of them, as they are and in the forms in which they are sent.
    let mut log = String::new();
    for secret in by_place.iter().copied().chain([token.as_str()]) {
        let encoded = STANDARD.encode(secret);
        log.extend([format!("plain {secret} end\nbase64 {encoded}\n")]);
        log.extend([format!(
            "json {{\\\"value\\\":\\\"{secret}\\\"}} and a URL http://127.0.0.1/?x={secret}&y\n"
        )]);
    }
    log.extend([format!("{} and {} and {{\"password\":\"{}\"}}\n", by_looks[0], by_looks[1], by_looks[2])]);
    for path in ["berth.log", "berth.log.1", "exits.jsonl", "sandboxes/default/opencode.log"] {
        write(&home.state().join(path), &log, 0o600);
    }
    write(&sandbox.join("data/opencode/log/2026-01-01T000000.log"), &log, 0o600);
    write(&sandbox.join(format!("file-named-{token}")), "", 0o600);

    let variables = [
        ("ANTHROPIC_API_KEY", by_place[2]),
        ("MY_GATEWAY_TOKEN", by_place[3]),
        ("LANG", &format!("C.{}", by_place[2])),
    ];
    let done = doctor(&home, &["--bundle", "bundle.tar.gz"], &variables).await;
    assert!(done.out.contains("look into it before you share it"), "{} {}", done.out, done.err);
    let archive = home.path("work/bundle.tar.gz");
    assert_eq!(fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
    let text = unpacked(&archive);
    for secret in by_place.iter().copied().chain(by_looks).chain([token.as_str()]) {
        assert!(!text.contains(secret), "{secret} is in the archive");
        assert!(!text.contains(&STANDARD.encode(secret)), "{secret} is in the archive, in base64");
        assert!(!done.out.contains(secret) && !done.err.contains(secret), "{secret} is told");
    }
    // And all the same it is of use.
    for told in [
        "1.18.33",
        "anthropic/claude",
        "plain REDACTED end",
        "https://REDACTED@host/v1",
        "local",
        "\"ready\"",
    ] {
        assert!(text.contains(told), "{told:?} in {text}");
    }
    up.signal(Signal::SIGTERM);
    assert_eq!(up.ended().await, 0);
}
