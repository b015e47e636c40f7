//! The control address and bytes that are no requests: a typed answer or a closed connection, and it works after them.

use std::time::Duration;

use berth_serve::ServePhase;
use berth_testkit::Scale;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};

use crate::{
    program::Place,
    rig::{Bench, INTERNAL, LISTENS, within},
};

/// Pieces that requests are made of, and some that they are not.
const PIECES: [&[u8]; 14] = [
    b"GET /state HTTP/1.1\r\n",
    b"POST /command HTTP/1.1\r\n",
    b"GET /watch HTTP/1.1\r\n",
    b"host: x\r\n",
    b"content-length: 5\r\n",
    b"content-length: 99999999999999999999\r\n",
    b"transfer-encoding: chunked\r\n",
    b"authorization: Basic b3BlbmNvZGU6d3Jvbmc=\r\n",
    b"authorization: Basic \xff\xff\r\n",
    b"\r\n",
    b"ffffffffffffffff\r\n",
    b"\"Stop\"",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01",
];

fn bytes(random: &mut StdRng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.random_range(1..12) {
        match random.random_range(0..4) {
            0 => bytes.extend((0..random.random_range(1..200)).map(|_| random.random::<u8>())),
            _ => bytes.extend(PIECES[random.random_range(0..PIECES.len())]),
        }
    }
    bytes
}

/// Sends all, half-closes, and gives what came back.
async fn exchange(address: std::net::SocketAddr, sent: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    let talk = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(sent).await?;
        stream.shutdown().await?;
        stream.read_to_end(&mut answer).await
    };
    // A reset is an answer, too.
    let _ = within("end of a connection", talk).await;
    answer
}

#[tokio::test]
async fn bytes_that_are_no_requests_get_typed_answers_or_none_and_it_works_after_them() {
    let bench = Bench::new("1.18.33").await;
    let place = Place::with_script(&bench, &format!("{LISTENS}; exec sleep 600"));
    let program = place.start();
    let before = program.ready().await;
    let seed = 20_261_130;
    let mut random = StdRng::seed_from_u64(seed);
    let mut statuses = std::collections::BTreeMap::<String, usize>::new();
    let (scale, mut requests) = (Scale::current(), 0);
    for _ in 0..scale.pick(300, 10_000) {
        requests += 1;
        let sent = bytes(&mut random);
        let answer = exchange(program.control, &sent).await;
        let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
        assert!(line.is_empty() || line.starts_with("HTTP/1.1 4"), "seed {seed}: {sent:?}: {line}");
        *statuses.entry(line).or_default() += 1;
    }
    assert!(statuses.len() > 2, "{statuses:?}");
    scale.report("hostile_bytes_at_the_control_address", 0, &[("requests", requests)]);
    let long = [b"GET /live HTTP/1.1\r\nx: ".as_slice(), &vec![b'a'; 64 * 1024], b"\r\n\r\n"].concat();
    let answer = exchange(program.control, &long).await;
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431"));
    let after = program.link.state().borrow().clone();
    assert_eq!((after.boot, after.phase), (before.boot, ServePhase::Ready), "nobody could do anything");
    program.link.memory().await.unwrap();
    assert_eq!(program.stop().await, Some(0));
}

#[tokio::test]
async fn connections_that_say_nothing_are_bounded_and_make_room() {
    let bench = Bench::new("1.18.33").await;
    let place = Place::with_script(&bench, &format!("{LISTENS}; exec sleep 600"));
    let program = place.start();
    program.ready().await;
    let mut idle = JoinSet::new();
    for _ in 0..64 {
        let mut stream = TcpStream::connect(program.control).await.unwrap();
        idle.spawn(async move {
            let begun = tokio::time::Instant::now();
            let _ = stream.write_all(b"GET /st").await;
            let _ = timeout(Duration::from_secs(30), stream.read(&mut [0; 1024])).await;
            begun.elapsed()
        });
    }
    let longest = within("end of all", idle.join_all()).await.into_iter().max().unwrap();
    assert!(longest < Duration::from_secs(20), "{longest:?}");
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("http://{}/state", program.control);
    let answer =
        within("answer", client.get(url).basic_auth("opencode", Some(INTERNAL)).send()).await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(program.link.state().borrow().phase, ServePhase::Ready, "who was there before stays");
    assert_eq!(program.stop().await, Some(0));
}
