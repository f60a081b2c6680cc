//! The answers of users and clients, redeemed in a ledger that may fail.

use super::driver::{Errand, Redemption};
use super::effects::{Effects, Fault};
use super::ledger::Answered;
use super::step::Step;
use super::users::outcome_of;
use crate::approval::{DeferredOutcome, PendingToolCall, ResumePlan};
use crate::chat::conversation::{Chat, ReceivedResult};
use crate::chat::turn::machine::Input;
use crate::id::{ApprovalId, MessageId};

/// The ledger has failed, and the answers are not redeemed.
pub(super) struct NotRedeemed;

impl Step<'_> {
    fn fault(&mut self) -> Fault {
        let Step { world, random, at } = self;
        Effects { world, random, at: *at }.fault()
    }

    /// Redeems the answers of a plan: first the requests that a newer message closes, then denials
    /// and approvals that lapse, then the other approvals. `open` are the calls that a new message
    /// closes.
    pub(super) fn redeem(
        &mut self,
        plan: &ResumePlan,
        chat: &Chat,
        open: Option<Vec<PendingToolCall>>,
    ) -> Result<(), NotRedeemed> {
        if self.fault() != Fault::None {
            return Err(NotRedeemed);
        }
        let chat = match plan.is_from_decisions() || plan.unverified_outputs().next().is_some() {
            true => self.world.with_live_log(chat),
            false => chat.clone(),
        };
        self.world.ledger.name_calls(|approval| {
            // A page names the calls that it answers.
            let mut answers = plan.unverified_responses().filter(|_| !plan.is_from_decisions());
            let of_page = answers.find(|it| it.approval_id == *approval).map(|it| &it.tool_call_id);
            of_page.or_else(|| chat.call_of_approval(approval))
        });
        let is_new_message = open.is_some();
        let is_followed = |id: &MessageId| chat.is_followed_by_user(id);
        let mut answers: Vec<(ApprovalId, bool)> =
            plan.unverified_responses().map(|it| (it.approval_id.clone(), it.approved)).collect();
        if is_new_message {
            answers.retain(|(id, _)| self.world.ledger.is_asked(id));
        }
        let closed = open.iter().flatten().filter_map(|call| call.approval_id.as_ref());
        let closed: Vec<&ApprovalId> = closed.collect();
        let asked = self.world.ledger.asked().filter(|(id, approval)| {
            let is_closed = closed.contains(id) || is_followed(&approval.message);
            is_closed && approval.lapses && !answers.iter().any(|(answered, _)| answered == *id)
        });
        let superseded: Vec<ApprovalId> = asked.map(|(id, _)| id.clone()).collect();
        let mut known = self.supersede(superseded)?;
        known.extend(client_results(&chat, plan, is_new_message));
        // Claims come last, so that a ledger that fails before has granted none.
        let ledger = &self.world.ledger;
        let is_late = |id: &ApprovalId| {
            is_new_message && ledger.lapses(id) || ledger.lapses_after(id, is_followed)
        };
        let (late, answers): (Vec<_>, Vec<_>) = answers
            .into_iter()
            .partition(|(id, is_approved)| ledger.is_asked(id) && *is_approved && is_late(id));
        let (claims, denials): (Vec<_>, Vec<_>) =
            answers.into_iter().partition(|(_, is_approved)| *is_approved);
        for (id, _) in late {
            known.extend(self.lapse(&id)?);
        }
        let answers: Vec<_> = denials.into_iter().chain(claims).collect();
        let driver = &mut self.world.drivers[self.at];
        let redemption = driver.redemptions.len();
        let (left, executing) = (answers.len(), Vec::new());
        driver.redemptions.push(Redemption { open, left, known, executing });
        if answers.is_empty() {
            self.report(redemption);
        }
        let answers = answers.into_iter().map(|(approval, is_approved)| Errand::Answer {
            approval,
            is_approved,
            redemption,
        });
        self.world.drivers[self.at].errands.extend(answers);
        Ok(())
    }

    /// Closes the requests that have no answer.
    fn supersede(&mut self, ids: Vec<ApprovalId>) -> Result<Vec<ReceivedResult>, NotRedeemed> {
        let mut results = Vec::new();
        for id in ids {
            let fault = self.fault();
            if fault != Fault::Before {
                results.extend(self.world.ledger.supersede(&id, self.world.now));
                self.world.counts.closed += 1;
            }
            if fault != Fault::None {
                return Err(NotRedeemed);
            }
        }
        Ok(results)
    }

    /// Stores an approval that lapses.
    fn lapse(&mut self, id: &ApprovalId) -> Result<Option<ReceivedResult>, NotRedeemed> {
        let fault = self.fault();
        if fault == Fault::Before {
            return Err(NotRedeemed);
        }
        self.world.counts.closed += 1;
        let result = self.world.ledger.lapse(id, self.world.now);
        if fault == Fault::None { Ok(result) } else { Err(NotRedeemed) }
    }

    /// Sends an answer to the ledger.
    pub(super) fn answer(&mut self, approval: ApprovalId, is_approved: bool, redemption: usize) {
        let is_asked = self.world.ledger.is_asked(&approval);
        if is_approved && is_asked && self.world.drivers[self.at].followed.contains(&approval) {
            self.world.violated(format!("{approval:?} is approved after a newer message"));
        }
        let fault = self.fault();
        let (now, ledger) = (self.world.now, &mut self.world.ledger);
        let last_known = ledger.last_known(&approval, is_approved, now);
        let answered = match fault {
            Fault::Before => last_known,
            Fault::After => {
                // An approved call stays claimed, and is not executed.
                ledger.answer(&approval, is_approved, now);
                last_known
            }
            Fault::None => ledger.answer(&approval, is_approved, now),
        };
        let at = &mut self.world.drivers[self.at].redemptions[redemption];
        match answered {
            Answered::Result(result) => at.known.extend(result.map(|result| *result)),
            Answered::Execute => at.executing.push(Errand::Execute { approval, redemption }),
            Answered::Wait => {
                at.executing.push(Errand::Await { approval, is_approved, redemption })
            }
        }
        at.left -= 1;
        if at.left == 0 {
            self.report(redemption);
        }
    }

    /// The ledger has received all answers. Reports the results that are known.
    fn report(&mut self, redemption: usize) {
        let fault = self.fault();
        let driver = &mut self.world.drivers[self.at];
        let at = &mut driver.redemptions[redemption];
        let (mut known, executing) =
            (std::mem::take(&mut at.known), std::mem::take(&mut at.executing));
        at.left = executing.len();
        let is_over = executing.is_empty();
        match at.open.take() {
            Some(_) if fault != Fault::None => {
                // The approved calls are executed all the same.
                let server = driver.server;
                self.world.leave(server, executing);
                self.deliver(Input::CallsNotClosed);
                return self.deliver(Input::Redeemed);
            }
            Some(mut open) => {
                driver.errands.extend(executing);
                let is_known = |call: &PendingToolCall| {
                    known.iter().any(|it| it.result.approval_id == call.approval_id)
                };
                open.retain(|call| !is_known(call));
                known.extend(self.world.decided(&open));
                self.deliver(Input::CallsClosed(known));
            }
            None => {
                driver.errands.extend(executing);
                for result in known {
                    self.deliver(Input::CallSettled(Box::new(result)));
                }
            }
        }
        if is_over {
            self.deliver(Input::Redeemed);
        }
    }

    /// Asks the ledger again for the result of a call that another turn executes.
    pub(super) fn ask_again(&mut self, approval: ApprovalId, is_approved: bool, redemption: usize) {
        let errand = match self.world.ledger.answer(&approval, is_approved, self.world.now) {
            Answered::Result(result) => Errand::Settle { result, redemption },
            Answered::Execute => Errand::Execute { approval, redemption },
            Answered::Wait => {
                self.world.pass(1);
                Errand::Await { approval, is_approved, redemption }
            }
        };
        self.world.drivers[self.at].errands.push(errand);
    }

    /// The result of an executed call was reported.
    pub(super) fn end_call(&mut self, redemption: usize) {
        let left = &mut self.world.drivers[self.at].redemptions[redemption].left;
        *left -= 1;
        if *left == 0 {
            self.deliver(Input::Redeemed);
        }
    }
}

/// Returns the results of the calls that the client executes.
fn client_results(chat: &Chat, plan: &ResumePlan, is_new_message: bool) -> Vec<ReceivedResult> {
    let mut results = Vec::new();
    for call in &chat.client_executed {
        let mut outputs = plan.unverified_outputs();
        let outcome = match outputs.find(|output| output.tool_call_id == call.tool_call_id) {
            Some(output) => outcome_of(output),
            None if is_new_message => DeferredOutcome::Superseded,
            None => continue,
        };
        results.push(ReceivedResult::new(call.with_outcome(outcome), None));
    }
    results
}
