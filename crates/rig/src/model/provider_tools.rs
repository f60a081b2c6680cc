//! [`Hosted`]: tools that the provider runs, as calls and what came of them. To rig they are items
//! that only their provider reads: those of OpenAI's Responses, and the blocks of Anthropic's
//! Messages.
//!
//! What goes back is the item, in its place: what is shown is for the person.

use std::collections::HashMap;

use rig_core::message::{AssistantContent as Content, Opaque, Origin};
use serde_json::{Value, json};

use super::fresh_id;
use super::provider_state::Kept;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::id::ToolCallId;
use ui_message_stream::json::Json;
use ui_message_stream::model_message::{
    AssistantContent, ModelMessage, ProviderApprovalContent, ToolContent, ToolResult,
};
use ui_message_stream_openai::response_items::{self, Item, mcp_tool_name, text_field, to_json};

/// What the provider wants to be allowed to run.
const QUESTION: &str = "mcp_approval_request";

/// The answer to that.
const ANSWER: &str = "mcp_approval_response";

/// What an item says of a tool that the provider runs.
pub(super) enum Hosted<'i> {
    /// A call and what came of it.
    Ran(&'i Item),
    /// A call, of which another item says what came of it.
    Begun(&'i Item),
    /// What came of a call that another item made, under this id.
    Ended(&'i str, &'i Item),
    /// The provider asks before it runs a tool.
    Asks,
}

impl<'i> Hosted<'i> {
    /// `None` of an item that is of no tool, or of none that is known.
    pub(super) fn of(opaque: &'i Opaque) -> Option<Self> {
        let item = opaque.item.as_object()?;
        Some(match opaque.kind()? {
            QUESTION => Hosted::Asks,
            "mcp_call" => Hosted::Ran(item),
            kind if response_items::tool_name(kind).is_some() => Hosted::Ran(item),
            kind if is_use(kind) => Hosted::Begun(item),
            kind if is_result(kind) => Hosted::Ended(text_field(item, "tool_use_id"), item),
            _ => return None,
        })
    }
}

/// The call that an item is, and its input.
pub(super) fn call(item: &Item) -> (ToolCall, Json) {
    let (name, server) = (text_field(item, "name"), text_field(item, "server_name"));
    let kind = text_field(item, "type");
    let of_server = |name: String| ToolCall::new(fresh_id(), name).dynamic();
    let (call, input) = match kind {
        "mcp_call" => (of_server(mcp_tool_name(item)), response_items::mcp_tool_input(item)),
        "mcp_tool_use" => (of_server(format!("mcp.{server}.{name}")), made_input(item)),
        _ => match response_items::tool_name(kind) {
            Some(tool) => (ToolCall::new(fresh_id(), tool), response_items::tool_input(item)),
            None => (ToolCall::new(fresh_id(), name.to_owned()), made_input(item)),
        },
    };
    (call.provider_executed(), input)
}

fn made_input(item: &Item) -> Json {
    item.get("input").map_or_else(Json::null, to_json)
}

/// What came of the call that an item is.
pub(super) fn came_of(id: ToolCallId, item: &Item) -> AgentEvent {
    match text_field(item, "type") {
        "mcp_call" => response_items::mcp_result_event(id, item),
        _ => response_items::result_event(id, item),
    }
}

/// What came of a call that another item made.
pub(super) fn ended(id: ToolCallId, item: &Item) -> AgentEvent {
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

/// Without what only the provider can read.
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

/// The call that the provider asks about, with the whole text of its input; `None` if it asks nothing.
pub(crate) fn question(opaque: &Opaque, origin: Option<&Origin>) -> Option<(ToolCall, String)> {
    let item = opaque.item.as_object().filter(|_| opaque.kind() == Some(QUESTION))?;
    // To rig, nobody answers it, so that it would not go back.
    let kept = Opaque { item: opaque.item.clone(), replay: true };
    let mut call = ToolCall::new(fresh_id(), mcp_tool_name(item)).provider_executed().dynamic();
    call.provider_metadata = Kept::with(Content::Opaque(kept), origin).metadata();
    Some((call, text_field(item, "arguments").to_owned()))
}

/// The calls of which the next answer may say what came of them, by what the provider calls them:
/// those that a person just said yes to, and those that went on while tools of ours ran.
pub(crate) fn awaited(messages: &[ModelMessage]) -> HashMap<String, ToolCallId> {
    let mut awaited = HashMap::new();
    for (at, message) in messages.iter().enumerate() {
        let ModelMessage::Assistant { content } = message else { continue };
        for said in content {
            let AssistantContent::ToolCall(call) = said else { continue };
            let kept = Kept::of(call.provider_metadata.as_ref()).opaque;
            let Some((opaque, id)) = kept.as_ref().and_then(|opaque| Some((opaque, id(opaque)?)))
            else {
                continue;
            };
            let waits = match opaque.kind() {
                Some(QUESTION) => answer(messages.get(at + 1), &call.tool_call_id)
                    .is_some_and(|answer| answer.approved),
                Some(kind) if is_use(kind) => matches!(
                    result(content, &call.tool_call_id),
                    None | Some(ToolResult::Unknown { .. })
                ),
                _ => false,
            };
            if waits {
                awaited.insert(id.to_owned(), call.tool_call_id.clone());
            }
        }
    }
    awaited
}

/// What the person said of a call, if that is told in this message.
pub(super) fn answer<'m>(
    message: Option<&'m ModelMessage>,
    call: &ToolCallId,
) -> Option<&'m ProviderApprovalContent> {
    let Some(ModelMessage::Tool { content }) = message else { return None };
    content.iter().find_map(|content| match content {
        ToolContent::ProviderApproval(answer) if answer.tool_call_id == *call => Some(answer),
        _ => None,
    })
}

