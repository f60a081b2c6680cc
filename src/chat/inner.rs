//! [`Inner`]: the state that all clones of a [`ChatServer`](super::ChatServer) share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::agent::ChatAgent;
use super::client::ClientSettings;
use super::hints::Hints;
use super::loads::{LoadTurn, Loads};
use super::log::{Fence, ReadLog, RunKey, RunState, TakeRefusal, TakeResult, TakeRun};
use super::readers::Readers;
use super::run_counts::RunCounters;
use super::run_log::keep_log;
use super::shutdown::Shutdown;
use super::store::{
    ChatStore, ChatStoreError, ReloadedChat, RunStore, RunStoreError, VersionedChat,
};
use super::{Chat, HistoryImport, PostedHistory};
use crate::approval::{Approvals, Principal};
use crate::id::{ApprovalId, ChatId};
use crate::limits::ChatLimits;
use crate::request::ChatRequest;
use crate::retry::repeat;

/// The agent, the services and the settings of a server of conversations.
#[derive(Clone)]
pub(super) struct Inner {
    pub(super) agent: Arc<dyn ChatAgent>,
    pub(super) approvals: Approvals,
    pub(super) store: Arc<dyn ChatStore>,
    pub(super) runs: Arc<dyn RunStore>,
    /// The logs of chats, which replace the two stores above.
    #[cfg(feature = "log-store")]
    pub(super) logs: Option<Arc<dyn super::chat_log::LogStore>>,
    /// A sweep of the logs will begin.
    #[cfg(feature = "log-store")]
    pub(super) is_sweep_due: Arc<AtomicBool>,
    pub(super) limits: ChatLimits,
    pub(super) posted_history: PostedHistory,
    /// Whether it was logged that messages are kept which a page has removed.
    pub(super) has_warned_of_kept: Arc<AtomicBool>,
    pub(super) history_import: HistoryImport,
    pub(super) clients: ClientSettings,
    pub(super) run_lease: Duration,
    pub(super) hints: Hints,
    pub(super) run_counters: RunCounters,
    pub(super) readers: Readers,
    pub(super) loads: Loads,
    pub(super) shutdown: Shutdown,
}

