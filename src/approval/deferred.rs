//! [`DeferredToolResults`]: the results of tool calls that an earlier turn left open.

#[cfg(feature = "approvals")]
use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{CallProgress, ChangedInput, DeferredOutcome, PendingToolCall, ToolOutcome};
use crate::id::{ApprovalId, MessageId, ToolCallId};
use crate::json::Json;

/// What happened to the tool calls without a result at the end of the previous response: approved,
/// denied, executed by the client, still pending, or superseded.
///
/// They come from `Approvals::run`, from `ChatApprovals::resolve` or from
/// [`ResumePlan::settle`](super::ResumePlan::settle), or from [`DeferredToolResults::builder`] if
/// the host itself decides. The results can be serialized and kept in a store. They are trusted:
/// everything that can write to that store can approve tool calls.
#[derive(Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeferredToolResults {
    results: Vec<DeferredToolResult>,
    pending: Vec<PendingToolCall>,
    superseded: Vec<PendingToolCall>,
}

debug_without_content!(DeferredToolResults { ; results, pending, superseded });

/// The result of one deferred tool call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct DeferredToolResult {
    /// The message that contains the call, if the client sent that message.
    ///
    /// A result can be streamed only to the message that the response continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// The id of the call on the wire.
    ///
    /// It differs from the host's id if another call of the message already used the host's id.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    ///
    /// If the host does not know the call, this is the name that the client sent. Such a call never
    /// runs.
    pub tool_name: Box<str>,
    /// The id of the approval request that was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval_id: Option<ApprovalId>,
    /// The outcome of the call.
    pub outcome: DeferredOutcome,
    /// The input with which the call ran, and the one of the model, if the approver changed it. The model
    /// reads both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_input: Option<ChangedInput>,
    /// Whether this server has nothing more to do for the call, for example because the provider
    /// continues it.
    ///
    /// It is `false` for an approval response that could not be verified. The client and the model
    /// of this turn get the outcome, but the server's own history keeps the call open, because a
    /// genuine response may follow.
    #[serde(default = "default_true", skip_serializing_if = "Clone::clone")]
    pub is_final: bool,
}

impl DeferredToolResult {
    /// Creates the final result of a call of this message, without an approval request.
    pub fn new(
        message_id: MessageId,
        tool_call_id: ToolCallId,
        tool_name: impl Into<Box<str>>,
        outcome: DeferredOutcome,
    ) -> Self {
        let message_id = Some(message_id);
        DeferredToolResult { message_id, ..Self::of_call(tool_call_id, tool_name.into(), outcome) }
    }

    /// Creates the final result of a call, without a message and an approval request.
    pub(super) fn of_call(
        tool_call_id: ToolCallId,
        tool_name: Box<str>,
        outcome: DeferredOutcome,
    ) -> Self {
        DeferredToolResult {
            message_id: None,
            tool_call_id,
            tool_name,
            approval_id: None,
            outcome,
            changed_input: None,
            is_final: true,
        }
    }

    /// Replaces the outcome.
    #[must_use]
    pub fn with_outcome(self, outcome: DeferredOutcome) -> Self {
        DeferredToolResult { outcome, ..self }
    }

    /// Sets the [changed input](Self::changed_input) that the data beside the call holds.
    #[must_use]
    pub fn described_by(self, descriptor: Option<&Json>) -> Self {
        let changed_input = descriptor.and_then(ChangedInput::from_descriptor);
        DeferredToolResult { changed_input, ..self }
    }

    /// Replaces the id of the approval request that was answered.
    #[must_use]
    pub fn with_approval_id(self, approval_id: Option<ApprovalId>) -> Self {
        DeferredToolResult { approval_id, ..self }
    }
}

fn default_true() -> bool {
    true
}

/// Collects the results of calls that the host treated one by one. No call is pending.
impl FromIterator<DeferredToolResult> for DeferredToolResults {
    fn from_iter<I: IntoIterator<Item = DeferredToolResult>>(results: I) -> Self {
        DeferredToolResults { results: results.into_iter().collect(), ..Self::default() }
    }
}

