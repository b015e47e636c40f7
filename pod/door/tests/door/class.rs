//! Routes that are for nobody but the door, in every spelling that a real opencode takes for them.

use std::net::SocketAddr;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_wire::problem::ProblemType;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    real_opencode::Sandbox,
    rig::{INTERNAL, PASSWORD, problem, within},
};

/// Spellings of `POST /instance/dispose`: some that opencode takes, some that it does not.
const SPELLINGS: [&str; 24] = [
    "/instance/dispose",
    "//instance/dispose",
    "/instance//dispose",
    "/instance/dispose/",
    "/instance/dispose//",
    "/INSTANCE/Dispose",
    "/instance/%64ispose",
    "/%69nstance/dispose",
    "/instance/%44ispose",
    "/instance/dispose;a=b",
    "/instance/dispose?a=b",
    "/instance/dispose#a",
    "/instance%2fdispose",
    "/instance/dispose%2f",
    "/instance/dispose%3fa",
    "/instance/%2564ispose",
    "/x/../instance/dispose",
    "/./instance/./dispose",
    "/x/%2e%2e/instance/dispose",
    "/instance/dispose/.",
    "/instance\\dispose",
    "/instance/dispose%20",
    "/instance/dispose%00",
    "http://x/instance/dispose",
];

/// Sends a target as it stands and gives the answer.
async fn post(address: SocketAddr, password: &str, target: &str) -> String {
    let token = STANDARD.encode(format!("opencode:{password}"));
    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {token}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(head.as_bytes()).await.expect("the request is taken");
    let mut answer = Vec::new();
    within("answer", stream.read_to_end(&mut answer)).await.expect("an answer");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn no_spelling_of_a_refused_route_that_opencode_takes_passes_the_door() {
    let sandbox = Sandbox::start().await;
    let door = sandbox.door().await;
    let opencode = sandbox.supervisor.watch().borrow().address.expect("opencode listens");
    let (mut taken, mut passed) = (Vec::new(), Vec::new());
    for target in SPELLINGS {
        // opencode answers with its web page where it knows no route.
        let answer = post(opencode, INTERNAL, target).await;
        let through = post(door.address, PASSWORD, target).await;
        if answer.ends_with("true") {
            taken.push(target);
            if !through.starts_with("HTTP/1.1 403") {
                passed.push(target);
            }
        }
    }
    assert!(taken.len() >= 11, "{taken:?}");
    assert!(passed.is_empty(), "{passed:?}");
}

#[tokio::test]
async fn a_refused_route_says_what_to_do() {
    let sandbox = Sandbox::start().await;
    let door = sandbox.door().await;
    for path in ["/global/dispose", "/global/upgrade", "/instance/dispose"] {
        let refusal = problem(door.post(path).send().await.expect("an answer")).await;
        assert_eq!(refusal.problem_type().map(ProblemType::slug), Some("refused-route"), "{path}");
        assert!(refusal.detail.contains("manifest"), "{refusal}");
    }
}
