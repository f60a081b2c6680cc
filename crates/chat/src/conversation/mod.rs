//! [`Chat`]: a conversation as the server stores it, and the rules for applying a request to it.
//!
//! A client sends its whole history with each request, and can forge all of it. A server that
//! stores the history itself accepts only three things from a request: the user's new message, the
//! decisions on approvals, and the outputs of the calls that the client executes. Everything else
//! comes from the stored history. The [`Recorder`] turns the events of the agent into the assistant
//! message.
//!
//! This module does not store conversations.

mod apply_answers;
mod call_state;
mod client_answers;
mod delivery;
mod history_completeness;
mod history_import;
pub(crate) mod live_message;
mod live_run;
mod messages;
pub(crate) mod model_ids;
mod recorder;
pub(crate) mod request_change;
mod resolve_calls;
mod stop_reason;
mod stored;
#[cfg(test)]
mod visits;

use std::collections::{HashMap, HashSet};

use serde::de::Error as _;
use serde::{Deserialize, Serialize};

pub(crate) use self::call_state::approval_status;
pub use self::client_answers::ClientAnswers;
#[cfg(feature = "axum")]
pub(crate) use self::client_answers::check_decisions;
pub use self::delivery::{PostedHistory, RequestConflict, RequestEffect};
pub use self::history_completeness::HistoryCompleteness;
pub use self::history_import::HistoryImport;
pub(crate) use self::live_run::{EndedRun, ReceivedResult};
pub use self::messages::{Messages, MessagesIter};
pub(crate) use self::recorder::push_recorded;
pub use self::recorder::{RecordedMessage, Recorder};
pub use self::stop_reason::StopReason;

use self::apply_answers::apply_answers;
use self::call_state::is_client_call;
use self::delivery::PastMessages;
use self::history_import::{UnverifiedCalls, imported};
use self::live_run::LiveMessage;
use self::live_run::RunRegister;
pub(crate) use self::messages::json_len;
use self::stored::ChatRecord;
use ui_message_stream::approval::{
    DeferredOutcome, DeferredToolResult, PendingToolCall, Principal,
};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{ChatId, MessageId, ToolCallId};
use ui_message_stream::json::Format;
use ui_message_stream::message::{AnswerEnd, Part, Role, ToolPart, ToolState, UiMessage};
use ui_message_stream::request::{ChatRequest, ParseRequestError};

/// A conversation as the server stores it.
///
/// It is serialized as JSON with the number of its format, which is 1. A chat of a newer format is an
/// error that names the format. A chat server stores each message by itself, beside the JSON of the
/// rest: see [`Snapshot`](crate::store::Snapshot).
///
/// ```
/// use ui_message_stream::ChatRequest;
/// use ui_message_stream::approval::Principal;
/// use ui_message_stream_chat::{Chat, PostedHistory, RequestEffect};
/// use ui_message_stream::request::Limits;
///
/// let body = br#"{"id": "c", "messages": [
///     {"id": "m1", "role": "assistant", "parts": [{"type": "text", "text": "I am all yours"}]},
///     {"id": "m2", "role": "user", "parts": [{"type": "text", "text": "Go on"}]}
/// ]}"#;
/// let request = ChatRequest::parse(body, &Limits::default())?;
/// let mut chat = Chat::new("c", Principal::new("ada"));
/// let effect = chat.apply_request(&request, PostedHistory::Keep);
/// assert_eq!(effect, RequestEffect::NewResponse);
///
/// // The server did not write the assistant message that the client sent.
/// assert_eq!(chat.messages.len(), 1);
/// assert_eq!(chat.messages[0].id.as_str(), "m2");
/// # Ok::<(), ui_message_stream::request::ParseRequestError>(())
/// ```
#[doc(alias = "history")]
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(into = "ChatRecord", try_from = "ChatRecord")]
#[non_exhaustive]
pub struct Chat {
    /// The id of the conversation.
    pub id: ChatId,
    /// The principal to whom the conversation belongs.
    pub owner: Principal,
    /// The messages, oldest first. A copy of the conversation shares them.
    pub messages: Messages,
    /// Whether the messages are everything that happened in the conversation. A host that stores
    /// only a part of the messages sets it to [`HistoryCompleteness::Truncated`].
    pub history: HistoryCompleteness,
    /// The calls that the client executes and that have no result yet.
    pub client_executed: Vec<PendingToolCall>,
    /// The approvals of provider-executed calls that have not been sent to the provider yet.
    pub unsent_approvals: Vec<DeferredToolResult>,
    /// The outcomes of the calls that were not executed, and of the calls for which it is unknown
    /// whether they were executed. In the messages such a call has only an error text, and a failed
    /// tool can have the same text. The outcome is therefore stored here.
    ///
    /// [`ToModelMessages::with_call_outcomes`](ui_message_stream::model::ToModelMessages::with_call_outcomes)
    /// includes these outcomes in the messages for the model.
    pub call_outcomes: Vec<DeferredToolResult>,
    /// The imported calls, which only the client claims to have happened.
    unverified_calls: UnverifiedCalls,
    /// The user message whose response was last requested again.
    regenerated: Option<MessageId>,
    past_messages: PastMessages,
    runs: RunRegister,
}

