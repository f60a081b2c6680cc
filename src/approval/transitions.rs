//! The rules of the ledger: what each request to a record returns, and the next state of the record.
//!
//! Each rule reads a record and the time, and returns immediately. A rule changes nothing. If it
//! returns a [`next`](Transition::next) record, the store replaces the record, provided that the
//! stored record is still the one that the rule read. Otherwise the rule is applied to the new
//! record. A store therefore only has to compare and replace, and all stores follow the same rules.
//!
//! Approving a call and claiming it are one transition: there is no record that is approved but has
//! no lease holder. The exception is a call that the provider executes, in a chat: its approval is
//! granted when the user answers, and claimed when a model call sends it.

use std::time::Duration;

use serde::Serialize;

use crate::UserText;

use super::{
    ApprovalRecord, ApprovalState, Claim, LeaseHolderId, OnNewMessage, RecordedDecision,
    RevocationReason, ToolOutcome, UnixMillis,
};

/// The output of a rule and the next state of the record.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Transition<T> {
    /// The output of the rule.
    pub output: T,
    /// The record that replaces the current one, or `None` if the record does not change.
    pub next: Option<ApprovalRecord>,
}

/// What a decision on a record has done: the output of [`ApprovalRecord::claim`], [`ApprovalRecord::lapse`] and
/// [`ApprovalRecord::deny`]. [`ApprovalRecord::outcome_at`] of the record afterwards is the outcome of the call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Stepped {
    /// The claim is granted: the caller must run the tool.
    Granted(Claim),
    /// The decision counts, by this request or by an earlier one, and the caller must not run the tool.
    Counts,
    /// The decision does not count.
    Refused(RejectionReason),
}

/// The output of a request from a lease holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseResult {
    /// The transition was applied.
    Stored,
    /// The lease is lost: other callers were given an unknown outcome, or another attempt has
    /// started.
    Lost,
}

/// The reason why an approval response does not count.
///
/// The reason is for the audit only. A client that learns more than that the call was not executed
/// can probe which approvals exist. Only the user for whose call an approval id was sealed learns that its
/// record is lost ([`DeferredOutcome::Forgotten`](super::DeferredOutcome::Forgotten)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RejectionReason {
    /// This server did not seal the approval id, or the key that sealed it is no longer valid.
    Forged,
    /// The approval id does not open and looks like one of a newer version of this crate: upgrade
    /// the server.
    ///
    /// Nothing verifies such an id, so a client may have forged it.
    NewerFormat,
    /// The record no longer exists.
    NotFound,
    /// The record belongs to another principal or another chat.
    WrongPrincipalOrChat,
    /// The response is for another call than the approval request, or the record was changed.
    BindingMismatch,
    /// The client shows another input than the one that the user was asked about.
    InputChanged,
    /// The response arrived after the request had expired.
    Expired,
    /// The user sent another message instead of a response.
    Superseded,
    /// The approval arrived with or after a newer message of the user.
    Lapsed,
    /// The request was revoked.
    Revoked(RevocationReason),
    /// The request was already decided, with the other decision or by another principal.
    AlreadyDecided,
    /// The requester approved a call on which others decide.
    SelfApproval,
    /// The approver changed the input, and the tool does not accept the change.
    InputNotAccepted,
}

words! {
    unlisted RejectionReason {
        Forged "forged" NewerFormat "newer-format" NotFound "not-found"
        WrongPrincipalOrChat "wrong-principal-or-chat" BindingMismatch "binding-mismatch"
        InputChanged "input-changed" Expired "expired" Superseded "superseded" Lapsed "lapsed"
        Revoked(_) "revoked" AlreadyDecided "already-decided" SelfApproval "self-approval"
        InputNotAccepted "input-not-accepted"
    }
}

