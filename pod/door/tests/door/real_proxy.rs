//! The door before a real opencode: the same answers as without it, terminals, and requests at every moment of a start.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use berth_serve::ServeState;
use berth_testkit::Scale;
use http::Method;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    raw::{Client, value},
    real_opencode::{START, Sandbox},
    rig::{INTERNAL, PASSWORD, RunningDoor, client, within},
};

/// How long a route may take that answers at all.
const ANSWER: Duration = Duration::from_secs(15);

/// Routes that differ, or cannot be compared, and why.
const DIFFERENT: [(&str, &str); 5] = [
    ("/event", "served from the door's journal"),
    ("/global/event", "served from the door's journal"),
    ("/api/event", "a stream without an end"),
    ("/api/session/{sessionID}/event", "a stream without an end"),
    ("/tui/control/next", "waits until a terminal asks for something"),
];

/// An answer as far as it can be compared.
#[derive(Debug, Clone, PartialEq)]
struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Value,
}

async fn ask(base: &str, password: &str, path: &str) -> Answer {
    let request = client().get(format!("{base}{path}")).basic_auth("opencode", Some(password));
    let answer = async {
        let response = request.header("accept-encoding", "gzip").send().await.expect("an answer");
        let status = response.status().as_u16();
        let same = ["content-type", "content-encoding", "cache-control", "vary", "link", "x-next-cursor"];
        let headers = same.iter().filter_map(|name| {
            let value = response.headers().get(*name)?.to_str().expect("printable");
            Some(((*name).to_owned(), value.to_owned()))
        });
        let headers = headers.collect();
        let bytes = response.bytes().await.expect("a whole body");
        let body = serde_json::from_slice(&bytes).unwrap_or_else(|_| json!(bytes.to_vec()));
        Answer { status, headers, body }
    };
    timeout(ANSWER, answer).await.unwrap_or_else(|_| Answer {
        status: 0,
        headers: BTreeMap::new(),
        body: json!("it does not end"),
    })
}

/// Takes out what is not the same from one call to the next.
fn keep_equal(body: &mut Value, other: &Value) {
    match (body, other) {
        (Value::Object(body), Value::Object(other)) => {
            for (name, value) in body {
                keep_equal(value, other.get(name).unwrap_or(&Value::Null));
            }
        }
        (Value::Array(body), Value::Array(other)) if body.len() == other.len() => {
            body.iter_mut().zip(other).for_each(|(value, other)| keep_equal(value, other));
        }
        (body, other) if *body != *other => *body = json!("volatile"),
        _ => {}
    }
}

/// Paths of the document's GET routes, with a session and a message where they want one.
fn paths(document: &Value, session: &str, message: &str) -> BTreeSet<String> {
    let paths = document["paths"].as_object().expect("paths");
    let gettable = paths.iter().filter(|(_, route)| route.get("get").is_some());
    let different: Vec<&str> = DIFFERENT.iter().map(|(path, _)| *path).collect();
    let compared = gettable.filter(|(path, _)| !different.contains(&path.as_str()));
    let filled = compared.map(|(path, _)| {
        path.replace("{sessionID}", session).replace("{messageID}", message).replace("/session/{id}", session)
    });
    filled.filter(|path| !path.contains('{')).collect()
}

