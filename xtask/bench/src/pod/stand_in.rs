//! An opencode that does what a benchmark says, with a supervisor's control address beside it: for amounts and rates
//! that the real one will not produce. IO, on threads of its own.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use anyhow::ensure;
use berth_serve::{Metrics, Password, ServeLink, ServePhase, ServeState, serve_control};
use tokio::sync::watch;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use super::rig::INTERNAL;

/// Bytes of one write, of one read, and of a chunk of a download.
pub(crate) const PIECE: usize = 256 * 1024;

/// `GET /bench/<bytes>` gives so many bytes; `POST` of anything is read to its end.
pub(crate) const DOWNLOAD: &str = "/bench/";

/// A prompt is answered with a turn of one delta, at once.
const PROMPT: &str = "/prompt_async";

/// Something is said at once, as the door wants it before it lets requests pass.
const PUBLISH: &str = "/tui/publish";

/// What is said.
const HEARD: &[u8] = b"data: {\"directory\":\"/.berth-door\",\"payload\":{\"type\":\"tui.prompt.append\",\"properties\":{}}}\n\n";

/// Writes to a subscriber that wait at most.
const QUEUE: usize = 256;

/// As opencode's own.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The stand-in.
#[derive(Debug)]
pub(crate) struct StandIn {
    /// Where opencode would listen.
    pub(crate) address: SocketAddr,
    /// Where its supervisor would.
    pub(crate) control: SocketAddr,
    subscribers: Subscribers,
    _supervisor: StandInSupervisor,
}

/// What a supervisor tells of an opencode that needs none.
#[derive(Debug)]
pub(crate) struct StandInSupervisor {
    /// Where it listens.
    pub(crate) control: SocketAddr,
    _state: watch::Sender<ServeState>,
    _shutdown: DropGuard,
}

/// Those of `/global/event`.
type Subscribers = Arc<Mutex<Vec<SyncSender<Vec<u8>>>>>;

impl StandIn {
    /// Serves until it is dropped; its threads end with the program.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let subscribers = Subscribers::default();
        let for_thread = Arc::clone(&subscribers);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let subscribers = Arc::clone(&for_thread);
                // Whoever asked notices that it failed.
                thread::spawn(move || answer(connection, &subscribers).ok());
            }
        });
        let supervisor = StandInSupervisor::start(address).await?;
        Ok(Self { address, control: supervisor.control, subscribers, _supervisor: supervisor })
    }

    /// Writes these bytes to each subscriber at once, as one chunk.
    pub(crate) fn send(&self, events: &[u8]) -> anyhow::Result<()> {
        ensure!(send(&self.subscribers, events) > 0, "nobody has subscribed");
        Ok(())
    }
}

impl StandInSupervisor {
    /// Tells of an opencode that is ready at this address, until it is dropped.
    pub(crate) async fn start(opencode: SocketAddr) -> anyhow::Result<Self> {
        let state = ServeState {
            instance: "stand-in".to_owned(),
            phase: ServePhase::Ready,
            boot: 1,
            boot_id: "stand-in-1".to_owned(),
            address: Some(opencode),
            version: Some("1.18.33".to_owned()),
            ..ServeState::new("/workspace".into())
        };
        let (sender, state) = watch::channel(state);
        let shutdown = CancellationToken::new();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let control = listener.local_addr()?;
        TaskTracker::new().spawn(serve_control(
            listener,
            ServeLink::telling(state),
            Password::Known(INTERNAL.into()),
            Metrics::default(),
            shutdown.clone(),
        ));
        Ok(Self { control, _state: sender, _shutdown: shutdown.drop_guard() })
    }
}

/// Gives how many subscribers there are.
fn send(subscribers: &Subscribers, events: &[u8]) -> usize {
    let mut subscribers = subscribers.lock().unwrap_or_else(PoisonError::into_inner);
    subscribers.retain(|subscriber| subscriber.send(events.to_vec()).is_ok());
    subscribers.len()
}

fn answer(connection: TcpStream, subscribers: &Subscribers) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(PIECE, connection);
    let mut writer = reader.get_ref().try_clone()?;
    let (line, length) = head(&mut reader)?;
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    if method == "POST" {
        io::copy(&mut reader.take(length), &mut io::sink())?;
        if let Some(session) = path.strip_prefix("/session/").and_then(|rest| rest.strip_suffix(PROMPT)) {
            for event in turn(session) {
                send(subscribers, &event);
            }
        } else if path == PUBLISH {
            send(subscribers, HEARD);
        }
        return json(&mut writer, "true");
    }
    if let Some(bytes) = path.strip_prefix(DOWNLOAD).and_then(|bytes| bytes.parse().ok()) {
        return download(&mut writer, bytes);
    }
    match path {
        "/global/event" => {
            let (sender, events) = sync_channel(QUEUE);
            subscribers.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
            stream(&mut writer, &events)
        }
        "/global/health" => json(&mut writer, r#"{"healthy":true,"version":"1.18.33"}"#),
        _ => json(&mut writer, "{}"),
    }
}

/// The events of a turn, as far as the door goes by them.
fn turn(session: &str) -> [Vec<u8>; 5] {
    let event = |kind: &str, properties: &str| {
        let payload = format!(r#"{{"type":"{kind}","properties":{{"sessionID":"{session}",{properties}}}}}"#);
        format!("data: {{\"directory\":\"/workspace\",\"payload\":{payload}}}\n\n").into_bytes()
    };
    let info = |id: &str, rest: &str| format!(r#""info":{{"id":"{id}","sessionID":"{session}",{rest}}}"#);
    let asked = info("msg_1", r#""role":"user","time":{"created":1}"#);
    let answered =
        info("msg_2", r#""role":"assistant","parentID":"msg_1","time":{"created":2,"completed":3}"#);
    [
        event("message.updated", &asked),
        event("session.status", r#""status":{"type":"busy"}"#),
        event("message.part.delta", r#""messageID":"msg_2","partID":"prt_1","field":"text","delta":"Yes.""#),
        event("message.updated", &answered),
        event("session.idle", r#""x":0"#),
    ]
}

/// The request's first line and the length of its body.
fn head(reader: &mut impl BufRead) -> io::Result<(String, u64)> {
    let (mut first, mut length) = (String::new(), 0);
    reader.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line == "\r\n" {
            return Ok((first, length));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
}

fn json(writer: &mut impl Write, body: &str) -> io::Result<()> {
    let length = body.len();
    write!(
        writer,
        "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn download(writer: &mut impl Write, bytes: u64) -> io::Result<()> {
    write!(writer, "HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\nconnection: close\r\n\r\n")?;
    let piece = vec![b'x'; PIECE];
    let mut left = bytes;
    while left > 0 {
        let size = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        writer.write_all(&piece[..size])?;
        left -= size as u64;
    }
    Ok(())
}

fn stream(writer: &mut impl Write, events: &Receiver<Vec<u8>>) -> io::Result<()> {
    writer.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    )?;
    let own = |kind| format!("data: {{\"payload\":{{\"type\":\"{kind}\",\"properties\":{{}}}}}}\n\n");
    chunk(writer, own("server.connected").as_bytes())?;
    loop {
        match events.recv_timeout(HEARTBEAT) {
            Ok(events) => chunk(writer, &events)?,
            Err(RecvTimeoutError::Timeout) => chunk(writer, own("server.heartbeat").as_bytes())?,
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn chunk(writer: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let mut chunk = format!("{:x}\r\n", bytes.len()).into_bytes();
    chunk.extend_from_slice(bytes);
    chunk.extend_from_slice(b"\r\n");
    writer.write_all(&chunk)
}
