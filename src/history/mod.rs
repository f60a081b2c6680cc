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

use serde::{Deserialize, Serialize};

pub use self::answers::Answers;
pub use self::recorder::Recorder;
pub use self::stop_reason::StopReason;

use crate::approval::{OpenCall, Principal};
use crate::id::{ChatId, MessageId};
use crate::message::{Part, Role, UiMessage};
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
}

impl Chat {
    /// A conversation that begins.
    pub fn new(id: impl Into<ChatId>, owner: Principal) -> Self {
        Chat { id: id.into(), owner, messages: Vec::new(), left_to_client: Vec::new() }
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
            let place = self.place_of(&message.id, Role::User);
            self.messages.truncate(place.unwrap_or(self.messages.len()));
            let parts = said(message);
            self.messages.push(UiMessage { parts, ..message.clone() });
            return None;
        }
        let continued = &request.continued()?.id;
        self.place_of(continued, Role::Assistant).map(|_| continued.clone())
    }

    /// Keeps an assistant message: as the last or, if it goes on with one, in the place of that.
    ///
    /// `begun` is the message that it goes on with, as it was then. What became of it since stays:
    /// the results of its calls, and what others added that went on with it, too. If the person has
    /// taken it away meanwhile, it is not kept.
    pub fn put(&mut self, message: UiMessage, begun: Option<&UiMessage>) {
        let place = self.place_of(&message.id, Role::Assistant);
        let Some(begun) = begun else {
            match place {
                Some(place) => self.messages[place] = message,
                None => self.messages.push(message),
            }
            return;
        };
        let Some(kept) = place.map(|place| &mut self.messages[place]) else { return };
        let mut parts = message.parts.into_iter();
        for ((now, before), after) in kept.parts.iter_mut().zip(&begun.parts).zip(&mut parts) {
            if now == before {
                *now = after;
            }
        }
        kept.parts.extend(parts);
        if kept.metadata == begun.metadata {
            kept.metadata = message.metadata;
        }
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
        let keep = answer.or(question.or(last_question).map(|place| place + 1));
        self.messages.truncate(keep.unwrap_or(0));
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
