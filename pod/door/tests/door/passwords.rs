//! Passwords: changed under load, never shown, and proved before they are sent.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_door::{DoorConfig, Secrets};
use berth_opencode::{ClientConfig, ClientError, OpencodeClient};
use berth_wire::{problem::ProblemType, proof::Proof};
use serde_json::json;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    raw::{Raw, authorization},
    rig::{INTERNAL, PASSWORD, RunningDoor, Upstream, client, killed, problem, within},
};

const NEXT: &str = "next password";

/// Writes a Secret's files as the kubelet does.
fn mount(directory: &Path, version: &str, files: &[(&str, &str)]) {
    fs::create_dir(directory.join(version)).unwrap();
    for (name, text) in files {
        fs::write(directory.join(version).join(name), text).unwrap();
    }
    symlink(version, directory.join("..data_tmp")).unwrap();
    let old = fs::canonicalize(directory.join("..data")).ok();
    fs::rename(directory.join("..data_tmp"), directory.join("..data")).unwrap();
    for name in ["password", "password-previous", "opencode-password"] {
        let _ = symlink(Path::new("..data").join(name), directory.join(name));
    }
    if let Some(old) = old {
        fs::remove_dir_all(old).unwrap();
    }
}

async fn status(door: &RunningDoor, password: &str) -> u16 {
    let request = client().post(door.url("/echo")).basic_auth("opencode", Some(password)).body("x");
    within("answer", request.send()).await.expect("an answer").status().as_u16()
}

async fn until_status(door: &RunningDoor, password: &str, expected: u16) {
    within("change of the password", async { while status(door, password).await != expected {} }).await;
}

