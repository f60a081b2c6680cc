//! What a turn asks of the ledger: it redeems answers, finds out what was decided, and revokes requests
//! that no page shows.

use std::sync::Arc;

use futures_util::FutureExt;

use super::agent::events::Revoke;
use super::conversation::live_message::accepts_result;
use super::conversation::{Chat, ReceivedResult};
use super::inner::Inner;
use ui_message_stream::approval::store::LedgerStoreError;
use ui_message_stream::approval::{
    Approvals, CallUpdate, ChatApprovals, DeferredOutcome, DeferredToolResult, DeferredToolResults,
    PendingApproval, PendingToolCall, ResolvedRequest, ResumePlan, RunningCalls,
};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{ApprovalId, ToolCallId, log_causes};

/// Answers that were redeemed.
pub(super) struct Redeemed {
    /// The results that are known, and those of the open calls that were to be closed.
    pub(super) known: Vec<ReceivedResult>,
    pub(super) accepted: Accepted,
    pub(super) deferred: DeferredToolResults,
    /// The questions whose answers do not count, and that still wait.
    pub(super) asked_again: Vec<ApprovalId>,
    /// The calls that are still being executed, with the data that shows that they are approved.
    pub(super) executing: Vec<(ToolCallId, AgentEvent)>,
    /// What these calls have shown so far.
    pub(super) progress: Vec<AgentEvent>,
    /// The approved calls, which are executed.
    pub(super) calls: Box<RunningCalls>,
}

/// The answers that the ledger has accepted.
#[derive(Debug)]
pub(super) struct Accepted {
    pub(super) answers: Vec<(ApprovalId, bool)>,
    /// Whether calls are being executed.
    pub(super) is_executing: bool,
    /// Whether the ledger could not store an answer.
    pub(super) is_incomplete: bool,
}

impl Redeemed {
    /// Redeems the answers of a plan. With a list of open calls, closes these calls too.
    pub(super) async fn new(
        approvals: &ChatApprovals,
        mut plan: ResumePlan,
        chat: Chat,
        open: Option<Vec<PendingToolCall>>,
    ) -> Result<Self, LedgerStoreError> {
        plan.set_call_ids(|approval| chat.call_of_approval(approval));
        let answers = plan.unverified_responses();
        let answers: Vec<_> =
            answers.map(|answer| (answer.approval_id.clone(), answer.approved)).collect();
        let mut asked_again = answered_questions(&chat, &plan);
        let followed = chat.clone();
        // Requests that no answer can reach are closed, when they are answered or a message follows.
        let undecided = chat.undecided_calls();
        let answered: Vec<ApprovalId> = answers.iter().map(|(id, _)| id.clone()).collect();
        let unreachable = undecided.iter().filter_map(|call| call.approval_id.as_ref());
        let unreachable = unreachable.filter(|id| open.is_some() || answered.contains(id));
        let unreachable: Vec<ApprovalId> = unreachable.cloned().collect();
        let plan = plan
            .with_followed_messages(move |id| followed.is_followed_by_user(id))
            .with_open_requests(undecided.iter().filter_map(|call| call.approval_id.clone()));
        let void = approvals.close_void(&unreachable, &answered).await?;
        let mut calls = Box::new(approvals.resolve(plan, &chat.client_executed).await?);
        let deferred = calls.results().clone();
        let superseded = deferred.superseded().iter().map(|call| {
            let descriptor = calls.descriptor_of_superseded(call);
            ReceivedResult::new(call.with_outcome(DeferredOutcome::Superseded), descriptor)
        });
        let mut known: Vec<ReceivedResult> = superseded.collect();
        known.extend(results_of(&undecided, void));
        let mut progress = Vec::new();
        let is_executing = loop {
            match calls.next_update().now_or_never() {
                Some(Some(CallUpdate::Settled(result))) => known.push(received(&calls, &result)),
                Some(Some(CallUpdate::Progress(event))) => progress.push(event),
                Some(Some(_)) => {}
                all => break all.is_none(),
            }
        };
        if let Some(mut open) = open {
            open.retain(|call| {
                let is_it = |id: &Option<ApprovalId>| *id == call.approval_id;
                !deferred.pending().iter().any(|pending| is_it(&pending.approval_id))
                    && !known.iter().any(|known| is_it(&known.result.approval_id))
            });
            known.extend(decided(approvals, &open).await?);
        }
        let results = deferred.results().iter().chain(known.iter().map(|known| &known.result));
        asked_again.retain(|id| {
            let is_final =
                |of: &DeferredToolResult| of.is_final && of.approval_id.as_ref() == Some(id);
            // It is not known whether the ledger has stored an answer.
            !calls.is_incomplete() && !calls.is_accepted(id) && !results.clone().any(is_final)
        });
        let executing = calls.executing().map(|(call, data)| (call.clone(), data)).collect();
        let answers = answers.into_iter().filter(|(id, _)| calls.is_accepted(id)).collect();
        let accepted = Accepted { answers, is_executing, is_incomplete: calls.is_incomplete() };
        Ok(Redeemed { known, accepted, deferred, asked_again, executing, progress, calls })
    }
}

