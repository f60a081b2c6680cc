//! [`ChatServer`]: serves stored conversations, each turn from the request to the stored message.
//!
//! Each turn runs on a task of its own. The run redeems the answers of the user and the client,
//! passes the stored history to the agent, and stores the assistant message. It continues to its
//! end if the client disconnects. The response streams the events of the run for as long as the
//! client reads.
//!
//! ```text
//! request ──▶ history ──▶ resolve ──▶ Turn ──▶ agent ──▶ Recorder ──▶ history
//!                            └─────────────────────┴───▶ response
//! ```

use std::collections::HashSet;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use tokio::sync::oneshot;
use tracing::Instrument;

use super::client::{Client, ClientSettings};
use super::inner::{Inner, MAX_SAVE_ATTEMPTS, too_many_conflicts};
use super::turn::lease::{is_leased, lease_from_now};
use super::turn::live::{Live, LiveRuns};
use super::turn::run::Run;
use crate::approval::store::LedgerStoreError;
use crate::approval::{ApprovalDecision, Approvals, PendingApproval, PendingToolCall, Principal};
use crate::chat::store::{ChatStore, ChatStoreError, InMemoryChatStore, VersionedChat};
use crate::chat::{
    Chat, ChatAgent, ChatError, ClientAnswers, HistoryImport, PostedHistory, RequestEffect,
    StopReason,
};
use crate::chunk::{FinishReason, Version};
use crate::event::AgentEvent;
use crate::id::{ChatId, MessageId};
use crate::json::Json;
use crate::limits::ChatLimits;
use crate::message::{Role, UiMessage};
use crate::reducer::compact;
use crate::request::{ChatRequest, Trigger};
use crate::response::{ResponseOutcome, UiMessageStream, fresh_message_id};
use crate::translator::Translator;

/// Serves conversations: stores them, and lets an agent answer each turn.
///
/// It is the server side of `useChat`; [`chat_routes`](crate::axum::chat_routes) are its HTTP
/// routes. A clone is cheap and shares all state with the original.
///
/// ```
/// use std::sync::Arc;
///
/// use ui_message_stream::agent::Agent;
/// use ui_message_stream::approval::store::LedgerStore;
/// use ui_message_stream::approval::{Approvals, KeyRing};
/// use ui_message_stream::chat::ChatServer;
/// use ui_message_stream::chat::store::ChatStore;
///
/// /// With shared stores, several servers serve the same conversations and redeem each approval
/// /// once.
/// fn chat_server(
///     agent: Agent,
///     keys: KeyRing,
///     ledger: Arc<dyn LedgerStore>,
///     store: Arc<dyn ChatStore>,
/// ) -> ChatServer {
///     let approvals = Approvals::new(agent.clone()).with_keys(keys).with_ledger(ledger);
///     ChatServer::new(agent, approvals).with_store(store)
/// }
/// ```
#[derive(Clone)]
#[doc(alias = "useChat")]
pub struct ChatServer(Arc<Inner>);

impl ChatServer {
    /// Creates a server whose conversations this agent answers. The conversations are stored in an
    /// [`InMemoryChatStore`].
    ///
    /// # Panics
    /// If the approvals are [stateless](Approvals::stateless_replayable). A chat server asks the
    /// ledger for the outcomes of earlier turns and lists pending approvals, which needs records.
    pub fn new(agent: impl ChatAgent, approvals: Approvals) -> Self {
        assert!(
            !approvals.is_stateless(),
            "a `ChatServer` needs approvals with a ledger: use `Approvals::new` instead of \
             `Approvals::stateless_replayable`"
        );
        ChatServer(Arc::new(Inner {
            agent: Arc::new(agent),
            approvals,
            store: Arc::new(InMemoryChatStore::new()),
            is_default_store: true,
            limits: ChatLimits::default(),
            live: LiveRuns::default(),
            posted_history: PostedHistory::default(),
            history_import: HistoryImport::default(),
            clients: ClientSettings::default(),
        }))
    }

