//! How a turn's end is named: the table of [`super`]. Pure.

use berth_wire::turn::{TurnError, TurnErrorReason, TurnOutcome, TurnStopReason};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::model::ErrorInfo;

/// Longest piece of foreign text in an error message, in characters.
const MAX_WORDS: usize = 600;

/// What an error of opencode means for the turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ending {
    /// Somebody aborted it.
    Aborted,
    /// It ended by itself, for this reason.
    Stopped(TurnStopReason),
    /// It failed.
    Failed(TurnError),
}

impl Ending {
    pub(super) fn into_outcome(self) -> TurnOutcome {
        match self {
            Self::Aborted => TurnOutcome::cancelled(),
            Self::Stopped(reason) => TurnOutcome::succeeded(reason),
            Self::Failed(error) => failed(error),
        }
    }
}

/// An outcome with this error.
pub(super) fn failed(error: TurnError) -> TurnOutcome {
    let mut outcome = TurnOutcome::failed(error.reason, "");
    if error.reason == TurnErrorReason::StepLimitReached {
        outcome.stop_reason = Some(TurnStopReason::MaxTurnRequests);
    }
    outcome.error = Some(error);
    outcome
}

/// An error without a time for a retry.
pub(super) fn error(reason: TurnErrorReason, message: impl Into<String>) -> TurnError {
    TurnError { reason, message: message.into(), retry_at: None, cause: None }
}

/// The outcome of a last step that has no error, by its finish reason; `rejected` when one of its calls was.
pub(super) fn of_finish(finish: Option<&str>, rejected: bool) -> Ending {
    let fail = |reason, message: &str| Ending::Failed(error(reason, message));
    match finish {
        Some("stop") => Ending::Stopped(TurnStopReason::EndTurn),
        Some("length") => Ending::Stopped(TurnStopReason::MaxTokens),
        Some("content-filter") => Ending::Stopped(TurnStopReason::Refusal),
        Some("tool-calls") if rejected => fail(
            TurnErrorReason::PermissionRejected,
            "A permission was rejected or a question dismissed, which ended the turn. Send another prompt to go on.",
        ),
        Some("tool-calls") => fail(
            TurnErrorReason::OpencodeError,
            "opencode ended the turn after its tool calls, without an answer. Send another prompt to go on.",
        ),
        // An abort between two calls of the provider leaves neither.
        None => Ending::Aborted,
        Some("error") => fail(
            TurnErrorReason::ProviderError,
            "The model's provider reported an error without saying which. Try again.",
        ),
        Some(_) => Ending::Failed(stream_incomplete()),
    }
}

/// The provider's stream ended without a finish reason.
pub(super) fn stream_incomplete() -> TurnError {
    error(
        TurnErrorReason::ProviderStreamIncomplete,
        "The model's provider ended its stream without a finish reason, so the answer may be cut off. Try again; if it \
         happens each time, the provider or a proxy before it cuts streams.",
    )
}

/// What `info` means; `at_ms` is when it happened, for a time to retry.
pub(super) fn of_error(info: &ErrorInfo, at_ms: Option<i64>) -> Ending {
    match info.name.as_str() {
        "MessageAbortedError" => Ending::Aborted,
        "MessageOutputLengthError" => Ending::Stopped(TurnStopReason::MaxTokens),
        "ContentFilterError" => Ending::Stopped(TurnStopReason::Refusal),
        "APIError" => Ending::Failed(of_provider(info, at_ms)),
        "ProviderAuthError" => Ending::Failed(unauthorized(info)),
        "ContextOverflowError" => Ending::Failed(context_overflow(info)),
        name => Ending::Failed(of_words(name, info)),
    }
}

fn of_provider(info: &ErrorInfo, at_ms: Option<i64>) -> TurnError {
    let status = info.status_code();
    match status {
        Some(401 | 403) => unauthorized(info),
        Some(413) => context_overflow(info),
        Some(429) => TurnError { retry_at: retry_at(info, at_ms), ..rate_limited(info) },
        _ if speaks_of_overflow(info) => context_overflow(info),
        _ => {
            let code = status.map(|status| format!(" (HTTP {status})")).unwrap_or_default();
            let message =
                format!("The model's provider answered with an error{code}: {}", words(info.message()));
            error(TurnErrorReason::ProviderError, message)
        }
    }
}

