//! [`Kept`]: what a provider wants back with a part, as rig has it, as provider metadata.
//!
//! It stands under `rig`. A part that was changed since is sent without: rig looks at a fingerprint.

use rig_core::message::{AssistantContent, CallId, Native, Opaque, Origin};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use ui_message_stream::json::Json;
use ui_message_stream::metadata::ProviderMetadata;

/// What a provider wants back with a part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Kept {
    /// Which model said it: no other reads what is kept here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) origin: Option<Origin>,
    /// The part as the provider has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) native: Option<Native>,
    /// What the provider calls a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) call: Option<CallId>,
    /// Whether the provider withheld the thoughts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) redacted: bool,
    /// The item of the provider that it is, and that only the provider reads: a tool that it ran, for
    /// instance.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) opaque: Option<Opaque>,
    /// Such items behind it, that end the answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) behind: Vec<Opaque>,
}

#[derive(Serialize, Deserialize)]
struct Outer {
    rig: Kept,
}

impl Kept {
    /// What is to be kept with a part.
    pub(super) fn with(content: AssistantContent, origin: Option<&Origin>) -> Self {
        // Which answer it was, nobody asks.
        let origin = origin.map(|origin| Origin {
            response_model: None,
            response_id: None,
            ..origin.clone()
        });
        let mut kept = Kept { origin, ..Kept::default() };
        match content {
            AssistantContent::Text(text) => {
                kept.native = text.native.filter(|native| !is_bare_text(&native.item));
            }
            AssistantContent::Reasoning(thought) => {
                kept.native = thought.native;
                kept.redacted = thought.redacted;
            }
            AssistantContent::ToolCall(call) => {
                kept.native = call.native;
                kept.call = Some(call.id);
            }
            AssistantContent::Image(image) => {
                kept.native = image.native.and_then(|native| {
                    Some(Native { item: without_picture(native.item)?, ..native })
                });
            }
            AssistantContent::Opaque(opaque) => kept.opaque = Some(opaque),
            _ => {}
        }
        kept
    }

    /// What was kept with a part. What others kept is nothing here.
    pub(super) fn of(metadata: Option<&ProviderMetadata>) -> Self {
        let outer = metadata.and_then(|metadata| metadata.as_json().to::<Outer>().ok());
        outer.map(|outer| outer.rig).unwrap_or_default()
    }

    /// As metadata, if there is anything to keep but whose it is.
    pub(super) fn metadata(self) -> Option<ProviderMetadata> {
        let origin_alone = Kept { origin: self.origin.clone(), ..Kept::default() };
        if self == origin_alone { None } else { self.whole_metadata() }
    }

    /// As metadata, if there is anything to keep.
    pub(super) fn whole_metadata(self) -> Option<ProviderMetadata> {
        if self == Kept::default() {
            return None;
        }
        let stub = self.opaque.as_ref().map(|opaque| Kept {
            origin: self.origin.clone(),
            opaque: Some(left_out(opaque)),
            ..Kept::default()
        });
        let without_behind =
            (!self.behind.is_empty()).then(|| Kept { behind: Vec::new(), ..self.clone() });
        let fits = |kept: Kept| {
            let json = Json::of(&Outer { rig: kept }).ok()?;
            (json.as_str().len() <= MOST_KEPT_BYTES).then_some(json)
        };
        let json = fits(self).or_else(|| {
            tracing::warn!("what the provider wants back is too large to be kept");
            // That there was something: thoughts in front of it do not go back without it.
            without_behind.and_then(fits).or_else(|| stub.and_then(fits))
        });
        ProviderMetadata::new(json?).ok()
    }
}

/// Whether an item says no more than the text that it is.
fn is_bare_text(item: &Value) -> bool {
    let fields = item.as_object().into_iter().flatten();
    item.is_object() && fields.into_iter().all(|(name, _)| matches!(&**name, "type" | "text"))
}

/// Of the item of a picture what stands beside the picture, which is a file of the message. `None` if
/// nothing does.
fn without_picture(mut item: Value) -> Option<Value> {
    item.get_mut(PICTURE)?.as_object_mut()?.remove(DATA)?;
    item.as_object().is_some_and(|fields| fields.len() > 1).then_some(item)
}

/// The item of a picture, of which that was kept.
pub(super) fn with_picture(mut item: Value, data: &str) -> Option<Value> {
    item.get_mut(PICTURE)?.as_object_mut()?.insert(DATA.to_owned(), data.into());
    Some(item)
}

/// Stands for an item that is not kept.
fn left_out(opaque: &Opaque) -> Opaque {
    let kind = opaque.kind().unwrap_or_default();
    Opaque { item: json!({ "type": kind }), replay: false }
}

/// Where Gemini has a picture.
const PICTURE: &str = "inlineData";

const DATA: &str = "data";

/// How much is kept with a part. The client sends it back with every request.
const MOST_KEPT_BYTES: usize = 1024 * 1024;