impl ApprovalRecord {
    /// Approves the call and claims the record, unless the request was already decided.
    ///
    /// The approver may [change](RecordedDecision::changed_input) what is
    /// [`editable`](Self::editable) of the input. A change that is not allowed changes nothing, and the
    /// request stays pending.
    ///
    /// A repeated approval by the same principal gets the result of the first approval, also if it
    /// changes the input in another way. The holder
    /// of a current lease gets its claim again, for example if the first response was lost.
    ///
    /// After the end of the lease, an idempotent tool is claimed again with the next attempt
    /// number, and any other tool has an unknown outcome.
    ///
    /// The record of a provider-executed tool stays claimed, because the outcome is not reported
    /// here.
    pub fn claim(
        &self,
        decision: &RecordedDecision,
        lease_holder: LeaseHolderId,
        lease: Duration,
    ) -> Transition<Stepped> {
        let now = decision.decided_at;
        let claimed = |decision: &RecordedDecision, fence| {
            let decision = decision.clone();
            let lease_until = now.after(lease);
            self.transition_to(
                Stepped::Granted(Claim { record: self.id, fence }),
                ApprovalState::Claimed { decision, lease_holder, fence, lease_until },
            )
        };
        let refused = |cause| self.unchanged(Stepped::Refused(cause));
        match &self.state {
            ApprovalState::Pending if self.expires_at <= now => self
                .transition_to(Stepped::Refused(RejectionReason::Expired), ApprovalState::Expired),
            ApprovalState::Pending if self.is_self_approval(&decision.decided_by) => {
                refused(RejectionReason::SelfApproval)
            }
            ApprovalState::Pending if !self.accepts_input_of(decision) => {
                refused(RejectionReason::InputNotAccepted)
            }
            ApprovalState::Pending => claimed(decision, 1),
            ApprovalState::Denied { .. } => refused(RejectionReason::AlreadyDecided),
            ApprovalState::Expired => refused(RejectionReason::Expired),
            ApprovalState::Superseded { .. } => refused(RejectionReason::Superseded),
            ApprovalState::Lapsed { .. } => refused(RejectionReason::Lapsed),
            ApprovalState::Revoked { cause, .. } => refused(RejectionReason::Revoked(*cause)),
            ApprovalState::Granted { decision: first }
            | ApprovalState::Claimed { decision: first, .. }
            | ApprovalState::Completed { decision: first, .. }
            | ApprovalState::OutcomeUnknown { decision: first }
                if first.decided_by != decision.decided_by =>
            {
                refused(RejectionReason::AlreadyDecided)
            }
            ApprovalState::Granted { decision: first } => claimed(first, 1),
            ApprovalState::Claimed { lease_holder: by, fence, lease_until, .. }
                if now < *lease_until =>
            {
                self.unchanged(if *by == lease_holder {
                    Stepped::Granted(Claim { record: self.id, fence: *fence })
                } else {
                    Stepped::Counts
                })
            }
            ApprovalState::Claimed { .. } if self.provider_executed => {
                self.unchanged(Stepped::Counts)
            }
            ApprovalState::Claimed { decision: first, fence, .. } if self.idempotent => {
                claimed(first, fence + 1)
            }
            ApprovalState::Claimed { decision: first, .. } => {
                let decision = first.clone();
                self.transition_to(Stepped::Counts, ApprovalState::OutcomeUnknown { decision })
            }
            ApprovalState::Completed { .. } | ApprovalState::OutcomeUnknown { .. } => {
                self.unchanged(Stepped::Counts)
            }
        }
    }

    /// Approves a call that the provider executes, without claiming it, unless the request was
    /// already decided. The model call that sends the approval claims it with
    /// [`forward`](Self::forward).
    ///
    /// Until then no time passes for the approval, and a repeated approval by the same principal is
    /// granted again: the server that was granted it first may have failed before it stored the
    /// grant. Afterwards the result is that of [`claim`](Self::claim).
    #[cfg(feature = "approvals")]
    pub(crate) fn grant(
        &self,
        decision: &RecordedDecision,
        lease_holder: LeaseHolderId,
    ) -> Transition<Stepped> {
        let claimed = self.claim(decision, lease_holder, Duration::ZERO);
        if !matches!(claimed.output, Stepped::Granted(_)) {
            return claimed;
        }
        let granted = Stepped::Granted(Claim { record: self.id, fence: 0 });
        match &self.state {
            ApprovalState::Pending => {
                let decision = decision.clone();
                self.transition_to(granted, ApprovalState::Granted { decision })
            }
            ApprovalState::Granted { .. } => self.unchanged(granted),
            _ => claimed,
        }
    }

