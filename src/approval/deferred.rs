//! [`DeferredToolResults`]: what became of the calls that an earlier run left open.

use serde::{Deserialize, Serialize};

use super::{Claim, OpenCall, RecordId, ToolOutcome};
use crate::id::{ApprovalId, MessageId, ToolCallId};
use crate::json::Json;

/// What became of the calls that an earlier run left open.
///
/// It comes from [`ResumePlan::settle`](super::ResumePlan::settle), or from the host where the host
/// decides by itself ([`DeferredToolResults::decided_by_host`]). It serializes, so that it can wait
/// in a store: whoever can write there can approve.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeferredToolResults {
    results: Vec<DeferredToolResult>,
    pending: Vec<OpenCall>,
    superseded: Vec<OpenCall>,
}

/// What became of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeferredToolResult {
    /// The message that holds the call, if the client sent it. Only the message that the response
    /// goes on with can be told of the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// Names the call on the wire, where the host's own name for it may have been taken.
    pub tool_call_id: ToolCallId,
    /// Which tool. Of a call that the host does not know, which never runs, the client's word.
    pub tool_name: Box<str>,
    /// The question that was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<ApprovalId>,
    /// What became of it.
    pub outcome: DeferredOutcome,
    /// Whether that is the end of the call here, also where its provider goes on with it. An answer
    /// that could not be verified is told to the client and to the model of this turn, and the server's
    /// own history keeps the call open: an honest answer may follow.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub is_final: bool,
}

fn yes() -> bool {
    true
}

/// What became of a call that was left open. Only [`DeferredOutcome::Approved`] is ever run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum DeferredOutcome {
    /// The person said yes: the tool is to be run.
    Approved {
        /// With the host's own input.
        input: Json,
        /// What the ledger gave for it. Without one the host alone sees to it that the tool runs
        /// once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        claim: Option<Claim>,
    },
    /// The tool ran when this was answered before: shown as it was then.
    Ran {
        /// What came of it.
        outcome: ToolOutcome,
    },
    /// This was answered before, and the tool runs right now: its outcome will be in the record.
    Running {
        /// Which record.
        record: RecordId,
    },
    /// This was answered before, and whoever ran the tool is gone. It is not run again, and the call
    /// is shown as `tool-output-error` with the text [`OUTCOME_UNKNOWN`](super::OUTCOME_UNKNOWN).
    OutcomeUnknown,
    /// The person said no: shown as `tool-output-denied`.
    Denied {
        /// Why, in the person's words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// The provider runs the tool: it is handed the answer, nothing is run here.
    ForProvider {
        /// Yes or no.
        approved: bool,
        /// Why, in the person's words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
        /// What the ledger gave for a yes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        claim: Option<Claim>,
    },
    /// This was answered before with a yes, which was handed to the provider then. It is not handed
    /// over again; what came of it stands in the history.
    Forwarded,
    /// Nobody answered in time: shown as `tool-output-error` with the text
    /// [`EXPIRED`](super::EXPIRED).
    Expired,
    /// The question was taken back, or the tool is not what it was, or no longer permitted: shown as
    /// `tool-output-error` with the text [`REVOKED`](super::REVOKED).
    Revoked,
    /// The host did not ask for this: the tool is not run, and the call is shown as
    /// `tool-output-error` with the text [`REFUSED`](super::REFUSED).
    Refused,
    /// The client ran the tool. The client already shows it.
    Output {
        /// What it returned.
        #[serde(deserialize_with = "Json::deserialize_received")]
        output: Json,
    },
    /// The client ran the tool, and it failed. The client already shows it.
    OutputError {
        /// Why.
        error_text: String,
    },
}

impl DeferredOutcome {
    /// Whether this is what comes of such an answer, and not of the contrary one or of none.
    pub fn agrees_with(&self, approved: bool) -> bool {
        match self {
            DeferredOutcome::Denied { .. } => !approved,
            DeferredOutcome::ForProvider { approved: answer, .. } => *answer == approved,
            DeferredOutcome::Approved { .. }
            | DeferredOutcome::Ran { .. }
            | DeferredOutcome::Running { .. }
            | DeferredOutcome::Forwarded
            | DeferredOutcome::OutcomeUnknown => approved,
            _ => false,
        }
    }
}

