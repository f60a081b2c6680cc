//! [`once_told`]: what rig sends again within a run, without the yes that a request before it told.
//!
//! A provider that is told twice may run twice.

use std::collections::HashSet;

use rig_core::message::{
    AssistantContent, AssistantMessage, CallId, Message, Opaque, ToolCall, ToolFunction, ToolName,
    ToolResultContent, UserContent,
};
use serde_json::Value;

use super::provider_tools;
use ui_message_stream::model_message::{ToolResult, sanitize_tool_name};
use ui_message_stream_openai::response_items::{mcp_tool_input, mcp_tool_name};

/// These messages as a later request of the run says them; `None` if they hold no yes. A question of
/// which another item says what came of it goes with its answer; any other is a call of which nobody
/// knows what came of it.
pub(crate) fn once_told(messages: &[Message]) -> Option<Vec<Message>> {
    let items = || messages.iter().filter_map(said).flatten().filter_map(item);
    let told: HashSet<&str> = items().filter_map(provider_tools::allows).collect();
    if told.is_empty() {
        return None;
    }
    let answered = items().filter(|item| !provider_tools::is_answer(item));
    let ran = answered.filter_map(|opaque| provider_tools::approved_by(&opaque.item)).collect();
    let mut later = Later { told, ran, messages: Vec::new(), results: Vec::new() };
    for message in messages {
        later.push(message);
    }
    later.push_results();
    Some(later.messages)
}

struct Later<'m> {
    /// The questions that a yes was told of.
    told: HashSet<&'m str>,
    /// Those of which an item says what came of them.
    ran: HashSet<&'m str>,
    messages: Vec<Message>,
    /// What is to stand behind the calls that questions became.
    results: Vec<UserContent>,
}

impl Later<'_> {
    fn push(&mut self, message: &Message) {
        match message {
            Message::User { content } => {
                let mut results = std::mem::take(&mut self.results);
                results.extend(content.iter().cloned());
                self.messages.push(Message::User { content: results });
            }
            Message::Assistant(said) => {
                self.push_results();
                self.push_assistant(said);
            }
            Message::System { .. } => self.messages.push(message.clone()),
        }
    }

    fn push_assistant(&mut self, message: &AssistantMessage) {
        let mut said: Vec<AssistantContent> = Vec::new();
        for content in &message.content {
            match item(content) {
                Some(opaque) if provider_tools::allows(opaque).is_some() => {}
                Some(question) if self.is_told(question) => {
                    provider_tools::without_thoughts_before(&mut said);
                    said.extend(self.unknown(question));
                }
                _ => said.push(content.clone()),
            }
        }
        if !said.is_empty() {
            self.messages.push(Message::Assistant(message.clone().with_content(said)));
        }
    }

    fn is_told(&self, opaque: &Opaque) -> bool {
        provider_tools::is_question(opaque)
            && provider_tools::id(opaque).is_some_and(|id| self.told.contains(id))
    }

    /// A question as a call, unless an item says what came of it.
    fn unknown(&mut self, question: &Opaque) -> Option<AssistantContent> {
        let id = provider_tools::id(question).filter(|id| !self.ran.contains(id))?;
        let item = question.item.as_object()?;
        let name = ToolName::new(&*sanitize_tool_name(&mcp_tool_name(item))).ok()?;
        let input: Value = mcp_tool_input(item).to().unwrap_or_default();
        let call = ToolCall::new(CallId::from_wire(id), ToolFunction::new(name, input));
        let became = ToolResult::Unknown { so_far: None };
        let mut result = call.result(vec![ToolResultContent::text(became.text())]);
        result.is_error = became.is_error();
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

fn said(message: &Message) -> Option<&[AssistantContent]> {
    match message {
        Message::Assistant(message) => Some(&message.content),
        _ => None,
    }
}

fn item(said: &AssistantContent) -> Option<&Opaque> {
    match said {
        AssistantContent::Opaque(opaque) => Some(opaque),
        _ => None,
    }
}