debug_without_content!(Chat {
    id, owner, history;
    messages, client_executed, unsent_approvals, call_outcomes, past_messages
});

impl From<Chat> for ChatRecord {
    fn from(chat: Chat) -> Self {
        ChatRecord {
            format: Format::default(),
            id: chat.id,
            owner: chat.owner,
            messages: Some(chat.messages),
            history: chat.history,
            client_executed: chat.client_executed,
            unsent_approvals: chat.unsent_approvals,
            call_outcomes: chat.call_outcomes,
            unverified_calls: chat.unverified_calls,
            regenerated: chat.regenerated,
            past_messages: chat.past_messages,
            runs: chat.runs,
        }
    }
}

impl TryFrom<ChatRecord> for Chat {
    type Error = &'static str;

    fn try_from(record: ChatRecord) -> Result<Self, Self::Error> {
        Ok(Chat {
            id: record.id,
            owner: record.owner,
            messages: record.messages.ok_or("chat record: no `messages`")?,
            history: record.history,
            client_executed: record.client_executed,
            unsent_approvals: record.unsent_approvals,
            call_outcomes: record.call_outcomes,
            unverified_calls: record.unverified_calls,
            regenerated: record.regenerated,
            past_messages: record.past_messages,
            runs: record.runs,
        })
    }
}

/// The stored form without messages, for stores that keep each message by itself.
impl Chat {
    /// Returns the conversation without its messages, as JSON.
    pub(crate) fn head_json(&self) -> Result<String, serde_json::Error> {
        let head = Chat { messages: Messages::default(), ..self.clone() };
        serde_json::to_string(&ChatRecord { messages: None, ..head.into() })
    }

    /// Reads a head. The result has no messages.
    pub(crate) fn from_head_json(head: &str) -> Result<Self, serde_json::Error> {
        let head: ChatRecord = serde_json::from_str(head)?;
        if head.messages.is_some() {
            return Err(serde_json::Error::custom(WHOLE_CHAT));
        }
        let chat = ChatRecord { messages: Some(Messages::default()), ..head };
        chat.try_into().map_err(serde_json::Error::custom)
    }
}

impl Chat {
    /// Creates an empty conversation.
    pub fn new(id: impl Into<ChatId>, owner: Principal) -> Self {
        Chat {
            id: id.into(),
            owner,
            messages: Messages::default(),
            history: HistoryCompleteness::Complete,
            client_executed: Vec::new(),
            unsent_approvals: Vec::new(),
            call_outcomes: Vec::new(),
            unverified_calls: UnverifiedCalls::default(),
            regenerated: None,
            past_messages: PastMessages::default(),
            runs: RunRegister::default(),
        }
    }

