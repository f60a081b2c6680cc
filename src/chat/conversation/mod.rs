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
mod messages;
mod recorder;
mod resolve_calls;
mod stop_reason;

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

pub use self::client_answers::ClientAnswers;
pub use self::delivery::{PostedHistory, RequestEffect};
pub use self::history_completeness::HistoryCompleteness;
pub use self::history_import::HistoryImport;
pub use self::messages::{Messages, MessagesIter};
pub use self::recorder::{RecordedMessage, Recorder};
pub use self::stop_reason::StopReason;

use self::apply_answers::apply_answers;
#[cfg(feature = "approvals")]
use self::call_state::is_client_call;
use self::delivery::{PastMessages, REGENERATED, digest_of_edit};
use self::history_import::{UnverifiedCalls, imported};
use self::messages::json_len;
use crate::approval::{
    DeferredOutcome, DeferredToolResult, PendingToolCall, Principal, UnixMillis,
};
use crate::id::{ChatId, MessageId, ToolCallId};
use crate::json::{Format, RecordKind};
use crate::message::{Part, Role, ToolPart, ToolState, UiMessage};
use crate::request::{ChatRequest, ParseRequestError, Trigger};

/// A conversation as the server stores it.
///
/// It is serialized as JSON with the number of its format, which is 2. A chat of format 1 is read as
/// well; it has no number. A chat of a newer format is an error that names the format.
///
/// ```
/// use ui_message_stream::ChatRequest;
/// use ui_message_stream::approval::Principal;
/// use ui_message_stream::chat::{Chat, PostedHistory, RequestEffect};
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
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Chat {
    #[serde(default = "Format::unnumbered")]
    format: Format<ChatRecord>,
    /// The id of the conversation.
    pub id: ChatId,
    /// The principal to whom the conversation belongs.
    pub owner: Principal,
    /// The messages, oldest first. A copy of the conversation shares them.
    pub messages: Messages,
    /// Whether the messages are everything that happened in the conversation. A host that stores
    /// only a part of the messages sets it to [`HistoryCompleteness::Truncated`].
    #[serde(default)]
    pub history: HistoryCompleteness,
    /// The calls that the client executes and that have no result yet.
    #[serde(default, alias = "leftToClient")]
    pub client_executed: Vec<PendingToolCall>,
    /// The approvals of provider-executed calls that have not been sent to the provider yet.
    #[serde(default, alias = "forProvider", skip_serializing_if = "Vec::is_empty")]
    pub unsent_approvals: Vec<DeferredToolResult>,
    /// The outcomes of the calls that were not executed, and of the calls for which it is unknown
    /// whether they were executed. In the messages such a call has only an error text, and a failed
    /// tool can have the same text. The outcome is therefore stored here.
    ///
    /// [`ToModelMessages::with_call_outcomes`](crate::model::ToModelMessages::with_call_outcomes)
    /// includes these outcomes in the messages for the model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub call_outcomes: Vec<DeferredToolResult>,
    /// The imported calls, which only the client claims to have happened.
    #[serde(default, skip_serializing_if = "UnverifiedCalls::is_empty")]
    unverified_calls: UnverifiedCalls,
    #[serde(default, alias = "underWay", skip_serializing_if = "Vec::is_empty")]
    pending_responses: Vec<PendingResponse>,
    /// The user message whose response was last requested again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    regenerated: Option<MessageId>,
    #[serde(default, skip_serializing_if = "PastMessages::is_empty")]
    past_messages: PastMessages,
}

debug_without_content!(Chat {
    id, owner, history;
    messages, client_executed, unsent_approvals, call_outcomes, pending_responses, past_messages
});

/// The kind of a [`Chat`] among the stored records.
#[derive(Debug, Clone, Default, PartialEq)]
struct ChatRecord;

impl RecordKind for ChatRecord {
    const NAME: &'static str = "chat record";
    const FORMAT: u64 = 2;
}

