//! [`Effects`]: performs what a turn asks for, with the stores and the approvals.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use sha2::{Digest, Sha256};

use super::agent_events::Revoke;
use super::machine::{Effect, EndedMessage, Input};
use crate::approval::store::LedgerStoreError;
use crate::approval::{
    ChatApprovals, DeferredOutcome, DeferredToolResult, DeferredToolResults, LeaseHolderId,
    PendingApproval, PendingToolCall, Principal, ResumePlan, RunningCalls,
};
use crate::chat::conversation::ReceivedResult;
use crate::chat::inner::Inner;
use crate::chat::log::{AppendEntries, BeginRun, Fence, LogPage, ReadLog, RunKey, TakeRun};
use crate::chat::store::{ChatStoreError, RunStoreError, SaveChat, SaveResult, VersionedChat};
use crate::chat::{Chat, ChatError};
use crate::id::{ApprovalId, ChatId, RunId};
use crate::message::UiMessage;

/// The stores and the approvals of one turn.
pub(super) struct Effects {
    pub(super) chats: Arc<Inner>,
    principal: Principal,
    owner: Principal,
    chat_id: ChatId,
    holder: LeaseHolderId,
    /// The version of the conversation that this turn has loaded or saved last.
    known: Option<VersionedChat>,
}

/// The result of an effect.
pub(super) enum Outcome {
    Input(Input),
    Loaded(Option<VersionedChat>),
    Saved(Box<Chat>, SaveResult),
    /// The store has failed. Whether the effect took place is not known.
    Unknown(After, Failure),
    /// The time after a failure has passed.
    Delayed(After),
    /// The ledger has failed, when it was to redeem answers, and perhaps to close calls.
    NotRedeemed(bool, Failure),
    /// The answers are redeemed, and the approved calls are executed.
    Redeeming {
        first: Vec<Input>,
        accepted: Vec<(ApprovalId, bool)>,
        deferred: DeferredToolResults,
        calls: Box<RunningCalls>,
    },
    Result(Box<ReceivedResult>, Box<RunningCalls>),
}

/// What follows a failure.
pub(super) enum After {
    Input(Input),
    LoadAgain,
}

/// The failure of a store or of the ledger.
#[derive(Debug)]
pub(in crate::chat) enum Failure {
    Chats(ChatStoreError),
    Runs(RunStoreError),
    Ledger(LedgerStoreError),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Chats(error) => error.fmt(f),
            Failure::Runs(error) => error.fmt(f),
            Failure::Ledger(error) => error.fmt(f),
        }
    }
}

impl From<Failure> for ChatError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Chats(error) => error.into(),
            Failure::Runs(error) => error.into(),
            Failure::Ledger(error) => error.into(),
        }
    }
}

impl Effects {
    pub(super) fn new(
        chats: &Arc<Inner>,
        principal: Principal,
        owner: Principal,
        chat_id: ChatId,
    ) -> Self {
        let holder = LeaseHolderId::from_bytes(fresh_id().into_bytes());
        Effects { chats: Arc::clone(chats), principal, owner, chat_id, holder, known: None }
    }

    /// Keeps a version of the conversation, so that it is not loaded again before it has changed.
    pub(super) fn set_known(&mut self, known: Option<VersionedChat>) {
        self.known = known;
    }

    pub(super) fn lease(&self) -> Duration {
        self.chats.run_lease
    }