impl DeferredToolResults {
    /// Creates a builder for results that the host itself decides, independent of any client.
    ///
    /// ```
    /// use ui_message_stream::Json;
    /// use ui_message_stream::approval::{DeferredOutcome, DeferredToolResults};
    ///
    /// let results = DeferredToolResults::builder()
    ///     .approve("call_1", "delete_file", Json::from_serialize("notes.txt")?)
    ///     .deny("call_2", "transfer", Some("above the limit".into()))
    ///     .build();
    /// assert!(matches!(results.results()[0].outcome, DeferredOutcome::Approved { .. }));
    /// # Ok::<(), ui_message_stream::json::JsonError>(())
    /// ```
    pub fn builder() -> DeferredToolResultsBuilder {
        DeferredToolResultsBuilder(Self::default())
    }

    pub(super) fn new(
        results: Vec<DeferredToolResult>,
        pending: Vec<PendingToolCall>,
        superseded: Vec<PendingToolCall>,
    ) -> Self {
        DeferredToolResults { results, pending, superseded }
    }

    /// Records in the host's own record what these results do with its calls: an approved call is
    /// handed out, and a denied one is denied.
    ///
    /// The host must store the record before it executes an approved call, and must read, settle and
    /// store the record as one step, so that no other request hands out the same call. When the call
    /// has been executed, the host calls [`PendingToolCall::complete`] and stores the record again.
    /// It keeps the call in its record for as long as the approval may be repeated.
    ///
    /// ```
    /// use ui_message_stream::Json;
    /// use ui_message_stream::approval::{
    ///     CallProgress, DeferredOutcome, PendingToolCall, ResumePlan, ToolOutcome,
    /// };
    /// # use ui_message_stream::request::Limits;
    /// # let body = br#"{"id": "chat-1", "messageId": "m2", "messages": [
    /// #     {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Delete my notes"}]},
    /// #     {"id": "m2", "role": "assistant", "parts": [{
    /// #         "type": "tool-delete", "toolCallId": "call_1", "input": "notes.txt",
    /// #         "state": "approval-responded", "approval": {"id": "ap_1", "approved": true}
    /// #     }]}
    /// # ]}"#;
    /// # let chat = ui_message_stream::ChatRequest::parse(body, &Limits::default()).unwrap();
    /// let input = Json::from_serialize("notes.txt")?;
    /// let mut record = [PendingToolCall::awaiting_approval("ap_1", "call_1", "delete", input)];
    ///
    /// let plan = ResumePlan::new(chat.messages(), chat.continued_message());
    /// let deferred = plan.clone().settle(&record);
    /// assert!(matches!(deferred.results()[0].outcome, DeferredOutcome::Approved { .. }));
    /// deferred.record_in(&mut record);
    /// // Store the record. If the request is repeated now, the outcome is unknown.
    /// assert_eq!(record[0].progress, CallProgress::HandedOut);
    /// let repeated = plan.clone().settle(&record);
    /// assert_eq!(repeated.results()[0].outcome, DeferredOutcome::OutcomeUnknown);
    ///
    /// // Execute the call, and store its outcome. If the request is repeated now, it gets that.
    /// let outcome = ToolOutcome::Output(Json::string("deleted"));
    /// record[0].complete(outcome.clone());
    /// let repeated = plan.settle(&record);
    /// assert_eq!(repeated.results()[0].outcome, DeferredOutcome::Executed { outcome });
    /// # Ok::<(), ui_message_stream::json::JsonError>(())
    /// ```
    pub fn record_in(&self, record: &mut [PendingToolCall]) {
        for result in self.results.iter().filter(|result| result.approval_id.is_some()) {
            let progress = match &result.outcome {
                DeferredOutcome::Approved { .. }
                | DeferredOutcome::ForwardToProvider { approved: true, .. } => {
                    CallProgress::HandedOut
                }
                DeferredOutcome::Denied { .. }
                | DeferredOutcome::ForwardToProvider { approved: false, .. } => {
                    CallProgress::Denied
                }
                // An approval of a denied call: denied before, or by a newer message.
                DeferredOutcome::Rejected if result.is_final => CallProgress::Denied,
                DeferredOutcome::Lapsed => CallProgress::Lapsed,
                _ => continue,
            };
            set_progress(record, result.approval_id.as_ref(), progress);
        }
        for result in self.results.iter().filter(|result| result.approval_id.is_none()) {
            let outcome = match &result.outcome {
                DeferredOutcome::Output { output } => ToolOutcome::Output(output.clone()),
                DeferredOutcome::OutputError { error_text } => {
                    ToolOutcome::Failed(error_text.clone())
                }
                _ => continue,
            };
            let handed = record.iter_mut().find(|call| {
                call.tool_call_id == result.tool_call_id && call.handed_to_client().is_some()
            });
            handed.into_iter().for_each(|call| call.complete(outcome.clone()));
        }
        for call in self.superseded.iter().filter(|call| call.approval_id.is_some()) {
            set_progress(record, call.approval_id.as_ref(), CallProgress::Superseded);
        }
    }

