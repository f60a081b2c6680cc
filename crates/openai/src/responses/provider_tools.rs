//! Tools that the provider executes: converts items to calls, and calls with results to items.

use serde_json::{Value, json};

use super::provider_state::ProviderState;
use crate::response_items::{IMAGE_GENERATION_CALL, Item, mcp_tool_name, text_field, tool_name};
use ui_message_stream::event::ToolCall;
use ui_message_stream::model::{ToolCallContent, ToolResult};

pub(super) fn optional_text(item: &Item, field: &str) -> Option<String> {
    item.get(field).and_then(Value::as_str).map(str::to_owned)
}

/// Returns the call for an item of a built-in tool, or `None` for any other item.
pub(super) fn call(item: &Item) -> Option<ToolCall> {
    let kind = text_field(item, "type");
    let name = tool_name(kind)?;
    let state = ProviderState {
        item_id: optional_text(item, "id"),
        item_type: Some(kind.to_owned()),
        ..ProviderState::default()
    };
    let mut call = ToolCall::new(text_field(item, "id"), name).provider_executed();
    call.provider_metadata = state.metadata();
    Some(call)
}

/// Returns the call for an item of an MCP server's tool: an executed call or an approval request.
pub(super) fn mcp_call(item: &Item) -> ToolCall {
    let server = text_field(item, "server_label");
    let name = text_field(item, "name");
    let state = ProviderState {
        item_id: optional_text(item, "id"),
        item_type: optional_text(item, "type"),
        server_label: Some(server.to_owned()),
        name: Some(name.to_owned()),
        ..ProviderState::default()
    };
    let mut call = ToolCall::new(text_field(item, "id"), mcp_tool_name(item));
    call.provider_metadata = state.metadata();
    call.provider_executed().dynamic()
}

/// Returns the items of a call with its result.
///
/// A stored item is referred to by its id if `can_refer` is set. The provider rejects an item that
/// followed its reasoning if the request does not contain the reasoning. Such a call is then sent
/// as one that was executed elsewhere.
pub(super) fn result_items(
    call: &ToolCallContent,
    result: &ToolResult,
    has_its_reasoning: bool,
    can_refer: bool,
) -> Vec<Value> {
    let state = ProviderState::from_metadata(call.provider_metadata.as_ref());
    let ProviderState { item_id: Some(id), item_type: Some(kind), .. } = &state else {
        return function_items(call, result);
    };
    let is_built_in = tool_name(kind).is_some();
    if is_built_in && !has_its_reasoning {
        return function_items(call, result);
    }
    if kind == IMAGE_GENERATION_CALL {
        // The image itself is a file of the message.
        return match result {
            ToolResult::Output(_) if can_refer => vec![json!({"type": kind, "id": id})],
            result => function_items(call, result),
        };
    }
    if is_built_in
        && let ToolResult::Output(output) = result
        && let Ok(Value::Object(mut item)) = output.decode::<Value>()
    {
        item.insert("type".into(), kind.as_str().into());
        item.insert("id".into(), id.as_str().into());
        return vec![item.into()];
    }
    match (kind.as_str(), result) {
        // The call was or may have been approved and executed, under an id that is not known here.
        (
            "mcp_approval_request",
            ToolResult::Output(_)
            | ToolResult::Error(_)
            | ToolResult::Executing
            | ToolResult::OutcomeUnknown { .. },
        ) => function_items(call, result),
        ("mcp_approval_request", result) => {
            vec![approval_request(call, &state), denial(&state, result)]
        }
        // The provider would accept an `mcp_call` but discard its output.
        _ => function_items(call, result),
    }
}

/// Returns the denial of an approval request. The reason is the text of the result.
pub(super) fn denial(state: &ProviderState, result: &ToolResult) -> Value {
    json!({
        "type": "mcp_approval_response", "approval_request_id": state.item_id,
        "approve": false, "reason": result.text(),
    })
}

/// Returns the approval request as the provider sent it.
pub(super) fn approval_request(call: &ToolCallContent, state: &ProviderState) -> Value {
    json!({
        "type": "mcp_approval_request", "id": state.item_id, "server_label": state.server_label,
        "name": state.name, "arguments": call.input.as_str(),
    })
}

/// Returns the items of a function call and its output, for a call that was executed elsewhere or
/// cannot be sent in another form.
pub(super) fn function_items(call: &ToolCallContent, result: &ToolResult) -> Vec<Value> {
    vec![function_call(call), function_output(&call.tool_call_id, result)]
}

pub(super) fn function_call(call: &ToolCallContent) -> Value {
    let mut item = json!({
        "type": "function_call", "call_id": &*call.tool_call_id, "name": &*call.tool_name,
        "arguments": call.input_object().as_str(),
    });
    if let Some(namespace) = ProviderState::from_metadata(call.provider_metadata.as_ref()).namespace
    {
        item["namespace"] = namespace.into();
    }
    item
}

pub(super) fn function_output(call_id: &str, result: &ToolResult) -> Value {
    json!({"type": "function_call_output", "call_id": call_id, "output": result.text()})
}
