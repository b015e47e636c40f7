//! The sidecar alone: how it begins, what it says when it cannot, and how it ends.

use berth_testkit::ports;
use std::{path::Path, process::Output, time::Duration};

use nix::sys::signal::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    process::Command,
};

use crate::{
    pod::{Options, Pod, send},
    wait::{some, within},
};

fn sidecar(secret: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_berth-sidecar"));
    command.env_clear().kill_on_drop(true).arg("--secret").arg(secret);
    command.args(["--listen", &ports::free().to_string(), "--admin", &ports::free().to_string()]);
    command
}

async fn output(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = within("end of the program", command.output()).await.unwrap();
    (status.code(), String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap())
}

/// A directory with these passwords.
fn secret(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

#[tokio::test]
async fn what_is_wrong_is_named_with_its_reason_and_exit_code() {
    let good = secret(&[("password", b"hunter2"), ("opencode-password", b"hunter3")]);
    let no_internal = secret(&[("password", b"hunter2")]);
    let empty = secret(&[("password", b"\n"), ("opencode-password", b"hunter3")]);
    let long = secret(&[("password", &[b'h'; 2000]), ("opencode-password", b"hunter3")]);
    let binary = secret(&[("password", b"hunter2"), ("opencode-password", b"hunter3\xff\xfe")]);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().map(|address| (taken, address.to_string())).unwrap();
    let cases: [(&Path, &[&str], i32, &[&str]); 11] = [
        (good.path(), &["--help"], 0, &["Examples:", "Exit codes:", "BERTH_SIDECAR_SECRET"]),
        (good.path(), &["--version"], 0, &["berth-sidecar 0."]),
        (good.path(), &["--ring-bytes", "1"], 64, &["--ring-bytes"]),
        (good.path(), &["--supervisor", "192.0.2.1:4094"], 78, &["--supervisor", "loopback"]),
        (good.path(), &["--log-level", "berth_door=loud"], 78, &["--log-level"]),
        (good.path(), &["--log", "text"], 69, &["--listen", &taken.1, "in use"]),
        (Path::new("/nowhere"), &[], 78, &["--secret", "password", "No such file"]),
        (no_internal.path(), &[], 78, &["--secret", "opencode-password", "No such file"]),
        (empty.path(), &[], 78, &["--secret", "password", "empty"]),
        (long.path(), &[], 78, &["--secret", "password", "too long"]),
        (binary.path(), &[], 78, &["--secret", "opencode-password", "utf-8"]),
    ];
    for (secret, arguments, code, wanted) in cases {
        let mut command = sidecar(secret);
        if code == 69 {
            // clap takes one value for each flag.
            command = Command::new(env!("CARGO_BIN_EXE_berth-sidecar"));
            command.env_clear().arg("--secret").arg(secret).args(["--listen", &taken.1]);
        }
        let (seen, said) = output(command.args(arguments)).await;
        assert_eq!(seen, Some(code), "{arguments:?}: {said}");
        for wanted in wanted {
            assert!(said.contains(wanted), "{arguments:?}: {wanted} in {said}");
        }
        assert!(!said.contains("hunter"), "{arguments:?}: a password in {said}");
    }
}

#[tokio::test]
async fn without_a_supervisor_it_answers_and_ends_in_order() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut pod = Pod::prepare(&Options::default()).await;
        pod.sidecar.start();
        let admin = |path: &str| pod.client().get(format!("http://{}{path}", pod.addresses.admin)).send();
        some("/live", async || admin("/live").await.ok().filter(|answer| answer.status() == 200)).await;
        some("/ready", async || admin("/ready").await.ok().filter(|answer| answer.status() == 200)).await;
        let metrics = admin("/metrics").await.unwrap().text().await.unwrap();
        for line in ["berth_door_connections ", "process_resident_memory_bytes ", "# EOF"] {
            assert!(metrics.contains(line), "{line} in {metrics}");
        }
        let probe = within("probe", pod.client().get(pod.url("/doc")).send()).await.unwrap();
        assert_eq!(probe.status(), 503);
        assert!(probe.text().await.unwrap().contains("starting"));
        assert_eq!(pod.state().await["phase"], "starting");
        send(pod.sidecar.pid(), signal);
        assert_eq!(pod.sidecar.wait().await.code(), Some(0), "{signal}");
    }
}

#[tokio::test]
async fn requests_that_wait_do_not_hold_up_its_end() {
    let mut pod = Pod::prepare(&Options::default()).await;
    pod.sidecar.start();
    pod.state().await;
    let mut events = within("events", pod.get("/global/event").send()).await.unwrap();
    assert!(within("first bytes", events.chunk()).await.unwrap().is_some());
    let waiting = tokio::task::JoinSet::from_iter([pod.get("/session").send()]);
    let mut half = TcpStream::connect(pod.addresses.door).await.unwrap();
    half.write_all(b"GET /session HTTP/1.1\r\nhost: x\r\n").await.unwrap();
    let begun = tokio::time::Instant::now();
    assert_eq!(pod.sidecar.terminate().await.code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    let mut rest = Vec::new();
    within("end of a connection", half.read_to_end(&mut rest)).await.ok();
    drop(waiting);
}
