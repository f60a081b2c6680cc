//! [`ChatServer`]: serves stored conversations, each turn from the request to the stored message.
//!
//! Each turn runs on a task of its own, and continues to its end if the client disconnects. A turn
//! that calls the agent is a run. A run writes its frames to a log, from which every response reads.
//!
//! ```text
//! request ──▶ turn ──▶ history ──▶ agent ──▶ log ──▶ history
//!                                             └────▶ responses
//! ```

use std::collections::HashSet;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::client::{Client, ClientSettings};
use super::conversation::ReceivedResult;
use super::inner::Inner;
use super::log::{ReadLog, RunKey};
use super::run_log::{content_parts, position_of};
use super::stream::{ChatStream, LogReader, front, whole_response};
use super::turn::driver::{Driver, StartedTurn, TurnRequest};
use super::turn::hints::Hints;
use super::turn::machine::{Request, Response};
use crate::approval::{ApprovalDecision, Approvals, PendingApproval, PendingToolCall, Principal};
use crate::chat::store::{
    ChatPage, ChatStore, ChatStoreError, InMemoryChatStore, InMemoryRunStore, ListChats, RunStore,
};
use crate::chat::{
    Chat, ChatAgent, ChatError, ClientAnswers, HistoryImport, PostedHistory, StopReason,
};
use crate::chunk::{Chunk, FinishReason, ReceivedChunk, Version};
use crate::id::{ChatId, MessageId, RunId};
use crate::json::Json;
use crate::limits::ChatLimits;
use crate::message::{Role, UiMessage};
use crate::request::ChatRequest;
use crate::response::ResponseOutcome;
use crate::sse::Decoder;

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
            runs: Arc::new(InMemoryRunStore::new()),
            is_default_store: true,
            is_default_run_store: true,
            limits: ChatLimits::default(),
            posted_history: PostedHistory::default(),
            history_import: HistoryImport::default(),
            clients: ClientSettings::default(),
            run_lease: RUN_LEASE,
            hints: Hints::default(),
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
    /// A run is written for the client whose request began it, also for those that join it later.
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

    /// Sets the store of the logs of runs. Servers that share conversations have to share it too. The
    /// default is an [`InMemoryRunStore`].
    #[must_use]
    pub fn with_run_store(self, runs: Arc<dyn RunStore>) -> Self {
        self.configure(|inner| {
            inner.runs = runs;
            inner.is_default_run_store = false;
        })
    }

    /// Sets the time after which another server may take over a run whose server has failed. A run
    /// renews its lease at each third of it. The default is 10 seconds.
    #[must_use]
    pub fn with_run_lease(self, lease: Duration) -> Self {
        self.configure(|inner| inner.run_lease = lease)
    }

    /// Sets the limits of the conversations, their runs and their approvals. Call it before the first
    /// request.
    ///
    /// The limits of the chats and bytes of a user and of all users, and those of the logs of ended
    /// runs, apply to the stores that [`new`](Self::new) creates. Other stores have their own limits,
    /// for example [`InMemoryChatStore::with_limits`].
    #[must_use]
    pub fn with_limits(self, limits: ChatLimits) -> Self {
        self.configure(|inner| {
            inner.approvals = inner.approvals.clone().with_limits(limits.clone());
            if inner.is_default_store {
                inner.store = Arc::new(InMemoryChatStore::with_limits(limits.clone()));
            }
            if inner.is_default_run_store {
                let bytes = limits.max_ended_log_bytes();
                inner.runs = Arc::new(InMemoryRunStore::new().with_max_ended_bytes(bytes));
            }
            inner.limits = limits;
        })
    }

    fn configure(self, set: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Inner::clone(&self.0);
        set(&mut inner);
        ChatServer(Arc::new(inner))
    }

    /// Returns the approvals service with which the conversations request approvals.
    pub fn approvals(&self) -> &Approvals {
        &self.0.approvals
    }

    /// Adds the messages of a request to its conversation, starts a run of the agent, and returns
    /// the response that streams it.
    ///
    /// A conversation has at most one live run. A new message, an edit or a regeneration ends the
    /// run that is live, and keeps what it has written. Answers go to the live run, and the response
    /// streams that run. A request that was delivered before changes nothing and starts no run; see
    /// [`Chat::apply_request`]. Its response is the live run that answers it, or the stored message.
    ///
    /// # Errors
    /// - [`ChatError::Request`] if the [agent](ChatAgent::validate_request) rejects the request.
    /// - [`ChatError::Limit`] if the new message, or the outputs of calls that the client executes, do
    ///   not fit into the conversation.
    /// - [`ChatError::AlreadyReceived`] if the request was delivered before, and there is no
    ///   response to it.
    /// - [`ChatError::TooManyRuns`] if the user has too many live runs.
    /// - [`ChatError::Store`] and [`ChatError::Runs`] if the conversation or the log cannot be read
    ///   or written, and [`ChatError::Ledger`] if its open approval requests cannot be closed.
    ///
    /// # Cancel safety
    /// If the future is dropped after it was polled, the request is still applied, and the run
    /// continues on its own task. The same holds if the response is dropped.
    pub async fn stream_response(
        &self,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<ChatStream, ChatError> {
        let (id, client) = (request.id().clone(), self.0.clients.client_of(&request));
        let held = request.unsanitized_continued_message().cloned();
        Ok(match self.start(principal, request).await? {
            Applied::Run { run, message_id, begun, shown } => {
                let held = held.filter(|held| held.id == message_id);
                let held = held.as_ref().map(|held| (held, shown.as_slice()));
                let begun = begun.as_deref();
                self.log_stream(principal, &id, run, begun, held, client).await
            }
            Applied::Stored { chat, message_id, shown } => {
                let held = held.as_ref().map(|held| (held, shown.as_slice()));
                stored_stream(&chat, &message_id, held, client)
            }
        })
    }

    /// Returns the stream of the live run of a conversation of this principal, for a page that is
    /// opened again. Returns `None` if there is no such conversation, or no such run.
    ///
    /// `last_event_id` is the `id:` of the last frame that the client has read, if it continues a
    /// response. It gets the frames after that one, also if the run has ended in the last 10 minutes.
    ///
    /// If the run continues a message, a stream without `last_event_id` begins with that message.
    ///
    /// # Errors
    /// [`ChatError::Store`] and [`ChatError::Runs`] if the conversation or the log cannot be read.
    #[doc(alias = "reconnect")]
    pub async fn resume_stream(
        &self,
        principal: &Principal,
        id: &ChatId,
        last_event_id: Option<&str>,
    ) -> Result<Option<ChatStream>, ChatError> {
        let last = last_event_id.and_then(|last| last.rsplit_once('.'));
        let last = last.and_then(|(run, at)| Some((RunId::new(run), at.parse::<u64>().ok()?)));
        if last_event_id.is_some() && last.is_none() {
            return Ok(None);
        }
        let (after, position) = last.unzip();
        let request = Request::Follow { after };
        Ok(match self.respond(principal, id, request).await? {
            Response::Join { run, begun, .. } => {
                let client = self.0.clients.any_client();
                Some(self.log_stream(principal, id, run, begun.as_deref(), None, client).await)
            }
            Response::Rest(run) => {
                let position = position.map_or(0, |last| last.saturating_add(1));
                Some(ChatStream::of_log(self.log_reader(principal, id, run, position)))
            }
            _ => None,
        })
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
    /// As [`stream_response`](Self::stream_response).
    pub async fn complete_response(
        &self,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<ChatResponse, ChatError> {
        let chat_id = request.id().clone();
        let (chat, message_id, outcome, reason) = match self.start(principal, request).await? {
            Applied::Run { run, message_id, .. } => {
                let reader = self.log_reader(principal, &chat_id, run, 0);
                let (outcome, reason) = end_of(ChatStream::of_log(reader)).await;
                (self.chat(principal, &chat_id).await?, message_id, outcome, reason)
            }
            Applied::Stored { chat, message_id, .. } => {
                (*chat, message_id, ResponseOutcome::Finished, None)
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
    /// Approved calls are executed, and the agent continues the conversation on a task of its own. A
    /// response that streams the live run of the conversation shows the results. The decisions are
    /// grouped by the message that holds their calls, and the groups are applied one after another.
    /// Returns a receipt for each decision, in the order of `decisions`.
    ///
    /// # Errors
    /// - [`ChatError::TooManyRuns`] if the owner of a conversation has too many live runs. A denial
    ///   needs a run too, because the agent continues the conversation.
    /// - [`ChatError::Ledger`] if the ledger cannot be read or written.
    /// - [`ChatError::Store`] and [`ChatError::Runs`] if a conversation or a log cannot be read or
    ///   written.
    ///
    /// The decisions on the current message and on the remaining ones are then not applied. After
    /// [`ChatError::Ledger`] it is not known whether those on the current message were applied. They
    /// can be sent again.
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
            let message_id = on_message.message_id.clone();
            let turn = Driver::start(
                &self.0,
                TurnRequest {
                    principal: principal.clone(),
                    owner: on_message.requester.clone(),
                    chat_id: on_message.chat_id.clone(),
                    request: Request::Decisions { message_id, plan: Box::new(on_message.plan()) },
                },
            );
            let StartedTurn { response, accepted: redeemed, task } = turn;
            match redeemed.await {
                Ok(redeemed) => accepted.extend(redeemed.map_err(ChatError::from)?),
                Err(_) => {
                    return Err(match answer(response, task).await? {
                        Response::TooManyRuns => ChatError::TooManyRuns,
                        _ => ChatStoreError::new("the decisions were not redeemed").into(),
                    });
                }
            }
        }
        let decided = decisions.into_iter().map(|decision| {
            let accepted = accepted.contains(&(decision.approval_id.clone(), decision.approved));
            DecisionReceipt { decision, accepted }
        });
        Ok(decided.collect())
    }

    /// Loads a conversation of this principal.
    ///
    /// If the conversation has a live run, the result holds what that run has written so far. An
    /// approval request that was closed without a decision, for example because it has expired, is
    /// shown as closed, even if the stored conversation still holds it as open. If the ledger or the
    /// log cannot be read, the conversation is shown as it is stored. Nothing is written.
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
        let chat = stored.map(|stored| stored.chat).ok_or(ChatError::NotFound)?;
        Ok(self.0.with_live_run(chat).await)
    }

    /// Stops the live run of a conversation of this principal, and keeps what it has written.
    ///
    /// The run is stopped on whichever server it runs. An approved call that is already executing is
    /// not stopped. If the conversation has no run, or if there is no such conversation, nothing
    /// happens.
    ///
    /// # Errors
    /// [`ChatError::Store`] and [`ChatError::Runs`] if the conversation or the log cannot be read or
    /// written.
    #[doc(alias = "abort")]
    #[doc(alias = "cancel")]
    pub async fn stop(&self, principal: &Principal, id: &ChatId) -> Result<(), ChatError> {
        self.respond(principal, id, Request::Stop).await.map(drop)
    }

    /// Lists the conversations of this principal, the last saved first, page by page.
    ///
    /// For the first page, pass `None` as `after`. For each later page, pass the `next` of the page
    /// before. [`ChatStore::list`] says what the pages hold if conversations are saved meanwhile.
    ///
    /// ```
    /// # use ui_message_stream::chat::{ChatError, ChatServer};
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream::chat::store::ListChats;
    ///
    /// async fn titles(chats: &ChatServer, user: &Principal) -> Result<Vec<String>, ChatError> {
    ///     let (mut titles, mut after) = (Vec::new(), None);
    ///     loop {
    ///         let page = chats.list(user, ListChats { limit: 20, after: after.as_ref() }).await?;
    ///         titles.extend(page.chats.into_iter().map(|chat| chat.title));
    ///         after = page.next;
    ///         if after.is_none() {
    ///             return Ok(titles);
    ///         }
    ///     }
    /// }
    /// # let _ = titles;
    /// ```
    ///
    /// # Errors
    /// [`ChatError::Store`] if the conversations cannot be read.
    pub async fn list(
        &self,
        principal: &Principal,
        list: ListChats<'_>,
    ) -> Result<ChatPage, ChatError> {
        Ok(self.0.store.list(principal, list).await?)
    }

    /// Deletes a conversation of this principal. If there is none, nothing is deleted.
    ///
    /// - Its live run is stopped, on whichever server it runs. The responses that read it end. What
    ///   it has written is not kept, and it does not create the conversation again.
    /// - Its pending approval requests are revoked: an approval has no effect afterwards. An approved
    ///   call that is already executing is not stopped.
    /// - The log of its last run, with what the client has read of it, is kept for at most 10 minutes.
    ///
    /// A message that the user sends later with the same id begins a new conversation, with what the
    /// server imports from the history of the page ([`HistoryImport`]).
    ///
    /// # Errors
    /// [`ChatError::Store`], [`ChatError::Runs`] and [`ChatError::Ledger`] if the conversation, the
    /// log or the approval requests cannot be read or written. Call this function again: it does what
    /// is left to do. Until then no approval has an effect if the conversation is gone.
    ///
    /// # Cancel safety
    /// If the future is dropped after it was polled, the conversation is still deleted.
    #[doc(alias = "remove")]
    pub async fn delete(&self, principal: &Principal, id: &ChatId) -> Result<(), ChatError> {
        self.respond(principal, id, Request::Delete).await.map(drop)
    }

    /// Applies a request to its stored conversation.
    async fn start(
        &self,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<Applied, ChatError> {
        self.0.agent.validate_request(&request)?;
        let id = request.id().clone();
        match self.respond(principal, &id, Request::Post(Box::new(request))).await? {
            Response::Join { run, message_id, begun, shown } => {
                Ok(Applied::Run { run, message_id, begun, shown })
            }
            Response::Stored { message_id, shown } => {
                let chat = Box::new(self.chat(principal, &id).await?);
                Ok(Applied::Stored { chat, message_id, shown })
            }
            Response::Limit(limit) => Err(limit.into()),
            Response::TooManyRuns => Err(ChatError::TooManyRuns),
            _ => Err(ChatError::AlreadyReceived),
        }
    }

    /// Starts a turn on a task of its own, and returns its response. The turn continues if this
    /// future is dropped.
    async fn respond(
        &self,
        principal: &Principal,
        id: &ChatId,
        request: Request,
    ) -> Result<Response, ChatError> {
        let (owner, chat_id) = (principal.clone(), id.clone());
        let request = TurnRequest { principal: principal.clone(), owner, chat_id, request };
        let StartedTurn { response, task, .. } = Driver::start(&self.0, request);
        answer(response, task).await
    }

    fn log_reader(
        &self,
        principal: &Principal,
        id: &ChatId,
        run: RunId,
        position: u64,
    ) -> LogReader {
        let key = run_key(principal, id, run);
        LogReader::new(&self.0.runs, key, position, self.0.limits.max_stalled_time())
    }

    /// Returns the stream of a run that continues the message `begun`. The client holds `held`, and
    /// has to be shown results of its answers.
    async fn log_stream(
        &self,
        principal: &Principal,
        id: &ChatId,
        run: RunId,
        begun: Option<&UiMessage>,
        held: Option<(&UiMessage, &[ReceivedResult])>,
        client: Client,
    ) -> ChatStream {
        let parts_before = begun.map_or(0, content_parts);
        if let Some((held, _)) = held.filter(|(held, _)| content_parts(held) > parts_before) {
            // The client has read a part of this run.
            let key = &run_key(principal, id, run.clone());
            let read = ReadLog { key, after: 0, max_bytes: usize::MAX, is_reader: false };
            let page = self.0.runs.read(read).await.ok().flatten();
            let entries = page.map(|page| page.entries).unwrap_or_default();
            if let Some(position) = position_of(begun, &entries, held) {
                return ChatStream::of_log(self.log_reader(principal, id, run, position));
            }
        }
        let reader = self.log_reader(principal, id, run, 0);
        let front = begun.and_then(|begun| front(held, &client.shown(begun), client.version()));
        ChatStream::of_log(match front {
            Some(front) => reader.with_front(front),
            None => reader,
        })
    }
}

fn stored_stream(
    chat: &Chat,
    id: &MessageId,
    held: Option<(&UiMessage, &[ReceivedResult])>,
    client: Client,
) -> ChatStream {
    let message = chat.message(id).cloned();
    let message =
        message.unwrap_or_else(|| UiMessage::new(id.clone(), Role::Assistant, Vec::new()));
    ChatStream::of_frames(whole_response(held, &client.shown(&message), client.version()))
}

/// A request that was applied to its conversation.
enum Applied {
    /// A run writes the message. It continues `begun`.
    Run {
        run: RunId,
        message_id: MessageId,
        begun: Option<Arc<UiMessage>>,
        shown: Vec<ReceivedResult>,
    },
    /// The request was delivered before, and the message is stored.
    Stored { chat: Box<Chat>, message_id: MessageId, shown: Vec<ReceivedResult> },
}

/// Waits for the response of a turn.
async fn answer(
    response: tokio::sync::oneshot::Receiver<Result<Response, ChatError>>,
    task: tokio::task::JoinHandle<()>,
) -> Result<Response, ChatError> {
    if let Ok(response) = response.await {
        return response;
    }
    // Only code of the host panics, or the runtime shuts down.
    match task.await.map_err(tokio::task::JoinError::try_into_panic) {
        Err(Ok(panic)) => resume_unwind(panic),
        Err(Err(error)) => Err(ChatStoreError::new(error).into()),
        Ok(()) => Err(ChatStoreError::new("the turn has ended without a response").into()),
    }
}

fn run_key(owner: &Principal, chat: &ChatId, run: RunId) -> RunKey {
    RunKey { owner: owner.clone(), chat: chat.clone(), run }
}

/// Reads a response to its end. Returns the outcome and the finish reason.
async fn end_of(mut response: ChatStream) -> (ResponseOutcome, Option<FinishReason>) {
    let (mut end, mut decoder) = (None, Decoder::default());
    while let Some(Ok(frames)) = response.next().await {
        decoder.push(&frames);
        while let Some(event) = decoder.poll() {
            if let Ok(ReceivedChunk::Known { chunk, .. }) = ReceivedChunk::parse(&event.data) {
                // An error is followed by `finish`.
                end = end.or(match chunk {
                    Chunk::Finish { finish_reason, .. } => {
                        Some((ResponseOutcome::Finished, finish_reason))
                    }
                    Chunk::Abort { .. } => Some((ResponseOutcome::Aborted, None)),
                    Chunk::Error { .. } => Some((ResponseOutcome::Failed, None)),
                    _ => None,
                });
            }
        }
    }
    end.unwrap_or((ResponseOutcome::Failed, None))
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

/// The default lease of a run.
const RUN_LEASE: Duration = Duration::from_secs(10);
