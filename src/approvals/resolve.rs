//! Answers to outcomes: [`ChatApprovals::resolve`] asks the ledger, starts what was approved, and
//! says what became of everything.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use tokio::sync::oneshot;

use super::run::{Run, approved_call, await_outcome, begin};
use super::{AuditEvent, ChatApprovals, Happened, random, system_time};
use crate::approval::{
    Answered, ApprovalRecord, ApprovalState, Claim, ClaimAnswer, ClaimantId, DeferredOutcome,
    DeferredToolResult, DeferredToolResults, DenyAnswer, OpenCall, RecordId, Refusal, RefusalCause,
    ResumePlan, Revocation, Transition, UnixMillis, Wish,
};
use crate::id::ApprovalId;
use crate::json::Json;
use crate::ledger_store::{LedgerStoreError, change};

/// What became of the calls that were left open, and the tools that run because of it.
///
/// The tools run whether or not this is kept; [`next`](Self::next) waits for what came of them.
#[must_use = "the agent goes on with what came of the calls"]
pub struct Resolved {
    results: DeferredToolResults,
    descriptors: HashMap<ApprovalId, Json>,
    settled: VecDeque<DeferredToolResult>,
    running: Vec<(DeferredToolResult, oneshot::Receiver<DeferredOutcome>)>,
}

impl ChatApprovals {
    /// Redeems the answers that a request brings: denials are stored, and what was approved is
    /// claimed and begins to run.
    ///
    /// What was answered is settled, the rest stays pending; if the person wrote on instead, the rest
    /// is denied. An answer that does not count is refused, and consumes nothing. `left_to_client`
    /// are the calls that the client runs, from the host's own record.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the records cannot be read: nothing was decided then. What fails later
    /// is refused as if it did not count; it stays pending.
    ///
    /// # Cancel safety
    /// What was claimed runs and is stored even if this is dropped.
    pub async fn resolve(
        &self,
        plan: ResumePlan,
        left_to_client: &[OpenCall],
    ) -> Result<Resolved, LedgerStoreError> {
        let desk = &self.desk;
        let mut redemption = plan.redeem(&desk.keys, system_time());
        let ids: Vec<RecordId> = redemption.records().collect();
        let waiting = desk.ledger.pending(self.in_chat()).await?;
        let (now, mut records) = (waiting.now, HashMap::new());
        if !ids.is_empty() {
            let loaded = desk.ledger.load(&ids).await?.records.into_iter();
            records.extend(loaded.map(|kept| (kept.record.id, kept.record)));
        }
        for refusal in redemption.judge(&records, &self.chat, &self.principal, |record| {
            desk.may_decide(&self.principal, record)
        }) {
            self.tell_of(now, refusal);
        }
        let wishes = redemption.wishes();
        let mut unanswered = Vec::new();
        for kept in waiting.records {
            let is_answered = wishes.iter().any(|wish| wish.record == kept.record.id);
            let id = kept.record.approval_id(&desk.keys, now);
            unanswered.extend(id.filter(|_| !is_answered).map(|id| (kept.record, id)));
        }
        let mut begun = Vec::new();
        for wish in wishes {
            // There is one: what has no record was settled.
            if let Some(record) = records.get(&wish.record) {
                begun.push((wish.clone(), begin(self.clone(), wish, record.clone())));
            }
        }
        let mut runs: HashMap<RecordId, oneshot::Receiver<DeferredOutcome>> = HashMap::new();
        let mut descriptors = HashMap::new();
        let mut describe = |record: &ApprovalRecord| {
            let id = record.approval_id(&desk.keys, now);
            descriptors.extend(id.and_then(|id| Some((id, record.descriptor(now).ok()?))));
        };
        for (wish, run) in begun {
            let Run { answered, outcome } = run;
            if let Ok((record, answered)) = answered.await {
                if matches!(answered, Answered::Claim(ClaimAnswer::Won(_))) {
                    runs.insert(record.id, outcome);
                }
                describe(&record);
                redemption.answer(&wish, record, answered);
            }
        }
        let past = redemption.superseded(unanswered.iter().map(|(record, id)| (record, id)));
        let unanswered = self.close_unanswered(unanswered, &past).await;
        unanswered.iter().for_each(|(record, _)| describe(record));
        let results = redemption.settle(&unanswered, left_to_client);
        Ok(self.resolved(results, descriptors, runs))
    }

