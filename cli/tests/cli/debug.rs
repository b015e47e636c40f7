//! `berth debug`: recordings, replayed and made.

use std::path::{Path, PathBuf};

use berth_opencode::{ClientConfig, Event, NewSession, OpencodeClient, Prompt, PromptPart, ids};
use berth_testkit::fake_serve::{FakeControl, FakeServe, FakeServeConfig, StreamFault};
use secrecy::SecretString;
use serde_json::Value;
use tokio::{task::JoinSet, time::timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::process::{Berth, Finished, LIMIT, error_lines, finish, finished, interrupt, wait_for};

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../client/opencode/tests/captures")
}

fn capture(name: &str) -> String {
    captures().join(name).to_str().unwrap().to_owned()
}

async fn replay(berth: &Berth, arguments: &[&str], input: &str) -> Finished {
    finish(berth.command(&[&["debug", "replay"], arguments].concat()), input).await
}

#[tokio::test]
async fn replay_gives_the_manifests_verdict_for_every_capture() {
    let names = std::fs::read_dir(captures()).unwrap().map(|entry| entry.unwrap().file_name());
    let names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    let files: Vec<String> =
        names.iter().filter(|name| name.strip_suffix(".sse").is_some()).map(|name| capture(name)).collect();
    let manifest = capture("manifest.json");
    let mut arguments = vec!["--manifest", &manifest];
    arguments.extend(files.iter().map(String::as_str));
    let Finished { code, out, err } = replay(&Berth::new(), &arguments, "").await;
    assert_eq!(code, 0, "{err}");
    assert!(
        err.ends_with(&format!("{0} of {0} recordings are as the manifest says\n", files.len())),
        "{err}"
    );
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ends = lines.iter().filter(|line| line["kind"] == "turn_ended").count();
    assert!(ends > 80, "only {ends} ends");
}

#[tokio::test]
async fn replay_reads_standard_input_and_fails_for_what_is_not_complete() {
    let berth = Berth::new();
    let text = std::fs::read_to_string(captures().join("1.18.33-text.sse")).unwrap();
    let whole = replay(&berth, &["-"], &text).await;
    assert_eq!((whole.code, whole.err.as_str()), (0, "-: complete: succeeded end_turn\n"));
    let last: Value = serde_json::from_str(whole.out.lines().last().unwrap()).unwrap();
    assert_eq!((&last["kind"], &last["turn"]), (&Value::from("turn_ended"), &Value::from(1)));

    let half: String = text.lines().take(40).map(|line| line.to_owned() + "\n").collect();
    let cut = replay(&berth, &["-"], &half).await;
    assert_eq!((cut.code, cut.err.as_str()), (1, "-: incomplete: not_ended\n"));
    let spoilt = replay(&berth, &["-"], &text.replacen("data: {", "data: [", 2)).await;
    assert_eq!(spoilt.code, 1);
    assert!(spoilt.err.starts_with("-: frame 1: not an event: "), "{}", spoilt.err);
    assert!(spoilt.err.ends_with("-: faulty: succeeded end_turn\n"), "{}", spoilt.err);
    let nothing = replay(&berth, &["-"], ": nothing\n\n").await;
    assert_eq!((nothing.code, nothing.err.as_str()), (1, "-: not-a-turn-stream\n"));
}

#[tokio::test]
async fn replay_says_what_a_manifest_lacks_and_where_it_errs() {
    let berth = Berth::new();
    let directory = tempfile::tempdir().unwrap();
    let manifest = directory.path().join("manifest.json");
    let entry = r#"{"1.18.33-text.sse":{"version":"1.18.33","shows":"x","verdict":"complete","turns":[]}}"#;
    std::fs::write(&manifest, entry).unwrap();
    let arguments = [
        "--manifest",
        manifest.to_str().unwrap(),
        &capture("1.18.33-text.sse"),
        &capture("1.18.33-todo.sse"),
    ];
    let Finished { code, err, .. } = replay(&berth, &arguments, "").await;
    assert_eq!(code, 1);
    let differs =
        "1.18.33-text.sse: not what the manifest says\n  expected complete\n  seen     complete: succeeded";
    assert!(err.contains(differs), "{err}");
    let listed = err.split("Its entry would be:\n").nth(1).unwrap().split("\n0 of 2").next().unwrap();
    let entry: Value = serde_json::from_str(listed).unwrap();
    assert_eq!(entry["1.18.33-todo.sse"]["version"], "1.18.33");
    let missing = replay(&berth, &["--manifest", "no-such-file", "-"], "").await;
    assert_eq!(
        (missing.code, missing.err.contains("no-such-file cannot be read")),
        (1, true),
        "{}",
        missing.err
    );
}

#[tokio::test]
async fn plain_replays_of_the_same_doings_are_the_same() {
    let berth = Berth::new();
    let plain = async |name: &str| replay(&berth, &["--plain", &capture(name)], "").await.out;
    let text = plain("1.18.33-text.sse").await;
    assert!(text.lines().count() > 8, "{text}");
    assert_eq!(text, plain("1.18.33-text.global.sse").await);
}

const PASSWORD: &str = "the-password-of-the-fake";
const DIRECTORY: &str = "/home/somebody/work";

/// A fake opencode that runs until it is dropped.
struct Fake {
    url: String,
    client: OpencodeClient,
    control: FakeControl,
    _running: JoinSet<()>,
}

impl Fake {
    async fn start() -> Self {
        let config =
            FakeServeConfig { password: Some(SecretString::from(PASSWORD)), ..FakeServeConfig::default() };
        let fake = FakeServe::bind("127.0.0.1:0".parse().unwrap(), config).await.unwrap();
        let (url, control) = (format!("http://{}", fake.address()), fake.control());
        let client = OpencodeClient::new(ClientConfig::new(&url, SecretString::from(PASSWORD))).unwrap();
        let mut running = JoinSet::new();
        running.spawn(async move { fake.run(CancellationToken::new()).await.unwrap() });
        Self { url, client, control, _running: running }
    }

