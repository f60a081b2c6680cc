//! Tools that the provider runs: their items as calls and results, and back.

use serde_json::{Value, json};

use super::provider_state::Kept;
use crate::response_items::{IMAGE_GENERATION_CALL, Item, mcp_tool_name, text_field, tool_name};
use ui_message_stream::event::ToolCall;
use ui_message_stream::model_message::{ToolCallContent, ToolResult};

pub(super) fn optional(item: &Item, field: &str) -> Option<String> {
    item.get(field).and_then(Value::as_str).map(str::to_owned)
}

/// The call that an item of the provider's own tools is, if it is one.
pub(super) fn call(item: &Item) -> Option<ToolCall> {
    let kind = text_field(item, "type");
    let name = tool_name(kind)?;
    let kept =
        Kept { item_id: optional(item, "id"), item_type: Some(kind.to_owned()), ..Kept::default() };
    let mut call = ToolCall::new(text_field(item, "id"), name).provider_executed();
    call.provider_metadata = kept.metadata();
    Some(call)
}

/// The call that an item of a tool server is: one that ran, or that waits for an answer.
pub(super) fn mcp_call(item: &Item) -> ToolCall {
    let (server, name) = (text_field(item, "server_label"), text_field(item, "name"));
    let kept = Kept {
        item_id: optional(item, "id"),
        item_type: optional(item, "type"),
        server_label: Some(server.to_owned()),
        name: Some(name.to_owned()),
        ..Kept::default()
    };
    let mut call = ToolCall::new(text_field(item, "id"), mcp_tool_name(item));
    call.provider_metadata = kept.metadata();
    call.provider_executed().dynamic()
}

/// The items of a call that has its result. Of what the provider made and stored the id is enough,
/// if it may be referred to. It refuses what it made upon thoughts of a model without those
/// thoughts, so that without them it is told as a call that ran elsewhere.
pub(super) fn settled(
    call: &ToolCallContent,
    result: &ToolResult,
    has_its_thoughts: bool,
    may_refer: bool,
) -> Vec<Value> {
    let kept = Kept::of(call.provider_metadata.as_ref());
    let Kept { item_id: Some(id), item_type: Some(kind), .. } = &kept else {
        return function(call, result);
    };
    let is_hosted = tool_name(kind).is_some();
    if is_hosted && !has_its_thoughts {
        return function(call, result);
    }
    if kind == IMAGE_GENERATION_CALL {
        // The picture itself is a file of the message.
        return match result {
            ToolResult::Output(_) if may_refer => vec![json!({"type": kind, "id": id})],
            result => function(call, result),
        };
    }
    if is_hosted
        && let ToolResult::Output(output) = result
        && let Ok(Value::Object(mut item)) = output.to::<Value>()
    {
        item.insert("type".into(), kind.as_str().into());
        item.insert("id".into(), id.as_str().into());
        return vec![item.into()];
    }
    match (kind.as_str(), result) {
        // It was approved, and ran under an id that is not known here, or may have.
        (
            "mcp_approval_request",
            ToolResult::Output(_) | ToolResult::Error(_) | ToolResult::Unknown { .. },
        ) => function(call, result),
        ("mcp_approval_request", result) => vec![approval_request(call, &kept), no(&kept, result)],
        // An `mcp_call` would be taken, and its output dropped.
        _ => function(call, result),
    }
}

/// The answer to a question that nobody said yes to: what became of it is the reason.
pub(super) fn no(kept: &Kept, result: &ToolResult) -> Value {
    json!({
        "type": "mcp_approval_response", "approval_request_id": kept.item_id,
        "approve": false, "reason": result.text(),
    })
}

/// A question that the provider asked, as it asked it.
pub(super) fn approval_request(call: &ToolCallContent, kept: &Kept) -> Value {
    json!({
        "type": "mcp_approval_request", "id": kept.item_id, "server_label": kept.server_label,
        "name": kept.name, "arguments": call.input.as_str(),
    })
}

/// A call that ran elsewhere, or as which it cannot be sent: here it is one as any other.
pub(super) fn function(call: &ToolCallContent, result: &ToolResult) -> Vec<Value> {
    vec![function_call(call), function_output(&call.tool_call_id, result)]
}

pub(super) fn function_call(call: &ToolCallContent) -> Value {
    let mut item = json!({
        "type": "function_call", "call_id": &*call.tool_call_id, "name": &*call.tool_name,
        "arguments": call.input_object().as_str(),
    });
    if let Some(namespace) = Kept::of(call.provider_metadata.as_ref()).namespace {
        item["namespace"] = namespace.into();
    }
    item
}

pub(super) fn function_output(call_id: &str, result: &ToolResult) -> Value {
    json!({"type": "function_call_output", "call_id": call_id, "output": result.text()})
}
