//! [`Redemption`]: the approval responses of a history, checked against the records of the
//! requests.
//!
//! ```text
//! ResumePlan ──redeem(keys)──▶ Redemption ──records()──▶ load ──▶ verify()
//!                       superseded() ──▶ supersede in the ledger ◀── │
//!                                  ▲                                 │ ledger_requests()
//!                                  └── handle_response() ◀── claim, deny, lapse in the ledger
//!                                                       settle() ──▶ DeferredToolResults
//! ```
//!
//! A redemption decides and never waits: the glue loads the records that it lists, and sends and
//! stores the ledger requests that it lists.

use std::collections::{HashMap, HashSet};

#[cfg(feature = "approvals")]
use super::ChangedInput;
use super::canonical_json::is_same_value;
#[cfg(feature = "approvals")]
use super::reopen::SentCall;
use super::resume::ResponseResult;
use super::token::{Token, has_newer_format};
use super::{
    ApprovalRecord, CallProgress, ClaimResult, DeferredOutcome, DeferredToolResults, DenyResult,
    KeyRing, PendingToolCall, Principal, RecordId, RejectionReason, ResumePlan, UnixMillis,
    UnverifiedApprovalResponse,
};
#[cfg(feature = "approvals")]
use crate::id::MessageId;
use crate::id::{ApprovalId, ChatId, ToolCallId};
use crate::json::Json;
#[cfg(feature = "approvals")]
use crate::message::{ToolPart, UiMessage};

/// The approval responses of a [`ResumePlan`] while they are checked against records and the
/// ledger.
///
/// Created by [`ResumePlan::redeem`].
#[must_use]
pub struct Redemption {
    plan: ResumePlan,
    /// The time at which the records were loaded.
    pub(super) now: UnixMillis,
    answers: Vec<Answer>,
    includes_earlier: bool,
    /// The ids whose calls may have been executed, although they have no record.
    may_have_run: HashSet<RecordId>,
    /// The ids that were sealed for the calls with which they came, although they have no record.
    forgotten: HashSet<RecordId>,
}

debug_without_content!(Redemption { plan; answers });

#[derive(Debug)]
struct Answer {
    token: Option<Token>,
    /// Whether an approval lapses, because it arrives with a newer message of the requester.
    lapses: bool,
    resolution: Resolution,
}

#[derive(Debug)]
enum Resolution {
    /// The ledger has not been asked yet.
    Unresolved,
    /// The response is in an older message and is not a valid response to a pending request.
    Skipped,
    Resolved(Box<(Option<ApprovalRecord>, DeferredOutcome)>),
}

impl Answer {
    /// Returns whether the response was rejected: it has an outcome, but no record.
    fn is_rejected(&self) -> bool {
        matches!(&self.resolution, Resolution::Resolved(resolved) if resolved.0.is_none())
    }
}

/// A claim, denial or lapse to request from the ledger.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LedgerRequest {
    /// The index of the approval response, which [`Redemption::handle_response`] reads.
    pub index: usize,
    /// The id of the record.
    pub record: RecordId,
    /// The request.
    pub action: LedgerAction,
    /// The reason that the user gave.
    pub reason: Option<String>,
    /// The input with which an approved call runs, if the user changed it.
    pub changed_input: Option<Json>,
}

/// What a [`LedgerRequest`] requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LedgerAction {
    /// The user denied the call.
    Deny,
    /// The user approved the call, but the approval arrived with a newer message of the user.
    Lapse,
    /// The user approved the call.
    Claim,
}

/// The ledger's response to a [`LedgerRequest`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum LedgerResponse {
    /// The response to an approval, also to one that lapses.
    Claim(ClaimResult),
    /// The response to a denial.
    Deny(DenyResult),
    /// No response: it is not known whether the ledger applied the request.
    Unavailable,
}

impl LedgerResponse {
    /// Returns whether the decision of the user counts, by this request or by an earlier one.
    #[cfg(feature = "approvals")]
    pub(super) fn is_acceptance(&self) -> bool {
        match self {
            LedgerResponse::Claim(result) => !matches!(result, ClaimResult::Rejected(_)),
            LedgerResponse::Deny(result) => *result == DenyResult::Denied,
            LedgerResponse::Unavailable => false,
        }
    }
}

