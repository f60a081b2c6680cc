//! The ids of the protocol, one type each, so that one is never passed for another.
//!
//! All of them are opaque strings, cheap to clone. This crate never parses them. A client may choose
//! any string as an id, including the empty string. The AI SDK generates 16 random letters and
//! digits by default.
//!
//! Where an id stands in a log, a span or an audit event, it is written as [`log_text`] returns it.

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Creates an id from any string, without a check.
            pub fn new(id: impl Into<Arc<str>>) -> Self {
                $name(id.into())
            }

            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                $name(id.into())
            }
        }

        impl From<&$name> for $name {
            fn from(id: &$name) -> Self {
                id.clone()
            }
        }

        impl From<String> for $name {
            fn from(id: String) -> Self {
                $name(id.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

macro_rules! debug_as_log_text {
    ($($name:ident)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "\"{}\"", log_text(&self.0))
            }
        }
    )*};
}

debug_as_log_text! { ChatId MessageId PartId RunId ToolCallId }

/// Shows only the first 24 characters of a longer id: who knows the whole id, and is authenticated
/// as the user, can approve.
impl fmt::Debug for ApprovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(MAX_DEBUG_CHARS) {
            Some((end, _)) => write!(f, "\"{}[redacted]\"", log_text(&self.0[..end])),
            None => write!(f, "\"{}\"", log_text(&self.0)),
        }
    }
}

/// How many characters of an approval id its `Debug` output shows.
///
/// They are enough to recognise an id that an agent made itself. In a sealed id they end before the
/// first random byte.
const MAX_DEBUG_CHARS: usize = 24;

/// Returns a text in the form in which logs, spans and audit events hold it: at most 128 characters of
/// it, then `…`, with control characters, line breaks and invisible characters escaped.
///
/// A client, a model or a tool server chooses ids and names, so they can have any length, and can hold
/// characters that forge lines of a log or change the colours of a terminal.
///
/// ```
/// use ui_message_stream::id::log_text;
///
/// assert_eq!(log_text("call_1"), "call_1");
/// assert_eq!(log_text("call\n\u{1b}[31m"), r"call\n\u{1b}[31m");
/// assert_eq!(log_text(&"x".repeat(2_000_000)), "x".repeat(128) + "…");
/// ```
pub fn log_text(text: &str) -> Cow<'_, str> {
    let end = text.char_indices().nth(MAX_LOG_CHARS).map_or(text.len(), |(end, _)| end);
    let shown = &text[..end];
    let is_cut = end < text.len();
    // `escape_debug` escapes quotation marks too, which need no escape here.
    let is_plain = |c: char| matches!(c, '"' | '\'') || c.escape_debug().eq([c]);
    if !is_cut && shown.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::new();
    for c in shown.chars() {
        if is_plain(c) { escaped.push(c) } else { escaped.extend(c.escape_debug()) }
    }
    if is_cut {
        escaped.push('…');
    }
    Cow::Owned(escaped)
}

/// The maximum number of characters of an id or a name in a log.
const MAX_LOG_CHARS: usize = 128;

#[cfg(any(feature = "approvals", feature = "axum"))]
pub use self::error_text::log_causes;
#[cfg(feature = "body")]
pub use self::error_text::log_error;

/// The texts of errors in logs. Only code that runs agents logs errors.
#[cfg(feature = "body")]
mod error_text {
    use std::fmt::{self, Write as _};

    /// Returns an error as logs hold it: at most 4 KiB of its text, then `…`.
    ///
    /// The errors of tools, models and agents often repeat what they have received, which can have any
    /// length.
    pub fn log_error<E: fmt::Display>(error: &E) -> impl fmt::Display {
        LogError(error)
    }

    /// Returns an error with its causes, as logs hold it. The error of a store names no cause itself.
    #[cfg(any(feature = "approvals", feature = "axum"))]
    pub fn log_causes(error: &(dyn std::error::Error + 'static)) -> String {
        let errors = std::iter::successors(Some(error), |error| error.source());
        let mut texts: Vec<String> = errors.map(ToString::to_string).collect();
        // Some errors have the text of their source.
        texts.dedup_by(|source, error| error.contains(&**source));
        log_error(&texts.join(": ")).to_string()
    }

    struct LogError<'a, E>(&'a E);

    impl<E: fmt::Display> fmt::Display for LogError<'_, E> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let mut beginning = Beginning { text: String::new(), is_cut: false };
            // The error stops writing where the text is cut.
            let written = write!(beginning, "{}", self.0);
            f.write_str(&beginning.text)?;
            if beginning.is_cut { f.write_str("…") } else { written }
        }
    }

    /// The beginning of a text. A write fails once it is cut.
    struct Beginning {
        text: String,
        is_cut: bool,
    }

    impl fmt::Write for Beginning {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let left = MAX_LOG_ERROR_BYTES - self.text.len();
            let end = (0..=left.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
            let end = end.unwrap_or_default();
            self.text.push_str(&text[..end]);
            self.is_cut |= end < text.len();
            if self.is_cut { Err(fmt::Error) } else { Ok(()) }
        }
    }

    /// The maximum number of bytes of an error in a log.
    const MAX_LOG_ERROR_BYTES: usize = 4096;

    #[cfg(all(test, any(feature = "approvals", feature = "axum")))]
    mod tests {
        use super::log_causes;

        #[derive(Debug, thiserror::Error)]
        #[error("{text}")]
        struct Failure {
            text: &'static str,
            source: Option<Box<Failure>>,
        }

        fn failure(text: &'static str, source: Option<Failure>) -> Failure {
            Failure { text, source: source.map(Box::new) }
        }

        #[test]
        fn each_cause_of_an_error_is_logged_once() {
            let refused = || failure("connection refused", None);
            let named = failure("cannot connect: connection refused", Some(refused()));
            let other = failure("the store failed", Some(failure("no reply", Some(refused()))));
            assert_eq!(log_causes(&named), "cannot connect: connection refused");
            assert_eq!(log_causes(&other), "the store failed: no reply: connection refused");
        }
    }
}

impl ToolCallId {
    /// Returns a short id in place of one of more than 128 bytes, or `None` if this one is short.
    ///
    /// Equal ids have equal short ids. Providers and proxies give ids of several kilobytes, and
    /// clients, stores and logs would hold each of them many times.
    pub fn shortened(&self) -> Option<Self> {
        if self.len() <= MAX_CALL_ID_BYTES {
            return None;
        }
        let digest = Sha256::digest(self.as_bytes());
        let text = URL_SAFE_NO_PAD.encode(&digest[..SHORT_ID_DIGEST_BYTES]);
        Some(ToolCallId::from(format!("call_{text}")))
    }

    /// Returns the id that the call has on the wire and in stored messages: the [short](Self::shortened) one of
    /// a long id, or this one.
    pub fn on_wire(&self) -> Self {
        self.shortened().unwrap_or_else(|| self.clone())
    }
}

/// The maximum number of bytes of a tool call id on the wire.
const MAX_CALL_ID_BYTES: usize = 128;

/// The bytes of the digest in a short id: enough that two calls do not have the same by accident.
const SHORT_ID_DIGEST_BYTES: usize = 18;

ids! {
    /// The id of an approval request. The approval response carries the same id.
    ApprovalId
    /// The id of a conversation: the `id` in the body of a request.
    ChatId
    /// The id of a UI message.
    MessageId
    /// The id of a text or reasoning part while it is open.
    PartId
    /// The id of a run: the execution of a turn of a conversation.
    RunId
    /// The id of a tool call within a message.
    ToolCallId
}
