//! [`Entry`]: what the log of a chat holds.
//!
//! # A new kind of entry
//!
//! Servers of two versions read and write the same logs while a new version is deployed. A server that finds a kind
//! of entry which it does not know answers 503 for this chat, logs the name of the kind, and writes nothing: it
//! cannot know what the entry means. It goes on with all other chats. The server that has written the entry goes
//! on, too, and when a snapshot covers the entry, servers of both versions read the chat.
//! `a_server_that_does_not_know_an_entry_refuses_the_chat_and_writes_nothing`
//! (`tests/chat/stores/unknown_entries.rs`) shows it with an invented kind. To deploy without such refusals, a new
//! kind takes two releases:
//!
//! 1. The first one reads it: a variant of [`OtherEntry`], its `EntryKind`, its arm
//!    in `ChatState::apply` (`log/state/mod.rs`) and in `RunFrames::push` (`log/run_frames.rs`), and, if a sink
//!    gets what it changes, `Entry::changes_messages`. No code creates it yet. The compiler names all of these
//!    places.
//! 2. The second one writes it. Its changelog says that all servers have to run the first one before.
//!
//! `EntryKind` decides what a load leaves out, and never changes for a kind: `Frame` if only readers need it,
//! `Note` if a turn needs it but decides nothing on it, `Control` if another turn has to notice it. An entry is not
//! changed after a release: new fields are optional, with `#[serde(default)]`. What a fold keeps of an entry beyond
//! the messages stands in `StoredState` (`log/state/stored.rs`), which an older server reads without the fields
//! that it does not know: a state that must not be lost raises the format of the stored chat (`ChatRecord`), which
//! an older server refuses by its number.

use std::borrow::Cow;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::conversation::request_change::RequestChange;
use crate::conversation::{ReceivedResult, json_len};
use crate::store::{EntryKind, LiveRunChange, StoredEntry};
use ui_message_stream::approval::DeferredToolResult;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::id::{MessageId, RunId, ToolCallId};
use ui_message_stream::json::Json;
use ui_message_stream::message::{AnswerEnd, UiMessage};

/// An entry of the log of a chat.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Entry {
    /// The frames of chunks that each client reads as they are.
    Frame(Bytes),
    Other(Box<OtherEntry>),
}

/// Every entry that is not only frames.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub(crate) enum OtherEntry {
    /// The messages of a client's history, with which a chat may begin.
    Import { messages: Vec<UiMessage> },
    /// A new message, an edit or a regeneration.
    Request(RequestChange),
    /// A run begins. It writes this message: a new one, or one that it continues.
    Begin { run: RunId, message_id: MessageId },
    /// A chunk of which some clients read less, or nothing.
    Chunk { chunk: String },
    /// The server has refused to run a call: the chunks that show it, and the chunk for clients that do not know
    /// them.
    Refused { chunks: [String; 3], older: String },
    /// What clients read of a call before its result: a preliminary output, or its question again. The message does
    /// not get it.
    Preliminary { call: ToolCallId, frame: String },
    /// A call waits for a user, or for the client that executes it: the message with this call alone, and
    /// the frames that show it.
    Call { message: UiMessage, frames: String },
    /// The agent has given this result to a call that waited.
    Settled { call: ToolCallId, chunk: String },
    /// The model is about to be called. It reads all results before this entry.
    Step,
    /// The model call has ended.
    StepEnd(StepEnd),
    /// The model call of this step sends these approvals to the provider.
    Claimed { approvals: Vec<DeferredToolResult> },
    /// The server of the run is shut down, and another turn may end the run at once, or a turn ends a lost run. Nothing
    /// that the server of the run has written follows.
    HandedOver,
    /// The result of a call that a model call has left open, and the chunks that show it.
    Result {
        received: ReceivedResult,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        chunks: Vec<String>,
    },
    /// The run has ended.
    End { run: RunId, end: RunEnd },
}

