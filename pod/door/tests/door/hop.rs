//! What crosses the door and what belongs to one of its sides, byte by byte.

use std::time::Duration;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    raw::{Raw, read_head, value},
    rig::within,
};

/// A failure that the door reads before it passes it on.
const BROKEN: &str = "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nx-kept: 1\r\ncontent-length: 78\r\n\r\n\
    { \"name\":\"ConfigJsonError\", \"data\":{\"path\":\"/nowhere/opencode.json\",\"more\":7}}";

/// Answers by path with fixed bytes, and keeps the connection.
async fn answer(head: String, mut socket: TcpStream) {
    let path = head.split([' ', '?']).nth(1).unwrap_or_default().to_owned();
    let answer: &[u8] = match path.as_str() {
        "/hop" => b"HTTP/1.1 200 OK\r\nconnection: close, x-mine\r\nkeep-alive: timeout=5\r\nx-mine: 1\r\nproxy-authenticate: Basic\r\nx-kept: 1\r\nset-cookie: a=1\r\nset-cookie: b=2\r\ncontent-length: 2\r\n\r\nok",
        "/gzip" => b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\n\x1f\x8b\x00\xff\x01",
        "/head" => b"HTTP/1.1 200 OK\r\ncontent-length: 1234567\r\ncontent-type: x/y\r\n\r\n",
        "/none" => b"HTTP/1.1 204 No Content\r\nx-kept: 1\r\n\r\n",
        "/same" => b"HTTP/1.1 304 Not Modified\r\netag: \"e\"\r\n\r\n",
        "/early" => b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "/trailers" => b"HTTP/1.1 200 OK\r\ntrailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n",
        "/old" => b"HTTP/1.0 200 OK\r\n\r\nto the end",
        "/upgrade" => b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nsec-websocket-accept: s\r\n\r\n",
        "/broken" => BROKEN.as_bytes(),
        "/stands-still" => b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{",
        _ => b"",
    };
    if path == "/echo" {
        return echo(&head, socket).await;
    }
    socket.write_all(answer).await.expect("the door reads");
    if path == "/old" {
        return;
    }
    // The upgraded connection echoes; on the others nothing more comes.
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = socket.read(&mut buffer).await {
        socket.write_all(&buffer[..count]).await.expect("the door reads");
    }
}

/// Answers with the request as it came, its body included.
async fn echo(head: &str, mut socket: TcpStream) {
    let mut seen = head.as_bytes().to_vec();
    if let Some(length) = value(head, "content-length") {
        let mut body = vec![0; length.parse().expect("a number")];
        socket.read_exact(&mut body).await.expect("the whole body");
        seen.extend(body);
    } else if value(head, "transfer-encoding").is_some() {
        while !seen.ends_with(b"0\r\n\r\n") && !seen.ends_with(b"x-sum: 7\r\n\r\n") {
            seen.push(socket.read_u8().await.expect("more of the body"));
        }
    }
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", seen.len());
    socket.write_all(answer.as_bytes()).await.expect("the door reads");
    socket.write_all(&seen).await.expect("the door reads");
}

#[tokio::test]
async fn answers_cross_without_what_belongs_to_the_hop_and_the_connection_lives_on() {
    let upstream = Raw::start(answer);
    let door = upstream.door(|_| {}).await;
    let mut client = door.connect().await;

    client.request("GET /hop", "").await;
    let head = client.head().await;
    assert_eq!(client.bytes(2).await, b"ok");
    for gone in ["connection", "keep-alive", "x-mine", "proxy-authenticate"] {
        assert_eq!(value(&head, gone), None, "{head}");
    }
    assert_eq!(value(&head, "x-kept"), Some("1"));
    assert!(head.contains("set-cookie: a=1\r\n") && head.contains("set-cookie: b=2\r\n"), "{head}");

    client.request("GET /gzip", "accept-encoding: gzip\r\n").await;
    let head = client.head().await;
    assert_eq!((value(&head, "content-encoding"), value(&head, "content-length")), (Some("gzip"), Some("5")));
    assert_eq!(client.bytes(5).await, b"\x1f\x8b\x00\xff\x01");

    client.request("HEAD /head", "").await;
    let head = client.head().await;
    assert_eq!(
        (value(&head, "content-length"), value(&head, "content-type")),
        (Some("1234567"), Some("x/y"))
    );

    for (line, status, kept) in
        [("GET /none", "HTTP/1.1 204", ("x-kept", "1")), ("GET /same", "HTTP/1.1 304", ("etag", "\"e\""))]
    {
        client.request(line, "").await;
        let head = client.head().await;
        assert!(head.starts_with(status), "{head}");
        assert_eq!(value(&head, kept.0), Some(kept.1));
        assert_eq!(value(&head, "transfer-encoding"), None, "{head}");
    }

    client.request("GET /early", "").await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 200"), "interim answers end at the door: {head}");
    assert_eq!(client.bytes(2).await, b"ok");

    client.request("GET /trailers", "te: trailers\r\n").await;
    let head = client.head().await;
    assert_eq!(
        (value(&head, "trailer"), value(&head, "transfer-encoding")),
        (Some("x-sum"), Some("chunked"))
    );
    let expected = b"2\r\nok\r\n0\r\nx-sum: 7\r\n\r\n";
    assert_eq!(
        String::from_utf8_lossy(&client.bytes(expected.len()).await),
        String::from_utf8_lossy(expected)
    );

    client.request("GET /old", "").await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let expected = b"A\r\nto the end\r\n0\r\n\r\n";
    assert_eq!(client.bytes(expected.len()).await, expected);
    door.door.stop().await;
}

#[tokio::test]
async fn a_failure_that_the_door_reads_crosses_as_it_is() {
    let upstream = Raw::start(answer);
    let door = upstream.door(|_| {}).await;
    let (_, body) = BROKEN.split_once("\r\n\r\n").expect("a body");
    for line in ["GET /broken", "POST /broken"] {
        let mut client = door.connect().await;
        for _ in 0..2 {
            client.request(line, "content-length: 0\r\n").await;
            let head = client.head().await;
            assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
            assert_eq!((value(&head, "x-kept"), value(&head, "content-length")), (Some("1"), Some("78")));
            assert_eq!(client.bytes(body.len()).await, body.as_bytes());
        }
        client.request(&line.replace("broken", "stands-still"), "content-length: 0\r\n").await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 502"), "nobody waits for its rest: {head}");
    }
    door.door.stop().await;
}

#[tokio::test]
async fn requests_cross_without_what_belongs_to_the_hop() {
    let upstream = Raw::start(answer);
    let door = upstream.door(|_| {}).await;
    let mut client = door.connect().await;

    client
        .request(
            "POST http://elsewhere.example:1/echo?a=%2F",
            "content-length: 2\r\nconnection: keep-alive, X-Mine\r\nx-mine: 1\r\nkeep-alive: 5\r\ntransfer-option: 1\r\n",
        )
        .await;
    client.send("hi").await;
    let head = client.head().await;
    let seen = client.bytes(value(&head, "content-length").unwrap().parse().unwrap()).await;
    let seen = String::from_utf8(seen).unwrap();
    assert!(seen.starts_with("POST /echo?a=%2F HTTP/1.1\r\n"), "{seen}");
    assert!(seen.ends_with("\r\n\r\nhi"), "{seen}");
    assert_eq!(value(&seen, "host"), Some(upstream.address.to_string().as_str()));
    assert_eq!(value(&seen, "content-length"), Some("2"));
    for gone in ["connection", "x-mine", "keep-alive"] {
        assert_eq!(value(&seen, gone), None, "{seen}");
    }

    client.request("POST /echo", "transfer-encoding: chunked\r\ntrailer: x-sum\r\n").await;
    client.send("2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n").await;
    let head = client.head().await;
    let seen = client.bytes(value(&head, "content-length").unwrap().parse().unwrap()).await;
    let seen = String::from_utf8(seen).unwrap();
    assert!(seen.ends_with("\r\n\r\n2\r\nhi\r\n0\r\nx-sum: 7\r\n\r\n"), "{seen}");
    assert_eq!(value(&seen, "content-length"), None);
    door.door.stop().await;
}

#[tokio::test]
async fn an_upload_goes_on_when_it_is_read_and_is_refused_before_it_is_sent() {
    const SIZE: usize = 5 * 1024 * 1024;
    let upstream = Raw::start(answer);
    let door = upstream.door(|_| {}).await;
    let expects = format!("content-length: {SIZE}\r\nexpect: 100-continue\r\n");
    let mut client = door.connect().await;
    client.request("POST /echo", &expects).await;
    assert_eq!(client.head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send(vec![b'x'; SIZE]).await;
    let head = client.head().await;
    let seen = client.bytes(value(&head, "content-length").unwrap().parse().unwrap()).await;
    assert!(seen.len() > SIZE && seen.ends_with(b"xxxx"));
    assert!(!String::from_utf8_lossy(&seen[..400]).contains("expect"));

    let mut client = door.connect().await;
    client.send(format!("POST /echo HTTP/1.1\r\nhost: door\r\n{expects}\r\n")).await;
    assert!(client.head().await.starts_with("HTTP/1.1 401"));
    let mut client = door.connect().await;
    client.request("POST /instance/dispose", &expects).await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 403") || head.starts_with("HTTP/1.1 405"), "{head}");

    // A client that does not ask sends all of it, and still reads why it was refused.
    let mut client = door.connect().await;
    client.send(format!("POST /echo HTTP/1.1\r\nhost: door\r\ncontent-length: {SIZE}\r\n\r\n")).await;
    client.send(vec![b'x'; SIZE]).await;
    assert!(client.head().await.starts_with("HTTP/1.1 401"));
    door.door.stop().await;
}

#[tokio::test]
async fn an_upgrade_crosses_in_a_list_of_options() {
    let upstream = Raw::start(answer);
    let door = upstream.door(|_| {}).await;
    let mut client = door.connect().await;
    let headers = "connection: keep-alive, Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: k\r\n";
    client.request("GET /upgrade", headers).await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert_eq!(value(&head, "sec-websocket-accept"), Some("s"));
    client.send([0, 1, 2, 255]).await;
    assert_eq!(client.bytes(4).await, [0, 1, 2, 255]);
    let seen = upstream.take_heads().remove(0);
    assert_eq!((value(&seen, "connection"), value(&seen, "upgrade")), (Some("upgrade"), Some("websocket")));
    door.door.stop().await;
}

#[tokio::test]
async fn an_upload_that_stands_still_is_cut_and_a_download_is_not() {
    let slow = |head: String, mut socket: TcpStream| async move {
        if head.starts_with("GET") {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n1";
            socket.write_all(head.as_bytes()).await.expect("the door reads");
            tokio::time::sleep(Duration::from_secs(1)).await;
            let _ = socket.write_all(b"2").await;
        }
        read_head(&mut socket).await;
    };
    let upstream = Raw::start(slow);
    let door = upstream.door(|config| config.upload_idle = Duration::from_millis(300)).await;
    let mut client = door.connect().await;
    client.request("POST /slow", "content-length: 10\r\n").await;
    client.send("half").await;
    let answer = client.rest().await;
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("problems/request-timeout"), "{answer}");
    let mut client = door.connect().await;
    client.request("GET /slow", "").await;
    client.head().await;
    assert_eq!(client.bytes(2).await, b"12");
    let ends = async {
        while upstream.open.load(std::sync::atomic::Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    };
    within("end of both upstream", ends).await;
    door.door.stop().await;
}

#[tokio::test]
async fn methods_that_are_no_requests_for_opencode_end_at_the_door() {
    let upstream = Raw::start(answer);
    let door = upstream.door(|_| {}).await;
    for line in ["TRACE /hop", "CONNECT other.example:80"] {
        let mut client = door.connect().await;
        client.request(line, "").await;
        let head = client.head().await;
        assert!(head.starts_with("HTTP/1.1 405"), "{head}");
    }
    assert_eq!(upstream.take_heads(), Vec::<String>::new());
    door.door.stop().await;
}

#[tokio::test]
async fn a_preflight_crosses_without_credentials_and_takes_none_along() {
    let preflight = |_: String, mut socket: TcpStream| async move {
        let answer = "HTTP/1.1 204 No Content\r\naccess-control-allow-origin: http://localhost:1\r\n\r\n";
        socket.write_all(answer.as_bytes()).await.expect("the door reads");
    };
    let upstream = Raw::start(preflight);
    let door = upstream.door(|_| {}).await;
    let mut client = door.connect().await;
    let headers = "origin: http://localhost:1\r\naccess-control-request-method: POST\r\nx-other: 1\r\n\r\n";
    client.send(format!("OPTIONS /session?a=1 HTTP/1.1\r\nhost: door\r\n{headers}")).await;
    let head = client.head().await;
    assert!(head.starts_with("HTTP/1.1 204"), "{head}");
    assert_eq!(value(&head, "access-control-allow-origin"), Some("http://localhost:1"));
    let seen = upstream.take_heads().remove(0);
    assert!(seen.starts_with("OPTIONS /session?a=1 "), "{seen}");
    assert_eq!(value(&seen, "access-control-request-method"), Some("POST"));
    for gone in ["authorization", "x-other"] {
        assert_eq!(value(&seen, gone), None, "{seen}");
    }
    door.door.stop().await;
}
