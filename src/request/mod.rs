//! [`ChatRequest`]: what a browser posts, parsed under limits, and what of it to work with.
//!
//! Bytes go in, a `ChatRequest` or a [`ParseRequestError`] comes out. The body is read once, into
//! its final types; whatever it holds, reading takes at most eight times its length in memory.
//! Inputs, outputs, data, metadata and the application's own fields stay checked text.
//!
//! Everything in a request is the client's word. What no honest client needs a server to believe
//! is withheld ([`ChatRequest::messages`]); what a person decided is found, and judged, by the
//! [approval](crate::approval) room. That the texts, tool inputs and tool outputs of earlier turns
//! are what they were is not checked here: a server that must know keeps its own history.

mod error;
mod limits;
mod parse;
mod sanitise;

use serde::de::DeserializeOwned;

pub use self::error::ParseRequestError;
pub use self::limits::Limits;

use self::parse::Body;
use self::sanitise::Withheld;
use crate::id::{ChatId, MessageId};
use crate::json::Json;
use crate::message::{Role, UiMessage};
use crate::record::Extra;

/// What a browser asks for: its history, and what to do with it.
///
/// ```
/// use ui_message_stream::ChatRequest;
/// use ui_message_stream::request::{Limits, Trigger};
///
/// let body = br#"{
///     "id": "chat-1",
///     "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}],
///     "trigger": "submit-message",
///     "model": "small"
/// }"#;
/// let chat = ChatRequest::parse(body, &Limits::default())?;
/// assert_eq!(chat.id().as_str(), "chat-1");
/// assert_eq!(chat.trigger(), &Trigger::SubmitMessage);
/// assert_eq!(chat.new_user_message().unwrap().id.as_str(), "m1");
/// assert_eq!(chat.custom("model").unwrap().as_str(), r#""small""#);
///
/// let error = ChatRequest::parse(br#"{"id": 7, "messages": []}"#, &Limits::default());
/// assert_eq!(error.unwrap_err().to_string(), "id: expected a string");
/// # Ok::<(), ui_message_stream::request::ParseRequestError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ChatRequest {
    id: ChatId,
    trigger: Trigger,
    message_id: Option<MessageId>,
    messages: Vec<UiMessage>,
    withheld: Vec<Withheld>,
    last_message_only: bool,
    continued: Option<usize>,
    custom: Extra,
}

/// Why the client asks.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Trigger {
    /// A new or edited message, an answered approval, or the output of a client-executed tool.
    /// Also where the body does not say.
    #[default]
    SubmitMessage,
    /// The last answer is to be given anew; the client has removed it.
    RegenerateMessage,
    /// A word that this crate does not know.
    Other(Box<str>),
}

impl Trigger {
    /// The word on the wire.
    pub fn as_str(&self) -> &str {
        match self {
            Trigger::SubmitMessage => "submit-message",
            Trigger::RegenerateMessage => "regenerate-message",
            Trigger::Other(word) => word,
        }
    }

    fn from_wire(word: &str) -> Self {
        match word {
            "submit-message" => Trigger::SubmitMessage,
            "regenerate-message" => Trigger::RegenerateMessage,
            other => Trigger::Other(other.into()),
        }
    }
}

impl ChatRequest {
    /// Reads the body of a POST.
    ///
    /// `messages` may be missing if there is a `message`: then that is the whole list. `trigger`
    /// and `messageId` may be missing or `null`. A field of another name is the application's own.
    ///
    /// # Errors
    /// - [`ParseRequestError::TooLong`], [`TooDeep`](ParseRequestError::TooDeep),
    ///   [`TooManyMessages`](ParseRequestError::TooManyMessages),
    ///   [`TooManyParts`](ParseRequestError::TooManyParts) and
    ///   [`TooManyNodes`](ParseRequestError::TooManyNodes) name the limit that the body exceeds.
    /// - [`ParseRequestError::NotUtf8`] and [`ParseRequestError::NotJson`] say where it ends to be
    ///   text, and JSON.
    /// - [`ParseRequestError::Field`] names the field that is missing, of a wrong type, given
    ///   twice, or holds what no client accepts (a key `__proto__`). Also where two answers to
    ///   the same approval contradict each other.
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, ParseRequestError> {
        let Body { id, trigger, message_id, mut messages, last_message_only, custom } =
            parse::body(body, limits)?;
        let withheld = sanitise::sanitise(&mut messages, limits);
        let continued = continued(&messages, &trigger, message_id.as_ref());
        Ok(ChatRequest {
            id,
            trigger,
            message_id,
            messages,
            withheld,
            last_message_only,
            continued,
            custom,
        })
    }

