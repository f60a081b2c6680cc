//! What each answer of a person does: [`Judge::judge`] reads the answer and the record of its request, and returns a
//! [`Verdict`]. After the ledger has [stepped](Stepped), [`outcome_of`] returns the outcome of the call.
//!
//! Nothing here waits or changes anything: the glue loads the records, and sends the steps to the ledger.
//!
//! # All rejected responses look the same
//!
//! A sender of invented ids could learn from differences which ids exist. Final outcomes that concern the user's
//! own requests may be shown: expired, revoked.
//!
//! # A newer message comes before an earlier approval
//!
//! A user approves a call, does not send the approval yet, and then writes "No, stop". Both arrive in one request,
//! and the approval is the older statement. So an approval that arrives with or after a newer message of its
//! requester lapses: the tool does not run, the record becomes `lapsed`, and the model reads that the call was
//! approved, that it was not executed, and that the user sent another message. The model can request the approval
//! again. A request without a response becomes `superseded`. The user did not deny it, and no text says so. If the
//! ledger cannot store one of these states, the turn fails before anything is recorded or sent to the model: the
//! request could still be approved, so no text may say that the call was not executed.
//!
//! The client's history does not show every newer message: another page may have sent one. So the server also asks
//! the stored chat whether a user message follows the call, when it redeems the approval. `OnNewMessage::Run`
//! changes this for all tools (`Approvals::on_new_message`) or for one (`Tool::on_new_message`).
//!
//! Hosts that replace another backend may depend on the other rule, in which writing on is a denial:
//! `OnNewMessage::Deny`. The record then becomes `denied`, its decider is the requester, and the reason is a fixed
//! text that the model and the audit read. An approval in the same request does not count: with both rules the
//! message is the newer statement, and it decides.
//!
//! A question that another principal has to decide is not part of the conversation with the requester: "thanks" is
//! no answer to it. Only the host knows which calls these are, because `authorize_decision` may also allow a second
//! principal to decide beside the requester. So the tool says it (`decided_by_others`), and the record keeps it.
//! Messages of the requester do not close such a request, and the requester's own approval does not count. The
//! requester can still deny the call.
//!
//! # A late response does not change what is shown
//!
//! A page that was open for a while may deny a call that another page approved. The first decision counts. If the
//! call ran, the response to the late denial contains the output, and `data-approval` shows `approved`. The version
//! 6 client keeps its own `approved: false` beside that output: no chunk of version 6 replaces it. If the call did
//! not run, the late denial is shown as a denial on the page that sent it, because that is true, and
//! `data-approval` shows what happened first. The history of the server, and so every page that is opened again,
//! holds what happened first. A page that is opened again also shows a request as expired before the next turn has
//! recorded it: the server reads the ledger for the open calls. Tables hold all cases:
//! `tests/client/scenarios/late-responses.mjs` those that the demo can produce, through the real client, and
//! `crates/chat/tests/chat/approvals/late_responses.rs` the others.

use std::collections::{HashMap, HashSet};

use super::canonical_json::is_same_value;
use super::reopen::SentCall;
use super::resume::AnsweredCall;
use super::token::{Token, has_newer_format};
use super::{
    ApprovalRecord, CallProgress, DeferredOutcome, DeferredToolResults, KeyRing, PendingToolCall,
    Principal, RecordId, RejectionReason, ResumePlan, Stepped, UnixMillis,
    UnverifiedApprovalResponse,
};
use crate::id::{ApprovalId, ChatId, ToolCallId};

/// An answer to an approval request, as a client sent it.
#[derive(Debug)]
pub(super) struct Answer<'p> {
    pub(super) response: &'p UnverifiedApprovalResponse,
    /// The approval id, if this server has sealed it.
    token: Option<Token>,
    /// Whether the message that the response continues holds the answer.
    is_continued: bool,
}

impl<'p> Answer<'p> {
    /// Returns the answers of a plan, in the order of the history.
    pub(super) fn all(plan: &'p ResumePlan, keys: &KeyRing, now: UnixMillis) -> Vec<Self> {
        let answers = plan.answers().map(|(is_continued, response)| {
            let token = Token::open(keys, &response.approval_id, now);
            Answer { response, token, is_continued }
        });
        answers.collect()
    }

    /// Returns the id of the record. A forged approval id has none.
    pub(super) fn record(&self) -> Option<RecordId> {
        Some(self.token?.record)
    }

    /// Returns the time from which the approval id can no longer be approved, if this server has sealed it.
    pub(super) fn expires_at(&self) -> Option<UnixMillis> {
        Some(self.token?.times().1)
    }

    pub(super) fn call(&self) -> SentCall<'p> {
        SentCall::answered(self.response)
    }
}