/// Returns the open questions that these answers mean. A page that names another id, or another call, for a question shows
/// it as answered, too.
fn answered_questions(chat: &Chat, plan: &ResumePlan) -> Vec<ApprovalId> {
    let is_answered = |open: &PendingToolCall| {
        plan.unverified_responses().any(|answer| {
            open.approval_id.as_ref() == Some(&answer.approval_id)
                || open.tool_call_id == answer.tool_call_id
        })
    };
    let open = chat.open_approvals().into_iter().filter(is_answered);
    open.filter_map(|open| open.approval_id).collect()
}

pub(super) fn received(calls: &RunningCalls, result: &DeferredToolResult) -> ReceivedResult {
    let in_history = calls.result_in_history(result);
    let shown = (in_history.outcome != result.outcome).then(|| result.outcome.clone());
    ReceivedResult { shown, ..ReceivedResult::new(in_history, calls.descriptor(result)) }
}

/// Returns the error of answers that the ledger lacks: they can be sent again.
pub(super) fn not_stored() -> LedgerStoreError {
    LedgerStoreError::new("an answer could not be stored")
}

/// Returns the outcomes of those of these calls that the ledger has decided.
pub(super) async fn decided(
    approvals: &ChatApprovals,
    open: &[PendingToolCall],
) -> Result<Vec<ReceivedResult>, LedgerStoreError> {
    let ids: Vec<ApprovalId> = open.iter().filter_map(|call| call.approval_id.clone()).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    Ok(results_of(open, approvals.resolved_requests(&ids).await?))
}

/// Returns the results of those of these calls that are resolved.
pub(super) fn results_of(
    open: &[PendingToolCall],
    resolved: Vec<ResolvedRequest>,
) -> Vec<ReceivedResult> {
    let results = resolved.into_iter().filter_map(|resolved| {
        let id = Some(&resolved.approval_id);
        let call = open.iter().find(|call| call.approval_id.as_ref() == id)?;
        Some(ReceivedResult::new(call.with_outcome(resolved.outcome), resolved.descriptor))
    });
    results.collect()
}

impl Chat {
    /// Records what the ledger of these approvals knows of the [open approval requests](Chat::open_approvals):
    /// an approved call may have run after its reader had left, and a request may have expired. Writes nothing to
    /// the ledger. Returns whether it knows more than this conversation.
    ///
    /// A host that stores the messages itself calls it after it has loaded them: for a page that is opened again,
    /// and before [`apply_request`](Chat::apply_request). A call that is still being executed stays open.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the ledger fails. The model must not be called then: it would read that a call
    /// was not executed which may have been.
    pub async fn record_outcomes(
        &mut self,
        approvals: &Approvals,
    ) -> Result<bool, LedgerStoreError> {
        let open = self.open_approvals();
        let ids: Vec<ApprovalId> =
            open.iter().filter_map(|open| open.approval_id.clone()).collect();
        let approvals = approvals.for_chat(&self.owner, &self.id);
        let mut results = results_of(&open, approvals.known_outcomes(&ids).await?);
        results.retain(|received| accepts_result(self, &received.result));
        results.iter().for_each(|received| self.record_received(received));
        Ok(!results.is_empty())
    }
}

/// Changes this copy of a conversation so that it shows what the ledger knows about its open approval
/// requests. Returns whether it knows more than the conversation.
pub(super) async fn show_outcomes(chats: &Inner, chat: &mut Chat) -> bool {
    chat.record_outcomes(&chats.approvals).await.unwrap_or_else(|error| {
        tracing::warn!(
            error = log_causes(&error),
            "a chat is shown without the state of its approval requests"
        );
        false
    })
}

/// Revokes some of the pending approval requests of a conversation.
pub(super) async fn revoke(
    chats: &Inner,
    approvals: &ChatApprovals,
    is_revoked: impl Fn(&PendingApproval) -> bool,
) -> Result<(), LedgerStoreError> {
    let mut pending = approvals.pending().await?;
    pending.retain(is_revoked);
    revoke_all(chats, pending).await
}

/// Returns what revokes an approval request that the client cannot answer.
pub(super) fn revoker(chats: &Arc<Inner>, approvals: ChatApprovals) -> Revoke {
    let chats = Arc::clone(chats);
    Arc::new(move |id| {
        let chats = Arc::clone(&chats);
        let approvals = approvals.clone();
        async move {
            // The request may name another message, or none.
            revoke(&chats, &approvals, |pending| pending.approval_id == id).await
        }
        .boxed()
    })
}

pub(super) async fn revoke_all(
    chats: &Inner,
    pending: Vec<PendingApproval>,
) -> Result<(), LedgerStoreError> {
    for pending in pending {
        chats.approvals.revoke(pending.record.id).await?;
    }
    Ok(())
}
