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

use anyhow::Context;
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
    subscriber: Subscriber,
    _state: watch::Sender<ServeState>,
    _shutdown: DropGuard,
}

/// The newest subscriber of `/global/event`.
type Subscriber = Arc<Mutex<Option<SyncSender<Vec<u8>>>>>;

impl StandIn {
    /// Serves until it is dropped; its threads end with the program.
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let subscriber = Subscriber::default();
        let for_thread = Arc::clone(&subscriber);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let subscriber = Arc::clone(&for_thread);
                // Whoever asked notices that it failed.
                thread::spawn(move || answer(connection, &subscriber).ok());
            }
        });
        let state = ServeState {
            instance: "stand-in".to_owned(),
            phase: ServePhase::Ready,
            boot: 1,
            boot_id: "stand-in-1".to_owned(),
            address: Some(address),
            version: Some("1.18.33".to_owned()),
            ..ServeState::new("/workspace".into())
        };
        let (sender, state) = watch::channel(state);
        let shutdown = CancellationToken::new();
        let control = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let control_address = control.local_addr()?;
        TaskTracker::new().spawn(serve_control(
            control,
            ServeLink::telling(state),
            Password::Known(INTERNAL.into()),
            Metrics::default(),
            shutdown.clone(),
        ));
        let shutdown = shutdown.drop_guard();
        Ok(Self { address, control: control_address, subscriber, _state: sender, _shutdown: shutdown })
    }

    /// Writes these bytes to the subscriber at once, as one chunk.
    pub(crate) fn send(&self, events: Vec<u8>) -> anyhow::Result<()> {
        let subscriber = self.subscriber.lock().unwrap_or_else(PoisonError::into_inner).clone();
        subscriber.context("nobody has subscribed")?.send(events).context("the subscriber has left")
    }
}

fn answer(connection: TcpStream, subscriber: &Subscriber) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::with_capacity(PIECE, connection);
    let mut writer = reader.get_ref().try_clone()?;
    let (line, length) = head(&mut reader)?;
    let mut words = line.split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = path.split('?').next().unwrap_or_default();
    if method == "POST" {
        io::copy(&mut reader.take(length), &mut io::sink())?;
        return json(&mut writer, "true");
    }
    if let Some(bytes) = path.strip_prefix(DOWNLOAD).and_then(|bytes| bytes.parse().ok()) {
        return download(&mut writer, bytes);
    }
    match path {
        "/global/event" => {
            let (sender, events) = sync_channel(QUEUE);
            subscriber.lock().unwrap_or_else(PoisonError::into_inner).replace(sender);
            stream(&mut writer, &events)
        }
        "/global/health" => json(&mut writer, r#"{"healthy":true,"version":"1.18.33"}"#),
        _ => json(&mut writer, "{}"),
    }
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
