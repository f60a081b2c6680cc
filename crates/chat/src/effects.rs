//! [`Effects`]: performs what a turn asks for, with the store of logs and the approvals.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::time::sleep;

use super::log::decision::Append;
use super::log::entry::Entry;
use super::log::state::ChatState;
use super::log::state::stored::StateSnapshot;
use super::log::turn_io::{Effect, EffectId, Input, Reply};
use crate::ChatLimits;
use crate::agent::events::Revoke;
use crate::conversation::ReceivedResult;
use crate::inner::Inner;
use crate::redeem::{Redeemed, decided, not_stored, received, revoke, revoke_all, revoker};
use crate::store::{
    AppendLog, AppendResult, ChatStoreError, Epoch, ListedChat, LoadLog, LoadedLog, LogKey,
    LogStore, PutSnapshot, ReadLogEntries, StoredEntry, Unchanged, Undelivered, UserLimits,
};
use crate::{Chat, ChatError};
use ui_message_stream::BoxError;
use ui_message_stream::approval::store::LedgerStoreError;
use ui_message_stream::approval::{
    CallUpdate, ChatApprovals, LeaseHolderId, PendingApproval, PendingToolCall, Principal,
    ResumePlan, RunningCalls,
};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::log_causes;
use ui_message_stream::retry::repeat;

/// Performs the effects of one turn. A clone is cheap.
#[derive(Clone)]
pub(super) struct Effects(Arc<Stores>);

/// The stores and the approvals of one turn.
pub(super) struct Stores {
    pub(super) chats: Arc<Inner>,
    pub(super) logs: Arc<dyn LogStore>,
    pub(super) key: LogKey,
    principal: Principal,
}

/// What a turn has waited for.
pub(super) enum Outcome {
    Input(Input),
    /// A store has failed, and the effect may have been executed, or may still be.
    Unknown(EffectId, ChatError),
    /// The ledger has failed.
    LedgerFailed(EffectId, ChatError),
    /// A store has failed again and again.
    Failed(ChatError),
    /// The ledger has the answers, perhaps to close calls for this effect. Approved calls are being executed.
    AnswersStored(Option<EffectId>, Box<Redeemed>),
    Result(Box<ReceivedResult>, Box<RunningCalls>),
    Progress(Box<AgentEvent>, Box<RunningCalls>),
    /// All answered calls have results.
    CallsEnded,
    NotRedeemed(ChatError),
    /// Another server may have appended to the log.
    OtherAppended,
    /// The server is shut down, and its time is up.
    ServerClosed,
}

impl Effects {
    pub(super) fn new(chats: &Arc<Inner>, principal: Principal, key: LogKey) -> Self {
        let (chats, logs) = (Arc::clone(chats), Arc::clone(&chats.logs));
        Effects(Arc::new(Stores { chats, logs, key, principal }))
    }

    pub(super) fn stores(&self) -> &Stores {
        &self.0
    }

