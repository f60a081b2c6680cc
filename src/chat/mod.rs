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

mod listen;
mod live;
mod next_run;
mod reader;
mod replay;
mod run;

use std::collections::HashSet;
use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use self::live::LiveRuns;
use self::run::Run;
use crate::approval::{
    DeferredToolResult, DeferredToolResults, OpenCall, PersonsDecision, Principal,
};
use crate::approvals::{Approvals, ChatApprovals, PendingApproval};
use crate::body::{UiMessageStream, fresh_message_id};
use crate::chat_store::{ChatStore, ChatStoreError, KeptChat, MemoryChats};
use crate::event::AgentEvent;
use crate::history::{Answers, Chat, StopReason};
use crate::id::{ChatId, MessageId};
use crate::json::Json;
use crate::ledger_store::LedgerStoreError;
use crate::message::{Role, UiMessage};
use crate::request::{ChatRequest, ParseRequestError};
use crate::stream::{BoxError, EventItem, Outcome};
use futures_core::Stream;
use tracing::Instrument;

/// What answers a turn: an agent.
///
/// A function from a [`Turn`] to a stream of events is one.
///
/// ```
/// use futures::stream;
/// use ui_message_stream::AgentEvent;
/// use ui_message_stream::chat::{Respond, Said, Turn};
///
/// struct Echo;
///
/// impl Respond for Echo {
///     fn respond(&self, turn: Turn) -> Said {
///         let said = format!("{} messages so far", turn.chat.messages.len());
///         Box::pin(stream::iter([Ok(AgentEvent::text(said))]))
///     }
/// }
/// ```
pub trait Respond: Send + Sync + 'static {
    /// Whether this is a request that it can answer. It is asked before anything of it is taken.
    ///
    /// # Errors
    /// Why not: the client is told, with status 400.
    fn check(&self, _request: &ChatRequest) -> Result<(), ParseRequestError> {
        Ok(())
    }

    /// What a message that it wrote is as a structure, where it answers in one; an error if it is
    /// none.
    fn output_of(&self, _message: &UiMessage) -> Option<Result<Json, BoxError>> {
        None
    }

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
        Box::pin(listen::Events(Box::pin(self(turn))))
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
    pub chat: Arc<Chat>,
    /// The message that the agent writes: a new one, or the one that it goes on with.
    pub message_id: MessageId,
    /// What became of calls that earlier turns left open. If the person wrote on meanwhile, some may
    /// still run; what a provider is to be told, the first model call tells it.
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
///
/// ```
/// use std::sync::Arc;
///
/// use ui_message_stream::agent::Agent;
/// use ui_message_stream::approval::KeyRing;
/// use ui_message_stream::approvals::Approvals;
/// use ui_message_stream::chat::Chats;
/// use ui_message_stream::chat_store::ChatStore;
/// use ui_message_stream::ledger_store::LedgerStore;
///
/// /// Whichever of several servers a request comes to: the same conversations, and each approval once.
/// fn chats(
///     agent: Agent,
///     keys: KeyRing,
///     ledger: Arc<dyn LedgerStore>,
///     store: Arc<dyn ChatStore>,
/// ) -> Chats {
///     let approvals = Approvals::new(agent.clone()).with_keys(keys).with_ledger(ledger);
///     Chats::new(agent, approvals).with_store(store)
/// }
/// ```
#[derive(Clone)]
pub struct Chats(Arc<Inner>);

struct Inner {
    agent: Arc<dyn Respond>,
    approvals: Approvals,
    store: Arc<dyn ChatStore>,
    live: LiveRuns,
}

impl Chats {
    /// Conversations that this agent answers, kept in memory.
    pub fn new(agent: impl Respond, approvals: Approvals) -> Self {
        Chats(Arc::new(Inner {
            agent: Arc::new(agent),
            approvals,
            store: Arc::new(MemoryChats::new()),
            live: LiveRuns::default(),
        }))
    }

