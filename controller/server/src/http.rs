//! The HTTP API: routes, problem+json, and the OpenAPI document that describes both.

use std::{io, sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    extract::{self, DefaultBodyLimit},
    http::header,
    middleware,
    response::IntoResponse,
    routing::get,
    serve::ListenerExt,
};
use berth_wire::problem::ProblemType;
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{app::App, metrics::Metrics};

mod document;
mod events;
mod files;
mod guard;
mod messages;
mod problem;
mod sandboxes;
mod sessions;
#[cfg(test)]
mod tests;
pub(crate) mod trace;

pub(crate) use berth_wire::problem::error_chain;
use problem::{ApiError, BodyLimit};

type State = Arc<App>;

/// Longest wait for the store where somebody asks whether it answers.
const READY: Duration = Duration::from_secs(2);

fn api_router() -> OpenApiRouter<State> {
    OpenApiRouter::new()
        .routes(routes!(sandboxes::list_sandboxes))
        .routes(routes!(sandboxes::get_sandbox))
        .routes(routes!(sandboxes::list_models))
        .routes(routes!(sandboxes::list_agents))
        .routes(routes!(sessions::create_session, sessions::list_sessions))
        .routes(routes!(sessions::get_session, sessions::rename_session, sessions::delete_session))
        .routes(routes!(messages::list_turns))
        .routes(routes!(messages::get_turn))
        .routes(routes!(messages::retry_turn))
        .routes(routes!(messages::get_part))
        .routes(routes!(messages::cancel))
        .routes(routes!(messages::answer_permission))
        .routes(routes!(messages::answer_question))
        .routes(routes!(files::get_diff))
        .routes(routes!(files::list_files))
        .routes(routes!(files::get_file))
}

/// Routes whose bodies may hold files.
fn prompt_router() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(messages::post_message, messages::list_history))
}

fn stream_router() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(events::stream_events))
}

/// The OpenAPI document of this version.
pub fn openapi() -> utoipa::openapi::OpenApi {
    document::of([api_router(), prompt_router(), stream_router()].map(OpenApiRouter::into_openapi))
}

/// Bounds the bodies of these routes.
fn bodies(routes: OpenApiRouter<State>, limit: usize) -> Router<State> {
    let (routes, _) = routes.split_for_parts();
    routes.layer(DefaultBodyLimit::max(limit)).layer(Extension(BodyLimit(limit)))
}

fn router(app: &State, token: SecretString) -> Router {
    let limits = &app.limits;
    let api = bodies(api_router(), limits.body_bytes).merge(bodies(prompt_router(), limits.prompt_bytes));
    let (streams, _) = stream_router().split_for_parts();
    let bounded = api.layer(middleware::from_fn_with_state(Arc::clone(app), guard::bound_time));
    let protected =
        bounded.merge(streams).layer(middleware::from_fn_with_state(Arc::new(token), guard::require_token));
    let document = Arc::new(openapi().to_json().unwrap_or_default());
    let routes = protected
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(show_readiness))
        .route("/metrics", get(show_metrics))
        .route("/openapi.json", get(move || async move { problem::json_text(document.as_str().to_owned()) }))
        .fallback(|| async { ApiError::no_route() })
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        .with_state(Arc::clone(app));
    guarded(routes, app.metrics.clone())
}

/// Whether the store answers: without it the server can do nothing that callers want.
async fn show_readiness(extract::State(app): extract::State<State>) -> Result<&'static str, ApiError> {
    let error = match tokio::time::timeout(READY, app.check_store()).await {
        Ok(Ok(())) => return Ok("ok\n"),
        Ok(Err(error)) => error_chain(&error),
        Err(late) => late.to_string(),
    };
    tracing::warn!(error, "the store does not answer");
    Err(ApiError::new(
        ProblemType::StorageUnavailable,
        "the server's database does not answer; its log says more",
    ))
}

/// Counters for Prometheus; without a token, since they hold no content.
async fn show_metrics(extract::State(app): extract::State<State>) -> Result<impl IntoResponse, ApiError> {
    let text = app.metrics().await?;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text))
}

/// What every answer passes, those of unknown routes and of panics included.
fn guarded(routes: Router, metrics: Metrics) -> Router {
    routes
        .layer(middleware::from_fn(guard::check_origin))
        .layer(CatchPanicLayer::custom(guard::panicked))
        .layer(middleware::from_fn_with_state(metrics, guard::identify))
}

/// Serves until `shutdown`, then waits for open requests, at most the drain bound.
pub(crate) async fn serve(
    listener: TcpListener,
    app: State,
    token: SecretString,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let drain = app.limits.drain;
    let service = router(&app, token);
    // Frames are small, and each of them is wanted now: a client that has not yet acknowledged the one before it would
    // hold the next one back, for up to 40 ms.
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "a connection gathers small writes");
        }
    });
    let serving = axum::serve(listener, service).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    tokio::select! {
        served = serving.into_future() => served,
        () = async { shutdown.cancelled().await; tokio::time::sleep(drain).await } => {
            tracing::warn!("requests were still open at the end of the drain bound");
            Ok(())
        }
    }
}
