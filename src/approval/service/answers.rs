//! The answers of a request, and what the ledger does with them, in this order: the records are read, each answer is
//! [judged](Judge::judge), what a newer message closes is closed, then the answers are sent: denials, lapses and, last,
//! claims.

use std::collections::{HashMap, HashSet};

use tokio::sync::oneshot;
use tracing::Instrument;

use super::call::{ClaimedCall, DeferredCall, InFlightCall, SettledCall};
use super::calls::{AnsweredCalls, DeferredCalls};
use super::inner::{LoadedRecord, RecordUpdate};
use super::lease::Lease;
use super::ledger_requests::take_step;
use super::{AuditEvent, AuditEventKind, ChatApprovals, Toolbox};
use crate::approval::judge::{
    Answer, Judge, Step, Verdict, approvals_without_record, outcome_of, results_of,
};
use crate::approval::resume::AnsweredCall;
use crate::approval::store::{LedgerStoreError, system_time};
use crate::approval::{
    ApprovalRecord, DeferredOutcome, PendingToolCall, RecordId, RejectionReason, ResumePlan,
    Stepped, UnixMillis, UnverifiedApprovalResponse, UnverifiedToolOutput,
};
use crate::id::{ApprovalId, MessageId, log_causes};
use crate::request::ChatRequest;

/// The answers of a request, before they are redeemed.
pub(super) struct Answers {
    plan: ResumePlan,
    /// The calls that the client executes, from the host's own record.
    client_executed: Vec<PendingToolCall>,
    /// The outputs of the client for calls of which the host has no record.
    unverified: Vec<UnverifiedToolOutput>,
    /// The message that the response continues.
    continued: Option<MessageId>,
    /// Whether the host keeps no history, so that the outcomes of earlier answers are needed, too.
    includes_earlier: bool,
}

impl Answers {
    /// The answers to the calls of a history that the host keeps.
    pub(super) fn new(plan: ResumePlan, client_executed: Vec<PendingToolCall>) -> Self {
        let unverified = Vec::new();
        let continued = None;
        Answers { plan, client_executed, unverified, continued, includes_earlier: false }
    }

    /// The answers of a request, for a host that keeps no chats.
    pub(super) fn of_request(chat: &ChatRequest, toolbox: &dyn Toolbox) -> Self {
        let continued = chat.continued_message();
        let plan =
            ResumePlan::new(chat.messages(), continued).with_changed_inputs(chat.approval_inputs());
        let is_of_client = |output: &&UnverifiedToolOutput| {
            let tool = output.tool_name.as_ref().and_then(|name| toolbox.tool(name));
            tool.is_some_and(|tool| tool.client_executed)
        };
        Answers {
            unverified: plan.unverified_outputs().filter(is_of_client).cloned().collect(),
            client_executed: Vec::new(),
            continued: continued.map(|message| message.id.clone()),
            plan,
            includes_earlier: true,
        }
    }

    pub(super) fn plan(&self) -> &ResumePlan {
        &self.plan
    }

    /// Stores the denials, and claims the approved calls.
    pub(super) async fn redeem(
        self,
        approvals: &ChatApprovals,
    ) -> Result<DeferredCalls, LedgerStoreError> {
        match &approvals.inner.stateless {
            Some(stateless) => {
                let approvals = approvals.with_records_of(&self.plan, stateless);
                self.redeem_in_ledger(&approvals).await
            }
            None => self.redeem_in_ledger(approvals).await,
        }
    }

    async fn redeem_in_ledger(
        mut self,
        approvals: &ChatApprovals,
    ) -> Result<DeferredCalls, LedgerStoreError> {
        let unverified = std::mem::take(&mut self.unverified);
        let answers = Answer::all(&self.plan, &approvals.inner.keys, system_time());
        let ReadRecords { now, records, pending, open } = self.read(approvals, &answers).await?;
        let answers = self.judge(approvals, answers, &records, now).await?;
        let steps = steps_of(&answers);
        let unanswered = pending.iter().filter(|id| !steps.contains_key(*id));
        let unanswered = unanswered.filter_map(|id| records.get(id).cloned());
        // Closed before any answer is sent, so that a ledger that fails here has approved nothing.
        let mut unanswered = self.close(approvals, unanswered.collect(), now).await?;
        for request in open {
            let is_known = unanswered.iter().any(|(record, _)| record.id == request.record);
            let record = records.get(&request.record).filter(|_| !is_known);
            let record = record.map(|loaded| &loaded.record);
            let record = record.filter(|record| request.is_closed_by(record, approvals));
            unanswered.extend(record.map(|record| (record.clone(), request.id)));
        }
        let known = AnsweredCalls { unverified, ..AnsweredCalls::default() };
        let unsent = HashMap::new();
        let leases = HashMap::new();
        let is_claimed = false;
        let mut taken = TakenSteps { approvals, now, answers, known, unsent, leases, is_claimed };
        for step in [Step::Deny, Step::Lapse, Step::Claim] {
            let is_lost = taken.take(step).await?;
            // Without claims the same request can be sent again, and then gets the true outcome.
            if is_lost && self.includes_earlier && !taken.is_claimed {
                return Err(LedgerStoreError::new("an answer could not be stored"));
            }
        }
        Ok(taken.into_calls(&self, &unanswered, &steps))
    }

