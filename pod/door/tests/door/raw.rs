//! HTTP by hand, on both sides of the door: an upstream that answers what a test writes, and a client that sends what
//! a test writes. For what no HTTP library does.

use std::{
    future::Future,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_door::DoorConfig;
use berth_serve::{ServePhase, ServeState};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::rig::{PASSWORD, RunningDoor, within};

/// An upstream by hand. Every connection but those for the events is given to the test, with its first head.
pub(crate) struct Raw {
    pub(crate) address: SocketAddr,
    /// Connections that the test's code holds now.
    pub(crate) open: Arc<AtomicUsize>,
    /// Heads that came, in order.
    pub(crate) heads: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Raw {
    pub(crate) fn start<F>(answer: impl Fn(String, TcpStream) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(64 * 1024).expect("a small buffer");
        socket.bind(([127, 0, 0, 1], 0).into()).expect("bind the upstream");
        let listener = socket.listen(1024).expect("listen");
        let address = listener.local_addr().expect("address of the upstream");
        let (open, heads) = (Arc::<AtomicUsize>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (open_now, seen, mut tasks) = (Arc::clone(&open), Arc::clone(&heads), JoinSet::new());
        let answer = Arc::new(answer);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut socket, _)) = listener.accept().await {
                let (open, seen, answer) = (Arc::clone(&open_now), Arc::clone(&seen), Arc::clone(&answer));
                connections.spawn(async move {
                    let head = read_head(&mut socket).await;
                    if head.starts_with("GET /global/event ") {
                        return serve_events(socket).await;
                    }
                    if let Some(answer) = answer_to_the_door(&head) {
                        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{answer}");
                        let _ = socket.write_all(answer.as_bytes()).await;
                        return;
                    }
                    seen.lock().expect("no panic").push(head.clone());
                    open.fetch_add(1, Ordering::SeqCst);
                    answer(head, socket).await;
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { address, open, heads, _tasks: tasks }
    }

    /// A door before it that lets requests pass.
    pub(crate) async fn door(&self, change: impl FnOnce(&mut DoorConfig)) -> RawDoor {
        let state = ServeState {
            phase: ServePhase::Ready,
            boot: 1,
            boot_id: "boot1".to_owned(),
            address: Some(self.address),
            version: Some("1.18.33".to_owned()),
            ..ServeState::new("/work".into())
        };
        let (serve, receiver) = watch::channel(state);
        let door = RunningDoor::start(receiver, change).await;
        door.ready().await;
        RawDoor { door, _serve: serve }
    }

    /// The heads that came since this was asked last.
    pub(crate) fn take_heads(&self) -> Vec<String> {
        std::mem::take(&mut *self.heads.lock().expect("no panic"))
    }
}

/// A door before such an upstream.
pub(crate) struct RawDoor {
    pub(crate) door: RunningDoor,
    _serve: watch::Sender<ServeState>,
}

impl RawDoor {
    pub(crate) async fn connect(&self) -> Client {
        let socket = TcpSocket::new_v4().expect("a socket");
        // Else the kernel takes 32 MiB for a client that takes nothing.
        socket.set_recv_buffer_size(64 * 1024).expect("a small buffer");
        Client(socket.connect(self.door.address).await.expect("connect to the door"))
    }
}

/// A head to its empty line, or what came of it.
pub(crate) async fn read_head(socket: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < 1 << 20 {
        match socket.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// What the door itself asks about what runs, at times of its own: no session works here.
fn answer_to_the_door(head: &str) -> Option<&'static str> {
    if head.starts_with("POST /tui/publish?") {
        return Some("true");
    }
    let asks = |path: &str| head.starts_with(&format!("GET {path}?"));
    if asks("/experimental/session") {
        return Some("[]");
    }
    asks("/session/status").then_some("{}")
}

async fn serve_events(mut socket: TcpStream) {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
    let frame = |kind| format!("data: {{\"payload\":{{\"type\":\"{kind}\",\"properties\":{{}}}}}}\n\n");
    let (first, heard) = (frame("server.connected"), frame("server.heartbeat"));
    if socket.write_all(format!("{head}{first}{heard}").as_bytes()).await.is_ok() {
        let _ = socket.read_u8().await;
    }
}

/// `authorization` of a caller who may pass, as a line.
pub(crate) fn authorization() -> String {
    format!("authorization: Basic {}\r\n", STANDARD.encode(format!("opencode:{PASSWORD}")))
}

/// A client by hand.
pub(crate) struct Client(pub(crate) TcpStream);

impl Client {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        within("place for bytes", self.0.write_all(bytes.as_ref())).await.expect("the door takes bytes");
    }

    /// A request with credentials: its line, and more header lines.
    pub(crate) async fn request(&mut self, line: &str, headers: &str) {
        self.send(format!("{line} HTTP/1.1\r\nhost: door\r\n{}{headers}\r\n", authorization())).await;
    }

    /// The head of an answer.
    pub(crate) async fn head(&mut self) -> String {
        within("head of an answer", read_head(&mut self.0)).await
    }

    pub(crate) async fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        within("bytes", self.0.read_exact(&mut bytes)).await.expect("as many bytes");
        bytes
    }

    /// Everything until the door closes.
    pub(crate) async fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        // A reset is an end, too.
        let _ = within("end", self.0.read_to_end(&mut bytes)).await;
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// The value of a header of a head.
pub(crate) fn value<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.split("\r\n").skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}