    /// Sets whether a new message keeps the stored messages that the posted history lacks. The
    /// default is [`PostedHistory::Keep`].
    #[must_use]
    pub fn with_posted_history(self, posted_history: PostedHistory) -> Self {
        self.configure(|inner| inner.posted_history = posted_history)
    }

    /// Sets what is imported from the history in a request whose conversation the server does not
    /// have. The default is [`HistoryImport::Texts`].
    #[must_use]
    pub fn with_history_import(self, history_import: HistoryImport) -> Self {
        self.configure(|inner| inner.history_import = history_import)
    }

    /// Sets the oldest version of the AI SDK (npm package `ai`) that the clients of this server use.
    /// The default is [`Version::V6`], which serves `ai@6` and `ai@7`.
    ///
    /// The clients of [`Version::V5`] know no approvals. For them, a call that needs approval gets
    /// the error [`NOT_ANSWERABLE`](crate::approval::NOT_ANSWERABLE) as its result, and no approval
    /// is requested. This holds for complete responses, too.
    ///
    /// An approval that the agent requests with approvals of its own is revoked. They must have the
    /// same ledger as those of the server.
    ///
    /// Do not set the version of the response that [`stream_response`](Self::stream_response)
    /// returns: an approval that its client cannot show would still be requested.
    #[must_use]
    pub fn with_version(self, version: Version) -> Self {
        self.with_version_from(move |_| version)
    }

    /// Sets a function that returns the version of the client that sent a request, for a server
    /// whose clients use several versions. Otherwise as [`with_version`](Self::with_version).
    ///
    /// A page can send its version in the body. Pages of a version that sends none are the oldest
    /// ones. If pages of several versions show one conversation, an approval that a newer page can
    /// give stays pending. An older page shows its call without a result.
    ///
    /// ```
    /// use ui_message_stream::chat::ChatServer;
    /// use ui_message_stream::chunk::Version;
    ///
    /// /// The pages send `new DefaultChatTransport({ body: { sdk: 6 } })`, since they use `ai@6`.
    /// fn with_old_pages(chats: ChatServer) -> ChatServer {
    ///     chats.with_version_from(|request| match request.custom("sdk") {
    ///         Some(_) => Version::V6,
    ///         None => Version::V5,
    ///     })
    /// }
    /// # let _ = with_old_pages;
    /// ```
    #[must_use]
    pub fn with_version_from(
        self,
        version_of: impl Fn(&ChatRequest) -> Version + Send + Sync + 'static,
    ) -> Self {
        self.configure(|inner| inner.clients.set_version(version_of))
    }

    /// Disables approval requests, for clients that show none. A call that needs approval gets the
    /// error [`NOT_ANSWERABLE`](crate::approval::NOT_ANSWERABLE) as its result, and no approval is
    /// requested. Approvals that were requested before can still be given.
    #[must_use]
    pub fn without_approvals(self) -> Self {
        self.configure(|inner| inner.clients.disable_approvals())
    }

    /// Sets the store of the conversations. Call it before the first request: conversations in the
    /// previous store are not moved.
    #[doc(alias = "database")]
    #[doc(alias = "persist")]
    #[must_use]
    pub fn with_store(self, store: Arc<dyn ChatStore>) -> Self {
        self.configure(|inner| {
            inner.store = store;
            inner.is_default_store = false;
        })
    }

    /// Sets the limits of the conversations and their approvals. Call it before the first request.
    ///
    /// The limits of the chats and bytes of a user and of all users apply to the store that
    /// [`new`](Self::new) creates. Another store has its own limits, for example
    /// [`InMemoryChatStore::with_limits`].
    #[must_use]
    pub fn with_limits(self, limits: ChatLimits) -> Self {
        self.configure(|inner| {
            inner.approvals = inner.approvals.clone().with_limits(limits.clone());
            if inner.is_default_store {
                inner.store = Arc::new(InMemoryChatStore::with_limits(limits.clone()));
            }
            inner.limits = limits;
        })
    }