    /// As if a browser that shows this message had sent it.
    pub(crate) fn of_last_message(id: ChatId, message: UiMessage, custom: Extra) -> Self {
        ChatRequest {
            id,
            trigger: Trigger::SubmitMessage,
            message_id: Some(message.id.clone()),
            continued: Some(0),
            messages: vec![message],
            withheld: Vec::new(),
            last_message_only: true,
            custom,
        }
    }

    /// The conversation.
    pub fn id(&self) -> &ChatId {
        &self.id
    }

    /// Why the client asks.
    pub fn trigger(&self) -> &Trigger {
        &self.trigger
    }

    /// The message that the client says this is about: the edited user message, the assistant
    /// message with a new answer in it, or the removed one on regeneration.
    pub fn message_id(&self) -> Option<&MessageId> {
        self.message_id.as_ref()
    }

    /// The history, without what no honest client needs a server to believe:
    ///
    /// - messages of the role `system`: instructions are the server's;
    /// - provider metadata of messages, parts, calls and results, and what else is addressed to a
    ///   provider (`providerOptions`, `providerReference`);
    /// - files that are not at an allowed scheme, `https:` and `data:` unless
    ///   [`Limits::with_file_schemes`] says otherwise;
    /// - of the parts of a message with the same tool call id, all but the one that has come
    ///   furthest: a settled call never runs again.
    ///
    /// The rest is the client's word: it can put words into the model's mouth, change what tools
    /// were asked and returned, and leave turns out.
    pub fn messages(&self) -> &[UiMessage] {
        &self.messages
    }

    /// The history just as it was sent. Nothing of it may be believed.
    pub fn as_sent(&self) -> impl Iterator<Item = &UiMessage> {
        sanitise::as_sent(&self.messages, &self.withheld)
    }

    /// Whether the client sent only its last message, as `message`, and not its history.
    pub fn is_last_message_only(&self) -> bool {
        self.last_message_only
    }

    /// The assistant message that the response goes on with; without one it begins a new message.
    ///
    /// It is the one that `messageId` names, wherever it stands, or else the last of the list if
    /// that is the assistant's. On regeneration `messageId` names the message that was removed.
    pub fn continued(&self) -> Option<&UiMessage> {
        self.messages.get(self.continued?)
    }

    /// [`continued`](Self::continued) as the client holds it: what a response is translated for.
    pub fn continued_as_sent(&self) -> Option<&UiMessage> {
        let continued = self.continued()?;
        let is_it =
            |message: &&UiMessage| message.role == Role::Assistant && message.id == continued.id;
        self.as_sent().filter(is_it).last()
    }

    /// The user's message that the response answers: the last one, unless the response goes on
    /// with an assistant message.
    pub fn new_user_message(&self) -> Option<&UiMessage> {
        let last = self.messages.last().filter(|message| message.role == Role::User);
        last.filter(|_| self.continued.is_none())
    }

    /// One of the application's own fields.
    pub fn custom(&self, name: &str) -> Option<Json> {
        self.custom.get(name)
    }

    /// The application's own fields, read as `T`. Fields that `T` does not name are ignored.
    ///
    /// ```
    /// use ui_message_stream::ChatRequest;
    /// use ui_message_stream::request::Limits;
    ///
    /// #[derive(serde::Deserialize)]
    /// struct Custom {
    ///     model: String,
    /// }
    ///
    /// let body = br#"{"id":"chat-1","messages":[],"model":"small","beta":true}"#;
    /// let chat = ChatRequest::parse(body, &Limits::default()).unwrap();
    /// assert_eq!(chat.custom_fields::<Custom>()?.model, "small");
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    ///
    /// # Errors
    /// What `serde_json` says of fields that are not a `T`.
    pub fn custom_fields<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        self.custom.to()
    }
}

fn continued(
    messages: &[UiMessage],
    trigger: &Trigger,
    message_id: Option<&MessageId>,
) -> Option<usize> {
    let is_assistant = |message: &UiMessage| message.role == Role::Assistant;
    let named = message_id.filter(|_| *trigger != Trigger::RegenerateMessage).and_then(|id| {
        messages.iter().rposition(|message| is_assistant(message) && message.id == *id)
    });
    named.or_else(|| messages.last().filter(|last| is_assistant(last)).map(|_| messages.len() - 1))
}
