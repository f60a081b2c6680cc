//! The ways to redeem answers: [`Approvals::run`] and [`Approvals::redeem`] redeem those of a client's history, and
//! [`ChatApprovals::resolve`] those of a chat that the host keeps.

use std::panic::resume_unwind;

use tracing::Instrument;

use super::answers::Answers;
use super::calls::{DeferredCalls, RunningCalls};
use super::changed_inputs::check_changed_inputs;
use super::ledger_requests::provider_lease;
use super::progress::Progress;
use super::{Approvals, ApprovedCall, ChatApprovals};
use crate::approval::store::{LedgerStoreError, RedeemError, update};
use crate::approval::{
    ApprovalRecord, DeferredOutcome, DeferredToolResult, LeaseHolderId, LeaseResult,
    PendingToolCall, Principal, ResumePlan, ToolOutcome, Transition,
};
use crate::request::ChatRequest;

impl Approvals {
    /// Redeems the user's decisions in a request, for a host that keeps no chats: checks the
    /// approval responses, stores the denials, and claims the approved calls for execution.
    ///
    /// Most hosts call [`run`](Self::run) instead, which executes the approved calls in any case.
    /// This function is for a host that treats the calls one by one.
    ///
    /// Each returned call has a type for its state. The same request sent again, or at the same
    /// time, never claims a call twice: it waits for the outcome of the first one, or gets it. An
    /// approval response that is not valid becomes a call that was not executed, and changes
    /// nothing. A `ChatServer` does all this itself.
    ///
    /// ```
    /// use ui_message_stream::approval::store::RedeemError;
    /// use ui_message_stream::approval::{Approvals, DeferredCall, Principal};
    /// use ui_message_stream::{ChatRequest, Json, UiMessageStream};
    ///
    /// async fn chat(
    ///     approvals: Approvals,
    ///     user: Principal,
    ///     chat: ChatRequest,
    /// ) -> Result<UiMessageStream, RedeemError> {
    ///     let deferred = approvals.redeem(&user, &chat).await?;
    ///     Ok(UiMessageStream::reply(&chat, async_stream::stream! {
    ///         for call in deferred {
    ///             match call {
    ///                 DeferredCall::Approved(call) => {
    ///                     // Execute `call.tool_name()` with `call.input()`.
    ///                     for event in call.complete(Json::string("done")).await.events() {
    ///                         yield event;
    ///                     }
    ///                 }
    ///                 DeferredCall::Denied(call) | DeferredCall::Settled(call) => {
    ///                     for event in call.events() {
    ///                         yield event;
    ///                     }
    ///                 }
    ///                 _ => {}
    ///             }
    ///         }
    ///     }))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`RedeemError::Input`] if the user has changed an input and the tool does not accept it. Nothing
    /// was stored then.
    ///
    /// [`RedeemError::Ledger`] if the ledger or the replay guard fails and no call was claimed here.
    /// The same request can be sent again; the HTTP status for it is 503. If the ledger fails for
    /// some answers after a claim was granted for another, those to pending requests have an unknown
    /// outcome. A request that was decided before keeps its outcome.
    ///
    /// # Cancel safety
    /// If the future or the returned value is dropped, for example because the client disconnects,
    /// decisions are stored nevertheless. **A call that was claimed is then not executed**, now or
    /// later, and its outcome is unknown. [`run`](Self::run) avoids that.
    pub async fn redeem(
        &self,
        principal: &Principal,
        chat: &ChatRequest,
    ) -> Result<DeferredCalls, RedeemError> {
        let approvals = self.for_chat(principal, chat.id());
        let answers = Answers::of_request(chat, &*self.0.toolbox);
        approvals.check_changed_inputs(answers.plan()).await?;
        Ok(answers.redeem(&approvals).await?)
    }

    /// Redeems the user's decisions in a request, as [`redeem`](Self::redeem) does, and executes the
    /// approved calls with `run`, as [`DeferredCalls::run`] does: all on tasks of their own, so that
    /// a client that disconnects interrupts nothing.
    ///
    /// ```
    /// use ui_message_stream::approval::store::RedeemError;
    /// use ui_message_stream::approval::{Approvals, DeferredOutcome, Principal};
    /// use ui_message_stream::{AgentEvent, ChatRequest, Json, UiMessageStream};
    ///
    /// async fn chat(
    ///     approvals: Approvals,
    ///     user: Principal,
    ///     chat: ChatRequest,
    /// ) -> Result<UiMessageStream, RedeemError> {
    ///     let running = approvals.run(&user, &chat, |call, _| async move {
    ///         // Execute `call.tool_name` with `call.input`.
    ///         Json::string("done")
    ///     });
    ///     let mut running = running.await?;
    ///     Ok(UiMessageStream::reply(&chat, async_stream::stream! {
    ///         while let Some(event) = running.next_event().await {
    ///             yield event;
    ///         }
    ///         let results = running.into_results();
    ///         for result in results.results() {
    ///             if let DeferredOutcome::Denied { reason: Some(reason) } = &result.outcome {
    ///                 yield AgentEvent::text(format!("Your reason: {reason}"));
    ///             }
    ///         }
    ///         // If `results.pending()` is empty, call the model with the results.
    ///     }))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`RedeemError`] as for [`redeem`](Self::redeem).
    ///
    /// # Cancel safety
    /// If the future is dropped after its first poll, decisions are stored and the approved calls
    /// are executed nevertheless. Before that, nothing was done.
    pub async fn run<F, Fut>(
        &self,
        principal: &Principal,
        chat: &ChatRequest,
        run: F,
    ) -> Result<RunningCalls, RedeemError>
    where
        F: Fn(ApprovedCall, Progress) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: Into<ToolOutcome>> + Send + 'static,
    {
        let answers = Answers::of_request(chat, &*self.0.toolbox);
        let approvals = self.for_chat(principal, chat.id());
        let running = async move {
            approvals.check_changed_inputs(answers.plan()).await?;
            Ok(answers.redeem(&approvals).await?.run(run))
        };
        spawned(running).await
    }
}