/// A response that is being written and is not among the messages yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PendingResponse {
    message_id: MessageId,
    /// The message after which the response is inserted. `None` at the start of the conversation.
    after: Option<MessageId>,
    /// Whether the response will not be stored, because the user edited the message that it answers
    /// or requested another response to it.
    #[serde(alias = "isTakenAway")]
    is_discarded: bool,
    /// The server that writes the response extends this time while the run is active. Afterwards the
    /// run counts as lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    leased_until: Option<UnixMillis>,
}

impl Chat {
    /// Creates an empty conversation.
    pub fn new(id: impl Into<ChatId>, owner: Principal) -> Self {
        Chat {
            format: Format::default(),
            id: id.into(),
            owner,
            messages: Messages::default(),
            history: HistoryCompleteness::Complete,
            client_executed: Vec::new(),
            unsent_approvals: Vec::new(),
            call_outcomes: Vec::new(),
            unverified_calls: UnverifiedCalls::default(),
            pending_responses: Vec::new(),
            regenerated: None,
            past_messages: PastMessages::default(),
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
        let messages = match self.unverified_calls.is_empty() {
            true => None,
            false => Some(self.messages.iter()),
        };
        messages.into_iter().flatten().flat_map(|message| self.unverified_calls.of(message))
    }

    /// Returns the conversation without the calls that only the client claims to have happened, or
    /// `None` if there are none.
    #[cfg(feature = "agent")]
    pub(crate) fn without_unverified_calls(&self) -> Option<Chat> {
        if self.unverified_calls.is_empty() {
            return None;
        }
        let mut chat = self.clone();
        let with_calls = self.messages.with_calls();
        let places = with_calls.filter(|(_, it)| self.unverified_calls.of(it).next().is_some());
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

    /// Applies the user's new message, edit or regeneration of a request to this conversation.
    ///
    /// - A new message is appended. With [`PostedHistory::Truncate`], the messages that the posted
    ///   history lacks at its end are removed before.
    /// - An edit replaces the message with its id and removes all messages after it. A message is an
    ///   edit if `messageId` names it, the request contains the posted history and not a single
    ///   `message`, and its parts are new for this message.
    /// - [`Trigger::RegenerateMessage`] removes the response that the agent must write again, and
    ///   all messages after it, with each [`PostedHistory`]: the page has removed them as well.
    ///   Without `messageId` it is the response to the posted history's last message.
    /// - Approval responses and tool outputs continue the message that holds their calls.
    ///
    /// If tool calls are removed, the [history](Self::history) is no longer complete.
    ///
    /// A request that was delivered before changes nothing: its message is known, whether the
    /// conversation still holds it or not, or the response that it regenerates was replaced. A
    /// request that regenerates the response to a user message, named by the id of this message or
    /// without `messageId`, changes nothing while this response is being written, and regenerates it
    /// again afterwards. If other user messages follow, it regenerates the response only if it was
    /// never regenerated since the last edit of its user message.
    pub fn apply_request(
        &mut self,
        request: &ChatRequest,
        posted_history: PostedHistory,
    ) -> RequestEffect {
        if *request.trigger() == Trigger::RegenerateMessage {
            return self.regenerate(request);
        }
        if let Some(message) = request.new_user_message() {
            return self.add_user_message(request, message, posted_history);
        }
        let Some(continued) = request.continued_message() else {
            return RequestEffect::NewResponse;
        };
        let id = &continued.id;
        if self.place_of(id, Role::Assistant).is_some() {
            return RequestEffect::Continues(id.clone());
        }
        if let Some(after) = self.past_messages.removed(id) {
            return self.response_after(after);
        }
        let last = self.messages.last().map(|message| message.id.clone());
        self.past_messages.add_removed(id.clone(), last);
        RequestEffect::NewResponse
    }

    fn add_user_message(
        &mut self,
        request: &ChatRequest,
        message: &UiMessage,
        posted_history: PostedHistory,
    ) -> RequestEffect {
        let (id, message) = (&message.id, imported(message, HistoryImport::Texts));
        if let Some(place) = self.place_of(id, Role::User) {
            let is_changed = self.messages[place].parts != message.parts;
            let is_edit = request.message_id() == Some(id) && !request.is_last_message_only();
            if !is_changed || !is_edit {
                return self.response_after(Some(id));
            }
            if !self.past_messages.add_change(id, digest_of_edit(&message.parts)) {
                // The message has another text since, so its response does not answer this one.
                return RequestEffect::NotAnswered;
            }
            self.past_messages.remove_change(id, REGENERATED);
            if self.regenerated.as_ref() == Some(id) {
                self.regenerated = None;
            }
            self.truncate(place, place);
        } else if self.past_messages.removed(id).is_some() {
            return RequestEffect::NotAnswered;
        } else if posted_history == PostedHistory::Truncate
            && let Some(length) = self.posted_prefix(request)
        {
            self.truncate(length, length);
        }
        self.messages.push(message);
        RequestEffect::NewResponse
    }

    /// Returns the number of posted messages before the new one, if they are the first messages of
    /// this conversation, but not all of them.
    fn posted_prefix(&self, request: &ChatRequest) -> Option<usize> {
        let (_, posted) = request.messages().split_last()?;
        let is_prefix = !request.is_last_message_only()
            && posted.len() < self.messages.len()
            && posted.iter().zip(self.messages.iter()).all(|(posted, own)| posted.id == own.id);
        is_prefix.then_some(posted.len())
    }

    /// Removes the response to be written again, and all messages after it.
    fn regenerate(&mut self, request: &ChatRequest) -> RequestEffect {
        let named = request.message_id();
        if let Some(place) = named.and_then(|id| self.place_of(id, Role::Assistant)) {
            self.truncate(place, place.saturating_sub(1));
            return RequestEffect::NewResponse;
        }
        if let Some(place) = named.and_then(|id| self.place_of_pending(id)) {
            self.truncate(place, place.saturating_sub(1));
            return RequestEffect::NewResponse;
        }
        if let Some(place) = named.and_then(|id| self.place_of(id, Role::User)) {
            return self.regenerate_response_to(place);
        }
        if let Some(after) = named.and_then(|id| self.past_messages.removed(id)) {
            return self.response_after(after);
        }
        let posted = request.messages().last().filter(|message| message.role == Role::User);
        let Some(posted) = posted else {
            return match self.place_of_last_question() {
                Some(place) => self.regenerate_response_to(place),
                None => {
                    self.truncate(0, 0);
                    RequestEffect::NewResponse
                }
            };
        };
        match self.place_of(&posted.id, Role::User) {
            Some(place) => self.regenerate_response_to(place),
            None if self.past_messages.removed(&posted.id).is_some() => RequestEffect::NotAnswered,
            // The request that sent the message did not arrive.
            None => {
                self.messages.push(imported(posted, HistoryImport::Texts));
                RequestEffect::NewResponse
            }
        }
    }

    /// Removes the response to the user message at this place, and all messages after it. If other
    /// user messages follow, this happens once: the same request may have regenerated the response
    /// before they were sent.
    fn regenerate_response_to(&mut self, place: usize) -> RequestEffect {
        let question = self.messages[place].id.clone();
        if self.regenerated.as_ref() == Some(&question)
            && let Some(response) = self.pending_response_after(&question)
        {
            return RequestEffect::AwaitsResponse(response.clone());
        }
        let is_new = self.past_messages.add_change(&question, REGENERATED.into());
        if !is_new && Some(place) != self.place_of_last_question() {
            return self.response_after(Some(&question));
        }
        self.truncate(place + 1, place);
        self.regenerated = Some(question);
        RequestEffect::NewResponse
    }

    fn place_of_last_question(&self) -> Option<usize> {
        self.messages.iter().rposition(|message| message.role == Role::User)
    }

    /// Returns the effect of a request that was delivered before. `question` is the message before
    /// its response.
    fn response_after(&self, question: Option<&MessageId>) -> RequestEffect {
        let Some(question) = question else { return RequestEffect::NotAnswered };
        if let Some(pending) = self.pending_response_after(question) {
            return RequestEffect::AwaitsResponse(pending.clone());
        }
        let next = self.messages.position(question).and_then(|place| self.messages.get(place + 1));
        match next.filter(|next| next.role == Role::Assistant) {
            Some(response) => RequestEffect::Answered(response.id.clone()),
            None => RequestEffect::NotAnswered,
        }
    }

    /// Returns the id of the response that is being written after this message.
    fn pending_response_after(&self, question: &MessageId) -> Option<&MessageId> {
        let mut pending = self.pending_responses.iter().rev();
        let pending = pending
            .find(|pending| !pending.is_discarded && pending.after.as_ref() == Some(question));
        pending.map(|pending| &pending.message_id)
    }

    /// Returns the place of a response that is being written.
    fn place_of_pending(&self, id: &MessageId) -> Option<usize> {
        let mut pending = self.pending_responses.iter();
        let pending = pending.find(|pending| !pending.is_discarded && pending.message_id == *id);
        self.place_after(pending?)
    }

    /// Registers a response with this id that is about to be written.
    ///
    /// The place of the response is after the message that is currently the last one.
    /// [`upsert_message`](Self::upsert_message) inserts the response at this place, even if the
    /// user sends other messages before the response is complete. At most 16 responses are
    /// registered at once. Registering one more removes the oldest registration.
    pub fn begin_response(&mut self, id: MessageId) {
        let after = self.messages.last().map(|message| message.id.clone());
        let excess = self.pending_responses.len().saturating_sub(MAX_PENDING_RESPONSES - 1);
        self.pending_responses.drain(..excess);
        let response =
            PendingResponse { message_id: id, after, is_discarded: false, leased_until: None };
        self.pending_responses.push(response);
    }

    /// Removes the registration of the response with this id, which will not be written. Messages
    /// stay as they are.
    pub fn cancel_response(&mut self, id: &MessageId) {
        self.pending_responses.retain(|response| response.message_id != *id);
    }

    /// Sets until when the registered response with this id counts as being written. Returns `false`
    /// if it is not registered any more, or if it is discarded.
    #[cfg(feature = "approvals")]
    pub(super) fn lease_response(&mut self, id: &MessageId, until: UnixMillis) -> bool {
        let mut pending = self.pending_responses.iter_mut();
        let pending = pending.find(|pending| !pending.is_discarded && pending.message_id == *id);
        pending.map(|pending| pending.leased_until = Some(until)).is_some()
    }

    /// Returns until when the registered response with this id counts as being written.
    #[cfg(feature = "approvals")]
    pub(super) fn response_lease(&self, id: &MessageId) -> Option<UnixMillis> {
        let mut pending = self.pending_responses.iter();
        pending.find(|pending| pending.message_id == *id)?.leased_until
    }

    /// Discards the response with this id, which nothing writes any more although it is registered,
    /// so that another one can be written in its place. Returns `false` if messages follow, because
    /// no response could then be appended.
    #[cfg(feature = "approvals")]
    pub(super) fn replace_response(&mut self, id: &MessageId) -> bool {
        let last = self.messages.last().map(|message| &message.id);
        let mut is_last = false;
        for response in &mut self.pending_responses {
            if response.message_id == *id {
                response.is_discarded = true;
                is_last = response.after.as_ref() == last;
            }
        }
        // The lost run may have called tools.
        self.mark_truncated();
        is_last
    }

    /// Returns whether the conversation holds a message with this id, or a
    /// [registered](Self::begin_response) response with this id that was not discarded.
    pub fn expects(&self, id: &MessageId) -> bool {
        let mut expected = self.pending_responses.iter().filter(|response| !response.is_discarded);
        self.message(id).is_some() || expected.any(|response| response.message_id == *id)
    }

    /// Returns the ids of the [registered](Self::begin_response) responses that will not be stored,
    /// because the user edited the message that they answer or requested another response to it.
    pub fn discarded_responses(&self) -> impl Iterator<Item = &MessageId> {
        let discarded = self.pending_responses.iter().filter(|response| response.is_discarded);
        discarded.map(|response| &response.message_id)
    }

    /// Inserts or updates an assistant message, which is the result of [`Recorder::finish`] or a
    /// [`UiMessage`]. Returns `false` and does not store the message if it was discarded. If a
    /// discarded message holds tool calls, the [history](Self::history) is no longer complete.
    ///
    /// If `begun` is `None`, the message is a new response. A stored message with the same id is
    /// replaced. Otherwise the message is inserted where [`begin_response`](Self::begin_response)
    /// registered it, or at the end.
    ///
    /// If `begun` is a message, the response continues it: `begun` is the stored message as it was
    /// when the agent started. Changes that others made to the stored message since then are kept:
    /// results of its calls, and parts that other runs of the same message appended.
    ///
    /// The message was discarded
    ///
    /// - if it is new and one of the [`discarded_responses`](Self::discarded_responses);
    /// - if it continues a message that the conversation no longer contains.
    pub fn upsert_message(
        &mut self,
        recorded: impl Into<RecordedMessage>,
        begun: Option<&UiMessage>,
    ) -> bool {
        let RecordedMessage { message, client_executed, mut call_outcomes } = recorded.into();
        let id = message.id.clone();
        let place = self.place_of(&id, Role::Assistant);
        let Some(begun) = begun else {
            let mut pending = self.pending_responses.iter();
            let pending = pending.position(|response| response.message_id == message.id);
            if pending.is_some_and(|at| self.pending_responses[at].is_discarded) {
                self.forget_calls_of(&message);
                return false;
            }
            let pending = pending.map(|at| self.pending_responses.remove(at));
            match place {
                Some(place) => {
                    let replaced = self.messages.replace(place, message);
                    let calls = || replaced.iter().flat_map(|message| message.tool_parts());
                    self.client_executed
                        .retain(|call| !calls().any(|part| part.tool_call_id == call.tool_call_id));
                }
                None => {
                    let place = pending.and_then(|response| self.place_after(&response));
                    self.messages.insert(place.unwrap_or(self.messages.len()), message);
                }
            }
            self.call_outcomes.retain(|known| known.message_id.as_ref() != Some(&id));
            self.unverified_calls.remove(&id);
            self.call_outcomes.extend(call_outcomes);
            self.add_client_executed(&id, client_executed);
            return true;
        };
        let Some(place) = place else {
            self.forget_calls_of(&message);
            return false;
        };
        let known_outcomes = &mut self.call_outcomes;
        self.messages.update(place, |stored| {
            let mut parts = message.parts.into_iter();
            let stored_parts = stored.parts.iter_mut();
            for ((now, before), after) in stored_parts.zip(&begun.parts).zip(&mut parts) {
                if now == before {
                    *now = after;
                    continue;
                }
                let call = now.as_tool().map(|part| part.tool_call_id.clone());
                let Some(call) = call else { continue };
                // Another run may have recorded the outcome as unknown before the result arrived.
                if has_result(&after) && is_outcome_unknown(known_outcomes, &id, &call) {
                    known_outcomes.retain(|known| !is_outcome_of(known, &id, &call));
                    *now = after;
                } else {
                    call_outcomes.retain(|recorded| recorded.tool_call_id != call);
                }
            }
            stored.parts.extend(parts);
            if stored.metadata == begun.metadata {
                stored.metadata = message.metadata;
            }
        });
        // The message may have been stored before, while the agent was writing it.
        call_outcomes.retain(|recorded| {
            !self
                .call_outcomes
                .iter()
                .any(|known| is_outcome_of(known, &id, &recorded.tool_call_id))
        });
        self.call_outcomes.extend(call_outcomes);
        self.add_client_executed(&id, client_executed);
        true
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

    /// Returns whether the conversation waits for an approval response or for the output of a call
    /// that the client executes.
    pub fn has_open_questions(&self) -> bool {
        let mut parts =
            self.messages.with_unsettled_calls().flat_map(|message| message.tool_parts());
        !self.client_executed.is_empty()
            || parts.any(|part| matches!(part.state, ToolState::ApprovalRequested { .. }))
    }

    /// Returns the number of bytes of the conversation, as
    /// [`ChatLimits`](crate::limits::ChatLimits) counts them: of the messages as JSON, and of the
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
            + bytes_of(&self.pending_responses)
            + self.past_messages.bytes()
    }

    /// Returns the number of bytes of the outputs in these messages of a client that
    /// [`record_result`](Self::record_result) would add, because their calls have no result yet.
    #[cfg(feature = "approvals")]
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
    /// use ui_message_stream::chat::{Chat, ClientAnswers};
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
        Ok(ChatRequest::from_last_message(self.id.clone(), message, answers.custom.clone()))
    }

    /// Returns why a message of this conversation ends, as far as the stored conversation shows it.
    ///
    /// The result is [`StopReason::RequiresApproval`], [`StopReason::RequiresClientTool`] or
    /// [`StopReason::Stop`]. If the message waits for both the user and the client, it is
    /// `RequiresApproval`. It is `Stop` also if the conversation has no message with this id.
    ///
    /// ```
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream::chat::{Chat, StopReason};
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
        match parts().any(|part| !part.is_settled() && is_client_executed(&part.tool_call_id)) {
            true => StopReason::RequiresClientTool,
            false => StopReason::Stop,
        }
    }

