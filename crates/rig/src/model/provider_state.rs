//! [`ProviderState`]: the state that a provider needs back with a part, stored as provider
//! metadata.
//!
//! It has the form in which rig represents it, under `rig`. rig compares a fingerprint and sends a
//! part that was changed without its state.

use rig_core::message::{AssistantContent, CallId, Native, Opaque, Origin};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use ui_message_stream::json::Json;
use ui_message_stream::metadata::ProviderMetadata;

/// The state that a provider needs back with a part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct ProviderState {
    /// The model that produced the part. Only this model can read the state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) origin: Option<Origin>,
    /// The part in the provider's own form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) native: Option<Native>,
    /// The provider's id of a call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) call: Option<CallId>,
    /// Whether the provider withheld the text of the reasoning.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) redacted: bool,
    /// The provider's item for this part if only the provider can read the item, for example a tool
    /// that it executed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) opaque: Option<Opaque>,
    /// Such items that follow this part at the end of the response.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) behind: Vec<Opaque>,
}

#[derive(Serialize, Deserialize)]
struct Namespaced {
    rig: ProviderState,
}

impl ProviderState {
    /// Creates the state of a part.
    pub(super) fn from_content(content: AssistantContent, origin: Option<&Origin>) -> Self {
        // The individual response is irrelevant.
        let origin = origin.map(|origin| Origin {
            response_model: None,
            response_id: None,
            ..origin.clone()
        });
        let mut state = ProviderState { origin, ..ProviderState::default() };
        match content {
            AssistantContent::Text(text) => {
                state.native = text.native.filter(|native| !is_bare_text(&native.item));
            }
            AssistantContent::Reasoning(thought) => {
                state.native = thought.native;
                state.redacted = thought.redacted;
            }
            AssistantContent::ToolCall(call) => {
                state.native = call.native;
                state.call = Some(call.id);
            }
            AssistantContent::Image(image) => {
                state.native = image.native.and_then(|native| {
                    Some(Native { item: without_image_data(native.item)?, ..native })
                });
            }
            AssistantContent::Opaque(opaque) => state.opaque = Some(opaque),
            _ => {}
        }
        state
    }

    /// Returns the state stored with a part, or the default if another adapter stored it.
    pub(super) fn from_metadata(metadata: Option<&ProviderMetadata>) -> Self {
        let namespaced =
            metadata.and_then(|metadata| metadata.as_json().decode::<Namespaced>().ok());
        namespaced.map(|namespaced| namespaced.rig).unwrap_or_default()
    }

    /// Returns the metadata, or `None` if there is no state apart from the origin.
    pub(super) fn metadata(self) -> Option<ProviderMetadata> {
        let origin_alone =
            ProviderState { origin: self.origin.clone(), ..ProviderState::default() };
        if self == origin_alone { None } else { self.metadata_with_origin() }
    }

    /// Returns the metadata, or `None` if there is neither state nor an origin.
    pub(super) fn metadata_with_origin(self) -> Option<ProviderMetadata> {
        if self == ProviderState::default() {
            return None;
        }
        let stub = self.opaque.as_ref().map(|opaque| ProviderState {
            origin: self.origin.clone(),
            opaque: Some(stub_of(opaque)),
            ..ProviderState::default()
        });
        let without_behind =
            (!self.behind.is_empty()).then(|| ProviderState { behind: Vec::new(), ..self.clone() });
        let fits = |state: ProviderState| {
            let json = Json::from_serialize(&Namespaced { rig: state }).ok()?;
            (json.as_str().len() <= MAX_STATE_BYTES).then_some(json)
        };
        let json = fits(self).or_else(|| {
            tracing::warn!("what the provider wants back is too large to be kept");
            // The remaining entry shows that an item is missing: the reasoning before it is not
            // sent back without it.
            without_behind.and_then(fits).or_else(|| stub.and_then(fits))
        });
        ProviderMetadata::new(json?).ok()
    }
}

/// Whether an item contains nothing but its type and text.
fn is_bare_text(item: &Value) -> bool {
    let fields = item.as_object().into_iter().flatten();
    item.is_object() && fields.into_iter().all(|(name, _)| matches!(&**name, "type" | "text"))
}

/// Removes the data from the item of an image, because the image is a file of the message. Returns
/// `None` if no other field remains.
fn without_image_data(mut item: Value) -> Option<Value> {
    item.get_mut(IMAGE_FIELD)?.as_object_mut()?.remove(DATA_FIELD)?;
    item.as_object().is_some_and(|fields| fields.len() > 1).then_some(item)
}

/// Adds the data to the stored item of an image.
pub(super) fn with_image_data(mut item: Value, data: &str) -> Option<Value> {
    item.get_mut(IMAGE_FIELD)?.as_object_mut()?.insert(DATA_FIELD.to_owned(), data.into());
    Some(item)
}

/// Creates the entry that replaces an item which is too large to store.
fn stub_of(opaque: &Opaque) -> Opaque {
    let kind = opaque.kind().unwrap_or_default();
    Opaque { item: json!({ "type": kind }), replay: false }
}

/// Gemini's field for an image.
const IMAGE_FIELD: &str = "inlineData";

const DATA_FIELD: &str = "data";

/// The maximum size of a part's metadata in bytes. The client sends it with every request.
const MAX_STATE_BYTES: usize = 1024 * 1024;
