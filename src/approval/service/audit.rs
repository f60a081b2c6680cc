//! [`AuditEvent`]: a change of an approval record, or a rejected decision, for the audit log.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;
use std::time::{Duration, SystemTime};

use serde::Serialize;
use tracing::Span;

use crate::approval::{
    ApprovalRecord, ApprovalState, Principal, RecordId, RejectionReason, RevocationReason,
    ToolOutcome, UnixMillis,
};
use crate::id::{ChatId, ToolCallId, log_text};

/// An event in the life of an approval request. It holds no token, no input and no output. The ids and
/// the name of the tool are in the form of [`log_text`]: bounded and escaped. The principal is
/// unchanged, because it comes from the host's authentication.
///
/// An event can be serialized as one line of JSON, which is broken into four lines here:
///
/// ```json
/// {"at":1795244780269,"record":"344caedb36669610cb123bcf16018d41","chatId":"chat-1",
/// "principal":{"tenant":"acme","id":"ada"},"toolCallId":"call-1","toolName":"transfer",
/// "inputDigest":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
/// "requestedAt":1795244750143,"kind":"approved","fence":1,"reason":"the invoice is correct"}
/// ```
///
/// The fields of the kind follow `kind`. Later versions can add fields and kinds: a reader of the
/// log has to accept both.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct AuditEvent {
    /// The time of the event, by the ledger's clock. For a decision on no known record, and for an
    /// outcome that could not be stored, it is the time of this server's clock.
    pub at: UnixMillis,
    /// The id of the record; `None` if the rejected decision names no record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<RecordId>,
    /// The id of the chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_id: Option<ChatId>,
    /// The principal that was asked, decided, or tried to decide.
    pub principal: Principal,
    /// The id of the tool call. In a `Rejected` event this is what the client sent, unverified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<ToolCallId>,
    /// The name of the tool. In a `Rejected` event this is what the client sent, unverified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<Box<str>>,
    /// The SHA-256 of the input, in hex, the same in all events of an approval request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_digest: Option<String>,
    /// The time of the approval request, if there is a record of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<UnixMillis>,
    /// The kind of the event, with its details.
    #[serde(flatten)]
    pub kind: AuditEventKind,
}

