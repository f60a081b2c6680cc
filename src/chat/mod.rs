//! [`Chats`]: conversations on the server, each turn of them from the request to the stored message.
//!
//! A turn is a run of its own: it redeems what the person answered, hands the agent the server's
//! history, and keeps what the agent says, whether or not the client that asked still reads. The
//! response shows the run while somebody does.
//!
//! ```text
//! request ──▶ history ──▶ resolve ──▶ Turn ──▶ agent ──▶ Recorder ──▶ history
//!                            └─────────────────────┴───▶ response
//! ```

mod run;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_core::Stream;
use tokio::sync::watch;

use self::run::Run;
use crate::approval::{DeferredToolResult, DeferredToolResults, PersonsDecision, Principal};
use crate::approvals::{Approvals, ChatApprovals};
use crate::body::UiMessageStream;
use crate::chat_store::{ChatStore, ChatStoreError, KeptChat, MemoryChats};
use crate::event::AgentEvent;
use crate::history::Chat;
use crate::id::{ChatId, MessageId};
use crate::ledger_store::LedgerStoreError;
use crate::request::ChatRequest;
use crate::stream::{BoxError, EventItem};

/// What answers a turn: an agent.
///
/// A function from a [`Turn`] to a stream of events is one.
pub trait Respond: Send + Sync + 'static {
    /// Says what the agent says. The stream is polled to its end, or until the run is stopped,
    /// whoever still reads.
    fn respond(&self, turn: Turn) -> Said;
}

/// What an agent says.
pub type Said = Pin<Box<dyn Stream<Item = Result<AgentEvent, BoxError>> + Send>>;

impl<F, S> Respond for F
where
    F: Fn(Turn) -> S + Send + Sync + 'static,
    S: Stream<Item: EventItem> + Send + 'static,
{
    fn respond(&self, turn: Turn) -> Said {
        Box::pin(run::Events(Box::pin(self(turn))))
    }
}

/// What an agent is to go on with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Turn {
    /// Whose chat it is.
    pub principal: Principal,
    /// The conversation as the server knows it, with the new message of the person and with what
    /// became of earlier calls.
    pub chat: Chat,
    /// The message that the agent writes: a new one, or the one that it goes on with.
    pub message_id: MessageId,
    /// What became of calls that earlier turns left open. None of them is still running.
    pub deferred: DeferredToolResults,
    /// To ask the person with.
    pub approvals: ChatApprovals,
    /// What was posted, with the application's own fields; `None` where the decision came from
    /// elsewhere.
    pub request: Option<Arc<ChatRequest>>,
}

impl Turn {
    /// The calls whose answers did not count. The history has them open still, and this turn's model
    /// is to be told that they were not executed:
    /// [`FromUi::with_deferred`](crate::model_message::FromUi::with_deferred) does.
    pub fn not_executed(&self) -> impl Iterator<Item = &DeferredToolResult> {
        self.deferred.results().iter().filter(|result| !result.is_final)
    }
}

/// Conversations on the server, answered by an agent.
///
/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Chats(Arc<Inner>);

struct Inner {
    agent: Arc<dyn Respond>,
    approvals: Approvals,
    store: Arc<dyn ChatStore>,
    live: Mutex<HashMap<LiveKey, Vec<watch::Sender<Live>>>>,
}

type LiveKey = (Option<Box<str>>, ChatId);

/// How a run is told to stop, and others that it is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Live {
    Runs,
    IsToStop,
}

impl Chats {
    /// Conversations that this agent answers, kept in memory.
    pub fn new(agent: impl Respond, approvals: Approvals) -> Self {
        Chats(Arc::new(Inner {
            agent: Arc::new(agent),
            approvals,
            store: Arc::new(MemoryChats::new()),
            live: Mutex::default(),
        }))
    }

    /// Keeps the conversations there. It is set before the first request: what was kept elsewhere
    /// stays there.
    #[must_use]
    pub fn with_store(self, store: Arc<dyn ChatStore>) -> Self {
        let Inner { agent, approvals, .. } = &*self.0;
        let (agent, approvals) = (Arc::clone(agent), approvals.clone());
        Chats(Arc::new(Inner { agent, approvals, store, live: Mutex::default() }))
    }

    /// The approvals that the conversations ask for.
    pub fn approvals(&self) -> &Approvals {
        &self.0.approvals
    }