    /// Starts an effect. One that only reads is repeated until it has failed this often.
    pub(super) fn start(
        &self,
        id: EffectId,
        effect: Effect,
        max_failures: u32,
    ) -> BoxFuture<'static, Outcome> {
        let stores = Arc::clone(&self.0);
        // Appends are frequent: they have a future of their own, which is small.
        if let Effect::Append(append) = effect {
            return async move {
                match stores.append(&append).await {
                    Ok(result) => Outcome::Input(Input::Reply(id, Reply::Appended(result))),
                    Err(error) => Outcome::Unknown(id, error.into()),
                }
            }
            .boxed();
        }
        async move {
            let outcome = stores.perform(id, effect, max_failures).await;
            outcome.unwrap_or_else(Outcome::Failed)
        }
        .boxed()
    }

    /// Stores a snapshot of what the log holds. Tries it this many times. A shutdown waits for it while the
    /// future lives.
    pub(super) fn store_snapshot(&self, attempts: u32) -> BoxFuture<'static, ()> {
        let stores = Arc::clone(&self.0);
        let counted = stores.chats.shutdown.count_turn(false);
        async move {
            let store = || stores.store_snapshot().boxed();
            if let Err(error) = repeat("tidy up a chat", attempts, store).await {
                let chat_id = stores.key.chat.as_str();
                tracing::warn!(chat_id, error = log_causes(&error), "a chat is not tidied up");
            }
            drop(counted);
        }
        .boxed()
    }

    /// Waits for what the calls that are executed show next, or for the next result.
    pub(super) fn next_update(mut calls: Box<RunningCalls>) -> BoxFuture<'static, Outcome> {
        async move {
            match calls.next_update().await {
                Some(CallUpdate::Settled(result)) => {
                    Outcome::Result(Box::new(received(&calls, &result)), calls)
                }
                Some(CallUpdate::Progress(event)) => Outcome::Progress(Box::new(event), calls),
                // A kind that this version does not know.
                Some(_) => Self::next_update(calls).await,
                None if calls.is_incomplete() => Outcome::NotRedeemed(not_stored().into()),
                None => Outcome::CallsEnded,
            }
        }
        .boxed()
    }

    /// Returns what revokes an approval request that the client cannot answer.
    pub(super) fn revoker(&self) -> Revoke {
        revoker(&self.0.chats, self.0.approvals())
    }
}

impl Stores {
    fn approvals(&self) -> ChatApprovals {
        let approvals = self.chats.approvals.for_chat(&self.principal, &self.key.chat);
        approvals.on_behalf_of(&self.key.owner).granting_to_providers()
    }

    /// Records that a request answers calls which the chat does not hold.
    pub(super) fn audit_unknown_calls(&self, plan: &ResumePlan) {
        self.approvals().audit_unknown_calls(plan);
    }

    pub(super) async fn load(&self, has_frames: bool) -> Result<Option<LoadedLog>, ChatStoreError> {
        let _turn = self.chats.loads.turn(&self.key.owner).await;
        self.logs.load(LoadLog { key: &self.key, has_frames, has_messages: true }).await
    }

    async fn store_snapshot(&self) -> Result<(), ChatStoreError> {
        let LogKey { owner, chat } = &self.key;
        let Some(loaded) = self.load(true).await? else { return Ok(()) };
        let loaded_state = ChatState::of_loaded(chat, owner, &loaded);
        let (mut state, stored) = loaded_state.map_err(ChatStoreError::new)?;
        let Some(snapshot) = state.snapshot() else { return Ok(()) };
        let unchanged = stored.map(|(position, messages)| Unchanged {
            position,
            messages: snapshot.messages.shared_prefix(&messages),
        });
        put_snapshot(&*self.logs, &self.key, loaded.head.epoch, &snapshot, unchanged).await
    }

    async fn append(&self, to_append: &Append) -> Result<AppendResult, ChatStoreError> {
        let Stores { chats, logs, key, .. } = self;
        let is_for_sink =
            chats.sink.is_some() && to_append.entries.iter().any(Entry::changes_messages);
        let result =
            append(&**logs, key, to_append, &chats.limits, MIN_UNREAD, is_for_sink).await?;
        if let (true, AppendResult::Appended { head, .. }) = (is_for_sink, &result) {
            let key = key.clone();
            let epoch = head.epoch;
            let position = head.length;
            chats.deliver_later(Undelivered { key, epoch, position });
        }
        Ok(result)
    }

