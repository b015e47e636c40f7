//! Bytes that mean harm: each ends in a typed answer or a closed connection, no request is smuggled past the door, and
//! the door works afterwards.

use std::{sync::Arc, time::Duration};

use berth_testkit::Scale;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::Notify,
    task::JoinSet,
    time::timeout,
};

use crate::{
    raw::{Raw, RawDoor, authorization},
    rig::within,
};

/// Answers each request, and reads on, so that a second request on the connection would be seen.
async fn answer(_head: String, mut socket: TcpStream) {
    let _ = socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
    let mut rest = Vec::new();
    let _ = socket.read_to_end(&mut rest).await;
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.contains("GET /smuggled"), "{rest}");
}

/// How long a door may take for its first byte until it is told that no more bytes come. It may just as well wait for
/// more of them.
const FIRST_BYTE: Duration = Duration::from_millis(100);

/// Sends bytes, says soon that no more come, and gives what the door answers until it closes.
async fn exchange(door: std::net::SocketAddr, pieces: Vec<Vec<u8>>) -> String {
    let socket = TcpStream::connect(door).await.expect("the door accepts");
    let (mut reader, mut writer) = socket.into_split();
    let mut tasks = JoinSet::new();
    let answers = Arc::<Notify>::default();
    let answered = Arc::clone(&answers);
    tasks.spawn(async move {
        for piece in pieces {
            if writer.write_all(&piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        let _ = timeout(FIRST_BYTE, answered.notified()).await;
        let _ = writer.shutdown().await;
    });
    let mut answer = Vec::new();
    let read = async {
        while reader.read_buf(&mut answer).await.is_ok_and(|count| count > 0) {
            answers.notify_one();
        }
    };
    within("end of a hostile connection", read).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn works(door: &RawDoor) {
    let answer = within("answer", door.door.get("/works").send()).await.expect("the door works");
    assert_eq!(answer.text().await.expect("the whole answer"), "ok");
}

#[tokio::test]
async fn no_request_is_smuggled() {
    let upstream = Raw::start(answer);
    let door = upstream.door(|_| {}).await;
    let hidden = format!("GET /smuggled HTTP/1.1\r\nhost: x\r\n{}\r\n", authorization());
    let length = hidden.len();
    let post = |headers: &str, body: &str| {
        format!("POST /first HTTP/1.1\r\nhost: x\r\n{}{headers}\r\n{body}", authorization())
    };
    let chunked = "transfer-encoding: chunked\r\n";
    let attempts = [
        post(&format!("content-length: {}\r\n{chunked}", length + 5), &format!("0\r\n\r\n{hidden}")),
        post(&format!("{chunked}content-length: {}\r\n", length + 5), &format!("0\r\n\r\n{hidden}")),
        post(&format!("content-length: 0\r\ncontent-length: {length}\r\n"), &hidden),
        post(&format!("content-length: {length}\r\ncontent-length: 0\r\n"), &hidden),
        post("content-length: 0, 5\r\n", &hidden),
        post("content-length: +0\r\n", &hidden),
        post("content-length: -1\r\n", &hidden),
        post("content-length: 0x0\r\n", &hidden),
        post("content-length: 18446744073709551616\r\n", &hidden),
        post("transfer-encoding: xchunked\r\n", &format!("0\r\n\r\n{hidden}")),
        post("transfer-encoding: chunked, identity\r\n", &format!("0\r\n\r\n{hidden}")),
        post("transfer-encoding: identity\r\ncontent-length: 0\r\n", &hidden),
        post("transfer-encoding:\x0bchunked\r\ncontent-length: 0\r\n", &hidden),
        post("transfer-encoding : chunked\r\n", &format!("0\r\n\r\n{hidden}")),
        post(" transfer-encoding: chunked\r\n", &format!("0\r\n\r\n{hidden}")),
        post("x: a\r\n transfer-encoding: chunked\r\n", &format!("0\r\n\r\n{hidden}")),
        post("x: a\n\ncontent-length: 0\r\n", &hidden),
        post("x: a\0b\r\ncontent-length: 0\r\n", &hidden),
        post("x: a\rcontent-length: 0\r\n", &hidden),
        post(chunked, &format!("0;{}\r\n\r\n{hidden}", "x".repeat(100_000))),
        post(chunked, &format!("fffffffffffffffff\r\n{hidden}")),
        post(chunked, &format!("-1\r\n\r\n{hidden}")),
        post(chunked, &format!("0x0\r\n\r\n{hidden}")),
        post(chunked, &format!("1\r\nab\r\n0\r\n\r\n{hidden}")),
        post(chunked, &format!("0\n\n{hidden}")),
        post(chunked, &format!("0\r\nx: {}\r\n\r\n{hidden}", "x".repeat(100_000))),
        format!("GET /first HTTP/0.9\r\n{}\r\n{hidden}", authorization()),
        format!("GET /first\r\n\r\n{hidden}"),
        format!("GET  /first HTTP/1.1\r\nhost: x\r\n{}\r\n{hidden}", authorization()),
        format!("GET /first HTTP/1.1 HTTP/1.1\r\nhost: x\r\n{}\r\n{hidden}", authorization()),
        format!("GET /fi\0rst HTTP/1.1\r\nhost: x\r\n{}\r\n{hidden}", authorization()),
        format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{hidden}"),
    ];
    // Requests one after the other are no smuggling, and both forms of a length alone are well.
    let well = [
        post(&format!("content-length: {length}\r\n"), &hidden),
        post(chunked, &format!("{length:x}\r\n{hidden}\r\n0\r\n\r\n")),
    ];
    let mut typed = 0;
    for (number, attempt) in attempts.iter().enumerate() {
        let answer = exchange(door.door.address, vec![attempt.clone().into_bytes()]).await;
        let heads = upstream.take_heads();
        assert!(heads.len() <= 1, "{number}: {attempt:?} became {heads:?}");
        let smuggled = heads.iter().any(|head| head.contains("/smuggled"));
        assert!(!smuggled, "{number}: {attempt:?} became {heads:?}");
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 "), "{number}: {answer}");
        typed += usize::from(answer.starts_with("HTTP/1.1 4"));
        works(&door).await;
        upstream.take_heads();
    }
    for request in well {
        let mut client = door.connect().await;
        client.send(request).await;
        assert!(client.head().await.starts_with("HTTP/1.1 200"));
        assert!(upstream.take_heads().concat().starts_with("POST /first "));
    }
    assert!(typed > attempts.len() / 2, "{typed} of {} attempts had a typed answer", attempts.len());
    door.door.stop().await;
}

/// A request that is true, with its credentials in one of both places.
fn seed(random: &mut StdRng) -> Vec<u8> {
    const PATHS: [&str; 8] =
        ["/session", "/doc", "/berth/state", "/berth/proof", "/session/ses_1/message", "/", "/a%2Fb;c", "*"];
    let path = PATHS[random.random_range(0..PATHS.len())];
    let body =
        ["{\"nonce\": \"AAAAAAAAAAAAAAAAAAAAAA==\"}", "{\"parts\": []}", ""][random.random_range(0..3)];
    let method = ["GET", "POST", "OPTIONS", "HEAD", "PATCH"][random.random_range(0..5)];
    let authorization = if random.random_bool(0.8) { authorization() } else { String::new() };
    let framed = if random.random_bool(0.5) {
        format!("content-length: {}\r\n\r\n{body}", body.len())
    } else {
        format!("transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n", body.len().max(1))
    };
    format!(
        "{method} {path}?directory=%2Fw&last_event_id=a-1 HTTP/1.1\r\nhost: x\r\n{authorization}\
         x-opencode-directory: %2Fw\r\nlast-event-id: a-1\r\nconnection: keep-alive, x-a\r\n{framed}"
    )
    .into_bytes()
}

/// Spoils it.
fn spoil(bytes: &mut Vec<u8>, random: &mut StdRng) {
    for _ in 0..random.random_range(0..6) {
        if bytes.is_empty() {
            return;
        }
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..8) {
            0 => bytes[at] = random.random(),
            1 => bytes.truncate(at),
            2 => bytes.insert(at, b"\0\r\n :;,%\xff"[random.random_range(0..9)]),
            3 => {
                let end = (at + random.random_range(1..40)).min(bytes.len());
                let slice = bytes[at..end].to_vec();
                bytes.splice(at..at, slice);
            }
            4 => {
                let end = (at + random.random_range(1..40)).min(bytes.len());
                bytes.drain(at..end);
            }
            5 => {
                let many = vec![random.random::<u8>(); random.random_range(1..100_000)];
                bytes.splice(at..at, many);
            }
            6 => {
                let mut noise = vec![0; random.random_range(1..200)];
                random.fill_bytes(&mut noise);
                bytes.splice(at..at, noise);
            }
            _ => bytes.extend(seed(random)),
        }
    }
}

fn split(bytes: &[u8], random: &mut StdRng) -> Vec<Vec<u8>> {
    let size = [1 << 20, 1000, 20][random.random_range(0..3)].max(bytes.len() / 200);
    bytes.chunks(size).map(<[u8]>::to_vec).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_requests_are_answered_or_closed_and_the_door_works() {
    let (batches, batch) = (Scale::current().pick(10, 200), 50);
    let upstream = Raw::start(answer);
    let door = upstream.door(|_| {}).await;
    let mut answered = 0_u64;
    for number in 0..batches {
        let mut random = StdRng::seed_from_u64(number);
        let mut exchanges = JoinSet::new();
        for _ in 0..batch {
            let mut bytes = seed(&mut random);
            spoil(&mut bytes, &mut random);
            exchanges.spawn(exchange(door.door.address, split(&bytes, &mut random)));
        }
        while let Some(answer) = exchanges.join_next().await {
            let answer = answer.expect("no exchange hangs");
            assert!(answer.is_empty() || answer.starts_with("HTTP/1."), "batch {number}: {answer}");
            answered += u64::from(!answer.is_empty());
        }
        works(&door).await;
    }
    assert!(answered > batches * batch / 4, "{answered}");
    Scale::current().report("random_requests_at_the_door", batches, &[("answered", answered)]);
    door.door.stop().await;
}
