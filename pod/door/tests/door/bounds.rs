//! What nobody can take from the others: places, heads, time.

use std::{sync::atomic::Ordering, time::Duration};

use berth_door::Metrics;
use berth_testkit::Scale;
use prometheus_client::registry::Registry;
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    raw::{Raw, authorization, read_head},
    rig::{client, until, within},
};

async fn ok(head: String, mut socket: TcpStream) {
    if head.starts_with("GET /flood") {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        while socket.write_all(&[b'x'; 4096]).await.is_ok() {}
        return;
    }
    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.expect("the door reads");
    read_head(&mut socket).await;
}

#[tokio::test]
async fn who_has_the_password_gets_in_though_every_place_is_taken_by_those_who_have_not() {
    let places = Scale::current().pick(256, 1024);
    let upstream = Raw::start(ok);
    let door = upstream.door(|config| config.connections = places).await;
    let mut guests = Vec::new();
    for n in 0..places * 2 {
        let mut guest = door.connect().await;
        if n % 3 == 1 {
            guest.send("GET /doc HT").await;
        }
        guests.push(guest);
    }
    let mut known = door.connect().await;
    for _ in 0..3 {
        known.request("GET /a", "").await;
        assert!(known.head().await.starts_with("HTTP/1.1 200"));
        known.bytes(2).await;
        // More guests come, and the one who is known stays.
        for _ in 0..places {
            guests.push(door.connect().await);
        }
    }
    assert!(door.door.get("/a").send().await.unwrap().status().is_success());
    door.door.stop().await;
}

#[tokio::test]
async fn guests_go_soon_and_who_is_known_stays() {
    let upstream = Raw::start(ok);
    let door = upstream.door(|config| config.guest_wait = Duration::from_millis(300)).await;
    let mut silent = door.connect().await;
    let mut slow = door.connect().await;
    let mut wrong = door.connect().await;
    let mut known = door.connect().await;
    known.request("GET /a", "").await;
    known.head().await;
    known.bytes(2).await;
    wrong.send("GET /a HTTP/1.1\r\nhost: x\r\nauthorization: Basic eDp5\r\n\r\n").await;
    assert!(wrong.head().await.starts_with("HTTP/1.1 401"));
    for byte in b"GET / HTTP" {
        if slow.0.write_all(&[*byte]).await.is_err() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(silent.rest().await, "");
    slow.rest().await;
    wrong.rest().await;
    known.request("GET /a", "").await;
    assert!(known.head().await.starts_with("HTTP/1.1 200"));
    door.door.stop().await;
}

#[tokio::test]
async fn heads_are_bounded_in_bytes_and_time() {
    let upstream = Raw::start(ok);
    let door = upstream.door(|config| config.head_wait = Duration::from_millis(300)).await;
    let mut long = door.connect().await;
    long.request("GET /a", &format!("x-long: {}\r\n", "x".repeat(1 << 20))).await;
    let head = long.head().await;
    assert!(head.starts_with("HTTP/1.1 431"), "{head}");
    let mut target = door.connect().await;
    target.request(&format!("GET /{}", "x".repeat(1 << 20)), "").await;
    let head = target.head().await;
    assert!(head.starts_with("HTTP/1.1 431") || head.starts_with("HTTP/1.1 414"), "{head}");
    let mut slow = door.connect().await;
    slow.request("GET /a", "").await;
    slow.head().await;
    slow.bytes(2).await;
    slow.send(format!("GET /a HTTP/1.1\r\n{}", authorization())).await;
    slow.rest().await;
    assert_eq!(upstream.take_heads().len(), 1);
    assert!(client().get(door.door.url("/doc")).send().await.unwrap().status().is_success());
    door.door.stop().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_cut_and_its_upstream_is_free() {
    let upstream = Raw::start(ok);
    let door = upstream.door(|config| config.write_wait = Duration::from_millis(300)).await;
    let mut client = door.connect().await;
    client.request("GET /flood", "").await;
    until("flood", || upstream.open.load(Ordering::SeqCst) == 1).await;
    until("end of the flood", || upstream.open.load(Ordering::SeqCst) == 0).await;
    within("end of the connection", client.rest()).await;
    door.door.stop().await;
}

#[tokio::test]
async fn a_tunnel_keeps_its_place() {
    let upstream = Raw::start(|_, mut socket| async move {
        let answer = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n";
        let _ = socket.write_all(answer.as_bytes()).await;
        // To the tunnel's end.
        read_head(&mut socket).await;
    });
    let mut registry = Registry::default();
    let metrics = Metrics::register(&mut registry);
    let counted = metrics.clone();
    let door = upstream
        .door(move |config| {
            config.connections = 2;
            config.metrics = counted;
        })
        .await;
    let open = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("text");
        let line = text.lines().find_map(|line| line.strip_prefix("berth_door_connections "));
        line.expect("the gauge").parse::<i64>().expect("a number")
    };
    let mut tunnels = Vec::new();
    for _ in 0..2 {
        let mut tunnel = door.connect().await;
        tunnel.request("GET /pty/1/connect", "connection: upgrade\r\nupgrade: websocket\r\n").await;
        assert!(tunnel.head().await.starts_with("HTTP/1.1 101"));
        tunnels.push(tunnel);
    }
    until("two connections", || open() == 2).await;
    let mut third = door.connect().await;
    assert_eq!(third.rest().await, "", "both places are taken");
    tunnels.pop();
    until("room", || open() == 1).await;
    let mut fourth = door.connect().await;
    fourth.send("GET /doc HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(fourth.head().await.starts_with("HTTP/1.1 200"));
    door.door.stop().await;
    assert_eq!(open(), 0);
}