/// The kind of an [`AuditEvent`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum AuditEventKind {
    /// An approval was requested.
    Requested {
        /// The time at which the approval request expires. Left out in JSON if it never does.
        #[serde(skip_serializing_if = "UnixMillis::is_never")]
        expires_at: UnixMillis,
    },
    /// The call was approved and claimed for execution.
    Approved {
        /// The number of the attempt to execute the call, from 1. It is greater than 1 if an
        /// idempotent tool is executed again after a crash.
        fence: u64,
        /// The reason, in the user's own words.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The call was denied.
    Denied {
        /// The reason, in the user's own words, or
        /// [`UserText::DeniedByMessage`](crate::UserText::DeniedByMessage).
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// A decision was rejected.
    Rejected {
        /// The reason. Only the audit shows it.
        cause: RejectionReason,
    },
    /// No answer arrived in time.
    Expired,
    /// The user sent another message instead of an answer.
    Superseded,
    /// The call was approved, but the approval arrived with or after a newer message of the user.
    /// The tool was not executed.
    Lapsed {
        /// The reason of the approval, in the user's own words.
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The approval request was revoked.
    Revoked {
        /// The reason.
        cause: RevocationReason,
    },
    /// The tool was executed, and its outcome is stored.
    Executed {
        /// The number of the attempt, from 1.
        fence: u64,
        /// Whether the tool failed, or its source was [not available](super::Toolbox::refresh).
        failed: bool,
    },
    /// The call was claimed, and it is not known whether the tool was executed.
    OutcomeUnknown,
}

impl AuditEvent {
    /// Creates an event that belongs to no chat and no call.
    pub(super) fn new(at: UnixMillis, principal: &Principal, kind: AuditEventKind) -> Self {
        AuditEvent {
            at,
            record: None,
            chat_id: None,
            principal: principal.clone(),
            tool_call_id: None,
            tool_name: None,
            input_digest: None,
            requested_at: None,
            kind,
        }
    }

    /// Sets the chat and the call.
    pub(super) fn with_call(mut self, chat: &ChatId, call: &ToolCallId, tool_name: &str) -> Self {
        self.chat_id = Some(for_log(chat));
        self.tool_call_id = Some(for_log(call));
        self.tool_name = Some(log_text(tool_name).into());
        self
    }

    /// Sets what the record of the approval request says about itself, except its chat and its call.
    pub(super) fn with_record(mut self, record: &ApprovalRecord) -> Self {
        self.record = Some(record.id);
        self.input_digest = Some(record.input_digest());
        self.requested_at = Some(record.requested_at);
        self
    }
}

/// Returns an id as [`log_text`] writes it.
fn for_log<Id: Deref<Target = str> + From<String> + Clone>(id: &Id) -> Id {
    match log_text(id) {
        Cow::Borrowed(_) => id.clone(),
        Cow::Owned(escaped) => escaped.into(),
    }
}

impl AuditEventKind {
    /// Returns whether the user's decision, or a revocation, ends the wait with this event.
    ///
    /// `Expired` does not count: the request expires at a fixed time, and the event may be recorded later.
    fn is_end_of_wait(&self) -> bool {
        matches!(
            self,
            AuditEventKind::Approved { fence: 1, .. }
                | AuditEventKind::Denied { .. }
                | AuditEventKind::Superseded
                | AuditEventKind::Lapsed { .. }
                | AuditEventKind::Revoked { .. }
        )
    }

    /// Returns the name of this kind, as in the log and in the series of metrics. It is the kind of the JSON,
    /// but an execution that failed has a name of its own, `failed`.
    pub fn as_str(&self) -> &'static str {
        match self {
            AuditEventKind::Requested { .. } => "requested",
            AuditEventKind::Approved { .. } => "approved",
            AuditEventKind::Denied { .. } => "denied",
            AuditEventKind::Rejected { .. } => "rejected",
            AuditEventKind::Expired => "expired",
            AuditEventKind::Superseded => "superseded",
            AuditEventKind::Lapsed { .. } => "lapsed",
            AuditEventKind::Revoked { .. } => "revoked",
            AuditEventKind::Executed { failed: false, .. } => "executed",
            AuditEventKind::Executed { failed: true, .. } => "failed",
            AuditEventKind::OutcomeUnknown => "outcome-unknown",
        }
    }

    /// Returns the number of the attempt to execute the call.
    fn fence(&self) -> Option<u64> {
        match self {
            AuditEventKind::Approved { fence, .. } | AuditEventKind::Executed { fence, .. } => {
                Some(*fence)
            }
            _ => None,
        }
    }

    /// Returns why a decision was rejected, or a request revoked.
    fn cause(&self) -> Option<&dyn fmt::Debug> {
        match self {
            AuditEventKind::Rejected { cause } => Some(cause),
            AuditEventKind::Revoked { cause } => Some(cause),
            _ => None,
        }
    }

    /// Returns when a request expires.
    fn expires_at(&self) -> Option<UnixMillis> {
        match self {
            AuditEventKind::Requested { expires_at } => {
                Some(*expires_at).filter(|at| !at.is_never())
            }
            _ => None,
        }
    }

    /// Returns the kind of the event that put a record into this state, or `None` for
    /// [`ApprovalState::Pending`].
    pub(super) fn from_state(state: &ApprovalState) -> Option<Self> {
        Some(match state {
            ApprovalState::Pending => return None,
            ApprovalState::Denied { decision } => {
                AuditEventKind::Denied { reason: decision.reason.clone() }
            }
            ApprovalState::Expired => AuditEventKind::Expired,
            ApprovalState::Superseded { .. } => AuditEventKind::Superseded,
            ApprovalState::Lapsed { decision } => {
                AuditEventKind::Lapsed { reason: decision.reason.clone() }
            }
            ApprovalState::Revoked { cause, .. } => AuditEventKind::Revoked { cause: *cause },
            // The approval is sent by the first attempt.
            ApprovalState::Granted { decision } => {
                AuditEventKind::Approved { fence: 1, reason: decision.reason.clone() }
            }
            ApprovalState::Claimed { decision, fence, .. } => {
                AuditEventKind::Approved { fence: *fence, reason: decision.reason.clone() }
            }
            ApprovalState::Completed { fence, outcome, .. } => AuditEventKind::Executed {
                fence: *fence,
                failed: matches!(outcome, ToolOutcome::Failed(_)),
            },
            ApprovalState::OutcomeUnknown { .. } => AuditEventKind::OutcomeUnknown,
        })
    }
}

impl fmt::Display for AuditEventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A receiver of audit events. It is called synchronously where the event takes place, and must not
/// block.
///
/// ```
/// use std::sync::mpsc::SyncSender;
///
/// use ui_message_stream::approval::{AuditEvent, AuditSink};
///
/// /// Sends each event, as JSON, to the thread that writes the audit log.
/// #[derive(Debug)]
/// struct AuditLog(SyncSender<String>);
///
/// impl AuditSink for AuditLog {
///     fn record(&self, event: &AuditEvent) {
///         let line = serde_json::to_string(event).unwrap_or_default();
///         if self.0.try_send(line).is_err() {
///             tracing::error!("an audit event was lost");
///         }
///     }
/// }
/// ```
pub trait AuditSink: Send + Sync + fmt::Debug + 'static {
    /// Receives an event.
    fn record(&self, event: &AuditEvent);
}