    /// Records that an approval arrived with or after a newer message of the user. The tool does not
    /// run. If a newer message [denies](OnNewMessage::Deny) the request, the request is denied.
    ///
    /// A request that is not pending any more keeps its state, and its outcome stands.
    pub fn lapse(&self, decision: &RecordedDecision) -> Transition<Stepped> {
        match &self.state {
            ApprovalState::Pending if self.expires_at <= decision.decided_at => self
                .transition_to(Stepped::Refused(RejectionReason::Expired), ApprovalState::Expired),
            ApprovalState::Pending if self.on_new_message == OnNewMessage::Deny => self
                .transition_to(
                    Stepped::Refused(RejectionReason::AlreadyDecided),
                    self.denied_by_message(decision.decided_at),
                ),
            ApprovalState::Pending => self.transition_to(
                Stepped::Refused(RejectionReason::Lapsed),
                ApprovalState::Lapsed { decision: decision.clone() },
            ),
            ApprovalState::Expired => self.unchanged(Stepped::Refused(RejectionReason::Expired)),
            _ => self.unchanged(Stepped::Refused(RejectionReason::AlreadyDecided)),
        }
    }

    /// Records that the user sent another message instead of a response, unless the request is not
    /// pending any more. If a newer message [denies](OnNewMessage::Deny) the request, the request is
    /// denied, otherwise superseded.
    pub fn supersede(&self, at: UnixMillis) -> Transition<()> {
        match &self.state {
            ApprovalState::Pending if self.expires_at <= at => {
                self.transition_to((), ApprovalState::Expired)
            }
            ApprovalState::Pending if self.on_new_message == OnNewMessage::Deny => {
                self.transition_to((), self.denied_by_message(at))
            }
            ApprovalState::Pending => self.transition_to((), ApprovalState::Superseded { at }),
            _ => self.unchanged(()),
        }
    }

    /// Denies the call. A denial is final for this call.
    pub fn deny(&self, decision: &RecordedDecision) -> Transition<Stepped> {
        let refused = |cause| self.unchanged(Stepped::Refused(cause));
        match &self.state {
            ApprovalState::Pending if self.expires_at <= decision.decided_at => self
                .transition_to(Stepped::Refused(RejectionReason::Expired), ApprovalState::Expired),
            ApprovalState::Pending => {
                let decision = decision.clone();
                self.transition_to(Stepped::Counts, ApprovalState::Denied { decision })
            }
            ApprovalState::Denied { .. } => self.unchanged(Stepped::Counts),
            ApprovalState::Expired => refused(RejectionReason::Expired),
            ApprovalState::Superseded { .. } => refused(RejectionReason::Superseded),
            ApprovalState::Revoked { cause, .. } => refused(RejectionReason::Revoked(*cause)),
            ApprovalState::Lapsed { .. }
            | ApprovalState::Granted { .. }
            | ApprovalState::Claimed { .. }
            | ApprovalState::Completed { .. }
            | ApprovalState::OutcomeUnknown { .. } => refused(RejectionReason::AlreadyDecided),
        }
    }

    /// Extends the lease of a running tool to `lease` after `now`.
    pub fn renew(
        &self,
        claim: &Claim,
        lease: Duration,
        now: UnixMillis,
    ) -> Transition<LeaseResult> {
        match &self.state {
            ApprovalState::Claimed { decision, lease_holder, fence, .. }
                if *fence == claim.fence =>
            {
                let state = ApprovalState::Claimed {
                    decision: decision.clone(),
                    lease_holder: *lease_holder,
                    fence: *fence,
                    lease_until: now.after(lease),
                };
                self.transition_to(LeaseResult::Stored, state)
            }
            _ => self.unchanged(LeaseResult::Lost),
        }
    }