async fn message_of(door: &RunningDoor, session: &str) -> String {
    let body = json!({"noReply": true, "model": {"providerID": "none", "modelID": "m"},
        "parts": [{"type": "text", "text": "a note"}]});
    let request = door.post(&format!("/session/{session}/message")).json(&body);
    let response = within("note", request.send()).await.expect("an answer");
    let note: Value = response.json().await.expect("JSON");
    note["info"]["id"].as_str().expect("an id").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_get_route_answers_as_without_the_door() {
    let sandbox = Sandbox::start().await;
    let door = sandbox.door().await;
    let direct = sandbox.supervisor.watch().borrow().address.expect("opencode listens");
    let direct = format!("http://{direct}");
    let session: Value = door.post("/session").json(&json!({})).send().await.unwrap().json().await.unwrap();
    let session = session["id"].as_str().expect("an id");
    let message = message_of(&door, session).await;
    let document: Value = door.get("/doc").send().await.unwrap().json().await.unwrap();
    let mut compared = 0;
    let mut failures = Vec::new();
    let more = ["/", "/no/such/route", "/session/none", "/session?limit=1"].map(str::to_owned);
    for path in paths(&document, session, &message).into_iter().chain(more) {
        let mut first = ask(&direct, INTERNAL, &path).await;
        let mut through = ask(&door.url(""), PASSWORD, &path).await;
        let second = ask(&direct, INTERNAL, &path).await;
        keep_equal(&mut first.body, &second.body);
        keep_equal(&mut through.body, &first.body.clone());
        // What is volatile in one is not the same in the other either.
        keep_equal(&mut first.body, &through.body.clone());
        compared += 1;
        if first != through || first.status == 0 {
            failures.push(format!("{path}\n  direct {first:?}\n  door   {through:?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(compared > 60, "only {compared} routes");
    // The door keeps the document, and gives it without compression and without `Vary`.
    let document_of = |base: String, password| async move {
        let request = client().get(format!("{base}/doc")).basic_auth("opencode", Some(password));
        let answer = request.send().await.expect("an answer");
        (answer.headers()["content-type"].clone(), answer.bytes().await.expect("a whole body"))
    };
    assert_eq!(document_of(direct.clone(), INTERNAL).await, document_of(door.url(""), PASSWORD).await);
    preflights_are_equal(&direct, &door).await;
    door.stop().await;
    sandbox.supervisor.stop().await;
}

/// Without credentials on either side.
async fn preflights_are_equal(direct: &str, door: &RunningDoor) {
    for origin in ["http://localhost:3000", "https://app.opencode.ai", "https://other.example"] {
        let ask = |base: String| async move {
            let request = client().request(Method::OPTIONS, format!("{base}/session"));
            let headers = [("origin", origin), ("access-control-request-method", "POST")];
            let request =
                headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
            let answer = request.send().await.expect("an answer");
            let mut headers: Vec<(String, String)> = answer
                .headers()
                .iter()
                // A 204 has no length, though opencode says one.
                .filter(|(name, _)| {
                    !["date", "connection", "keep-alive", "content-length"].contains(&name.as_str())
                })
                .map(|(name, value)| (name.to_string(), value.to_str().expect("printable").to_owned()))
                .collect();
            headers.sort();
            (answer.status().as_u16(), headers)
        };
        let (direct, through) = (ask(direct.to_owned()).await, ask(door.url("")).await);
        assert_eq!(direct, through, "{origin}");
        assert_eq!(through.0, 204);
    }
}

/// A text frame as clients send it.
fn masked(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81, 0x80 | u8::try_from(text.len()).expect("a short text"), 0, 0, 0, 0];
    frame.extend(text.as_bytes());
    frame
}

async fn open_terminal(door: SocketAddr, id: &str) -> Client {
    let mut client = Client(tokio::net::TcpStream::connect(door).await.expect("connect"));
    let headers = "connection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
        sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    client.request(&format!("GET /pty/{id}/connect"), headers).await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert_eq!(value(&head, "sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
    client
}

#[tokio::test]
async fn a_terminal_works_through_the_door() {
    let sandbox = Sandbox::start().await;
    let door = sandbox.door().await;
    let body = json!({"command": "/bin/sh", "args": [], "title": "t"});
    let created = within("terminal", door.post("/pty").json(&body).send()).await.expect("an answer");
    let created: Value = created.json().await.expect("JSON");
    let id = created["id"].as_str().expect("an id");
    let mut terminal = open_terminal(door.address, id).await;
    terminal.send(masked("echo berth-$((40+2))\n")).await;
    let mut shown = Vec::new();
    let answered = async {
        while !String::from_utf8_lossy(&shown).contains("berth-42") {
            assert!(terminal.0.read_buf(&mut shown).await.expect("the terminal goes on") > 0);
        }
    };
    within("output of the terminal", answered).await;
    terminal.0.shutdown().await.expect("the door is there");
    door.stop().await;
    sandbox.supervisor.stop().await;
}

/// Waits until opencode has ended, while another run of it is only begun.
async fn killed(sandbox: &Sandbox) {
    let mut state = sandbox.supervisor.watch();
    let boot = state.borrow().boot;
    let pid = state.borrow().pid.expect("a process").cast_signed();
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("kill");
    let ended = |state: &ServeState| state.last_exit().is_some_and(|exit| exit.boot == boot);
    within("end of opencode", state.wait_for(ended)).await.expect("a supervisor");
}

/// Requests come all the time from the end of one run until the next answers, so also in the time in which opencode
/// accepts connections and never answers what it is sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_of_a_start_is_answered() {
    const REQUESTS: usize = 200;
    let sandbox = Sandbox::start().await;
    let door = sandbox.door().await;
    let (scale, mut answered) = (Scale::current(), 0);
    for round in 0..scale.pick(1, 5) {
        killed(&sandbox).await;
        let begun = Instant::now();
        let mut requests = JoinSet::new();
        let state = sandbox.supervisor.watch();
        let mut after_ready = 0;
        while requests.len() < REQUESTS || after_ready < 10 {
            assert!(begun.elapsed() < START, "opencode does not start");
            if state.borrow().address.is_some() {
                after_ready += 1;
            }
            requests.spawn(door.get("/session").send());
            sleep(Duration::from_millis(10)).await;
        }
        let count = requests.len();
        while let Some(answer) = timeout(START, requests.join_next()).await.expect("every answer") {
            let answer = answer.expect("a task").expect("an answer");
            assert_eq!(answer.status(), 200, "round {round}, of {count}");
            answered += 1;
        }
    }
    scale.report("every_request_of_a_start_is_answered", 0, &[("answered", answered)]);
    door.stop().await;
    sandbox.supervisor.stop().await;
}

/// A request that opencode never answers ends with the cause of its end.
#[tokio::test]
async fn a_request_that_loses_opencode_says_how_it_ended() {
    let sandbox = Sandbox::start().await;
    let door = sandbox.door().await;
    let session: Value = door.post("/session").json(&json!({})).send().await.unwrap().json().await.unwrap();
    let session = session["id"].as_str().expect("an id").to_owned();
    let body =
        json!({"agent": "build", "command": "sleep 600", "model": {"providerID": "none", "modelID": "m"}});
    let mut shell = JoinSet::new();
    let mut events = door.events("/global/event", None).await;
    shell.spawn(door.post(&format!("/session/{session}/shell")).json(&body).send());
    let runs = async {
        loop {
            let (_, event) = events.next().await;
            if event["properties"]["part"]["state"]["status"] == "running" {
                return;
            }
        }
    };
    within("running command", runs).await;
    killed(&sandbox).await;
    let answer = within("answer", shell.join_next()).await.expect("a task").expect("no panic");
    let refusal = crate::rig::problem(answer.expect("an answer")).await;
    assert_eq!(refusal.problem_type(), Some(berth_wire::problem::ProblemType::BadGateway));
    assert!(refusal.detail.contains("signal 9"), "{refusal:?}");
    door.stop().await;
    sandbox.supervisor.stop().await;
}
