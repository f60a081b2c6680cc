//! [`Chat`]: a conversation as the server keeps it, and what of a request goes into it.
//!
//! A client sends its whole history, and can send what it likes. A server that keeps its own takes
//! from a request the person's new message, decisions on approvals, and outputs of the calls that it
//! left to the client; the rest it knows better. What the agent then says goes in through the
//! [`Recorder`].
//!
//! Left out here: where chats are kept.

mod answered;
mod answers;
mod recorder;
mod settle;
mod stop_reason;

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

pub use self::answers::Answers;
pub use self::recorder::Recorder;
pub use self::stop_reason::StopReason;

use crate::approval::{DeferredToolResult, OUTCOME_UNKNOWN, OpenCall, Principal};
use crate::id::{ChatId, MessageId, ToolCallId};
use crate::message::{Part, Role, ToolPart, ToolState, UiMessage};
use crate::request::{ChatRequest, Trigger};

/// A conversation as the server keeps it.
///
/// ```
/// use ui_message_stream::ChatRequest;
/// use ui_message_stream::approval::Principal;
/// use ui_message_stream::history::Chat;
/// use ui_message_stream::request::Limits;
///
/// let body = br#"{"id": "c", "messages": [
///     {"id": "m1", "role": "assistant", "parts": [{"type": "text", "text": "I am all yours"}]},
///     {"id": "m2", "role": "user", "parts": [{"type": "text", "text": "Go on"}]}
/// ]}"#;
/// let request = ChatRequest::parse(body, &Limits::default())?;
/// let mut chat = Chat::new("c", Principal::new("ada"));
/// chat.take(&request);
///
/// // What the assistant is said to have said, it did not say here.
/// assert_eq!(chat.messages.len(), 1);
/// assert_eq!(chat.messages[0].id.as_str(), "m2");
/// # Ok::<(), ui_message_stream::request::ParseRequestError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct Chat {
    /// Which conversation.
    pub id: ChatId,
    /// Whose it is.
    pub owner: Principal,
    /// What was said, in order.
    pub messages: Vec<UiMessage>,
    /// The calls that the client runs, and has not answered.
    #[serde(default)]
    pub left_to_client: Vec<OpenCall>,
    /// What the person allowed the provider to run, and the provider has not been told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub for_provider: Vec<DeferredToolResult>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    under_way: Vec<UnderWay>,
}

/// An answer that is being written, and is not among the messages yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct UnderWay {
    message_id: MessageId,
    /// Behind which message it belongs.
    after: Option<MessageId>,
    /// Whether nobody wants it any more: what it answers was edited, or is to be answered anew.
    is_taken_away: bool,
}

impl Chat {
    /// A conversation that begins.
    pub fn new(id: impl Into<ChatId>, owner: Principal) -> Self {
        Chat {
            id: id.into(),
            owner,
            messages: Vec::new(),
            left_to_client: Vec::new(),
            for_provider: Vec::new(),
            under_way: Vec::new(),
        }
    }

    /// A conversation that the server does not know, after a restart for instance: of what the
    /// client says that was said before, texts and files are taken. No call is, and no result.
    pub fn imported(request: &ChatRequest, owner: Principal) -> Self {
        let mut chat = Chat::new(request.id().clone(), owner);
        let new = request.new_user_message().map(|message| &message.id);
        let before = request.messages().iter().filter(|message| Some(&message.id) != new);
        chat.messages.extend(before.filter_map(|message| {
            let said = UiMessage { parts: said(message), ..message.clone() };
            (!said.parts.is_empty()).then_some(said)
        }));
        chat
    }

    /// Takes the person's new message out of a request. An edited message replaces the one that it
    /// was, and what followed it; before a new answer the old one goes.
    ///
    /// Says which assistant message the response goes on with, if it goes on with one that the
    /// server knows.
    pub fn take(&mut self, request: &ChatRequest) -> Option<MessageId> {
        if *request.trigger() == Trigger::RegenerateMessage {
            self.forget_answer(request.message_id());
            return None;
        }
        if let Some(message) = request.new_user_message() {
            if let Some(place) = self.place_of(&message.id, Role::User) {
                self.take_away(place, place);
            }
            let parts = said(message);
            self.messages.push(UiMessage { parts, ..message.clone() });
            return None;
        }
        let continued = &request.continued()?.id;
        self.place_of(continued, Role::Assistant).map(|_| continued.clone())
    }

    /// An answer of this id begins. Its place is behind what is the last message now, whatever the
    /// person says until it is [put](Self::put) there.
    pub fn begin_answer(&mut self, id: MessageId) {
        let after = self.messages.last().map(|message| message.id.clone());
        let most = self.under_way.len().saturating_sub(MOST_UNDER_WAY - 1);
        self.under_way.drain(..most);
        self.under_way.push(UnderWay { message_id: id, after, is_taken_away: false });
    }

    /// An answer of this id, which was not put anywhere, will not come.
    pub fn drop_answer(&mut self, id: &MessageId) {
        self.under_way.retain(|answer| answer.message_id != *id);
    }