/// What became of a call that the provider ran.
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

/// The answer to a question, for the provider.
pub(super) fn told(question: &str, approve: bool, reason: Option<&str>) -> Opaque {
    let mut item = json!({
        "type": ANSWER, "approval_request_id": question, "approve": approve,
    });
    if let Some(reason) = reason {
        item["reason"] = reason.into();
    }
    Opaque { item, replay: true }
}

/// What the provider calls an item.
pub(super) fn id(opaque: &Opaque) -> Option<&str> {
    opaque.item.get("id")?.as_str()
}

/// The question that a call was approved by.
pub(super) fn approved_by(item: &Value) -> Option<&str> {
    item.get("approval_request_id")?.as_str()
}

pub(super) fn is_question(opaque: &Opaque) -> bool {
    opaque.kind() == Some(QUESTION)
}

/// Whether an item is a yes or a no: that is the person's to say, and is never what was kept.
pub(super) fn is_answer(opaque: &Opaque) -> bool {
    opaque.kind() == Some(ANSWER)
}

/// The question that an item says yes to.
pub(super) fn allows(opaque: &Opaque) -> Option<&str> {
    let says_yes = is_answer(opaque) && opaque.item.get("approve") == Some(&Value::Bool(true));
    approved_by(&opaque.item).filter(|_| says_yes)
}

/// Leaves out the thoughts that led to an item which does not go back: a provider refuses them
/// without it.
pub(super) fn without_thoughts_before(said: &mut Vec<Content>) {
    let is_thought = |content: &Content| matches!(content, Content::Reasoning(_));
    let kept = said.iter().rposition(|content| !is_thought(content)).map_or(0, |last| last + 1);
    said.truncate(kept);
}

pub(super) fn is_picture(opaque: &Opaque) -> bool {
    opaque.kind() == Some(response_items::IMAGE_GENERATION_CALL)
}

/// Whether rig sends it only where its other half is, or in another place.
pub(super) fn may_be_left_out(opaque: &Opaque) -> bool {
    let kind = opaque.kind().unwrap_or_default();
    !opaque.replay || is_use(kind) || is_result(kind) || kind == "container"
}

pub(super) fn is_result(kind: &str) -> bool {
    kind.ends_with("_tool_result")
}

fn is_use(kind: &str) -> bool {
    kind.ends_with("_tool_use")
}
