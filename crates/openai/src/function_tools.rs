//! Function tools, as both APIs describe them.

use serde_json::{Map, Value};

use ui_message_stream::model::ToolDefinition;

/// Returns the JSON Schema of a function's input.
///
/// Servers reject the whole request if an object schema has no `properties`, and some if it has a
/// `$schema`.
pub(super) fn parameters(tool: &ToolDefinition) -> Value {
    // Creating the agent fails if a schema cannot be read.
    let mut schema: Value = tool.input_schema.decode().unwrap_or_default();
    if let Value::Object(schema) = &mut schema {
        schema.remove("$schema");
        if schema.get("type").is_some_and(|kind| kind == "object") {
            schema.entry("properties").or_insert_with(|| Map::new().into());
        }
    }
    schema
}

/// Returns the arguments of a tool call that was truncated.
///
/// Empty arguments are replaced with text that is not valid JSON: empty arguments would be read as
/// those of a tool without parameters, and the tool would run.
pub(super) fn truncated_arguments(arguments: String) -> String {
    if arguments.trim().is_empty() { "{".to_owned() } else { arguments }
}
