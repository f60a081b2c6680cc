//! [`ProviderError`]: why there is no answer, for the log and never for the person.

use serde_json::Value;

/// Why a provider gave no answer, or broke off. Made for a log: it repeats what the provider says.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct ProviderError(#[from] Cause);

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("the provider cannot be reached, or broke off: {0}")]
    Unreachable(String),
    #[error("the provider answers {status}: {said}")]
    Status { status: u16, said: String },
    #[error("the provider reports an error in its stream: {0}")]
    Reported(String),
    #[error("the provider's stream is none: {0}")]
    NotUnderstood(String),
    #[error("the provider's stream ended before the answer did")]
    Cut,
}

impl ProviderError {
    /// The status of the answer, if it was an answer that is an error: 401 says that the key is
    /// wrong, 429 that there were too many requests.
    pub fn status(&self) -> Option<u16> {
        match self.0 {
            Cause::Status { status, .. } => Some(status),
            _ => None,
        }
    }

    /// Whether it is an answer that is an error and names this.
    pub(super) fn names(&self, what: &str) -> bool {
        matches!(&self.0, Cause::Status { said, .. } if said.contains(what))
    }

    pub(super) fn unreachable(said: String) -> Self {
        Cause::Unreachable(said).into()
    }

    pub(super) fn status_of(status: u16, said: String) -> Self {
        Cause::Status { status, said }.into()
    }

    /// What an event of the stream says: the `message` of the error, if it has one.
    pub(super) fn reported(error: &Value) -> Self {
        let message = error.get("message").and_then(Value::as_str);
        let code = error.get("code").and_then(Value::as_str);
        let said = match (message, code) {
            (Some(message), Some(code)) => format!("{code}: {message}"),
            (Some(message), None) => message.to_owned(),
            _ => error.to_string(),
        };
        Cause::Reported(said).into()
    }

    pub(super) fn not_understood(why: impl ToString) -> Self {
        Cause::NotUnderstood(why.to_string()).into()
    }

    pub(super) fn cut() -> Self {
        Cause::Cut.into()
    }

    /// The same, each text of the provider seen through `clean`.
    pub(super) fn cleaned(self, clean: impl Fn(&str) -> String) -> Self {
        ProviderError(match self.0 {
            Cause::Reported(said) => Cause::Reported(clean(&said)),
            Cause::NotUnderstood(said) => Cause::NotUnderstood(clean(&said)),
            other => other,
        })
    }
}