impl DeferredToolResults {
    /// Results that the host's own code decides on, whatever a client says.
    ///
    /// ```
    /// use ui_message_stream::Json;
    /// use ui_message_stream::approval::{DeferredOutcome, DeferredToolResults};
    ///
    /// let results = DeferredToolResults::decided_by_host()
    ///     .approve("call_1", "delete_file", Json::of("notes.txt")?)
    ///     .deny("call_2", "transfer", Some("above the limit".into()))
    ///     .build();
    /// assert!(matches!(results.results()[0].outcome, DeferredOutcome::Approved { .. }));
    /// # Ok::<(), ui_message_stream::json::JsonError>(())
    /// ```
    pub fn decided_by_host() -> HostDecisions {
        HostDecisions(Self::default())
    }

    pub(super) fn new(
        results: Vec<DeferredToolResult>,
        pending: Vec<OpenCall>,
        superseded: Vec<OpenCall>,
    ) -> Self {
        DeferredToolResults { results, pending, superseded }
    }

    /// The same with what came of the calls in the end.
    #[cfg(feature = "approvals")]
    pub(crate) fn with_results(self, results: Vec<DeferredToolResult>) -> Self {
        DeferredToolResults { results, ..self }
    }

    /// The same once a model call has told the provider what it is allowed to run: it is told once.
    ///
    /// ```
    /// use ui_message_stream::approval::DeferredToolResults;
    ///
    /// let none = DeferredToolResults::default();
    /// assert!(none.once_told().is_empty());
    /// ```
    #[must_use]
    pub fn once_told(&self) -> Self {
        let mut told = self.clone();
        for result in &mut told.results {
            if let DeferredOutcome::ForProvider { approved: true, .. } = result.outcome {
                result.outcome = DeferredOutcome::Forwarded;
            }
        }
        told
    }

    /// The results: answered calls in the order of the history, then outputs of the client.
    pub fn results(&self) -> &[DeferredToolResult] {
        &self.results
    }

    /// What became of one call. Where a call id recurs in a conversation, the latest call counts.
    pub fn result_of(&self, tool_call_id: &ToolCallId) -> Option<&DeferredToolResult> {
        self.results.iter().rfind(|result| result.tool_call_id == *tool_call_id)
    }

    /// The calls that still wait for the person or the client. While there are any and the person
    /// did not write on, the model is not called.
    pub fn pending(&self) -> &[OpenCall] {
        &self.pending
    }

    /// The calls that the person wrote past without an answer: they are not run, and the model is
    /// told so.
    pub fn superseded(&self) -> &[OpenCall] {
        &self.superseded
    }

    /// Whether no call was left open.
    pub fn is_empty(&self) -> bool {
        self.results.is_empty() && self.pending.is_empty() && self.superseded.is_empty()
    }
}

/// Builds [`DeferredToolResults`] that the host answers for. A later word on a call replaces an
/// earlier one.
#[derive(Debug, Clone)]
#[must_use]
pub struct HostDecisions(DeferredToolResults);

impl HostDecisions {
    /// The tool is to be run with this input.
    pub fn approve(
        self,
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        input: Json,
    ) -> Self {
        let outcome = DeferredOutcome::Approved { input, claim: None };
        self.decide(tool_call_id.into(), tool_name.into(), outcome)
    }

    /// The tool is not run.
    pub fn deny(
        self,
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        reason: Option<String>,
    ) -> Self {
        self.decide(tool_call_id.into(), tool_name.into(), DeferredOutcome::Denied { reason })
    }

    /// The tool has returned this.
    pub fn output(
        self,
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        output: Json,
    ) -> Self {
        self.decide(tool_call_id.into(), tool_name.into(), DeferredOutcome::Output { output })
    }

    /// The call still waits.
    pub fn pending(mut self, call: OpenCall) -> Self {
        self.forget(&call.tool_call_id);
        self.0.pending.push(call);
        self
    }

    /// The results.
    pub fn build(self) -> DeferredToolResults {
        self.0
    }

    fn decide(
        mut self,
        tool_call_id: ToolCallId,
        tool_name: Box<str>,
        outcome: DeferredOutcome,
    ) -> Self {
        self.forget(&tool_call_id);
        self.0.results.push(DeferredToolResult {
            message_id: None,
            tool_call_id,
            tool_name,
            approval_id: None,
            outcome,
            is_final: true,
        });
        self
    }

    fn forget(&mut self, tool_call_id: &ToolCallId) {
        self.0.results.retain(|result| result.tool_call_id != *tool_call_id);
        self.0.pending.retain(|call| call.tool_call_id != *tool_call_id);
    }
}
