//! `/v1/sandboxes`

use axum::{Json, extract::State};
use berth_wire::{
    api::{AgentInfo, ModelInfo, Page, Sandbox},
    problem::Problem,
};

use super::problem::{ApiError, Segments};

/// List sandboxes, by namespace and name, with what their doors say now.
#[utoipa::path(get, path = "/v1/sandboxes", tag = "sandboxes",
    responses((status = 200, body = Page<Sandbox>), (status = 401, body = Problem)))]
pub(super) async fn list_sandboxes(State(app): State<super::State>) -> Json<Page<Sandbox>> {
    Json(Page::whole(app.list_sandboxes().await))
}

/// One sandbox, with what its door says now.
#[utoipa::path(get, path = "/v1/sandboxes/{namespace}/{name}", tag = "sandboxes",
    params(("namespace" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Sandbox), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn get_sandbox(
    State(app): State<super::State>,
    Segments((namespace, name)): Segments<(String, String)>,
) -> Result<Json<Sandbox>, ApiError> {
    Ok(Json(app.sandbox(&namespace, &name).await?))
}

/// The models that the sandbox's opencode is configured with.
#[utoipa::path(get, path = "/v1/sandboxes/{namespace}/{name}/models", tag = "sandboxes",
    params(("namespace" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Page<ModelInfo>), (status = 401, body = Problem),
        (status = 404, body = Problem), (status = 502, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn list_models(
    State(app): State<super::State>,
    Segments((namespace, name)): Segments<(String, String)>,
) -> Result<Json<Page<ModelInfo>>, ApiError> {
    Ok(Json(Page::whole(app.list_models(&namespace, &name).await?)))
}

/// The agents that the sandbox's opencode is configured with, those for its own use left out.
#[utoipa::path(get, path = "/v1/sandboxes/{namespace}/{name}/agents", tag = "sandboxes",
    params(("namespace" = String, Path), ("name" = String, Path)),
    responses((status = 200, body = Page<AgentInfo>), (status = 401, body = Problem),
        (status = 404, body = Problem), (status = 502, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn list_agents(
    State(app): State<super::State>,
    Segments((namespace, name)): Segments<(String, String)>,
) -> Result<Json<Page<AgentInfo>>, ApiError> {
    Ok(Json(Page::whole(app.list_agents(&namespace, &name).await?)))
}
