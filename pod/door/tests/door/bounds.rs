//! What nobody can take from the others: places, heads, time.

use std::{sync::atomic::Ordering, time::Duration};

use berth_testkit::Scale;
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
