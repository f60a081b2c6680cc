//! [`ResumePlan`]: the open tool calls of a history, and how they are settled.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::history::{
    History, HistoryRequest, approval_request, approval_response, assistant_index, client_output,
    first_new_result, settled_and_denied, tool_parts,
};
#[cfg(feature = "approvals")]
use super::reopen::SentCall;
use super::{
    ApprovalDecision, ApprovalRecord, CallProgress, ClientToolResult, DeferredOutcome,
    DeferredToolResult, DeferredToolResults, OnNewMessage, PendingToolCall,
    UnverifiedApprovalRequest, UnverifiedApprovalResponse, UnverifiedToolOutput,
};
use crate::UserText;
use crate::id::{ApprovalId, MessageId};
use crate::json::Json;
use crate::message::{Role, ToolState, UiMessage};

/// The open tool calls of a client's history: approvals, denials, outputs and pending requests.
///
/// The plan only reads the history and verifies nothing. [`settle`](Self::settle), `Approvals::run` or
/// `ChatApprovals::resolve` checks the contents.
///
/// ```
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::{DeferredOutcome, PendingToolCall, ResumePlan};
/// use ui_message_stream::request::{ChatRequest, Limits};
///
/// let body = br#"{"id": "chat-1", "messageId": "m2", "messages": [
///     {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Delete my notes"}]},
///     {"id": "m2", "role": "assistant", "parts": [{
///         "type": "tool-delete", "toolCallId": "call_1", "input": {"path": "/etc"},
///         "state": "approval-responded", "approval": {"id": "ap_1", "approved": true}
///     }]}
/// ]}"#;
/// let chat = ChatRequest::parse(body, &Limits::default()).unwrap();
/// let kept = Json::from_serialize("notes.txt")?;
/// let call = PendingToolCall::awaiting_approval("ap_1", "call_1", "delete", kept.clone());
///
/// let plan = ResumePlan::new(chat.messages(), chat.continued_message());
/// assert!(plan.unverified_responses().next().unwrap().approved);
///
/// // The approved call is the one in the host's record, with the input of the record.
/// let deferred = plan.settle(&[call]);
/// let [result] = deferred.results() else { panic!() };
/// assert!(matches!(
///     &result.outcome,
///     DeferredOutcome::Approved { input, .. } if *input == kept
/// ));
/// # Ok::<(), ui_message_stream::json::JsonError>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct ResumePlan {
    approvals: Vec<(usize, UnverifiedApprovalResponse)>,
    pending: Vec<UnverifiedApprovalRequest>,
    superseded: Vec<UnverifiedApprovalRequest>,
    /// The approval ids of the calls with a preliminary output: the client has not received their
    /// results.
    without_result: Vec<ApprovalId>,
    outputs: Vec<HistoryOutput>,
    history: History,
    /// The index of the message that the response continues.
    continued: Option<usize>,
    /// The messages that a user message follows in the server's own history.
    is_followed: Option<Arc<IsFollowed>>,
    /// The open approval requests of the chat, in the host's own record. `None` if the ledger lists them.
    open: Option<HashSet<ApprovalId>>,
    /// Whether the calls have the ids of the agent, and not those of a history.
    is_from_decisions: bool,
}

debug_without_content!(ResumePlan {
    continued; approvals, pending, superseded, without_result, outputs
});

/// Whether a user message follows the message with this id.
type IsFollowed = dyn Fn(&MessageId) -> bool + Send + Sync;

/// A tool result in the history.
#[derive(Debug, Clone)]
struct HistoryOutput {
    message: usize,
    is_new: bool,
    output: UnverifiedToolOutput,
}

