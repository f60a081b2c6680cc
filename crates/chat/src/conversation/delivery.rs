//! What a request changes in a conversation, and [`PastMessages`], by which a request that is
//! delivered again is recognized after its message has left the conversation.

use std::collections::VecDeque;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest, Sha256};

use super::messages::json_len;
use ui_message_stream::id::MessageId;
use ui_message_stream::message::Part;

/// What a new user message does to the messages that follow in the stored history, but not in the
/// posted one.
///
/// A page can cut its history itself, with `setMessages`, and then send a message with a new id. A
/// page that is out of date sends the same: its history lacks messages that another page, or an
/// earlier response, has added.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PostedHistory {
    /// The stored history is kept, and the message is appended. This is the default.
    #[default]
    Keep,
    /// The posted history counts. If its messages are the first messages of the stored history, by
    /// their ids, the others are removed before the message is appended.
    ///
    /// The posted history has to be complete. A client that posts only its new message must post it
    /// as `message`, because the list `messages` with one new message removes all others.
    Truncate,
}

/// What a request changes in a conversation, as returned by
/// [`Chat::apply_request`](super::Chat::apply_request).
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum RequestEffect {
    /// The response is a new message.
    NewResponse,
    /// The response continues this message.
    Continues(MessageId),
    /// The request was delivered before, and nothing is changed. This message is the response.
    Answered(MessageId),
    /// The request was delivered before, and nothing is changed. The response with this id is being
    /// written.
    AwaitsResponse(MessageId),
    /// The request was delivered before, and nothing is changed. There is no response: none was
    /// stored, or the message that the request sends, edits or continues was removed or edited since.
    NotAnswered,
    /// The request is refused, and nothing is changed.
    Refused(RequestConflict),
}

/// Why a request does not fit its conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestConflict {
    /// The conversation holds the user's message with other parts, and the request is not an edit
    /// that `messageId` names. The page may be out of date, or the request may be older than an edit.
    #[error(
        "the chat holds this message with other content; to edit it, send `trigger: \"submit-message\"` \
         and its id as `messageId`, as `sendMessage({{ text, messageId }})` does"
    )]
    UnnamedEdit,
    /// A regeneration names no message of the conversation: neither by `messageId` nor by its last
    /// posted message. Or it names none, and the conversation holds no message of the user.
    #[error(
        "the chat holds no such message to regenerate; send the id of one of its messages as \
         `messageId`, or the history up to the user's message as `messages`"
    )]
    NothingToRegenerate,
    /// The request holds no message, and the conversation holds messages of the user: there is nothing to
    /// answer.
    #[error(
        "the request holds no message, so nothing was changed; send a message of the user, or an answer \
         to a call in its message"
    )]
    NothingNew,
    /// The request continues a message, or answers tool calls, that the conversation does not hold: the
    /// server has lost them, their message was removed, or the client has invented them.
    #[error(
        "the chat does not hold this message, or the tool calls that it answers, so nothing was changed; \
         load the chat again"
    )]
    UnknownCalls,
}

/// The messages that a conversation no longer holds, and changes of messages that it holds, oldest
/// first. A copy of the conversation shares them.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(from = "VecDeque<PastMessage>")]
pub(super) struct PastMessages {
    list: Arc<VecDeque<PastMessage>>,
    /// The bytes that the list has as JSON, without commas and brackets.
    bytes: usize,
}

impl From<VecDeque<PastMessage>> for PastMessages {
    fn from(list: VecDeque<PastMessage>) -> Self {
        PastMessages { bytes: list.iter().map(json_len).sum(), list: Arc::new(list) }
    }
}

impl Serialize for PastMessages {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&*self.list)
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PastMessage {
    id: MessageId,
    /// The message that was before a removed response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after: Option<MessageId>,
    /// A change of a user message: the digest of an edit, or a [regeneration](regeneration_after).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    change: Option<Box<str>>,
}

impl PastMessages {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a message that is removed. `after` is the message before it, if it is a response.
    pub(super) fn add_removed(&mut self, id: MessageId, after: Option<MessageId>) {
        self.add(PastMessage { id, after, change: None });
    }

    /// Returns whether a message was removed, and if it was a response, the message before it.
    pub(super) fn removed(&self, id: &MessageId) -> Option<Option<&MessageId>> {
        let mut removed = self.list.iter().rev().filter(|past| past.change.is_none());
        Some(removed.find(|past| past.id == *id)?.after.as_ref())
    }

    /// Adds a change of a user message, unless it was added before.
    pub(super) fn add_change(&mut self, id: &MessageId, change: Box<str>) {
        if !self.is_known_change(id, &change) {
            self.add(PastMessage { id: id.clone(), after: None, change: Some(change) });
        }
    }

    /// Returns whether this change of a user message was added.
    pub(super) fn is_known_change(&self, id: &MessageId, change: &str) -> bool {
        self.list.iter().any(|past| past.id == *id && past.change.as_deref() == Some(change))
    }

    /// Returns whether a change of a user message was added that begins so.
    pub(super) fn has_change(&self, id: &MessageId, beginning: &str) -> bool {
        let mut changes = self.list.iter().filter(|past| past.id == *id);
        changes.any(|past| past.change.as_ref().is_some_and(|change| change.starts_with(beginning)))
    }

    fn add(&mut self, past: PastMessage) {
        let list = Arc::make_mut(&mut self.list);
        if list.len() == MAX_PAST_MESSAGES
            && let Some(oldest) = list.pop_front()
        {
            self.bytes -= json_len(&oldest);
        }
        self.bytes += json_len(&past);
        list.push_back(past);
    }
}

/// Returns the digest of an edit.
pub(super) fn digest_of_edit(parts: &[Part]) -> Box<str> {
    // Parts of a parsed message can be written again. Without the digest, an edit that is delivered
    // again is only compared with the current version.
    let json = serde_json::to_vec(parts).unwrap_or_default();
    URL_SAFE_NO_PAD.encode(&Sha256::digest(json)[..12]).into()
}

/// Returns the change of a user message whose response was requested again, by a request that did not
/// name the response. These are the parts of the message then.
pub(super) fn regeneration_after(parts: &[Part]) -> Box<str> {
    format!("{REGENERATED}{}", digest_of_edit(parts)).into()
}

/// The beginning of each change by a regeneration. No digest has a space.
pub(super) const REGENERATED: &str = "regenerated ";

/// The maximum number of past messages of one conversation. One more removes the oldest.
const MAX_PAST_MESSAGES: usize = 1024;
