//! A request and its response, in the same steps as `Chat` of `ai@6.0.326`.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::StatusCode;
use serde::Serialize;

use super::Conversation;
use crate::checker::ClientReader;
use crate::chunk::{Chunk, ChunkReader, ReceivedChunk};
use crate::id::{ChatId, MessageId};
use crate::json::Json;
use crate::message::{Role, ToolPart, ToolState, UiMessage};
use crate::reducer::{Reducer, ResetOn};
use crate::request::Trigger;
use crate::testing::conformance::Conformance;
use crate::testing::route::Reply;

impl Conversation<'_> {
    /// Sends an approval response. If the request fails, the approval response stays unsent.
    pub(super) async fn send_approval_response(&mut self, message_id: Option<MessageId>) {
        let sends_approval_response = message_id.is_some() && message_id == self.unsent_response;
        if sends_approval_response {
            self.unsent_response = None;
        }
        self.request(Trigger::SubmitMessage, message_id.clone()).await;
        if sends_approval_response && self.error.is_some() && self.unsent_response.is_none() {
            self.unsent_response = message_id;
        }
    }

    /// Sends a request and reads the response. Repeats this while the client would send
    /// automatically.
    pub(super) async fn request(&mut self, trigger: Trigger, message_id: Option<MessageId>) {
        let end = self.exchange(&trigger, message_id).await;
        self.send_automatically(end).await;
    }

    /// Reconnects to a live response, then sends the automatic requests that the client would send
    /// after it.
    pub(super) async fn rejoin(&mut self) {
        let reply = self.route.reconnect(self.id.clone(), self.max_chunks.take()).await;
        self.error = None;
        self.last_chunks.clear();
        if reply.status == StatusCode::NO_CONTENT {
            self.disconnected = None;
            return;
        }
        if !reply.status.is_success() {
            self.error = Some(reply.body.text());
            return;
        }
        self.check(&reply, self.messages.last().cloned().as_ref(), ClientReader::ChatResume);
        // The first `start` empties the message on the page, unless that message holds an
        // incomplete tool input.
        let initial = self.disconnected.take().unwrap_or_else(|| {
            let new_id = self.generate_id();
            let is_cut_off =
                |part: &ToolPart| matches!(part.state, ToolState::InputStreaming { .. });
            let last = self.messages.last().filter(|message| message.role == Role::Assistant);
            let cut_off = last.filter(|message| message.tool_parts().any(is_cut_off)).cloned();
            cut_off.unwrap_or_else(|| UiMessage::new(new_id, Role::Assistant, Vec::new()))
        });
        let reducer = Reducer::continuing(initial).with_reset_on(ResetOn::FirstStart);
        let end = self.read_reply(reply, reducer, None);
        self.send_automatically(end).await;
    }

    /// Sends requests while the client would send automatically.
    async fn send_automatically(&mut self, mut end: ExchangeEnd) {
        let mut sent = 1;
        while end == ExchangeEnd::Ready && (self.sends_automatically_when)(&self.messages) {
            assert!(
                sent < MAX_AUTOMATIC_REQUESTS,
                "the client sends the same again and again: `sendAutomaticallyWhen` holds after \
                 {sent} responses; follow tool results with a step that has content, or with an \
                 `error` chunk; {}",
                self.page().describe()
            );
            sent += 1;
            let last = self.messages.last().map(|message| message.id.clone());
            end = self.exchange(&Trigger::SubmitMessage, last).await;
        }
    }

    /// Sends one request and reads its response, in the same steps as `Chat.makeRequest`.
    async fn exchange(&mut self, trigger: &Trigger, message_id: Option<MessageId>) -> ExchangeEnd {
        let position = |id: &MessageId| self.messages.iter().position(|m| m.id == *id);
        let named = message_id.as_ref().filter(|_| *trigger == Trigger::SubmitMessage);
        let last = self.messages.len().checked_sub(1);
        let at = named.map_or(last, |id| position(id).or(last));
        let target = at.and_then(|at| self.messages.get(at)).cloned();
        let target = target.filter(|message| message.role == Role::Assistant);
        let is_earlier = at < last && named.is_some_and(|id| position(id).is_some());
        let replaced_id = target.as_ref().filter(|_| is_earlier).map(|message| message.id.clone());

        let continued = target.filter(|_| *trigger != Trigger::RegenerateMessage);
        let new_id = self.generate_id();
        let body = self.body(trigger, message_id.as_ref());
        self.requests.push(body.clone());
        self.error = None;
        self.disconnected = None;
        self.last_chunks.clear();
        let reply = self.route.post(body, self.max_chunks.take()).await;
        self.check(&reply, continued.as_ref(), ClientReader::Chat);
        let initial =
            continued.unwrap_or_else(|| UiMessage::new(new_id, Role::Assistant, Vec::new()));
        self.read_reply(reply, Reducer::continuing(initial), replaced_id.as_ref())
    }

    /// Checks a response with the checker. A response that was refused, stopped or interrupted is
    /// not checked, because it is incomplete.
    fn check(&self, reply: &Reply, continued: Option<&UiMessage>, reader: ClientReader) {
        let body = &reply.body;
        let is_whole = reply.status.is_success() && body.error.is_none() && !body.is_cut_off;
        let Some(oldest_client) = self.oldest_client.filter(|_| is_whole) else {
            return;
        };
        let mut rules = Conformance::new().with_oldest_client(oldest_client).with_reader(reader);
        if let Some(message) = continued {
            rules = rules.continuing(message.clone());
        }
        let data = reply.body.chunk_events().map(|event| &event.data);
        rules.assert_none(&rules.check_data(data, reply.body.incomplete_event_line.is_some()));
    }

    /// Reads a response as the client does: as far as possible. What the client shows is kept even
    /// after an error.
    fn read_reply(
        &mut self,
        reply: Reply,
        mut reducer: Reducer,
        replaced_id: Option<&MessageId>,
    ) -> ExchangeEnd {
        let is_stopped = reply.body.is_cut_off;
        let is_interrupted = reply.body.error.is_some();
        self.error = self.apply_reply(reply, &mut reducer, replaced_id).err();
        match &self.error {
            None if is_stopped => ExchangeEnd::Stopped,
            None => ExchangeEnd::Ready,
            Some(_) => {
                let has_error_chunk = reducer.has_stopped();
                self.disconnected =
                    (is_interrupted && !has_error_chunk).then(|| reducer.into_message());
                ExchangeEnd::Failed
            }
        }
    }

    fn apply_reply(
        &mut self,
        reply: Reply,
        reducer: &mut Reducer,
        replaced_id: Option<&MessageId>,
    ) -> Result<(), String> {
        if !reply.status.is_success() {
            return Err(reply.body.text());
        }
        if reply.status == StatusCode::NO_CONTENT {
            return Err("The response body is empty.".to_owned());
        }
        let result = self.reduce(&reply, reducer, replaced_id);
        self.update_messages(reducer, replaced_id);
        result?;
        match (reducer.error_text(), reply.body.error) {
            (Some(text), _) => Err(text.to_owned()),
            (None, Some(error)) => Err(error.to_string()),
            (None, None) => Ok(()),
        }
    }

    fn reduce(
        &mut self,
        reply: &Reply,
        reducer: &mut Reducer,
        replaced_id: Option<&MessageId>,
    ) -> Result<(), String> {
        let mut reader = ChunkReader::default();
        for event in reply.body.chunk_events() {
            let received = match reader.read(&event.data) {
                Ok(received) => received,
                // The client no longer reads the stream.
                Err(_) if reducer.error_text().is_some() => continue,
                Err(error) => return Err(error.to_string()),
            };
            if let ReceivedChunk::Known { chunk, .. } = &received {
                self.last_chunks.push(chunk.clone().into_owned());
                if matches!(chunk, Chunk::Start { .. }) {
                    // This chunk may change the id of the message. What was shown before it stays
                    // in the list.
                    self.update_messages(reducer, replaced_id);
                }
            }
            reducer.push(&received).map_err(|error| error.to_string())?;
            if let ReceivedChunk::Known { chunk, .. } = &received {
                self.run_tool(chunk, reducer);
            }
        }
        Ok(())
    }

    /// Calls `on_tool_call` for a tool call that the page executes. The result is in the message
    /// before the next chunk is read.
    fn run_tool(&self, chunk: &Chunk<'_>, reducer: &mut Reducer) {
        let Chunk::ToolInputAvailable { tool_call_id, tool_name, input, provider_executed, .. } =
            chunk
        else {
            return;
        };
        if *provider_executed == Some(true) || reducer.has_stopped() {
            return;
        }
        let input = input.as_deref().cloned().unwrap_or_else(Json::null);
        let Some(result) = (self.on_tool_call)(tool_name, &input) else {
            return;
        };
        let result = match result {
            Ok(output) => Chunk::ToolOutputAvailable {
                tool_call_id: tool_call_id.clone(),
                output: Some(Cow::Owned(output)),
                provider_executed: None,
                provider_metadata: None,
                tool_metadata: None,
                dynamic: None,
                preliminary: None,
            },
            Err(text) => Chunk::ToolOutputError {
                tool_call_id: tool_call_id.clone(),
                error_text: text.into(),
                provider_executed: None,
                provider_metadata: None,
                tool_metadata: None,
                dynamic: None,
            },
        };
        reducer.push_chunk(&result).expect("the message holds the call whose input just came");
    }

    /// Puts the message of the response into the list, where the client puts it.
    fn update_messages(&mut self, reducer: &mut Reducer, replaced_id: Option<&MessageId>) {
        let Some(shown) = reducer.rendered().map(Cow::into_owned) else {
            return;
        };
        let position = |id: &MessageId| self.messages.iter().rposition(|m| m.id == *id);
        match position(&shown.id).or_else(|| position(replaced_id?)) {
            Some(at) => self.messages[at] = shown,
            None => self.messages.push(shown),
        }
    }

    fn body(&self, trigger: &Trigger, message_id: Option<&MessageId>) -> String {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Sent<'a> {
            #[serde(flatten)]
            custom: &'a BTreeMap<String, Json>,
            id: &'a ChatId,
            messages: &'a [UiMessage],
            trigger: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            message_id: Option<&'a MessageId>,
        }
        let sent = Sent {
            custom: &self.custom,
            id: &self.id,
            messages: &self.messages,
            trigger: trigger.as_str(),
            message_id,
        };
        serde_json::to_string(&sent).expect("messages serialize")
    }
}

/// How a response ended for the client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExchangeEnd {
    Ready,
    /// The user stopped the response.
    Stopped,
    Failed,
}

/// The maximum number of requests that a client sends without an action of the user. The real
/// client has no such limit.
const MAX_AUTOMATIC_REQUESTS: usize = 5;
