//! [`ChatRecord`]: the stored form of a [`Chat`]. It is one JSON value, or a head and messages.

use serde::{Deserialize, Serialize};

use super::delivery::PastMessages;
use super::history_completeness::HistoryCompleteness;
use super::history_import::UnverifiedCalls;
use super::live_run::RunRegister;
use super::messages::Messages;
use crate::approval::{DeferredToolResult, PendingToolCall, Principal};
use crate::id::{ChatId, MessageId};
use crate::json::{Format, RecordKind};

/// The fields of a stored conversation, in the order in which they are written. A head has no
/// `messages`, so that it is never read as a conversation without messages.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChatRecord {
    #[serde(default = "Format::unnumbered")]
    pub(super) format: Format<ChatKind>,
    pub(super) id: ChatId,
    pub(super) owner: Principal,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) messages: Option<Messages>,
    #[serde(default)]
    pub(super) history: HistoryCompleteness,
    #[serde(default, alias = "leftToClient")]
    pub(super) client_executed: Vec<PendingToolCall>,
    #[serde(default, alias = "forProvider", skip_serializing_if = "Vec::is_empty")]
    pub(super) unsent_approvals: Vec<DeferredToolResult>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) call_outcomes: Vec<DeferredToolResult>,
    #[serde(default, skip_serializing_if = "UnverifiedCalls::is_empty")]
    pub(super) unverified_calls: UnverifiedCalls,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) regenerated: Option<MessageId>,
    #[serde(default, skip_serializing_if = "PastMessages::is_empty")]
    pub(super) past_messages: PastMessages,
    #[serde(default, skip_serializing_if = "RunRegister::is_empty")]
    pub(super) runs: RunRegister,
}

/// The kind of a conversation among the stored records.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct ChatKind;

impl RecordKind for ChatKind {
    const NAME: &'static str = "chat record";
    const FORMAT: u64 = 3;
    const OLDEST: u64 = 1;
}

impl ChatRecord {
    /// Returns the lowest format whose readers understand a conversation with this run. A reader of
    /// format 2 would add the steps again that the conversation holds already.
    pub(super) fn format_of(runs: &RunRegister) -> Format<ChatKind> {
        match &runs.live {
            Some(live) if live.kept.is_some() || live.resumes.is_some() => Format::default(),
            _ => Format::previous(),
        }
    }
}

/// In which format a [`ChatServer`](super::super::ChatServer) stores chats.
///
/// A chat has format 3 while a run writes in it that has stored a step of its message already, or that
/// resumes a run of a server that has failed. All other chats have format 2, and servers of both
/// versions read them.
#[cfg(feature = "approvals")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WriteFormat {
    /// Format 3.
    #[default]
    Newest,
    /// Format 2, for a rolling deploy in which servers of the version before still run. They refuse to
    /// read a chat of format 3. With this setting no step of a message is stored before the run ends,
    /// and a run whose server fails is not resumed: its message ends with an error.
    Previous,
}