    /// Ends a log that no conversation names. If that fails, its lease passes.
    pub(super) fn release(&self, run: RunId, fence: Fence) -> BoxFuture<'static, ()> {
        let (chats, key) = (Arc::clone(&self.chats), self.key(&run));
        async move {
            let append = AppendEntries { key: &key, fence, position: 0, entries: &[], end: true };
            if let Err(error) = chats.runs.append(append).await {
                tracing::warn!(%error, "a run that was not needed is not ended");
            }
        }
        .boxed()
    }

    /// Revokes those approval requests of a run that was taken which the conversation does not show.
    /// The turn that took the run may have revoked what it found before the agent was stopped.
    pub(super) fn revoke_unshown(&self, ended: EndedMessage) -> BoxFuture<'static, ()> {
        let (chats, approvals) = (Arc::clone(&self.chats), self.approvals());
        let (owner, id) = (self.owner.clone(), self.chat_id.clone());
        async move {
            let revoked = match chats.load(&owner, &id).await {
                Ok(Some(stored)) => {
                    let chat = chats.with_live_run(stored.chat).await;
                    let parts = || chat.messages.iter().flat_map(UiMessage::tool_parts);
                    revoke(&chats, &approvals, |pending| {
                        let id = Some(&pending.approval_id);
                        ended.requested.contains(&pending.approval_id)
                            && !parts().any(|part| part.approval_id() == id)
                    })
                    .await
                }
                // The user has deleted the conversation.
                Ok(None) => {
                    revoke(&chats, &approvals, |pending| {
                        pending.record.message_id == ended.id
                            || ended.requested.contains(&pending.approval_id)
                    })
                    .await
                }
                Err(error) => {
                    tracing::warn!(%error, "approval requests of a run that was taken stay open");
                    return;
                }
            };
            if let Err(error) = revoked {
                tracing::warn!(%error, "approval requests of a run that was taken stay open");
            }
        }
        .boxed()
    }

    /// Starts an effect. [`Effect::CallAgent`], [`Effect::Release`] and [`Effect::RevokeUnshown`] are
    /// not among them.
    pub(super) fn start(&self, effect: Effect) -> BoxFuture<'static, Outcome> {
        let chats = Arc::clone(&self.chats);
        match effect {
            Effect::Load => self.load(),
            Effect::Save { chat, unchanged, revision, ended } => {
                self.save(chat, unchanged, revision, ended)
            }
            Effect::RevokePending => self.revoke_pending(),
            Effect::Delete(revision) => self.delete(revision),
            Effect::Redeem { plan, chat } => self.redeem(*plan, chat, None),
            Effect::CloseOpenCalls { open, plan, chat } => self.redeem(*plan, chat, Some(open)),
            Effect::FindDecided(open) => self.find_decided(open),
            Effect::Claim { run, approvals } => self.claim(&run, approvals),
            Effect::Begin(run) => {
                let (key, holder) = (self.key(&run), self.holder);
                async move {
                    let (lease, max_user_runs) = (chats.run_lease, chats.limits.max_user_runs());
                    let begin = BeginRun { key: &key, holder, lease, max_user_runs };
                    reply(chats.runs.begin(begin).await, Input::Begun)
                }
                .boxed()
            }
            Effect::Append { run, fence, position, entries, end } => {
                let key = self.key(&run);
                async move {
                    let entries = &entries;
                    let append = AppendEntries { key: &key, fence, position, entries, end };
                    reply(chats.runs.append(append).await, Input::Appended)
                }
                .boxed()
            }
            Effect::Take { run, fence, condition } => {
                let (key, holder) = (self.key(&run), self.holder);
                async move {
                    let take = TakeRun { key: &key, fence, holder, condition };
                    reply(chats.runs.take(take).await, Input::Taken)
                }
                .boxed()
            }
            Effect::Read(run) => {
                self.read(run, 0, usize::MAX, |page| Input::Log(page.map(|page| page.entries)))
            }
            Effect::Find(run) => {
                self.read(run, u64::MAX, 0, |page| Input::Log(page.map(|page| page.entries)))
            }
            Effect::CallAgent(_) | Effect::Release { .. } | Effect::RevokeUnshown(_) => {
                ready(Outcome::Input(Input::AgentEnded)).boxed()
            }
        }
    }

    /// Looks up the state of a run.
    pub(super) fn look(&self, run: Option<RunId>) -> BoxFuture<'static, Outcome> {
        match run {
            Some(run) => self.read(run, u64::MAX, 0, |page| {
                Input::Tick(page.map(|page| (page.state, page.fence)))
            }),
            None => ready(Outcome::Input(Input::Tick(None))).boxed(),
        }
    }

    /// Waits until a run has changed.
    pub(super) fn changed(&self, run: &RunId) -> BoxFuture<'static, ()> {
        let (chats, key) = (Arc::clone(&self.chats), self.key(run));
        async move { chats.runs.changed(&key, u64::MAX).await }.boxed()
    }

    /// Waits for the next result of the calls that are executed.
    pub(super) fn next_result(mut calls: Box<RunningCalls>) -> BoxFuture<'static, Outcome> {
        async move {
            match calls.next().await {
                Some(result) => {
                    let result = Box::new(received(&calls, &result));
                    Outcome::Result(result, calls)
                }
                None => Outcome::Input(Input::Redeemed),
            }
        }
        .boxed()
    }

    /// Returns what revokes an approval request that the client cannot answer.
    pub(super) fn revoker(&self) -> Revoke {
        let (chats, approvals) = (Arc::clone(&self.chats), self.approvals());
        Arc::new(move |id| {
            let (chats, approvals) = (Arc::clone(&chats), approvals.clone());
            async move {
                // The request may name another message, or none.
                revoke(&chats, &approvals, |pending| pending.approval_id == id).await
            }
            .boxed()
        })
    }

    fn key(&self, run: &RunId) -> RunKey {
        RunKey { owner: self.owner.clone(), chat: self.chat_id.clone(), run: run.clone() }
    }

    fn approvals(&self) -> ChatApprovals {
        let approvals = self.chats.approvals.for_chat(&self.principal, &self.chat_id);
        approvals.on_behalf_of(&self.owner).granting_to_providers()
    }

    fn load(&self) -> BoxFuture<'static, Outcome> {
        let (chats, owner) = (Arc::clone(&self.chats), self.owner.clone());
        let (id, known) = (self.chat_id.clone(), self.known.clone());
        async move {
            let loaded = match known {
                Some(known) => chats.reload(known).await,
                None => chats.load(&owner, &id).await,
            };
            match loaded {
                Ok(stored) => Outcome::Loaded(stored),
                Err(error) => Outcome::Unknown(After::LoadAgain, Failure::Chats(error)),
            }
        }
        .boxed()
    }

    fn save(
        &self,
        chat: Box<Chat>,
        unchanged: usize,
        revision: Option<u64>,
        ended: Option<EndedMessage>,
    ) -> BoxFuture<'static, Outcome> {
        let (chats, approvals) = (Arc::clone(&self.chats), self.approvals());
        async move {
            let keep_for = chats.limits.chat_ttl();
            let save = SaveChat { chat: &chat, revision, unchanged, keep_for };
            match chats.store.save(save).await {
                Ok(result) => {
                    if let Some(ended) = ended.filter(|_| result != SaveResult::Conflict)
                        && let Err(error) = revoke_unshown(&chats, &approvals, &chat, &ended).await
                    {
                        tracing::warn!(%error, "an approval request that is not shown stays open");
                    }
                    Outcome::Saved(chat, result)
                }
                Err(error) => {
                    Outcome::Unknown(After::Input(Input::SaveUnknown), Failure::Chats(error))
                }
            }
        }
        .boxed()
    }

    fn revoke_pending(&self) -> BoxFuture<'static, Outcome> {
        let (chats, approvals) = (Arc::clone(&self.chats), self.approvals());
        async move {
            match revoke(&chats, &approvals, |_| true).await {
                Ok(()) => Outcome::Input(Input::Revoked),
                Err(error) => Outcome::Unknown(After::Input(Input::Failed), Failure::Ledger(error)),
            }
        }
        .boxed()
    }

    fn delete(&self, revision: u64) -> BoxFuture<'static, Outcome> {
        let (chats, owner) = (Arc::clone(&self.chats), self.owner.clone());
        let id = self.chat_id.clone();
        async move {
            match chats.store.delete(&owner, &id, revision).await {
                Ok(is_deleted) => Outcome::Input(Input::Deleted(is_deleted)),
                Err(error) => Outcome::Unknown(After::Input(Input::Failed), Failure::Chats(error)),
            }
        }
        .boxed()
    }

    fn read(
        &self,
        run: RunId,
        after: u64,
        max_bytes: usize,
        input: fn(Option<LogPage>) -> Input,
    ) -> BoxFuture<'static, Outcome> {
        let (chats, key) = (Arc::clone(&self.chats), self.key(&run));
        async move {
            let read = ReadLog { key: &key, after, max_bytes, is_reader: false };
            loop {
                match chats.runs.read(read).await {
                    Ok(page) => return Outcome::Input(input(page)),
                    Err(error) => {
                        tracing::warn!(%error, "the log of a run cannot be read");
                        tokio::time::sleep(READ_AGAIN).await;
                    }
                }
            }
        }
        .boxed()
    }

    /// Redeems the answers of a plan. With a list of open calls, closes these calls too.
    fn redeem(
        &self,
        plan: ResumePlan,
        chat: Box<Chat>,
        open: Option<Vec<PendingToolCall>>,
    ) -> BoxFuture<'static, Outcome> {
        let (chats, approvals) = (Arc::clone(&self.chats), self.approvals());
        async move {
            // Only the calls that the client executes can be in the log alone.
            let chat = match plan.unverified_outputs().next() {
                Some(_) => chats.with_live_run(*chat).await,
                None => *chat,
            };
            let answers = plan.unverified_responses();
            let answered: Vec<_> =
                answers.map(|answer| (answer.approval_id.clone(), answer.approved)).collect();
            let plan = plan.with_followed_messages(chat.messages_followed_by_user());
            let mut calls = match approvals.resolve(plan, &chat.client_executed).await {
                Ok(calls) => Box::new(calls),
                Err(error) => {
                    return Outcome::NotRedeemed(open.is_some(), Failure::Ledger(error));
                }
            };
            let deferred = calls.results().clone();
            let superseded = deferred.superseded().iter().map(|call| {
                let descriptor = calls.descriptor_of_superseded(call);
                ReceivedResult::new(call.with_outcome(DeferredOutcome::Superseded), descriptor)
            });
            let mut known: Vec<ReceivedResult> = superseded.collect();
            let first = match open {
                None => {
                    let known = known.into_iter().map(|result| Input::CallSettled(result.into()));
                    known.collect()
                }
                Some(mut open) => {
                    while let Some(Some(result)) = calls.next().now_or_never() {
                        known.push(received(&calls, &result));
                    }
                    open.retain(|call| {
                        let is_it = |id: &Option<ApprovalId>| *id == call.approval_id;
                        !deferred.pending().iter().any(|pending| is_it(&pending.approval_id))
                            && !known.iter().any(|known| is_it(&known.result.approval_id))
                    });
                    match decided(&approvals, &open).await {
                        Ok(decided) => known.extend(decided),
                        Err(error) => return Outcome::NotRedeemed(true, Failure::Ledger(error)),
                    }
                    vec![Input::CallsClosed(known)]
                }
            };
            let accepted = answered.into_iter();
            let accepted = accepted.filter(|(id, _)| calls.is_accepted(id)).collect();
            Outcome::Redeeming { first, accepted, deferred, calls }
        }
        .boxed()
    }

    fn find_decided(&self, open: Vec<PendingToolCall>) -> BoxFuture<'static, Outcome> {
        let approvals = self.approvals();
        async move {
            match decided(&approvals, &open).await {
                Ok(decided) => Outcome::Input(Input::CallsClosed(decided)),
                Err(error) => {
                    let none = After::Input(Input::CallsClosed(Vec::new()));
                    Outcome::Unknown(none, Failure::Ledger(error))
                }
            }
        }
        .boxed()
    }

    fn claim(
        &self,
        run: &RunId,
        approvals: Vec<DeferredToolResult>,
    ) -> BoxFuture<'static, Outcome> {
        let (chat, sender) = (self.approvals(), sender_of(run));
        async move {
            match chat.claim_for_provider(approvals, sender).await {
                Ok(claimed) => Outcome::Input(Input::Claimed(Some(claimed))),
                Err(error) => {
                    tracing::warn!(%error, "approvals for a provider cannot be claimed");
                    Outcome::Unknown(After::Input(Input::Claimed(None)), Failure::Ledger(error))
                }
            }
        }
        .boxed()
    }
}

