//! [`ChatServer`]: serves stored conversations, each turn from the request to the stored message.
//!
//! Each turn runs on a task of its own, and continues if the client disconnects. A run without a
//! reader ends after a time. A turn that calls the agent is a run. A run writes its frames to a
//! log, from which every response reads.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;

use super::complete::{ChatResponse, ResponseEnd};
use super::driver::{Driver, TurnRequest};
use super::followers::Follower;
use super::inner::Inner;
use super::log::client::Client;
use super::log::decision::{Goal, Response, plan_of};
use super::log::event_id::EventId;
use super::reader::LogReader;
use super::readers::Reader;
use super::redeem::{Accepted, not_stored, show_outcomes};
use super::run_counts::RunCounts;
use super::started_turn::StartedTurn;
use super::stream::ChatStream;
use super::sweeps;
use crate::store::{ChatPage, ListChats, LogKey};
use crate::{Chat, ChatError, ClientAnswers};
use ui_message_stream::approval::{ApprovalDecision, Approvals, Principal};
use ui_message_stream::chunk::Version;
use ui_message_stream::id::ChatId;
use ui_message_stream::json::FieldError;
use ui_message_stream::request::ChatRequest;

/// Serves conversations: stores them, and lets an agent answer each turn.
///
/// It is the server side of `useChat`; [`chat_routes`](crate::axum::chat_routes) are its HTTP
/// routes. A clone is cheap and shares all state with the original.
///
/// ```
/// use std::sync::Arc;
///
/// use ui_message_stream_agent::Agent;
/// use ui_message_stream::approval::store::LedgerStore;
/// use ui_message_stream::approval::{Approvals, KeyRing};
/// use ui_message_stream_chat::ChatServer;
/// use ui_message_stream_chat::store::LogStore;
///
/// /// With a shared store, several servers serve the same conversations and redeem each approval
/// /// once.
/// fn chat_server(
///     agent: Agent,
///     keys: KeyRing,
///     ledger: Arc<dyn LedgerStore>,
///     store: Arc<dyn LogStore>,
/// ) -> ChatServer {
///     let approvals = Approvals::new(agent.clone()).with_keys(keys).with_ledger(ledger);
///     ChatServer::new(agent, approvals).with_store(store)
/// }
/// ```
#[derive(Clone)]
#[doc(alias = "useChat")]
pub struct ChatServer(
    pub(super) Arc<Inner>,
    /// The version that the client has said.
    pub(super) Option<Version>,
);

impl ChatServer {
    /// Returns the approvals service with which the conversations request approvals.
    pub fn approvals(&self) -> &Approvals {
        &self.0.approvals
    }