fn unauthorized(info: &ErrorInfo) -> TurnError {
    let code = info.status_code().map(|status| format!(" (HTTP {status})")).unwrap_or_default();
    let said = redacted(info.message());
    let message = format!(
        "The model's provider refused the key or the access{code}: {said}. Check the provider's key."
    );
    error(TurnErrorReason::ProviderUnauthorized, message)
}

fn rate_limited(info: &ErrorInfo) -> TurnError {
    let said = words(info.message());
    let message =
        format!("The model's provider limits the rate or the quota: {said}. Wait, or raise the limit.");
    error(TurnErrorReason::RateLimited, message)
}

fn context_overflow(info: &ErrorInfo) -> TurnError {
    let said = words(info.message());
    let message = format!(
        "The conversation is longer than the model takes: {said}. Start a new session or shorten the prompt."
    );
    error(TurnErrorReason::ContextOverflow, message)
}

/// Errors that opencode types only by what they say.
fn of_words(name: &str, info: &ErrorInfo) -> TurnError {
    let said = info.message();
    if name.contains("ModelNotFound") || said.contains("Model not found") {
        let message = format!("{}. Choose a model that the configured providers offer.", words(said));
        return error(TurnErrorReason::ModelNotFound, message);
    }
    // Of a call that opencode itself asked about, since it came again and again.
    if said.starts_with("The user rejected permission") {
        let message = "A permission was rejected, which ended the turn. Send another prompt to go on.";
        return error(TurnErrorReason::PermissionRejected, message);
    }
    if said.starts_with("Agent not found") {
        return error(TurnErrorReason::AgentNotFound, words(said));
    }
    if speaks_of_overflow(info) {
        return context_overflow(info);
    }
    error(TurnErrorReason::OpencodeError, format!("opencode reported {name}: {}", words(said)))
}

/// An error that came before opencode had begun the turn: it refused the prompt.
pub(super) fn refused(info: &ErrorInfo) -> TurnError {
    match of_error(info, None) {
        Ending::Failed(error) if error.reason != TurnErrorReason::OpencodeError => error,
        _ => error(
            TurnErrorReason::PromptRejected,
            format!("opencode refused the prompt: {}", words(info.message())),
        ),
    }
}

fn speaks_of_overflow(info: &ErrorInfo) -> bool {
    let body = info.data["responseBody"].as_str().unwrap_or_default();
    let text = format!("{} {body}", info.message()).to_lowercase();
    let signs = [
        "context_length_exceeded",
        "context length",
        "context window",
        "maximum context",
        "prompt is too long",
        "input is too long",
        "too many input tokens",
    ];
    signs.iter().any(|sign| text.contains(sign))
}

fn retry_at(info: &ErrorInfo, at_ms: Option<i64>) -> Option<Timestamp> {
    let headers = info.data["responseHeaders"].as_object()?;
    let (_, value) = headers.iter().find(|(name, _)| name.eq_ignore_ascii_case("retry-after"))?;
    let seconds: i64 = value.as_str()?.trim().parse().ok()?;
    let at = Timestamp::from_millisecond(at_ms?).ok()?;
    at.checked_add(SignedDuration::from_secs(seconds)).ok()
}

/// Foreign words, in one line, bounded, without a full stop at the end.
pub(super) fn words(text: &str) -> String {
    let first = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("no details were given");
    let short: String = first.chars().take(MAX_WORDS).collect();
    short.trim_end_matches('.').to_owned()
}

