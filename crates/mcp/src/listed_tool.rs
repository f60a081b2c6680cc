//! [`ListedTool`]: a tool as its server listed it.

use ::rmcp::model::Tool;
use serde_json::Value;

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
        let refused = |name: &&String| !is_accepted_everywhere(name);
        let properties = tool.input_schema.get("properties").and_then(Value::as_object);
        if let Some(property) = properties.and_then(|properties| properties.keys().find(refused)) {
            let (tool, property) = (&*log_text(&tool.name), &*log_text(property));
            tracing::warn!(
                tool,
                property,
                "Anthropic refuses requests with a property of this name"
            );
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

/// Returns whether all providers accept a property of this name. For any other one, Anthropic refuses the request, and
/// names the tool by its number alone.
fn is_accepted_everywhere(property: &str) -> bool {
    let is_accepted = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | '.' | '-');
    (1..=64).contains(&property.len()) && property.chars().all(is_accepted)
}
