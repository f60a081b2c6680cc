//! [`Redemption`]: the answers of a history, held against the records of what was asked.
//!
//! ```text
//! ResumePlan ──redeem(keys)──▶ Redemption ──records()──▶ load ──judge()──▶ wishes() ──▶ claim, deny
//!                                  ▲                                                       │
//!                                  └──────────── answer() ── supersede() ◀─────────────────┘
//!                              settle() ──▶ DeferredToolResults
//! ```
//!
//! It decides and never waits: what it lists, the glue loads, asks and stores.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::resume::Settled;
use super::token::{self, Token};
use super::{
    ApprovalRecord, ApprovalResponse, ApprovalState, CanonicalJson, ClaimAnswer, DeferredOutcome,
    DeferredToolResults, DenyAnswer, KeyRing, OpenCall, Principal, RecordId, ResumePlan,
    Revocation, UnixMillis,
};
use crate::id::{ApprovalId, ChatId, ToolCallId};
use crate::json::Json;

/// Why a call may not run. For the audit, and for nobody else: who is told more than that the call
/// was not executed can probe for what exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RefusalCause {
    /// Its id is none that this server sealed, or the key is no longer valid.
    Forged,
    /// There is no record of it any more.
    Forgotten,
    /// It belongs to another person or chat.
    Foreign,
    /// It stands at another call than the one that it was asked for, or its record was changed.
    Mismatched,
    /// The client shows another input than the one that was asked about.
    InputChanged,
    /// It was answered too late.
    Expired,
    /// It was taken back.
    Revoked(Revocation),
    /// It was decided on, otherwise or by somebody else.
    AlreadyDecided,
}

/// Answers on their way from a client's word to what is so.
#[derive(Debug)]
#[must_use]
pub struct Redemption {
    plan: ResumePlan,
    answers: Vec<Answer>,
}

#[derive(Debug)]
struct Answer {
    token: Option<Token>,
    fate: Fate,
}

#[derive(Debug)]
enum Fate {
    /// The ledger has not been asked.
    Open,
    /// It was settled long ago.
    PassedOver,
    Settled(Box<(Option<ApprovalRecord>, DeferredOutcome)>),
}

/// What a person decided about a question, as it is said outside of a chat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PersonsDecision {
    /// Names the question.
    pub approval_id: ApprovalId,
    /// Yes or no.
    pub approved: bool,
    /// Why, in the person's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl ApprovalRecord {
    /// The record that an id names, once the id is proved to be this server's.
    pub fn id_of(id: &ApprovalId, keys: &KeyRing, now: UnixMillis) -> Option<RecordId> {
        Some(token::open(keys, id, now)?.record)
    }

    /// Whether this id was sealed for just this record.
    pub fn has_id(&self, id: &ApprovalId, keys: &KeyRing, now: UnixMillis) -> bool {
        token::open(keys, id, now).is_some_and(|token| token.is_bound_to(self))
    }
}

/// What the ledger is to be asked for.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Wish {
    /// For which answer: what [`Redemption::answer`] wants back.
    pub index: usize,
    /// Of which record.
    pub record: RecordId,
    /// Yes or no.
    pub approved: bool,
    /// Why, in the person's words.
    pub reason: Option<String>,
}

/// What the ledger said to a [`Wish`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Answered {
    /// To a yes.
    Claim(ClaimAnswer),
    /// To a no.
    Deny(DenyAnswer),
    /// Nothing: it is not known whether the wish was heard.
    Nothing,
}

/// An answer that does not count, for the audit.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Refusal {
    /// Why.
    pub cause: RefusalCause,
    /// Which record, if the answer's id names one.
    pub record: Option<RecordId>,
    /// The call that the client answered, in the client's word.
    pub tool_call_id: ToolCallId,
    /// Its tool, in the client's word.
    pub tool_name: Box<str>,
}

impl ResumePlan {
    /// Begins to redeem the answers: those whose ids this server did not seal are out at once.
    pub fn redeem(self, keys: &KeyRing, now: UnixMillis) -> Redemption {
        let answers = self
            .approvals()
            .map(|response| Answer {
                token: token::open(keys, &response.approval_id, now),
                fate: Fate::Open,
            })
            .collect();
        Redemption { plan: self, answers }
    }
}

impl Redemption {
    /// The records to load. Of a forged id there is none.
    pub fn records(&self) -> impl Iterator<Item = RecordId> {
        self.answers.iter().filter_map(|answer| Some(answer.token?.record))
    }

