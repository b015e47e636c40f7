//! What the operator tells over HTTP: `/healthz` and `/readyz` for probes, `/metrics` for Prometheus. Without a token, since
//! it holds no names and no content. IO.

use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use berth_operator::{metrics::Metrics, pulse::Pulse};
use tokio::net::TcpListener;

/// Media type of the metrics.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Answers for as long as it is asked to.
pub(crate) async fn serve(listener: TcpListener, pulse: Pulse, metrics: Metrics) {
    if let Err(error) = axum::serve(listener, router(pulse, metrics)).await {
        tracing::error!(%error, "probes and metrics are not answered any more");
    }
}

fn router(pulse: Pulse, metrics: Metrics) -> Router {
    let ready = pulse.clone();
    Router::new()
        .route("/healthz", get(move || std::future::ready(told(pulse.is_alive(), "ok\n", "stuck\n"))))
        .route(
            "/readyz",
            get(move || {
                std::future::ready(told(ready.is_ready(), "ok\n", "the apiserver does not answer\n"))
            }),
        )
        .route("/metrics", get(move || std::future::ready(shown(&metrics))))
}

fn told(is_well: bool, well: &'static str, ill: &'static str) -> (StatusCode, &'static str) {
    if is_well { (StatusCode::OK, well) } else { (StatusCode::SERVICE_UNAVAILABLE, ill) }
}

fn shown(metrics: &Metrics) -> Response {
    match metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => {
            tracing::error!(%error, "the metrics cannot be written");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use http::Request;
    use tower::ServiceExt;

    use super::*;

    #[tokio::test]
    async fn probes_and_metrics_are_answered() {
        let router = router(Pulse::new(), Metrics::default());
        let ask = async |path: &str| {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            let response = router.clone().oneshot(request).await.unwrap();
            let status = response.status();
            let body = to_bytes(response.into_body(), 1_000_000).await.unwrap();
            (status, String::from_utf8(body.to_vec()).unwrap())
        };
        assert_eq!(ask("/healthz").await, (StatusCode::OK, "ok\n".to_owned()));
        let (status, why) = ask("/readyz").await;
        assert_eq!((status, why.trim()), (StatusCode::SERVICE_UNAVAILABLE, "the apiserver does not answer"));
        let (status, text) = ask("/metrics").await;
        assert!(status.is_success() && text.contains("berth_operator_leading 0"), "{text}");
        assert_eq!(ask("/secrets").await.0, StatusCode::NOT_FOUND);
    }
}