    /// Replaces the results by the final results of the calls. Those that are handed to the client wait for
    /// it.
    #[cfg(feature = "approvals")]
    pub fn with_results(mut self, results: Vec<DeferredToolResult>) -> Self {
        let handed = results.iter().filter_map(|result| match &result.outcome {
            DeferredOutcome::Executed { outcome: ToolOutcome::HandedToClient(input) } => {
                let id = result.tool_call_id.clone();
                let name = result.tool_name.clone();
                Some(PendingToolCall::client_executed(id, name, input.clone()))
            }
            _ => None,
        });
        self.pending.extend(handed);
        DeferredToolResults { results, ..self }
    }

    /// Sets what is known now of a call with an approval request: its result, or `None` if the request is
    /// pending. A response that does not count stays the result of a call whose request is pending.
    #[cfg(feature = "approvals")]
    pub(super) fn update(&mut self, call: &PendingToolCall, newest: Option<DeferredToolResult>) {
        let DeferredToolResults { results, pending, .. } = self;
        if let Some(newest) = newest {
            results.retain(|result| result.approval_id != call.approval_id);
            pending.retain(|other| other.approval_id != call.approval_id);
            return results.push(newest);
        }
        let is_known = results.iter().any(|result| result.approval_id == call.approval_id)
            || pending.iter().any(|other| other.approval_id == call.approval_id);
        if !is_known {
            pending.push(call.clone());
        }
    }

    /// Returns these results with the grant as the outcome of each of these approvals, which no model
    /// call has sent. A model call claims a grant before it sends it.
    #[cfg(feature = "approvals")]
    pub(crate) fn with_unsent(mut self, unsent: &HashMap<ApprovalId, DeferredOutcome>) -> Self {
        for result in &mut self.results {
            let granted = result.approval_id.as_ref().and_then(|id| unsent.get(id));
            let is_forwarded = matches!(result.outcome, DeferredOutcome::ForwardedToProvider);
            if let Some(granted) = granted.filter(|_| is_forwarded) {
                result.outcome = granted.clone();
            }
        }
        self
    }

    /// Returns these results for the model calls after the first one of a turn, which sent the
    /// approvals to the provider.
    ///
    /// Each approval of a provider-executed call becomes [`DeferredOutcome::ForwardedToProvider`],
    /// because an approval is sent to the provider only once.
    ///
    /// ```
    /// use ui_message_stream::approval::DeferredToolResults;
    ///
    /// let none = DeferredToolResults::default();
    /// assert!(none.after_provider_notified().is_empty());
    /// ```
    #[must_use]
    pub fn after_provider_notified(&self) -> Self {
        let mut notified = self.clone();
        for result in &mut notified.results {
            if let DeferredOutcome::ForwardToProvider { approved: true, .. } = result.outcome {
                result.outcome = DeferredOutcome::ForwardedToProvider;
            }
        }
        notified
    }

    /// Returns the results: first the calls that the user approved or denied, in the order of the
    /// history, then the calls whose approval request was closed in another way (expired, for
    /// example), then the calls that the client executed.
    pub fn results(&self) -> &[DeferredToolResult] {
        &self.results
    }