impl ResumePlan {
    /// Reads a history.
    ///
    /// `messages` is [`ChatRequest::messages`](crate::ChatRequest::messages). `continued` is the
    /// message that the response continues,
    /// [`ChatRequest::continued_message`](crate::ChatRequest::continued_message).
    ///
    /// The tool parts of all assistant messages are read, of static and dynamic tools alike. If
    /// parts of one message have the same tool call id, only the part that has progressed furthest
    /// is read. Only a part in the state `approval-responded` holds a response. A response is
    /// ignored if its call already has a result. If the history repeats a response, only the first
    /// one counts. If the history holds both an approval and a denial of one request, the denial
    /// counts.
    pub fn new(messages: &[UiMessage], continued: Option<&UiMessage>) -> Self {
        let mut plan = ResumePlan {
            approvals: Vec::new(),
            pending: Vec::new(),
            superseded: Vec::new(),
            without_result: Vec::new(),
            outputs: Vec::new(),
            history: History::new(messages),
            continued: continued.and_then(|continued| assistant_index(messages, continued)),
            is_followed: None,
            open: None,
            is_from_decisions: false,
        };
        let new_from = first_new_result(messages, continued);
        let (settled, denied) = settled_and_denied(messages);
        let mut seen: HashSet<&ApprovalId> = HashSet::new();
        for (place, part) in tool_parts(messages) {
            match &part.state {
                ToolState::ApprovalResponded { approval, .. }
                    if !settled.contains(&approval.id)
                        && (!approval.approved || !denied.contains(&approval.id))
                        && seen.insert(&approval.id) =>
                {
                    plan.approvals.push((place.0, approval_response(part, approval)));
                }
                _ => plan.outputs.extend(client_output(part).map(|output| HistoryOutput {
                    message: place.0,
                    is_new: new_from.is_some_and(|from| from.0 == place.0 && from.1 <= place.1),
                    output,
                })),
            }
        }
        for (place, part) in tool_parts(messages) {
            let mut is_open = |id| !settled.contains(id) && seen.insert(id);
            match &part.state {
                ToolState::ApprovalRequested { approval, .. } if is_open(&approval.id) => {
                    if plan.history.has_later_user_message(place.0) {
                        plan.superseded.push(approval_request(part, approval));
                    } else {
                        plan.pending.push(approval_request(part, approval));
                    }
                }
                ToolState::OutputAvailable { approval: Some(approval), .. }
                    if is_open(&approval.id) =>
                {
                    plan.without_result.push(approval.id.clone());
                }
                _ => {}
            }
        }
        plan
    }