/// An approval response that does not count, for the audit.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RejectedResponse {
    /// The reason.
    pub cause: RejectionReason,
    /// The id of the record, if the approval id is valid.
    pub record: Option<RecordId>,
    /// The call that the client responded to, as the client sent it.
    pub tool_call_id: ToolCallId,
    /// The tool of that call, as the client sent it.
    pub tool_name: Box<str>,
}

impl ResumePlan {
    /// Starts to redeem the approval responses.
    ///
    /// Approval ids that this server did not seal are detected here, and their responses are
    /// rejected by [`Redemption::verify`].
    pub fn redeem(self, keys: &KeyRing, now: UnixMillis) -> Redemption {
        let answers = self
            .unverified_responses()
            .map(|response| Answer {
                token: Token::open(keys, &response.approval_id, now),
                lapses: false,
                resolution: Resolution::Unresolved,
            })
            .collect();
        let (may_have_run, forgotten) = Default::default();
        Redemption { plan: self, now, answers, includes_earlier: false, may_have_run, forgotten }
    }
}

impl Redemption {
    /// Includes the valid approval responses in earlier messages whose calls have an outcome, for
    /// a host whose own history does not hold the outcomes.
    pub fn including_earlier(mut self) -> Self {
        self.includes_earlier = true;
        self
    }

    /// Returns the ids of the records to load. A forged approval id has no record.
    pub fn records(&self) -> impl Iterator<Item = RecordId> {
        self.answers.iter().filter_map(|answer| Some(answer.token?.record))
    }

    /// Returns the ids of the approvals that are genuine and have no record, each with the time at
    /// which it expires.
    #[cfg(feature = "approvals")]
    pub(super) fn approvals_without_record(
        &self,
        records: &HashMap<RecordId, ApprovalRecord>,
    ) -> HashMap<RecordId, UnixMillis> {
        let approvals = self.answers.iter().zip(self.plan.unverified_responses());
        let approvals = approvals.filter(|(_, response)| response.approved);
        let tokens = approvals.filter_map(|(answer, _)| answer.token);
        let tokens = tokens.filter(|token| !records.contains_key(&token.record));
        tokens.map(|token| (token.record, token.times().1)).collect()
    }

    /// Sets the ids of the approvals whose calls may have been executed, although they have no
    /// record. Such an approval has an unknown outcome.
    #[cfg(feature = "approvals")]
    pub(super) fn with_possible_executions(mut self, may_have_run: HashSet<RecordId>) -> Self {
        self.may_have_run = may_have_run;
        self
    }

    /// Returns the id of the message that holds this approval request.
    #[cfg(feature = "approvals")]
    pub(super) fn message_of(&self, id: &ApprovalId) -> Option<&MessageId> {
        self.plan.message_of_request(id)
    }