    /// Keeps the conversations there. It is set before the first request: what was kept elsewhere
    /// stays there.
    #[must_use]
    pub fn with_store(self, store: Arc<dyn ChatStore>) -> Self {
        let Inner { agent, approvals, .. } = &*self.0;
        let (agent, approvals) = (Arc::clone(agent), approvals.clone());
        Chats(Arc::new(Inner { agent, approvals, store, live: LiveRuns::default() }))
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
        let (chat, message_id) = self.take(principal, &request).await?;
        Ok(Run::of_request(self, principal.clone(), chat, message_id, request).begin())
    }

    /// Takes a request, and answers it in full, once the run has ended.
    ///
    /// ```
    /// # use ui_message_stream::ChatRequest;
    /// # use ui_message_stream::chat::{ChatError, Chats};
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream::history::StopReason;
    /// use ui_message_stream::stream::Outcome;
    ///
    /// async fn is_answered(chats: &Chats, request: ChatRequest) -> Result<bool, ChatError> {
    ///     let answer = chats.answer_in_full(&Principal::new("ada"), request).await?;
    ///     Ok(answer.outcome == Outcome::Finished && answer.stop_reason == StopReason::Stop)
    /// }
    /// # let _ = is_answered;
    /// ```
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    ///
    /// # Cancel safety
    /// Once the run has begun it goes on by itself.
    pub async fn answer_in_full(
        &self,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<FullAnswer, ChatError> {
        let (chat, message_id) = self.take(principal, &request).await?;
        let run = Run::of_request(self, principal.clone(), chat, message_id, request);
        let (id, message_id) = (run.chat_id().clone(), run.message_id().clone());
        let (outcome, reason) = run.wait().await;
        let chat = self.chat(principal, &id).await?;
        let pending = self.0.approvals.of_chat(principal, &id).pending().await?;
        let stop_reason = chat.stop_reason(&message_id).told(reason);
        let message = chat.message(&message_id).cloned();
        let is_answered = outcome == Outcome::Finished && stop_reason == StopReason::Stop;
        let answered = message.as_ref().filter(|_| is_answered);
        let (output, outcome) = match answered.and_then(|it| self.0.agent.output_of(it)) {
            Some(Ok(output)) => (Some(output), outcome),
            // Given anew, nothing says any more why it is none: it failed then, or was cut.
            Some(Err(_)) => (None, Outcome::Failed),
            None => (None, outcome),
        };
        Ok(FullAnswer {
            output,
            message,
            stop_reason,
            approvals: pending,
            left_to_client: chat.left_to_client,
            outcome,
        })
    }

    /// The request that comes of answers given by id, to be [answered](Self::answer) as one that a
    /// browser sends.
    ///
    /// # Errors
    /// [`ChatError::NotYours`], [`ChatError::Request`] where nothing waits for such an answer, and
    /// [`ChatError::Store`].
    pub async fn request_of(
        &self,
        principal: &Principal,
        id: &ChatId,
        answers: &Answers,
    ) -> Result<ChatRequest, ChatError> {
        Ok(self.chat(principal, id).await?.answered(answers)?)
    }

    /// Takes decisions that came by another way than the chat itself: a second screen, a webhook.
    /// What they allow runs, and the agent goes on; the chat's own page finds it when it asks next.
    ///
    /// # Errors
    /// [`ChatError::Ledger`] and [`ChatError::Store`]: nothing was decided in the chats that are
    /// left.
    ///
    /// # Cancel safety
    /// The chat that is decided in goes on; in those that are left nothing is decided.
    pub async fn decide(
        &self,
        principal: &Principal,
        decisions: Vec<PersonsDecision>,
    ) -> Result<Vec<Decided>, ChatError> {
        let mut counting = HashSet::new();
        for on_message in self.0.approvals.sort(principal, decisions.clone()).await? {
            let (owner, id) = (on_message.requester.clone(), &on_message.chat_id);
            let chat = match self.0.store.load(owner.tenant(), id).await? {
                // Theirs was forgotten, and somebody else has begun one of this id.
                Some(kept) if kept.chat.owner != owner => continue,
                Some(kept) => kept.chat,
                None => Chat::new(id.clone(), owner),
            };
            let run = Run::of_decisions(self, principal.clone(), chat, &on_message);
            // On a task of its own: whoever asked may be gone before the run goes on.
            let decided = tokio::spawn(run.decide().in_current_span()).await;
            counting.extend(decided.map_err(LedgerStoreError::new)??);
        }
        let decided = decisions.into_iter().map(|decision| {
            let counts = counting.contains(&(decision.approval_id.clone(), decision.approved));
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
        self.0.live.stop(principal.tenant(), id);
        Ok(())
    }

    /// Takes what is new in a request into the history, and keeps it. Says which message answers it.
    async fn take(
        &self,
        principal: &Principal,
        request: &ChatRequest,
    ) -> Result<(Chat, MessageId), ChatError> {
        self.0.agent.check(request)?;
        let fresh = fresh_message_id();
        for _ in 0..MOST_ATTEMPTS {
            let kept = self.0.store.load(principal.tenant(), request.id()).await?;
            let (mut chat, revision) = match kept {
                Some(KeptChat { chat, .. }) if chat.owner != *principal => {
                    return Err(ChatError::NotYours);
                }
                Some(KeptChat { chat, revision }) => (chat, Some(revision)),
                None => (Chat::imported(request, principal.clone()), None),
            };
            let answers = chat.messages.iter().filter(|message| message.role == Role::Assistant);
            let answers: Vec<MessageId> = answers.map(|message| message.id.clone()).collect();
            let message_id = chat.take(request).unwrap_or_else(|| {
                chat.begin_answer(fresh.clone());
                fresh.clone()
            });
            if self.0.store.save(&chat, revision).await? {
                let gone = answers.iter().filter(|answer| chat.message(answer).is_none());
                for unwanted in chat.unwanted_answers().chain(gone) {
                    self.0.live.stop_answer(principal.tenant(), &chat.id, unwanted);
                }
                return Ok((chat, message_id));
            }
        }
        Err(changes_too_fast())
    }

    /// No answer of this id comes any more, if one was expected.
    async fn drop_answer(&self, of: &Chat, id: &MessageId) -> Result<(), ChatError> {
        if of.message(id).is_some() {
            return Ok(());
        }
        self.change(of, |chat| chat.drop_answer(id)).await.map(drop)
    }

    /// Changes a conversation, whatever others do to it meanwhile; not if it was forgotten meanwhile
    /// and somebody else has begun one of its id.
    async fn change<T>(
        &self,
        of: &Chat,
        change: impl Fn(&mut Chat) -> T,
    ) -> Result<(Chat, T), ChatError> {
        for _ in 0..MOST_ATTEMPTS {
            let kept = self.0.store.load(of.owner.tenant(), &of.id).await?;
            let (mut chat, revision) = match kept {
                Some(KeptChat { chat, .. }) if chat.owner != of.owner => {
                    return Err(ChatError::NotYours);
                }
                Some(KeptChat { chat, revision }) => (chat, Some(revision)),
                None => (of.clone(), None),
            };
            let said = change(&mut chat);
            // A conversation that was forgotten does not begin anew with a decision about it.
            if revision.is_none() && chat.messages.is_empty() {
                return Ok((chat, said));
            }
            if self.0.store.save(&chat, revision).await? {
                return Ok((chat, said));
            }
        }
        Err(changes_too_fast())
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

/// What came of a request, for those who do not read it as a stream.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FullAnswer {
    /// The assistant message as the server keeps it; `None` if the agent said nothing.
    pub message: Option<UiMessage>,
    /// What the message is as a structure, where the agent answers in one and has.
    pub output: Option<Json>,
    /// Why it ends where it does, and what has to happen before it goes on.
    pub stop_reason: StopReason,
    /// What waits for an answer of the person in this chat.
    pub approvals: Vec<PendingApproval>,
    /// What the client is to run.
    pub left_to_client: Vec<OpenCall>,
    /// How the run ended.
    pub outcome: Outcome,
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
    /// It asks for what cannot be.
    #[error(transparent)]
    Request(#[from] ParseRequestError),
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
        matches!(self, ChatError::Store(_) | ChatError::Ledger(_)) && self.source().is_some()
    }
}

fn changes_too_fast() -> ChatError {
    ChatStoreError::new("the chat changes faster than it can be read").into()
}

/// How often a change is tried that others come before. Each time one of them is through: so many
/// there are only if the store never takes one.
const MOST_ATTEMPTS: usize = 1000;
