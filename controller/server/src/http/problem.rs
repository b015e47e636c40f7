//! From errors to problem+json. Every error of the API passes here, so that none leaves without a type.

use axum::{
    Json,
    body::Body,
    extract::{FromRequest, FromRequestParts, Path, Query, Request, rejection::JsonRejection},
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use berth_wire::problem::{PROBLEM_JSON, Problem, ProblemType};
use serde::de::DeserializeOwned;

use crate::app::AppError;

/// An error on its way to the caller.
#[derive(Debug)]
pub(super) struct ApiError(Box<Problem>);

impl ApiError {
    pub(super) fn new(kind: ProblemType, detail: impl Into<String>) -> Self {
        Self(Box::new(Problem::new(kind, detail)))
    }

    pub(super) fn no_route() -> Self {
        Self::new(ProblemType::NotFound, "there is no such route; /openapi.json lists them")
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(ProblemType::MethodNotAllowed, "this route has other methods; /openapi.json lists them")
    }

    fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        *self.0 = self.0.with(name, value);
        self
    }
}

impl From<AppError> for ApiError {
    fn from(error: AppError) -> Self {
        let detail = error.to_string();
        match error {
            AppError::NotFound { what, .. } => Self::new(ProblemType::NotFound, detail).with("object", what),
            AppError::Invalid { field, .. } => Self::new(ProblemType::Invalid, detail).with("field", field),
            AppError::KeyTaken => Self::new(ProblemType::IdempotencyConflict, detail),
            AppError::QueueFull { limit } => Self::new(ProblemType::QueueFull, detail).with("limit", limit),
            AppError::AlreadyResolved { .. } => Self::new(ProblemType::AlreadyResolved, detail),
            AppError::Store(error) => {
                tracing::error!(error = error_chain(&error), "store failed");
                Self::new(ProblemType::Internal, "the server failed; its log has the request id")
            }
        }
    }
}

/// An error and its sources in one line.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        problem_response(*self.0)
    }
}

/// The problem as a response; it travels as an extension too, so that [`super::guard::identify`] can add the
/// request's id.
pub(super) fn problem_response(problem: Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let mut response = (status, Body::from(body)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"berth\""));
    }
    response.extensions_mut().insert(problem);
    response
}

/// A ready JSON text as a response.
pub(super) fn json_text(text: String) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// A JSON body; refusals are problems that name field and reason.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let limit = request.extensions().get::<super::guard::BodyLimit>().map(|limit| limit.0);
        match Json::<T>::from_request(request, state).await {
            Ok(Json(value)) => Ok(Self(value)),
            Err(rejection) => Err(body_error(&rejection, limit)),
        }
    }
}

fn body_error(rejection: &JsonRejection, limit: Option<usize>) -> ApiError {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let error = ApiError::new(ProblemType::BodyTooLarge, "send less, or in several messages");
            limit.map_or(error, |limit| {
                ApiError::new(
                    ProblemType::BodyTooLarge,
                    format!("the bound is {limit} bytes: send less, or in several messages"),
                )
                .with("limit_bytes", limit)
            })
        }
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            ApiError::new(ProblemType::UnsupportedMediaType, "send the header content-type: application/json")
        }
        _ => ApiError::new(ProblemType::InvalidBody, rejection.body_text()),
    }
}

/// Path parameters; refusals are problems.
pub(super) struct Segments<T>(pub(super) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Segments<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::<T>::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(rejection) => Err(ApiError::new(ProblemType::InvalidParameter, rejection.body_text())),
        }
    }
}

/// Query parameters; refusals are problems.
pub(super) struct Parameters<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Parameters<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Query::<T>::from_request_parts(parts, state).await {
            Ok(Query(value)) => Ok(Self(value)),
            Err(rejection) => Err(ApiError::new(ProblemType::InvalidParameter, rejection.body_text())),
        }
    }
}
