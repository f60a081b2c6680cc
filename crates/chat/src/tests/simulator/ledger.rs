//! [`Ledger`]: the approvals of the conversation, with the transitions of the real ledger.

use std::collections::BTreeMap;

use crate::conversation::ReceivedResult;
use ui_message_stream::approval::{DeferredOutcome, PendingToolCall, RecordId, ToolOutcome};
use ui_message_stream::id::{ApprovalId, MessageId, RunId, ToolCallId};
use ui_message_stream::json::Json;

#[derive(Default)]
pub(super) struct Ledger {
    approvals: BTreeMap<ApprovalId, Approval>,
    /// The number of the current step.
    pub(super) step: u64,
}

#[derive(Debug)]
pub(super) struct Approval {
    /// The message that the run was writing.
    pub(super) message: MessageId,
    call: ToolCallId,
    is_provider_executed: bool,
    /// Whether a new message of the user closes the request.
    pub(super) lapses: bool,
    state: State,
    /// The step in which the request got its last state.
    changed: u64,
}

#[derive(Clone, PartialEq, Debug)]
enum State {
    Asked,
    /// A turn executes the call.
    Claimed {
        until: u64,
    },
    /// Approved for a provider, and not sent.
    Granted,
    /// This run sends the approval to the provider.
    Sent {
        by: RunId,
        until: u64,
    },
    Executed,
    Denied,
    Superseded,
    Lapsed,
    Revoked,
    Unknown,
}

/// What follows the answer to an approval request.
pub(super) enum Answered {
    /// The call has this result.
    Result(Option<Box<ReceivedResult>>),
    /// The turn executes the call.
    Execute,
    /// Another turn executes the call. The ledger is asked again later.
    Wait,
}

impl Ledger {
    pub(super) fn ask(
        &mut self,
        id: &ApprovalId,
        message: &MessageId,
        call: &ToolCallId,
        lapses: bool,
    ) {
        let message = message.clone();
        let call = call.clone();
        let state = State::Asked;
        let is_provider_executed = call.starts_with('p');
        let changed = self.step;
        let approval = Approval { message, call, is_provider_executed, lapses, state, changed };
        self.approvals.insert(id.clone(), approval);
    }

    /// Returns the call of a request.
    pub(super) fn call(&self, id: &ApprovalId) -> Option<&ToolCallId> {
        self.approvals.get(id).map(|approval| &approval.call)
    }

    /// Returns the requests that wait for an answer.
    pub(super) fn asked(&self) -> impl Iterator<Item = (&ApprovalId, &Approval)> {
        self.approvals.iter().filter(|(_, approval)| approval.state == State::Asked)
    }

    pub(super) fn is_asked(&self, id: &ApprovalId) -> bool {
        self.approvals.get(id).is_some_and(|approval| approval.state == State::Asked)
    }

    /// Returns whether the call must not run any more.
    pub(super) fn is_closed(&self, id: &ApprovalId) -> bool {
        let closed = [State::Denied, State::Superseded, State::Lapsed, State::Revoked];
        self.approvals.get(id).is_some_and(|approval| closed.contains(&approval.state))
    }

    /// Returns whether a user message after one of these messages closes the request.
    pub(super) fn lapses_after(
        &self,
        id: &ApprovalId,
        is_followed: impl Fn(&MessageId) -> bool,
    ) -> bool {
        self.approvals
            .get(id)
            .is_some_and(|approval| approval.lapses && is_followed(&approval.message))
    }

    pub(super) fn lapses(&self, id: &ApprovalId) -> bool {
        self.approvals.get(id).is_some_and(|approval| approval.lapses)
    }

    pub(super) fn supersede(&mut self, id: &ApprovalId, now: u64) -> Option<ReceivedResult> {
        self.close(id, State::Superseded);
        self.decided(id, now)
    }

    /// Stores an approval that arrives with a newer message.
    pub(super) fn lapse(&mut self, id: &ApprovalId, now: u64) -> Option<ReceivedResult> {
        self.close(id, State::Lapsed);
        self.decided_by_answer(id, now)
    }

    /// Revokes those of the open requests of which this is true.
    pub(super) fn revoke(&mut self, is_revoked: impl Fn(&ApprovalId, &Approval) -> bool) {
        for (id, approval) in &mut self.approvals {
            if approval.state == State::Asked && is_revoked(id, approval) {
                approval.set(State::Revoked, self.step);
            }
        }
    }

    fn close(&mut self, id: &ApprovalId, state: State) {
        if let Some(approval) =
            self.approvals.get_mut(id).filter(|approval| approval.state == State::Asked)
        {
            approval.set(state, self.step);
        }
    }

    /// Stores an answer. The first one counts.
    pub(super) fn answer(&mut self, id: &ApprovalId, is_approved: bool, now: u64) -> Answered {
        let Some(approval) = self.approvals.get_mut(id) else { return Answered::Result(None) };
        let is_provider_executed = approval.is_provider_executed;
        let state = match (&approval.state, is_approved) {
            (State::Asked, false) => State::Denied,
            (State::Asked, true) if is_provider_executed => State::Granted,
            (State::Asked, true) => {
                approval.set(State::Claimed { until: now + LEASE }, self.step);
                return Answered::Execute;
            }
            (State::Claimed { until }, _) if *until <= now => State::Unknown,
            (state, _) => state.clone(),
        };
        approval.set(state, self.step);
        self.last_known(id, is_approved, now)
    }