    fn configure(self, set: impl FnOnce(&mut Inner)) -> Self {
        let Inner {
            agent,
            approvals,
            store,
            is_default_store,
            limits,
            posted_history,
            history_import,
            clients,
            live: _,
        } = &*self.0;
        let mut inner = Inner {
            agent: Arc::clone(agent),
            approvals: approvals.clone(),
            store: Arc::clone(store),
            is_default_store: *is_default_store,
            limits: limits.clone(),
            live: LiveRuns::default(),
            posted_history: *posted_history,
            history_import: *history_import,
            clients: clients.clone(),
        };
        set(&mut inner);
        ChatServer(Arc::new(inner))
    }

    /// Returns the approvals service with which the conversations request approvals.
    pub fn approvals(&self) -> &Approvals {
        &self.0.approvals
    }

    /// Adds the messages of a request to its conversation, starts a run of the agent, and returns
    /// the response that streams its events.
    ///
    /// A request that was delivered before changes nothing and starts no run; see
    /// [`Chat::apply_request`]. Its response is the stored message.
    ///
    /// # Errors
    /// - [`ChatError::Request`] if the [agent](ChatAgent::validate_request) rejects the request.
    /// - [`ChatError::Limit`] if the new message, or the outputs of calls that the client executes, do
    ///   not fit into the conversation.
    /// - [`ChatError::ResponsePending`] if the request was delivered before, and its response is
    ///   being written, here or on another server. The server that writes a response says so in the
    ///   stored conversation every 20 seconds. One minute after it has stopped to say so, the run
    ///   counts as lost, and the request begins another one.
    /// - [`ChatError::AlreadyReceived`] if the request was delivered before, and there is no
    ///   response to it.
    /// - [`ChatError::Store`] if the conversation cannot be loaded or saved.
    ///
    /// # Cancel safety
    /// If the future is dropped after it was polled, the request is still applied, and the run
    /// continues on its own task. The same holds if the response is dropped.
    pub async fn stream_response(
        &self,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<UiMessageStream, ChatError> {
        let client = self.0.clients.client_of(&request);
        let response = match self.start(principal, request, client).await? {
            Applied::Run { response, .. } => *response,
            Applied::Stored(chat, message_id) => stored_response(&chat, message_id, client),
        };
        Ok(client.configure(response))
    }

    /// Applies a request to its conversation, waits until the run has ended, and returns the
    /// complete response.
    ///
    /// ```
    /// # use ui_message_stream::ChatRequest;
    /// # use ui_message_stream::chat::{ChatError, ChatServer};
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream::chat::StopReason;
    /// use ui_message_stream::response::ResponseOutcome;
    ///
    /// async fn is_answered(chats: &ChatServer, request: ChatRequest) -> Result<bool, ChatError> {
    ///     let response = chats.complete_response(&Principal::new("ada"), request).await?;
    ///     let has_finished = response.outcome == ResponseOutcome::Finished;
    ///     Ok(has_finished && response.stop_reason == StopReason::Stop)
    /// }
    /// # let _ = is_answered;
    /// ```
    ///
    /// # Errors
    /// As [`stream_response`](Self::stream_response), and also:
    /// - [`ChatError::NotFound`] if the store no longer holds the conversation when the run has
    ///   ended.
    /// - [`ChatError::Ledger`] if the pending approvals cannot be read.
    ///
    /// # Cancel safety
    /// If the future is dropped after it was polled, the request is still applied, and the run
    /// continues on its own task.
    pub async fn complete_response(
        &self,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<ChatResponse, ChatError> {
        let client = self.0.clients.client_of(&request);
        let started = self.start(principal, request, client).await?;
        let (chat, message_id, outcome, reason) = match started {
            Applied::Run { chat_id, message_id, response } => {
                let (outcome, reason) = end_of(*response).await;
                (self.chat(principal, &chat_id).await?, message_id, outcome, reason)
            }
            Applied::Stored(chat, message_id) => {
                (chat, message_id, ResponseOutcome::Finished, None)
            }
        };
        let pending = self.0.approvals.for_chat(principal, &chat.id).pending().await?;
        let stop_reason = chat.stop_reason(&message_id).with_finish_reason(reason);
        let message = chat.message(&message_id).cloned();
        let is_answered = outcome == ResponseOutcome::Finished && stop_reason == StopReason::Stop;
        let answer = message.as_ref().filter(|_| is_answered);
        let output = answer.and_then(|message| self.0.agent.structured_output(message));
        let (output, outcome) = match output {
            Some(Ok(output)) => (Some(output), outcome),
            // A repeated request gets the stored message, and nothing records any more why it holds
            // no valid output: the first run failed, or it was cut off.
            Some(Err(_)) => (None, ResponseOutcome::Failed),
            None => (None, outcome),
        };
        Ok(ChatResponse {
            output,
            message,
            stop_reason,
            approvals: pending,
            client_executed: chat.client_executed,
            outcome,
        })
    }

    /// Builds a chat request for a client that keeps no messages. `answers` names tool calls and
    /// approval requests only by id; the request is the one that a browser would send with these
    /// answers. Pass it to [`stream_response`](Self::stream_response) or
    /// [`complete_response`](Self::complete_response).
    ///
    /// # Errors
    /// - [`ChatError::NotFound`] if this principal has no conversation with this id.
    /// - [`ChatError::Request`] if the last message does not expect such an answer, as in
    ///   [`Chat::request_from_answers`].
    /// - [`ChatError::Store`] if the conversation cannot be loaded.
    pub async fn request_from_answers(
        &self,
        principal: &Principal,
        id: &ChatId,
        answers: &ClientAnswers,
    ) -> Result<ChatRequest, ChatError> {
        Ok(self.stored_chat(principal, id).await?.request_from_answers(answers)?)
    }

    /// Applies decisions that did not come in a chat request, for example from a second screen or a
    /// webhook.
    ///
    /// Approved calls are executed, and the agent continues the conversation on a task of its own.
    /// A client that shows the conversation receives the result only with its next request. The
    /// decisions are grouped by the message that holds their calls, and the groups are applied one
    /// after another. Returns a receipt for each decision, in the order of `decisions`.
    ///
    /// # Errors
    /// [`ChatError::Ledger`] if the ledger cannot be read or written, and [`ChatError::Store`] if a
    /// conversation cannot be loaded or saved. The decisions on the remaining messages are then not
    /// applied.
    ///
    /// # Cancel safety
    /// If the future is dropped, the decisions on the current message are still applied. The
    /// decisions on the remaining messages are not.
    pub async fn decide(
        &self,
        principal: &Principal,
        decisions: Vec<ApprovalDecision>,
    ) -> Result<Vec<DecisionReceipt>, ChatError> {
        let mut accepted = HashSet::new();
        for on_message in self.0.approvals.group_by_message(principal, decisions.clone()).await? {
            let (owner, id) = (on_message.requester.clone(), &on_message.chat_id);
            let chat = match self.0.load(&owner, id).await? {
                Some(stored) => stored.chat,
                None => Chat::new(id.clone(), owner),
            };
            let run = Run::from_decisions(&self.0, principal.clone(), chat, &on_message);
            // On its own task, because the caller may drop this future before the run continues.
            let decided = tokio::spawn(run.decide().in_current_span()).await;
            accepted.extend(decided.map_err(LedgerStoreError::new)??);
        }
        let decided = decisions.into_iter().map(|decision| {
            let accepted = accepted.contains(&(decision.approval_id.clone(), decision.approved));
            DecisionReceipt { decision, accepted }
        });
        Ok(decided.collect())
    }

    /// Loads a conversation of this principal.
    ///
    /// An approval request that was closed without a decision, for example because it has expired, is
    /// shown as closed, even if the stored conversation still holds it as open. If the ledger cannot
    /// be read, it is shown as it is stored. Nothing is written.
    ///
    /// # Errors
    /// - [`ChatError::NotFound`] if this principal has no conversation with this id. The error is
    ///   the same whether the conversation does not exist or belongs to another principal.
    /// - [`ChatError::Store`] if the conversation cannot be loaded.
    #[doc(alias = "history")]
    pub async fn chat(&self, principal: &Principal, id: &ChatId) -> Result<Chat, ChatError> {
        let mut chat = self.stored_chat(principal, id).await?;
        self.0.show_closed_requests(&mut chat).await;
        Ok(chat)
    }

    async fn stored_chat(&self, principal: &Principal, id: &ChatId) -> Result<Chat, ChatError> {
        let stored = self.0.load(principal, id).await?;
        stored.map(|stored| stored.chat).ok_or(ChatError::NotFound)
    }

    /// Stops the runs of a conversation of this principal.
    ///
    /// Only runs of this `ChatServer` and its clones are stopped, not those of other servers. An
    /// approved call that is already executing is not stopped. If the conversation has no run, or if
    /// there is no such conversation, nothing happens.
    ///
    /// # Errors
    /// None at present. The `Result` is for servers that share their runs with other processes.
    #[doc(alias = "abort")]
    #[doc(alias = "cancel")]
    pub async fn stop(&self, principal: &Principal, id: &ChatId) -> Result<(), ChatError> {
        self.0.live.stop(principal, id);
        Ok(())
    }

    /// Applies a request to its stored conversation, saves the conversation and begins the run.
    ///
    /// This is done on a task of its own. If the caller drops this future, a conversation that was
    /// saved still gets its run.
    async fn start(
        &self,
        principal: &Principal,
        request: ChatRequest,
        client: Client,
    ) -> Result<Applied, ChatError> {
        let (chats, principal) = (self.clone(), principal.clone());
        let start = async move { chats.apply_request(principal, request, client).await };
        match tokio::spawn(start.in_current_span()).await {
            Ok(applied) => applied,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(error) => Err(ChatStoreError::new(error).into()),
            },
        }
    }

    async fn apply_request(
        &self,
        principal: Principal,
        request: ChatRequest,
        client: Client,
    ) -> Result<Applied, ChatError> {
        self.0.agent.validate_request(&request)?;
        let fresh = fresh_message_id();
        for _ in 0..MAX_SAVE_ATTEMPTS {
            let stored = self.0.load(&principal, request.id()).await?;
            let (mut chat, revision) = match stored {
                Some(VersionedChat { chat, revision }) => (chat, Some(revision)),
                None => {
                    let (owner, import) = (principal.clone(), self.0.history_import);
                    (Chat::from_client_history(&request, owner, import), None)
                }
            };
            let before = chat.messages.clone();
            let message_id = match chat.apply_request(&request, self.0.posted_history) {
                RequestEffect::NewResponse => fresh.clone(),
                RequestEffect::Continues(id) => id,
                RequestEffect::Answered(id) => match self.0.live.state(&principal, &chat.id, &id) {
                    Some(_) => return Err(ChatError::ResponsePending),
                    None => {
                        self.0.show_closed_requests(&mut chat).await;
                        return Ok(Applied::Stored(chat, id));
                    }
                },
                RequestEffect::AwaitsResponse(id) => {
                    if self.is_written(&chat, &id, &request) {
                        return Err(ChatError::ResponsePending);
                    }
                    if request.continued_message().is_some() || !chat.replace_response(&id) {
                        return Err(ChatError::AlreadyReceived);
                    }
                    fresh.clone()
                }
                RequestEffect::NotAnswered => return Err(ChatError::AlreadyReceived),
            };
            let outputs = chat.bytes_of_new_outputs(request.messages());
            if request.new_user_message().is_some() {
                self.0.limits.check_chat(chat.messages.len(), chat.bytes() + outputs)?;
            } else if outputs > 0 {
                self.0.limits.check_chat(0, chat.bytes() + outputs)?;
            }
            // Registers the run before a repeated request can find its response in the conversation.
            let is_new = message_id == fresh;
            let live = is_new.then(|| {
                chat.begin_response(fresh.clone());
                chat.lease_response(&fresh, lease_from_now());
                self.0.live.register(&principal, &chat.id, &fresh)
            });
            if self.0.store.save(&chat, revision).await? {
                let changed = before.common_prefix(&chat.messages)..before.len();
                let changed = changed.filter_map(|at| before.get(at));
                let answers = changed.filter(|message| message.role == Role::Assistant);
                let ids = answers.map(|message| &message.id);
                let removed = ids.filter(|answer| chat.message(answer).is_none());
                for discarded in chat.discarded_responses().chain(removed) {
                    self.0.live.stop_answer(&principal, &chat.id, discarded);
                }
                let (chat_id, id) = (chat.id.clone(), message_id.clone());
                let run =
                    Run::from_request(&self.0, principal, chat, message_id, request, client, live);
                let response = Box::new(run.begin());
                return Ok(Applied::Run { chat_id, message_id: id, response });
            }
        }
        Err(too_many_conflicts())
    }

    /// Returns whether a run writes this response, here or on another server.
    fn is_written(&self, chat: &Chat, id: &MessageId, request: &ChatRequest) -> bool {
        match self.0.live.state(&chat.owner, &chat.id, id) {
            Some(Live::Runs) => true,
            // The user stopped the response, and may request another one before it has ended.
            Some(Live::IsToStop) => *request.trigger() != Trigger::RegenerateMessage,
            None => is_leased(chat.response_lease(id)),
        }
    }
}

/// A request that was applied to its conversation.
enum Applied {
    /// A run writes the message.
    Run { chat_id: ChatId, message_id: MessageId, response: Box<UiMessageStream> },
    /// The request was delivered before, and the message is stored.
    Stored(Chat, MessageId),
}

/// Waits for the end of a response. Returns the outcome and the finish reason.
async fn end_of(response: UiMessageStream) -> (ResponseOutcome, Option<FinishReason>) {
    let (tell, ended) = oneshot::channel();
    let mut response = response.on_finish(move |end| {
        // The future that waits for it may have been dropped.
        let _ = tell.send((end.outcome, end.finish_reason));
    });
    while response.next().await.is_some() {}
    // `on_finish` is called whenever the response ends, also if it ends with an error.
    ended.await.unwrap_or((ResponseOutcome::Failed, None))
}

/// Returns the response that streams a stored message to this client.
fn stored_response(chat: &Chat, id: MessageId, client: Client) -> UiMessageStream {
    let stored = chat.message(&id);
    let stored = stored.map(|stored| stored.without_model_ids().unwrap_or_else(|| stored.clone()));
    let message = match client.answers_approvals() {
        true => stored,
        // Another page shows the request, and may still approve the call.
        false => stored.map(UiMessage::without_open_approvals),
    };
    let chunks = message.and_then(|message| {
        compact(&message)
            // Some fields cannot be streamed.
            .or_else(|_| compact(&UiMessage::new(message.id, message.role, message.parts)))
            .ok()
    });
    let events =
        chunks.unwrap_or_default().into_iter().map(|chunk| AgentEvent::Chunk(Box::new(chunk)));
    UiMessageStream::with_translator(Translator::new(id), stream::iter(events))
}

impl fmt::Debug for ChatServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatServer")
            .field("approvals", &self.0.approvals)
            .field("store", &self.0.store)
            .finish_non_exhaustive()
    }
}

