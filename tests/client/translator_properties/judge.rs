//! The question to the real client, in several versions, as `tests/client/judge.mjs` reads it.

use serde_json::{Value, json};

use super::case::Case;
use super::translate::Translated;

pub(crate) fn question(case: &Case, translated: &Translated) -> Value {
    let mut question = json!({ "case": 0, "sse": translated.sse, "versions": case.clients() });
    if let Some(message) = case.continued() {
        question["message"] = message.clone();
    }
    question
}
