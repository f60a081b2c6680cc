//! Answers to outcomes: [`ChatApprovals::resolve`] asks the ledger, starts what was approved, and
//! says what became of everything.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::time::Duration;

use tokio::sync::oneshot::{self, error::RecvError};
use tokio::task::JoinSet;

use super::run::{Run, approved_call, await_outcome, begin};
use super::{AuditEvent, Changed, ChatApprovals, Happened, random};
use crate::approval::{
    Answered, ApprovalRecord, ClaimAnswer, ClaimantId, Decision, DeferredOutcome,
    DeferredToolResult, DeferredToolResults, DenyAnswer, OpenCall, RecordId, Refusal, ResumePlan,
    Revocation, Transition, UnixMillis, Wish,
};
use crate::id::ApprovalId;
use crate::json::Json;
use crate::ledger_store::{LedgerStoreError, system_time};

/// What became of the calls that were left open, and the tools that run because of it.
///
/// The tools run whether or not this is kept; [`next`](Self::next) waits for what came of them.
#[must_use = "the agent goes on with what came of the calls"]
pub struct Resolved {
    results: DeferredToolResults,
    descriptors: HashMap<ApprovalId, Json>,
    settled: VecDeque<DeferredToolResult>,
    /// Waits for what runs: what ends first is first here.
    running: JoinSet<(DeferredToolResult, Result<DeferredOutcome, RecvError>)>,
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
    /// What was begun goes on if this is dropped: it is stored, what was claimed runs, and the audit
    /// is told. A yes for a provider is in what this returns, and lost with it.
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
            let record = refusal.record.and_then(|id| records.get(&id));
            self.tell_of(now, refusal, record);
        }
        let wishes = redemption.wishes();
        let mut unanswered = Vec::new();
        for kept in waiting.records.into_iter().filter(|kept| self.concerns(&kept.record)) {
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
        let mut descriptors = HashMap::new();
        let mut describe = |record: &ApprovalRecord| {
            let id = record.approval_id(&desk.keys, now);
            descriptors.extend(id.and_then(|id| Some((id, record.descriptor(now).ok()?))));
        };
        let mut runs = Runs::default();
        for (wish, run) in begun {
            let Run { answered, outcome } = run;
            if wish.approved {
                runs.approved.insert(wish.record);
            }
            if let Ok((record, answered)) = answered.await {
                if matches!(answered, Answered::Claim(ClaimAnswer::Won(_))) {
                    runs.begun.insert(record.id, outcome);
                }
                describe(&record);
                redemption.answer(&wish, record, answered);
            } else if let Some(record) = records.remove(&wish.record) {
                redemption.answer(&wish, record, Answered::Nothing);
            }
        }
        let past = redemption.superseded(unanswered.iter().map(|(record, id)| (record, id)));
        let approvals = self.clone();
        let closed = tokio::spawn(async move { approvals.close(unanswered, &past).await });
        // A panic in it is one of the store or of the audit; what was closed is closed.
        let unanswered = closed.await.unwrap_or_default();
        unanswered.iter().for_each(|(record, _)| describe(record));
        let results = redemption.settle(&unanswered, left_to_client);
        Ok(self.resolved(results, descriptors, runs))
    }

    /// Lets expire what nobody answered in time, and denies what the person wrote past.
    async fn close(
        &self,
        unanswered: Vec<(ApprovalRecord, ApprovalId)>,
        past: &[RecordId],
    ) -> Vec<(ApprovalRecord, ApprovalId)> {
        let mut closed = Vec::new();
        for (record, id) in unanswered {
            let is_past = past.contains(&record.id);
            let changed = self.desk.change(Some(&self.principal), record.id, |record, now| {
                if !is_past {
                    return record.expire(now);
                }
                let denied = record.deny(&self.decision(now, Some(WROTE_ON.to_owned())));
                Transition { answer: (), next: denied.next }
            });
            match changed.await {
                Ok(changed) => closed.extend(changed.map(|changed| (changed.record, id))),
                Err(error) => {
                    tracing::error!(%error, "an unanswered approval stays as it is");
                    closed.push((record, id));
                }
            }
        }
        closed
    }

    pub(super) async fn ask_ledger(
        &self,
        wish: &Wish,
        record: &ApprovalRecord,
    ) -> Result<(ApprovalRecord, Answered), LedgerStoreError> {
        let decide = |now| self.decision(now, wish.reason.clone());
        if wish.approved {
            let claimant = ClaimantId::from_bytes(random());
            let (record, answer) = self.claim(record, claimant, decide).await?;
            return Ok((record, Answered::Claim(answer)));
        }
        let denied = self
            .desk
            .change(Some(&self.principal), wish.record, |record, now| record.deny(&decide(now)));
        let Changed { record, answer, at, .. } = denied.await?.ok_or_else(gone)?;
        if let DenyAnswer::Refused(cause) = answer {
            self.desk.tell_at(at, &record, &self.principal, Happened::Refused { cause });
        }
        Ok((record, Answered::Deny(answer)))
    }

    /// Claims a call, for the first time or because the last claimant is gone, if it may still run.
    pub(super) async fn claim(
        &self,
        record: &ApprovalRecord,
        claimant: ClaimantId,
        decide: impl Fn(UnixMillis) -> Decision + Send + Sync,
    ) -> Result<(ApprovalRecord, ClaimAnswer), LedgerStoreError> {
        let (desk, principal) = (&self.desk, Some(&self.principal));
        let lease = match record.provider_executed {
            true => desk.lease.max(PROVIDERS_LEASE),
            false => desk.lease,
        };
        let claim = |record: &ApprovalRecord, now| record.claim(&decide(now), claimant, lease);
        let forbidden = self.no_longer_permitted(record, decide(system_time())).await;
        let Changed { record, answer, at, is_new } = if let Some(cause) = forbidden {
            let revoked =
                desk.change(principal, record.id, |record, now| record.revoke(cause, now));
            let Changed { record, at, is_new, .. } = revoked.await?.ok_or_else(gone)?;
            // At this very moment there is nothing left of it to be won.
            let answer = claim(&record, at).answer;
            Changed { record, answer, at, is_new }
        } else {
            let claimed = match desk.change(principal, record.id, claim).await {
                Ok(claimed) => claimed,
                // The same claimant may ask again where the answer was lost.
                Err(_) => desk.change(principal, record.id, claim).await?,
            };
            claimed.ok_or_else(gone)?
        };
        let happened = match &answer {
            // Won when the answer was lost.
            ClaimAnswer::Won(_) if !is_new => Happened::to_become(&record.state),
            ClaimAnswer::Refused(cause) => Some(Happened::Refused { cause: *cause }),
            _ => None,
        };
        if let Some(happened) = happened {
            desk.tell_at(at, &record, &self.principal, happened);
        }
        Ok((record, answer))
    }

    /// Why a call may not be claimed any more, if it may not.
    async fn no_longer_permitted(
        &self,
        record: &ApprovalRecord,
        decision: Decision,
    ) -> Option<Revocation> {
        // Whether its tool is still there, and takes the call, the provider says itself.
        if record.provider_executed {
            return None;
        }
        let is_first = record.is_pending();
        if !is_first && !record.idempotent {
            return None;
        }
        let is_seen = self.desk.toolbox.refresh(&record.tool_name).await;
        let tool = self.desk.toolbox.tool(&record.tool_name).filter(|_| is_seen);
        let tool = tool.filter(|tool| tool.definition == record.definition);
        if tool.is_none_or(|tool| !is_first && !tool.idempotent) {
            return Some(Revocation::DefinitionChanged);
        }
        let call = approved_call(record, decision, None);
        (!self.desk.toolbox.permits(&call).await).then_some(Revocation::NotPermitted)
    }

    fn resolved(
        &self,
        results: DeferredToolResults,
        descriptors: HashMap<ApprovalId, Json>,
        mut runs: Runs,
    ) -> Resolved {
        let (mut settled, mut running) = (VecDeque::new(), JoinSet::new());
        for result in results.results() {
            let run = match &result.outcome {
                DeferredOutcome::Approved { claim: Some(claim), .. } => {
                    runs.begun.remove(&claim.record)
                }
                DeferredOutcome::Running { record } => {
                    Some(await_outcome(self.clone(), *record, runs.approved.contains(record)))
                }
                _ => None,
            };
            match run {
                Some(run) => {
                    let result = result.clone();
                    running.spawn(async { (result, run.await) });
                }
                None => settled.push_back(result.clone()),
            }
        }
        // The person's own no comes first: nothing has to be waited for.
        let is_denied =
            |result: &DeferredToolResult| matches!(result.outcome, DeferredOutcome::Denied { .. });
        settled.make_contiguous().sort_by_key(|result| !is_denied(result));
        Resolved { results, descriptors, settled, running }
    }

    fn tell_of(&self, at: UnixMillis, refusal: Refusal, record: Option<&ApprovalRecord>) {
        self.desk.audit.take(&AuditEvent {
            at,
            record: refusal.record,
            chat_id: Some(self.chat.clone()),
            principal: self.principal.clone(),
            tool_call_id: Some(refusal.tool_call_id),
            tool_name: Some(refusal.tool_name),
            input_digest: record.map(ApprovalRecord::input_digest),
            requested_at: record.map(|record| record.requested_at),
            happened: Happened::Refused { cause: refusal.cause },
        });
    }
}

impl Resolved {
    /// What became of the calls at the moment of the answers. What stands as
    /// [`Approved`](DeferredOutcome::Approved) here runs already: it is not for anybody else to run.
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
        let (mut result, outcome) = self.running.join_next().await?.ok()?;
        // A tool that is gone without a word was ended with its runtime.
        result.outcome = outcome.unwrap_or(DeferredOutcome::OutcomeUnknown);
        Some(result)
    }
}

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolved").field("results", &self.results).finish_non_exhaustive()
    }
}

/// What was approved.
#[derive(Default)]
struct Runs {
    approved: HashSet<RecordId>,
    /// What runs because of it.
    begun: HashMap<RecordId, oneshot::Receiver<DeferredOutcome>>,
}

fn gone() -> LedgerStoreError {
    LedgerStoreError::new("the record is gone")
}

/// For how long it is taken for granted that somebody still listens to what a provider makes of a
/// yes: longer than a model speaks.
pub(super) const PROVIDERS_LEASE: Duration = Duration::from_secs(600);

/// Why a call was denied that the person did not answer.
const WROTE_ON: &str = "the person wrote on instead of answering";