/// Returns the lease holder that sends the approvals of a run. It is not that of the turn: a turn
/// whose run was taken may begin another one, which must not send them again.
fn sender_of(run: &RunId) -> LeaseHolderId {
    let mut id = [0; 16];
    id.copy_from_slice(&Sha256::digest(run.as_str())[..16]);
    LeaseHolderId::from_bytes(id)
}

/// Returns the reply of the store of runs. After a failure it is not known.
fn reply<T>(result: Result<T, RunStoreError>, input: fn(Option<T>) -> Input) -> Outcome {
    match result {
        Ok(reply) => Outcome::Input(input(Some(reply))),
        Err(error) => Outcome::Unknown(After::Input(input(None)), Failure::Runs(error)),
    }
}

fn received(calls: &RunningCalls, result: &DeferredToolResult) -> ReceivedResult {
    let in_history = calls.result_in_history(result);
    let shown = (in_history.outcome != result.outcome).then(|| result.outcome.clone());
    ReceivedResult { shown, ..ReceivedResult::new(in_history, calls.descriptor(result)) }
}

/// Returns the outcomes of those of these calls that the ledger has decided.
async fn decided(
    approvals: &ChatApprovals,
    open: &[PendingToolCall],
) -> Result<Vec<ReceivedResult>, LedgerStoreError> {
    let ids: Vec<ApprovalId> = open.iter().filter_map(|call| call.approval_id.clone()).collect();
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let resolved = approvals.resolved_requests(&ids).await?.into_iter();
    let results = resolved.filter_map(|resolved| {
        let id = Some(&resolved.approval_id);
        let call = open.iter().find(|call| call.approval_id.as_ref() == id)?;
        Some(ReceivedResult::new(call.with_outcome(resolved.outcome), resolved.descriptor))
    });
    Ok(results.collect())
}