/// Foreign words without anything that may be a key: providers like to repeat it.
fn redacted(text: &str) -> String {
    let is_key = |word: &str| {
        let length = word.chars().filter(|c| c.is_ascii_alphanumeric() || "-_*".contains(*c)).count();
        length >= 12 && word.chars().any(|c| c.is_ascii_digit() || c == '*')
    };
    let hide = |word: &str| {
        if is_key(word) || word.contains("sk-") { "[hidden]".to_owned() } else { word.to_owned() }
    };
    words(text).split_whitespace().map(hide).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn info(name: &str, data: Value) -> ErrorInfo {
        ErrorInfo { name: name.to_owned(), data }
    }

    fn reason(ending: Ending) -> TurnErrorReason {
        match ending {
            Ending::Failed(error) => error.reason,
            other => panic!("not a failure: {other:?}"),
        }
    }

    #[test]
    fn errors_are_named_by_their_status_name_and_words() {
        use TurnErrorReason as R;
        let cases = [
            ("APIError", json!({"message": "no", "statusCode": 400}), R::ProviderError),
            ("APIError", json!({"message": "no", "statusCode": 401}), R::ProviderUnauthorized),
            ("APIError", json!({"message": "no", "statusCode": 403}), R::ProviderUnauthorized),
            ("APIError", json!({"message": "no", "statusCode": 413}), R::ContextOverflow),
            ("APIError", json!({"message": "no", "statusCode": 429}), R::RateLimited),
            ("APIError", json!({"message": "no", "statusCode": 503}), R::ProviderError),
            ("APIError", json!({"message": "no"}), R::ProviderError),
            ("APIError", json!({"message": "Prompt is too long", "statusCode": 400}), R::ContextOverflow),
            (
                "APIError",
                json!({"statusCode": 400, "responseBody": "context_length_exceeded"}),
                R::ContextOverflow,
            ),
            ("ContextOverflowError", json!({"message": "x"}), R::ContextOverflow),
            ("ProviderAuthError", json!({"message": "x"}), R::ProviderUnauthorized),
            ("ProviderModelNotFoundError", json!({}), R::ModelNotFound),
            ("UnknownError", json!({"message": "Model not found: stub/nope."}), R::ModelNotFound),
            ("UnknownError", json!({"message": "Agent not found: \"nope\"."}), R::AgentNotFound),
            (
                "UnknownError",
                json!({"message": "The user rejected permission to use this specific tool call."}),
                R::PermissionRejected,
            ),
            ("UnknownError", json!({"message": "JSON parsing failed"}), R::OpencodeError),
            ("FromTheFuture", Value::Null, R::OpencodeError),
        ];
        for (name, data, expected) in cases {
            assert_eq!(reason(of_error(&info(name, data.clone()), None)), expected, "{name} {data}");
        }
        assert_eq!(of_error(&info("MessageAbortedError", Value::Null), None), Ending::Aborted);
    }

    #[test]
    fn finishes_are_named() {
        use TurnErrorReason as R;
        assert_eq!(of_finish(Some("stop"), false), Ending::Stopped(TurnStopReason::EndTurn));
        assert_eq!(of_finish(Some("length"), false), Ending::Stopped(TurnStopReason::MaxTokens));
        assert_eq!(of_finish(Some("content-filter"), false), Ending::Stopped(TurnStopReason::Refusal));
        assert_eq!(of_finish(None, false), Ending::Aborted);
        let failures = [
            ("tool-calls", true, R::PermissionRejected),
            ("tool-calls", false, R::OpencodeError),
            ("unknown", false, R::ProviderStreamIncomplete),
            ("other", false, R::ProviderStreamIncomplete),
            ("error", false, R::ProviderError),
        ];
        for (finish, rejected, expected) in failures {
            assert_eq!(reason(of_finish(Some(finish), rejected)), expected, "{finish}");
        }
    }

    #[test]
    fn what_the_provider_repeats_of_a_key_is_hidden() {
        let data = json!({"message": "Incorrect API key provided: sk-ab*****cdef. See the docs.", "statusCode": 401});
        let Ending::Failed(error) = of_error(&info("APIError", data), None) else { panic!("a failure") };
        assert!(
            !error.message.contains("sk-ab") && error.message.contains("Incorrect API key"),
            "{}",
            error.message
        );
    }

    #[test]
    fn a_rate_limit_says_when_to_come_back() {
        let data =
            json!({"message": "slow down", "statusCode": 429, "responseHeaders": {"Retry-After": "30"}});
        let Ending::Failed(error) = of_error(&info("APIError", data), Some(1_796_014_140_000)) else {
            panic!("a failure")
        };
        assert_eq!(error.retry_at.map(Timestamp::as_millisecond), Some(1_796_014_170_000));
    }

    #[test]
    fn a_prompt_that_was_refused_before_the_start() {
        use TurnErrorReason as R;
        assert_eq!(
            refused(&info("UnknownError", json!({"message": "Agent not found: x"}))).reason,
            R::AgentNotFound
        );
        assert_eq!(
            refused(&info("UnknownError", json!({"message": "no such part"}))).reason,
            R::PromptRejected
        );
    }
}
