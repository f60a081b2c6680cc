//! [`Case`]: a stream, the message that it continues, and this crate's result for it.

use serde_json::{Value, json};
use ui_message_stream::UiMessage;
use ui_message_stream::chunk::{ReceivedChunk, Version};
use ui_message_stream::reducer::{AfterError, ReduceError, Reducer, ResetOn};

use super::compare::{Verdict, canonical};

/// A stream, and the message that it continues. Its texts are JSON, or broken JSON.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) message: Option<String>,
    pub(crate) chunks: Vec<String>,
    /// Whether reading continues after an `error` chunk.
    pub(crate) reads_on: bool,
    /// The client that reads it.
    pub(crate) client: Version,
}

/// The newest clients with which this crate is tested.
pub(crate) const NEWEST_V6: (&str, Version) = ("6.0.326", Version::V6Patch(326));
pub(crate) const NEWEST_V7: (&str, Version) = ("7.0.173", Version::V7Patch(173));

impl Case {
    /// The question for the judge.
    pub(crate) fn question(&self, versions: &[&str]) -> Value {
        let sse: String = self.chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
        let mut question =
            json!({ "case": 0, "sse": sse, "readOn": self.reads_on, "versions": versions });
        if let Some(message) = &self.message {
            question["message"] = serde_json::from_str(message).unwrap();
        }
        question
    }

    /// The reducer after all chunks, and the chunk that it rejected with the reason.
    pub(crate) fn reduce(&self, reset_on: ResetOn) -> (Reducer, Option<(usize, &'static str)>) {
        let message = self.message.as_deref().map(|message| UiMessage::parse(message).unwrap());
        let mut reducer = message
            .map_or_else(Reducer::new, Reducer::continuing)
            .with_client(self.client)
            .with_reset_on(reset_on)
            .with_after_error(if self.reads_on { AfterError::Continue } else { AfterError::Stop });
        // Reading the message in between must not matter.
        let looks = self.chunks.len() % 4;
        for (at, chunk) in self.chunks.iter().enumerate() {
            if looks > 0 && at % looks == 0 {
                match at % 2 {
                    0 => _ = reducer.message(),
                    _ => _ = reducer.rendered(),
                }
            }
            // After an `error` chunk nothing is read, not even invalid chunks.
            if reducer.has_stopped() {
                break;
            }
            let Ok(received) = ReceivedChunk::parse(chunk) else {
                return (reducer, Some((at, "schema")));
            };
            match reducer.push(&received) {
                Ok(()) => {}
                Err(ReduceError::UnknownKind { .. }) => return (reducer, Some((at, "schema"))),
                Err(_) => return (reducer, Some((at, "reducer"))),
            }
        }
        (reducer, None)
    }

    /// This crate's result.
    pub(crate) fn verdict(&self) -> Verdict {
        let (mut reducer, refused) = self.reduce(ResetOn::OtherId);
        let shown = reducer.rendered().map(|message| serde_json::to_string(&message).unwrap());
        let held = match refused {
            Some(_) => shown.clone().or_else(|| self.message.clone()),
            None => Some(serde_json::to_string(reducer.message()).unwrap()),
        };
        Verdict {
            refused,
            error_text: reducer.error_text().map(str::to_owned),
            shown: shown.as_deref().map(canonical).unwrap_or_default(),
            message: held.as_deref().map(canonical).unwrap_or_default(),
        }
    }

    /// The same case for an old client: without the keys that it does not know. `None` if it is
    /// known to treat the case differently.
    pub(crate) fn for_old_client(&self) -> Option<Self> {
        let takes_up_input = self.message.as_deref().is_some_and(|m| m.contains("input-streaming"));
        let is_odd = |chunk: &String| {
            let chunk: Value = serde_json::from_str(chunk).unwrap_or_default();
            // Ids that are names of properties of every object, and metadata with keys that newer
            // clients skip.
            let names = ["toString", "__proto__", "constructor", "prototype"];
            let ids = [&chunk["id"], &chunk["toolCallId"]];
            let metadata = chunk["messageMetadata"].to_string();
            names.iter().any(|name| ids.iter().any(|id| *id == name) || metadata.contains(name))
        };
        if takes_up_input || self.chunks.iter().any(is_odd) {
            return None;
        }
        let without_newer_keys = |chunk: &String| match ReceivedChunk::parse(chunk) {
            Ok(ReceivedChunk::Known { chunk, .. }) => {
                serde_json::to_string(&chunk.for_version(Version::V6)).unwrap()
            }
            _ => chunk.clone(),
        };
        Some(Case { chunks: self.chunks.iter().map(without_newer_keys).collect(), ..self.clone() })
    }
}
