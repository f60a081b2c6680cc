//! [`ProviderState`]: the state that the provider needs back with a part, stored as provider
//! metadata.
//!
//! Its place, under `openai`, and its field names are those of the AI SDK.

use serde::{Deserialize, Serialize};

use ui_message_stream::json::Json;
use ui_message_stream::metadata::ProviderMetadata;

/// The state that the provider needs back with a part.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ProviderState {
    /// The id of the part's item in the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) item_id: Option<String>,
    /// The type of the item, for parts that can be one of several types.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) item_type: Option<String>,
    /// The label of the MCP server, for a tool of an MCP server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_label: Option<String>,
    /// The MCP server's name of the tool, for a tool of an MCP server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    /// The namespace of a function that a tool search found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) namespace: Option<String>,
    /// The fingerprint of the endpoint that produced the reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) made_by: Option<String>,
    /// The fingerprint of the model that produced the reasoning, at its endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) made_by_model: Option<String>,
    /// The encrypted reasoning, which only the provider can read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reasoning_encrypted_content: Option<String>,
    /// The id of the response whose last part this is, if the provider stores responses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) response_id: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Namespaced {
    openai: ProviderState,
}

impl ProviderState {
    /// Returns the state stored with a part, or the default if another provider stored it.
    pub(super) fn from_metadata(metadata: Option<&ProviderMetadata>) -> Self {
        let namespaced =
            metadata.and_then(|metadata| metadata.as_json().decode::<Namespaced>().ok());
        namespaced.map(|namespaced| namespaced.openai).unwrap_or_default()
    }

    /// Whether the call is an approval request of this provider.
    pub(super) fn is_approval_request(&self) -> bool {
        self.item_type.as_deref() == Some("mcp_approval_request") && self.item_id.is_some()
    }

    /// Returns the metadata, or `None` if there is no state to store.
    pub(super) fn metadata(self) -> Option<ProviderMetadata> {
        if self == ProviderState::default() {
            return None;
        }
        ProviderMetadata::new(Json::from_serialize(&Namespaced { openai: self }).ok()?).ok()
    }
}
