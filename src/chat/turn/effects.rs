//! [`Effects`]: performs what a turn asks for, with the stores and the approvals.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tracing::Instrument;

use super::machine::{Effect, EndedMessage, Input};
use crate::approval::{
    ChatApprovals, LeaseHolderId, PendingToolCall, Principal, ResumePlan, RunningCalls,
};
use crate::chat::agent::events::Revoke;
use crate::chat::conversation::{LiveRun, ReceivedResult};
use crate::chat::inner::Inner;
use crate::chat::log::{AppendEntries, BeginRun, ReadLog, RunKey, TakeRun};
use crate::chat::redeem::{
    Redeemed, decided, received, revoke_if_unchanged, revoke_requested_in_vain, revoke_unshown,
    revoker,
};
use crate::chat::shutdown::Counted;
use crate::chat::store::{SaveChat, SaveResult, VersionedChat};
use crate::chat::{Chat, ChatError};
use crate::id::{ChatId, RunId};
use crate::retry::repeat;

/// Performs the effects of one turn.
pub(super) struct Effects {
    context: Arc<Context>,
    /// The version of the conversation that this turn has loaded or saved last.
    known: Option<Arc<VersionedChat>>,
}

/// The stores and the approvals of one turn.
pub(super) struct Context {
    pub(super) chats: Arc<Inner>,
    principal: Principal,
    owner: Principal,
    chat_id: ChatId,
    holder: LeaseHolderId,
}

/// The result of an effect.
pub(super) enum Outcome {
    Input(Input),
    Loaded(Option<Box<VersionedChat>>),
    Saved(Box<Chat>, SaveResult),
    /// The server is shut down, and its time is up.
    ServerClosed,
    /// The store has failed again and again.
    Failed(ChatError),
    /// The store has failed, and may have saved the conversation in an attempt that began at this time.
    SaveUnknown(ChatError, Instant),
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
        let context = Context { chats: Arc::clone(chats), principal, owner, chat_id, holder };
        Effects { context: Arc::new(context), known: None }
    }

    pub(super) fn chats(&self) -> &Inner {
        &self.context.chats
    }

    /// Keeps a version of the conversation, so that it is not loaded again before it has changed.
    pub(super) fn set_known(&mut self, known: Option<VersionedChat>) {
        self.known = known.map(Arc::new);
    }

    /// Starts an effect, which is repeated until it has failed this many times.
    pub(super) fn start(&self, effect: Effect, max_failures: u32) -> BoxFuture<'static, Outcome> {
        let context = Arc::clone(&self.context);
        // Appends are frequent: they have a future of their own, which is small.
        if let Effect::Append { run, fence, position, entries, end } = effect {
            return async move {
                let (runs, key, entries) = (&context.chats.runs, &context.key(run), &*entries);
                let append = AppendEntries { key, fence, position, entries, end };
                match repeat("append", max_failures, || runs.append(append)).await {
                    Ok(appended) => Outcome::Input(Input::Appended(appended)),
                    Err(error) => Outcome::Failed(error.into()),
                }
            }
            .boxed();
        }
        let known = self.known.as_ref().filter(|_| matches!(effect, Effect::Load)).cloned();
        async move {
            let outcome = context.perform(effect, known.as_deref(), max_failures).await;
            outcome.unwrap_or_else(Outcome::Failed)
        }
        .boxed()
    }

    /// Performs an effect on a task of its own: the turn may end before it.
    pub(super) fn spawn(&self, effect: Effect, max_failures: u32) {
        // A server that is shut down waits for it, as for a turn.
        let counted = self.chats().shutdown.count_turn(false);
        let failure = match effect {
            Effect::RevokeUnshown(_) => "approval requests of a run that was taken stay open",
            _ => "the log of a run is not ended",
        };
        let effect = self.start(effect, max_failures);
        let task = async move {
            if let Outcome::Failed(error) = effect.await {
                tracing::warn!(%error, "{failure}");
            }
            drop(counted);
        };
        tokio::spawn(task.in_current_span());
    }

    /// Hands the run of this turn over to another server, on a task of its own.
    pub(super) fn hand_over(&self, live: &LiveRun, counted: Counted) {
        let Context { chats, holder, .. } = &*self.context;
        let (runs, key) = (Arc::clone(&chats.runs), self.context.key(live.run.clone()));
        tokio::spawn(counted.hand_over(runs, key, live.fence, *holder).in_current_span());
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
        revoker(&self.context.chats, self.context.approvals())
    }
}

impl Context {
    fn key(&self, run: RunId) -> RunKey {
        RunKey { owner: self.owner.clone(), chat: self.chat_id.clone(), run }
    }

    fn approvals(&self) -> ChatApprovals {
        let approvals = self.chats.approvals.for_chat(&self.principal, &self.chat_id);
        approvals.on_behalf_of(&self.owner).granting_to_providers()
    }