    /// Creates a conversation from the history that a client sent, for a conversation that the
    /// server does not have, for example after a restart.
    ///
    /// Imports the texts, the files and the user's data parts of all messages except the user's new
    /// one, which [`apply_request`](Self::apply_request) adds. `import` says whether the results of
    /// tool calls are imported as well. The client can forge them.
    ///
    /// The [history](Self::history) of the conversation is [`HistoryCompleteness::Imported`], unless
    /// the request holds nothing except the user's new message. Such a request begins a new
    /// conversation.
    pub fn from_client_history(
        request: &ChatRequest,
        owner: Principal,
        import: HistoryImport,
    ) -> Self {
        let mut chat = Chat::new(request.id().clone(), owner);
        let new = request.new_user_message().map(|message| &message.id);
        let before = request.messages().iter().filter(|message| Some(&message.id) != new);
        let mut before = before.peekable();
        if before.peek().is_some() {
            chat.history = HistoryCompleteness::Imported;
        }
        let imported = before.map(|message| imported(message, import));
        for message in imported.filter(|message| !message.parts.is_empty()) {
            chat.unverified_calls.add(&message);
            chat.messages.push(message);
        }
        chat
    }

    /// Returns whether only the client claims that this call of this message happened: the call was
    /// imported with [`HistoryImport::TextsAndResults`]. Its input and its result may be invented.
    pub fn is_unverified(&self, message: &MessageId, call: &ToolCallId) -> bool {
        self.unverified_calls.contains(message, call)
    }

    /// Returns the calls that only the client claims to have happened, oldest first. See
    /// [`is_unverified`](Self::is_unverified).
    pub fn unverified_calls(&self) -> impl Iterator<Item = &ToolPart> {
        let messages =
            if self.unverified_calls.is_empty() { None } else { Some(self.messages.iter()) };
        messages.into_iter().flatten().flat_map(|message| self.unverified_calls.of(message))
    }

    /// Returns the conversation without the calls that only the client claims to have happened, or
    /// `None` if there are none.
    pub fn without_unverified_calls(&self) -> Option<Chat> {
        if self.unverified_calls.is_empty() {
            return None;
        }
        let mut chat = self.clone();
        let with_calls = self.messages.with_calls();
        let places =
            with_calls.filter(|(_, message)| self.unverified_calls.of(message).next().is_some());
        for (place, _) in places {
            chat.messages.update(place, |message| {
                let id = &message.id;
                message.parts.retain(|part| {
                    !part.as_tool().is_some_and(|part| self.is_unverified(id, &part.tool_call_id))
                });
            });
        }
        Some(chat)
    }