#[tokio::test]
async fn a_rotation_under_load_fails_no_request() {
    let directory = TempDir::new().unwrap();
    mount(directory.path(), "..1", &[("password", PASSWORD), ("opencode-password", INTERNAL)]);
    let upstream = Upstream::start().await;
    let (serve, receiver) = watch::channel(upstream.ready(1));
    let secrets = Secrets::in_directory(directory.path()).await.unwrap();
    let door = Arc::new(RunningDoor::start(receiver, |config| config.secrets = secrets).await);
    door.ready().await;

    let (password, given) = watch::channel(PASSWORD);
    let done = Arc::<[AtomicUsize; 4]>::default();
    let mut load = JoinSet::new();
    for task in 0..4 {
        let (door, given, done) = (Arc::clone(&door), given.clone(), Arc::clone(&done));
        load.spawn(async move {
            while !given.borrow().is_empty() {
                let password = *given.borrow();
                assert_eq!(status(&door, password).await, 200);
                done[task].fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    let both = [("password", NEXT), ("password-previous", PASSWORD), ("opencode-password", "next internal")];
    mount(directory.path(), "..2", &both);
    until_status(&door, NEXT, 200).await;
    assert_eq!(status(&door, PASSWORD).await, 200);
    password.send_replace(NEXT);
    let before: Vec<usize> = done.iter().map(|count| count.load(Ordering::SeqCst)).collect();
    // Two more of each task: the second was begun with the next password.
    let moved_on = async {
        while done.iter().zip(&before).any(|(count, before)| count.load(Ordering::SeqCst) < before + 2) {
            tokio::task::yield_now().await;
        }
    };
    within("load with the next password", moved_on).await;
    mount(directory.path(), "..3", &[("password", NEXT), ("opencode-password", "next internal")]);
    until_status(&door, PASSWORD, 401).await;
    assert_eq!(status(&door, NEXT).await, 200);
    password.send_replace("");
    while let Some(ended) = within("end of the load", load.join_next()).await {
        ended.expect("no request failed");
    }

    // The upstream comes back with the internal password that it always had.
    serve.send_replace(killed(1));
    serve.send_replace(berth_serve::ServeState { exits: killed(1).exits, ..upstream.ready(2) });
    upstream.cut_events();
    let second = async {
        while client()
            .get(door.url("/berth/state"))
            .basic_auth("opencode", Some(NEXT))
            .send()
            .await
            .unwrap()
            .json::<serde_json::Value>()
            .await
            .unwrap()["boot"]
            != 2
        {}
    };
    within("second run", second).await;
    assert_eq!(status(&door, NEXT).await, 200);
    Arc::into_inner(door).expect("the load has ended").stop().await;
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_password_is_logged_or_forwarded() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    // While there is one subscriber alone, a place in the code that another test comes to first, in a thread without
    // one, is taken for one that nobody wants to hear of.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    // The runtime has this thread alone.
    let logging = tracing::subscriber::set_default(subscriber);
    let upstream = Raw::start(|head, mut socket| async move {
        if !head.contains("/cut") {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
        }
    });
    let door = upstream.door(|_| {}).await;
    let token = STANDARD.encode(format!("opencode:{PASSWORD}"));
    let escaped = token.replace('=', "%3D");
    let referer = format!("referer: http://door/?a=1&auth_token={token}\r\n");
    for path in ["/session", "/cut", "/event", "/doc", "/berth/state", "/berth/none", "/instance/dispose"] {
        for request in [
            format!("GET {path}?auth_token={escaped}&b=1 HTTP/1.1\r\nhost: x\r\n{referer}\r\n"),
            format!("POST {path}?auth%5Ftoken={token} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"),
            format!("GET {path} HTTP/1.1\r\nhost: x\r\n{}{referer}\r\n", authorization()),
            format!("GET {path}?auth_token={token} HTTP/1.1\r\nbad header\r\n\r\n"),
            format!("GET http://opencode:{PASSWORD}@x{path}?auth_token={token} HTTP/1.1\r\n\r\n"),
        ] {
            let mut client = door.connect().await;
            client.send(request).await;
            client.head().await;
        }
    }
    let heads = upstream.take_heads();
    assert!(heads.len() > 10, "{}", heads.len());
    let state = format!("{:?}", DoorConfig::new(PASSWORD.into(), INTERNAL.into()));
    door.door.stop().await;
    drop(logging);
    let log = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    assert!(log.contains("the door answers"), "{log}");
    let internal = STANDARD.encode(format!("opencode:{INTERNAL}"));
    for secret in [PASSWORD, INTERNAL, &token, &escaped, &internal] {
        let shown = log.lines().find(|line| line.contains(secret));
        assert_eq!(shown, None, "{secret}");
        assert!(!state.contains(secret), "{secret}");
    }
    for head in heads {
        assert!(!head.contains(&token) && !head.contains(&escaped) && !head.contains(PASSWORD), "{head}");
        assert!(head.contains(&internal), "{head}");
    }
}

fn client_of(url: String, password: &str) -> ClientConfig {
    let mut config = ClientConfig::new(url, password.into());
    config.prove = true;
    config
}

#[tokio::test]
async fn a_door_proves_itself_before_it_gets_the_password() {
    let directory = TempDir::new().unwrap();
    let both = [("password", NEXT), ("password-previous", PASSWORD), ("opencode-password", INTERNAL)];
    mount(directory.path(), "..1", &both);
    let upstream = Upstream::start().await;
    let (_serve, receiver) = watch::channel(upstream.ready(1));
    let secrets = Secrets::in_directory(directory.path()).await.unwrap();
    let door = RunningDoor::start(receiver, |config| {
        config.secrets = secrets;
        config.pod_uid = Some("uid-1".to_owned());
    })
    .await;
    door.ready().await;
    for password in [PASSWORD, NEXT] {
        let mut config = client_of(door.url(""), password);
        config.pod_uid = Some("uid-1".to_owned());
        let client = OpencodeClient::new(config).unwrap();
        assert_eq!(client.door_state().await.unwrap().boot, 1);
        client.global_events(None).await.unwrap();
    }
    let mut other_pod = client_of(door.url(""), PASSWORD);
    other_pod.pod_uid = Some("uid-2".to_owned());
    for config in [other_pod, client_of(door.url(""), "wrong")] {
        let client = OpencodeClient::new(config).unwrap();
        assert!(matches!(client.door_state().await, Err(ClientError::PortTaken)));
        assert!(matches!(client.global_events(None).await, Err(ClientError::PortTaken)));
    }

    let ask = |body: serde_json::Value| client().post(door.url("/berth/proof")).json(&body).send();
    let nonce = STANDARD.encode([7; 16]);
    let proof: Proof = ask(json!({"nonce": nonce})).await.unwrap().json().await.unwrap();
    assert_eq!((proof.proofs.len(), proof.pod_uid.as_deref()), (2, Some("uid-1")));
    for bad in [json!({}), json!({"nonce": "AAAA"}), json!({"nonce": STANDARD.encode([7; 65])}), json!(1)] {
        let refusal = problem(ask(bad).await.unwrap()).await;
        assert_eq!(refusal.problem_type(), Some(ProblemType::InvalidBody));
    }
    let long = problem(ask(json!({"nonce": nonce, "more": "x".repeat(2000)})).await.unwrap()).await;
    assert_eq!(long.problem_type(), Some(ProblemType::BodyTooLarge));
    door.stop().await;
}

#[tokio::test]
async fn what_took_the_port_learns_nothing() {
    let taker = Raw::start(|_, mut socket| async move {
        let body = "{\"proof\":\"AAAA\",\"proofs\":[],\"pod_uid\":null}";
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n";
        let _ =
            socket.write_all(format!("{head}content-length: {}\r\n\r\n{body}", body.len()).as_bytes()).await;
    });
    let client = OpencodeClient::new(client_of(format!("http://{}", taker.address), PASSWORD)).unwrap();
    assert!(matches!(client.door_state().await, Err(ClientError::PortTaken)));
    assert!(matches!(client.health().await, Err(ClientError::PortTaken)));
    assert!(matches!(client.global_events(None).await, Err(ClientError::PortTaken)));
    let heads = taker.take_heads();
    assert_eq!(heads.len(), 3);
    for head in heads {
        assert!(head.starts_with("POST /berth/proof ") && !head.contains("authorization"), "{head}");
    }
}

/// Passes the first connection on to a door until it is told to stop, and answers all others itself.
struct Changeling {
    address: SocketAddr,
    stop: CancellationToken,
    stopped: CancellationToken,
    heard: Arc<Mutex<Vec<u8>>>,
    _tasks: JoinSet<()>,
}

impl Changeling {
    async fn start(door: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = (CancellationToken::new(), CancellationToken::new());
        let heard = Arc::<Mutex<Vec<u8>>>::default();
        let (stop_first, first_ended, all_heard) = (stop.clone(), stopped.clone(), Arc::clone(&heard));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let (mut first, _) = listener.accept().await.unwrap();
            let mut connections = JoinSet::new();
            connections.spawn(async move {
                let mut door = TcpStream::connect(door).await.unwrap();
                let _ = stop_first.run_until_cancelled(copy_bidirectional(&mut first, &mut door)).await;
                drop(first);
                first_ended.cancel();
            });
            while let Ok((mut socket, _)) = listener.accept().await {
                let heard = Arc::clone(&all_heard);
                connections.spawn(async move {
                    let mut bytes = vec![0; 4096];
                    while let Ok(count @ 1..) = socket.read(&mut bytes).await {
                        heard.lock().unwrap().extend_from_slice(&bytes[..count]);
                        let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
                        let _ = socket.write_all(answer.as_bytes()).await;
                    }
                });
            }
        });
        Self { address, stop, stopped, heard, _tasks: tasks }
    }

    fn heard(&self) -> String {
        String::from_utf8_lossy(&self.heard.lock().unwrap()).to_ascii_lowercase()
    }
}

#[tokio::test]
async fn what_takes_the_port_of_a_door_that_proved_itself_learns_nothing() {
    let upstream = Upstream::start().await;
    let (_serve, receiver) = watch::channel(upstream.ready(1));
    let door = RunningDoor::start(receiver, |_| {}).await;
    door.ready().await;
    let changeling = Changeling::start(door.address).await;
    let client = OpencodeClient::new(client_of(format!("http://{}", changeling.address), PASSWORD)).unwrap();
    assert_eq!(client.door_state().await.unwrap().boot, 1);
    // Another connection of the same pool is not the one that was proved.
    let (one, other) = tokio::join!(client.door_state(), client.door_state());
    assert!(one.is_ok() || other.is_ok());
    changeling.stop.cancel();
    within("end of the door's connection", changeling.stopped.cancelled()).await;
    let gone = async { while client.door_state().await.is_ok() {} };
    within("refusal", gone).await;
    assert!(matches!(client.door_state().await, Err(ClientError::PortTaken)));
    let heard = changeling.heard();
    assert!(heard.contains("post /berth/proof") && !heard.contains("authorization"), "{heard}");
    door.stop().await;
}
