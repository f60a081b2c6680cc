//! Tools that OpenAI's Responses API executes itself, as tool calls with results: the tool's name,
//! its input and its result, each read from an item of the response.

use serde_json::{Map, Value, json};

use ui_message_stream::UserText;
use ui_message_stream::event::{AgentEvent, File};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::json::Json;

/// The item types of the provider's built-in tools, with the names of the tools.
const BUILT_IN_TOOLS: &[(&str, &str)] = &[
    ("web_search_call", "web_search"),
    ("file_search_call", "file_search"),
    ("code_interpreter_call", "code_interpreter"),
    (IMAGE_GENERATION_CALL, "image_generation"),
];

/// The `type` of an item that holds a generated image.
pub const IMAGE_GENERATION_CALL: &str = "image_generation_call";

/// The fields of an item that hold its result and are not part of the tool's input.
const RESULT_FIELDS: &[&str] = &["status", "results", "outputs", "result", "output", "error"];

/// An item of a response: a JSON object with a `type`.
pub type Item = Map<String, Value>;

/// Returns a field of an item if it is a string, else the empty string.
pub fn text_field<'i>(item: &'i Item, field: &str) -> &'i str {
    item.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the name of the tool that an item of this `type` is a call of, if it is a built-in tool
/// of the provider.
///
/// ```
/// use ui_message_stream_openai::response_items::tool_name;
///
/// assert_eq!(tool_name("web_search_call"), Some("web_search"));
/// assert_eq!(tool_name("message"), None);
/// ```
pub fn tool_name(kind: &str) -> Option<&'static str> {
    BUILT_IN_TOOLS.iter().find(|(item_type, _)| *item_type == kind).map(|(_, name)| *name)
}

/// Returns the name of an MCP server's tool, `mcp.{server}.{tool}`, from an `mcp_call` or an
/// `mcp_approval_request`.
pub fn mcp_tool_name(item: &Item) -> String {
    format!("mcp.{}.{}", text_field(item, "server_label"), text_field(item, "name"))
}

/// Returns the input of a built-in tool.
pub fn tool_input(item: &Item) -> Json {
    let input = match item.get("action") {
        Some(Value::Object(action)) => action,
        _ => item,
    };
    let is_input = |name: &str| {
        !RESULT_FIELDS.contains(&name) && !matches!(name, "id" | "sources") && {
            // The `type` of an item names the tool. The `type` of an action is part of the input.
            name != "type" || item.contains_key("action")
        }
    };
    let input = input.iter().filter(|(name, _)| is_input(name));
    to_json(&input.map(|(name, value)| (name.clone(), value.clone())).collect::<Item>().into())
}

/// Returns the input of an MCP server's tool. Arguments that are not JSON become a JSON string.
pub fn mcp_tool_input(item: &Item) -> Json {
    match item.get("arguments") {
        None | Some(Value::Null) => to_json(&json!({})),
        Some(Value::String(text)) if text.is_empty() => to_json(&json!({})),
        Some(Value::String(text)) => Json::parse(text).unwrap_or_else(|_| Json::string(text)),
        // From some servers the arguments are not in a string.
        Some(value) => to_json(value),
    }
}

/// Removes the image from an `image_generation_call` item and returns it as a file.
pub fn take_image(item: &mut Item) -> Option<File> {
    if text_field(item, "type") != IMAGE_GENERATION_CALL {
        return None;
    }
    let Some(Value::String(image)) = item.remove("result") else { return None };
    let format = match text_field(item, "output_format") {
        "" => "png",
        format => format,
    };
    let media_type = format!("image/{format}");
    let url = format!("data:{media_type};base64,{image}").into();
    Some(File { url, media_type: media_type.into() })
}

/// Returns the result of a built-in tool's call as an event. The output is the whole item without its
/// `id` and `type`.
pub fn result_event(id: ToolCallId, item: &Item) -> AgentEvent {
    if text_field(item, "status") == "failed" {
        return AgentEvent::tool_failed(id, UserText::ToolFailed);
    }
    let mut output = item.clone();
    output.retain(|name, _| !matches!(name.as_str(), "id" | "type"));
    AgentEvent::tool_output(id, to_json(&output.into()))
}

/// Returns the result of an MCP server's tool call as an event.
pub fn mcp_result_event(id: ToolCallId, item: &Item) -> AgentEvent {
    match item.get("error").filter(|error| !error.is_null()) {
        Some(error) => AgentEvent::tool_failed(id, error_text(error)),
        None => AgentEvent::tool_output(id, Json::string(text_field(item, "output"))),
    }
}

/// Returns the text of an MCP server's error.
fn error_text(error: &Value) -> String {
    let texts = |content: &Value| {
        let texts = content.as_array().into_iter().flatten();
        let texts: Vec<&str> = texts.filter_map(|piece| piece.get("text")?.as_str()).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    };
    let message = error.as_str().or_else(|| error.get("message")?.as_str()).map(str::to_owned);
    message.or_else(|| texts(error.get("content")?)).unwrap_or_else(|| error.to_string())
}

/// Converts a value to JSON that every client accepts; else to a JSON string of its text.
pub fn to_json(value: &Value) -> Json {
    Json::from_serialize(value).unwrap_or_else(|_| Json::string(&value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_of_an_mcp_tool_may_be_a_json_value_or_its_text() {
        for (arguments, input) in [
            (json!({"n": 1}), r#"{"n":1}"#),
            (json!(r#"{"n":1}"#), r#"{"n":1}"#),
            (json!("not JSON"), r#""not JSON""#),
            (json!(""), "{}"),
            (Value::Null, "{}"),
        ] {
            let item = Item::from_iter([("arguments".to_owned(), arguments)]);
            assert_eq!(mcp_tool_input(&item).as_str(), input);
        }
        assert_eq!(mcp_tool_input(&Item::new()).as_str(), "{}");
    }
}