    /// Returns the calls of the approvals that have no record.
    #[cfg(feature = "approvals")]
    pub(super) fn calls_without_record<'r>(
        &'r self,
        records: &'r HashMap<RecordId, ApprovalRecord>,
    ) -> impl Iterator<Item = SentCall<'r>> {
        let calls = self.answers.iter().zip(self.plan.sent_calls());
        let is_missing = |answer: &Answer| {
            answer.token.is_some_and(|token| !records.contains_key(&token.record))
        };
        calls.filter(move |(answer, _)| is_missing(answer)).map(|(_, (_, call))| call)
    }

    /// Sets the ids that were sealed for these calls, although they have no record. Their users learn
    /// that the approval request is lost. The ids of other users are not among them.
    #[cfg(feature = "approvals")]
    pub(super) fn with_forgotten(mut self, forgotten: HashSet<RecordId>) -> Self {
        self.forgotten = forgotten;
        self
    }

    /// Checks the approval responses against the records, and returns the rejected responses.
    ///
    /// `chat` is the id of the chat, and `owner` its owner: two users may have chats with the same
    /// id. `may_decide` is called for records of other principals than `principal`. It returns
    /// whether `principal` may decide for them.
    ///
    /// An approval response in a message before the continued one was usually handled by an earlier
    /// request. It is skipped unless it is valid and its record is still pending, or
    /// [`including_earlier`](Self::including_earlier) was called. A rejected
    /// denial still becomes [`DeferredOutcome::Denied`], and a rejected approval becomes
    /// [`DeferredOutcome::Rejected`]. An approval by the requester of a call on which
    /// [others decide](ApprovalRecord::decided_by_others) is rejected, and the call stays pending.
    pub fn verify(
        &mut self,
        records: &HashMap<RecordId, ApprovalRecord>,
        (owner, chat): (&Principal, &ChatId),
        principal: &Principal,
        may_decide: impl Fn(&ApprovalRecord) -> bool,
    ) -> Vec<RejectedResponse> {
        let mut rejected = Vec::new();
        for (answer, (is_continued, response)) in self.answers.iter_mut().zip(self.plan.answers()) {
            let record = answer.token.and_then(|token| records.get(&token.record));
            let accepted = check_response(
                answer.token,
                record,
                response,
                (owner, chat),
                principal,
                &may_decide,
            );
            let is_pending = record.is_some_and(ApprovalRecord::is_pending);
            answer.lapses = record.is_some_and(|record| {
                record.is_closed_by_new_message()
                    && self.plan.has_newer_message(record, &response.approval_id)
            });
            let accepted = accepted.and_then(|()| {
                // If the request is decided, the page gets the outcome.
                let is_self_approval = response.approved
                    && is_pending
                    && record.is_some_and(|record| record.is_self_approval(principal));
                if is_self_approval { Err(RejectionReason::SelfApproval) } else { Ok(()) }
            });
            if !(is_continued || accepted.is_ok() && (is_pending || self.includes_earlier)) {
                answer.resolution = Resolution::Skipped;
            } else if let Err(cause) = accepted {
                let token = answer.token;
                let outcome = match response.approved {
                    true if token
                        .is_some_and(|token| self.may_have_run.contains(&token.record)) =>
                    {
                        DeferredOutcome::OutcomeUnknown
                    }
                    true if token.is_some_and(|token| self.forgotten.contains(&token.record)) => {
                        DeferredOutcome::Forgotten
                    }
                    true => DeferredOutcome::Rejected,
                    // A denial runs nothing, so the user sees the decision that the user made.
                    false => DeferredOutcome::Denied { reason: response.reason.clone() },
                };
                answer.resolution = match cause {
                    // The request waits for the others.
                    RejectionReason::SelfApproval => Resolution::Skipped,
                    _ => Resolution::Resolved(Box::new((None, outcome))),
                };
                rejected.push(RejectedResponse {
                    cause,
                    record: answer.token.map(|token| token.record),
                    tool_call_id: response.tool_call_id.clone(),
                    tool_name: response.tool_name.clone(),
                });
            }
        }
        rejected
    }

    /// Returns whether the history holds this approval request.
    #[cfg(feature = "approvals")]
    pub(super) fn holds_request(&self, id: &ApprovalId) -> bool {
        self.plan.holds_request(id)
    }

    /// Returns the requests to send to the ledger, denials first.
    pub fn ledger_requests(&self) -> Vec<LedgerRequest> {
        let mut requests: Vec<LedgerRequest> =
            (self.answers.iter().zip(self.plan.answers()).enumerate())
                .filter(|(_, (answer, _))| matches!(answer.resolution, Resolution::Unresolved))
                .filter_map(|(index, (answer, (_, response)))| {
                    let action = match response.approved {
                        false => LedgerAction::Deny,
                        true if answer.lapses => LedgerAction::Lapse,
                        true => LedgerAction::Claim,
                    };
                    let changed_input = response.changed_input.clone();
                    Some(LedgerRequest {
                        index,
                        record: answer.token?.record,
                        action,
                        reason: response.reason.clone(),
                        changed_input: changed_input.filter(|_| action == LedgerAction::Claim),
                    })
                })
                .collect();
        requests.sort_by_key(|request| request.action != LedgerAction::Deny);
        requests
    }

    /// Sets the outcome of an approval response from the ledger's response to its request.
    ///
    /// `record` is the record after the request, or its last known state if there was no response.
    /// Without a response to a [lapse](LedgerAction::Lapse) the host must stop, as for a record that
    /// it cannot [supersede](Self::superseded).
    pub fn handle_response(
        &mut self,
        request: &LedgerRequest,
        record: ApprovalRecord,
        response: LedgerResponse,
    ) {
        let reason = request.reason.clone();
        let is_approval = request.action != LedgerAction::Deny;
        let outcome = match response {
            LedgerResponse::Deny(DenyResult::Denied) if record.provider_executed => {
                DeferredOutcome::ForwardToProvider { approved: false, reason, claim: None }
            }
            LedgerResponse::Deny(DenyResult::Denied) => DeferredOutcome::Denied { reason },
            LedgerResponse::Claim(ClaimResult::Granted(claim)) if record.provider_executed => {
                DeferredOutcome::ForwardToProvider { approved: true, reason, claim: Some(claim) }
            }
            LedgerResponse::Claim(ClaimResult::InFlight | ClaimResult::Completed(_))
                if record.provider_executed =>
            {
                DeferredOutcome::ForwardedToProvider
            }
            LedgerResponse::Claim(ClaimResult::Granted(claim)) => DeferredOutcome::Approved {
                input: record.approved_input().clone(),
                claim: Some(claim),
            },
            LedgerResponse::Claim(ClaimResult::InFlight) => {
                DeferredOutcome::Executing { record: record.id }
            }
            LedgerResponse::Claim(ClaimResult::Completed(outcome)) => {
                DeferredOutcome::Executed { outcome }
            }
            LedgerResponse::Claim(ClaimResult::OutcomeUnknown) => DeferredOutcome::OutcomeUnknown,
            // The request may have been approved and executed since its record was loaded.
            LedgerResponse::Unavailable if is_approval && record.is_pending() => {
                DeferredOutcome::OutcomeUnknown
            }
            LedgerResponse::Claim(ClaimResult::Rejected(_))
            | LedgerResponse::Deny(DenyResult::Rejected(_))
            | LedgerResponse::Unavailable => {
                rejected_outcome(&record, self.now, is_approval, reason)
            }
        };
        if let Some(answer) = self.answers.get_mut(request.index) {
            answer.resolution = Resolution::Resolved(Box::new((Some(record), outcome)));
        }
    }

    /// Returns the unanswered approval requests that the user superseded with another message.
    ///
    /// The host must [supersede](ApprovalRecord::supersede) these records before it settles the
    /// redemption. If it cannot write one of them, it must neither call the model nor record that the
    /// call was not executed, because the request may still be approved.
    pub fn superseded<'r>(
        &self,
        unanswered: impl IntoIterator<Item = (&'r ApprovalRecord, &'r ApprovalId)>,
    ) -> Vec<RecordId> {
        let records = unanswered.into_iter().filter(|(record, id)| {
            record.is_closed_by_new_message() && self.plan.has_newer_message(record, id)
        });
        records.map(|(record, _)| record.id).collect()
    }

    /// Returns the results of all deferred tool calls.
    ///
    /// `unanswered` holds the approval requests of this chat that were pending when the responses
    /// arrived, each in its current state: a superseded request has been closed, and another
    /// request may have expired or may have been decided elsewhere. `client_executed` holds the
    /// calls that the client executes.
    pub fn settle(
        self,
        unanswered: &[(ApprovalRecord, ApprovalId)],
        client_executed: &[PendingToolCall],
    ) -> DeferredToolResults {
        let mut open: Vec<PendingToolCall> = Vec::new();
        let mut closed: Vec<(PendingToolCall, DeferredOutcome)> = Vec::new();
        let mut pending: Vec<PendingToolCall> = Vec::new();
        for (record, id) in unanswered {
            let call = pending_call(record, id.clone());
            match record.outcome() {
                // The plan lists it among the superseded calls.
                Some(DeferredOutcome::Superseded) if self.plan.is_superseded(id) => open.push(call),
                // The model gets the rejection of that response and is called, so the call is not
                // pending.
                None if !record.is_closed_by_new_message() && self.plan.is_superseded(id) => {
                    pending.push(call);
                }
                None if self.has_rejected_response(record, id) => {}
                None => open.push(call),
                Some(outcome) => closed.push((call, outcome)),
            }
        }
        let answers = self.answers.into_iter().map(|answer| match answer.resolution {
            Resolution::Skipped | Resolution::Unresolved => None,
            Resolution::Resolved(resolved) => {
                let (record, outcome) = *resolved;
                let is_final = record.as_ref().is_some_and(|record| !record.is_pending());
                Some(ResponseResult {
                    tool_name: record.map(|record| record.tool_name),
                    outcome,
                    is_final,
                })
            }
        });
        let answers = answers.collect();
        open.extend(client_executed.iter().cloned());
        self.plan.build_results(answers, &open, closed, pending)
    }

    /// Returns whether a response to this record's call was rejected.
    ///
    /// The tool call id that the client sent is enough to find the call, because the rejection only
    /// states that the tool did not run. If the history still holds the request without a response,
    /// another call with the same id was answered, and this request remains pending.
    fn has_rejected_response(&self, record: &ApprovalRecord, id: &ApprovalId) -> bool {
        if self.plan.pending().iter().any(|request| request.approval_id == *id) {
            return false;
        }
        let answers = self.answers.iter().zip(self.plan.answers());
        let rejected = answers.filter(|(answer, _)| answer.is_rejected());
        rejected
            .map(|(_, (_, response))| &response.tool_call_id)
            .any(|wire_id| is_wire_id_of(wire_id, &record.tool_call_id))
    }
}