    /// Creates a plan from decisions that did not come in a history.
    ///
    /// The plan is the same as for a history with only the message `message_id`, which holds all
    /// decisions and is continued. Two calls may have one tool call id.
    pub fn from_decisions<'d>(
        message_id: &MessageId,
        decisions: impl IntoIterator<Item = (&'d ApprovalRecord, &'d ApprovalDecision)>,
    ) -> Self {
        let decisions: Vec<_> = decisions.into_iter().collect();
        let denied = decisions.iter().filter(|(_, decision)| !decision.approved);
        let denied: HashSet<_> = denied.map(|(_, decision)| &decision.approval_id).collect();
        // Without parts: of those with one call id only one is read, and a model may give one id to
        // several calls.
        let empty = UiMessage::new(message_id.clone(), Role::Assistant, Vec::new());
        let mut plan = Self::new(std::slice::from_ref(&empty), Some(&empty));
        plan.is_from_decisions = true;
        for (record, decision) in &decisions {
            let id = &decision.approval_id;
            let tool_call_id = &record.tool_call_id;
            let is_repeated = plan.history.requests.contains_key(id);
            if is_repeated || (decision.approved && denied.contains(id)) {
                continue;
            }
            let response = UnverifiedApprovalResponse {
                approval_id: id.clone(),
                tool_call_id: tool_call_id.clone(),
                tool_name: record.tool_name.clone(),
                input: Some(record.input.clone()),
                approved: decision.approved,
                changed_input: decision.input.clone().filter(|_| decision.approved),
                reason: decision.reason.clone(),
                provider_executed: record.provider_executed,
            };
            let request = HistoryRequest {
                message: 0,
                tool_call_id: tool_call_id.clone(),
                has_result: false,
            };
            plan.approvals.push((request.message, response));
            plan.history.message_by_call.insert(tool_call_id.clone(), request.message);
            plan.history.requests.insert(id.clone(), request);
        }
        plan
    }

    /// Sets the inputs that the user has changed, by the ids of their approval requests. Those of
    /// denied calls, and of requests without a response, are ignored.
    ///
    /// `changed` is [`ChatRequest::approval_inputs`](crate::ChatRequest::approval_inputs).
    pub fn with_changed_inputs(mut self, changed: &HashMap<ApprovalId, Json>) -> Self {
        for (_, response) in self.approvals.iter_mut().filter(|(_, response)| response.approved) {
            response.changed_input = changed.get(&response.approval_id).cloned();
        }
        self
    }

    /// Sets which messages a user message follows in the server's own history.
    ///
    /// Another page may have sent that message, so that the history of this request does not hold
    /// it. An approval of a call in such a message then arrives after a newer message, and lapses.
    /// `ChatApprovals::resolve` asks for the [`message_id`](ApprovalRecord::message_id) of each record.
    pub fn with_followed_messages(
        mut self,
        is_followed: impl Fn(&MessageId) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.is_followed = Some(Arc::new(is_followed));
        self
    }

    /// Sets which approval requests of the chat are open, in the host's own record. A plan with responses asks the ledger
    /// about these and about those that are answered, and closes no others. One without responses, as after a new
    /// message, has the ledger list the open requests, because a server that was lost may have made some that the host
    /// does not know. Of these, it closes none that is not named here, unless the history holds it: the response to the
    /// same message, delivered before, may have made others.
    #[cfg(feature = "approvals")]
    pub fn with_open_requests(mut self, open: impl IntoIterator<Item = ApprovalId>) -> Self {
        self.open = Some(open.into_iter().collect());
        self
    }

    /// Returns the [open requests](Self::with_open_requests), unless the ledger has to list them.
    #[cfg(feature = "approvals")]
    pub(super) fn known_requests(&self) -> Option<impl Iterator<Item = &ApprovalId>> {
        self.open.as_ref().filter(|_| !self.approvals.is_empty()).map(HashSet::iter)
    }

    /// Sets the ids that the calls have in a conversation, if the plan was created
    /// [`from_decisions`](Self::from_decisions). The records hold the ids of the agent, and a message
    /// does not hold two calls with the same id.
    #[cfg(feature = "approvals")]
    pub fn set_call_ids<'c>(
        &mut self,
        id_of: impl Fn(&ApprovalId) -> Option<&'c crate::id::ToolCallId>,
    ) {
        if !self.is_from_decisions {
            return;
        }
        for (message, response) in &mut self.approvals {
            let Some(id) = id_of(&response.approval_id) else { continue };
            response.tool_call_id = id.clone();
            self.history.message_by_call.insert(id.clone(), *message);
            if let Some(request) = self.history.requests.get_mut(&response.approval_id) {
                request.tool_call_id = id.clone();
            }
        }
    }

    /// Returns the responses to calls without a result, in the order of the history, as the client
    /// sent them.
    pub fn unverified_responses(&self) -> impl Iterator<Item = &UnverifiedApprovalResponse> {
        self.approvals.iter().map(|(_, response)| response)
    }

    /// Returns the tool results that no model call has read yet, as the client sent them.
    ///
    /// These are the results in the last step of the message that the response continues, or of the
    /// last assistant message if no message is continued. The host knows which of them came from
    /// the client. The others are results of the server's own tools.
    pub fn unverified_outputs(&self) -> impl Iterator<Item = &UnverifiedToolOutput> {
        self.outputs.iter().filter(|output| output.is_new).map(|output| &output.output)
    }

    /// Returns the approval requests without a response, in the order of the history.
    pub fn pending(&self) -> &[UnverifiedApprovalRequest] {
        &self.pending
    }

    /// Returns the superseded approval requests: they have no response, and a user message follows
    /// them.
    pub fn superseded(&self) -> &[UnverifiedApprovalRequest] {
        &self.superseded
    }

    /// Settles the calls of the history against the host's own record of its pending calls.
    ///
    /// - An approved call runs if the record holds the same approval id and the call is open. It
    ///   runs with the tool and input of the record. If the record does not hold the id, the
    ///   approval is rejected. If the history holds a newer message of the user, the approval
    ///   lapses if [`PendingToolCall::on_new_message`] is `Lapse`, and is rejected if it is `Deny`.
    /// - A denial counts, unless the call was handed out before.
    /// - A call that was [handed out](CallProgress::HandedOut) before has an unknown outcome, and a
    ///   [completed](CallProgress::Completed) one has its outcome. An approval after a denial is
    ///   rejected.
    /// - A response is skipped if the record does not hold its approval id and it is in an older
    ///   message than the continued one: it was settled earlier.
    /// - An output is accepted for a call that the client executes. An output for a call that waits
    ///   for a user's approval is rejected.
    /// - Every other open call of the record is still pending, or superseded or denied if the user
    ///   has sent another message.
    ///
    /// Before the host runs a tool, it must store what it hands out:
    /// [`DeferredToolResults::record_in`] says how, so that no call can run twice. The tool call ids
    /// in the results are the ids on the wire. They can differ from the ids in the record, so the
    /// host must not look them up there.
    pub fn settle(self, record: &[PendingToolCall]) -> DeferredToolResults {
        let mut calls: Vec<&PendingToolCall> = record.iter().collect();
        let answers = self.answers().map(|(is_continued, response)| {
            // The approval id alone identifies the call: its id on the wire may differ from the
            // host's id.
            let asked = Some(&response.approval_id);
            let known = calls.iter().position(|call| call.approval_id.as_ref() == asked);
            let known = known.map(|at| calls.remove(at));
            let is_relevant = known.is_some() || is_continued;
            is_relevant.then(|| AnsweredCall {
                tool_name: known.map(|call| call.tool_name.clone()),
                outcome: match known.filter(|call| call.progress.is_open()) {
                    Some(call)
                        if call.on_new_message.closes()
                            && response.approved
                            && self.is_superseded(&response.approval_id) =>
                    {
                        match call.on_new_message {
                            OnNewMessage::Deny => DeferredOutcome::Rejected,
                            _ => DeferredOutcome::Lapsed,
                        }
                    }
                    _ => decided_outcome(response, known),
                },
                is_final: known.is_some(),
            })
        });
        let answers = answers.collect();
        let (open, decided): (Vec<_>, Vec<_>) =
            calls.into_iter().cloned().partition(|call| call.progress.is_open());
        let closed = decided.into_iter().filter_map(|call| {
            if call.handed_to_client().is_some() {
                return None;
            }
            let request = self.history.requests.get(call.approval_id.as_ref()?)?;
            let outcome = recorded_outcome(&call).filter(|_| !request.has_result)?;
            Some((call, outcome))
        });
        let closed = closed.collect();
        let (pending, open) = open.into_iter().partition(|call| {
            let id = call.approval_id.as_ref();
            !call.on_new_message.closes() && id.is_some_and(|id| self.is_superseded(id))
        });
        let mut open: Vec<PendingToolCall> = open;
        open.extend(record.iter().filter_map(PendingToolCall::handed_to_client));
        self.build_results(answers, &open, closed, pending)
    }

    /// Returns the responses, each with whether it is in the message that the response continues.
    pub(super) fn answers(&self) -> impl Iterator<Item = (bool, &UnverifiedApprovalResponse)> {
        let answers = self.approvals.iter();
        answers.map(|(message_at, response)| (self.continued == Some(*message_at), response))
    }

    /// Returns the calls with an approval id: each with the reason if it is approved here, or with
    /// `None`.
    #[cfg(feature = "approvals")]
    pub(super) fn sent_calls(&self) -> impl Iterator<Item = (Option<Option<&str>>, SentCall<'_>)> {
        let responses = self.unverified_responses().map(|response| {
            (response.approved.then_some(response.reason.as_deref()), SentCall::answered(response))
        });
        let requests = self.pending.iter().chain(&self.superseded);
        responses.chain(requests.map(|request| (None, SentCall::requested(request))))
    }

    /// Returns the id of the message that holds this approval request.
    #[cfg(feature = "approvals")]
    pub(super) fn message_of_request(&self, id: &ApprovalId) -> Option<&MessageId> {
        self.history.message_ids.get(self.history.requests.get(id)?.message)
    }

    /// Returns the approval ids of the requests without a response, and of the calls with a
    /// preliminary output, each with whether the user has sent another message.
    #[cfg(feature = "approvals")]
    pub(super) fn open_calls(&self) -> impl Iterator<Item = (&ApprovalId, bool)> {
        let requests = self.pending.iter().map(|request| (&request.approval_id, false));
        let superseded = self.superseded.iter().map(|request| (&request.approval_id, true));
        let begun = self.without_result.iter().map(|id| (id, self.is_superseded(id)));
        requests.chain(superseded).chain(begun)
    }

    /// Returns whether the history holds this approval request.
    #[cfg(feature = "approvals")]
    pub(super) fn holds_request(&self, approval_id: &ApprovalId) -> bool {
        self.history.requests.contains_key(approval_id)
    }

    /// Returns whether the user sent another message instead of a response to this request.
    pub(super) fn is_superseded(&self, approval_id: &ApprovalId) -> bool {
        let request = self.history.requests.get(approval_id);
        let is_newer =
            request.is_none() && self.open.as_ref().is_some_and(|open| !open.contains(approval_id));
        !is_newer
            && self.history.is_followed_by_user_message(request.map(|request| request.message))
    }

    /// Returns whether a newer message of the user closes the request of this record: by the client's history or by
    /// the server's, the user has sent one after the message that holds the call.
    #[cfg(feature = "approvals")]
    pub(super) fn is_closed_by_message(&self, record: &ApprovalRecord, id: &ApprovalId) -> bool {
        let is_followed = || self.is_followed.as_ref().is_some_and(|it| it(&record.message_id));
        record.is_closed_by_new_message() && (self.is_superseded(id) || is_followed())
    }

    /// Combines the results of the approval responses, the open calls and the closed calls.
    ///
    /// `answers` holds the result of each response in the order of the responses, or `None` for a
    /// skipped response. `open_calls` are the calls without a response, which are superseded if
    /// the user has sent another message. `closed` are the calls whose requests can no longer be
    /// answered, and `pending` the calls that stay open in any case.
    pub(super) fn build_results(
        &self,
        answers: Vec<Option<AnsweredCall>>,
        open_calls: &[PendingToolCall],
        closed: Vec<(PendingToolCall, DeferredOutcome)>,
        mut pending: Vec<PendingToolCall>,
    ) -> DeferredToolResults {
        let mut results = Vec::new();
        for ((message_at, response), answer) in self.approvals.iter().zip(answers) {
            let Some(AnsweredCall { tool_name, outcome, is_final }) = answer else { continue };
            let tool_name = tool_name.unwrap_or_else(|| response.tool_name.clone());
            results.push(DeferredToolResult {
                message_id: self.history.message_ids.get(*message_at).cloned(),
                approval_id: Some(response.approval_id.clone()),
                is_final,
                ..DeferredToolResult::of_call(response.tool_call_id.clone(), tool_name, outcome)
            });
        }
        for (call, outcome) in closed {
            let id = call.approval_id.as_ref();
            results.extend(id.map(|id| self.request_result(&call, id, outcome)));
        }
        let mut superseded = Vec::new();
        for call in open_calls {
            let resolution = match &call.approval_id {
                Some(id) => self.resolve_request(call, id),
                None => self.resolve_client_call(call),
            };
            match resolution {
                CallResolution::Resolved(result) => results.push(result),
                CallResolution::Pending => pending.push(call.clone()),
                CallResolution::Superseded => superseded.push(call.clone()),
            }
        }
        DeferredToolResults::new(results, pending, superseded)
    }

    /// Returns the result of a call whose approval request may be in the history.
    fn request_result(
        &self,
        call: &PendingToolCall,
        approval_id: &ApprovalId,
        outcome: DeferredOutcome,
    ) -> DeferredToolResult {
        let request = self.history.requests.get(approval_id);
        let message = request.and_then(|request| self.history.message_ids.get(request.message));
        let wire_id = request.map_or(&call.tool_call_id, |request| &request.tool_call_id).clone();
        let is_final = outcome != DeferredOutcome::Rejected;
        DeferredToolResult {
            message_id: message.cloned(),
            approval_id: Some(approval_id.clone()),
            is_final,
            ..DeferredToolResult::of_call(wire_id, call.tool_name.clone(), outcome)
        }
    }

    /// Resolves a call whose approval request has no response.
    fn resolve_request(&self, call: &PendingToolCall, approval_id: &ApprovalId) -> CallResolution {
        if self.is_superseded(approval_id) {
            return match call.on_new_message {
                OnNewMessage::Deny => {
                    let reason = Some(UserText::DeniedByMessage.to_string());
                    let denied = DeferredOutcome::Denied { reason };
                    CallResolution::Resolved(self.request_result(call, approval_id, denied))
                }
                _ => CallResolution::Superseded,
            };
        }
        let request = self.history.requests.get(approval_id);
        // The client already shows a result, so the user can no longer respond.
        if request.is_some_and(|request| request.has_result) {
            return CallResolution::Resolved(self.request_result(
                call,
                approval_id,
                DeferredOutcome::Rejected,
            ));
        }
        CallResolution::Pending
    }

    /// Resolves a call that the client executes.
    fn resolve_client_call(&self, call: &PendingToolCall) -> CallResolution {
        let message_at = self.history.message_by_call.get(&call.tool_call_id).copied();
        let given = self.outputs.iter().find(|given| {
            Some(given.message) == message_at && given.output.tool_call_id == call.tool_call_id
        });
        let outcome = match given.map(|given| &given.output.result) {
            Some(ClientToolResult::Output(output)) => {
                DeferredOutcome::Output { output: output.clone() }
            }
            Some(ClientToolResult::ErrorText(error_text)) => {
                DeferredOutcome::OutputError { error_text: error_text.clone() }
            }
            None if self.history.is_followed_by_user_message(message_at) => {
                return CallResolution::Superseded;
            }
            None => return CallResolution::Pending,
        };
        let id = call.tool_call_id.clone();
        let name = call.tool_name.clone();
        CallResolution::Resolved(DeferredToolResult {
            message_id: message_at.and_then(|at| self.history.message_ids.get(at)).cloned(),
            ..DeferredToolResult::of_call(id, name, outcome)
        })
    }
}