/// What an answer does.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Verdict {
    /// Nothing: it is in an older message, and an earlier request has handled it.
    Ignored,
    /// It does not count, and the ledger is not asked.
    Refused {
        /// The reason, for the audit.
        cause: RejectionReason,
        /// What the page and the model read. `None` if the request waits for others.
        outcome: Option<DeferredOutcome>,
    },
    /// The ledger takes this step.
    Takes(Step),
}

/// The step of a record that an answer asks for. They are sent in this order, so that a ledger that fails before the
/// last one has granted no claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The person denied the call.
    Deny,
    /// The person approved the call, but the approval arrived with a newer message of the requester.
    Lapse,
    /// The person approved the call.
    Claim,
}

/// Who answers in which chat, and what is known of approval ids without a record.
pub(super) struct Judge<'c> {
    pub(super) plan: &'c ResumePlan,
    /// The owner of the chat: two users may have chats with the same id.
    pub(super) owner: &'c Principal,
    pub(super) chat: &'c ChatId,
    /// Who answers.
    pub(super) principal: &'c Principal,
    /// Whether `principal` may decide on a record of another principal.
    pub(super) may_decide: &'c dyn Fn(&ApprovalRecord) -> bool,
    /// Whether the host keeps no history, so that the outcomes of earlier answers are needed, too.
    pub(super) includes_earlier: bool,
    /// The ids without a record whose calls may have been executed.
    pub(super) may_have_run: HashSet<RecordId>,
    /// The ids without a record that were sealed for the calls with which they came. Their users learn that the
    /// request is lost.
    pub(super) forgotten: HashSet<RecordId>,
}

impl Judge<'_> {
    /// Returns what an answer does. `record` is the record of its request, if there is one.
    ///
    /// An answer in a message before the continued one was usually handled by an earlier request. It is ignored unless
    /// it is valid and its request is pending, or the host keeps no history.
    pub(super) fn judge(&self, answer: &Answer<'_>, record: Option<&ApprovalRecord>) -> Verdict {
        let response = answer.response;
        let checked = self.check(answer, record);
        let is_pending = record.is_some_and(ApprovalRecord::is_pending);
        if !answer.is_continued && !(checked.is_ok() && (is_pending || self.includes_earlier)) {
            return Verdict::Ignored;
        }
        match checked {
            Ok(_) if !response.approved => Verdict::Takes(Step::Deny),
            Ok(record) if self.plan.is_closed_by_message(record, &response.approval_id) => {
                Verdict::Takes(Step::Lapse)
            }
            Ok(_) => Verdict::Takes(Step::Claim),
            // The request waits for the others.
            Err(cause @ RejectionReason::SelfApproval) => Verdict::Refused { cause, outcome: None },
            Err(cause) => Verdict::Refused { cause, outcome: Some(self.refused_outcome(answer)) },
        }
    }

    fn check<'r>(
        &self,
        answer: &Answer<'_>,
        record: Option<&'r ApprovalRecord>,
    ) -> Result<&'r ApprovalRecord, RejectionReason> {
        let response = answer.response;
        let id = &response.approval_id;
        let record = authorized_record(id, answer.token, record, self.principal, self.may_decide)?;
        if record.requester != *self.owner || record.chat_id != *self.chat {
            return Err(RejectionReason::WrongPrincipalOrChat);
        }
        if record.tool_name != response.tool_name
            || !is_wire_id_of(&response.tool_call_id, &record.tool_call_id)
        {
            return Err(RejectionReason::BindingMismatch);
        }
        if response.input.as_ref().is_some_and(|input| !is_same_value(input, &record.input)) {
            return Err(RejectionReason::InputChanged);
        }
        // If the request is decided, the page gets the outcome.
        if response.approved && record.is_pending() && record.is_self_approval(self.principal) {
            return Err(RejectionReason::SelfApproval);
        }
        Ok(record)
    }

    /// Returns the outcome of an answer that does not count.
    fn refused_outcome(&self, answer: &Answer<'_>) -> DeferredOutcome {
        let is_in = |ids: &HashSet<RecordId>| answer.record().is_some_and(|id| ids.contains(&id));
        if !answer.response.approved {
            // A denial runs nothing, so the user sees the decision that the user made.
            DeferredOutcome::Denied { reason: answer.response.reason.clone() }
        } else if is_in(&self.may_have_run) {
            DeferredOutcome::OutcomeUnknown
        } else if is_in(&self.forgotten) {
            DeferredOutcome::Forgotten
        } else {
            DeferredOutcome::Rejected
        }
    }
}

