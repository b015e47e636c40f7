//! What a session did to files, and the files themselves.

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use berth_wire::{
    api::{FileChange, FileEntry, Page},
    problem::Problem,
};
use futures_util::stream;
use serde::Deserialize;
use utoipa::IntoParams;
use uuid::Uuid;

use super::problem::{ApiError, Parameters, Segments};

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct DiffQuery {
    /// Only what this turn changed.
    turn: Option<Uuid>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(super) struct PathQuery {
    /// Path from the session's directory.
    #[serde(default)]
    path: String,
}

/// The files that the session changed, by path, each with the change as a unified diff. With `turn`, what that turn
/// changed. opencode keeps track of files in git repositories only; elsewhere the list is empty. A turn's changes are
/// known some moments after its end.
#[utoipa::path(get, path = "/v1/sessions/{id}/diff", tag = "files", params(("id" = Uuid, Path), DiffQuery),
    responses((status = 200, body = Page<FileChange>), (status = 400, body = Problem),
        (status = 401, body = Problem), (status = 404, body = Problem), (status = 502, body = Problem),
        (status = 503, body = Problem)))]
pub(super) async fn get_diff(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
    Parameters(query): Parameters<DiffQuery>,
) -> Result<Json<Page<FileChange>>, ApiError> {
    Ok(Json(Page::whole(app.diff(id, query.turn).await?)))
}

/// What is in a directory beneath the session's own, by name; without a path, in that one itself.
#[utoipa::path(get, path = "/v1/sessions/{id}/files", tag = "files", params(("id" = Uuid, Path), PathQuery),
    responses((status = 200, body = Page<FileEntry>), (status = 400, body = Problem),
        (status = 401, body = Problem), (status = 404, body = Problem), (status = 422, body = Problem),
        (status = 502, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn list_files(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
    Parameters(query): Parameters<PathQuery>,
) -> Result<Json<Page<FileEntry>>, ApiError> {
    Ok(Json(Page::whole(app.list_files(id, &query.path).await?)))
}

/// A file beneath the session's directory, as it is now. Links are followed where they stay beneath it.
#[utoipa::path(get, path = "/v1/sessions/{id}/files/content", tag = "files",
    params(("id" = Uuid, Path), PathQuery),
    responses((status = 200, body = Vec<u8>, content_type = "*/*", description = "The bytes, with a media type that is guessed from the name"),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 404, body = Problem),
        (status = 422, body = Problem), (status = 502, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn get_file(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
    Parameters(query): Parameters<PathQuery>,
) -> Result<Response, ApiError> {
    let file = app.open_file(id, &query.path).await?;
    let mut headers = foreign_content(&file.content_type());
    if let Some(length) = file.length() {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Some(modified) = file.last_modified().and_then(|date| HeaderValue::try_from(date).ok()) {
        headers.insert(header::LAST_MODIFIED, modified);
    }
    let body = stream::try_unfold(file, |mut file| async move {
        Ok::<_, berth_opencode::ClientError>(file.next().await?.map(|bytes| (bytes, file)))
    });
    Ok((headers, Body::from_stream(body)).into_response())
}

/// Headers for what others wrote: a browser must neither guess its type nor run it in this server's name.
pub(super) fn foreign_content(kind: &str) -> HeaderMap {
    let kind = HeaderValue::try_from(kind).ok().filter(|kind| !kind.is_empty());
    let plain = HeaderValue::from_static("application/octet-stream");
    HeaderMap::from_iter([
        (header::CONTENT_TYPE, kind.unwrap_or(plain)),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ])
}