    /// Reads the records of the answers and of the open requests of the chat. The ledger lists these for a host that does
    /// not know them.
    async fn read(
        &self,
        approvals: &ChatApprovals,
        answers: &[Answer<'_>],
    ) -> Result<ReadRecords, LedgerStoreError> {
        let inner = &approvals.inner;
        let open = if self.includes_earlier {
            OpenRequest::of_history(&self.plan, approvals)
        } else {
            Vec::new()
        };
        let system_now = system_time();
        let known = self.plan.known_requests();
        let has_list = known.is_none();
        let known = known
            .into_iter()
            .flatten()
            .filter_map(|id| ApprovalRecord::record_id_from_token(id, &inner.keys, system_now));
        let asked = answers.iter().filter_map(Answer::record);
        let asked = asked.chain(open.iter().map(|request| request.record)).chain(known);
        let asked: HashSet<RecordId> = asked.collect();
        let listed = if has_list {
            Some(inner.pending_records(&approvals.pending_list()).await?)
        } else {
            None
        };
        let (loaded_at, mut loaded) = inner.records(&Vec::from_iter(asked)).await?;
        let (now, pending) = match listed {
            // Leases are measured by the clock of the ledger.
            Some((now, listed)) => {
                let pending = listed.iter().map(|record| record.id).collect();
                // What was loaded is newer.
                loaded.splice(..0, listed.into_iter().map(LoadedRecord::of_list));
                (now, pending)
            }
            None => {
                // What the host names may belong to another chat.
                let is_pending = |record: &&ApprovalRecord| {
                    record.is_pending()
                        && approvals.is_requested_by_owner(record)
                        && record.chat_id == approvals.chat
                };
                let pending = loaded.iter().map(|loaded| &loaded.record).filter(is_pending);
                let mut pending: Vec<_> =
                    pending.map(|record| (record.expires_at, record.id)).collect();
                pending.sort_unstable();
                (loaded_at, pending.into_iter().map(|(_, id)| id).collect())
            }
        };
        let records = loaded.into_iter().map(|loaded| (loaded.record.id, loaded)).collect();
        Ok(ReadRecords { now, records, pending, open })
    }

    /// Judges the answers, and writes those that do not count to the audit.
    async fn judge<'r>(
        &'r self,
        approvals: &ChatApprovals,
        answers: Vec<Answer<'r>>,
        records: &'r HashMap<RecordId, LoadedRecord>,
        now: UnixMillis,
    ) -> Result<Vec<JudgedAnswer<'r>>, LedgerStoreError> {
        let inner = &approvals.inner;
        let may_have_run = match &inner.stateless {
            Some(stateless) => {
                stateless.possible_executions(approvals_without_record(&answers, records)).await?
            }
            None => HashSet::new(),
        };
        let forgotten = answers.iter().filter_map(|answer| {
            let id = answer.record().filter(|id| !records.contains_key(id))?;
            let message = self.plan.message_of_request(&answer.response.approval_id)?;
            approvals.has_sealed(answer.call(), message).then_some(id)
        });
        let judge = Judge {
            plan: &self.plan,
            owner: &approvals.owner,
            chat: &approvals.chat,
            principal: &approvals.principal,
            may_decide: &|record| inner.can_decide(&approvals.principal, record),
            includes_earlier: self.includes_earlier,
            may_have_run,
            forgotten: forgotten.collect(),
        };
        let judged = answers.into_iter().map(|answer| {
            inner.other_keys.warn_of_answer(&answer.response.approval_id, &inner.keys);
            let record = answer.record().and_then(|id| records.get(&id));
            let verdict = judge.judge(&answer, record.map(|loaded| &loaded.record));
            let outcome = match (verdict, record) {
                (Verdict::Takes(step), Some(record)) => {
                    return JudgedAnswer::Takes { step, response: answer.response, record };
                }
                (Verdict::Takes(_) | Verdict::Ignored, _) => None,
                (Verdict::Refused { cause, outcome }, record) => {
                    audit_refused(approvals, now, cause, &answer, record);
                    outcome
                }
            };
            // The host does not know the call of a refused answer.
            let refused = |outcome| AnsweredCall { tool_name: None, outcome, is_final: false };
            JudgedAnswer::Done(outcome.map(refused))
        });
        Ok(judged.collect())
    }

    /// Closes the requests that a newer message closes, and the expired ones among the others, on a task of its own.
    /// Returns them as they are afterwards, without those whose keys this server lacks. A host that reads the history of
    /// the client gets no pending request that this history lacks: another page shows it.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if a request that a message closes may still be open. Some of the others may be closed
    /// then. An expired request that cannot be closed is no error, because it cannot be approved any more.
    async fn close(
        &self,
        approvals: &ChatApprovals,
        unanswered: Vec<LoadedRecord>,
        now: UnixMillis,
    ) -> Result<Vec<(ApprovalRecord, ApprovalId)>, LedgerStoreError> {
        let unanswered = unanswered.into_iter().filter_map(|loaded| {
            let id = loaded.record.approval_id(&approvals.inner.keys, now)?;
            Some((loaded, id))
        });
        let unanswered: Vec<_> = unanswered.collect();
        let superseded = unanswered.iter();
        let superseded =
            superseded.filter(|(loaded, id)| self.plan.is_closed_by_message(&loaded.record, id));
        let superseded: Vec<RecordId> = superseded.map(|(loaded, _)| loaded.record.id).collect();
        let is_superseded = !superseded.is_empty();
        let approvals = approvals.clone();
        let last_known = unanswered.iter().map(|(loaded, id)| (loaded.record.clone(), id.clone()));
        let last_known = last_known.collect();
        let closing = async move { close_unanswered(&approvals, unanswered, &superseded).await };
        let mut closed = match tokio::spawn(closing).await {
            Ok(closed) => closed?,
            // The store or the audit sink panicked.
            Err(error) if is_superseded => return Err(LedgerStoreError::new(error)),
            Err(error) => {
                let error = log_causes(&error);
                tracing::error!(error, "the expired approvals could not be closed");
                last_known
            }
        };
        if self.includes_earlier {
            // A call that this request does not hold is answered on another page.
            closed.retain(|(record, id)| !record.is_pending() || self.plan.holds_request(id));
        }
        Ok(closed)
    }
}

