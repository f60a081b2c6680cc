//! [`ChatRequest`]: the body that a browser posts, parsed under limits and sanitised.
//!
//! Bytes go in, a `ChatRequest` or a [`ParseRequestError`] comes out. The body is read once, into
//! its final types. Reading takes at most eight times the length of the body in memory. Tool
//! inputs, tool outputs, data, metadata and the application's own fields are checked but not parsed
//! into a tree: they stay text ([`Json`]).
//!
//! A client can forge everything in a request. [`ChatRequest::messages`] leaves out content that a
//! server must not take from a client. The module [`approval`](crate::approval) finds and verifies
//! the user's decisions. This module does not check that the texts, tool inputs and tool outputs of
//! earlier turns are unchanged. A server that must know this keeps its own history.

mod error;
mod limits;
mod parse;
mod sanitise;
mod text_lengths;

use std::collections::HashMap;

use serde::de::DeserializeOwned;

pub use self::error::ParseRequestError;
pub use self::limits::Limits;
pub use self::parse::Trigger;

use self::parse::Body;
use self::sanitise::OriginalMessage;
use crate::id::{ApprovalId, ChatId, MessageId};
use crate::json::{ExtraFields, FieldError, Json};
use crate::message::{Role, UiMessage};

/// A parsed chat request: the history that the client sent, and the reason for the request. Its
/// format and size are checked. Its contents are the client's and are not trusted.
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
#[doc(alias = "useChat")]
#[derive(Clone)]
pub struct ChatRequest {
    id: ChatId,
    trigger: Trigger,
    message_id: Option<MessageId>,
    messages: Vec<UiMessage>,
    originals: Vec<OriginalMessage>,
    last_message_only: bool,
    continued: Option<usize>,
    approval_inputs: HashMap<ApprovalId, Json>,
    custom: ExtraFields,
}

debug_without_content!(ChatRequest { id, trigger, message_id; messages });

impl ChatRequest {
    /// Parses the body of a POST.
    ///
    /// The body contains either the list `messages` or a single `message`, and for
    /// [`Trigger::RegenerateMessage`] it may contain neither. `trigger` and `messageId` may be missing
    /// or `null`. `approvalInputs` holds [changed inputs](Self::approval_inputs). All other fields belong to
    /// the application, see [`custom`](Self::custom).
    ///
    /// # Errors
    /// - [`ParseRequestError::TooLong`], [`TooDeep`](ParseRequestError::TooDeep),
    ///   [`TooManyMessages`](ParseRequestError::TooManyMessages),
    ///   [`TooManyParts`](ParseRequestError::TooManyParts) and
    ///   [`TooManyNodes`](ParseRequestError::TooManyNodes) name the limit that the body exceeds.
    /// - [`ParseRequestError::DataUrlTooLong`] if the `data:` URL of a file is too long.
    /// - [`ParseRequestError::NotUtf8`] and [`ParseRequestError::NotJson`] name the place from
    ///   which the body is not UTF-8, or not JSON.
    /// - [`ParseRequestError::Field`] names a field that is missing, has a wrong type, appears
    ///   twice, or contains a key that no client accepts (`__proto__`). It names `approvalInputs` if it
    ///   is not an object of inputs. It also names an approval
    ///   response that contradicts another response to the same approval request.
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, ParseRequestError> {
        let Body { id, trigger, message_id, mut messages, last_message_only, custom } =
            parse::body(body, limits)?;
        let originals = sanitise::sanitise(&mut messages, limits);
        let continued = find_continued(&messages, &trigger, message_id.as_ref());
        let approval_inputs = approval_inputs(&custom, limits)?;
        Ok(ChatRequest {
            id,
            trigger,
            message_id,
            messages,
            originals,
            last_message_only,
            continued,
            approval_inputs,
            custom,
        })
    }

    /// Creates the request that a browser would send whose last message this is.
    pub fn from_last_message(id: ChatId, message: UiMessage, custom: ExtraFields) -> Self {
        ChatRequest {
            id,
            trigger: Trigger::SubmitMessage,
            message_id: Some(message.id.clone()),
            continued: Some(0),
            messages: vec![message],
            originals: Vec::new(),
            last_message_only: true,
            approval_inputs: HashMap::new(),
            custom,
        }
    }

    /// Sets the inputs that the user has changed, see [`approval_inputs`](Self::approval_inputs).
    #[must_use]
    pub fn with_approval_inputs(self, approval_inputs: HashMap<ApprovalId, Json>) -> Self {
        ChatRequest { approval_inputs, ..self }
    }

    /// Returns the id of the conversation.
    pub fn id(&self) -> &ChatId {
        &self.id
    }

    /// Returns why the client sent the request.
    pub fn trigger(&self) -> &Trigger {
        &self.trigger
    }

    /// Returns the field `messageId`, with which the client names one message:
    ///
    /// - the user message that the user edited;
    /// - the assistant message to which the client added an approval response or a tool output;
    /// - for [`Trigger::RegenerateMessage`], the message that the client removed.
    pub fn message_id(&self) -> Option<&MessageId> {
        self.message_id.as_ref()
    }

