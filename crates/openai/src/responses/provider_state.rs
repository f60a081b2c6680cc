//! [`Kept`]: what the provider wants back with a part, as provider metadata.
//!
//! It stands where the AI SDK keeps it, under `openai`, and is named as it names it there.

use serde::{Deserialize, Serialize};

use ui_message_stream::json::Json;
use ui_message_stream::metadata::ProviderMetadata;

/// What the provider wants back with a part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Kept {
    /// Which item of the response it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) item_id: Option<String>,
    /// What kind of item, where a part can be one of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) item_type: Option<String>,
    /// Of a tool server's tool, which server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_label: Option<String>,
    /// Of a tool server's tool, the server's name for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// Of a function that a search found, the namespace that it stands in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    /// Of thoughts, the mark of the endpoint that made them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) made_by: Option<String>,
    /// Thoughts that only the provider can read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_encrypted_content: Option<String>,
    /// Which response it was the last piece of, if the provider stores it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_id: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Outer {
    openai: Kept,
}

impl Kept {
    /// What was kept with a part. What another provider kept is nothing here.
    pub(super) fn of(metadata: Option<&ProviderMetadata>) -> Self {
        let outer = metadata.and_then(|metadata| metadata.as_json().to::<Outer>().ok());
        outer.map(|outer| outer.openai).unwrap_or_default()
    }

    /// Whether the call is a question that this provider asked.
    pub(super) fn is_question(&self) -> bool {
        self.item_type.as_deref() == Some("mcp_approval_request") && self.item_id.is_some()
    }

    /// As metadata, if there is anything to keep.
    pub(super) fn metadata(self) -> Option<ProviderMetadata> {
        if self == Kept::default() {
            return None;
        }
        ProviderMetadata::new(Json::of(&Outer { openai: self }).ok()?).ok()
    }
}
