//! `GET /doc`: a cheap sign of readiness for anonymous probes, opencode's own document for callers. IO.
//!
//! opencode's first `/doc` blocks its event loop for 1 to 3 s and costs it 100 MB (measured on opencode 1.18.33), so
//! it is asked for when a caller wants it, and once per run of opencode.

use std::time::Duration;

use berth_wire::problem::ProblemType;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use tokio::{
    sync::Mutex,
    time::{Instant, timeout},
};

use crate::upstream;
use crate::{
    Door,
    passage::Passage,
    proxy::{self, Way},
    refusal::{BodyError, DoorBody, full, json, refuse},
};

/// Longest document that is kept; opencode 1.18.33's has 1 MB.
const DOCUMENT_MAX: usize = 32 * 1024 * 1024;

/// Bound on opencode's answer.
const FETCH_BOUND: Duration = Duration::from_secs(30);

/// The document of one run of opencode.
#[derive(Debug, Default)]
pub(crate) struct Cache(Mutex<Option<Cached>>);

#[derive(Debug, Clone)]
struct Cached {
    boot_id: String,
    content_type: HeaderValue,
    bytes: Bytes,
}

#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("it cannot be asked")]
    Upstream(#[from] upstream::UpstreamError),
    #[error("it answered with status {0}")]
    Status(StatusCode),
    #[error("its answer cannot be read")]
    Body(#[from] BodyError),
    #[error("it did not answer in time")]
    Timeout(#[from] tokio::time::error::Elapsed),
}

/// Answers an anonymous probe at once: 200 while requests pass, a 503 problem otherwise.
pub(crate) fn probe(door: &Door) -> Response<DoorBody> {
    let passage = door.passage.borrow().clone();
    match passage {
        Passage::Open { .. } => {
            let version = door.serve.borrow().version.clone();
            json(&serde_json::json!({"status": "ready", "version": version}))
        }
        Passage::Starting | Passage::Wedged | Passage::Unsupported(_) | Passage::Stopped => {
            proxy::refuse_anonymous(door, &passage)
        }
    }
}

/// Answers a caller with opencode's document.
pub(crate) async fn serve(door: &Door) -> Result<Response<DoorBody>, Response<DoorBody>> {
    let way = proxy::way(door, Instant::now() + door.config.start_wait).await?;
    let cached = cached(door, &way).await.map_err(|error| {
        let error: &dyn std::error::Error = &error;
        tracing::warn!(error, "opencode's document cannot be had");
        refuse(ProblemType::BadGateway, "opencode did not give its document.")
    })?;
    let mut response = Response::new(full(cached.bytes));
    response.headers_mut().insert(header::CONTENT_TYPE, cached.content_type);
    Ok(response)
}

/// The document of this run; callers that come together wait for one fetch.
async fn cached(door: &Door, way: &Way) -> Result<Cached, FetchError> {
    let mut cache = timeout(FETCH_BOUND, door.document.0.lock()).await?;
    match &*cache {
        Some(cached) if cached.boot_id == way.boot_id => Ok(cached.clone()),
        _ => {
            let fetched = timeout(FETCH_BOUND, fetch(door, way)).await??;
            *cache = Some(fetched.clone());
            Ok(fetched)
        }
    }
}

async fn fetch(door: &Door, way: &Way) -> Result<Cached, FetchError> {
    let request = upstream::get("/doc", way.address, &door.upstream.get());
    let response = upstream::send(way.address, request, &door.tracker).await?;
    if response.status() != StatusCode::OK {
        return Err(FetchError::Status(response.status()));
    }
    let content_type = response.headers().get(header::CONTENT_TYPE).cloned();
    let bytes = Limited::new(response.into_body(), DOCUMENT_MAX).collect().await?.to_bytes();
    let content_type = content_type.unwrap_or(HeaderValue::from_static("application/json"));
    Ok(Cached { boot_id: way.boot_id.clone(), content_type, bytes })
}
