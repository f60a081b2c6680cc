//! The stricter rules of Mistral's API, and of the chat templates of its models on other servers.

use std::borrow::Cow;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Adapts messages to Mistral's rules: only an assistant message may follow a tool message, and a
/// call id consists of nine letters and digits.
pub(super) fn adapt_messages(messages: Vec<Value>) -> Vec<Value> {
    let mut adapted: Vec<Value> = Vec::with_capacity(messages.len());
    for mut message in messages {
        let is_behind_tool = adapted.last().is_some_and(|last| last["role"] == "tool");
        if is_behind_tool && message["role"] != "tool" && message["role"] != "assistant" {
            adapted.push(json!({"role": "assistant", "content": MISSING_ANSWER}));
        }
        adapt_call_id(message.get_mut("tool_call_id"));
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        calls.into_iter().flatten().for_each(|call| adapt_call_id(call.get_mut("id")));
        adapted.push(message);
    }
    adapted
}

fn adapt_call_id(id: Option<&mut Value>) {
    if let Some(Value::String(id)) = id
        && let Cow::Owned(other) = call_id(id)
    {
        *id = other;
    }
}

/// Returns the id itself if it is valid, else an id derived from it, which is the same in every
/// request.
fn call_id(id: &str) -> Cow<'_, str> {
    if id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return id.into();
    }
    let digest = Sha256::digest(id);
    let characters = digest.iter().take(9).map(|byte| {
        let place = usize::from(*byte) % ALPHANUMERIC.len();
        char::from(ALPHANUMERIC.get(place).copied().unwrap_or(b'0'))
    });
    characters.collect::<String>().into()
}

const ALPHANUMERIC: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";

/// The assistant message that replaces a missing answer: the user sent another message, or the
/// model was stopped.
const MISSING_ANSWER: &str = "(Nothing was said here.)";
