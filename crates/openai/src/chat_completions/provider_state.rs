//! [`Kept`]: what a server wants back with a call, as provider metadata.
//!
//! Signatures of thoughts, mostly, without which the next request is refused. Nothing in them is
//! read here: they go back as they came, to where they came from. Others refuse them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use ui_message_stream::json::Json;
use ui_message_stream::metadata::ProviderMetadata;

/// What a server wants back with a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Kept {
    /// The mark of the model that made it.
    made_by: String,
    /// Google's name for what belongs to the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) extra_content: Option<Map<String, Value>>,
    /// What belongs to the whole message; the last call keeps it.
    #[serde(flatten)]
    pub(super) thoughts: Thoughts,
}

/// What a server wants back of the thoughts of an answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Thoughts {
    /// OpenRouter's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) reasoning_details: Vec<Map<String, Value>>,
    /// LiteLLM's, of Claude.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) thinking_blocks: Vec<Map<String, Value>>,
}

#[derive(Serialize, Deserialize)]
struct Outer {
    openai: Kept,
}

impl Kept {
    /// What was kept with a call of this model. What another one kept is nothing here.
    pub(super) fn of(metadata: Option<&ProviderMetadata>, mark: &str) -> Self {
        let outer = metadata.and_then(|metadata| metadata.as_json().to::<Outer>().ok());
        outer.map(|outer| outer.openai).filter(|kept| kept.made_by == mark).unwrap_or_default()
    }
}

/// Metadata of a call of this model, if there is anything to keep.
pub(super) fn metadata(
    mark: &str,
    extra_content: Option<Map<String, Value>>,
    mut thoughts: Thoughts,
) -> Option<ProviderMetadata> {
    // Without its signature a thought is refused.
    thoughts.thinking_blocks.retain(|block| !is_thinking(block) || is_signed(block));
    if extra_content.is_none() && thoughts == Thoughts::default() {
        return None;
    }
    let kept = Kept { made_by: mark.to_owned(), extra_content, thoughts };
    ProviderMetadata::new(Json::of(&Outer { openai: kept }).ok()?).ok()
}

impl Thoughts {
    /// Takes in pieces of OpenRouter's. Words come in several, which have to go back as one.
    pub(super) fn add_details(&mut self, pieces: Value) {
        for piece in objects(pieces) {
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

    /// Takes in pieces of LiteLLM's: words without a signature, and then the signature, with no words
    /// or, of some versions, with all of them again.
    pub(super) fn add_blocks(&mut self, pieces: Value) {
        for piece in objects(pieces) {
            let is_begun = |last: &&mut Map<String, Value>| {
                is_thinking(last) && is_thinking(&piece) && !is_signed(last)
            };
            let Some(last) = self.thinking_blocks.last_mut().filter(is_begun) else {
                self.thinking_blocks.push(piece);
                continue;
            };
            let (so_far, more) = (text(last, "thinking"), text(&piece, "thinking"));
            let is_all = is_signed(&piece) && !more.is_empty() && more.starts_with(so_far);
            let thinking = if is_all { more.to_owned() } else { format!("{so_far}{more}") };
            last.extend(piece);
            last.insert("thinking".to_owned(), thinking.into());
        }
    }
}

fn objects(pieces: Value) -> impl Iterator<Item = Map<String, Value>> {
    let pieces = if let Value::Array(pieces) = pieces { pieces } else { Vec::new() };
    pieces.into_iter().filter_map(|piece| match piece {
        Value::Object(piece) => Some(piece),
        _ => None,
    })
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
