//! [`ProviderError`]: the error of a provider's response, for logs and never for users.

use serde_json::Value;

/// The error of a request to a provider: there is no response, or the response is incomplete.
///
/// The message is written for logs: it repeats what the provider reports.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ProviderError(#[from] Cause);

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("the provider cannot be reached, or broke off: {0}")]
    Unreachable(String),
    #[error("the provider answers {status}: {body}")]
    Status { status: u16, body: String },
    #[error("the provider reports an error in its stream: {0}")]
    Reported(String),
    #[error("the provider's response is not a valid stream: {0}")]
    Malformed(String),
    #[error("the provider's stream ended before the answer did")]
    Truncated,
}

impl ProviderError {
    /// Returns the HTTP status of the response if the status is an error: 401 for an invalid key,
    /// 429 for too many requests.
    pub fn status(&self) -> Option<u16> {
        match self.0 {
            Cause::Status { status, .. } => Some(status),
            _ => None,
        }
    }

    /// Whether the error is an HTTP response with an error status whose body contains this text.
    pub(super) fn mentions(&self, what: &str) -> bool {
        matches!(&self.0, Cause::Status { body, .. } if body.contains(what))
    }

    pub(super) fn unreachable(message: String) -> Self {
        Cause::Unreachable(message).into()
    }

    pub(super) fn from_status(status: u16, body: String) -> Self {
        Cause::Status { status, body }.into()
    }

    /// Creates the error from what a provider reports in its stream: its `code` and `message`, if they are
    /// present.
    pub(super) fn from_error_event(error: &Value) -> Self {
        let field = |name: &str| error.get(name).filter(|value| !value.is_null());
        let code =
            field("code").map(|code| code.as_str().map_or_else(|| code.to_string(), str::to_owned));
        let message = error.as_str().or_else(|| field("message")?.as_str());
        let message = match (message, code) {
            (Some(message), Some(code)) => format!("{code}: {message}"),
            (Some(message), None) => message.to_owned(),
            _ => error.to_string(),
        };
        Cause::Reported(message).into()
    }

    pub(super) fn malformed(why: impl ToString) -> Self {
        Cause::Malformed(why.to_string()).into()
    }

    pub(super) fn truncated() -> Self {
        Cause::Truncated.into()
    }

    pub(super) fn is_truncated(&self) -> bool {
        matches!(self.0, Cause::Truncated)
    }

    /// Returns the error with each text of the provider passed through `clean`.
    pub(super) fn map_provider_text(self, clean: impl Fn(&str) -> String) -> Self {
        ProviderError(match self.0 {
            Cause::Reported(message) => Cause::Reported(clean(&message)),
            Cause::Malformed(message) => Cause::Malformed(clean(&message)),
            other => other,
        })
    }
}