/// Polls a redemption on a task of its own.
async fn spawned<E: From<LedgerStoreError> + Send + 'static>(
    redeeming: impl Future<Output = Result<RunningCalls, E>> + Send + 'static,
) -> Result<RunningCalls, E> {
    let redeemed = tokio::spawn(redeeming.in_current_span()).await;
    redeemed.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(cancelled) => Err(LedgerStoreError::new(cancelled).into()),
    })
}

impl ChatApprovals {
    /// Checks the inputs that the user has changed in these answers, so that the user learns what is
    /// wrong before anything is stored. Answers that do not count are left to the redemption, which says
    /// nothing about them.
    ///
    /// # Errors
    /// [`RedeemError::Input`] for the first input that is not accepted, [`RedeemError::Ledger`] if the
    /// records cannot be read.
    pub async fn check_changed_inputs(&self, plan: &ResumePlan) -> Result<(), RedeemError> {
        check_changed_inputs(self, plan).await
    }

    /// Redeems the approval responses of a request: stores the denials, claims the approved tool
    /// calls and starts their execution with [`Toolbox::run`](super::Toolbox::run).
    ///
    /// A call without a response stays pending until its approval request expires. If the user sent
    /// a new message instead of a response, the call is superseded, and an approval that arrives with
    /// that message lapses. Its tool, or [`Approvals::on_new_message`](super::Approvals::on_new_message),
    /// may set that the call is denied, or stays pending. An invalid approval response is
    /// rejected and changes nothing in the ledger. `client_executed` are the calls that the client
    /// executes, from the host's own record.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the records cannot be read, if a superseded request cannot be closed,
    /// or if an approval that lapses cannot be stored. The host must then neither call the model nor
    /// record that the call was not executed, because the request may still be approved. In all
    /// cases no call was claimed, and in the first two no response of this request was sent to the
    /// ledger. The same request can be sent again.
    ///
    /// If the ledger fails for another response, a request that was decided before keeps its outcome.
    /// The response to a pending request gets a result that is not
    /// [final](DeferredToolResult::is_final), and its call stays open in the host's history. It is
    /// then not known whether the ledger stored the response.
    ///
    /// # Cancel safety
    /// If the future is dropped, the work that has begun continues on its own tasks: decisions are
    /// stored, claimed calls are executed, and audit events are written. An approval for a provider
    /// exists only in the returned value. If the future or the value is dropped, the approval is
    /// lost.
    pub async fn resolve(
        &self,
        plan: ResumePlan,
        client_executed: &[PendingToolCall],
    ) -> Result<RunningCalls, LedgerStoreError> {
        let answers = Answers::new(plan, client_executed.to_vec());
        let toolbox = self.inner.toolbox.clone();
        let approvals = self.clone();
        spawned(async move {
            let deferred = answers.redeem(&approvals).await?;
            Ok(deferred.run(move |call, progress| toolbox.run(call, progress)))
        })
        .await
    }

    /// Claims approvals that the next model call sends to the provider. Returns those that no other
    /// sender has claimed, and whose key this server has.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if the ledger fails. Some of the approvals may be claimed then. The same
    /// sender can repeat the request, and gets these too.
    pub async fn claim_for_provider(
        &self,
        approved: Vec<DeferredToolResult>,
        sender: LeaseHolderId,
    ) -> Result<Vec<DeferredToolResult>, LedgerStoreError> {
        let lease = provider_lease(&self.inner);
        let mut claimed = Vec::new();
        for result in approved {
            if let DeferredOutcome::ForwardToProvider { claim: Some(claim), .. } = &result.outcome {
                let keys = &self.inner.keys;
                let forward = |record: &ApprovalRecord, now| match record.approval_id(keys, now) {
                    Some(_) => record.forward(sender, lease, now),
                    // A ledger that was restored from a backup may not know that it was sent.
                    None => Transition { output: LeaseResult::Lost, next: None },
                };
                let forwarded = update(&*self.inner.ledger, claim.record, forward).await?;
                if !matches!(forwarded, Some((_, LeaseResult::Stored))) {
                    continue;
                }
            }
            claimed.push(result);
        }
        Ok(claimed)
    }
}