    fn place_of_last_question(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| message.role == Role::User)
    }

    /// Inserts an assistant message at the end, or replaces the stored message with its id. The
    /// message is the result of [`Recorder::finish`] or a [`UiMessage`].
    ///
    /// Calls that are the same in both versions keep their [outcomes](Self::call_outcomes).
    pub fn upsert_message(&mut self, recorded: impl Into<RecordedMessage>) {
        let RecordedMessage { message, client_executed, call_outcomes } = recorded.into();
        let id = message.id.clone();
        let replaced = match self.place_of(&id, Role::Assistant) {
            Some(place) => self.messages.replace(place, message),
            None => {
                self.messages.push(message);
                None
            }
        };
        if let Some(replaced) = replaced {
            let now = self.messages.find(&id);
            let now = |call: &ToolCallId| {
                now.and_then(|now| now.tool_parts().find(|part| part.tool_call_id == *call))
            };
            let before: HashMap<&ToolCallId, &ToolPart> =
                replaced.tool_parts().map(|part| (&part.tool_call_id, part)).collect();
            self.call_outcomes.retain(|known| {
                let call = &known.tool_call_id;
                let is_new = call_outcomes.iter().any(|new| new.tool_call_id == *call);
                known.message_id.as_ref() != Some(&id)
                    || !is_new && before.get(call).copied() == now(call)
            });
            self.unverified_calls.retain_calls(&id, |call| before.get(call).copied() == now(call));
            self.client_executed.retain(|call| {
                !before.contains_key(&call.tool_call_id)
                    || now(&call.tool_call_id).is_some_and(|part| !part.is_settled())
            });
        }
        self.call_outcomes.extend(call_outcomes);
        self.add_client_executed(&id, client_executed);
    }

    /// Adds the calls of this message that have no result and are not listed yet.
    fn add_client_executed(&mut self, id: &MessageId, calls: Vec<PendingToolCall>) {
        let parts = || self.message(id).into_iter().flat_map(UiMessage::tool_parts);
        let is_settled = |call: &PendingToolCall| {
            parts().any(|part| part.tool_call_id == call.tool_call_id && part.is_settled())
        };
        let is_new =
            |call: &PendingToolCall| !self.client_executed.contains(call) && !is_settled(call);
        let new: Vec<PendingToolCall> = calls.into_iter().filter(is_new).collect();
        self.client_executed.extend(new);
    }

    /// Returns how the last answer has ended. `None` before the first answer, and while one is written.
    ///
    /// ```
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream_chat::Chat;
    /// use ui_message_stream::message::AnswerEnd;
    ///
    /// fn is_complete(chat: &Chat) -> bool {
    ///     matches!(chat.answer_end(), None | Some(AnswerEnd::Finished))
    /// }
    /// assert!(is_complete(&Chat::new("chat", Principal::new("ada"))));
    /// ```
    pub fn answer_end(&self) -> Option<AnswerEnd> {
        let is_answer = |message: &&UiMessage| message.role == Role::Assistant;
        match (&self.runs.live, &self.runs.ended) {
            (Some(_), _) => None,
            (None, Some(ended)) => Some(ended.end),
            // A run that only stored an answer of the client has continued no message.
            (None, None) => self
                .messages
                .iter()
                .rfind(is_answer)
                .map(|last| last.answer_end().unwrap_or(AnswerEnd::Finished)),
        }
    }

    /// Returns whether the conversation waits for an approval response or for the output of a call
    /// that the client executes.
    pub fn has_open_questions(&self) -> bool {
        let mut parts =
            self.messages.with_unsettled_calls().flat_map(|message| message.tool_parts());
        !self.client_executed.is_empty()
            || parts.any(|part| matches!(part.state, ToolState::ApprovalRequested { .. }))
    }

    /// Returns the number of bytes of the conversation, as
    /// [`ChatLimits`](crate::ChatLimits) counts them: of the messages as JSON, and of the
    /// other lists that grow with the conversation.
    pub fn bytes(&self) -> usize {
        fn bytes_of(list: &[impl Serialize]) -> usize {
            list.iter().map(json_len).sum()
        }
        self.messages.bytes()
            + bytes_of(&self.client_executed)
            + bytes_of(&self.unsent_approvals)
            + bytes_of(&self.call_outcomes)
            + self.unverified_calls.bytes()
            + self.past_messages.bytes()
    }

    /// Returns the number of bytes of the outputs in these messages of a client that
    /// [`record_result`](Self::record_result) would add, because their calls have no result yet.
    pub(super) fn bytes_of_new_outputs(&self, messages: &[UiMessage]) -> usize {
        let parts = messages.iter().flat_map(UiMessage::tool_parts);
        let new =
            parts.filter(|part| self.client_executed.iter().any(|call| is_client_call(part, call)));
        new.map(|part| match &part.state {
            ToolState::OutputAvailable { output, .. } => output.as_ref().map_or(0, json_len),
            ToolState::OutputError { error_text, .. } => json_len(error_text),
            _ => 0,
        })
        .sum()
    }

    /// Returns the last message with this id.
    pub fn message(&self, id: &MessageId) -> Option<&UiMessage> {
        self.messages.find(id)
    }

    /// Returns the title of the conversation in a list: the beginning of the first text of the user,
    /// in one line and with at most 100 characters. It is empty if the user has sent no text.
    ///
    /// ```
    /// use ui_message_stream::UiMessage;
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream_chat::Chat;
    ///
    /// let mut chat = Chat::new("c", Principal::new("ada"));
    /// assert_eq!(chat.title(), "");
    /// let text = r#"{"id": "m1", "role": "user", "parts": [{"type": "text", "text": " Hello,\n world"}]}"#;
    /// chat.messages.push(UiMessage::parse(text)?);
    /// assert_eq!(chat.title(), "Hello, world");
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn title(&self) -> String {
        let users = self.messages.iter().filter(|message| message.role == Role::User);
        let titles = users.flat_map(|message| &message.parts).filter_map(|part| match part {
            Part::Text(part) => Some(title_of(&part.text)),
            _ => None,
        });
        titles.into_iter().find(|title| !title.is_empty()).unwrap_or_default()
    }

    /// Builds the request that a browser would send with these answers to the last message of this
    /// conversation. The answers are not checked here: the request is processed as any other
    /// request.
    ///
    /// A call that has a result stays as it is, so that the same answers may be sent again. A
    /// decision on an approval that is not in the last message is ignored.
    ///
    /// # Errors
    /// [`ParseRequestError::Field`]
    /// - at `toolOutputs[…].toolCallId`, if an output names a call that the client does not have to
    ///   execute;
    /// - at `decisions`, if no output and no decision answers anything in the last message.
    ///
    /// ```
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream_chat::{Chat, ClientAnswers};
    /// use ui_message_stream::request::Limits;
    ///
    /// let body = br#"{"toolOutputs": [{"toolCallId": "call_1", "output": "Berlin"}]}"#;
    /// let answers = ClientAnswers::parse(body, &Limits::default())?;
    /// let error = Chat::new("c", Principal::new("ada")).request_from_answers(&answers).unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "toolOutputs[0].toolCallId: names no call of the last message that the client is to run"
    /// );
    /// # Ok::<(), ui_message_stream::request::ParseRequestError>(())
    /// ```
    pub fn request_from_answers(
        &self,
        answers: &ClientAnswers,
    ) -> Result<ChatRequest, ParseRequestError> {
        let last = self.messages.last().filter(|message| message.role == Role::Assistant);
        let message = apply_answers(last.cloned(), &self.client_executed, answers)?;
        let request =
            ChatRequest::from_last_message(self.id.clone(), message, answers.custom.clone());
        Ok(request.with_approval_inputs(answers.changed_inputs()))
    }

    /// Returns why a message of this conversation ends, as far as the stored conversation shows it.
    ///
    /// The result is [`StopReason::RequiresApproval`], [`StopReason::RequiresClientTool`] or
    /// [`StopReason::Stop`]. If the message waits for both the user and the client, it is
    /// `RequiresApproval`. It is `Stop` also if the conversation has no message with this id.
    ///
    /// ```
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream_chat::{Chat, StopReason};
    ///
    /// let chat = Chat::new("c", Principal::anonymous());
    /// assert_eq!(chat.stop_reason(&"m1".into()), StopReason::Stop);
    /// ```
    pub fn stop_reason(&self, message: &MessageId) -> StopReason {
        let parts = || self.message(message).into_iter().flat_map(|message| message.tool_parts());
        let is_asked = |state: &ToolState| matches!(state, ToolState::ApprovalRequested { .. });
        if parts().any(|part| is_asked(&part.state)) {
            return StopReason::RequiresApproval;
        }
        let is_client_executed =
            |id: &_| self.client_executed.iter().any(|call| call.tool_call_id == *id);
        if parts().any(|part| !part.is_settled() && is_client_executed(&part.tool_call_id)) {
            StopReason::RequiresClientTool
        } else {
            StopReason::Stop
        }
    }

    /// Removes the messages from index `first_message` on.
    fn truncate(&mut self, first_message: usize) {
        if self.messages.iter().skip(first_message).any(has_calls) {
            self.mark_truncated();
        }
        let mut before = first_message.checked_sub(1).and_then(|place| self.messages.get(place));
        for removed in self.messages.iter().skip(first_message) {
            let before = before.replace(removed).filter(|_| removed.role == Role::Assistant);
            let after = before.map(|message| message.id.clone());
            self.past_messages.add_removed(removed.id.clone(), after);
        }
        self.messages.truncate(first_message);
        let messages = &self.messages;
        let parts = messages.with_unsettled_calls().flat_map(UiMessage::tool_parts);
        let open: HashSet<&ToolCallId> = parts.map(|part| &part.tool_call_id).collect();
        self.client_executed.retain(|call| open.contains(&call.tool_call_id));
        let is_kept = |id: &MessageId| messages.position(id).is_some();
        self.call_outcomes.retain(|known| known.message_id.as_ref().is_some_and(is_kept));
        self.unverified_calls.retain(is_kept);
    }

    fn mark_truncated(&mut self) {
        if self.history.is_complete() {
            self.history = HistoryCompleteness::Truncated;
        }
    }

    /// Returns the index of the last message with this role and id.
    fn place_of(&self, id: &MessageId, role: Role) -> Option<usize> {
        self.messages.position_of(id, role)
    }
}