    async fn prompt(&self, text: &str) {
        let new = NewSession { title: None, berth_session_id: Uuid::now_v7(), permission: Vec::new() };
        let session = self.client.create_session(DIRECTORY, &new).await.unwrap().id;
        let mut events = self.client.global_events(None).await.unwrap();
        let prompt = Prompt::new(ids::message_id(), vec![PromptPart::text(text)]);
        self.client.send_prompt(DIRECTORY, &session, &prompt).await.unwrap();
        let idle = async {
            while !matches!(events.next().await.unwrap().unwrap().event.event, Event::SessionIdle { .. }) {}
        };
        timeout(LIMIT, idle).await.expect("the turn ends");
    }
}

/// Records a prompt, until Ctrl-C.
async fn record(berth: &Berth, arguments: &[&str], text: &str) -> (Finished, String) {
    let fake = Fake::start().await;
    let directory = tempfile::tempdir().unwrap();
    let (password, fixture) = (directory.path().join("password"), directory.path().join("fixture.sse"));
    std::fs::write(&password, PASSWORD).unwrap();
    let (password, fixture) = (password.to_str().unwrap(), fixture.to_str().unwrap());
    let line = ["debug", "capture", "--url", &fake.url, "--password-file", password, "-o", fixture];
    let mut child = berth.command(&[&line, arguments].concat()).spawn().unwrap();
    let mut errors = error_lines(&mut child);
    wait_for(&mut errors, "recording 1.18.33 at http://").await;
    fake.prompt(text).await;
    interrupt(&child);
    wait_for(&mut errors, " events in ").await;
    let finished = finished(child).await;
    (finished, std::fs::read_to_string(fixture).unwrap())
}

#[tokio::test]
async fn capture_makes_a_fixture_that_replays_and_holds_no_secret() {
    let berth = Berth::new();
    let script = format!("@stub say:the password is {PASSWORD}, and the key sk-abcdefghijklmnopqrstuvwxyz");
    for arguments in [&[][..], &["--directory", DIRECTORY]] {
        let (finished, fixture) = record(&berth, arguments, &script).await;
        assert_eq!(finished.code, 0);
        let replayed = replay(&berth, &["-"], &fixture).await;
        assert_eq!((replayed.code, replayed.err.as_str()), (0, "-: complete: succeeded end_turn\n"));
        assert!(replayed.out.contains("the password is REDACTED, and the key REDACTED"), "{}", replayed.out);
        for secret in [PASSWORD, "sk-abc", "/home/somebody", "\r"] {
            assert!(!fixture.contains(secret), "{secret:?} is in {fixture}");
        }
        assert_eq!(fixture.contains("\"payload\""), arguments.is_empty(), "the envelope of /global/event");
    }
}

#[tokio::test]
async fn capture_tells_when_the_stream_ends_before_its_time() {
    let (berth, fake) = (Berth::new(), Fake::start().await);
    let directory = tempfile::tempdir().unwrap();
    let (password, fixture) = (directory.path().join("password"), directory.path().join("fixture.sse"));
    std::fs::write(&password, PASSWORD).unwrap();
    let (password, path) = (password.to_str().unwrap(), fixture.to_str().unwrap());
    fake.control.spoil(StreamFault::Ends);
    let line = ["debug", "capture", "--url", &fake.url, "--password-file", password, "-o", path];
    let Finished { code, err, .. } = finish(berth.command(&line), "").await;
    assert_eq!((code, err.ends_with("the stream broke: it ended before its time\n")), (1, true), "{err}");
    assert!(fixture.exists(), "what came before is written");
}

#[tokio::test]
async fn capture_makes_a_fixture_of_a_recording_and_changes_a_fixture_no_more() {
    let berth = Berth::new();
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    for (from, to) in [(capture("1.18.33-bash-allow.sse"), place("once")), (place("once"), place("twice"))] {
        let made = finish(berth.command(&["debug", "capture", "--from", &from, "-o", &to]), "").await;
        assert_eq!(made.code, 0, "{}", made.err);
    }
    let text = |name: &str| std::fs::read_to_string(place(name)).unwrap();
    assert_eq!(text("once"), text("twice"));
    assert!(!text("once").contains("/lab/") && text("once").contains("/work"));
}

#[tokio::test]
async fn capture_tells_why_it_cannot() {
    let berth = Berth::new();
    let fake = Fake::start().await;
    let directory = tempfile::tempdir().unwrap();
    let password = directory.path().join("password");
    let at = async |url: &str, output: &str| {
        let line =
            ["debug", "capture", "--password-file", password.to_str().unwrap(), "--url", url, "-o", output];
        finish(berth.command(&line), "").await
    };
    std::fs::write(&password, "another-one").unwrap();
    let refused = at(&fake.url, "x.sse").await;
    assert_eq!((refused.code, refused.err.as_str()), (4, "error: the password of the sandbox was refused\n"));
    let nobody = at("http://127.0.0.1:1", "x.sse").await;
    assert_eq!(nobody.code, 5, "{}", nobody.err);
    let recording = capture("1.18.33-text.sse");
    let line = ["debug", "capture", "--from", &recording, "-o", "no/such/directory/x.sse"];
    let unwritten = finish(berth.command(&line), "").await;
    assert_eq!(unwritten.code, 1);
    assert!(unwritten.err.contains("no/such/directory/x.sse cannot be written"), "{}", unwritten.err);
}
