//! What the door makes of a request's head, put together for the fuzz target `door_request`. Nothing of the door uses
//! it. Pure.

use http::{HeaderValue, Request, Uri, header};

use crate::{
    auth::{Caller, Credentials, token},
    class::classify,
    events,
    fence::Stamp,
    proxy,
};

/// What was made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Examined {
    /// Whether its caller may pass.
    pub is_authenticated: bool,
    /// Path and query as opencode would get them.
    pub target: String,
    /// Whether opencode would find a token in its query.
    pub holds_token: bool,
    /// Whether opencode would be asked for the same path, of the same class.
    pub keeps_path: bool,
    /// Headers of the connection, or the caller's own credentials, that opencode would get.
    pub crossed: Vec<String>,
}

/// Reads a head, a line for method and target and one for each header, before a door with this password. `None` for
/// what no HTTP library lets through.
pub fn request(head: &str, password: &str) -> Option<Examined> {
    let mut lines = head.split('\n');
    let (method, target) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(target);
    for line in lines.take(128) {
        let (name, value) = line.split_once(':')?;
        request =
            request.header(name, HeaderValue::from_bytes(value.trim_matches([' ', '\t']).as_bytes()).ok()?);
    }
    let (parts, ()) = request.body(()).ok()?.into_parts();
    let caller = Credentials::new(&[password.into()]).caller(&parts.headers, parts.uri.query());
    let before = classify(&parts.method, parts.uri.path());
    // They read what comes from outside, too: none may panic.
    let _ = (events::cursor(&parts), Stamp::of(&parts.headers).is_ok());
    let (method, path) = (parts.method.clone(), parts.uri.path().to_owned());
    let upstream = HeaderValue::from_static("Basic upstream");
    let sent = proxy::outgoing(parts, ([127, 0, 0, 1], 4095).into(), &upstream, false);
    let target = sent.uri.to_string();
    // A target that is an authority alone has no path, and becomes the root.
    let read: Option<Uri> = target.parse().ok();
    let crossed = sent.headers.iter().filter(|(name, value)| match **name {
        header::CONNECTION | header::TRANSFER_ENCODING | header::UPGRADE => true,
        header::AUTHORIZATION => *value != upstream,
        _ => false,
    });
    Some(Examined {
        is_authenticated: caller == Caller::Authenticated,
        holds_token: sent.uri.query().and_then(token).is_some(),
        keeps_path: read.is_some_and(|read| read.path() == path || path.is_empty())
            && classify(&method, sent.uri.path()) == before,
        crossed: crossed.map(|(name, _)| name.to_string()).collect(),
        target,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_read_as_the_door_reads_it() {
        let token = "b3BlbmNvZGU6cA==";
        let head = format!("POST /session/a/message?x&auth_token={token}\nconnection: x-a\nx-a: 1");
        let seen = request(&head, "p").unwrap();
        assert!(seen.is_authenticated && seen.keeps_path && !seen.holds_token);
        assert_eq!((seen.target.as_str(), seen.crossed), ("/session/a/message?x", Vec::new()));
        let header = format!("GET /a\nauthorization: Basic {token}\ntransfer-encoding: chunked");
        assert!(request(&header, "p").unwrap().is_authenticated);
        assert!(!request(&header, "q").unwrap().is_authenticated);
        assert_eq!(request("nohead", "p"), None);
    }
}