    /// Holds the answers against the records. What does not count is settled, and listed.
    ///
    /// `may_decide` is asked about records of other people: whether this principal may answer for
    /// them. Answers of older messages to what was decided are passed over: they have been heard.
    pub fn judge(
        &mut self,
        records: &HashMap<RecordId, ApprovalRecord>,
        chat: &ChatId,
        principal: &Principal,
        may_decide: impl Fn(&ApprovalRecord) -> bool,
    ) -> Vec<Refusal> {
        let mut refusals = Vec::new();
        for (answer, (is_continued, response)) in self.answers.iter_mut().zip(self.plan.answers()) {
            let record = answer.token.and_then(|token| records.get(&token.record));
            let accepted = accept(answer.token, record, response, chat, principal, &may_decide);
            let is_pending = record.is_some_and(ApprovalRecord::is_pending);
            if !(is_continued || accepted.is_ok() && is_pending) {
                answer.fate = Fate::PassedOver;
            } else if let Err(cause) = accepted {
                let outcome = match response.approved {
                    true => DeferredOutcome::Refused,
                    // Nothing runs: the person sees what the person said.
                    false => DeferredOutcome::Denied { reason: response.reason.clone() },
                };
                answer.fate = Fate::Settled(Box::new((None, outcome)));
                refusals.push(Refusal {
                    cause,
                    record: answer.token.map(|token| token.record),
                    tool_call_id: response.tool_call_id.clone(),
                    tool_name: response.tool_name.clone(),
                });
            }
        }
        refusals
    }

    /// What the ledger is to be asked for, denials first.
    pub fn wishes(&self) -> Vec<Wish> {
        let mut wishes: Vec<Wish> = (self.answers.iter().zip(self.plan.answers()).enumerate())
            .filter(|(_, (answer, _))| matches!(answer.fate, Fate::Open))
            .filter_map(|(index, (answer, (_, response)))| {
                Some(Wish {
                    index,
                    record: answer.token?.record,
                    approved: response.approved,
                    reason: response.reason.clone(),
                })
            })
            .collect();
        wishes.sort_by_key(|wish| wish.approved);
        wishes
    }

    /// Takes in what the ledger said to a wish, with the record as it is now, or was at last.
    pub fn answer(&mut self, wish: &Wish, record: ApprovalRecord, answered: Answered) {
        let reason = wish.reason.clone();
        let outcome = match answered {
            Answered::Deny(DenyAnswer::Denied) if record.provider_executed => {
                DeferredOutcome::ForProvider { approved: false, reason, claim: None }
            }
            Answered::Deny(DenyAnswer::Denied) => DeferredOutcome::Denied { reason },
            Answered::Claim(ClaimAnswer::Won(claim)) if record.provider_executed => {
                DeferredOutcome::ForProvider { approved: true, reason, claim: Some(claim) }
            }
            Answered::Claim(ClaimAnswer::InFlight | ClaimAnswer::Done(_))
                if record.provider_executed =>
            {
                DeferredOutcome::Forwarded
            }
            Answered::Claim(ClaimAnswer::Won(claim)) => {
                DeferredOutcome::Approved { input: record.input.clone(), claim: Some(claim) }
            }
            Answered::Claim(ClaimAnswer::InFlight) => {
                DeferredOutcome::Running { record: record.id }
            }
            Answered::Claim(ClaimAnswer::Done(outcome)) => DeferredOutcome::Ran { outcome },
            Answered::Claim(ClaimAnswer::Unknown) => DeferredOutcome::OutcomeUnknown,
            Answered::Claim(ClaimAnswer::Refused(_))
            | Answered::Deny(DenyAnswer::Refused(_))
            | Answered::Nothing => does_not_count(&record, wish.approved, reason),
        };
        if let Some(answer) = self.answers.get_mut(wish.index) {
            answer.fate = Fate::Settled(Box::new((Some(record), outcome)));
        }
    }

    /// Of the questions that have no answer here, those that the person wrote past: they are to be
    /// denied.
    pub fn superseded<'r>(
        &self,
        unanswered: impl IntoIterator<Item = (&'r ApprovalRecord, &'r ApprovalId)>,
    ) -> Vec<RecordId> {
        let wrote_past = |id: &ApprovalId| self.plan.wrote_past(id);
        let records = unanswered.into_iter().filter(|(_, id)| wrote_past(id));
        records.map(|(record, _)| record.id).collect()
    }

    /// What became of everything.
    ///
    /// `unanswered` are the questions of this chat that waited when the answers came, as they are
    /// now: those that the person wrote past are denied, and others may have expired or been decided
    /// elsewhere. `left_to_client` are the calls that the client runs.
    pub fn settle(
        self,
        unanswered: &[(ApprovalRecord, ApprovalId)],
        left_to_client: &[OpenCall],
    ) -> DeferredToolResults {
        let mut open: Vec<OpenCall> = Vec::new();
        let mut closed: Vec<(OpenCall, DeferredOutcome)> = Vec::new();
        for (record, id) in unanswered {
            let call = record.open_call(id.clone());
            match record.outcome() {
                None | Some(DeferredOutcome::Denied { .. }) if self.plan.wrote_past(id) => {
                    open.push(call);
                }
                // Whatever was refused there, the model hears of that, and is called.
                None if self.is_refused_at(record, id) => {}
                None => open.push(call),
                Some(outcome) => closed.push((call, outcome)),
            }
        }
        let answers = self.answers.into_iter().map(|answer| match answer.fate {
            Fate::PassedOver | Fate::Open => None,
            Fate::Settled(settled) => {
                let (record, outcome) = *settled;
                let is_final = record.as_ref().is_some_and(|record| !record.is_pending());
                Some(Settled {
                    tool_name: record.map(|record| record.tool_name),
                    outcome,
                    is_final,
                })
            }
        });
        let answers = answers.collect();
        open.extend(left_to_client.iter().cloned());
        self.plan.settle_with(answers, &open, closed)
    }

    /// Whether an answer at this record's call was refused: the client's word for which call it is
    /// is enough to be told that nothing ran. Where two calls have one id, the other still asks.
    fn is_refused_at(&self, record: &ApprovalRecord, id: &ApprovalId) -> bool {
        if self.plan.pending().iter().any(|request| request.approval_id == *id) {
            return false;
        }
        let answers = self.answers.iter().zip(self.plan.answers());
        let refused = answers.filter(
            |(answer, _)| matches!(&answer.fate, Fate::Settled(settled) if settled.0.is_none()),
        );
        refused
            .map(|(_, (_, response))| &response.tool_call_id)
            .any(|wire_id| is_name_of(wire_id, &record.tool_call_id))
    }
}

