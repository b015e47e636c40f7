//! Prompts, turns, cancels and answers.

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use berth_wire::{
    api::{
        CancelRequest, CancelResponse, HistoryTurn, IDEMPOTENCY_KEY, IDEMPOTENCY_KEY_MAX, ListQuery, Page,
        PermissionAnswer, PostMessage, QuestionAnswer, Turn,
    },
    problem::{Problem, ProblemType},
};
use uuid::Uuid;

use super::{
    files::foreign_content,
    problem::{ApiError, JsonBody, OptionalBody, Parameters, Segments},
};

/// Send a prompt. It is stored and queued behind the session's other open turns; its end is an event.
#[utoipa::path(post, path = "/v1/sessions/{id}/messages", tag = "messages",
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters; the same key and body again give the same turn")),
    request_body = PostMessage,
    responses((status = 202, body = Turn), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 413, body = Problem),
        (status = 415, body = Problem), (status = 422, body = Problem), (status = 429, body = Problem)))]
pub(super) async fn post_message(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<PostMessage>,
) -> Result<impl IntoResponse, ApiError> {
    let turn = app.post_message(id, body, idempotency_key(&headers)?).await?;
    let location = format!("/v1/turns/{}", turn.id);
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(turn)))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| (1..=IDEMPOTENCY_KEY_MAX).contains(&key.len()));
    let Some(key) = key else {
        let detail = format!("Idempotency-Key must be 1 to {IDEMPOTENCY_KEY_MAX} visible ASCII characters");
        return Err(ApiError::new(ProblemType::InvalidHeader, detail));
    };
    Ok(Some(key.to_owned()))
}

/// The session's history, assembled: each turn with the fold of what the agent said. Oldest first, or newest first
/// with `order`. A page may have fewer items than asked for where they are large: only the absence of `next_cursor`
/// says that it is the last one.
#[utoipa::path(get, path = "/v1/sessions/{id}/messages", tag = "messages",
    params(("id" = Uuid, Path), ListQuery),
    responses((status = 200, body = Page<HistoryTurn>), (status = 400, body = Problem),
        (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn list_history(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
    Parameters(query): Parameters<ListQuery>,
) -> Result<Json<Page<HistoryTurn>>, ApiError> {
    Ok(Json(app.history(id, &query).await?))
}

/// The session's turns, oldest first, or newest first with `order`.
#[utoipa::path(get, path = "/v1/sessions/{id}/turns", tag = "turns", params(("id" = Uuid, Path), ListQuery),
    responses((status = 200, body = Page<Turn>), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem)))]
pub(super) async fn list_turns(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
    Parameters(query): Parameters<ListQuery>,
) -> Result<Json<Page<Turn>>, ApiError> {
    Ok(Json(app.turns(id, &query).await?))
}

/// Queue the prompt of a turn that failed, was cancelled, or whose outcome is unknown, once more: a new turn with the
/// same parts, model and agent, behind the session's other open turns. It is given to opencode as a new message.
#[utoipa::path(post, path = "/v1/turns/{id}/retry", tag = "turns",
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 visible ASCII characters; the same key again gives the same turn")),
    responses((status = 202, body = Turn), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 429, body = Problem)))]
pub(super) async fn retry_turn(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, ApiError> {
    let turn = app.retry_turn(id, idempotency_key(&headers)?).await?;
    let location = format!("/v1/turns/{}", turn.id);
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, location)], Json(turn)))
}

/// What the `data:` URL of a prompt's part held.
#[utoipa::path(get, path = "/v1/turns/{id}/parts/{index}", tag = "turns",
    params(("id" = Uuid, Path), ("index" = u32, Path, description = "Position of the part in the prompt, from 0")),
    responses((status = 200, body = Vec<u8>, content_type = "*/*", description = "The bytes, with the media type that the part names"),
        (status = 400, body = Problem), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn get_part(
    State(app): State<super::State>,
    Segments((id, index)): Segments<(Uuid, u32)>,
) -> Result<Response, ApiError> {
    let file = app.prompt_file(id, index as usize).await?;
    Ok((foreign_content(&file.mime), file.content).into_response())
}

/// One turn.
#[utoipa::path(get, path = "/v1/turns/{id}", tag = "turns", params(("id" = Uuid, Path)),
    responses((status = 200, body = Turn), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem)))]
pub(super) async fn get_turn(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
) -> Result<Json<Turn>, ApiError> {
    Ok(Json(app.turn(id).await?))
}

/// Cancel the oldest open turn, with `queued` the others too, or with `turn` that one alone. The end of a running turn is an event.
#[utoipa::path(post, path = "/v1/sessions/{id}/cancel", tag = "turns", params(("id" = Uuid, Path)),
    request_body(content = CancelRequest, description = "May be empty: {}"),
    responses((status = 202, body = CancelResponse), (status = 400, body = Problem),
        (status = 401, body = Problem), (status = 404, body = Problem), (status = 413, body = Problem),
        (status = 415, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn cancel(
    State(app): State<super::State>,
    Segments(id): Segments<Uuid>,
    OptionalBody(request): OptionalBody<CancelRequest>,
) -> Result<impl IntoResponse, ApiError> {
    Ok((StatusCode::ACCEPTED, Json(app.cancel(id, request).await?)))
}

/// Answer a permission request. Its end is an event.
#[utoipa::path(post, path = "/v1/sessions/{id}/permissions/{pid}", tag = "asks",
    params(("id" = Uuid, Path), ("pid" = String, Path)), request_body = PermissionAnswer,
    responses((status = 202), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 413, body = Problem),
        (status = 415, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn answer_permission(
    State(app): State<super::State>,
    Segments((id, permission)): Segments<(Uuid, String)>,
    JsonBody(body): JsonBody<PermissionAnswer>,
) -> Result<StatusCode, ApiError> {
    app.answer_permission(id, &permission, body).await?;
    Ok(StatusCode::ACCEPTED)
}

/// Answer a question request, or reject it with `null`. Its end is an event.
#[utoipa::path(post, path = "/v1/sessions/{id}/questions/{qid}", tag = "asks",
    params(("id" = Uuid, Path), ("qid" = String, Path)), request_body = QuestionAnswer,
    responses((status = 202), (status = 400, body = Problem), (status = 401, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 413, body = Problem),
        (status = 415, body = Problem), (status = 422, body = Problem)))]
pub(super) async fn answer_question(
    State(app): State<super::State>,
    Segments((id, question)): Segments<(Uuid, String)>,
    JsonBody(body): JsonBody<QuestionAnswer>,
) -> Result<StatusCode, ApiError> {
    app.answer_question(id, &question, body).await?;
    Ok(StatusCode::ACCEPTED)
}