/// What the ledger holds when the answers arrive.
struct ReadRecords {
    /// The time of the ledger.
    now: UnixMillis,
    records: HashMap<RecordId, LoadedRecord>,
    /// The pending ones of the chat among them, in the order in which they expire.
    pending: Vec<RecordId>,
    open: Vec<OpenRequest>,
}

/// What an answer does.
enum JudgedAnswer<'r> {
    /// The ledger takes this step of its record.
    Takes { step: Step, response: &'r UnverifiedApprovalResponse, record: &'r LoadedRecord },
    /// It is refused, or its step was taken. Without a result, an earlier request has handled it, or it waits for the
    /// answers of others.
    Done(Option<AnsweredCall>),
}

/// Returns the steps of the answered records.
fn steps_of(answers: &[JudgedAnswer<'_>]) -> HashMap<RecordId, Step> {
    let steps = answers.iter().filter_map(|answer| match answer {
        JudgedAnswer::Takes { step, record, .. } => Some((record.record.id, *step)),
        JudgedAnswer::Done(_) => None,
    });
    let mut steps: Vec<_> = steps.collect();
    // If a call was approved and denied, the approval counts.
    steps.sort_by_key(|(_, step)| *step == Step::Claim);
    steps.into_iter().collect()
}

/// An approval request that has no response in the history of a request, or a call that has only a
/// preliminary output there. It may have been answered, closed or executed for another request.
struct OpenRequest {
    record: RecordId,
    id: ApprovalId,
    /// Whether a user message follows it in the history.
    is_superseded: bool,
}

impl OpenRequest {
    fn of_history(plan: &ResumePlan, approvals: &ChatApprovals) -> Vec<Self> {
        let now = system_time();
        let open = plan.open_calls().filter_map(|(id, is_superseded)| {
            let keys = &approvals.inner.keys;
            let id = id.clone();
            let record = ApprovalRecord::record_id_from_token(&id, keys, now)?;
            Some(OpenRequest { record, id, is_superseded })
        });
        open.collect()
    }

    /// Returns whether the record of this request has an outcome that the history does not show.
    fn is_closed_by(&self, record: &ApprovalRecord, approvals: &ChatApprovals) -> bool {
        let Some(outcome) = record.outcome() else { return false };
        // The model reads that a superseded request was not answered.
        let is_answered = !outcome.is_closed_undecided() || outcome == DeferredOutcome::Lapsed;
        (is_answered || !self.is_superseded)
            && approvals.is_own_request(record, &self.id, system_time())
    }
}

async fn close_unanswered(
    approvals: &ChatApprovals,
    unanswered: Vec<(LoadedRecord, ApprovalId)>,
    superseded: &[RecordId],
) -> Result<Vec<(ApprovalRecord, ApprovalId)>, LedgerStoreError> {
    let mut closed = Vec::new();
    let mut failure = None;
    for (loaded, id) in unanswered {
        let is_superseded = superseded.contains(&loaded.record.id);
        let rule = |record: &ApprovalRecord, now| {
            if is_superseded { record.supersede(now) } else { record.expire(now) }
        };
        match approvals.inner.update_loaded(Some(&approvals.principal), &loaded, rule).await {
            Ok(updated) => closed.extend(updated.map(|updated| (updated.record, id))),
            Err(error) if is_superseded => failure = Some(error),
            Err(error) => {
                let error = log_causes(&error);
                tracing::error!(error, "an expired approval could not be closed");
                closed.push((loaded.record, id));
            }
        }
    }
    failure.map_or(Ok(closed), Err)
}

fn audit_refused(
    approvals: &ChatApprovals,
    at: UnixMillis,
    cause: RejectionReason,
    answer: &Answer<'_>,
    record: Option<&LoadedRecord>,
) {
    let kind = AuditEventKind::Rejected { cause };
    let mut event = AuditEvent::new(at, &approvals.principal, kind);
    event.record = answer.record();
    if let Some(loaded) = record {
        event = event.with_record(&loaded.record);
    }
    let call = &answer.response.tool_call_id;
    let tool = &answer.response.tool_name;
    approvals.inner.audit(&event.with_call(&approvals.chat, call, tool));
}

/// The steps that the ledger has taken for the answers of a request.
struct TakenSteps<'r> {
    approvals: &'r ChatApprovals,
    /// The time of the ledger when the records were read.
    now: UnixMillis,
    answers: Vec<JudgedAnswer<'r>>,
    known: AnsweredCalls,
    /// The approvals for a provider that no model call has sent.
    unsent: HashMap<ApprovalId, DeferredOutcome>,
    /// The claims of the calls that are executed here.
    leases: HashMap<RecordId, Lease>,
    /// Whether a claim was granted, also of a call that the provider executes.
    is_claimed: bool,
}

