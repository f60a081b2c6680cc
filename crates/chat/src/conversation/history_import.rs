//! [`HistoryImport`]: what a conversation takes from the history that a client sent.
//!
//! # The results in a client's history are marked in the chat
//!
//! A server that has lost a chat can only ask the client what was in it, and the client can invent results. By
//! default they are not imported. With `HistoryImport::TextsAndResults`, the chat lists them beside its messages: a
//! mark in a part would come back from clients, and a model does not read the metadata of a part. So the model
//! reads a sentence with each such result. Approval predicates do not find the calls in the chat, also a predicate
//! that handles incomplete histories: it may have been written for a server that imports only texts, and would
//! waive an approval for an invented result. A method of its own returns them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::call_state::{error_state, output_state};
use super::messages::json_len;
use ui_message_stream::id::{MessageId, ToolCallId};
use ui_message_stream::message::{Part, Role, ToolPart, ToolState, UiMessage};

/// What a server imports from the history in a request, if it does not have the conversation, for
/// example after a restart.
///
/// The client can forge all of the history, and the [history](super::Chat::history) of the
/// conversation is [`Imported`](super::HistoryCompleteness::Imported) in each case. It affects only
/// conversations of the user that sent it.
///
/// Calls that wait for an answer, denied calls, calls that the provider executed, and approvals are
/// never imported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HistoryImport {
    /// The texts and files of all messages, and the data of the user's messages. This is the default.
    #[default]
    Texts,
    /// In addition the tool calls that have an output or an error, each marked as the client's word
    /// ([`Chat::is_unverified`](super::Chat::is_unverified)).
    ///
    /// - The model reads with each such result that it may be invented.
    /// - Approval predicates do not find these calls in the conversation; see
    ///   `ApprovalContext::unverified_calls`. Authorizations decide from the user and the input, and
    ///   read no history.
    /// - Code of the host that reads the messages itself must ask for the mark.
    TextsAndResults,
}

/// The calls of a conversation that only the client claims to have happened.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct UnverifiedCalls(BTreeMap<MessageId, BTreeSet<ToolCallId>>);

impl UnverifiedCalls {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the calls of an imported message.
    pub(super) fn add(&mut self, message: &UiMessage) {
        let mut calls = message.tool_parts().map(|part| part.tool_call_id.clone()).peekable();
        if calls.peek().is_some() {
            self.0.entry(message.id.clone()).or_default().extend(calls);
        }
    }

    pub(super) fn contains(&self, message: &MessageId, call: &ToolCallId) -> bool {
        self.0.get(message).is_some_and(|calls| calls.contains(call))
    }

    /// Returns the calls of this message.
    pub(super) fn of<'a>(&self, message: &'a UiMessage) -> impl Iterator<Item = &'a ToolPart> {
        let calls = self.0.get(&message.id);
        message
            .tool_parts()
            .filter(move |part| calls.is_some_and(|calls| calls.contains(&part.tool_call_id)))
    }

    /// Removes the calls of this message that have changed.
    pub(super) fn retain_calls(
        &mut self,
        message: &MessageId,
        is_kept: impl Fn(&ToolCallId) -> bool,
    ) {
        if let Some(calls) = self.0.get_mut(message) {
            calls.retain(|call| is_kept(call));
        }
    }

    pub(super) fn retain(&mut self, is_kept: impl Fn(&MessageId) -> bool) {
        self.0.retain(|message, _| is_kept(message));
    }

    pub(super) fn bytes(&self) -> usize {
        if self.is_empty() { 0 } else { json_len(self) }
    }
}

/// Returns what is imported from a client's message.
pub(super) fn imported(message: &UiMessage, import: HistoryImport) -> UiMessage {
    let is_assistant = message.role == Role::Assistant;
    let is_user = message.role == Role::User;
    let has_results = import == HistoryImport::TextsAndResults && is_assistant;
    let parts = message.parts.iter().filter_map(|part| match part {
        Part::Text(_) | Part::File(_) => Some(part.clone()),
        Part::Data(_) if is_user => Some(part.clone()),
        Part::Tool(part) if has_results => Some(Part::Tool(Box::new(imported_call(part)?))),
        // The calls of two steps were not made at once.
        Part::StepStart { .. } if has_results => Some(part.clone()),
        _ => None,
    });
    let mut parts: Vec<Part> = parts.collect();
    if parts.iter().all(|part| matches!(part, Part::StepStart { .. })) {
        parts.clear();
    }
    let mut imported = UiMessage::new(message.id.clone(), message.role, parts);
    imported.metadata = message.metadata.clone();
    imported.extra = message.extra.clone();
    imported
}

/// Returns a call of the client's history that has a result, without its approval.
fn imported_call(part: &ToolPart) -> Option<ToolPart> {
    if part.provider_executed == Some(true) || !part.is_settled() {
        return None;
    }
    let state = match &part.state {
        ToolState::OutputAvailable { input, output, .. } => {
            output_state(input.clone(), None, output.clone()?)
        }
        ToolState::OutputError { input, error_text, .. } => {
            error_state(input.clone(), None, error_text.clone())
        }
        _ => return None,
    };
    let mut imported = part.clone();
    imported.state = state;
    Some(imported)
}
