//! [`ToolCall`]: a call of a tool, as an agent announces it.

use serde::{Deserialize, Serialize};

use super::Text;
use crate::id::ToolCallId;
use crate::metadata::{ProviderMetadata, ToolMetadata};

/// The description of a tool call that is announced: its id, its tool, and who runs it.
///
/// ```
/// use ui_message_stream::event::ToolCall;
///
/// let call =
///     ToolCall::new("call_7", "get_location").client_executed().with_title("Your location");
/// assert_eq!(call.id.as_str(), "call_7");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct ToolCall {
    /// The id of the call. It should be unique within its message.
    ///
    /// If an earlier call of the message has the same id, the translator sends this call with
    /// another id. Approval responses still work, because they are matched by approval id. Outputs
    /// of client-executed tools do not, because they are matched by the call id. Give
    /// client-executed calls unique ids.
    ///
    /// An id of more than 128 bytes is replaced by a short one on the wire and in stored messages.
    /// In the messages for the model the call has its own id again.
    pub id: ToolCallId,
    /// The id that the model gave to the call, if it is longer than 128 bytes and `id` replaces it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<ToolCallId>,
    /// The name of the tool.
    pub tool_name: Text,
    /// Who runs the tool.
    #[serde(default)]
    pub executed_by: Executor,
    /// Whether the client has no type for this tool. Its part is then a `dynamic-tool` part.
    #[serde(default)]
    pub dynamic: bool,
    /// The title that the user sees instead of the name of the tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<Text>,
    /// Metadata of the application. Sent only to clients that know the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_metadata: Option<ToolMetadata>,
    /// Metadata that the provider expects back with the next request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<ProviderMetadata>,
}

impl ToolCall {
    /// Creates a call of a tool that this server runs and for which the client has a type.
    pub fn new(id: impl Into<ToolCallId>, tool_name: impl Into<Text>) -> Self {
        ToolCall {
            id: id.into(),
            model_id: None,
            tool_name: tool_name.into(),
            executed_by: Executor::Server,
            dynamic: false,
            title: None,
            tool_metadata: None,
            provider_metadata: None,
        }
    }

    /// Marks the call as executed by the client. The call stays open when the turn ends, until the
    /// client sends its output.
    #[must_use]
    pub fn client_executed(mut self) -> Self {
        self.executed_by = Executor::Client;
        self
    }

    /// Marks the call as executed by the provider.
    #[must_use]
    pub fn provider_executed(mut self) -> Self {
        self.executed_by = Executor::Provider;
        self
    }

    /// Marks the tool as one for which the client has no type, see
    /// [`dynamic`](Self#structfield.dynamic).
    #[must_use]
    pub fn dynamic(mut self) -> Self {
        self.dynamic = true;
        self
    }

    /// Sets the title that the user sees instead of the name of the tool.
    #[must_use]
    pub fn with_title(mut self, title: impl Into<Text>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// Attaches metadata of the application.
    #[must_use]
    pub fn with_tool_metadata(mut self, metadata: ToolMetadata) -> Self {
        self.tool_metadata = Some(metadata);
        self
    }

    /// Marks the call as one that is made inside the call with this id: the tool of that call is an
    /// agent, which asks the user for this call. The metadata of a provider is replaced.
    #[must_use]
    pub fn inside(self, outer: &ToolCallId) -> Self {
        let outer = outer.on_wire();
        ToolCall { provider_metadata: ProviderMetadata::of_inner_call(&outer), ..self }
    }

    /// Attaches metadata that the provider expects back with the next request.
    #[must_use]
    pub fn with_provider_metadata(mut self, metadata: ProviderMetadata) -> Self {
        self.provider_metadata = Some(metadata);
        self
    }
}

/// Who runs a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Executor {
    /// This server. If the call has no result at the end of the turn, its result is an error.
    #[default]
    Server,
    /// The client, which answers with its next request.
    Client,
    /// The provider of the model.
    Provider,
}

words! { Executor { Server "server" Client "client" Provider "provider" } }
