//! [`ProviderState`]: the state that a server needs back with a call, stored as provider metadata.
//!
//! It consists mostly of signatures of reasoning, without which the server rejects the next
//! request. The adapter does not interpret it. It is sent back unchanged, and only to the model
//! that produced it, because other models reject it.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use ui_message_stream::json::Json;
use ui_message_stream::metadata::ProviderMetadata;

/// The state that a server needs back with a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ProviderState {
    /// The fingerprint of the model that produced the state.
    made_by: String,
    /// Google's field for state of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) extra_content: Option<Map<String, Value>>,
    /// State of the whole message, stored with its last call.
    #[serde(flatten)]
    pub(super) thoughts: ReasoningState,
}

/// The reasoning state of a response that a server needs back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ReasoningState {
    /// OpenRouter's field.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) reasoning_details: Vec<Map<String, Value>>,
    /// LiteLLM's field for Claude models.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) thinking_blocks: Vec<Map<String, Value>>,
}

#[derive(Serialize, Deserialize)]
struct Namespaced {
    openai: ProviderState,
}

impl ProviderState {
    /// Returns the state stored with a call, or the default if another model produced it.
    pub(super) fn from_metadata(metadata: Option<&ProviderMetadata>, fingerprint: &str) -> Self {
        let namespaced =
            metadata.and_then(|metadata| metadata.as_json().decode::<Namespaced>().ok());
        namespaced
            .map(|namespaced| namespaced.openai)
            .filter(|state| state.made_by == fingerprint)
            .unwrap_or_default()
    }
}

/// Returns the metadata of a call, or `None` if there is no state to store.
pub(super) fn metadata(
    fingerprint: &str,
    extra_content: Option<Map<String, Value>>,
    mut thoughts: ReasoningState,
) -> Option<ProviderMetadata> {
    // Servers reject a thinking block without its signature.
    thoughts.thinking_blocks.retain(|block| !is_thinking(block) || is_signed(block));
    if extra_content.is_none() && thoughts == ReasoningState::default() {
        return None;
    }
    let state = ProviderState { made_by: fingerprint.to_owned(), extra_content, thoughts };
    ProviderMetadata::new(Json::from_serialize(&Namespaced { openai: state }).ok()?).ok()
}

impl ReasoningState {
    /// Adds fragments of OpenRouter's field. Text arrives in several fragments, which must be sent
    /// back as one.
    pub(super) fn add_details(&mut self, pieces: impl Iterator<Item = Map<String, Value>>) {
        for piece in pieces {
            let kind = piece.get("type").and_then(Value::as_str);
            let comes_in_pieces = matches!(kind, Some("reasoning.text" | "reasoning.summary"));
            let is_same = |last: &&mut Map<String, Value>| {
                comes_in_pieces
                    && ["type", "index"].iter().all(|name| last.get(*name) == piece.get(*name))
            };
            let Some(last) = self.reasoning_details.last_mut().filter(is_same) else {
                self.reasoning_details.push(piece);
                continue;
            };
            for (name, value) in piece {
                match (last.get_mut(&name), value) {
                    (_, Value::Null) => {}
                    (Some(Value::String(text)), Value::String(more))
                        if matches!(&*name, "text" | "summary") =>
                    {
                        text.push_str(&more);
                    }
                    (_, value) => drop(last.insert(name, value)),
                }
            }
        }
    }

    /// Adds fragments of LiteLLM's field: text without a signature, then the signature. The
    /// fragment with the signature has no text, or in some versions the whole text again.
    pub(super) fn add_blocks(&mut self, pieces: impl Iterator<Item = Map<String, Value>>) {
        for piece in pieces {
            let is_begun = |last: &&mut Map<String, Value>| {
                is_thinking(last) && is_thinking(&piece) && !is_signed(last)
            };
            let Some(last) = self.thinking_blocks.last_mut().filter(is_begun) else {
                self.thinking_blocks.push(piece);
                continue;
            };
            let so_far = text(last, "thinking");
            let more = text(&piece, "thinking");
            let is_all = is_signed(&piece) && !more.is_empty() && more.starts_with(so_far);
            let thinking = if is_all { more.to_owned() } else { format!("{so_far}{more}") };
            last.extend(piece);
            last.insert("thinking".to_owned(), thinking.into());
        }
    }
}

fn is_thinking(block: &Map<String, Value>) -> bool {
    text(block, "type") == "thinking"
}

fn is_signed(block: &Map<String, Value>) -> bool {
    !text(block, "signature").is_empty()
}

fn text<'p>(piece: &'p Map<String, Value>, field: &str) -> &'p str {
    piece.get(field).and_then(Value::as_str).unwrap_or_default()
}