    /// Whether an answer of this id is under way, or a message here.
    pub fn wants(&self, id: &MessageId) -> bool {
        let mut expected = self.under_way.iter().filter(|answer| !answer.is_taken_away);
        self.message(id).is_some() || expected.any(|answer| answer.message_id == *id)
    }

    /// The answers under way that nobody wants any more.
    pub fn unwanted_answers(&self) -> impl Iterator<Item = &MessageId> {
        let unwanted = self.under_way.iter().filter(|answer| answer.is_taken_away);
        unwanted.map(|answer| &answer.message_id)
    }

    /// Keeps an assistant message: where it [began](Self::begin_answer), as the last if that is not
    /// known or, if it goes on with one, in the place of that.
    ///
    /// `begun` is the message that it goes on with, as it was then. What became of it since stays:
    /// the results of its calls, and what others added that went on with it, too. If the person has
    /// taken it away meanwhile, or what it answers, it is not kept, and this is `false`.
    pub fn put(&mut self, message: UiMessage, begun: Option<&UiMessage>) -> bool {
        let place = self.place_of(&message.id, Role::Assistant);
        let Some(begun) = begun else {
            let began = self.under_way.iter().position(|answer| answer.message_id == message.id);
            if began.is_some_and(|at| self.under_way[at].is_taken_away) {
                return false;
            }
            let began = began.map(|at| self.under_way.remove(at));
            match place {
                Some(place) => self.messages[place] = message,
                None => {
                    let place = began.and_then(|answer| self.behind(answer.after.as_ref()));
                    self.messages.insert(place.unwrap_or(self.messages.len()), message);
                }
            }
            return true;
        };
        let Some(kept) = place.map(|place| &mut self.messages[place]) else { return false };
        let mut parts = message.parts.into_iter();
        for ((now, before), after) in kept.parts.iter_mut().zip(&begun.parts).zip(&mut parts) {
            // Another run may have given up hope of what came in the end.
            let was_given_up = now.as_tool().is_some_and(is_given_up);
            if now == before || was_given_up && has_result(&after) {
                *now = after;
            }
        }
        kept.parts.extend(parts);
        if kept.metadata == begun.metadata {
            kept.metadata = message.metadata;
        }
        true
    }

    /// The message of this id.
    pub fn message(&self, id: &MessageId) -> Option<&UiMessage> {
        self.messages.iter().rfind(|message| message.id == *id)
    }

    /// Takes away the answer that is to be given anew, and what followed it.
    fn forget_answer(&mut self, named: Option<&MessageId>) {
        let answer = named.and_then(|id| self.place_of(id, Role::Assistant));
        let question = named.and_then(|id| self.place_of(id, Role::User));
        let last_question = self.messages.iter().rposition(|message| message.role == Role::User);
        let keep = answer.or(question.or(last_question).map(|place| place + 1)).unwrap_or(0);
        self.take_away(keep, keep.saturating_sub(1));
    }

    /// Takes away the messages from the first place on, and the answers under way that belong behind
    /// a message from the second one on.
    fn take_away(&mut self, messages: usize, answers_to: usize) {
        let stands = |id: &Option<MessageId>| {
            self.messages.iter().position(|message| Some(&message.id) == id.as_ref())
        };
        let places: Vec<_> = self.under_way.iter().map(|answer| stands(&answer.after)).collect();
        for (answer, place) in self.under_way.iter_mut().zip(places) {
            answer.is_taken_away |= place.is_none_or(|place| place >= answers_to);
        }
        self.messages.truncate(messages);
        let held = self.messages.iter().flat_map(UiMessage::tool_parts);
        let held: HashSet<&ToolCallId> = held.map(|part| &part.tool_call_id).collect();
        self.left_to_client.retain(|call| held.contains(&call.tool_call_id));
    }

    /// The place behind a message; `None` if it is gone.
    fn behind(&self, id: Option<&MessageId>) -> Option<usize> {
        match id {
            None => Some(0),
            Some(id) => self.messages.iter().position(|message| message.id == *id).map(|at| at + 1),
        }
    }

    fn place_of(&self, id: &MessageId, role: Role) -> Option<usize> {
        self.messages.iter().rposition(|message| message.role == role && message.id == *id)
    }
}

/// The texts and files of a message, and of the person's also the data.
fn said(message: &UiMessage) -> Vec<Part> {
    let is_said = |part: &&Part| match part {
        Part::Text(_) | Part::File(_) => true,
        Part::Data(_) => message.role == Role::User,
        _ => false,
    };
    message.parts.iter().filter(is_said).cloned().collect()
}

fn has_result(part: &Part) -> bool {
    matches!(part, Part::Tool(part) if part.is_settled())
}

fn is_given_up(part: &ToolPart) -> bool {
    matches!(&part.state, ToolState::OutputError { error_text, .. } if error_text == OUTCOME_UNKNOWN)
}

/// How many answers are written in one chat at once; of more, the oldest are not under way any more.
const MOST_UNDER_WAY: usize = 16;