    /// Performs an effect. Returns an error if it has failed too often.
    async fn perform(
        &self,
        effect: Effect,
        known: Option<&VersionedChat>,
        attempts: u32,
    ) -> Result<Outcome, ChatError> {
        let Context { chats, owner, chat_id, holder, .. } = self;
        let (holder, lease) = (*holder, chats.run_lease);
        Ok(Outcome::Input(match effect {
            Effect::Load => {
                let load = || match known {
                    Some(known) => chats.reload(known.clone()).boxed(),
                    None => chats.load(owner, chat_id).boxed(),
                };
                let loaded = repeat("load a chat", attempts, load).await?;
                return Ok(Outcome::Loaded(loaded.map(Box::new)));
            }
            Effect::Save { chat, unchanged, revision, is_begun, ended } => {
                let max_chats = is_begun.then(|| chats.limits.max_user_chats());
                return Ok(self.save(chat, (revision, unchanged), max_chats, ended).await);
            }
            Effect::Redeem { plan, chat } => return Ok(self.redeem(*plan, *chat, None).await),
            Effect::CloseOpenCalls { open, plan, chat } => {
                return Ok(self.redeem(*plan, *chat, Some(open)).await);
            }
            Effect::Claim { run, approvals } => {
                // Not the holder of the turn: a turn whose run was taken may begin another one, which
                // must not send them again.
                let (chat, sender) = (self.approvals(), LeaseHolderId::digest_of(run.as_str()));
                let claim = || chat.claim_for_provider(approvals.clone(), sender).boxed();
                match repeat("claim approvals for a provider", attempts, claim).await {
                    Ok(claimed) => Input::Claimed(claimed),
                    Err(error) => return Ok(Outcome::NotClaimed(error.into())),
                }
            }
            Effect::FindDecided(open) => {
                let approvals = self.approvals();
                let find = || decided(&approvals, &open).boxed();
                Input::CallsClosed(repeat("find decided approvals", attempts, find).await?)
            }
            Effect::RevokePending(revision) => {
                let (approvals, of) = (self.approvals(), (owner, chat_id, revision));
                let revoke = || revoke_if_unchanged(chats, &approvals, of, |_| true).boxed();
                repeat("revoke approvals", attempts, revoke).await?;
                Input::Revoked
            }
            // Once: after a lost reply it is not known which revision is gone.
            Effect::Delete(revision) => {
                Input::Deleted(chats.store.delete(owner, chat_id, revision).await?)
            }
            Effect::Begin(run) => {
                let (key, max_user_runs) = (&self.key(run), chats.limits.max_user_runs());
                let begin = BeginRun { key, holder, lease, max_user_runs };
                Input::Begun(repeat("begin a run", attempts, || chats.runs.begin(begin)).await?)
            }
            Effect::Take { run, fence, condition, waits } => {
                let take = TakeRun { key: &self.key(run), fence, holder, condition, lease };
                let taken = chats.take(take, waits, attempts).await?;
                chats.run_counters.count_taken(condition, taken);
                Input::Taken(taken)
            }
            Effect::Read(run) => {
                let key = self.key(run);
                let read = || chats.runs.read(ReadLog::whole(&key));
                let page = repeat("read a log", attempts, read).await?;
                Input::Log(page.map(|page| page.entries))
            }
            Effect::RevokeUnshown(ended) => {
                let revoke = || self.revoke_unshown(&ended).boxed();
                repeat("revoke approvals", attempts, revoke).await?;
                Input::Revoked
            }
            // `start` performs appends, and the driver calls the agent.
            Effect::Append { .. } | Effect::CallAgent(_) => Input::AgentEnded,
        }))
    }

    /// Revokes those approval requests of a run that was taken which the conversation does not show.
    /// The turn that took the run may have revoked what it found before the agent was stopped.
    async fn revoke_unshown(&self, ended: &EndedMessage) -> Result<(), ChatError> {
        let Context { chats, owner, chat_id, .. } = self;
        revoke_requested_in_vain(chats, &self.approvals(), (owner, chat_id), ended).await
    }

    /// Saves the conversation once: if the reply is lost, the turn has to compare.
    async fn save(
        &self,
        chat: Box<Chat>,
        (revision, unchanged): (Option<u64>, usize),
        max_user_chats: Option<usize>,
        ended: Option<EndedMessage>,
    ) -> Outcome {
        let (chats, approvals) = (&self.chats, &self.approvals());
        // The log holds no more requests than this version of the conversation.
        if let Some(ended) = ended
            && let Err(error) = revoke_unshown(chats, approvals, &chat, revision, &ended).await
        {
            tracing::warn!(%error, "an approval request that is not shown stays open");
        }
        let keep_for = chats.limits.chat_ttl();
        let begun = Instant::now();
        let save = SaveChat { chat: &chat, revision, unchanged, keep_for, max_user_chats };
        match chats.store.save(save).await {
            Ok(result) => Outcome::Saved(chat, result),
            Err(error) => Outcome::SaveUnknown(error.into(), begun),
        }
    }

    async fn redeem(
        &self,
        plan: ResumePlan,
        chat: Chat,
        open: Option<Vec<PendingToolCall>>,
    ) -> Outcome {
        let is_closing = open.is_some();
        match Redeemed::new(&self.chats, &self.approvals(), plan, chat, open).await {
            Ok(redeemed) => Outcome::Redeeming(is_closing, redeemed),
            Err(error) => Outcome::NotRedeemed(is_closing, error.into()),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the glue hands the core its fresh ids")]
pub(super) fn fresh_id() -> uuid::Uuid {
    uuid::Uuid::new_v4()
}