    /// Lets expire what nobody answered in time, and denies what the person wrote past.
    async fn close_unanswered(
        &self,
        unanswered: Vec<(ApprovalRecord, ApprovalId)>,
        past: &[RecordId],
    ) -> Vec<(ApprovalRecord, ApprovalId)> {
        let mut closed = Vec::new();
        for (record, id) in unanswered {
            let is_past = past.contains(&record.id);
            let changed = change(&*self.desk.ledger, record.id, |record, now| {
                if !is_past {
                    return record.expire(now);
                }
                let denied = record.deny(&self.decision(now, Some(WROTE_ON.to_owned())));
                Transition { answer: (), next: denied.next }
            });
            let now = match changed.await {
                Ok(Some((record, ()))) => record,
                Ok(None) => continue,
                Err(error) => {
                    tracing::error!(%error, "an unanswered approval stays as it is");
                    record.clone()
                }
            };
            match &now.state {
                ApprovalState::Expired if record.is_pending() => {
                    self.desk.tell(&now, &self.principal, Happened::Expired).await;
                }
                ApprovalState::Denied { decision } if record.is_pending() => {
                    let reason = decision.reason.clone();
                    self.desk.tell(&now, &self.principal, Happened::Denied { reason }).await;
                }
                // Somebody answered elsewhere, meanwhile.
                ApprovalState::Claimed { .. }
                | ApprovalState::Done { .. }
                | ApprovalState::Unknown { .. } => continue,
                _ => {}
            }
            closed.push((now, id));
        }
        closed
    }

    pub(super) async fn ask_ledger(
        &self,
        wish: &Wish,
        record: &ApprovalRecord,
    ) -> (ApprovalRecord, Answered) {
        let asked = if wish.approved {
            self.claim(wish, record).await.map(|(record, answer)| (record, Answered::Claim(answer)))
        } else {
            self.deny(wish).await.map(|(record, answer)| (record, Answered::Deny(answer)))
        };
        asked.unwrap_or_else(|error| {
            tracing::error!(record = %record.id, %error, "an answer could not be redeemed");
            let cause = RefusalCause::Forgotten;
            let answered = match wish.approved {
                true => Answered::Claim(ClaimAnswer::Refused(cause)),
                false => Answered::Deny(DenyAnswer::Refused(cause)),
            };
            (record.clone(), answered)
        })
    }

    async fn deny(&self, wish: &Wish) -> Result<(ApprovalRecord, DenyAnswer), LedgerStoreError> {
        let desk = &self.desk;
        let changed = change(&*desk.ledger, wish.record, |record, now| {
            let decision = self.decision(now, wish.reason.clone());
            let denied = record.deny(&decision);
            let is_new = denied.next.is_some();
            Transition { answer: (denied.answer, is_new), next: denied.next }
        });
        let Some((record, (answer, is_new))) = changed.await? else {
            return Err(LedgerStoreError::new("the record is gone"));
        };
        match answer {
            DenyAnswer::Denied if is_new => {
                let reason = wish.reason.clone();
                desk.tell(&record, &self.principal, Happened::Denied { reason }).await;
            }
            DenyAnswer::Denied => {}
            DenyAnswer::Refused(cause) => {
                desk.tell(&record, &self.principal, Happened::Refused { cause }).await;
            }
        }
        Ok((record, answer))
    }

    async fn claim(
        &self,
        wish: &Wish,
        record: &ApprovalRecord,
    ) -> Result<(ApprovalRecord, ClaimAnswer), LedgerStoreError> {
        let desk = &self.desk;
        if record.is_pending()
            && let Some(cause) = self.no_longer_permitted(wish, record).await
        {
            let revoked = change(&*desk.ledger, record.id, |record, now| record.revoke(cause, now));
            if let Some((record, true)) = revoked.await? {
                desk.tell(&record, &self.principal, Happened::Revoked { cause }).await;
                let refused = ClaimAnswer::Refused(RefusalCause::Revoked(cause));
                return Ok((record, refused));
            }
        }
        let claimant = ClaimantId::from_bytes(random());
        let ask = || {
            change(&*desk.ledger, wish.record, |record, now| {
                let decision = self.decision(now, wish.reason.clone());
                record.claim(&decision, claimant, desk.lease)
            })
        };
        // The same claimant may ask again where the answer was lost.
        let changed = match ask().await {
            Ok(changed) => changed,
            Err(_) => ask().await?,
        };
        let Some((record, answer)) = changed else {
            return Err(LedgerStoreError::new("the record is gone"));
        };
        let happened = match &answer {
            ClaimAnswer::Won(Claim { fence, .. }) => {
                let reason = wish.reason.clone();
                Some(Happened::Approved { fence: *fence, reason })
            }
            ClaimAnswer::Unknown => Some(Happened::OutcomeUnknown),
            ClaimAnswer::Refused(cause) => Some(Happened::Refused { cause: *cause }),
            ClaimAnswer::InFlight | ClaimAnswer::Done(_) => None,
        };
        if let Some(happened) = happened {
            desk.tell(&record, &self.principal, happened).await;
        }
        Ok((record, answer))
    }

