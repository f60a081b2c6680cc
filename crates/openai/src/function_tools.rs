//! Functions, as both requests describe them; and what a call of one is that was cut off.

use serde_json::{Map, Value};

use ui_message_stream::agent::ToolDescription;

/// The schema of what a function takes. An object without `properties` is refused, and of some
/// servers a `$schema`, and with it the whole request.
pub(super) fn parameters(tool: &ToolDescription) -> Value {
    // A schema that cannot be read was refused when the agent was made.
    let mut schema: Value = tool.input_schema.to().unwrap_or_default();
    if let Value::Object(schema) = &mut schema {
        schema.remove("$schema");
        if schema.get("type").is_some_and(|kind| kind == "object") {
            schema.entry("properties").or_insert_with(|| Map::new().into());
        }
    }
    schema
}

/// The arguments of a call that was cut off. Where none came yet, these are none that parse: no
/// arguments at all would read as those of a tool that takes nothing, and it would run.
pub(super) fn cut_off(arguments: String) -> String {
    if arguments.trim().is_empty() { "{".to_owned() } else { arguments }
}