    /// Records that the provider gets an approval now that was [granted](Self::grant), from this lease
    /// holder. One lease holder can send it, and may repeat the request.
    #[cfg(feature = "approvals")]
    pub(crate) fn forward(
        &self,
        sender: LeaseHolderId,
        lease: Duration,
        now: UnixMillis,
    ) -> Transition<LeaseResult> {
        match &self.state {
            ApprovalState::Granted { decision } => {
                let state = ApprovalState::Claimed {
                    decision: decision.clone(),
                    lease_holder: sender,
                    fence: 1,
                    lease_until: now.after(lease),
                };
                self.transition_to(LeaseResult::Stored, state)
            }
            // The response to the first request was lost.
            ApprovalState::Claimed { lease_holder, .. } if *lease_holder == sender => {
                self.unchanged(LeaseResult::Stored)
            }
            _ => self.unchanged(LeaseResult::Lost),
        }
    }

    /// Stores the outcome of a tool that has run.
    ///
    /// The outcome must be stored before it is reported to the user or the model.
    pub fn complete(
        &self,
        claim: &Claim,
        outcome: &ToolOutcome,
        now: UnixMillis,
    ) -> Transition<LeaseResult> {
        match &self.state {
            ApprovalState::Claimed { decision, fence, .. } if *fence == claim.fence => {
                let state = ApprovalState::Completed {
                    decision: decision.clone(),
                    fence: *fence,
                    outcome: outcome.clone(),
                    at: now,
                };
                self.transition_to(LeaseResult::Stored, state)
            }
            // The response to the first `complete` was lost.
            ApprovalState::Completed { fence, outcome: stored, .. }
                if *fence == claim.fence && stored == outcome =>
            {
                self.unchanged(LeaseResult::Stored)
            }
            _ => self.unchanged(LeaseResult::Lost),
        }
    }

    /// Gives up a claim without an outcome: the tool may or may not have run.
    ///
    /// An idempotent tool can be claimed again at once. The outcome of any other tool becomes
    /// unknown. The record of a provider-executed tool does not change.
    pub fn abandon(&self, claim: &Claim, now: UnixMillis) -> Transition<LeaseResult> {
        match &self.state {
            ApprovalState::Claimed { decision, lease_holder, fence, .. }
                if *fence == claim.fence && !self.provider_executed =>
            {
                let decision = decision.clone();
                let lease_holder = *lease_holder;
                let fence = *fence;
                let state = if self.idempotent {
                    let lease_until = now;
                    ApprovalState::Claimed { decision, lease_holder, fence, lease_until }
                } else {
                    ApprovalState::OutcomeUnknown { decision }
                };
                self.transition_to(LeaseResult::Stored, state)
            }
            _ => self.unchanged(LeaseResult::Lost),
        }
    }

    /// Revokes the approval request. The output is `false` if the request is no longer pending.
    ///
    /// If the lease of a claimed call has ended, the outcome becomes unknown. The call is then not
    /// run again, even if its tool is idempotent. The record of a provider-executed tool does not
    /// change.
    pub fn revoke(&self, cause: RevocationReason, at: UnixMillis) -> Transition<bool> {
        match &self.state {
            ApprovalState::Pending if self.expires_at <= at => {
                self.transition_to(false, ApprovalState::Expired)
            }
            ApprovalState::Pending => {
                self.transition_to(true, ApprovalState::Revoked { cause, at })
            }
            ApprovalState::Claimed { decision, lease_until, .. }
                if *lease_until <= at && !self.provider_executed =>
            {
                self.transition_to(
                    false,
                    ApprovalState::OutcomeUnknown { decision: decision.clone() },
                )
            }
            _ => self.unchanged(false),
        }
    }

