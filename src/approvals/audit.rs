//! [`AuditEvent`]: what happened to an approval, for those who have to answer for it.

use std::fmt;

use serde::Serialize;
use tracing::Span;

use crate::approval::{
    ApprovalState, Principal, RecordId, RefusalCause, Revocation, ToolOutcome, UnixMillis,
};
use crate::id::{ChatId, ToolCallId};

/// One thing that happened to an approval. It holds no token, no input and no output.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AuditEvent {
    /// When, by the ledger's clock.
    pub at: UnixMillis,
    /// Which approval; `None` if what was sent names none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordId>,
    /// In which chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_id: Option<ChatId>,
    /// Who was there: who was asked, decided or tried to.
    pub principal: Principal,
    /// Which call. Of a refusal, the client's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<ToolCallId>,
    /// Which tool. Of a refusal, the client's word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<Box<str>>,
    /// SHA-256 of the input, in hex: the same in all events of an approval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_digest: Option<String>,
    /// When the person was asked, of an approval that there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<UnixMillis>,
    /// What happened.
    #[serde(flatten)]
    pub happened: Happened,
}

/// What happened to an approval.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "happened", rename_all = "kebab-case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Happened {
    /// A person was asked.
    Requested {
        /// Until when an answer is waited for.
        expires_at: UnixMillis,
    },
    /// Somebody said yes, and the call was claimed for it.
    Approved {
        /// Which attempt to run it.
        fence: u64,
        /// Why, in the person's words.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Somebody said no.
    Denied {
        /// Why, in the person's words.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// An answer did not count.
    Refused {
        /// Why. Nobody else is told.
        cause: RefusalCause,
    },
    /// Nobody answered in time.
    Expired,
    /// It was taken back.
    Revoked {
        /// Why.
        cause: Revocation,
    },
    /// The tool ran, and its outcome is stored.
    Ran {
        /// Which attempt.
        fence: u64,
        /// Whether it failed.
        failed: bool,
    },
    /// It was claimed, and nobody knows whether it ran.
    OutcomeUnknown,
}

impl Happened {
    /// Whether nobody is waited for any more from now on. That one has expired is found out later.
    fn ends_the_wait(&self) -> bool {
        matches!(
            self,
            Happened::Approved { fence: 1, .. }
                | Happened::Denied { .. }
                | Happened::Revoked { .. }
        )
    }

    /// The same, without what a person wrote.
    fn without_words(&self) -> Self {
        match self.clone() {
            Happened::Approved { fence, .. } => Happened::Approved { fence, reason: None },
            Happened::Denied { .. } => Happened::Denied { reason: None },
            other => other,
        }
    }

    /// What made a question what it is now.
    pub(super) fn to_become(state: &ApprovalState) -> Option<Self> {
        Some(match state {
            ApprovalState::Pending => return None,
            ApprovalState::Denied { decision } => {
                Happened::Denied { reason: decision.reason.clone() }
            }
            ApprovalState::Expired => Happened::Expired,
            ApprovalState::Revoked { cause, .. } => Happened::Revoked { cause: *cause },
            ApprovalState::Claimed { decision, fence, .. } => {
                Happened::Approved { fence: *fence, reason: decision.reason.clone() }
            }
            ApprovalState::Done { fence, outcome, .. } => {
                Happened::Ran { fence: *fence, failed: matches!(outcome, ToolOutcome::Failed(_)) }
            }
            ApprovalState::Unknown { .. } => Happened::OutcomeUnknown,
        })
    }
}

/// Takes what happens to approvals. It is called where it happens, and must not wait.
///
/// ```
/// use std::sync::mpsc::SyncSender;
///
/// use ui_message_stream::approvals::{AuditEvent, AuditSink};
///
/// /// Hands each event, as JSON, to whoever writes it down.
/// #[derive(Debug)]
/// struct Written(SyncSender<String>);
///
/// impl AuditSink for Written {
///     fn take(&self, event: &AuditEvent) {
///         let line = serde_json::to_string(event).unwrap_or_default();
///         if self.0.try_send(line).is_err() {
///             tracing::error!("nobody writes down what happens to approvals");
///         }
///     }
/// }
/// ```
pub trait AuditSink: Send + Sync + fmt::Debug + 'static {
    /// Takes an event.
    fn take(&self, event: &AuditEvent);
}

/// Sends every event to `tracing`, under the target `ui_message_stream::audit`, without the person's own
/// words: why they decided so stands in the event, for a sink of yours.
///
/// What ends a question is in a span `approval_wait`, which says how long the person was waited for:
/// `waited_ms`. The span itself is short. Nothing waits here while a person thinks, and the server
/// that asked may not be the one that hears.
#[derive(Debug, Clone, Copy, Default)]
pub struct TracingAudit;

impl AuditSink for TracingAudit {
    fn take(&self, event: &AuditEvent) {
        let asked = event.requested_at.filter(|_| event.happened.ends_the_wait());
        let waited = asked.map(|asked| event.at.0.saturating_sub(asked.0));
        let span = waited.map_or_else(Span::none, |waited_ms| {
            tracing::info_span!(
                target: "ui_message_stream::audit",
                "approval_wait",
                gen_ai.operation.name = "approval_wait",
                gen_ai.conversation.id = event.chat_id.as_ref().map(ChatId::as_str),
                gen_ai.tool.name = event.tool_name.as_deref(),
                gen_ai.tool.call.id = event.tool_call_id.as_ref().map(ToolCallId::as_str),
                waited_ms,
            )
        });
        let _entered = span.entered();
        tracing::info!(
            target: "ui_message_stream::audit",
            at = event.at.0,
            record = event.record.map(tracing::field::display),
            // Escaped: these are words of the client's, and a line of a log is a line.
            chat = ?event.chat_id,
            principal = %event.principal,
            tool_call = ?event.tool_call_id,
            tool = ?event.tool_name,
            input_digest = event.input_digest,
            happened = ?event.happened.without_words(),
        );
    }
}