    /// Performs an effect. Returns an error if it has failed too often.
    async fn perform(
        &self,
        id: EffectId,
        effect: Effect,
        attempts: u32,
    ) -> Result<Outcome, ChatError> {
        let Stores { chats, logs, key, .. } = self;
        let reply = match effect {
            Effect::Load { has_frames } => {
                let load = || self.load(has_frames).boxed();
                Reply::Loaded(repeat("load a chat", attempts, load).await?.map(Box::new))
            }
            Effect::ReadTail { epoch, position } => {
                let max_bytes = MAX_TAIL_BYTES;
                let read = ReadLogEntries { key, epoch, position, max_bytes, is_reader: false };
                Reply::Tail(repeat("read a log", attempts, || logs.read(read)).await?)
            }
            Effect::Append(append) => Reply::Appended(self.append(&append).await?),
            // Once: after a lost reply it is loaded what has become of it.
            Effect::Delete { epoch, control } => match logs.delete(key, epoch, control).await {
                Ok(is_deleted) => {
                    if is_deleted {
                        chats.deliver_later(Undelivered::deletion(key.clone(), epoch));
                    }
                    Reply::Deleted
                }
                Err(error) => return Ok(Outcome::Unknown(id, error.into())),
            },
            Effect::CloseCalls { open, removed, plan, chat } => {
                return Ok(match self.close_calls(open, &removed, *plan, *chat).await {
                    Ok(redeemed) => Outcome::AnswersStored(Some(id), Box::new(redeemed)),
                    Err(error) => Outcome::LedgerFailed(id, error),
                });
            }
            Effect::FindDecided(open) => {
                let approvals = self.approvals();
                let find = || decided(&approvals, &open).boxed();
                match repeat("find decided approvals", attempts, find).await {
                    Ok(results) => Reply::Calls(results),
                    Err(error) => return Ok(Outcome::LedgerFailed(id, error.into())),
                }
            }
            Effect::Redeem { plan, chat } => {
                let redeemed = Redeemed::new(&self.approvals(), *plan, *chat, None).await;
                return Ok(match redeemed {
                    Ok(redeemed) => Outcome::AnswersStored(None, Box::new(redeemed)),
                    Err(error) => Outcome::NotRedeemed(error.into()),
                });
            }
            Effect::ClaimForProvider { run, approvals } => {
                let chat = self.approvals();
                let sender = LeaseHolderId::digest_of(run.as_str());
                let claim = || chat.claim_for_provider(approvals.clone(), sender).boxed();
                let sent = repeat("claim approvals for a provider", attempts, claim).await;
                let failed = |error: &LedgerStoreError| {
                    tracing::error!(
                        error = log_causes(error),
                        "approvals for a provider are not claimed"
                    )
                };
                let sent = sent.inspect_err(failed).ok();
                return Ok(Outcome::Input(Input::Claimed { run, approvals, sent }));
            }
            Effect::RevokePending(epoch) => {
                let revoke = || self.revoke_pending(epoch).boxed();
                repeat("revoke approvals", attempts, revoke).await?;
                Reply::Revoked
            }
            Effect::RevokeUnshown => {
                let revoke = || self.revoke_unshown().boxed();
                repeat("revoke approvals", attempts, revoke).await?;
                Reply::Revoked
            }
            Effect::PutSnapshot { epoch, snapshot, unchanged } => {
                let put = || put_snapshot(&**logs, key, epoch, &snapshot, unchanged).boxed();
                repeat("tidy up a chat", attempts, put).await?;
                Reply::Revoked
            }
            Effect::ShortPause => {
                sleep(SHORT_PAUSE).await;
                Reply::Waited
            }
            Effect::Pause => {
                sleep((chats.run_lease / 20).min(MAX_RENEWAL_PAUSE)).await;
                Reply::Waited
            }
            // The driver calls the agent.
            Effect::CallAgent(_) => Reply::Waited,
        };
        Ok(Outcome::Input(Input::Reply(id, reply)))
    }

    async fn close_calls(
        &self,
        open: Vec<PendingToolCall>,
        removed: &[PendingToolCall],
        plan: ResumePlan,
        chat: Chat,
    ) -> Result<Redeemed, ChatError> {
        let approvals = self.approvals();
        let is_removed = |pending: &PendingApproval| {
            removed.iter().any(|call| call.approval_id.as_ref() == Some(&pending.approval_id))
        };
        if !removed.is_empty() {
            revoke(&self.chats, &approvals, is_removed).await?;
        }
        Ok(Redeemed::new(&approvals, plan, chat, Some(open)).await?)
    }

