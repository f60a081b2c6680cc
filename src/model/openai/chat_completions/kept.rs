//! [`Kept`]: what a server wants back with a call, as provider metadata.
//!
//! Signatures of thoughts, mostly, without which the next request is refused. Nothing in them is
//! read here: they go back as they came, to where they came from. Others refuse them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::json::Json;
use crate::metadata::ProviderMetadata;

/// What a server wants back with a call.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Kept {
    /// The mark of the model that made it.
    made_by: String,
    /// Google's name for what belongs to the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) extra_content: Option<Map<String, Value>>,
    /// OpenRouter's for what belongs to the whole message; the last call keeps it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) reasoning_details: Vec<Map<String, Value>>,
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
    reasoning_details: Vec<Map<String, Value>>,
) -> Option<ProviderMetadata> {
    if extra_content.is_none() && reasoning_details.is_empty() {
        return None;
    }
    let kept = Kept { made_by: mark.to_owned(), extra_content, reasoning_details };
    ProviderMetadata::new(Json::of(&Outer { openai: kept }).ok()?).ok()
}

/// Adds a piece to what is known of the thoughts of an answer. Words come in pieces, which have to
/// go back as one.
pub(super) fn add_detail(details: &mut Vec<Map<String, Value>>, piece: Map<String, Value>) {
    let kind = piece.get("type").and_then(Value::as_str);
    let comes_in_pieces = matches!(kind, Some("reasoning.text" | "reasoning.summary"));
    let is_same = |last: &&mut Map<String, Value>| {
        comes_in_pieces && ["type", "index"].iter().all(|name| last.get(*name) == piece.get(*name))
    };
    let Some(last) = details.last_mut().filter(is_same) else {
        details.push(piece);
        return;
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
