//! Large bodies: through the door in constant memory, held up by the slower side, and given up with either side.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use berth_testkit::Scale;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, timeout},
};

use crate::{
    raw::{Raw, read_head, value},
    rig::{BOUND, until},
};

/// What may be under way at most: the kernel lets the door's buffer for the giving side grow to 32 MiB and both buffers
/// for sending to 4 MiB, and the door holds a few pieces.
const UNDER_WAY: usize = 64 << 20;

/// Bytes that one side gave and the other one took.
#[derive(Default)]
struct Counted {
    given: AtomicUsize,
    taken: AtomicUsize,
    /// Most that was ever under way.
    most: AtomicUsize,
    /// Set when the taking side may go on.
    flows: AtomicUsize,
}

impl Counted {
    fn give(&self, count: usize) {
        let given = self.given.fetch_add(count, Ordering::SeqCst) + count;
        self.most.fetch_max(given - self.taken.load(Ordering::SeqCst).min(given), Ordering::SeqCst);
    }

    async fn give_all(&self, socket: &mut TcpStream, size: usize) {
        let piece = vec![b'x'; 64 * 1024];
        let mut left = size;
        while left > 0 {
            let Ok(count) = socket.write(&piece[..left.min(piece.len())]).await else { return };
            self.give(count);
            left -= count;
        }
    }

    /// Takes a megabyte, stops until it may go on, and takes the rest.
    async fn take_all(&self, socket: &mut TcpStream, size: usize) {
        let mut piece = vec![0; 256 * 1024];
        let mut left = size;
        while left > 0 {
            while size - left > 1 << 20 && self.flows.load(Ordering::SeqCst) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let most = left.min(piece.len());
            let Ok(count @ 1..) = socket.read(&mut piece[..most]).await else { return };
            self.taken.fetch_add(count, Ordering::SeqCst);
            left -= count;
        }
    }

    /// Waits until nothing more is given, and checks that not all was.
    async fn is_held_up(&self, size: usize) {
        let (mut last, mut since, begun) = (0, Instant::now(), Instant::now());
        while since.elapsed() < Duration::from_millis(500) || last == 0 {
            assert!(begun.elapsed() < BOUND, "the giving side never stops");
            tokio::time::sleep(Duration::from_millis(20)).await;
            let given = self.given.load(Ordering::SeqCst);
            if given != last {
                (last, since) = (given, Instant::now());
            }
        }
        assert!(last < size && last < UNDER_WAY, "{last} bytes were given to a side that takes none");
        self.flows.store(1, Ordering::SeqCst);
    }

    fn check(&self, size: usize) {
        let [given, taken, most] = [&self.given, &self.taken, &self.most].map(|n| n.load(Ordering::SeqCst));
        assert_eq!((given, taken), (size, size));
        assert!(most < UNDER_WAY, "{most} bytes were under way");
        let counts = [("bytes", given as u64), ("most_under_way", most as u64)];
        Scale::current().report("a_body_streams_in_constant_memory", 0, &counts);
    }
}

fn size() -> usize {
    Scale::current().pick(128 << 20, 1 << 30)
}

const LONG: Duration = Duration::from_mins(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_streams_in_constant_memory_at_the_pace_of_opencode() {
    let counted = Arc::<Counted>::default();
    let taking = Arc::clone(&counted);
    let upstream = Raw::start(move |head, mut socket| {
        let counted = Arc::clone(&taking);
        async move {
            let size = value(&head, "content-length").unwrap().parse().unwrap();
            counted.take_all(&mut socket, size).await;
            socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ndone").await.unwrap();
        }
    });
    let door = upstream.door(|_| {}).await;
    let mut client = door.connect().await;
    client.request("POST /up", &format!("content-length: {}\r\n", size())).await;
    let all = async { tokio::join!(counted.give_all(&mut client.0, size()), counted.is_held_up(size())) };
    timeout(LONG, all).await.expect("the whole upload");
    assert!(client.head().await.starts_with("HTTP/1.1 200"));
    assert_eq!(client.bytes(4).await, b"done");
    counted.check(size());
    door.door.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_download_streams_in_constant_memory_at_the_pace_of_the_client() {
    let counted = Arc::<Counted>::default();
    let giving = Arc::clone(&counted);
    let upstream = Raw::start(move |_, mut socket| {
        let counted = Arc::clone(&giving);
        async move {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", size());
            socket.write_all(head.as_bytes()).await.unwrap();
            counted.give_all(&mut socket, size()).await;
            read_head(&mut socket).await;
        }
    });
    let door = upstream.door(|_| {}).await;
    let mut client = door.connect().await;
    client.request("GET /down", "").await;
    assert!(client.head().await.starts_with("HTTP/1.1 200"));
    let all = async { tokio::join!(counted.take_all(&mut client.0, size()), counted.is_held_up(size())) };
    timeout(LONG, all).await.expect("the whole download");
    counted.check(size());
    door.door.stop().await;
}

#[tokio::test]
async fn a_client_that_leaves_in_the_middle_frees_opencode_at_once() {
    let upstream = Raw::start(|head, mut socket| async move {
        if head.starts_with("GET") {
            let _ = socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
            while socket.write_all(&[b'x'; 4096]).await.is_ok() {}
        } else {
            let mut piece = [0; 4096];
            while let Ok(1..) = socket.read(&mut piece).await {}
        }
    });
    let door = upstream.door(|_| {}).await;
    for (line, headers) in [
        ("POST /up", "content-length: 1000000000\r\n"),
        ("POST /up", "transfer-encoding: chunked\r\n"),
        ("GET /down", ""),
        ("POST /waits", "content-length: 4\r\n"),
    ] {
        let mut client = door.connect().await;
        client.request(line, headers).await;
        client.send("4\r\n").await;
        until("request", || upstream.open.load(Ordering::SeqCst) == 1).await;
        drop(client);
        let begun = Instant::now();
        until("end upstream", || upstream.open.load(Ordering::SeqCst) == 0).await;
        assert!(begun.elapsed() < Duration::from_secs(5), "{line}: {:?}", begun.elapsed());
    }
    door.door.stop().await;
}

#[tokio::test]
async fn the_first_byte_of_an_answer_does_not_wait_for_the_second() {
    let upstream = Raw::start(|_, mut socket| async move {
        let head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n";
        socket.write_all(head).await.unwrap();
        read_head(&mut socket).await;
    });
    let door = upstream.door(|_| {}).await;
    let mut best = Duration::MAX;
    for _ in 0..5 {
        let mut client = door.connect().await;
        let begun = Instant::now();
        client.request("GET /api/event", "").await;
        client.head().await;
        assert_eq!(client.bytes(14).await, b"9\r\ndata: 1\n\n\r\n");
        best = best.min(begun.elapsed());
    }
    assert!(best < Duration::from_millis(500), "{best:?}");
    door.door.stop().await;
}