/// The result of an approval response.
pub(super) struct AnsweredCall {
    /// The name of the tool, if the host knows the call.
    pub(super) tool_name: Option<Box<str>>,
    pub(super) outcome: DeferredOutcome,
    pub(super) is_final: bool,
}

#[cfg(feature = "approvals")]
impl AnsweredCall {
    pub(super) fn of_record(record: &ApprovalRecord, outcome: DeferredOutcome) -> Self {
        let tool_name = Some(record.tool_name.clone());
        let is_final = !record.is_pending();
        AnsweredCall { tool_name, outcome, is_final }
    }
}

/// The resolution of a call without an approval response.
enum CallResolution {
    Resolved(DeferredToolResult),
    Pending,
    Superseded,
}

fn decided_outcome(
    response: &UnverifiedApprovalResponse,
    known: Option<&PendingToolCall>,
) -> DeferredOutcome {
    let reason = response.reason.clone();
    if let Some(outcome) = known.and_then(recorded_outcome) {
        return match outcome {
            DeferredOutcome::Denied { .. } if response.approved => DeferredOutcome::Rejected,
            DeferredOutcome::Denied { .. } => DeferredOutcome::Denied { reason },
            outcome => outcome,
        };
    }
    match known {
        Some(call) if call.provider_executed => {
            DeferredOutcome::ForwardToProvider { approved: response.approved, reason, claim: None }
        }
        _ if !response.approved => DeferredOutcome::Denied { reason },
        Some(call) => DeferredOutcome::Approved { input: call.input.clone(), claim: None },
        None => DeferredOutcome::Rejected,
    }
}