/// The run that writes in a conversation.
impl Chat {
    /// A run begins that writes this message. If it resumes a run, it answers what that run has answered.
    pub(crate) fn begin_run(&mut self, id: MessageId, is_new: bool) {
        self.runs.live.get_or_insert(LiveMessage { id, is_new });
        self.runs.ended = None;
    }

    /// The live run ends, and no other one resumes it. `ended` is `None` if it has finished.
    pub(crate) fn end_run(&mut self, ended: Option<EndedRun>) {
        (self.runs.live, self.runs.ended) = (None, ended);
    }

    /// Returns whether an edit or a regeneration has removed this message.
    pub(crate) fn is_removed(&self, id: &MessageId) -> bool {
        self.message(id).is_none() && self.past_messages.removed(id).is_some()
    }

    /// Returns the event that ends this message, if its run was the last one and did not finish it.
    pub(crate) fn early_end(&self, message_id: &MessageId) -> Option<AgentEvent> {
        self.runs.ended.as_ref().filter(|end| end.message_id == *message_id)?.early_end()
    }

    /// Sets whether the last message has results that no model call has read.
    pub(crate) fn set_unread_results(&mut self, has_unread_results: bool) {
        self.runs.has_unread_results = has_unread_results;
    }
}

/// Returns the beginning of a text, with one space between its words.
fn title_of(text: &str) -> String {
    let words = text.split_whitespace();
    let characters = words.flat_map(|word| std::iter::once(' ').chain(word.chars())).skip(1);
    let mut title: String = characters.take(MAX_TITLE_CHARACTERS).collect();
    title.truncate(title.trim_end().len());
    title
}

const WHOLE_CHAT: &str = "chat record: `messages` in the head of a chat; a whole chat is read with \
                          `serde_json::from_str::<Chat>`";

/// The maximum number of characters of a title.
const MAX_TITLE_CHARACTERS: usize = 100;

fn has_calls(message: &UiMessage) -> bool {
    message.tool_parts().next().is_some()
}

/// Whether this is the recorded outcome of this call of this message.
fn is_outcome_of(known: &DeferredToolResult, message: &MessageId, call: &ToolCallId) -> bool {
    known.message_id.as_ref() == Some(message) && known.tool_call_id == *call
}

/// Whether the recorded outcome of this call of this message is that it is unknown.
fn is_outcome_unknown(
    outcomes: &[DeferredToolResult],
    message: &MessageId,
    call: &ToolCallId,
) -> bool {
    outcomes.iter().any(|known| {
        known.outcome == DeferredOutcome::OutcomeUnknown && is_outcome_of(known, message, call)
    })
}
