//! [`Effects`]: performs what a turn asks for, with the stores and the approvals.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use sha2::{Digest, Sha256};
use tokio::time::sleep;

use super::machine::{Effect, EndedMessage, Input};
use crate::approval::{
    ChatApprovals, DeferredToolResult, LeaseHolderId, PendingToolCall, Principal, ResumePlan,
    RunningCalls,
};
use crate::chat::agent::events::Revoke;
use crate::chat::conversation::ReceivedResult;
use crate::chat::inner::Inner;
use crate::chat::log::{AppendEntries, BeginRun, Fence, ReadLog, RunKey, TakeRun};
use crate::chat::redeem::{
    Redeemed, decided, received, revoke, revoke_requested_in_vain, revoke_unshown,
};
use crate::chat::store::{SaveChat, SaveResult, VersionedChat};
use crate::chat::{Chat, ChatError};
use crate::id::{ChatId, RunId};

/// The stores and the approvals of one turn.
#[derive(Clone)]
pub(super) struct Effects {
    pub(super) chats: Arc<Inner>,
    principal: Principal,
    owner: Principal,
    chat_id: ChatId,
    holder: LeaseHolderId,
    /// The version of the conversation that this turn has loaded or saved last.
    known: Option<Arc<VersionedChat>>,
}

/// The result of an effect.
pub(super) enum Outcome {
    Input(Input),
    Loaded(Option<VersionedChat>),
    Saved(Box<Chat>, SaveResult),
    /// The store has failed again and again.
    Failed(ChatError),
    /// The store has failed, and may have saved the conversation.
    SaveUnknown(ChatError),
    /// The ledger has failed, when it was to redeem answers, and perhaps to close calls.
    NotRedeemed(bool, ChatError),
    /// The ledger has failed again and again, when it was to claim approvals.
    NotClaimed(ChatError),
    /// The answers are redeemed, perhaps to close calls, and the approved calls are executed.
    Redeeming(bool, Redeemed),
    Result(Box<ReceivedResult>, Box<RunningCalls>),
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
        self.known = known.map(Arc::new);
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
        let effects = self.clone();
        async move {
            let Effects { chats, owner, chat_id, .. } = &effects;
            let approvals = effects.approvals();
            let revoked: Result<(), ChatError> = async {
                let chat = chats.load(owner, chat_id).await?.map(|stored| stored.chat);
                Ok(revoke_requested_in_vain(chats, &approvals, chat, &ended).await?)
            }
            .await;
            if let Err(error) = revoked {
                tracing::warn!(%error, "approval requests of a run that was taken stay open");
            }
        }
        .boxed()
    }

    /// Starts an effect, which is repeated until it has failed this many times.
    /// [`Effect::CallAgent`], [`Effect::Release`] and [`Effect::RevokeUnshown`] are not among the
    /// effects.
    pub(super) fn start(&self, effect: Effect, max_failures: u32) -> BoxFuture<'static, Outcome> {
        let (chats, holder) = (Arc::clone(&self.chats), self.holder);
        let (lease, limits) = (self.chats.run_lease, &self.chats.limits);
        match effect {
            Effect::Load => self.load(max_failures),
            Effect::Save { chat, unchanged, revision, ended } => {
                self.save(chat, unchanged, revision, ended)
            }
            Effect::RevokePending => self.revoke_pending(max_failures),
            Effect::Delete(revision) => self.delete(revision),
            Effect::Redeem { plan, chat } => self.redeem(*plan, *chat, None),
            Effect::CloseOpenCalls { open, plan, chat } => self.redeem(*plan, *chat, Some(open)),
            Effect::FindDecided(open) => self.find_decided(open, max_failures),
            Effect::Claim { run, approvals } => self.claim(&run, approvals, max_failures),
            Effect::Begin(run) => {
                let (key, max_user_runs) = (self.key(&run), limits.max_user_runs());
                async move {
                    let begin = BeginRun { key: &key, holder, lease, max_user_runs };
                    let begun = repeated(max_failures, || chats.runs.begin(begin)).await;
                    outcome(begun, Input::Begun)
                }
                .boxed()
            }
            Effect::Append { run, fence, position, entries, end } => {
                let key = self.key(&run);
                async move {
                    let entries = &entries;
                    let append = AppendEntries { key: &key, fence, position, entries, end };
                    let appended = repeated(max_failures, || chats.runs.append(append)).await;
                    outcome(appended, Input::Appended)
                }
                .boxed()
            }
            Effect::Take { run, fence, condition } => {
                let key = self.key(&run);
                async move {
                    let take = TakeRun { key: &key, fence, holder, condition };
                    let taken = repeated(max_failures, || chats.runs.take(take)).await;
                    outcome(taken, |taken| {
                        chats.run_counters.count_taken(condition, taken);
                        Input::Taken(taken)
                    })
                }
                .boxed()
            }
            Effect::Read(run) => {
                let key = self.key(&run);
                async move {
                    let read = ReadLog::whole(&key);
                    let page = repeated(max_failures, || chats.runs.read(read)).await;
                    outcome(page, |page| Input::Log(page.map(|page| page.entries)))
                }
                .boxed()
            }
            Effect::CallAgent(_) | Effect::Release { .. } | Effect::RevokeUnshown(_) => {
                ready(Outcome::Input(Input::AgentEnded)).boxed()
            }
        }
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

    fn load(&self, max_failures: u32) -> BoxFuture<'static, Outcome> {
        let effects = self.clone();
        async move {
            let Effects { chats, owner, chat_id, known, .. } = &effects;
            let load = || match known {
                Some(known) => chats.reload((**known).clone()).boxed(),
                None => chats.load(owner, chat_id).boxed(),
            };
            match repeated(max_failures, load).await {
                Ok(stored) => Outcome::Loaded(stored),
                Err(error) => Outcome::Failed(error),
            }
        }
        .boxed()
    }

    /// Saves the conversation once: if the reply is lost, the turn has to compare.
    fn save(
        &self,
        chat: Box<Chat>,
        unchanged: usize,
        revision: Option<u64>,
        ended: Option<EndedMessage>,
    ) -> BoxFuture<'static, Outcome> {
        let (chats, approvals) = (Arc::clone(&self.chats), self.approvals());
        async move {
            // The log holds no more requests than this version of the conversation.
            if let Some(ended) = ended
                && let Err(error) = revoke_unshown(&chats, &approvals, &chat, &ended).await
            {
                tracing::warn!(%error, "an approval request that is not shown stays open");
            }
            let keep_for = chats.limits.chat_ttl();
            let save = SaveChat { chat: &chat, revision, unchanged, keep_for };
            match chats.store.save(save).await {
                Ok(result) => Outcome::Saved(chat, result),
                Err(error) => {
                    sleep(BACKOFF).await;
                    Outcome::SaveUnknown(error.into())
                }
            }
        }
        .boxed()
    }

    fn redeem(
        &self,
        plan: ResumePlan,
        chat: Chat,
        open: Option<Vec<PendingToolCall>>,
    ) -> BoxFuture<'static, Outcome> {
        let (chats, approvals) = (Arc::clone(&self.chats), self.approvals());
        async move {
            let is_closing = open.is_some();
            match Redeemed::new(&chats, &approvals, plan, chat, open).await {
                Ok(redeemed) => Outcome::Redeeming(is_closing, redeemed),
                Err(error) => Outcome::NotRedeemed(is_closing, error.into()),
            }
        }
        .boxed()
    }

    fn find_decided(
        &self,
        open: Vec<PendingToolCall>,
        max_failures: u32,
    ) -> BoxFuture<'static, Outcome> {
        let approvals = self.approvals();
        async move {
            let results = repeated(max_failures, || decided(&approvals, &open).boxed()).await;
            outcome(results, Input::CallsClosed)
        }
        .boxed()
    }

    fn revoke_pending(&self, max_failures: u32) -> BoxFuture<'static, Outcome> {
        let (chats, approvals) = (Arc::clone(&self.chats), self.approvals());
        async move {
            let revoke = || revoke(&chats, &approvals, |_| true).boxed();
            outcome(repeated(max_failures, revoke).await, |()| Input::Revoked)
        }
        .boxed()
    }

    /// Deletes the conversation once: after a lost reply it is not known which revision is gone.
    fn delete(&self, revision: u64) -> BoxFuture<'static, Outcome> {
        let effects = self.clone();
        async move {
            let Effects { chats, owner, chat_id, .. } = &effects;
            let deleted = chats.store.delete(owner, chat_id, revision).await;
            outcome(deleted.map_err(ChatError::from), Input::Deleted)
        }
        .boxed()
    }

    fn claim(
        &self,
        run: &RunId,
        approvals: Vec<DeferredToolResult>,
        max_failures: u32,
    ) -> BoxFuture<'static, Outcome> {
        let (chat, sender) = (self.approvals(), sender_of(run));
        async move {
            let claim = || chat.claim_for_provider(approvals.clone(), sender).boxed();
            match repeated(max_failures, claim).await {
                Ok(claimed) => Outcome::Input(Input::Claimed(claimed)),
                Err(error) => Outcome::NotClaimed(error),
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

/// Repeats an operation until it succeeds, or has failed this many times.
async fn repeated<'a, T, E: Into<ChatError>>(
    max_failures: u32,
    operation: impl Fn() -> BoxFuture<'a, Result<T, E>>,
) -> Result<T, ChatError> {
    let mut failures = 0;
    loop {
        let error: ChatError = match operation().await {
            Ok(value) => return Ok(value),
            Err(error) => error.into(),
        };
        failures += 1;
        if failures >= max_failures {
            return Err(error);
        }
        tracing::warn!(%error, "an operation of a turn has failed");
        sleep(BACKOFF * failures.min(10)).await;
    }
}

fn outcome<T>(result: Result<T, ChatError>, input: impl FnOnce(T) -> Input) -> Outcome {
    match result {
        Ok(value) => Outcome::Input(input(value)),
        Err(error) => Outcome::Failed(error),
    }
}

#[expect(clippy::disallowed_methods, reason = "the glue hands the core its fresh ids")]
pub(super) fn fresh_id() -> uuid::Uuid {
    uuid::Uuid::new_v4()
}

/// The time after a failure, for each failure in a row.
const BACKOFF: Duration = Duration::from_millis(200);