impl ApprovalRecord {
    /// What became of the question; `None` while it waits.
    pub fn outcome(&self) -> Option<DeferredOutcome> {
        Some(match &self.state {
            ApprovalState::Pending => return None,
            ApprovalState::Denied { decision } => {
                DeferredOutcome::Denied { reason: decision.reason.clone() }
            }
            ApprovalState::Expired => DeferredOutcome::Expired,
            ApprovalState::Revoked { .. } => DeferredOutcome::Revoked,
            ApprovalState::Claimed { .. } if self.provider_executed => DeferredOutcome::Forwarded,
            ApprovalState::Claimed { .. } => DeferredOutcome::Running { record: self.id },
            ApprovalState::Done { outcome, .. } => {
                DeferredOutcome::Ran { outcome: outcome.clone() }
            }
            ApprovalState::Unknown { .. } => DeferredOutcome::OutcomeUnknown,
        })
    }

    /// The same as of now: after the lease nobody listens any more to what a provider makes of a yes.
    pub fn outcome_at(&self, now: UnixMillis) -> Option<DeferredOutcome> {
        match &self.state {
            ApprovalState::Claimed { lease_until, .. }
                if self.provider_executed && *lease_until <= now =>
            {
                Some(DeferredOutcome::OutcomeUnknown)
            }
            _ => self.outcome(),
        }
    }

    fn open_call(&self, approval_id: ApprovalId) -> OpenCall {
        OpenCall {
            tool_call_id: self.tool_call_id.clone(),
            tool_name: self.tool_name.clone(),
            input: self.input.clone(),
            approval_id: Some(approval_id),
            provider_executed: self.provider_executed,
        }
    }
}

fn accept(
    token: Option<Token>,
    record: Option<&ApprovalRecord>,
    response: &ApprovalResponse,
    chat: &ChatId,
    principal: &Principal,
    may_decide: &impl Fn(&ApprovalRecord) -> bool,
) -> Result<(), RefusalCause> {
    let token = token.ok_or(RefusalCause::Forged)?;
    let record = record.ok_or(RefusalCause::Forgotten)?;
    if !token.is_bound_to(record) {
        return Err(RefusalCause::Mismatched);
    }
    let is_own = record.requester == *principal || may_decide(record);
    if record.chat_id != *chat || !is_own {
        return Err(RefusalCause::Foreign);
    }
    if record.tool_name != response.tool_name
        || !is_name_of(&response.tool_call_id, &record.tool_call_id)
    {
        return Err(RefusalCause::Mismatched);
    }
    match &response.input {
        Some(input) if !are_same(input, &record.input) => Err(RefusalCause::InputChanged),
        _ => Ok(()),
    }
}

/// Whether two inputs are the same value, as a browser reads them.
fn are_same(sent: &Json, kept: &Json) -> bool {
    let forms = (CanonicalJson::of(sent), CanonicalJson::of(kept));
    matches!(forms, (Ok(sent), Ok(kept)) if sent == kept)
}

/// Whether a call of this id has this name on the wire: a repeated id goes out with a number.
fn is_name_of(wire: &ToolCallId, own: &ToolCallId) -> bool {
    wire.strip_prefix(&**own).is_some_and(|rest| {
        let number = rest.strip_prefix('-');
        rest.is_empty()
            || number.is_some_and(|number| {
                !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
            })
    })
}

/// What an answer is told that comes too late, or that the ledger did not take: the truth, since the
/// tool may have run for somebody else's answer. Whoever gets here was asked: what is final may be
/// told.
fn does_not_count(
    record: &ApprovalRecord,
    approved: bool,
    reason: Option<String>,
) -> DeferredOutcome {
    match record.outcome() {
        Some(
            outcome @ (DeferredOutcome::Running { .. }
            | DeferredOutcome::Ran { .. }
            | DeferredOutcome::Forwarded
            | DeferredOutcome::OutcomeUnknown),
        ) => outcome,
        // It did not run, and the person said that it should not.
        _ if !approved => DeferredOutcome::Denied { reason },
        // After a yes the client's own check refuses a denial.
        None | Some(DeferredOutcome::Denied { .. }) => DeferredOutcome::Refused,
        Some(closed) => closed,
    }
}
