//! [`LogServer`]: what a chat server does with logs of chats. It waits, and decides nothing.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::stream;

use super::decide::{Goal, Response};
use super::driver::{Driver, LogServer, TurnRequest};
use super::reader::LogReader;
use super::run_frames::EventId;
use super::state::ChatState;
use super::store::{ListLogs, LoadLog, LogKey};
use crate::approval::store::LedgerStoreError;
use crate::approval::{ApprovalDecision, Principal};
use crate::chat::complete::{ChatResponse, RunEnd};
use crate::chat::readers::Reader;
use crate::chat::redeem::Accepted;
use crate::chat::started_turn::StartedTurn;
use crate::chat::store::{ChatPage, ChatStoreError, ChatSummary, ListChats};
use crate::chat::{Chat, ChatError, ChatStream, DecisionReceipt, RequestConflict};
use crate::id::ChatId;
use crate::request::ChatRequest;

impl LogServer<'_> {
    pub(in crate::chat) async fn stream_response(
        &self,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<ChatStream, ChatError> {
        let posted = request.unsanitized_continued_message().cloned();
        let client = self.chats.clients.client_of(&request);
        let reader = self.chats.readers.add(principal, self.chats.limits.max_user_readers())?;
        let key = LogKey { owner: principal.clone(), chat: request.id().clone() };
        let mut turn = self.start(principal, request)?;
        let (chats, logs) = (Arc::clone(self.chats), Arc::clone(self.logs));
        let stream = async move |response| {
            let server = LogServer { chats: &chats, logs: &logs };
            Ok(match response {
                Response::Join { epoch, message_id, begin, begun, length, .. } => {
                    let posted = posted.as_ref().filter(|posted| posted.id == message_id);
                    let log =
                        LogReader::new(server, reader, key, client, EventId::of_run(epoch, begin));
                    streamed(log.of_message(message_id, begun.as_deref(), length, posted).await?)
                }
                Response::Stored(message_id) => {
                    let chat = server.shown_chat(&key.owner, &key.chat).await?;
                    let posted = posted.as_ref().map(|posted| (posted, &[][..]));
                    ChatStream::of_stored(&chat, &message_id, posted, client, reader)?
                }
                other => return Err(refused(other)),
            })
        };
        if turn.is_executing().await {
            let stream = async move { stream(turn.response().await?).await };
            return Ok(ChatStream::later(stream));
        }
        stream(turn.response().await?).await
    }

    pub(in crate::chat) async fn resume_stream(
        &self,
        principal: &Principal,
        id: &ChatId,
        last_event_id: Option<&str>,
    ) -> Result<Option<ChatStream>, ChatError> {
        let client = self.chats.clients.any_client();
        let reader = self.chats.readers.add(principal, self.chats.limits.max_user_readers())?;
        let key = LogKey { owner: principal.clone(), chat: id.clone() };
        if let Some(last) = last_event_id {
            if self.chats.shutdown.has_begun() {
                return Err(ChatError::ShuttingDown);
            }
            let Some(last) = EventId::parse(last) else { return Ok(None) };
            let log = LogReader::new(*self, reader, key, client, last).continued().await?;
            return Ok(log.map(streamed));
        }
        Ok(match self.start_turn(principal, id, client, Goal::Follow)?.response().await? {
            Response::Join { epoch, message_id, begin, begun, length, .. } => {
                let log = LogReader::new(*self, reader, key, client, EventId::of_run(epoch, begin));
                Some(streamed(log.of_message(message_id, begun.as_deref(), length, None).await?))
            }
            _ => None,
        })
    }

    pub(in crate::chat) async fn complete(
        &self,
        reader: &Reader,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<ChatResponse, ChatError> {
        let (id, client) = (request.id().clone(), self.chats.clients.client_of(&request));
        let response = self.start(principal, request)?.response().await?;
        let (message_id, end) = match response {
            Response::Join { epoch, message_id, begin, .. } => {
                let key = LogKey { owner: principal.clone(), chat: id.clone() };
                let begin = EventId::of_run(epoch, begin);
                let log = LogReader::new(*self, reader.clone(), key, client, begin);
                (message_id, Some(log.run_end().await?))
            }
            Response::Stored(message_id) => (message_id, None),
            other => return Err(refused(other)),
        };
        let chat = self.shown_chat(principal, &id).await?;
        let end = end.unwrap_or_else(|| RunEnd::of_stored(chat.early_end(&message_id)));
        end.into_response(self.chats, chat, &message_id).await
    }

    pub(in crate::chat) async fn decide(
        &self,
        principal: &Principal,
        decisions: Vec<ApprovalDecision>,
    ) -> Result<Vec<DecisionReceipt>, ChatError> {
        let mut accepted = HashSet::new();
        for on_message in
            self.chats.approvals.group_by_message(principal, decisions.clone()).await?
        {
            let message_id = on_message.message_id.clone();
            let mut turn = Driver::start(
                self.chats,
                self.logs,
                TurnRequest {
                    principal: principal.clone(),
                    owner: on_message.requester.clone(),
                    chat_id: on_message.chat_id.clone(),
                    client: self.chats.clients.any_client(),
                    goal: Goal::Answer {
                        message_id,
                        plan: Box::new(on_message.plan()),
                        posted: None,
                    },
                    posted: None,
                },
            )?;
            let Some(redeemed) = turn.accepted().await else {
                match turn.response().await? {
                    // The decisions were made before, or the chat does not hold the calls.
                    Response::Stored(_) | Response::UnknownCalls => continue,
                    other => return Err(refused(other)),
                }
            };
            let Accepted { answers, is_incomplete, .. } = redeemed?;
            if is_incomplete {
                return Err(LedgerStoreError::new("a decision could not be stored").into());
            }
            accepted.extend(answers);
        }
        let decided = decisions.into_iter().map(|decision| {
            let accepted = accepted.contains(&(decision.approval_id.clone(), decision.approved));
            DecisionReceipt { decision, accepted }
        });
        Ok(decided.collect())
    }

    /// Loads a chat with what its live run has written so far.
    pub(in crate::chat) async fn chat(
        &self,
        principal: &Principal,
        id: &ChatId,
    ) -> Result<Chat, ChatError> {
        let key = LogKey { owner: principal.clone(), chat: id.clone() };
        let _turn = self.chats.loads.turn(principal).await;
        let load = LoadLog { key: &key, has_frames: true, has_messages: true };
        let loaded = self.logs.load(load).await?.ok_or(ChatError::NotFound)?;
        let (state, _) =
            ChatState::of_loaded(id, principal, &loaded).map_err(ChatStoreError::new)?;
        Ok(state.into_chat())
    }

    /// Loads a chat, and shows approval requests as closed that were closed without a decision.
    pub(in crate::chat) async fn shown_chat(
        &self,
        principal: &Principal,
        id: &ChatId,
    ) -> Result<Chat, ChatError> {
        let mut chat = self.chat(principal, id).await?;
        self.chats.show_closed_requests(&mut chat).await;
        Ok(chat)
    }

    pub(in crate::chat) async fn stop(
        &self,
        principal: &Principal,
        id: &ChatId,
    ) -> Result<(), ChatError> {
        let client = self.chats.clients.any_client();
        done(self.start_turn(principal, id, client, Goal::Stop)?.response().await?)
    }

    pub(in crate::chat) async fn delete(
        &self,
        principal: &Principal,
        id: &ChatId,
    ) -> Result<(), ChatError> {
        let client = self.chats.clients.any_client();
        done(self.start_turn(principal, id, client, Goal::Delete)?.response().await?)
    }

    pub(in crate::chat) async fn list(
        &self,
        principal: &Principal,
        list: ListChats<'_>,
    ) -> Result<ChatPage, ChatError> {
        let list = ListLogs { limit: list.limit, after: list.after, search: None };
        let page = self.logs.list(principal, list).await?;
        let chats = page.chats.into_iter().map(|chat| ChatSummary {
            id: chat.id,
            title: chat.title,
            updated_at: chat.updated_at,
        });
        Ok(ChatPage { chats: chats.collect(), next: page.next })
    }

    fn start(
        &self,
        principal: &Principal,
        request: ChatRequest,
    ) -> Result<StartedTurn<Response>, ChatError> {
        self.chats.agent.validate_request(&request)?;
        let client = self.chats.clients.client_of(&request);
        let (chat_id, request) = (request.id().clone(), Arc::new(request));
        let (goal, posted) = (Goal::of(Arc::clone(&request)), Some(request));
        let (owner, principal) = (principal.clone(), principal.clone());
        let request = TurnRequest { principal, owner, chat_id, client, goal, posted };
        Driver::start(self.chats, self.logs, request)
    }
}

fn streamed(reader: LogReader) -> ChatStream {
    // It is moved for each page.
    ChatStream::of_pages(stream::unfold(Box::new(reader), async |mut reader| {
        let page = reader.next_page().await?;
        Some((page, reader))
    }))
}

fn done(response: Response) -> Result<(), ChatError> {
    match response {
        Response::Nothing => Ok(()),
        other => Err(refused(other)),
    }
}

/// Returns the error of a request that has no response.
fn refused(response: Response) -> ChatError {
    match response {
        Response::Limit(limit) => limit.into(),
        Response::Refused(conflict) => conflict.into(),
        Response::TooManyRuns => ChatError::TooManyRuns,
        Response::AlreadyReceived | Response::Nothing => ChatError::AlreadyReceived,
        Response::UnknownCalls => RequestConflict::UnknownCalls.into(),
        // The driver knows why, and a turn with one of the others is not refused.
        Response::Failed | Response::Join { .. } | Response::Stored(_) => {
            ChatStoreError::new("the request was not answered").into()
        }
    }
}