/// What the frames of a model call do not show.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StepEnd {
    /// The call was cut off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_cut: bool,
    /// The frames that the client reads last, if the run ends here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) last: Vec<String>,
    /// Why the model has stopped, if the frames do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<FinishReason>,
    /// The metadata of the last frame.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) metadata: Option<Json>,
    /// The calls that were settled without being executed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) rejected: Vec<ToolCallId>,
    /// The calls of which it is unknown whether they were executed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unknown: Vec<ToolCallId>,
}

/// How a run has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RunEnd {
    Finished,
    /// The agent has failed. This is what clients read of the error.
    Failed(String),
    /// The user has stopped the run.
    Stopped,
    /// The user has sent a new message, an edit or a regeneration.
    Replaced,
    /// A limit of the server.
    Limit,
    /// The server was lost in a step.
    Interrupted,
    /// The server was lost between two steps. This run writes what follows.
    ResumedBy(RunId),
}

impl RunEnd {
    /// Returns how the answer has ended, if it has not finished and no other run resumes it.
    pub(crate) fn early(&self) -> Option<AnswerEnd> {
        match self {
            RunEnd::Finished | RunEnd::ResumedBy(_) => None,
            RunEnd::Failed(_) => Some(AnswerEnd::Failed),
            RunEnd::Stopped | RunEnd::Replaced => Some(AnswerEnd::Stopped),
            RunEnd::Limit => Some(AnswerEnd::Limit),
            RunEnd::Interrupted => Some(AnswerEnd::Interrupted),
        }
    }
}