/// Returns the call of a record as a pending call.
fn pending_call(record: &ApprovalRecord, approval_id: ApprovalId) -> PendingToolCall {
    PendingToolCall {
        tool_call_id: record.tool_call_id.clone(),
        tool_name: record.tool_name.clone(),
        input: record.input.clone(),
        approval_id: Some(approval_id),
        provider_executed: record.provider_executed,
        progress: CallProgress::Open,
        on_new_message: record.on_new_message,
    }
}

/// Returns the record of an approval id if the id is genuine and `principal` may decide on the
/// record.
///
/// `token` is the opened approval id, and `record` the record that it names.
pub(super) fn authorized_record<'r>(
    approval_id: &ApprovalId,
    token: Option<Token>,
    record: Option<&'r ApprovalRecord>,
    principal: &Principal,
    may_decide: impl Fn(&ApprovalRecord) -> bool,
) -> Result<&'r ApprovalRecord, RejectionReason> {
    let token = token.ok_or_else(|| match has_newer_format(approval_id) {
        true => RejectionReason::NewerFormat,
        false => RejectionReason::Forged,
    })?;
    let record = record.ok_or(RejectionReason::NotFound)?;
    if token != record.token() {
        return Err(RejectionReason::BindingMismatch);
    }
    match record.requester == *principal || may_decide(record) {
        true => Ok(record),
        false => Err(RejectionReason::WrongPrincipalOrChat),
    }
}