    /// Returns the history without the content that a server must not take from a client. It leaves
    /// out:
    ///
    /// - messages with the role `system`, because only the server gives instructions;
    /// - provider metadata of messages, parts, calls and results, and other fields for a provider
    ///   (`providerOptions`, `providerReference`);
    /// - files whose URL scheme is not allowed (by default `https:` and `data:` are allowed, see
    ///   [`Limits::with_file_schemes`]);
    /// - repeated tool parts: if a message has several parts with the same tool call id, only the
    ///   most advanced one remains, so that a call with a result never runs again.
    ///
    /// The rest is not verified. A client can invent texts of the model, change tool inputs and
    /// tool outputs, and omit turns.
    #[doc(alias = "history")]
    pub fn messages(&self) -> &[UiMessage] {
        &self.messages
    }

    /// Returns the history exactly as it was sent. None of it can be trusted.
    pub fn unsanitized_messages(&self) -> impl Iterator<Item = &UiMessage> {
        sanitise::unsanitized_messages(&self.messages, &self.originals)
    }

    /// Returns whether the client did not send its history, the list `messages`: it sent only its last
    /// message, in the field `message`, or no message.
    pub fn is_last_message_only(&self) -> bool {
        self.last_message_only
    }

    /// Returns the assistant message that the response continues. If it is `None`, the response
    /// begins a new message.
    ///
    /// It is the assistant message with the id `messageId`, at any place in the list. If there is
    /// none, it is the last message, provided that this is an assistant message. For
    /// [`Trigger::RegenerateMessage`] it is `None`: the client has removed the message that is
    /// written again, and begins a new one. If the response had the id of an earlier message, the
    /// client would replace that message.
    pub fn continued_message(&self) -> Option<&UiMessage> {
        self.messages.get(self.continued?)
    }

    /// Returns [`continued_message`](Self::continued_message) as the client holds it. The
    /// translator of the response needs this version.
    pub fn unsanitized_continued_message(&self) -> Option<&UiMessage> {
        let continued = self.continued_message()?;
        let is_continued =
            |message: &&UiMessage| message.role == Role::Assistant && message.id == continued.id;
        self.unsanitized_messages().filter(is_continued).last()
    }

    /// Returns the user message that the response answers: the last message, unless the response
    /// continues an assistant message.
    pub fn new_user_message(&self) -> Option<&UiMessage> {
        let last = self.messages.last().filter(|message| message.role == Role::User);
        last.filter(|_| self.continued.is_none())
    }

    /// Returns the inputs that the user has changed before approving, by the ids of the approval requests:
    /// the field `approvalInputs` of the body. `useChat` sends it if its transport has a `body` function
    /// that returns it, because the client's own approval responses cannot hold an input.
    ///
    /// An input counts only with the approval of its request, and only for a tool that is
    /// [`editable`](crate::approval::EditableInput). Inputs of requests that are denied, unanswered or
    /// already decided are ignored, so that a page need not remove them.
    ///
    /// ```
    /// use ui_message_stream::ChatRequest;
    /// use ui_message_stream::request::Limits;
    ///
    /// let body = br#"{"id": "chat-1", "messages": [], "approvalInputs": {"ap_1": {"path": "b.txt"}}}"#;
    /// let chat = ChatRequest::parse(body, &Limits::default())?;
    /// assert_eq!(chat.approval_inputs()["ap_1"].as_str(), r#"{"path": "b.txt"}"#);
    /// # Ok::<(), ui_message_stream::request::ParseRequestError>(())
    /// ```
    pub fn approval_inputs(&self) -> &HashMap<ApprovalId, Json> {
        &self.approval_inputs
    }

    /// Returns the value of one of the application's own fields in the body, or `None` if the body
    /// has no such field.
    pub fn custom(&self, name: &str) -> Option<Json> {
        self.custom.get(name)
    }

    /// Reads the application's own fields as `T`. Fields that `T` does not name are ignored.
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
    /// The error of `serde_json` if the fields cannot be deserialized as a `T`.
    pub fn custom_fields<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        self.custom.decode()
    }
}

fn approval_inputs(
    custom: &ExtraFields,
    limits: &Limits,
) -> Result<HashMap<ApprovalId, Json>, ParseRequestError> {
    let Some(inputs) = custom.get(APPROVAL_INPUTS).filter(|inputs| !inputs.is_null()) else {
        return Ok(HashMap::new());
    };
    let expected = |_| FieldError::expected(APPROVAL_INPUTS, "an object of inputs by approval id");
    let inputs: HashMap<ApprovalId, Json> = inputs.decode().map_err(expected)?;
    limits.check_answer_count(inputs.len())?;
    Ok(inputs)
}

/// The field of the body that holds changed inputs.
const APPROVAL_INPUTS: &str = "approvalInputs";

/// Returns the index of the assistant message that the response continues.
fn find_continued(
    messages: &[UiMessage],
    trigger: &Trigger,
    message_id: Option<&MessageId>,
) -> Option<usize> {
    if *trigger == Trigger::RegenerateMessage {
        return None;
    }
    let is_assistant = |message: &UiMessage| message.role == Role::Assistant;
    let named = message_id.and_then(|id| {
        messages.iter().rposition(|message| is_assistant(message) && message.id == *id)
    });
    named.or_else(|| messages.last().filter(|last| is_assistant(last)).map(|_| messages.len() - 1))
}
