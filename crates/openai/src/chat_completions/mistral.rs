//! The stricter rules of Mistral's API, and of the chat templates of its models on other servers.

use serde_json::{Value, json};
use ui_message_stream::model::CallIdRule;

/// Adapts messages to Mistral's rule that only an assistant message may follow a tool message.
pub(super) fn adapt_messages(messages: Vec<Value>) -> Vec<Value> {
    let mut adapted: Vec<Value> = Vec::with_capacity(messages.len());
    for message in messages {
        let is_behind_tool = adapted.last().is_some_and(|last| last["role"] == "tool");
        if is_behind_tool && message["role"] != "tool" && message["role"] != "assistant" {
            adapted.push(json!({"role": "assistant", "content": MISSING_ANSWER}));
        }
        adapted.push(message);
    }
    adapted
}

/// The assistant message that replaces a missing answer: the user sent another message, or the
/// model was stopped.
const MISSING_ANSWER: &str = "(Nothing was said here.)";

/// A call id consists of nine letters and digits.
pub(super) const CALL_IDS: CallIdRule = CallIdRule::new(9..=9, |it| it.is_ascii_alphanumeric());