    /// Removes the messages from index `first_message` on. Discards the pending responses to
    /// messages from index `first_question` on.
    fn truncate(&mut self, first_message: usize, first_question: usize) {
        let place_of = |id: &Option<MessageId>| self.messages.position(id.as_ref()?);
        let pending = self.pending_responses.iter();
        let places: Vec<_> = pending.map(|response| place_of(&response.after)).collect();
        let mut removed = self.messages.iter().skip(first_message);
        let mut is_call_lost = removed.any(has_calls);
        for (response, place) in self.pending_responses.iter_mut().zip(places) {
            let is_discarded = place.is_none_or(|place| place >= first_question);
            let is_new = is_discarded && !response.is_discarded;
            if is_new {
                self.past_messages.add_removed(response.message_id.clone(), response.after.clone());
            }
            // A response that is still being written may already have run tools.
            is_call_lost |= is_new;
            response.is_discarded |= is_discarded;
        }
        if is_call_lost {
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
        let parts = messages.with_calls().flat_map(|(_, message)| message.tool_parts());
        let calls: HashSet<&ToolCallId> = parts.map(|part| &part.tool_call_id).collect();
        self.client_executed.retain(|call| calls.contains(&call.tool_call_id));
        let is_kept = |id: &MessageId| messages.position(id).is_some();
        self.call_outcomes.retain(|known| known.message_id.as_ref().is_some_and(is_kept));
        self.unverified_calls.retain(is_kept);
    }

    /// Records that this message is not stored.
    fn forget_calls_of(&mut self, message: &UiMessage) {
        if has_calls(message) {
            self.mark_truncated();
        }
    }

    fn mark_truncated(&mut self) {
        if self.history.is_complete() {
            self.history = HistoryCompleteness::Truncated;
        }
    }

    /// Returns the index at which a response is inserted. Returns `None` if the message before it
    /// is gone.
    fn place_after(&self, response: &PendingResponse) -> Option<usize> {
        match &response.after {
            None => Some(0),
            Some(id) => self.messages.position(id).map(|at| at + 1),
        }
    }

    /// Returns the index of the last message with this role and id.
    fn place_of(&self, id: &MessageId, role: Role) -> Option<usize> {
        self.messages.position_of(id, role)
    }
}

fn has_calls(message: &UiMessage) -> bool {
    message.tool_parts().next().is_some()
}

fn has_result(part: &Part) -> bool {
    matches!(part, Part::Tool(part) if part.is_settled())
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

/// The maximum number of pending responses of one conversation. One more removes the oldest.
const MAX_PENDING_RESPONSES: usize = 16;