    /// Applies the passage of time.
    ///
    /// A pending request expires. A claimed call whose lease has ended gets an unknown outcome,
    /// unless the tool is idempotent or the provider executes it.
    pub fn expire(&self, now: UnixMillis) -> Transition<()> {
        match &self.state {
            ApprovalState::Pending if self.expires_at <= now => {
                self.transition_to((), ApprovalState::Expired)
            }
            ApprovalState::Claimed { decision, lease_until, .. }
                if *lease_until <= now && !self.idempotent && !self.provider_executed =>
            {
                self.transition_to((), ApprovalState::OutcomeUnknown { decision: decision.clone() })
            }
            _ => self.unchanged(()),
        }
    }

    /// Returns the state of a request that a newer message of its requester has denied.
    fn denied_by_message(&self, at: UnixMillis) -> ApprovalState {
        let reason = Some(UserText::DeniedByMessage.to_string());
        let by_requester = RecordedDecision::new(self.requester.clone(), at);
        ApprovalState::Denied { decision: RecordedDecision { reason, ..by_requester } }
    }

    fn accepts_input_of(&self, decision: &RecordedDecision) -> bool {
        let changed = decision.changed_input.as_ref();
        changed.is_none_or(|changed| self.editable.check(&self.input, changed).is_ok())
    }

    fn transition_to<T>(&self, output: T, state: ApprovalState) -> Transition<T> {
        Transition { output, next: Some(ApprovalRecord { state, ..self.clone() }) }
    }

    fn unchanged<T>(&self, output: T) -> Transition<T> {
        Transition { output, next: None }
    }
}

#[cfg(all(test, feature = "approvals"))]
mod tests {
    use super::*;
    use crate::approval::{
        DeferredOutcome, DefinitionDigest, EditableInput, KeyRing, NewApprovalRequest,
        OnNewMessage, Principal, RecordId,
    };
    use crate::json::Json;

    const MINUTE: Duration = Duration::from_secs(60);

    fn holder(number: u8) -> LeaseHolderId {
        LeaseHolderId::from_bytes([number; 16])
    }

    fn approval(by: &str, at: UnixMillis) -> RecordedDecision {
        RecordedDecision::new(Principal::new(by), at)
    }

    fn provider_executed() -> (ApprovalRecord, UnixMillis) {
        let now = UnixMillis(1_000_000_000_000);
        let request = NewApprovalRequest {
            requester: Principal::new("ada"),
            chat_id: "chat".into(),
            message_id: "message".into(),
            tool_call_id: "call".into(),
            tool_name: "tool".into(),
            definition: DefinitionDigest::new("tool", "", &Json::null()),
            input: Json::null(),
            provider_executed: true,
            idempotent: false,
            on_new_message: OnNewMessage::default(),
            decided_by_others: false,
            editable: EditableInput::Nothing,
            description: None,
            approval_ttl: MINUTE * 60,
        };
        let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
        (request.into_record(&keys, RecordId::from_bytes([1; 16]), now).unwrap(), now)
    }

    #[test]
    fn an_approval_for_a_provider_is_granted_again_until_it_is_sent() {
        let (record, now) = provider_executed();
        let granted = record.grant(&approval("ada", now), holder(1));
        let record = granted.next.unwrap();
        let later = now.after(MINUTE * 100);
        let again = record.grant(&approval("ada", later), holder(2));
        assert_eq!((again.output, again.next), (granted.output, None));
        assert_eq!(record.outcome_at(later), Some(DeferredOutcome::ForwardedToProvider));
        assert!(record.granted().is_some());
        let other = Stepped::Refused(RejectionReason::AlreadyDecided);
        assert_eq!(record.grant(&approval("bob", later), holder(2)).output, other);
        let denied = Stepped::Refused(RejectionReason::AlreadyDecided);
        assert_eq!(record.deny(&approval("ada", later)).output, denied);
    }