fn check_response(
    token: Option<Token>,
    record: Option<&ApprovalRecord>,
    response: &UnverifiedApprovalResponse,
    (owner, chat): (&Principal, &ChatId),
    principal: &Principal,
    may_decide: impl Fn(&ApprovalRecord) -> bool,
) -> Result<(), RejectionReason> {
    let id = &response.approval_id;
    let record = authorized_record(id, token, record, principal, may_decide)?;
    if record.requester != *owner || record.chat_id != *chat {
        return Err(RejectionReason::WrongPrincipalOrChat);
    }
    if record.tool_name != response.tool_name
        || !is_wire_id_of(&response.tool_call_id, &record.tool_call_id)
    {
        return Err(RejectionReason::BindingMismatch);
    }
    match &response.input {
        Some(input) if !is_same_value(input, &record.input) => Err(RejectionReason::InputChanged),
        _ => Ok(()),
    }
}

#[cfg(feature = "approvals")]
impl UnverifiedApprovalResponse {
    /// Whether the client names this call, as the stored message holds it. A page may still hold the input
    /// from before the approver changed it.
    pub fn is_of(&self, part: &ToolPart, message: &UiMessage) -> bool {
        let is_same_input = match (&self.input, part.input()) {
            (Some(sent), Some(stored)) => {
                let is_original = |input: ChangedInput| is_same_value(sent, &input.original);
                is_same_value(sent, stored)
                    || ChangedInput::of_call(message, part).is_some_and(is_original)
            }
            (sent, _) => sent.is_none(),
        };
        part.approval_id() == Some(&self.approval_id)
            && part.tool_call_id == self.tool_call_id
            && part.tool_name == self.tool_name
            && is_same_input
    }
}