impl TakenSteps<'_> {
    /// Sends the answers that take this step to the ledger, all at once. Returns whether one is lost: it is not known
    /// whether the ledger has taken its step.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if an approval that lapses is lost.
    async fn take(&mut self, step: Step) -> Result<bool, LedgerStoreError> {
        let sent = self.answers.iter().enumerate().filter_map(|(at, judged)| match judged {
            JudgedAnswer::Takes { step: takes, response, record } if *takes == step => {
                let taken = spawn_step(self.approvals, step, response, record);
                Some((at, *response, *record, taken))
            }
            _ => None,
        });
        let mut is_lost = false;
        for (at, response, last_known, taken) in sent.collect::<Vec<_>>() {
            let (record, stepped, time) = match taken.await {
                Ok((RecordUpdate { record, output, at, .. }, lease)) => {
                    self.leases.extend(lease.map(|lease| (record.id, lease)));
                    (record, Some(output), at)
                }
                Err(_) if step == Step::Lapse => {
                    let lost = "an approval that lapses could not be stored";
                    return Err(LedgerStoreError::new(lost));
                }
                Err(_) => {
                    is_lost = true;
                    (last_known.record.clone(), None, self.now)
                }
            };
            self.is_claimed |= matches!(stepped, Some(Stepped::Granted(_)));
            if stepped.is_some() || !record.is_pending() {
                self.describe(&record);
            }
            if matches!(stepped, Some(Stepped::Granted(_) | Stepped::Counts)) {
                self.known.accepted.insert(response.approval_id.clone());
            }
            let outcome = outcome_of(response, &record, stepped, time);
            let result = AnsweredCall::of_record(&record, outcome);
            self.answers[at] = JudgedAnswer::Done(Some(result));
        }
        self.known.is_incomplete |= is_lost;
        Ok(is_lost)
    }

    /// Adds the state of a record, unless its key is gone.
    fn describe(&mut self, record: &ApprovalRecord) {
        let TakenSteps { approvals, now, known, .. } = self;
        let Some(id) = record.approval_id(&approvals.inner.keys, *now) else { return };
        let granted = record.granted().filter(|_| approvals.grants_to_providers);
        self.unsent.extend(granted.map(|granted| (id.clone(), granted)));
        let outcome = record.outcome().filter(|outcome| {
            outcome.is_closed_undecided() || matches!(outcome, DeferredOutcome::Denied { .. })
        });
        known.refused.extend(outcome.map(|outcome| (id.clone(), outcome)));
        known.descriptors.extend(record.descriptor(*now).ok().map(|descriptor| (id, descriptor)));
    }

    /// Returns each call by its state. `unanswered` are the requests of the chat without an answer, and `steps` those of
    /// the answered records.
    fn into_calls(
        mut self,
        asked: &Answers,
        unanswered: &[(ApprovalRecord, ApprovalId)],
        steps: &HashMap<RecordId, Step>,
    ) -> DeferredCalls {
        unanswered.iter().for_each(|(record, _)| self.describe(record));
        let answers = self.answers.drain(..).map(|answer| match answer {
            JudgedAnswer::Done(result) => result,
            // Never: each step was taken.
            JudgedAnswer::Takes { .. } => None,
        });
        let answers = answers.collect();
        let results = results_of(&asked.plan, answers, unanswered, &asked.client_executed);
        let results = results.with_unsent(&self.unsent);
        let calls = results.results().iter().map(|result| {
            let is_continued = result.message_id.is_some() && result.message_id == asked.continued;
            let descriptor = self.known.descriptor_of(result);
            let report = SettledCall::new(result.clone(), descriptor, is_continued);
            match &result.outcome {
                DeferredOutcome::Approved { claim, .. } => {
                    let lease = claim.as_ref().and_then(|claim| self.leases.remove(&claim.record));
                    match lease {
                        Some(lease) => DeferredCall::Approved(ClaimedCall { report, lease }),
                        // Never: each approved result of the ledger has its claim.
                        None => DeferredCall::Settled(report.of_unknown_outcome()),
                    }
                }
                DeferredOutcome::Executing { record } => {
                    let approvals = self.approvals.clone();
                    let answer = steps.get(record).copied();
                    let record = *record;
                    DeferredCall::InFlight(InFlightCall { approvals, record, answer, report })
                }
                DeferredOutcome::Denied { .. } => DeferredCall::Denied(report),
                DeferredOutcome::ForwardToProvider { .. }
                | DeferredOutcome::ForwardedToProvider => DeferredCall::OfProvider(report),
                DeferredOutcome::Output { .. } | DeferredOutcome::OutputError { .. } => {
                    DeferredCall::OfClient(report)
                }
                _ => DeferredCall::Settled(report),
            }
        });
        let mut calls: Vec<DeferredCall> = calls.collect();
        // The user's own denials come first.
        calls.sort_by_key(|call| !matches!(call, DeferredCall::Denied(_)));
        DeferredCalls { answered: AnsweredCalls { results, ..self.known }, calls }
    }
}

