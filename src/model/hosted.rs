//! Tools that a provider with OpenAI's Responses runs itself, as a person sees them: what each item is
//! called, what was asked for, and what came of it.

use serde_json::{Map, Value};

use crate::event::{AgentEvent, File};
use crate::id::ToolCallId;
use crate::json::Json;

/// The items of tools that are a part of the provider, and the names of the tools.
const HOSTED: &[(&str, &str)] = &[
    ("web_search_call", "web_search"),
    ("file_search_call", "file_search"),
    ("code_interpreter_call", "code_interpreter"),
    (PICTURE, "image_generation"),
];

/// The item of a picture that the provider made.
pub(super) const PICTURE: &str = "image_generation_call";

/// What says how a call came out, and is no part of what was asked for.
const OUTCOME: &[&str] = &["status", "results", "outputs", "result", "output", "error"];

/// An item of the response: an object with a `type`.
pub(super) type Item = Map<String, Value>;

pub(super) fn text<'i>(item: &'i Item, field: &str) -> &'i str {
    item.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// The tool that items of this kind are calls of, if it is one of the provider's own.
pub(super) fn tool(kind: &str) -> Option<&'static str> {
    HOSTED.iter().find(|(hosted, _)| *hosted == kind).map(|(_, name)| *name)
}

/// What the tool of a tool server is called, of a call that ran or that waits for an answer.
pub(super) fn mcp_tool(item: &Item) -> String {
    format!("mcp.{}.{}", text(item, "server_label"), text(item, "name"))
}

/// What one of the provider's own tools was asked for.
pub(super) fn input(item: &Item) -> Json {
    let asked = match item.get("action") {
        Some(Value::Object(action)) => action,
        _ => item,
    };
    let is_asked = |name: &str| {
        !OUTCOME.contains(&name) && !matches!(name, "id" | "sources") && {
            // The type of an item is its tool; that of an action is what was done.
            name != "type" || item.contains_key("action")
        }
    };
    let asked = asked.iter().filter(|(name, _)| is_asked(name));
    json_of(&asked.map(|(name, value)| (name.clone(), value.clone())).collect::<Item>().into())
}

/// What the tool of a tool server was asked for.
pub(super) fn mcp_input(item: &Item) -> Json {
    let arguments = text(item, "arguments");
    let input = Json::parse(if arguments.is_empty() { "{}" } else { arguments });
    input.unwrap_or_else(|_| Json::string(arguments))
}

/// The picture that an item holds, taken out of it: it is a file of the message.
pub(super) fn picture(item: &mut Item) -> Option<File> {
    if text(item, "type") != PICTURE {
        return None;
    }
    let Some(Value::String(image)) = item.remove("result") else { return None };
    let format = match text(item, "output_format") {
        "" => "png",
        format => format,
    };
    let media_type = format!("image/{format}");
    let url = format!("data:{media_type};base64,{image}").into();
    Some(File { url, media_type: media_type.into() })
}

/// What came of the call of one of the provider's own tools: everything that the item says.
pub(super) fn came_of(id: ToolCallId, item: &Item) -> AgentEvent {
    if text(item, "status") == "failed" {
        return AgentEvent::tool_failed(id, "The tool failed.");
    }
    let mut said = item.clone();
    said.retain(|name, _| !matches!(name.as_str(), "id" | "type"));
    AgentEvent::tool_output(id, json_of(&said.into()))
}

/// What came of the call of a tool server's tool.
pub(super) fn mcp_came_of(id: ToolCallId, item: &Item) -> AgentEvent {
    match item.get("error").filter(|error| !error.is_null()) {
        Some(error) => AgentEvent::tool_failed(id, error_text(error)),
        None => AgentEvent::tool_output(id, Json::string(text(item, "output"))),
    }
}

/// What an error of a tool server says.
fn error_text(error: &Value) -> String {
    let texts = |content: &Value| {
        let texts = content.as_array().into_iter().flatten();
        let texts: Vec<&str> = texts.filter_map(|piece| piece.get("text")?.as_str()).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    };
    let said = error.as_str().or_else(|| error.get("message")?.as_str()).map(str::to_owned);
    said.or_else(|| texts(error.get("content")?)).unwrap_or_else(|| error.to_string())
}

/// As JSON that every client takes; else its text.
pub(super) fn json_of(value: &Value) -> Json {
    Json::of(value).unwrap_or_else(|_| Json::string(&value.to_string()))
}
