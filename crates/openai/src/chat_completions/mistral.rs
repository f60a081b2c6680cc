//! What Mistral's API wants otherwise than all others, and the templates of its models elsewhere.

use std::borrow::Cow;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Makes messages ones that Mistral takes: nobody speaks right behind a tool but the model, and the
/// id of a call is of nine letters and digits.
pub(super) fn fitted(messages: Vec<Value>) -> Vec<Value> {
    let mut fitted: Vec<Value> = Vec::with_capacity(messages.len());
    for mut message in messages {
        let is_behind_tool = fitted.last().is_some_and(|last| last["role"] == "tool");
        if is_behind_tool && message["role"] != "tool" && message["role"] != "assistant" {
            fitted.push(json!({"role": "assistant", "content": SAID_NOTHING}));
        }
        fit_id(message.get_mut("tool_call_id"));
        let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
        calls.into_iter().flatten().for_each(|call| fit_id(call.get_mut("id")));
        fitted.push(message);
    }
    fitted
}

fn fit_id(id: Option<&mut Value>) {
    if let Some(Value::String(id)) = id
        && let Cow::Owned(other) = call_id(id)
    {
        *id = other;
    }
}

/// The id itself, or the one that stands for it in every request.
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

/// Stands for an answer that never came: the person wrote on, or the model was stopped.
const SAID_NOTHING: &str = "(Nothing was said here.)";