    /// Returns what this server has done with runs, for its metrics.
    ///
    /// ```
    /// use ui_message_stream_chat::ChatServer;
    ///
    /// fn metrics(chats: &ChatServer) -> String {
    ///     let counts = chats.run_counts();
    ///     format!("chat_runs_live {}\nchat_runs_lapsed_total {}\n", counts.live, counts.lapsed)
    /// }
    /// # let _ = metrics;
    /// ```
    #[doc(alias = "metrics")]
    pub fn run_counts(&self) -> RunCounts {
        self.0.run_counters.counts()
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
    /// - [`ChatError::Request`] if the [agent](super::ChatAgent::validate_request) rejects the request.
    /// - [`ChatError::Limit`] if the new message, or the outputs of calls that the client executes, do
    ///   not fit into the conversation.
    /// - [`ChatError::AlreadyReceived`] if the request was delivered before, and there is no
    ///   response to it.
    /// - [`ChatError::TooManyRuns`] if the user has too many live runs.
    /// - [`ChatError::TooManyReaders`] if the user reads too many responses.
    /// - [`ChatError::Store`] if the conversation or the log cannot be read
    ///   or written, and [`ChatError::Ledger`] if answers cannot be redeemed, or if an edit or a regeneration
    ///   removes calls that cannot be closed.
    ///
    /// # Cancel safety
    /// If the future is dropped after it was polled, the request is still applied, and the run
    /// continues on its own task, until it ends or reaches the [limits](crate::ChatLimits) of a
    /// run without a reader. The same holds if the response is dropped.
    pub async fn stream_response(
        &self,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<ChatStream, ChatError> {
        let posted = request.unsanitized_continued_message().cloned();
        let client = self.client();
        let reader = self.reader(principal)?;
        let key = LogKey { owner: principal.clone(), chat: request.id().clone() };
        let mut turn = self.start(principal, request).await?;
        let chats = self.clone();
        let stream = async move |response| {
            Ok(match response {
                Response::Join { epoch, message_id, begin, begun, length, .. } => {
                    let posted = posted.as_ref().filter(|posted| posted.id == message_id);
                    let log = LogReader::new(
                        &chats.0,
                        reader,
                        key,
                        client,
                        EventId::of_run(epoch, begin),
                    );
                    streamed(log.of_message(message_id, begun.as_deref(), length, posted).await?)
                }
                Response::Stored(message_id) => {
                    let chat = chats.chat(&key.owner, &key.chat).await?;
                    ChatStream::of_stored(&chat, &message_id, posted.as_ref(), client, reader)?
                }
                other => return Err(ChatError::of_response(other)),
            })
        };
        if turn.is_executing().await {
            let stream = async move { stream(turn.response().await?).await };
            return Ok(ChatStream::later(stream));
        }
        stream(turn.response().await?).await
    }

    /// Returns the stream of the live run of a conversation of this principal, for a page that is
    /// opened again. Returns `None` if there is no such conversation, or no such run.
    ///
    /// `last_event_id` is the `id:` of the last frame that the client has read, if it continues a
    /// response. It gets the frames after that one, also if the run has ended in the last 10 minutes. Returns `None` if
    /// this frame was lost with the server of the run: the page has to load the conversation.
    ///
    /// If the run continues a message, a stream without `last_event_id` begins with that message.
    ///
    /// # Errors
    /// [`ChatError::TooManyReaders`] if the user reads too many responses. [`ChatError::Store`]
    /// if the conversation or the log cannot be read.
    #[doc(alias = "reconnect")]
    pub async fn resume_stream(
        &self,
        principal: &Principal,
        id: &ChatId,
        last_event_id: Option<&str>,
    ) -> Result<Option<ChatStream>, ChatError> {
        let client = self.client();
        let reader = self.reader(principal)?;
        let key = LogKey { owner: principal.clone(), chat: id.clone() };
        if let Some(last) = last_event_id {
            if self.0.shutdown.has_begun() {
                return Err(ChatError::ShuttingDown);
            }
            let Some(last) = EventId::parse(last) else { return Ok(None) };
            let log = LogReader::new(&self.0, reader, key, client, last).continued(last).await?;
            let Some((log, message_id)) = log else { return Ok(None) };
            // The log holds for a while what was edited away.
            return match self.stored_chat(principal, id).await {
                Ok((chat, _)) => Ok((!chat.is_removed(&message_id)).then(|| streamed(log))),
                Err(ChatError::NotFound) => Ok(None),
                Err(error) => Err(error),
            };
        }
        Ok(match self.start_turn(principal, id, client, Goal::Follow)?.response().await? {
            Response::Join { epoch, message_id, begin, begun, length, .. } => {
                let log =
                    LogReader::new(&self.0, reader, key, client, EventId::of_run(epoch, begin));
                Some(streamed(log.of_message(message_id, begun.as_deref(), length, None).await?))
            }
            _ => None,
        })
    }

    /// Applies a request to its conversation, waits until the run has ended, and returns the
    /// complete response.
    ///
    /// ```
    /// # use ui_message_stream::ChatRequest;
    /// # use ui_message_stream_chat::{ChatError, ChatServer};
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream_chat::StopReason;
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
    /// - [`ChatError::Store`] if the rest of the log cannot be read, and [`ChatError::ShuttingDown`] if
    ///   the server is shut down before the run has ended. The run may go on. The same request gets its
    ///   response later, or on another server. A regeneration that names no response may regenerate it
    ///   again.
    ///
    /// # Cancel safety
    /// As [`stream_response`](Self::stream_response).
    pub async fn complete_response(
        &self,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<ChatResponse, ChatError> {
        self.complete(&self.reader(principal)?, principal, request).await
    }

    /// Counts a response that this user reads.
    pub(crate) fn reader(&self, user: &Principal) -> Result<Reader, ChatError> {
        self.0.readers.add(user, self.0.limits.max_user_readers())
    }

    /// As [`complete_response`](Self::complete_response), with a response that is counted.
    pub(crate) async fn complete(
        &self,
        reader: &Reader,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<ChatResponse, ChatError> {
        let id = request.id().clone();
        let client = self.client();
        let response = self.start(principal, request).await?.response().await?;
        let (message_id, end) = match response {
            Response::Join { epoch, message_id, begin, .. } => {
                let key = LogKey { owner: principal.clone(), chat: id.clone() };
                let begin = EventId::of_run(epoch, begin);
                let log = LogReader::new(&self.0, reader.clone(), key, client, begin);
                (message_id, Some(log.run_end().await?))
            }
            Response::Stored(message_id) => (message_id, None),
            other => return Err(ChatError::of_response(other)),
        };
        let chat = self.chat(principal, &id).await?;
        let end =
            end.unwrap_or_else(|| ResponseEnd::of_stored(chat.early_end(&message_id).as_ref()));
        end.into_response(&self.0, chat, &message_id).await
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
        Ok(self.stored_chat(principal, id).await?.0.request_from_answers(answers)?)
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
    /// - [`ChatError::Input`] if a decision changes an input and the tool does not accept the change. No
    ///   decision was applied.
    /// - [`ChatError::TooManyRuns`] if the owner of a conversation has too many live runs. A denial
    ///   needs a run too, because the agent continues the conversation.
    /// - [`ChatError::Ledger`] if the ledger cannot be read or written.
    /// - [`ChatError::Store`] if a conversation or a log cannot be read or
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
        let groups = self.0.approvals.group_by_message(principal, decisions.clone()).await?;
        // No decision counts if an input is not accepted.
        for on_message in &groups {
            let approvals = self.0.approvals.for_chat(principal, &on_message.chat_id);
            let approvals = approvals.on_behalf_of(&on_message.requester);
            approvals.check_changed_inputs(&on_message.plan()).await?;
        }
        for on_message in groups {
            let message_id = on_message.message_id.clone();
            let mut turn = self.start_request(TurnRequest {
                principal: principal.clone(),
                owner: on_message.requester.clone(),
                chat_id: on_message.chat_id.clone(),
                client: self.0.clients.any_client(),
                goal: Goal::Answer { message_id, plan: Box::new(on_message.plan()), posted: None },
                posted: None,
            })?;
            let Some(redeemed) = turn.accepted().await else {
                match turn.response().await? {
                    // The decisions were made before, or the chat does not hold the calls.
                    Response::Stored(_) | Response::UnknownCalls(_) => continue,
                    other => return Err(ChatError::of_response(other)),
                }
            };
            let Accepted { answers, is_incomplete, .. } = redeemed?;
            if is_incomplete {
                return Err(not_stored().into());
            }
            accepted.extend(answers);
        }
        let decided = decisions.into_iter().map(|decision| {
            let accepted = accepted.contains(&(decision.approval_id.clone(), decision.approved));
            DecisionReceipt { decision, accepted }
        });
        Ok(decided.collect())
    }

    /// Loads a conversation of this principal.
    ///
    /// If the conversation has a live run, the result holds what that run has written so far. It shows
    /// the outcome of each approval request, also if the stored conversation holds the request as open:
    /// it has expired, for example, or its server was lost after the decision. Then a turn begins that
    /// stores the outcome, and calls the model if a user has decided. If the ledger cannot be read, such
    /// a request is shown as open. If the server of the live run was lost, a turn begins that ends the
    /// run, or resumes it. Nothing else is written.
    ///
    /// # Errors
    /// - [`ChatError::NotFound`] if this principal has no conversation with this id. The error is
    ///   the same whether the conversation does not exist or belongs to another principal.
    /// - [`ChatError::Store`] if the conversation cannot be loaded.
    #[doc(alias = "history")]
    pub async fn chat(&self, principal: &Principal, id: &ChatId) -> Result<Chat, ChatError> {
        Ok(self.chat_and_version(principal, id).await?.0)
    }

    /// Loads a conversation as [`chat`](ChatServer::chat) does, with the version of its messages.
    pub(crate) async fn chat_and_version(
        &self,
        principal: &Principal,
        id: &ChatId,
    ) -> Result<(Chat, u64), ChatError> {
        let (mut chat, version) = self.stored_chat(principal, id).await?;
        let is_due = chat.due_message().is_some();
        if show_outcomes(&self.0, &mut chat).await || is_due {
            Driver::settle_calls(&self.0, LogKey { owner: principal.clone(), chat: id.clone() });
        }
        Ok((chat, version))
    }

    /// Loads a conversation with what its live run has written so far, and the version of its messages.
    async fn stored_chat(
        &self,
        principal: &Principal,
        id: &ChatId,
    ) -> Result<(Chat, u64), ChatError> {
        let key = LogKey { owner: principal.clone(), chat: id.clone() };
        let view = self.0.load_state(&key).await?.ok_or(ChatError::NotFound)?;
        Driver::mend_lost(&self.0, &key, &view.head);
        // The next request reads only the entries after it.
        self.0.folds.set(&key, Some(view.clone()));
        Ok((view.state.into_chat(), view.head.control))
    }

    /// Stops the live run of a conversation of this principal, and keeps what it has written.
    ///
    /// The run is stopped on whichever server it runs. If this is its server, what readers have got is stored first, if
    /// the store takes it in 50 ms. An approved call that is already executing is
    /// not stopped. If the conversation has no run, or if there is no such conversation, nothing
    /// happens.
    ///
    /// # Errors
    /// [`ChatError::Store`] if the conversation or the log cannot be read or
    /// written.
    #[doc(alias = "abort")]
    #[doc(alias = "cancel")]
    pub async fn stop(&self, principal: &Principal, id: &ChatId) -> Result<(), ChatError> {
        let client = self.0.clients.any_client();
        done(self.start_turn(principal, id, client, Goal::Stop)?.response().await?)
    }

    /// Lists the conversations of this principal, the last updated first, page by page.
    ///
    /// For the first page, pass `None` as `after`. For each later page, pass the `next` of the page
    /// before. [`LogStore::list`](super::store::LogStore::list) says what the pages hold if
    /// conversations are updated meanwhile.
    ///
    /// ```
    /// # use ui_message_stream_chat::{ChatError, ChatServer};
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream_chat::store::ListChats;
    ///
    /// async fn titles(chats: &ChatServer, user: &Principal) -> Result<Vec<String>, ChatError> {
    ///     let (mut titles, mut after) = (Vec::new(), None);
    ///     loop {
    ///         let page = chats.list(user, ListChats { limit: 20, after: after.as_ref(), search: None }).await?;
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
        Ok(self.0.logs.list(principal, list).await?)
    }

    /// Follows the newest conversations of this principal, at most `limit`. The response tells a page what
    /// other pages and servers change: a run begins or ends, a question is asked or closed, messages change,
    /// a conversation is begun, renamed or deleted.
    ///
    /// It is a stream of server-sent events, which an `EventSource` reads:
    ///
    /// | event | data |
    /// |---|---|
    /// | `chats` | the first event: the conversations, as `GET /` of the routes lists them |
    /// | `chat` | a conversation that has changed, or is new among them, in the same form |
    /// | `deleted` | `{"id"}` of a conversation that was deleted |
    ///
    /// `version` grows with each change of the messages, so a page loads a conversation again when it shows
    /// another version, or another time if the conversation was deleted and begun again. Changes that follow each other at once may be one event. A conversation that newer
    /// ones have replaced among the newest is followed no longer, until it changes. After a reconnect, the
    /// event `chats` says what has changed meanwhile.
    ///
    /// The response counts as one that the user reads. It ends when the server is shut down, and after 15 minutes,
    /// so that a client that reconnects is authenticated again. It is cut off if the store fails for 30 seconds.
    /// `limit` is at most 100.
    ///
    /// ```
    /// # use ui_message_stream_chat::{ChatError, ChatServer};
    /// use ui_message_stream::approval::Principal;
    /// use ui_message_stream_chat::ChatStream;
    ///
    /// /// A handler of any server that is built on hyper.
    /// fn events(
    ///     chats: &ChatServer,
    ///     user: &Principal,
    /// ) -> Result<http::Response<ChatStream>, ChatError> {
    ///     Ok(chats.follow(user, 20)?.into_http_response())
    /// }
    /// # let _ = events;
    /// ```
    ///
    /// # Errors
    /// [`ChatError::TooManyReaders`] if the user reads too many responses.
    #[doc(alias = "EventSource")]
    #[doc(alias = "subscribe")]
    pub fn follow(&self, principal: &Principal, limit: usize) -> Result<ChatStream, ChatError> {
        let Inner { followers, logs, shutdown, .. } = &*self.0;
        let reader = self.reader(principal)?;
        let follower = Follower::new(followers, logs, shutdown, (principal, limit), reader);
        Ok(ChatStream::of_pages(follower.events()))
    }

    /// Deletes a conversation of this principal. If there is none, nothing is deleted.
    ///
    /// - Its live run is stopped, on whichever server it runs. The responses that read it end. What
    ///   it has written is not kept, and it does not create the conversation again.
    /// - Its pending approval requests are revoked: an approval has no effect afterwards. An approved
    ///   call that is already executing is not stopped.
    /// - Its log is deleted with everything in it, also with the runs that have ended.
    ///
    /// A message that the user sends later with the same id begins a new conversation, with what the
    /// server imports from the history of the page ([`HistoryImport`](super::HistoryImport)).
    ///
    /// # Errors
    /// [`ChatError::Store`] and [`ChatError::Ledger`] if the conversation, the
    /// log or the approval requests cannot be read or written. Call this function again: it does what
    /// is left to do. Until then no approval has an effect if the conversation is gone.
    ///
    /// # Cancel safety
    /// If the future is dropped after it was polled, the conversation is still deleted.
    #[doc(alias = "remove")]
    pub async fn delete(&self, principal: &Principal, id: &ChatId) -> Result<(), ChatError> {
        let client = self.0.clients.any_client();
        done(self.start_turn(principal, id, client, Goal::Delete)?.response().await?)
    }

    /// Deletes all conversations of this principal, each as [`delete`](Self::delete) does. One that cannot be
    /// deleted does not keep the others, and one that begins meanwhile may stay.
    ///
    /// # Errors
    /// The first error, as of [`delete`](Self::delete). Call this function again: it does what is left to do.
    ///
    /// # Cancel safety
    /// If the future is dropped, the conversations that it has not come to stay.
    pub async fn delete_all(&self, principal: &Principal) -> Result<(), ChatError> {
        // A conversation that changes meanwhile moves to the first page.
        for _ in 0..MAX_PASSES {
            let mut after = None;
            let mut failed = None;
            let mut has_deleted = false;
            loop {
                let list = ListChats { limit: 100, after: after.as_ref(), search: None };
                let page = self.list(principal, list).await?;
                for chat in page.chats {
                    match self.delete(principal, &chat.id).await {
                        Ok(()) => has_deleted = true,
                        Err(error) => failed = failed.or(Some(error)),
                    }
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
            if !has_deleted {
                return failed.map_or(Ok(()), Err);
            }
        }
        Ok(())
    }

    /// Gives a conversation of this principal a title of its own, in place of the beginning of the first
    /// text. Pages that [follow](Self::follow) the conversations learn of it.
    ///
    /// # Errors
    /// - [`ChatError::NotFound`] if this principal has no conversation with this id.
    /// - [`ChatError::Request`] if the title has more than 200 characters.
    /// - [`ChatError::Store`] if the title cannot be stored.
    pub async fn rename(
        &self,
        principal: &Principal,
        id: &ChatId,
        title: &str,
    ) -> Result<(), ChatError> {
        if title.chars().nth(MAX_TITLE_CHARS).is_some() {
            let error = FieldError::new("title", "has more than 200 characters");
            return Err(ChatError::Request(error.into()));
        }
        let key = LogKey { owner: principal.clone(), chat: id.clone() };
        if self.0.logs.rename(&key, title).await? { Ok(()) } else { Err(ChatError::NotFound) }
    }

    /// Lets the live runs end, and hands over those that have not ended after this time. Call it when
    /// the process has to stop, while the server of the host still accepts connections: a request that
    /// cannot connect gets no status.
    ///
    /// From now on, requests that begin, continue or read a run get [`ChatError::ShuttingDown`].
    /// Loading, stopping and deleting conversations still work. The server closes after `grace`, or as
    /// soon as all runs and responses have ended. Then agents are dropped, tools are no longer waited
    /// for, responses end without an end of their message, and requests that stop or delete get
    /// [`ChatError::ShuttingDown`] too.
    ///
    /// The next server that a client asks keeps what a dropped run has written and resumes or ends it,
    /// as after a crash, but without waiting for the end of its lease (see
    /// [`with_run_lease`](Self::with_run_lease)), if the store can be written within three seconds.
    /// This function waits up to so much longer than `grace`. It returns the number of dropped turns:
    /// runs, and requests that had no result yet.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use ui_message_stream_chat::ChatServer;
    ///
    /// /// Returns what to pass to the `with_graceful_shutdown` of the server. It accepts connections until
    /// /// this ends.
    /// async fn stop(chats: ChatServer, sigterm: impl Future<Output = ()>) {
    ///     sigterm.await;
    ///     chats.shut_down(Duration::from_secs(20)).await;
    /// }
    /// # let _ = |chats| stop(chats, async {});
    /// ```
    #[doc(alias = "graceful_shutdown")]
    #[doc(alias = "SIGTERM")]
    pub async fn shut_down(&self, grace: Duration) -> usize {
        let stopped = self.0.shutdown.shut_down(grace).await;
        if stopped > 0 {
            tracing::warn!(stopped, "turns were stopped, because the server is shutting down");
        }
        stopped
    }

    /// Returns this server with the streams for a client of this version, in place of that of
    /// [`with_version`](Self::with_version). `chat_routes` does so with the version in the header of
    /// [`with_version_from`](Self::with_version_from).
    ///
    /// Messages that this server returns are whole:
    /// [`UiMessage::for_version`](ui_message_stream::UiMessage::for_version) removes what a client of the version
    /// cannot show.
    #[must_use]
    pub fn for_version(&self, version: Version) -> Self {
        ChatServer(Arc::clone(&self.0), Some(version))
    }

    pub(crate) fn client(&self) -> Client {
        self.0.clients.client(self.1)
    }

    /// Starts to apply a request to its conversation.
    async fn start(
        &self,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<StartedTurn<Response>, ChatError> {
        self.0.agent.validate_request(&request)?;
        if !request.approval_inputs().is_empty() {
            let approvals = self.0.approvals.for_chat(principal, request.id());
            approvals.check_changed_inputs(&plan_of(&request)).await?;
        }
        let client = self.client();
        let chat_id = request.id().clone();
        let request = Arc::new(request);
        let goal = Goal::of(Arc::clone(&request));
        let posted = Some(request);
        let owner = principal.clone();
        let principal = principal.clone();
        let request = TurnRequest { principal, owner, chat_id, client, goal, posted };
        self.start_request(request)
    }

    /// Starts a turn that no request has posted.
    fn start_turn(
        &self,
        principal: &Principal,
        id: &ChatId,
        client: Client,
        goal: Goal,
    ) -> Result<StartedTurn<Response>, ChatError> {
        let key = LogKey { owner: principal.clone(), chat: id.clone() };
        self.start_request(TurnRequest::of_owner(key, client, goal))
    }

    fn start_request(&self, request: TurnRequest) -> Result<StartedTurn<Response>, ChatError> {
        sweeps::start(&self.0);
        Driver::start(&self.0, request)
    }
}

fn streamed(reader: LogReader) -> ChatStream {
    // It is moved for each piece.
    ChatStream::of_pages(stream::unfold(Box::new(reader), async |mut reader| {
        let piece = reader.next_piece().await?;
        Some((piece, reader))
    }))
}

fn done(response: Response) -> Result<(), ChatError> {
    match response {
        Response::Nothing => Ok(()),
        other => Err(ChatError::of_response(other)),
    }
}

impl fmt::Debug for ChatServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatServer")
            .field("approvals", &self.0.approvals)
            .field("store", &self.0.logs)
            .finish_non_exhaustive()
    }
}

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

/// The maximum number of characters of a title that a user gives.
const MAX_TITLE_CHARS: usize = 200;

/// How often all conversations are listed to delete them, while there are any.
const MAX_PASSES: u32 = 8;
