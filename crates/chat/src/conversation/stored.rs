//! [`ChatRecord`]: the stored form of a [`Chat`]. It is one JSON value, or a head and messages.

use serde::{Deserialize, Serialize};

use super::delivery::PastMessages;
use super::history_completeness::HistoryCompleteness;
use super::history_import::UnverifiedCalls;
use super::live_run::RunRegister;
use super::messages::Messages;
use ui_message_stream::approval::{DeferredToolResult, PendingToolCall, Principal};
use ui_message_stream::id::{ChatId, MessageId};
use ui_message_stream::json::{Format, RecordKind};

/// The fields of a stored conversation, in the order in which they are written. A head has no
/// `messages`, so that it is never read as a conversation without messages.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ChatRecord {
    pub(super) format: Format<ChatKind>,
    pub(super) id: ChatId,
    pub(super) owner: Principal,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) messages: Option<Messages>,
    pub(super) history: HistoryCompleteness,
    pub(super) client_executed: Vec<PendingToolCall>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
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
    const FORMAT: u64 = 1;
}