/// Returns whether `wire` is an id that the host's call id `own` can have on the wire.
///
/// A repeated call id is sent with a hyphen and a number appended.
fn is_wire_id_of(wire: &ToolCallId, own: &ToolCallId) -> bool {
    wire.strip_prefix(&**own).is_some_and(|rest| {
        let number = rest.strip_prefix('-');
        rest.is_empty()
            || number.is_some_and(|number| {
                !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
            })
    })
}

/// Returns the outcome of a response that is too late or that the ledger did not accept.
///
/// It is the current outcome of the record, because the tool may have run for another response. The
/// response has passed verification, so its sender may see the final state.
fn rejected_outcome(
    record: &ApprovalRecord,
    now: UnixMillis,
    approved: bool,
    reason: Option<String>,
) -> DeferredOutcome {
    match record.outcome_at(now) {
        Some(
            outcome @ (DeferredOutcome::Executing { .. }
            | DeferredOutcome::Executed { .. }
            | DeferredOutcome::ForwardedToProvider
            | DeferredOutcome::OutcomeUnknown),
        ) => outcome,
        // The tool did not run, and the user decided that it must not run.
        _ if !approved => DeferredOutcome::Denied { reason },
        // The client checks the stream and does not accept a denial after an approval.
        None | Some(DeferredOutcome::Denied { .. }) => DeferredOutcome::Rejected,
        Some(closed) => closed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_call_id_has_a_number_after_a_hyphen() {
        for (wire, is_of) in [
            ("call", true),
            ("call-2", true),
            ("call-10", true),
            ("call-", false),
            ("call-2x", false),
            ("call2", false),
            ("cal", false),
            ("other", false),
        ] {
            assert_eq!(is_wire_id_of(&wire.into(), &"call".into()), is_of, "{wire}");
        }
    }

    #[cfg(feature = "approvals")]
    #[test]
    fn a_response_is_of_a_call_if_id_approval_tool_and_input_are_the_same() {
        use crate::approval::history::approval_response;
        use crate::message::ToolState;
        use serde_json::{Value, json};

        let message = |part: Value| {
            let message = json!({"id": "m", "role": "assistant", "parts": [part, {
                "type": "data-approval", "id": "call",
                "data": {"originalInput": {"n": 0}, "changedInput": {"n": 1}},
            }, {
                "type": "data-other", "id": "call", "data": {"originalInput": {"n": 7}, "changedInput": {"n": 1}},
            }]});
            UiMessage::parse(&message.to_string()).unwrap()
        };
        let call = json!({
            "type": "tool-send", "toolCallId": "call", "state": "approval-responded",
            "input": {"n": 1}, "approval": {"id": "approval", "approved": true},
        });
        let with = |field: &str, value: Value| {
            let mut call = call.clone();
            call[field] = value;
            call
        };
        let sent = |part: Value| {
            let message = message(part);
            let part = message.tool_parts().next().unwrap();
            let ToolState::ApprovalResponded { approval, .. } = &part.state else {
                panic!("{part:?}")
            };
            approval_response(part, approval)
        };
        let stored = message(call.clone());
        let part = stored.tool_parts().next().unwrap();
        for (part_sent, is_of) in [
            (call.clone(), true),
            // A page may hold the input from before it was changed.
            (with("input", json!({"n": 0})), true),
            (with("input", json!({"n": 7})), false),
            (with("input", json!({"n": 2})), false),
            (with("toolCallId", json!("other")), false),
            (with("type", json!("tool-other")), false),
            (with("approval", json!({"id": "other", "approved": true})), false),
        ] {
            assert_eq!(sent(part_sent.clone()).is_of(part, &stored), is_of, "{part_sent}");
        }
    }

    #[cfg(feature = "approvals")]
    #[test]
    fn a_decision_counts_unless_the_ledger_has_rejected_it() {
        for (response, counts) in
            [(LedgerResponse::Deny(DenyResult::Denied), true), (LedgerResponse::Unavailable, false)]
        {
            assert_eq!(response.is_acceptance(), counts, "{response:?}");
        }
    }
}