    /// Revokes the pending approvals of the log with this epoch, or of a chat without a log.
    async fn revoke_pending(&self, epoch: Option<Epoch>) -> Result<(), ChatError> {
        // Before the log is loaded: what another log requests later is not among them.
        let pending = self.approvals().pending().await?;
        let load = LoadLog { key: &self.key, has_frames: false, has_messages: false };
        let log = self.logs.load(load).await?;
        if log.is_none_or(|log| Some(log.head.epoch) == epoch) {
            revoke_all(&self.chats, pending).await?;
        }
        Ok(())
    }

    /// Revokes the pending approvals that the newest log does not show.
    async fn revoke_unshown(&self) -> Result<(), ChatError> {
        let mut pending = self.approvals().pending().await?;
        if pending.is_empty() {
            return Ok(());
        }
        let LogKey { owner, chat } = &self.key;
        let loaded = self.load(true).await?;
        let state = match loaded.map(|loaded| ChatState::of_loaded(chat, owner, &loaded)) {
            Some(Ok((state, _))) => state,
            Some(Err(error)) => return Err(ChatStoreError::new(BoxError::from(error)).into()),
            None => ChatState::new(chat.clone(), owner.clone()),
        };
        let live = state.live().map(|live| &live.message_id);
        pending.retain(|pending| {
            let mut calls = state.chat().messages.iter().flat_map(|message| message.tool_parts());
            let is_shown = calls.any(|part| part.approval_id() == Some(&pending.approval_id));
            !is_shown && live != Some(&pending.record.message_id)
        });
        Ok(revoke_all(&self.chats, pending).await?)
    }
}

/// Appends to a log. `unread` is the time without a reader after which a run may have to end for another one.
pub(super) async fn append(
    logs: &dyn LogStore,
    key: &LogKey,
    append: &Append,
    limits: &ChatLimits,
    unread: Duration,
    is_for_sink: bool,
) -> Result<AppendResult, ChatStoreError> {
    let entries: Vec<StoredEntry> = append.entries.iter().map(Entry::stored).collect();
    let listed = append.listed.as_ref();
    let append = AppendLog {
        key,
        expected: append.expected,
        entries: &entries,
        lease: append.lease,
        only_lost: append.only_lost,
        live_run: Entry::live_run_change(&append.entries),
        listed: listed.map(|(title, questions)| ListedChat { title, has_questions: *questions }),
        keep_for: limits.chat_ttl(),
        limits: UserLimits { chats: limits.max_user_chats(), runs: limits.max_user_runs(), unread },
        is_for_sink,
    };
    logs.append(append).await
}

/// Stores a snapshot. If the stored one is not the expected one, all messages are written.
pub(super) async fn put_snapshot(
    logs: &dyn LogStore,
    key: &LogKey,
    epoch: Epoch,
    snapshot: &StateSnapshot,
    unchanged: Option<Unchanged>,
) -> Result<(), ChatStoreError> {
    let StateSnapshot { position, head, messages } = snapshot;
    for unchanged in [unchanged, None] {
        let changed = messages.json_from(unchanged.map_or(0, |base| base.messages));
        let changed = &*changed.map_err(ChatStoreError::new)?;
        let position = *position;
        let put = PutSnapshot { key, epoch, position, head, unchanged, changed };
        if logs.put_snapshot(put).await? || unchanged.is_none() {
            break;
        }
    }
    Ok(())
}

/// A run may have to end for another one if no client has read it for this time.
const MIN_UNREAD: Duration = Duration::from_secs(30);

/// How much of a log a turn reads at once.
const MAX_TAIL_BYTES: usize = 1 << 20;

/// How long a turn waits for the holder of a run whose lease has passed, before it looks again. It looks
/// several times: together a quarter of the lease, at most 2.5 seconds, which is longer than the pause after
/// which the holder repeats an append ([`MAX_PAUSE`](ui_message_stream::retry::MAX_PAUSE)).
const MAX_RENEWAL_PAUSE: Duration = Duration::from_millis(500);

/// How long a turn waits for the first entry of a run before it looks again.
const SHORT_PAUSE: Duration = Duration::from_millis(10);