    /// Returns what the stored state of a request says about an answer to it. The result is not final if
    /// the request is open: it is not known whether the answer will be applied.
    pub(super) fn last_known(&self, id: &ApprovalId, is_approved: bool, now: u64) -> Answered {
        let Some(approval) = self.approvals.get(id) else { return Answered::Result(None) };
        let denied = DeferredOutcome::Denied { reason: None };
        let state = &approval.state;
        let outcome = approval.outcome(now);
        let (shown, outcome) = match (state, is_approved) {
            (State::Claimed { .. }, _) => return Answered::Wait,
            (State::Asked, true) => (None, Some(DeferredOutcome::OutcomeUnknown)),
            (State::Asked, false) => (None, Some(denied)),
            (State::Denied, true) => (Some(DeferredOutcome::Rejected), outcome),
            (State::Denied, false) if approval.is_provider_executed => (None, Some(forward(false))),
            // The page shows the decision of its user.
            (State::Superseded | State::Lapsed | State::Revoked, false) => (Some(denied), outcome),
            _ => (None, outcome),
        };
        let received = outcome.map(|outcome| {
            let mut received = approval.received_by_answer(id, outcome);
            received.result.is_final = *state != State::Asked;
            Box::new(ReceivedResult { shown, ..received })
        });
        Answered::Result(received)
    }

    /// Stores that a call was executed.
    pub(super) fn execute(&mut self, id: &ApprovalId, now: u64) -> Option<ReceivedResult> {
        if let Some(approval) = self.approvals.get_mut(id)
            && let State::Claimed { .. } = approval.state
        {
            approval.set(State::Executed, self.step);
        }
        self.decided_by_answer(id, now)
    }

    /// Claims an approval for the next model call of a run. Returns whether this run may send it.
    pub(super) fn claim(&mut self, id: &ApprovalId, run: &RunId, now: u64) -> bool {
        let Some(approval) = self.approvals.get_mut(id) else { return false };
        if approval.state == State::Granted {
            approval.set(State::Sent { by: run.clone(), until: now + LEASE }, self.step);
        }
        matches!(&approval.state, State::Sent { by, .. } if by == run)
    }

    /// Returns the result of a call that was decided.
    pub(super) fn decided(&mut self, id: &ApprovalId, now: u64) -> Option<ReceivedResult> {
        let approval = self.approvals.get_mut(id)?;
        if matches!(approval.state, State::Claimed { until } if until <= now) {
            approval.set(State::Unknown, self.step);
        }
        Some(approval.received(id, approval.outcome(now)?))
    }

    fn decided_by_answer(&self, id: &ApprovalId, now: u64) -> Option<ReceivedResult> {
        let approval = self.approvals.get(id)?;
        Some(approval.received_by_answer(id, approval.outcome(now)?))
    }
}

impl Approval {
    fn set(&mut self, state: State, step: u64) {
        if self.state != state {
            (self.state, self.changed) = (state, step);
        }
    }

    fn outcome(&self, now: u64) -> Option<DeferredOutcome> {
        Some(match &self.state {
            State::Asked => return None,
            State::Claimed { .. } => {
                DeferredOutcome::Executing { record: RecordId::from_bytes([0; 16]) }
            }
            State::Granted => forward(true),
            State::Sent { until, .. } if now < *until => DeferredOutcome::ForwardedToProvider,
            // No server waits for the provider any more.
            State::Sent { .. } | State::Unknown => DeferredOutcome::OutcomeUnknown,
            State::Executed => {
                DeferredOutcome::Executed { outcome: ToolOutcome::Output(Json::string("ran")) }
            }
            State::Denied => DeferredOutcome::Denied { reason: None },
            State::Superseded => DeferredOutcome::Superseded,
            State::Lapsed => DeferredOutcome::Lapsed,
            State::Revoked => DeferredOutcome::Revoked,
        })
    }

    fn received(&self, id: &ApprovalId, outcome: DeferredOutcome) -> ReceivedResult {
        let id = id.clone();
        let call = self.call.clone();
        let call = PendingToolCall::awaiting_approval(id, call, "act", Json::null());
        ReceivedResult::new(call.with_outcome(outcome), None)
    }

    /// Returns the result of an answer, which names the message of the call.
    fn received_by_answer(&self, id: &ApprovalId, outcome: DeferredOutcome) -> ReceivedResult {
        let mut received = self.received(id, outcome);
        received.result.message_id = Some(self.message.clone());
        received
    }
}

fn forward(approved: bool) -> DeferredOutcome {
    DeferredOutcome::ForwardToProvider { approved, reason: None, claim: None }
}

/// The lease of a claim, and of a run, in milliseconds.
pub(super) const LEASE: u64 = 150;
