//! [`ProviderItem`]: converts tools that the provider executes to calls and results.
//!
//! rig represents these tools as items that only their provider can read: the items of OpenAI's
//! Responses API and the blocks of Anthropic's Messages API. The items are sent back unchanged at
//! their original position. The calls and results are only for the user.

use std::collections::HashMap;

use rig_core::message::{AssistantContent as Content, Opaque, Origin};
use serde_json::{Value, json};

use super::fresh_id;
use super::provider_state::ProviderState;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::json::Json;
use ui_message_stream::model::{
    AssistantContent, ModelMessage, ToolApprovalResponseContent, ToolContent, ToolResult,
};
use ui_message_stream_openai::response_items::{self, Item, mcp_tool_name, text_field, to_json};

/// The type of the item with which the provider requests approval.
const APPROVAL_REQUEST: &str = "mcp_approval_request";

/// The type of the item with the approval response.
const APPROVAL_RESPONSE: &str = "mcp_approval_response";

/// An item of a tool that the provider executes.
pub(super) enum ProviderItem<'i> {
    /// A call with its result.
    CallWithResult(&'i Item),
    /// A call whose result is in another item.
    Call(&'i Item),
    /// The result of a call in another item, with the provider's id of the call.
    Result(&'i str, &'i Item),
    /// The provider requests approval before it executes a tool.
    ApprovalRequest,
}

impl<'i> ProviderItem<'i> {
    /// Classifies an item. Returns `None` if it belongs to no tool or to an unknown one.
    pub(super) fn from_opaque(opaque: &'i Opaque) -> Option<Self> {
        let item = opaque.item.as_object()?;
        Some(match opaque.kind()? {
            APPROVAL_REQUEST => ProviderItem::ApprovalRequest,
            "mcp_call" => ProviderItem::CallWithResult(item),
            kind if response_items::tool_name(kind).is_some() => ProviderItem::CallWithResult(item),
            kind if is_use(kind) => ProviderItem::Call(item),
            kind if is_result(kind) => ProviderItem::Result(text_field(item, "tool_use_id"), item),
            _ => return None,
        })
    }
}

/// Returns the call of an item, and its input.
pub(super) fn call(item: &Item) -> (ToolCall, Json) {
    let name = text_field(item, "name");
    let server = text_field(item, "server_name");
    let kind = text_field(item, "type");
    let of_server = |name: String| ToolCall::new(fresh_id(), name).dynamic();
    let (call, input) = match kind {
        "mcp_call" => (of_server(mcp_tool_name(item)), response_items::mcp_tool_input(item)),
        "mcp_tool_use" => (of_server(format!("mcp.{server}.{name}")), input_field(item)),
        _ => match response_items::tool_name(kind) {
            Some(tool) => (ToolCall::new(fresh_id(), tool), response_items::tool_input(item)),
            None => (ToolCall::new(fresh_id(), name.to_owned()), input_field(item)),
        },
    };
    (call.provider_executed(), input)
}

fn input_field(item: &Item) -> Json {
    item.get("input").map_or_else(Json::null, to_json)
}

/// Returns the result that the item of a call contains.
pub(super) fn result_event(id: ToolCallId, item: &Item) -> AgentEvent {
    match text_field(item, "type") {
        "mcp_call" => response_items::mcp_result_event(id, item),
        _ => response_items::result_event(id, item),
    }
}

/// Returns the result of a call that is in another item.
pub(super) fn separate_result_event(id: ToolCallId, item: &Item) -> AgentEvent {
    let content = item.get("content").cloned().unwrap_or_default();
    let error = content.get("error_code").and_then(Value::as_str);
    let is_error = error.is_some() || item.get("is_error") == Some(&Value::Bool(true));
    let texts = content.as_array().and_then(|pieces| {
        let texts = pieces.iter().map(|piece| piece.get("text")?.as_str());
        texts.collect::<Option<Vec<&str>>>().filter(|texts| !texts.is_empty())
    });
    let words = error.map(str::to_owned).or_else(|| texts.map(|texts| texts.join("\n")));
    match words {
        Some(words) if is_error => AgentEvent::tool_failed(id, words),
        None if is_error => AgentEvent::tool_failed(id, "The tool failed."),
        Some(words) => AgentEvent::tool_output(id, Json::string(&words)),
        None => AgentEvent::tool_output(id, to_json(&readable(content))),
    }
}

/// Removes the fields that only the provider can read.
fn readable(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let readable_fields = fields.into_iter().filter_map(|(name, value)| {
                (!name.starts_with("encrypted_")).then(|| (name, readable(value)))
            });
            readable_fields.collect::<Item>().into()
        }
        Value::Array(values) => values.into_iter().map(readable).collect(),
        value => value,
    }
}