/// Sends the step of an answer to the ledger, and returns the record after it with the lease of a claim that was
/// granted for an execution here. The channel is closed without a value if the ledger fails.
///
/// It is sent on a spawned task, so that a panic of the host's code concerns one call, and so that
/// the lease of a granted claim is renewed from the beginning. If the receiver was dropped, the
/// claim is given up.
fn spawn_step(
    approvals: &ChatApprovals,
    step: Step,
    response: &UnverifiedApprovalResponse,
    loaded: &LoadedRecord,
) -> oneshot::Receiver<(RecordUpdate<Stepped>, Option<Lease>)> {
    let (sender, taken) = oneshot::channel();
    let approvals = approvals.clone();
    let loaded = loaded.clone();
    let response = response.clone();
    let sending = async move {
        match take_step(&approvals, step, &response, &loaded).await {
            Ok(update) => {
                let lease = match &update.output {
                    Stepped::Granted(claim) if !update.record.provider_executed => {
                        Lease::new(&approvals, &update.record, claim)
                    }
                    _ => None,
                };
                let _ = sender.send((update, lease));
            }
            Err(error) => {
                let error = log_causes(&error);
                tracing::error!(record = %loaded.record.id, error, "an answer could not be redeemed");
            }
        }
    };
    tokio::spawn(sending.in_current_span());
    taken
}
