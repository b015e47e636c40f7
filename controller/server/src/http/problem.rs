//! From errors to problem+json. Every error of the API passes here, so that none leaves without a type.

use axum::{
    Json,
    body::{Body, Bytes},
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use berth_opencode::ClientError;
use berth_wire::problem::{PROBLEM_JSON, Problem, ProblemType, error_chain};
use serde::de::DeserializeOwned;

use crate::{app::AppError, store::StoreError};

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

    pub(super) fn internal() -> Self {
        Self::new(ProblemType::Internal, "the server failed; its log has the request id")
    }

    fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        *self.0 = self.0.with(name, value);
        self
    }
}

impl ApiError {
    /// Why a sandbox could not be read from. None of it is a defect of the server.
    fn of_sandbox(error: &ClientError) -> Self {
        let words = error_chain(error);
        match error {
            ClientError::NotFound { .. } => {
                Self::new(ProblemType::NotFound, words).with("object", "session in opencode")
            }
            // The door's own refusal is told as it is: its types are these.
            ClientError::Refused(problem) | ClientError::Gated(problem) => match problem.problem_type() {
                Some(
                    kind @ (ProblemType::Starting
                    | ProblemType::Stopped
                    | ProblemType::Wedged
                    | ProblemType::UnsupportedVersion
                    | ProblemType::BadGateway
                    | ProblemType::Gated
                    | ProblemType::FileTooLarge),
                ) => Self::new(kind, problem.detail.clone()),
                _ => Self::new(ProblemType::SandboxUnavailable, words),
            },
            ClientError::Status { .. }
            | ClientError::UnexpectedBody { .. }
            | ClientError::BodyTooLarge { .. } => Self::new(ProblemType::BadGateway, words),
            ClientError::UnsupportedVersion { .. } => Self::new(ProblemType::UnsupportedVersion, words),
            _ => Self::new(
                ProblemType::SandboxUnavailable,
                format!("{words}; GET the sandbox to see its state, and ask again"),
            ),
        }
    }
}

impl From<AppError> for ApiError {
    fn from(error: AppError) -> Self {
        let detail = error.to_string();
        match error {
            AppError::NotFound { what, .. } => Self::new(ProblemType::NotFound, detail).with("object", what),
            AppError::Invalid { field, .. } => Self::new(ProblemType::Invalid, detail).with("field", field),
            AppError::InvalidParameter { name, .. } => {
                Self::new(ProblemType::InvalidParameter, detail).with("field", name)
            }
            AppError::KeyTaken => Self::new(ProblemType::IdempotencyConflict, detail),
            AppError::QueueFull { limit } => Self::new(ProblemType::QueueFull, detail).with("limit", limit),
            AppError::AlreadyResolved { .. } => Self::new(ProblemType::AlreadyResolved, detail),
            AppError::NotRetryable { state } => {
                let state = serde_json::to_value(state).unwrap_or_default();
                Self::new(ProblemType::TurnNotRetryable, detail).with("state", state)
            }
            AppError::SandboxGone { .. } => Self::new(ProblemType::SandboxGone, detail),
            AppError::SandboxNotPlaced { .. } => Self::new(ProblemType::SandboxUnavailable, detail),
            AppError::Sandbox(error) => Self::of_sandbox(&error),
            AppError::Broken => {
                tracing::error!("work of a handler panicked");
                Self::internal()
            }
            AppError::Store(error) => {
                tracing::error!(error = error_chain(&error), "store failed");
                match error {
                    // Without the file's name, which is not for callers.
                    StoreError::Unusable { fault, .. } => {
                        let detail =
                            format!("the server's database {fault}; nothing was written, send it again then");
                        Self::new(ProblemType::StorageUnavailable, detail)
                    }
                    error if error.is_of_a_value() => Self::new(
                        ProblemType::StateUnreadable,
                        "this version of the server does not understand what is stored here, and has left it as it is: use \
                         the version that wrote it, or restore a backup of the database; the session's events may tell \
                         more, and whatever else is stored can be used",
                    ),
                    _ => Self::internal(),
                }
            }
        }
    }
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

/// The bound on bodies, for messages about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct BodyLimit(pub(super) usize);

/// A JSON body; refusals are problems that name field and reason.
pub(super) struct JsonBody<T>(pub(super) T);

/// A JSON body that may be empty, which means the defaults.
pub(super) struct OptionalBody<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let is_json = is_json(&request);
        let bytes = read_body(request, state).await?;
        parse_body(&bytes, is_json).map(Self)
    }
}

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for OptionalBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let is_json = is_json(&request);
        let bytes = read_body(request, state).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        parse_body(&bytes, is_json).map(Self)
    }
}

fn is_json(request: &Request) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let essence = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    essence.is_some_and(|essence| essence.eq_ignore_ascii_case("application/json"))
}

async fn read_body<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiError> {
    let limit = request.extensions().get::<BodyLimit>().map_or(0, |limit| limit.0);
    Bytes::from_request(request, state).await.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let detail = format!("the bound is {limit} bytes: send less, or in several messages");
            ApiError::new(ProblemType::BodyTooLarge, detail).with("limit_bytes", limit)
        }
        _ => ApiError::new(ProblemType::InvalidBody, "the body broke off"),
    })
}

fn parse_body<T: DeserializeOwned>(bytes: &[u8], is_json: bool) -> Result<T, ApiError> {
    if !is_json {
        let detail = "send the header content-type: application/json";
        return Err(ApiError::new(ProblemType::UnsupportedMediaType, detail));
    }
    // A derived reader takes a list for an object, field by field; callers who send one have made a mistake.
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err(ApiError::new(ProblemType::InvalidBody, "the body must be a JSON object"));
    }
    match Json::<T>::from_bytes(bytes) {
        Ok(Json(value)) => Ok(value),
        Err(rejection) => Err(ApiError::new(ProblemType::InvalidBody, rejection.body_text())),
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
