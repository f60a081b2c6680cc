//! [`strip_sent_approvals`]: removes approvals that an earlier request of the run has sent.
//!
//! A provider that receives an approval twice may execute the call twice.

use std::collections::HashSet;

use rig_core::message::{
    AssistantContent, AssistantMessage, CallId, Message, Opaque, ToolCall, ToolFunction, ToolName,
    ToolResultContent, UserContent,
};
use serde_json::Value;

use super::provider_tools;
use ui_message_stream::model::{ToolResult, sanitize_tool_name};
use ui_message_stream_openai::response_items::{mcp_tool_input, mcp_tool_name};

/// Returns the messages for a later request of the run, or `None` if they contain no approval.
///
/// An approval request whose result is in another item is removed together with the approval. Any
/// other becomes a call with an unknown outcome.
pub(crate) fn strip_sent_approvals(messages: &[Message]) -> Option<Vec<Message>> {
    let items = || messages.iter().filter_map(assistant_content).flatten().filter_map(opaque_item);
    let approved: HashSet<&str> = items().filter_map(provider_tools::approved_request_id).collect();
    if approved.is_empty() {
        return None;
    }
    let others = items().filter(|item| !provider_tools::is_approval_response(item));
    let executed = others.filter_map(|opaque| provider_tools::approved_by(&opaque.item)).collect();
    let mut history =
        FilteredHistory { approved, executed, messages: Vec::new(), results: Vec::new() };
    for message in messages {
        history.push(message);
    }
    history.push_results();
    Some(history.messages)
}

struct FilteredHistory<'m> {
    /// The approval requests that were approved.
    approved: HashSet<&'m str>,
    /// The approval requests whose result is in another item.
    executed: HashSet<&'m str>,
    messages: Vec<Message>,
    /// The results that follow the calls which replaced approval requests.
    results: Vec<UserContent>,
}

impl FilteredHistory<'_> {
    fn push(&mut self, message: &Message) {
        match message {
            Message::User { content } => {
                let mut results = std::mem::take(&mut self.results);
                results.extend(content.iter().cloned());
                self.messages.push(Message::User { content: results });
            }
            Message::Assistant(assistant) => {
                self.push_results();
                self.push_assistant(assistant);
            }
            Message::System { .. } => self.messages.push(message.clone()),
        }
    }

    fn push_assistant(&mut self, message: &AssistantMessage) {
        let mut filtered: Vec<AssistantContent> = Vec::new();
        for content in &message.content {
            match opaque_item(content) {
                Some(opaque) if provider_tools::approved_request_id(opaque).is_some() => {}
                Some(request) if self.is_approved(request) => {
                    provider_tools::drop_trailing_reasoning(&mut filtered);
                    filtered.extend(self.call_with_unknown_outcome(request));
                }
                _ => filtered.push(content.clone()),
            }
        }
        if !filtered.is_empty() {
            self.messages.push(Message::Assistant(message.clone().with_content(filtered)));
        }
    }

    fn is_approved(&self, opaque: &Opaque) -> bool {
        provider_tools::is_approval_request(opaque)
            && provider_tools::id(opaque).is_some_and(|id| self.approved.contains(id))
    }

    /// Converts an approval request to a call, unless another item contains the result.
    fn call_with_unknown_outcome(&mut self, request: &Opaque) -> Option<AssistantContent> {
        let id = provider_tools::id(request).filter(|id| !self.executed.contains(id))?;
        let item = request.item.as_object()?;
        let name = ToolName::new(&*sanitize_tool_name(&mcp_tool_name(item))).ok()?;
        let input: Value = mcp_tool_input(item).decode().unwrap_or_default();
        let call = ToolCall::new(CallId::from_wire(id), ToolFunction::new(name, input));
        let outcome = ToolResult::OutcomeUnknown { so_far: None };
        let mut result = call.result(vec![ToolResultContent::text(outcome.text())]);
        result.is_error = outcome.is_error();
        self.results.push(UserContent::ToolResult(result));
        Some(AssistantContent::ToolCall(call))
    }

    fn push_results(&mut self) {
        if !self.results.is_empty() {
            let content = std::mem::take(&mut self.results);
            self.messages.push(Message::User { content });
        }
    }
}

fn assistant_content(message: &Message) -> Option<&[AssistantContent]> {
    match message {
        Message::Assistant(message) => Some(&message.content),
        _ => None,
    }
}

fn opaque_item(content: &AssistantContent) -> Option<&Opaque> {
    match content {
        AssistantContent::Opaque(opaque) => Some(opaque),
        _ => None,
    }
}