/// Revokes the pending approval requests of a message that the saved conversation does not show: the
/// agent was cut off after it had requested them, or its event was dropped.
async fn revoke_unshown(
    chats: &Inner,
    approvals: &ChatApprovals,
    chat: &Chat,
    ended: &EndedMessage,
) -> Result<(), LedgerStoreError> {
    let EndedMessage { id, requested } = ended;
    let shown = || chat.message(id).into_iter().flat_map(|message| message.tool_parts());
    revoke(chats, approvals, |pending| {
        let is_shown = shown().any(|part| part.approval_id() == Some(&pending.approval_id));
        // A request names no message if the agent has approvals of its own.
        let is_of_run =
            pending.record.message_id == *id || requested.contains(&pending.approval_id);
        is_of_run && !is_shown
    })
    .await
}

/// Revokes some of the pending approval requests of a conversation.
async fn revoke(
    chats: &Inner,
    approvals: &ChatApprovals,
    is_revoked: impl Fn(&PendingApproval) -> bool,
) -> Result<(), LedgerStoreError> {
    for pending in approvals.pending().await? {
        if is_revoked(&pending) {
            chats.approvals.revoke(pending.record.id).await?;
        }
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the glue hands the core its fresh ids")]
pub(super) fn fresh_id() -> uuid::Uuid {
    uuid::Uuid::new_v4()
}

/// The time after which a log is read again that could not be read.
const READ_AGAIN: Duration = Duration::from_secs(1);
