//! [`ListedTool`]: a tool as its server listed it.

use ::rmcp::model::Tool;

use ui_message_stream::id::log_text;
use ui_message_stream::json::Json;
use ui_message_stream::model::parameters;

/// A tool that a server listed, if it can be called.
pub(super) struct ListedTool {
    pub(super) tool: Tool,
    pub(super) input_schema: Json,
    /// The title and the annotations.
    pub(super) claims: Json,
}

impl ListedTool {
    pub(super) fn new(tool: Tool) -> Option<Self> {
        // The protocol requires an object. A model provider would reject a request with another
        // type, and all tools with it.
        let is_object = |schema: &Json| parameters(schema).is_some();
        let input_schema = Json::from_serialize(&*tool.input_schema).ok().filter(is_object);
        if input_schema.is_none() {
            let tool = &*log_text(&tool.name);
            tracing::warn!(tool, "a tool whose schema cannot be sent to a model is left out");
        }
        let claims = Json::from_serialize(&(&tool.title, &tool.annotations)).ok()?;
        Some(ListedTool { input_schema: input_schema?, claims, tool })
    }

    /// Returns whether everything is equal on which a model, a user or a policy bases a decision.
    pub(super) fn is_equivalent(&self, other: &ListedTool) -> bool {
        self.tool.description == other.tool.description
            && self.tool.input_schema == other.tool.input_schema
            && self.claims == other.claims
    }
}