    #[test]
    fn a_granted_approval_is_sent_by_one_sender_which_may_repeat_its_request() {
        let (record, now) = provider_executed();
        let granted = record.grant(&approval("ada", now), holder(1));
        assert!(matches!(granted.output, Stepped::Granted(_)), "{granted:?}");
        let later = now.after(MINUTE * 100);
        let record = granted.next.unwrap();
        let sent = record.forward(holder(2), MINUTE, later);
        assert_eq!(sent.output, LeaseResult::Stored);
        let record = sent.next.unwrap();
        assert_eq!(record.granted(), None);
        let repeated = record.forward(holder(2), MINUTE, later);
        assert_eq!((repeated.output, repeated.next), (LeaseResult::Stored, None));
        assert_eq!(record.forward(holder(3), MINUTE, later).output, LeaseResult::Lost);
        // The outcome is unknown after the lease of the sender, and not before.
        let at = |time| record.grant(&approval("ada", time), holder(1)).output;
        assert_eq!(at(later), Stepped::Counts);
        assert_eq!(record.outcome_at(later), Some(DeferredOutcome::ForwardedToProvider));
        assert_eq!(at(later.after(MINUTE)), Stepped::Counts);
        let unknown = Some(DeferredOutcome::OutcomeUnknown);
        assert_eq!(record.outcome_at(later.after(MINUTE)), unknown);
    }

    /// A record whose call is claimed for a minute, and its claim.
    fn claimed(idempotent: bool) -> (ApprovalRecord, Claim, UnixMillis) {
        let (mut record, now) = provider_executed();
        (record.provider_executed, record.idempotent) = (false, idempotent);
        let claimed = record.claim(&approval("ada", now), holder(1), MINUTE);
        let Stepped::Granted(claim) = claimed.output else { panic!("{claimed:?}") };
        (claimed.next.unwrap(), claim, now)
    }

    #[test]
    fn a_claim_is_given_up_by_its_holder_alone_and_by_no_provider() {
        let (record, claim, now) = claimed(false);
        let other = Claim { fence: claim.fence + 1, ..claim };
        assert_eq!(record.abandon(&other, now).output, LeaseResult::Lost);
        let of_provider = ApprovalRecord { provider_executed: true, ..record.clone() };
        assert_eq!(of_provider.abandon(&claim, now).output, LeaseResult::Lost);
        let unknown = record.abandon(&claim, now).next.unwrap();
        assert!(matches!(unknown.state, ApprovalState::OutcomeUnknown { .. }), "{unknown:?}");
    }

    #[test]
    fn nobody_approves_a_request_of_their_own_that_others_decide() {
        let (mut record, now) = provider_executed();
        (record.provider_executed, record.decided_by_others) = (false, true);
        let own = record.claim(&approval("ada", now), holder(1), MINUTE);
        let refused = Stepped::Refused(RejectionReason::SelfApproval);
        assert_eq!((own.output, own.next), (refused, None));
        let other = record.claim(&approval("bob", now), holder(1), MINUTE);
        assert!(matches!(other.output, Stepped::Granted(_)), "{other:?}");
    }

    #[cfg(feature = "approvals")]
    #[test]
    fn only_an_idempotent_call_whose_server_was_lost_is_executed_again() {
        for (idempotent, minutes, is_again) in
            [(true, 0, false), (true, 1, true), (true, 2, true), (false, 2, false)]
        {
            let (record, _, now) = claimed(idempotent);
            let at = now.after(MINUTE * minutes);
            assert_eq!(record.can_be_executed_again(at), is_again, "{idempotent} {minutes}");
            let of_provider = ApprovalRecord { provider_executed: true, ..record };
            assert!(!of_provider.can_be_executed_again(at), "{idempotent} {minutes}");
        }
        let (pending, now) = provider_executed();
        assert!(!pending.can_be_executed_again(now.after(MINUTE * 100)));
    }
}
