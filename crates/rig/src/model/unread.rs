//! [`Unread`]: what a Chat Completions server sent and rig does not read.

use rig_core::completion::CompletionResponse;
use rig_core::message::{AssistantContent, ToolFunction};
use serde_json::Value;

/// A response, of which the first choice is read if it has the form of Chat Completions.
pub(super) struct Unread<'r>(&'r CompletionResponse);

impl<'r> Unread<'r> {
    pub(super) fn new(response: &'r CompletionResponse) -> Self {
        Unread(response)
    }

    /// Returns the error of the choice, or the one that stands beside it.
    pub(super) fn error(&self) -> Option<&'r Value> {
        let beside = self.at("").and_then(|_| self.0.raw.get("error"));
        let mut errors = self.at("/error").into_iter().chain(beside);
        let is_error = |error: &&Value| {
            error.is_object() || error.as_str().is_some_and(|error| !error.is_empty())
        };
        errors.find(is_error)
    }

    /// Returns the text of a message without calls, which some servers send in place of a delta.
    pub(super) fn message_text(&self) -> Option<&'r str> {
        self.at("/message/content")?.as_str().filter(|_| self.calls().is_empty())
    }

    /// Whether a call may lack a part of its input. Some servers number the fragments of a call. rig
    /// takes each number for a call and leaves out those without a name. It also reads past a fragment of another type,
    /// of which the choice keeps no more than what follows it.
    pub(super) fn may_lack_input(&self) -> bool {
        let text = |call: &'r Value, at: &str| call.pointer(at).and_then(Value::as_str);
        let is_empty = |text: Option<&str>| text.is_none_or(|text| text.trim().is_empty());
        let is_unread = |call: &'r Value| {
            is_empty(text(call, "/function/name")) && !is_empty(text(call, "/function/arguments"))
        };
        self.calls().iter().any(is_unread) || self.has_other_input()
    }

    /// Whether rig has read an input that no call of the choice has.
    fn has_other_input(&self) -> bool {
        let read = self.0.choice.iter().filter_map(|content| match content {
            AssistantContent::ToolCall(call) => Some(&call.function),
            _ => None,
        });
        let is_valid = |function: &ToolFunction| function.invalid_arguments.is_none();
        let read: Vec<&ToolFunction> = read.filter(|function| is_valid(function)).collect();
        let Some(first) = read.first() else { return false };
        let input = |call: &Value| {
            let arguments = call.pointer("/function/arguments").cloned().unwrap_or_default();
            ToolFunction::new(first.name.clone(), arguments)
        };
        let sent: Vec<ToolFunction> = self.calls().iter().map(input).filter(is_valid).collect();
        let is_other =
            |read: &&ToolFunction| sent.iter().all(|sent| sent.arguments != read.arguments);
        let has_custom = self.calls().iter().any(|call| call.get("custom").is_some());
        !self.calls().is_empty() && !has_custom && read.iter().any(is_other)
    }

    fn calls(&self) -> &'r [Value] {
        let calls = self.at("/message/tool_calls").and_then(Value::as_array);
        calls.map(Vec::as_slice).unwrap_or_default()
    }

    fn at(&self, pointer: &str) -> Option<&'r Value> {
        self.0.raw.pointer("/choices/0")?.pointer(pointer)
    }
}