/// Returns the outcome of an answer after its step. `record` is the record after the step, at the time `now`, or as it
/// was last known. `stepped` is `None` if it is not known whether the ledger took the step.
pub(super) fn outcome_of(
    response: &UnverifiedApprovalResponse,
    record: &ApprovalRecord,
    stepped: Option<Stepped>,
    now: UnixMillis,
) -> DeferredOutcome {
    let approved = response.approved;
    let reason = response.reason.clone();
    match stepped {
        Some(Stepped::Granted(claim)) if record.provider_executed => {
            DeferredOutcome::ForwardToProvider { approved, reason, claim: Some(claim) }
        }
        Some(Stepped::Granted(claim)) => {
            DeferredOutcome::Approved { input: record.approved_input().clone(), claim: Some(claim) }
        }
        Some(Stepped::Counts) if approved => {
            record.outcome_at(now).unwrap_or(DeferredOutcome::OutcomeUnknown)
        }
        Some(Stepped::Counts) if record.provider_executed => {
            DeferredOutcome::ForwardToProvider { approved, reason, claim: None }
        }
        Some(Stepped::Counts) => DeferredOutcome::Denied { reason },
        // The call may have been approved and executed since its record was loaded.
        None if approved && record.is_pending() => DeferredOutcome::OutcomeUnknown,
        Some(Stepped::Refused(_)) | None => late_outcome(record, now, approved, reason),
    }
}

/// Returns the outcome of an answer that is too late or that the ledger did not accept.
///
/// It is the current outcome of the record, because the tool may have run for another answer. The answer has passed
/// verification, so its sender may see the final state.
fn late_outcome(
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

/// Returns the results of all deferred tool calls of a plan.
///
/// `answered` holds the result of each answer, and `None` for those that are ignored. `unanswered` are the other
/// approval requests of the chat that were pending when the answers arrived, each in its current state. `client_executed`
/// are the calls that the client executes.
pub(super) fn results_of(
    plan: &ResumePlan,
    answered: Vec<Option<AnsweredCall>>,
    unanswered: &[(ApprovalRecord, ApprovalId)],
    client_executed: &[PendingToolCall],
) -> DeferredToolResults {
    let mut open = Vec::new();
    let mut closed = Vec::new();
    let mut pending = Vec::new();
    for (record, id) in unanswered {
        let call = pending_call(record, id.clone());
        match record.outcome() {
            // The plan lists it among the superseded calls.
            Some(DeferredOutcome::Superseded) if plan.is_superseded(id) => open.push(call),
            // The model gets the rejection of that answer and is called, so the call is not pending.
            None if !record.is_closed_by_new_message() && plan.is_superseded(id) => {
                pending.push(call)
            }
            None if has_refused_answer(plan, &answered, record, id) => {}
            None => open.push(call),
            Some(outcome) => closed.push((call, outcome)),
        }
    }
    open.extend(client_executed.iter().cloned());
    plan.build_results(answered, &open, closed, pending)
}

/// Returns whether an answer to this record's call was refused.
///
/// The tool call id that the client sent is enough to find the call, because the refusal only states that the tool did
/// not run. If the history still holds the request without an answer, another call with the same id was answered, and
/// this request remains pending.
fn has_refused_answer(
    plan: &ResumePlan,
    answered: &[Option<AnsweredCall>],
    record: &ApprovalRecord,
    id: &ApprovalId,
) -> bool {
    let is_open = plan.pending().iter().any(|request| request.approval_id == *id);
    let mut answers = answered.iter().zip(plan.unverified_responses());
    !is_open
        && answers.any(|(answered, response)| {
            // The host does not know the call of a refused answer.
            answered.as_ref().is_some_and(|answered| answered.tool_name.is_none())
                && is_wire_id_of(&response.tool_call_id, &record.tool_call_id)
        })
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
    let Some(token) = token else {
        let is_newer = has_newer_format(approval_id);
        return Err(if is_newer { RejectionReason::NewerFormat } else { RejectionReason::Forged });
    };
    let record = record.ok_or(RejectionReason::NotFound)?;
    if token != record.token() {
        return Err(RejectionReason::BindingMismatch);
    }
    if record.requester != *principal && !may_decide(record) {
        return Err(RejectionReason::WrongPrincipalOrChat);
    }
    Ok(record)
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

/// Returns the approvals among these answers that are genuine and have no record, each with the time at which it
/// expires.
pub(super) fn approvals_without_record<R>(
    answers: &[Answer<'_>],
    records: &HashMap<RecordId, R>,
) -> HashMap<RecordId, UnixMillis> {
    let approvals = answers.iter().filter(|answer| answer.response.approved);
    let ids = approvals.filter_map(|answer| Some((answer.record()?, answer.expires_at()?)));
    ids.filter(|(id, _)| !records.contains_key(id)).collect()
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
}
