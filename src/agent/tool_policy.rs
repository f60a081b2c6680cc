//! The limits and the texts that all tools share, wherever a tool comes from.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::chat::Turn;
use crate::model::{Usage, UsageMetadata};

/// The default limit on the output of a tool call: 256 KiB of JSON text.
///
/// A client sends outputs back with every request, so an output that a request may not hold would
/// end the chat.
pub const DEFAULT_MAX_OUTPUT_BYTES: usize = 256 * 1024;

/// The error text of a tool call whose output exceeds the limit.
pub const OUTPUT_TOO_LARGE: &str = "The tool returned more than can be shown.";

/// The error text of a tool call that was stopped by its timeout.
pub const TOOL_TIMED_OUT: &str =
    "The tool took too long and was stopped. What it did until then is not known.";

/// Evaluates an approval predicate. A predicate that panics counts as `true`: the user is asked.
///
/// `tool` is the tool's name, for the log.
///
/// ```
/// use ui_message_stream::agent::tool_policy::predicate_or_ask;
///
/// assert!(!predicate_or_ask("get_weather", || false));
/// assert!(predicate_or_ask("get_weather", || panic!("an index out of bounds")));
/// ```
pub fn predicate_or_ask(tool: &str, predicate: impl FnOnce() -> bool) -> bool {
    catch_unwind(AssertUnwindSafe(predicate)).unwrap_or_else(|_| {
        tracing::error!(tool, "the approval predicate panicked");
        true
    })
}

/// The token usage that the message of this turn already records, zero if it records none.
///
/// A turn that continues a message adds its own usage to this one.
pub fn prior_usage(turn: &Turn) -> Usage {
    let message = turn.chat.message(&turn.message_id);
    let metadata = message.and_then(|message| message.metadata.as_ref());
    let recorded = metadata.and_then(|metadata| metadata.decode::<UsageMetadata>().ok());
    recorded.map_or_else(Usage::default, |recorded| recorded.usage)
}