/// Returns the outcome of a call that was decided by an earlier request.
fn recorded_outcome(call: &PendingToolCall) -> Option<DeferredOutcome> {
    Some(match &call.progress {
        CallProgress::Open => return None,
        CallProgress::HandedOut if call.provider_executed => DeferredOutcome::ForwardedToProvider,
        CallProgress::HandedOut => DeferredOutcome::OutcomeUnknown,
        CallProgress::Completed(outcome) => DeferredOutcome::Executed { outcome: outcome.clone() },
        CallProgress::Denied => DeferredOutcome::Denied { reason: None },
        CallProgress::Superseded => DeferredOutcome::Superseded,
        CallProgress::Lapsed => DeferredOutcome::Lapsed,
    })
}

#[cfg(all(test, feature = "approvals"))]
mod tests {
    use super::*;

    #[test]
    fn a_new_message_closes_only_the_requests_that_were_open_when_it_arrived() {
        let message = UiMessage::new("u1", Role::User, Vec::new());
        let plan = ResumePlan::new(&[message], None);
        assert!(plan.is_superseded(&"ap1".into()));
        let plan = plan.with_open_requests(["ap1".into()]);
        assert!(plan.is_superseded(&"ap1".into()));
        assert!(!plan.is_superseded(&"ap2".into()));
    }
}