/// The reason why a stored entry cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("a log entry cannot be read: {0}")]
pub(crate) struct ReadEntryError(#[from] serde_json::Error);

impl From<OtherEntry> for Entry {
    fn from(entry: OtherEntry) -> Self {
        Entry::Other(Box::new(entry))
    }
}

impl Entry {
    /// Returns the entry, unless it is only frames.
    pub(crate) fn other(&self) -> Option<&OtherEntry> {
        match self {
            Entry::Frame(_) => None,
            Entry::Other(other) => Some(other),
        }
    }

    /// Returns the frames of the agent in this entry, as the newest client reads them.
    pub(crate) fn frames(&self) -> Cow<'_, [u8]> {
        match self {
            Entry::Frame(frame) => Cow::Borrowed(frame),
            Entry::Other(other) => match &**other {
                OtherEntry::Chunk { chunk } | OtherEntry::Settled { chunk, .. } => {
                    Cow::Owned(frame_of(chunk).into())
                }
                OtherEntry::Refused { chunks, .. } => Cow::Owned(
                    chunks.iter().flat_map(|chunk| frame_of(chunk).into_bytes()).collect(),
                ),
                OtherEntry::Preliminary { frame, .. } => Cow::Borrowed(frame.as_bytes()),
                OtherEntry::Call { frames, .. } => Cow::Borrowed(frames.as_bytes()),
                _ => Cow::default(),
            },
        }
    }

    /// Returns the frames of the agent in this entry for a client that does not know what [`frames`](Self::frames)
    /// have in their place.
    pub(crate) fn older_frames(&self) -> Option<String> {
        match self.other() {
            Some(OtherEntry::Refused { older, .. }) => Some(frame_of(older)),
            _ => None,
        }
    }

    /// Returns the call of which clients read this before its result.
    pub(crate) fn preliminary_of(&self) -> Option<&ToolCallId> {
        match self.other() {
            Some(OtherEntry::Preliminary { call, .. }) => Some(call),
            _ => None,
        }
    }

    /// Returns what these entries change about the live run.
    pub(crate) fn live_run_change(entries: &[Self]) -> LiveRunChange<'_> {
        entries.iter().fold(LiveRunChange::None, |change, entry| match entry.other() {
            Some(OtherEntry::Begin { .. }) if matches!(change, LiveRunChange::Resumes(_)) => change,
            Some(OtherEntry::Begin { run, .. }) => LiveRunChange::Begins(run),
            Some(OtherEntry::End { end: RunEnd::ResumedBy(run), .. }) => {
                LiveRunChange::Resumes(run)
            }
            Some(OtherEntry::End { .. }) => LiveRunChange::Ends,
            _ => change,
        })
    }

    /// Whether a run ends here, and no other one resumes it.
    pub(crate) fn ends_run(&self) -> bool {
        match self.other() {
            Some(OtherEntry::End { end, .. }) => !matches!(end, RunEnd::ResumedBy(_)),
            _ => false,
        }
    }

    /// Whether messages change here that no live run writes.
    pub(crate) fn changes_messages(&self) -> bool {
        self.other().is_some_and(|other| {
            matches!(
                other,
                OtherEntry::Import { .. }
                    | OtherEntry::Request(_)
                    | OtherEntry::Result { .. }
                    | OtherEntry::End { .. }
            )
        })
    }

    pub(crate) fn kind(&self) -> EntryKind {
        let Entry::Other(other) = self else { return EntryKind::Frame };
        match &**other {
            OtherEntry::Chunk { .. }
            | OtherEntry::Refused { .. }
            | OtherEntry::Preliminary { .. } => EntryKind::Frame,
            OtherEntry::Step
            | OtherEntry::StepEnd(_)
            | OtherEntry::Claimed { .. }
            | OtherEntry::HandedOver => EntryKind::Note,
            OtherEntry::Import { .. }
            | OtherEntry::Request(_)
            | OtherEntry::Begin { .. }
            | OtherEntry::Call { .. }
            | OtherEntry::Settled { .. }
            | OtherEntry::Result { .. }
            | OtherEntry::End { .. } => EntryKind::Control,
        }
    }

    /// Returns the entry as a store holds it: a frame, or one JSON value. A frame never begins with a brace
    /// or a quotation mark.
    pub(crate) fn stored(&self) -> StoredEntry {
        let bytes = match self {
            Entry::Frame(bytes) => bytes.clone(),
            // Its values are strings, JSON, and messages that were parsed: each can be written.
            Entry::Other(other) => serde_json::to_vec(other).unwrap_or_default().into(),
        };
        StoredEntry { kind: self.kind(), bytes }
    }

    /// Returns the number of bytes of the entry as a store holds it.
    pub(crate) fn stored_len(&self) -> usize {
        match self {
            Entry::Frame(bytes) => bytes.len(),
            Entry::Other(other) => json_len(other),
        }
    }

    /// Reads a stored entry.
    ///
    /// # Errors
    /// [`ReadEntryError`], if this version does not know the entry. The error names its kind.
    pub(crate) fn read(stored: &StoredEntry) -> Result<Self, ReadEntryError> {
        match stored.bytes.first() {
            Some(b'{' | b'"') => Ok(Entry::Other(serde_json::from_slice(&stored.bytes)?)),
            _ => Ok(Entry::Frame(stored.bytes.clone())),
        }
    }
}

/// Returns the frame of a chunk.
pub(crate) fn frame_of(chunk: &str) -> String {
    format!("data: {chunk}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_stored() {
        let begin = OtherEntry::Begin { run: "r1".into(), message_id: "a1".into() };
        for entry in [
            Entry::Frame(Bytes::from_static(b"data: {\"type\":\"start-step\"}\n\n")),
            begin.into(),
            OtherEntry::Step.into(),
            OtherEntry::StepEnd(StepEnd::default()).into(),
            OtherEntry::End { run: "r1".into(), end: RunEnd::ResumedBy("r2".into()) }.into(),
        ] {
            assert_eq!(Entry::read(&entry.stored()).unwrap(), entry);
        }
    }

    #[test]
    fn an_unknown_entry_is_refused_by_its_name() {
        let bytes = Bytes::from_static(br#"{"vote":{"call":"c1"}}"#);
        let error = Entry::read(&StoredEntry { kind: EntryKind::Note, bytes }).unwrap_err();
        assert!(error.to_string().contains("unknown variant `vote`"), "{error}");
    }
}
