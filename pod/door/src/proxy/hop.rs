//! What belongs to one hop and must not cross it: headers of the connection, `Host`, and the caller's credentials. Pure.

use std::net::SocketAddr;

use berth_wire::admission::{EPOCH_HEADER, FENCE_HEADER, KEY_HEADER};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, Uri, Version, header, request::Parts};
use percent_encoding::percent_decode;

use crate::{
    auth::{TOKEN_PARAMETER, without_token},
    refusal::DoorBody,
    upstream,
};

/// Headers that belong to one connection (RFC 9110, section 7.6.1, and older practice). `Trailer` is none: it tells
/// the next hop which fields come after the body.
const HOP_BY_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// The request's head as opencode gets it.
pub(crate) fn outgoing(
    parts: Parts,
    address: SocketAddr,
    authorization: &HeaderValue,
    websocket: bool,
) -> Parts {
    let Parts { method, uri, mut headers, .. } = parts;
    let takes_trailers = options(&headers, &header::TE).any(|option| option.eq_ignore_ascii_case("trailers"));
    remove_hop_by_hop(&mut headers);
    if takes_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    // The door itself says that it goes on, when it begins to read the body.
    headers.remove(header::EXPECT);
    if websocket {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    }
    for own in [EPOCH_HEADER, FENCE_HEADER, KEY_HEADER] {
        headers.remove(own);
    }
    headers.insert(header::HOST, upstream::host(address));
    headers.insert(header::AUTHORIZATION, authorization.clone());
    if headers.get(header::REFERER).is_some_and(names_token) {
        headers.remove(header::REFERER);
    }
    let (mut outgoing, ()) = Request::new(()).into_parts();
    outgoing.method = method;
    outgoing.uri = outgoing_uri(&uri);
    outgoing.headers = headers;
    outgoing
}

/// Path and query without the token. Every part comes from a URI that was parsed, so it parses again.
pub(super) fn outgoing_uri(uri: &Uri) -> Uri {
    let target = match uri.query().map(without_token) {
        Some(Some(query)) => format!("{}?{query}", uri.path()),
        Some(None) | None => uri.path().to_owned(),
    };
    target.parse().unwrap_or_else(|_| Uri::from_static("/"))
}

fn names_token(value: &HeaderValue) -> bool {
    percent_decode(value.as_bytes()).decode_utf8_lossy().contains(TOKEN_PARAMETER)
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = connection_options(headers).filter_map(|name| name.parse().ok()).collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    options(headers, &header::CONNECTION)
}

/// The members of a list in all headers of this name.
fn options<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> + use<'a> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

pub(super) fn is_websocket(headers: &HeaderMap) -> bool {
    let upgrades =
        headers.get(header::UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    upgrades && connection_options(headers).any(|option| option.eq_ignore_ascii_case("upgrade"))
}

/// An answer without what belongs to the hop that it came by.
pub(super) fn passed(mut answer: Response<DoorBody>) -> Response<DoorBody> {
    remove_hop_by_hop(answer.headers_mut());
    *answer.version_mut() = Version::HTTP_11;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(request: Request<()>) -> Parts {
        let (parts, ()) = request.into_parts();
        let websocket = is_websocket(&parts.headers);
        outgoing(
            parts,
            "127.0.0.1:4095".parse().unwrap(),
            &HeaderValue::from_static("Basic internal"),
            websocket,
        )
    }

    #[test]
    fn what_belongs_to_the_hop_stays_and_the_rest_passes() {
        let request = Request::post("/session/a%2Fb?x=%20&auth_token=c2VjcmV0&y=+")
            .header("host", "door.example:4096")
            .header("authorization", "Basic c2VjcmV0")
            .header("connection", "keep-alive, X-Hop")
            .header("x-hop", "1")
            .header("keep-alive", "timeout=5")
            .header("te", "gzip;q=0.5")
            .header("expect", "100-continue")
            .header("upgrade", "h2c")
            .header("referer", "http://door.example/?auth_token=c2VjcmV0")
            .header("accept-encoding", "gzip")
            .header("x-opencode-directory", "/w")
            .header("set-cookie", "a")
            .header("set-cookie", "b");
        let parts = pass(request.body(()).unwrap());
        assert_eq!(parts.uri.to_string(), "/session/a%2Fb?x=%20&y=+");
        assert_eq!(parts.headers["host"], "127.0.0.1:4095");
        assert_eq!(parts.headers["authorization"], "Basic internal");
        assert_eq!(parts.headers["accept-encoding"], "gzip");
        assert_eq!(parts.headers["x-opencode-directory"], "/w");
        assert_eq!(parts.headers.get_all("set-cookie").iter().count(), 2);
        for gone in ["connection", "x-hop", "keep-alive", "te", "upgrade", "referer", "expect"] {
            assert!(!parts.headers.contains_key(gone), "{gone}");
        }
    }

    #[test]
    fn trailers_are_agreed_on_and_a_token_in_disguise_goes_too() {
        let request = Request::post("/a")
            .header("te", "deflate, Trailers")
            .header("trailer", "x-sum")
            .header("referer", "http://door.example/?auth%5Ftoken=c2VjcmV0");
        let parts = pass(request.body(()).unwrap());
        assert_eq!(parts.headers["te"], "trailers");
        assert_eq!(parts.headers["trailer"], "x-sum");
        assert!(!parts.headers.contains_key("referer"));
    }

    #[test]
    fn a_websocket_is_asked_for_again_and_only_the_token_leaves_the_target() {
        let request = Request::get("http://door/pty/1/connect?auth_token=x")
            .header("connection", "Upgrade")
            .header("upgrade", "WebSocket")
            .header("sec-websocket-key", "k");
        let parts = pass(request.body(()).unwrap());
        assert_eq!(parts.uri.to_string(), "/pty/1/connect");
        assert_eq!(parts.headers["upgrade"], "websocket");
        assert_eq!(parts.headers["connection"], "upgrade");
        assert_eq!(parts.headers["sec-websocket-key"], "k");
        for target in ["/", "/?", "/a?b", "/a?b=c&d", "*"] {
            assert_eq!(outgoing_uri(&target.parse().unwrap()).to_string(), target, "{target}");
        }
    }
}