    /// Takes a request, and answers it.
    ///
    /// # Errors
    /// [`ChatError::NotYours`] if somebody else has a chat of this id, [`ChatError::Store`].
    ///
    /// # Cancel safety
    /// Once it has returned the run goes on by itself.
    pub async fn answer(
        &self,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<UiMessageStream, ChatError> {
        let (chat, continued) = self.take(principal, &request).await?;
        Ok(Run::of_request(self, principal.clone(), chat, continued, request).begin())
    }

    /// Takes decisions that came by another way than the chat itself: a second screen, a webhook.
    /// What they allow runs, and the agent goes on; the chat's own page finds it when it asks next.
    ///
    /// # Errors
    /// [`ChatError::Ledger`] and [`ChatError::Store`]: nothing was decided in the chats that are
    /// left.
    pub async fn decide(
        &self,
        principal: &Principal,
        decisions: Vec<PersonsDecision>,
    ) -> Result<Vec<Decided>, ChatError> {
        let mut counting = Vec::new();
        for on_message in self.0.approvals.sort(principal, decisions.clone()).await? {
            let (owner, id) = (on_message.requester.clone(), &on_message.chat_id);
            let chat = match self.0.store.load(owner.tenant(), id).await? {
                Some(kept) => kept.chat,
                None => Chat::new(id.clone(), owner),
            };
            let run = Run::of_decisions(self, principal.clone(), chat, &on_message);
            counting.extend(run.decide().await?);
        }
        let decided = decisions.into_iter().map(|decision| {
            let counts = counting.contains(&decision.approval_id);
            Decided { decision, counts }
        });
        Ok(decided.collect())
    }

    /// A conversation of this person.
    ///
    /// # Errors
    /// [`ChatError::NotYours`], which says no more than that there is none for this person, and
    /// [`ChatError::Store`].
    pub async fn chat(&self, principal: &Principal, id: &ChatId) -> Result<Chat, ChatError> {
        match self.0.store.load(principal.tenant(), id).await? {
            Some(KeptChat { chat, .. }) if chat.owner == *principal => Ok(chat),
            _ => Err(ChatError::NotYours),
        }
    }

    /// Stops what runs in a chat of this person. An approved call that runs is not stopped.
    ///
    /// # Errors
    /// As [`chat`](Self::chat).
    pub async fn stop(&self, principal: &Principal, id: &ChatId) -> Result<(), ChatError> {
        self.chat(principal, id).await?;
        let key = (principal.tenant().map(Into::into), id.clone());
        for run in self.live().get(&key).into_iter().flatten() {
            run.send_replace(Live::IsToStop);
        }
        Ok(())
    }

    /// Takes what is new in a request into the history, and keeps it.
    async fn take(
        &self,
        principal: &Principal,
        request: &ChatRequest,
    ) -> Result<(Chat, Option<MessageId>), ChatError> {
        loop {
            let kept = self.0.store.load(principal.tenant(), request.id()).await?;
            let (mut chat, revision) = match kept {
                Some(KeptChat { chat, .. }) if chat.owner != *principal => {
                    return Err(ChatError::NotYours);
                }
                Some(KeptChat { chat, revision }) => (chat, Some(revision)),
                None => (Chat::imported(request, principal.clone()), None),
            };
            let continued = chat.take(request);
            if self.0.store.save(&chat, revision).await? {
                return Ok((chat, continued));
            }
        }
    }

    /// Changes a conversation, whatever others do to it meanwhile.
    async fn change<T>(
        &self,
        of: &Chat,
        change: impl Fn(&mut Chat) -> T,
    ) -> Result<(Chat, T), ChatStoreError> {
        loop {
            let kept = self.0.store.load(of.owner.tenant(), &of.id).await?;
            let revision = kept.as_ref().map(|kept| kept.revision);
            let mut chat = kept.map_or_else(|| of.clone(), |kept| kept.chat);
            let said = change(&mut chat);
            if self.0.store.save(&chat, revision).await? {
                return Ok((chat, said));
            }
        }
    }

    fn live(&self) -> MutexGuard<'_, HashMap<LiveKey, Vec<watch::Sender<Live>>>> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Chats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chats")
            .field("approvals", &self.0.approvals)
            .field("store", &self.0.store)
            .finish_non_exhaustive()
    }
}

/// What became of a decision.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Decided {
    /// The decision.
    pub decision: PersonsDecision,
    /// Whether it counts, now or already before. Why it does not, nobody is told.
    pub counts: bool,
}

/// Why a request was not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// There is no such chat for this person.
    #[error("there is no such chat")]
    NotYours,
    /// The history cannot be read or written.
    #[error(transparent)]
    Store(#[from] ChatStoreError),
    /// The ledger cannot be read.
    #[error(transparent)]
    Ledger(#[from] LedgerStoreError),
}

impl ChatError {
    /// Whether trying again later may help.
    pub fn is_temporary(&self) -> bool {
        !matches!(self, ChatError::NotYours) && self.source().is_some()
    }
}
