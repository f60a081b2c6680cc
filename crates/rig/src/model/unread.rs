//! [`Unread`]: what a Chat Completions server sent and rig does not read.

use rig_core::completion::CompletionResponse;
use serde_json::Value;

/// The first choice of a response in the form of Chat Completions. Responses of other APIs have none.
pub(super) struct Unread<'r>(Option<&'r Value>);

impl<'r> Unread<'r> {
    pub(super) fn new(response: &'r CompletionResponse) -> Self {
        Unread(response.raw.pointer("/choices/0"))
    }

    /// Returns the error of the choice.
    pub(super) fn error(&self) -> Option<&'r Value> {
        self.at("/error").filter(|error| !error.is_null())
    }

    /// Returns the text of a message without calls, which some servers send in place of a delta.
    pub(super) fn message_text(&self) -> Option<&'r str> {
        self.at("/message/content")?.as_str().filter(|_| self.calls().is_empty())
    }

    /// Whether a call may lack a part of its input. Some servers number the fragments of a call. rig
    /// takes each number for a call and leaves out those without a name.
    pub(super) fn has_input(&self) -> bool {
        let text = |call: &'r Value, at: &str| call.pointer(at).and_then(Value::as_str);
        let is_empty = |text: Option<&str>| text.is_none_or(|text| text.trim().is_empty());
        let is_unread = |call: &'r Value| {
            is_empty(text(call, "/function/name")) && !is_empty(text(call, "/function/arguments"))
        };
        self.calls().iter().any(is_unread)
    }

    fn calls(&self) -> &'r [Value] {
        let calls = self.at("/message/tool_calls").and_then(Value::as_array);
        calls.map(Vec::as_slice).unwrap_or_default()
    }

    fn at(&self, pointer: &str) -> Option<&'r Value> {
        self.0?.pointer(pointer)
    }
}
