//! `/v1/sandboxes/{namespace}/{name}/sessions` and `/v1/sessions/{id}`

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use berth_wire::{
    api::{CreateSession, Page, RenameSession, Session, SessionFilter},
    problem::Problem,
};
use uuid::Uuid;

use super::problem::{ApiError, JsonBody, Parameters, Segments};

/// Create a session. Nothing happens in the sandbox before the first prompt.
#[utoipa::path(post, path = "/v1/sandboxes/{namespace}/{name}/sessions", tag = "sessions",
    params(("namespace" = String, Path), ("name" = String, Path)), request_body = CreateSession,
    responses((status = 201, body = Session), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem), (status = 413, body = Problem), (status = 415, body = Problem),
        (status = 422, body = Problem)))]
pub(super) async fn create_session(
    State(app): State<super::State>,
    Segments((namespace, name)): Segments<(String, String)>,
    JsonBody(body): JsonBody<CreateSession>,
) -> Result<impl IntoResponse, ApiError> {
    let session = app.create_session(&namespace, &name, body).await?;
    let location = format!("/v1/sessions/{}", session.id);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(session)))
}

/// List a sandbox's sessions, newest first. A session keeps its place in the list, whatever happens in it.
#[utoipa::path(get, path = "/v1/sandboxes/{namespace}/{name}/sessions", tag = "sessions",
    params(("namespace" = String, Path), ("name" = String, Path), SessionFilter),
    responses((status = 200, body = Page<Session>), (status = 400, body = Problem),
        (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn list_sessions(
    State(app): State<super::State>,
    Segments((namespace, name)): Segments<(String, String)>,
    Parameters(filter): Parameters<SessionFilter>,
) -> Result<Json<Page<Session>>, ApiError> {
    Ok(Json(app.list_sessions(&namespace, &name, filter).await?))
}

/// One session.
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions", params(("id" = Uuid, Path)),
    responses((status = 200, body = Session), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem)))]
pub(super) async fn get_session(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
) -> Result<Json<Session>, ApiError> {
    Ok(Json(app.session(id).await?))
}

/// Give a session a title of your own; opencode does not overwrite it.
#[utoipa::path(patch, path = "/v1/sessions/{id}", tag = "sessions", params(("id" = Uuid, Path)),
    request_body = RenameSession,
    responses((status = 200, body = Session), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem), (status = 413, body = Problem), (status = 415, body = Problem),
        (status = 422, body = Problem)))]
pub(super) async fn rename_session(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
    JsonBody(body): JsonBody<RenameSession>,
) -> Result<Json<Session>, ApiError> {
    Ok(Json(app.rename_session(id, &body.title).await?))
}

/// Delete a session. It is gone for callers at once; a running turn is ended first, then opencode's session and
/// the log are removed.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions", params(("id" = Uuid, Path)),
    responses((status = 204), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem)))]
pub(super) async fn delete_session(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
) -> Result<StatusCode, ApiError> {
    app.delete_session(id).await?;
    Ok(StatusCode::NO_CONTENT)
}