/// An audit sink that sends every event to `tracing`, under the target `ui_message_stream::audit`.
///
/// Times are as in RFC 3339. The field `kind` is a name: `requested`, `approved`, `denied`, `executed`, `failed`. The
/// reason that a user wrote is left out. It is in the event, for a sink of your own.
///
/// An approval, a denial and a revocation are in a span `approval_wait`. Its field `waited_ms` is
/// the time between the approval request and the decision, in milliseconds. The span itself is
/// short: no task waits while the user decides, and the decision may reach another server than the
/// one that requested the approval.
#[derive(Debug, Clone, Copy, Default)]
pub struct TracingAudit;

impl AuditSink for TracingAudit {
    fn record(&self, event: &AuditEvent) {
        let requested_at = event.requested_at.filter(|_| event.kind.is_end_of_wait());
        let waited_ms = requested_at.map(|at| event.at.0.saturating_sub(at.0));
        let span = waited_ms.map_or_else(Span::none, |waited_ms| {
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
            at = %rfc3339(event.at),
            record = event.record.map(tracing::field::display),
            chat = ?event.chat_id,
            // Two fields, so that an id cannot be mistaken for a tenant. The anonymous one has no id.
            principal = event.principal.id().map(tracing::field::debug),
            tenant = event.principal.tenant().map(tracing::field::debug),
            tool_call = ?event.tool_call_id,
            tool = ?event.tool_name,
            input_digest = event.input_digest,
            kind = event.kind.as_str(),
            fence = event.kind.fence(),
            cause = event.kind.cause().map(tracing::field::debug),
            expires_at = event.kind.expires_at().map(rfc3339).map(tracing::field::display),
        );
    }
}

/// Returns a time as logs hold it.
fn rfc3339(at: UnixMillis) -> impl fmt::Display {
    // The year has four digits.
    let at = Duration::from_millis(at.0.min(MAX_RFC3339));
    humantime::format_rfc3339_millis(SystemTime::UNIX_EPOCH + at)
}

/// The last millisecond of the year 9999.
const MAX_RFC3339: u64 = 253_402_300_799_999;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_any_year_are_logged_as_in_rfc_3339() {
        let texts = [0, 1_795_244_780_269, u64::MAX].map(|at| rfc3339(UnixMillis(at)).to_string());
        let expected =
            ["1970-01-01T00:00:00.000Z", "2026-11-21T07:06:20.269Z", "9999-12-31T23:59:59.999Z"];
        assert_eq!(texts, expected);
    }

    #[test]
    fn a_line_has_the_fields_of_its_kind() {
        let fields = |kind: AuditEventKind| {
            let cause = kind.cause().map(|cause| format!("{cause:?}")).unwrap_or_default();
            (kind.fence(), cause, kind.expires_at())
        };
        let none = String::new();
        let at = UnixMillis(5);
        let never = UnixMillis(u64::MAX);
        for (kind, expected) in [
            (AuditEventKind::Requested { expires_at: at }, (None, none.clone(), Some(at))),
            (AuditEventKind::Requested { expires_at: never }, (None, none.clone(), None)),
            (AuditEventKind::Approved { fence: 2, reason: None }, (Some(2), none.clone(), None)),
            (AuditEventKind::Executed { fence: 3, failed: true }, (Some(3), none.clone(), None)),
            (
                AuditEventKind::Rejected { cause: RejectionReason::NotFound },
                (None, "NotFound".to_owned(), None),
            ),
            (
                AuditEventKind::Revoked { cause: RevocationReason::ByHost },
                (None, "ByHost".to_owned(), None),
            ),
            (AuditEventKind::Expired, (None, none, None)),
        ] {
            assert_eq!(fields(kind.clone()), expected, "{kind:?}");
        }
    }
}
