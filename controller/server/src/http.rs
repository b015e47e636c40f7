//! The HTTP API: routes, problem+json, and the OpenAPI document that describes both.

use std::{io, sync::Arc};

use axum::{Router, extract::DefaultBodyLimit, middleware, routing::get};
use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::app::App;

mod events;
mod guard;
mod messages;
mod problem;

mod sandboxes;
mod sessions;
#[cfg(test)]
mod tests;

use problem::ApiError;
pub(crate) use problem::error_chain;

type State = Arc<App>;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Berth",
        description = "Durable sessions of coding agents. Errors are problem+json (RFC 9457) with stable types.",
        license(name = "Apache-2.0", identifier = "Apache-2.0")
    ),
    components(schemas(berth_wire::event::SessionEventSchema, berth_wire::problem::Problem)),
    modifiers(&Bearer),
    security(("bearer" = []))
)]
struct Document;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = SecurityScheme::Http(HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build());
        document.components.get_or_insert_default().add_security_scheme("bearer", scheme);
    }
}

fn api_router() -> OpenApiRouter<State> {
    OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(sandboxes::list_sandboxes))
        .routes(routes!(sandboxes::get_sandbox))
        .routes(routes!(sessions::create_session, sessions::list_sessions))
        .routes(routes!(sessions::get_session, sessions::rename_session, sessions::delete_session))
        .routes(routes!(messages::post_message, messages::list_history))
        .routes(routes!(messages::list_turns))
        .routes(routes!(messages::get_turn))
        .routes(routes!(messages::cancel))
        .routes(routes!(messages::answer_permission))
        .routes(routes!(messages::answer_question))
}

fn stream_router() -> OpenApiRouter<State> {
    OpenApiRouter::new().routes(routes!(events::stream_events))
}

/// The OpenAPI document of this version.
pub fn openapi() -> utoipa::openapi::OpenApi {
    let mut document = api_router().into_openapi();
    document.merge(stream_router().into_openapi());
    document
}

fn router(app: &State, token: SecretString) -> Router {
    let (api, _) = api_router().split_for_parts();
    let (streams, _) = stream_router().split_for_parts();
    let bounded = api.layer(middleware::from_fn_with_state(Arc::clone(app), guard::bound_time));
    let protected =
        bounded.merge(streams).layer(middleware::from_fn_with_state(Arc::new(token), guard::require_token));
    let document = Arc::new(openapi().to_json().unwrap_or_default());
    let routes = protected
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { "ok\n" }))
        .route("/openapi.json", get(move || async move { problem::json_text(document.as_str().to_owned()) }))
        .fallback(|| async { ApiError::no_route() })
        .method_not_allowed_fallback(|| async { ApiError::method_not_allowed() })
        .layer(DefaultBodyLimit::max(app.limits.body_bytes))
        .with_state(Arc::clone(app));
    guarded(routes)
}

/// What every answer passes, those of unknown routes and of panics included.
fn guarded(routes: Router) -> Router {
    routes
        .layer(middleware::from_fn(guard::check_origin))
        .layer(CatchPanicLayer::custom(guard::panicked))
        .layer(middleware::from_fn(guard::identify))
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
    let serving = axum::serve(listener, service).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    tokio::select! {
        served = serving.into_future() => served,
        () = async { shutdown.cancelled().await; tokio::time::sleep(drain).await } => {
            tracing::warn!("requests were still open at the end of the drain bound");
            Ok(())
        }
    }
}