/// The complete response to a request, for clients that do not read a stream.
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct ChatResponse {
    /// The assistant message as the server stores it. `None` if the agent emitted no events.
    pub message: Option<UiMessage>,
    /// The structured output of the message. `None` if the agent does not produce structured
    /// output, if the run has not ended with [`ResponseOutcome::Finished`] and
    /// [`StopReason::Stop`], or if the message does not contain valid output.
    pub output: Option<Json>,
    /// Why the message ends, and what has to happen before it continues.
    pub stop_reason: StopReason,
    /// The approval requests of this conversation that wait for the user.
    pub approvals: Vec<PendingApproval>,
    /// The tool calls that the client has to execute.
    pub client_executed: Vec<PendingToolCall>,
    /// How the run ended. It is [`ResponseOutcome::Failed`] too if the agent produces structured
    /// output and the finished message does not contain valid output.
    pub outcome: ResponseOutcome,
}

debug_without_content!(ChatResponse { stop_reason, outcome; approvals, client_executed });

/// The result of a decision that was passed to [`ChatServer::decide`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DecisionReceipt {
    /// The decision.
    pub decision: ApprovalDecision,
    /// Whether the decision was accepted, now or by an earlier request. The reason of a rejection
    /// is not disclosed.
    pub accepted: bool,
}