    /// Why a call may not run any more, if it may not.
    async fn no_longer_permitted(
        &self,
        wish: &Wish,
        record: &ApprovalRecord,
    ) -> Option<Revocation> {
        let tool = self.desk.toolbox.tool(&record.tool_name);
        if tool.is_none_or(|tool| tool.definition != record.definition) {
            return Some(Revocation::DefinitionChanged);
        }
        let decision = self.decision(system_time(), wish.reason.clone());
        let call = approved_call(record, decision, None);
        (!self.desk.toolbox.permits(&call).await).then_some(Revocation::NotPermitted)
    }

    fn resolved(
        &self,
        results: DeferredToolResults,
        descriptors: HashMap<ApprovalId, Json>,
        mut runs: HashMap<RecordId, oneshot::Receiver<DeferredOutcome>>,
    ) -> Resolved {
        let (mut settled, mut running) = (VecDeque::new(), Vec::new());
        for result in results.results() {
            let run = match &result.outcome {
                DeferredOutcome::Approved { claim: Some(claim), .. } => runs.remove(&claim.record),
                DeferredOutcome::Running { record } => Some(await_outcome(self.clone(), *record)),
                _ => None,
            };
            match run {
                Some(run) => running.push((result.clone(), run)),
                None => settled.push_back(result.clone()),
            }
        }
        // The person's own no comes first: nothing has to be waited for.
        let is_denied =
            |result: &DeferredToolResult| matches!(result.outcome, DeferredOutcome::Denied { .. });
        settled.make_contiguous().sort_by_key(|result| !is_denied(result));
        Resolved { results, descriptors, settled, running }
    }

    fn tell_of(&self, at: UnixMillis, refusal: Refusal) {
        self.desk.audit.take(&AuditEvent {
            at,
            record: refusal.record,
            chat_id: Some(self.chat.clone()),
            principal: self.principal.clone(),
            tool_call_id: Some(refusal.tool_call_id),
            tool_name: Some(refusal.tool_name),
            input_digest: None,
            happened: Happened::Refused { cause: refusal.cause },
        });
    }
}

impl Resolved {
    /// What became of the calls at the moment of the answers: some of them run.
    pub fn results(&self) -> &DeferredToolResults {
        &self.results
    }

    /// What the person is to be shown beside a call now that it is answered. `None` of a call that
    /// nobody was asked about here.
    pub fn descriptor(&self, result: &DeferredToolResult) -> Option<Json> {
        self.descriptors.get(result.approval_id.as_ref().filter(|_| result.is_final)?).cloned()
    }

    /// The next call that came to its end: first what was denied or refused, then what ran, as it is
    /// done. `None` once there is none left.
    ///
    /// # Cancel safety
    /// Nothing is lost: it can be called again.
    pub async fn next(&mut self) -> Option<DeferredToolResult> {
        if let Some(result) = self.settled.pop_front() {
            return Some(result);
        }
        if self.running.is_empty() {
            return None;
        }
        let (at, outcome) = poll_fn(|cx| {
            for (at, (_, run)) in self.running.iter_mut().enumerate() {
                if let Poll::Ready(outcome) = Pin::new(run).poll(cx) {
                    return Poll::Ready((at, outcome));
                }
            }
            Poll::Pending
        })
        .await;
        let (mut result, _) = self.running.swap_remove(at);
        // A task that is gone without a word was ended with its runtime.
        result.outcome = outcome.unwrap_or(DeferredOutcome::OutcomeUnknown);
        Some(result)
    }
}

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolved").field("results", &self.results).finish_non_exhaustive()
    }
}

/// Why a call was denied that the person did not answer.
const WROTE_ON: &str = "the person wrote on instead of answering";
