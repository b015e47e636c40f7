//! Which trace a request belongs to (W3C Trace Context). Reading and making it is pure.
//!
//! A caller may say so in `traceparent`; else the request begins one, whose id is the request's own. Calls to doors on
//! behalf of the request carry it on.

use std::future::Future;

use axum::http::HeaderMap;
use uuid::Uuid;

/// The header.
pub(crate) const TRACEPARENT: &str = "traceparent";

tokio::task_local! {
    static CURRENT: Trace;
}

/// A trace, and this request's place in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) id: u128,
    span: u64,
    sampled: bool,
}

impl Trace {
    /// Of a request with this id.
    pub(super) fn of(headers: &HeaderMap, request: Uuid) -> Self {
        let given = headers.get(TRACEPARENT).and_then(|value| value.to_str().ok()).and_then(parse);
        // The last half of a UUIDv7 is random, and never 0 for its variant bits.
        let span = request.as_u64_pair().1;
        let (id, sampled) = given.unwrap_or((request.as_u128(), false));
        Self { id, span, sampled }
    }

    /// For the header of a call on behalf of the request.
    pub(crate) fn to_header(self) -> String {
        format!("00-{:032x}-{:016x}-{:02x}", self.id, self.span, u8::from(self.sampled))
    }

    /// Runs a request's work in its trace.
    pub(super) async fn scope<F: Future>(self, work: F) -> F::Output {
        CURRENT.scope(self, work).await
    }

    /// The trace of the request that is being answered here.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.try_with(|trace| *trace).ok()
    }
}

/// Id of the trace, and whether it is recorded. A version above ours may have more fields.
fn parse(text: &str) -> Option<(u128, bool)> {
    let mut fields = text.trim().split('-');
    let (version, id, span, flags) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let hex = |field: &str, length: usize| {
        field.len() == length
            && field.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let sound = hex(version, 2) && version != "ff" && hex(id, 32) && hex(span, 16) && hex(flags, 2);
    if !sound || (version == "00" && fields.next().is_some()) {
        return None;
    }
    let (id, span) = (u128::from_str_radix(id, 16).ok()?, u64::from_str_radix(span, 16).ok()?);
    let sampled = u8::from_str_radix(flags, 16).ok()? & 1 == 1;
    (id != 0 && span != 0).then_some((id, sampled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_carried_on_under_a_span_of_its_own() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let mut headers = HeaderMap::new();
        headers.insert(TRACEPARENT, format!("00-{id}-00f067aa0ba902b7-01").parse().unwrap());
        let request = Uuid::now_v7();
        let carried = Trace::of(&headers, request).to_header();
        assert!(carried.starts_with(&format!("00-{id}-")) && carried.ends_with("-01"), "{carried}");
        assert!(!carried.contains("00f067aa0ba902b7"));
        let begun = Trace::of(&HeaderMap::new(), request).to_header();
        assert!(begun.starts_with(&format!("00-{}-", request.simple())), "{begun}");
        assert!(parse(&begun).is_some());
    }

    #[test]
    fn only_sound_headers_count() {
        let (id, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        assert!(parse(&format!("01-{id}-{span}-00-more")).is_some());
        for bad in [
            String::new(),
            "00".to_owned(),
            format!("00-{id}-{span}"),
            format!("ff-{id}-{span}-01"),
            format!("00-{id}-{span}-01-more"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{id}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", id.to_uppercase()),
            format!("00-{id}-{span}-1"),
            format!("00-+{}-{span}-01", &id[1..]),
        ] {
            assert_eq!(parse(&bad), None, "{bad}");
        }
    }
}