/// Returns the call for which the provider requests approval, with the complete text of its input.
/// Returns `None` for any other item.
pub(crate) fn provider_approval_call(
    opaque: &Opaque,
    origin: Option<&Origin>,
) -> Option<(ToolCall, String)> {
    let item = opaque.item.as_object().filter(|_| opaque.kind() == Some(APPROVAL_REQUEST))?;
    // rig marks the item as one without a response, which is not sent back.
    let state = Opaque { item: opaque.item.clone(), replay: true };
    let mut call = ToolCall::new(fresh_id(), mcp_tool_name(item)).provider_executed().dynamic();
    call.provider_metadata = ProviderState::from_content(Content::Opaque(state), origin).metadata();
    // From some servers they are a JSON value. The user must see them.
    let arguments = match item.get("arguments") {
        Some(Value::String(text)) => text.clone(),
        None | Some(Value::Null) => String::new(),
        Some(value) => value.to_string(),
    };
    Some((call, arguments))
}

/// Returns the calls whose results the next response may contain, by the provider's id: calls that
/// the user has just approved, and calls that continue while tools of the host were executed.
pub(crate) fn awaited_calls(messages: &[ModelMessage]) -> HashMap<String, ToolCallId> {
    let mut awaited_calls = HashMap::new();
    for (at, message) in messages.iter().enumerate() {
        let ModelMessage::Assistant { content } = message else { continue };
        for content_part in content {
            let AssistantContent::ToolCall(call) = content_part else { continue };
            let state = ProviderState::from_metadata(call.provider_metadata.as_ref()).opaque;
            let Some((opaque, id)) = state.as_ref().and_then(|opaque| Some((opaque, id(opaque)?)))
            else {
                continue;
            };
            let is_awaited = match opaque.kind() {
                Some(APPROVAL_REQUEST) => {
                    approval_response_in(messages.get(at + 1), &call.tool_call_id)
                        .is_some_and(|answer| answer.approved)
                }
                Some(kind) if is_use(kind) => matches!(
                    result(content, &call.tool_call_id),
                    None | Some(ToolResult::OutcomeUnknown { .. })
                ),
                _ => false,
            };
            if is_awaited {
                awaited_calls.insert(id.to_owned(), call.tool_call_id.clone());
            }
        }
    }
    awaited_calls
}

/// Returns the user's approval response for a call if this message contains it.
pub(super) fn approval_response_in<'m>(
    message: Option<&'m ModelMessage>,
    call: &ToolCallId,
) -> Option<&'m ToolApprovalResponseContent> {
    let Some(ModelMessage::Tool { content }) = message else { return None };
    content.iter().find_map(|content| match content {
        ToolContent::ProviderApproval(answer) if answer.tool_call_id == *call => Some(answer),
        _ => None,
    })
}

/// Returns the result of a call that the provider executed.
pub(super) fn result<'m>(
    content: &'m [AssistantContent],
    call: &ToolCallId,
) -> Option<&'m ToolResult> {
    content.iter().find_map(|content| match content {
        AssistantContent::ToolResult(result) if result.tool_call_id == *call => {
            Some(&result.result)
        }
        _ => None,
    })
}

/// Creates the provider's item for an approval response.
pub(super) fn approval_response(approval_id: &str, approve: bool, reason: Option<&str>) -> Opaque {
    let mut item = json!({
        "type": APPROVAL_RESPONSE, "approval_request_id": approval_id, "approve": approve,
    });
    if let Some(reason) = reason {
        item["reason"] = reason.into();
    }
    Opaque { item, replay: true }
}

/// Returns the provider's id of an item.
pub(super) fn id(opaque: &Opaque) -> Option<&str> {
    opaque.item.get("id")?.as_str()
}

/// Returns the id of the approval request that a call was approved by.
pub(super) fn approved_by(item: &Value) -> Option<&str> {
    item.get("approval_request_id")?.as_str()
}

pub(super) fn is_approval_request(opaque: &Opaque) -> bool {
    opaque.kind() == Some(APPROVAL_REQUEST)
}

/// Whether an item is an approval response. These come only from the user, never from stored state.
pub(super) fn is_approval_response(opaque: &Opaque) -> bool {
    opaque.kind() == Some(APPROVAL_RESPONSE)
}

/// Returns the id of the approval request that an item approves.
pub(super) fn approved_request_id(opaque: &Opaque) -> Option<&str> {
    let is_approved =
        is_approval_response(opaque) && opaque.item.get("approve") == Some(&Value::Bool(true));
    approved_by(&opaque.item).filter(|_| is_approved)
}

/// Removes the reasoning that led to an item which is not sent back: a provider rejects the
/// reasoning without the item.
pub(super) fn drop_trailing_reasoning(content: &mut Vec<Content>) {
    let is_reasoning = |content: &Content| matches!(content, Content::Reasoning(_));
    let end = content.iter().rposition(|content| !is_reasoning(content)).map_or(0, |last| last + 1);
    content.truncate(end);
}

pub(super) fn is_image(opaque: &Opaque) -> bool {
    opaque.kind() == Some(response_items::IMAGE_GENERATION_CALL)
}

/// Whether rig may leave the item out or move it, depending on its counterpart.
pub(super) fn is_conditional(opaque: &Opaque) -> bool {
    let kind = opaque.kind().unwrap_or_default();
    !opaque.replay || is_use(kind) || is_result(kind) || kind == "container"
}

pub(super) fn is_result(kind: &str) -> bool {
    kind.ends_with("_tool_result")
}

fn is_use(kind: &str) -> bool {
    kind.ends_with("_tool_use")
}