impl Inner {
    /// Logs once that messages are kept which the posted history of this request lacks.
    pub(super) fn warn_of_kept(&self, chat: &Chat, request: &ChatRequest) {
        let kept = chat.kept_messages(request);
        if kept > 0 && !self.has_warned_of_kept.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                kept,
                "the posted history lacks messages that the server keeps, and the model reads them; if \
                 the page has removed them, set `PostedHistory::Truncate`"
            );
        }
    }

    /// Loads the conversation with this id of this owner.
    ///
    /// # Errors
    /// [`ChatStoreError`], also if the store returns the conversation of another owner. It must not
    /// be disclosed, and a save could never succeed.
    pub(super) async fn load(
        &self,
        owner: &Principal,
        id: &ChatId,
    ) -> Result<Option<VersionedChat>, ChatStoreError> {
        self.load_in_turn(owner, id).await.map(|(stored, _)| stored)
    }

    /// As [`load`](Self::load). The next load of this owner may wait until the turn is dropped.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(super) async fn load_in_turn(
        &self,
        owner: &Principal,
        id: &ChatId,
    ) -> Result<(Option<VersionedChat>, LoadTurn), ChatStoreError> {
        let turn = self.loads.turn(owner).await;
        let stored = self.store.load(owner, id).await?;
        Ok((stored.map(|stored| of_owner(owner, stored)).transpose()?, turn))
    }

    /// Loads the newest version of a conversation. Returns `known` if this is the newest one.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(super) async fn reload(
        &self,
        known: VersionedChat,
    ) -> Result<Option<VersionedChat>, ChatStoreError> {
        let Chat { owner, id, .. } = &known.chat;
        let _turn = self.loads.turn(owner).await;
        match self.store.reload(owner, id, known.revision).await? {
            ReloadedChat::Unchanged => Ok(Some(known)),
            ReloadedChat::Changed(stored) => of_owner(owner, *stored).map(Some),
            ReloadedChat::NotFound => Ok(None),
        }
    }

    /// Returns a conversation with what its live run has written so far.
    pub(super) async fn with_live_run(&self, chat: Chat) -> Chat {
        let Some(live) = chat.live_run() else { return chat };
        let run = live.run.clone();
        let key = &RunKey { owner: chat.owner.clone(), chat: chat.id.clone(), run };
        match self.runs.read(ReadLog::whole(key)).await {
            Ok(Some(page)) => keep_log(&chat, live, &page.entries),
            Ok(None) => chat,
            Err(error) => {
                tracing::warn!(%error, "a chat is read without what its live run has written");
                chat
            }
        }
    }

    /// Takes a run. If `waits` is set, its holder gets the time to renew its lease first. A server that is
    /// shutting down does not take it then, because it could not resume it: it answers as if the lease was
    /// renewed.
    ///
    /// # Errors
    /// The store has failed `max_failures` times in a row.
    pub(super) async fn take(
        &self,
        take: TakeRun<'_>,
        waits: bool,
        max_failures: u32,
    ) -> Result<TakeResult, RunStoreError> {
        let state = match waits {
            true => self.state_after_renewal(take.key, max_failures).await?,
            false => None,
        };
        let is_refused = match state {
            Some(RunState::Leased) => true,
            Some(RunState::LeasePassed) => self.shutdown.has_begun(),
            Some(RunState::Ended) | None => false,
        };
        if is_refused {
            return Ok(TakeResult::Refused(TakeRefusal::LeaseRenewed));
        }
        repeat("take a run", max_failures, || self.runs.take(take)).await
    }

    /// Returns the state of a run, or `None` if there is no such run. If its lease has passed, the holder
    /// gets the time to renew it first: its process may have stood still, or its store may have been away.
    /// A run that was taken before is not waited for, because its taker does not renew the lease.
    ///
    /// # Errors
    /// The store has failed `max_failures` times in a row.
    pub(super) async fn state_after_renewal(
        &self,
        run: &RunKey,
        max_failures: u32,
    ) -> Result<Option<RunState>, RunStoreError> {
        let (pause, mut pauses) = ((self.run_lease / 20).min(MAX_RENEWAL_PAUSE), 0);
        loop {
            let page =
                repeat("read a log", max_failures, || self.runs.read(ReadLog::state(run))).await?;
            let may_be_renewed = page.as_ref().is_some_and(|page| {
                page.state == RunState::LeasePassed && page.fence == Fence::FIRST
            });
            if !may_be_renewed || pauses == RENEWAL_PAUSES {
                return Ok(page.map(|page| page.state));
            }
            // Several short pauses: if this process stands still, it may be the one that has to renew the
            // lease.
            sleep(pause).await;
            pauses += 1;
        }
    }

    /// Changes this copy of a conversation so that it shows approval requests as closed that were
    /// closed without a decision. The stored conversation shows them as closed only after the next
    /// turn.
    pub(super) async fn show_closed_requests(&self, chat: &mut Chat) {
        let open = chat.open_approvals();
        let ids: Vec<ApprovalId> =
            open.iter().filter_map(|open| open.approval_id.clone()).collect();
        if ids.is_empty() {
            return;
        }
        let approvals = self.approvals.for_chat(&chat.owner, &chat.id);
        let closed = approvals.closed_requests(&ids).await.unwrap_or_else(|error| {
            tracing::warn!(%error, "a chat is shown without the state of its approval requests");
            Vec::new()
        });
        for request in closed {
            let id = Some(&request.approval_id);
            let call = open.iter().find(|open| open.approval_id.as_ref() == id);
            let result = call.map(|call| call.with_outcome(request.outcome));
            if let Some(result) = result {
                chat.record_result(&result, request.descriptor.as_ref());
            }
        }
    }
}

fn of_owner(owner: &Principal, stored: VersionedChat) -> Result<VersionedChat, ChatStoreError> {
    match stored.chat.owner == *owner {
        true => Ok(stored),
        false => Err(ChatStoreError::new("the store returned the chat of another owner")),
    }
}

/// How many pauses the holder of a run has to renew a lease that has passed: together a quarter of the
/// lease. With the default lease they are longer than the pause after which the holder repeats an operation
/// of a store ([`MAX_PAUSE`](crate::retry::MAX_PAUSE)).
const RENEWAL_PAUSES: u32 = 5;

const MAX_RENEWAL_PAUSE: Duration = Duration::from_millis(500);
