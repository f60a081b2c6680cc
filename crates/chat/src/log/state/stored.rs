//! The form in which the state of a chat is stored.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::super::entry::StepEnd;
use super::super::open_chunks::OpenChunks;
use super::{ChatState, FoldError, LastEnd, Live, Step, continuing};
use crate::conversation::{Chat, Messages};
use crate::store::Snapshot;
use ui_message_stream::approval::DeferredToolResult;
use ui_message_stream::id::{MessageId, RunId};
use ui_message_stream::message::UiMessage;

/// A state that can be stored.
#[derive(Debug, Clone)]
pub(crate) struct StateSnapshot {
    /// The number of entries before it.
    pub(crate) position: u64,
    /// Everything but the messages, as JSON.
    pub(crate) head: String,
    pub(crate) messages: Messages,
}

/// Everything of a state but the messages, as it is stored. A state is stored between two steps, when
/// no part of the message is open.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredState {
    chat: Box<RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    live: Option<StoredLive>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_end: Option<LastEnd>,
    losses: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    unread: Vec<DeferredToolResult>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredLive {
    run: RunId,
    message_id: MessageId,
    begin: u64,
    begun_parts: usize,
    step_end: Option<StepEnd>,
}

impl ChatState {
    /// Returns the state of a snapshot.
    pub(super) fn of_snapshot(snapshot: &Snapshot) -> Result<Self, FoldError> {
        let StoredState { chat, live, last_end, losses, unread } =
            serde_json::from_str(&snapshot.head)?;
        let mut chat = Chat::from_head_json(chat.get())?;
        for message in &snapshot.messages {
            chat.messages.push(serde_json::from_str::<UiMessage>(message)?);
        }
        let live = live.map(|live| Live {
            reducer: continuing(chat.message(&live.message_id), &live.message_id),
            run: live.run,
            message_id: live.message_id,
            begin: live.begin,
            begun_parts: live.begun_parts,
            step: live.step_end.map_or(Step::NotBegun, Step::Ended),
            claimed: Vec::new(),
            is_handed_over: false,
            open: OpenChunks::default(),
            holds_message: false,
        });
        let length = snapshot.position;
        let lacks_frames = false;
        Ok(ChatState { chat, length, live, last_end, losses, unread, lacks_frames })
    }

    /// Returns the state as a store keeps it. Returns `None` within a step, and if frames were left out.
    pub(crate) fn snapshot(&mut self) -> Option<StateSnapshot> {
        self.return_message();
        let live = self.live.as_ref();
        let is_called = live.is_some_and(|live| live.step == Step::Called);
        if is_called || self.lacks_frames {
            return None;
        }
        let live = live.map(|live| StoredLive {
            run: live.run.clone(),
            message_id: live.message_id.clone(),
            begin: live.begin,
            begun_parts: live.begun_parts,
            step_end: live.step.end().cloned(),
        });
        let stored = StoredState {
            chat: RawValue::from_string(self.chat.head_json().ok()?).ok()?,
            live,
            last_end: self.last_end.clone(),
            losses: self.losses,
            unread: self.unread.clone(),
        };
        Some(StateSnapshot {
            position: self.length,
            head: serde_json::to_string(&stored).ok()?,
            messages: self.chat.messages.clone(),
        })
    }
}