    /// Returns the result of one call.
    ///
    /// If a call id occurs more than once in a conversation, this is the result of the latest call.
    pub fn get(&self, tool_call_id: &ToolCallId) -> Option<&DeferredToolResult> {
        self.results.iter().rfind(|result| result.tool_call_id == *tool_call_id)
    }

    /// Returns the calls that still wait for the user or the client.
    ///
    /// While there are pending calls, the model is not called, unless the user has sent another
    /// message.
    pub fn pending(&self) -> &[PendingToolCall] {
        &self.pending
    }

    /// Returns the calls for which the user sent another message instead of a response.
    ///
    /// These calls are not run, and the model gets that information.
    pub fn superseded(&self) -> &[PendingToolCall] {
        &self.superseded
    }

    /// Returns whether there are no results and no pending or superseded calls.
    pub fn is_empty(&self) -> bool {
        self.results.is_empty() && self.pending.is_empty() && self.superseded.is_empty()
    }
}

fn set_progress(
    record: &mut [PendingToolCall],
    approval_id: Option<&ApprovalId>,
    progress: CallProgress,
) {
    let call = record.iter_mut().find(|call| call.approval_id.as_ref() == approval_id);
    if let Some(call) = call.filter(|call| call.progress.is_open()) {
        call.progress = progress;
    }
}

#[cfg(feature = "approvals")]
impl PendingToolCall {
    /// Returns the final result of this call.
    pub fn with_outcome(&self, outcome: DeferredOutcome) -> DeferredToolResult {
        let id = self.tool_call_id.clone();
        let name = self.tool_name.clone();
        let result = DeferredToolResult::of_call(id, name, outcome);
        result.with_approval_id(self.approval_id.clone())
    }
}

/// A builder for [`DeferredToolResults`] that the host itself decides.
///
/// A later entry for a call replaces an earlier one.
#[derive(Debug, Clone)]
#[must_use]
pub struct DeferredToolResultsBuilder(DeferredToolResults);

impl DeferredToolResultsBuilder {
    /// Approves a call: the agent must run the tool with this input.
    pub fn approve(
        self,
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        input: Json,
    ) -> Self {
        let outcome = DeferredOutcome::Approved { input, claim: None };
        self.set_outcome(tool_call_id.into(), tool_name.into(), outcome)
    }

    /// Denies a call: the tool is not run.
    pub fn deny(
        self,
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        reason: Option<String>,
    ) -> Self {
        self.set_outcome(tool_call_id.into(), tool_name.into(), DeferredOutcome::Denied { reason })
    }

    /// Sets the output of a call that has already run.
    pub fn output(
        self,
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        output: Json,
    ) -> Self {
        self.set_outcome(tool_call_id.into(), tool_name.into(), DeferredOutcome::Output { output })
    }

    /// Sets the outcome of an approved call that was executed for an earlier request.
    pub fn executed(
        self,
        tool_call_id: impl Into<ToolCallId>,
        tool_name: impl Into<Box<str>>,
        outcome: ToolOutcome,
    ) -> Self {
        let outcome = DeferredOutcome::Executed { outcome };
        self.set_outcome(tool_call_id.into(), tool_name.into(), outcome)
    }

    /// Marks a call as pending.
    pub fn pending(mut self, call: PendingToolCall) -> Self {
        self.remove(&call.tool_call_id);
        self.0.pending.push(call);
        self
    }

    /// Builds the results.
    pub fn build(self) -> DeferredToolResults {
        self.0
    }

    fn set_outcome(
        mut self,
        tool_call_id: ToolCallId,
        tool_name: Box<str>,
        outcome: DeferredOutcome,
    ) -> Self {
        self.remove(&tool_call_id);
        self.0.results.push(DeferredToolResult::of_call(tool_call_id, tool_name, outcome));
        self
    }

    fn remove(&mut self, tool_call_id: &ToolCallId) {
        self.0.results.retain(|result| result.tool_call_id != *tool_call_id);
        self.0.pending.retain(|call| call.tool_call_id != *tool_call_id);
    }
}
