//! A request and its response, step by step as `Chat` of `ai@6.0.326` does it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::StatusCode;
use serde::Serialize;

use super::Conversation;
use super::route::Reply;
use crate::checker::Reader;
use crate::chunk::{Chunk, Received};
use crate::id::{ChatId, MessageId};
use crate::json::Json;
use crate::message::{Role, ToolPart, ToolState, UiMessage};
use crate::reducer::{Reducer, ResetOn};
use crate::request::Trigger;
use crate::testing::conformance::Conformance;

impl Conversation<'_> {
    /// Sends an answer. One that the server did not take is still to be sent.
    pub(super) async fn request_for_answer(&mut self, message_id: Option<MessageId>) {
        let sends_answer = message_id.is_some() && message_id == self.answered;
        if sends_answer {
            self.answered = None;
        }
        self.request(Trigger::SubmitMessage, message_id.clone()).await;
        if sends_answer && self.error.is_some() && self.answered.is_none() {
            self.answered = message_id;
        }
    }

    /// Sends a request, reads the response, and does so again while the client would.
    pub(super) async fn request(&mut self, trigger: Trigger, message_id: Option<MessageId>) {
        let ended = self.exchange(&trigger, message_id).await;
        self.send_on(ended).await;
    }

    /// Rejoins a live response, and sends what the client would behind it.
    pub(super) async fn rejoin(&mut self) {
        let reply = self.route.reconnect(self.id.clone(), self.stops_after.take()).await;
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
        self.check(&reply, self.messages.last().cloned().as_ref(), Reader::ChatResume);
        // What is shown is begun anew by the first `start`, unless it was cut off.
        let begun = self.disconnected.take().unwrap_or_else(|| {
            let made_id = self.make_id();
            let is_cut_off =
                |part: &ToolPart| matches!(part.state, ToolState::InputStreaming { .. });
            let last = self.messages.last().filter(|message| message.role == Role::Assistant);
            let cut_off = last.filter(|message| message.tool_parts().any(is_cut_off)).cloned();
            cut_off.unwrap_or_else(|| UiMessage::new(made_id, Role::Assistant, Vec::new()))
        });
        let reducer = Reducer::continuing(begun).with_reset_on(ResetOn::FirstStart);
        let ended = self.read(reply, reducer, None);
        self.send_on(ended).await;
    }

    /// Sends by itself where the client would.
    async fn send_on(&mut self, mut ended: Ended) {
        let mut sent = 1;
        while ended == Ended::Ready && (self.sends_automatically_when)(&self.messages) {
            assert!(
                sent < AUTOMATIC_REQUESTS,
                "the client sends the same again and again: `sendAutomaticallyWhen` holds after \
                 {sent} responses; follow tool results with a step that has content, or with an \
                 `error` chunk; {}",
                self.describe()
            );
            sent += 1;
            let last = self.messages.last().map(|message| message.id.clone());
            ended = self.exchange(&Trigger::SubmitMessage, last).await;
        }
    }

    /// One request and its response, step by step as `Chat.makeRequest` has it.
    async fn exchange(&mut self, trigger: &Trigger, message_id: Option<MessageId>) -> Ended {
        let position = |id: &MessageId| self.messages.iter().position(|m| m.id == *id);
        let named = message_id.as_ref().filter(|_| *trigger == Trigger::SubmitMessage);
        let last = self.messages.len().checked_sub(1);
        let at = named.map_or(last, |id| position(id).or(last));
        let target = at.and_then(|at| self.messages.get(at)).cloned();
        let target = target.filter(|message| message.role == Role::Assistant);
        let is_earlier = at < last && named.is_some_and(|id| position(id).is_some());
        let earlier = target.as_ref().filter(|_| is_earlier).map(|message| message.id.clone());

        let continued = target.filter(|_| *trigger != Trigger::RegenerateMessage);
        let made_id = self.make_id();
        let body = self.body(trigger, message_id.as_ref());
        self.requests.push(body.clone());
        self.error = None;
        self.disconnected = None;
        self.last_chunks.clear();
        let reply = self.route.post(body, self.stops_after.take()).await;
        self.check(&reply, continued.as_ref(), Reader::Chat);
        let begun =
            continued.unwrap_or_else(|| UiMessage::new(made_id, Role::Assistant, Vec::new()));
        self.read(reply, Reducer::continuing(begun), earlier.as_ref())
    }

    /// Holds a response against the checker. One that was refused, stopped, or broke off is no
    /// whole stream.
    fn check(&self, reply: &Reply, continued: Option<&UiMessage>, reader: Reader) {
        let body = &reply.body;
        let is_whole = reply.status.is_success() && body.broken.is_none() && !body.is_cut_off;
        let Some(oldest_client) = self.oldest_client.filter(|_| is_whole) else {
            return;
        };
        let mut rules = Conformance::new().with_oldest_client(oldest_client).with_reader(reader);
        if let Some(message) = continued {
            rules = rules.continuing(message.clone());
        }
        let data = reply.body.chunk_events().map(|event| &event.data);
        rules.assert_none(&rules.check_data(data, reply.body.unfinished.is_some()));
    }

    /// Reads a response as the client does: as far as it can, and what it shows is kept.
    fn read(&mut self, reply: Reply, mut reducer: Reducer, earlier: Option<&MessageId>) -> Ended {
        let is_stopped = reply.body.is_cut_off;
        let broken = reply.body.broken.is_some();
        self.error = self.take(reply, &mut reducer, earlier).err();
        match &self.error {
            None if is_stopped => Ended::Stopped,
            None => Ended::Ready,
            Some(_) => {
                let was_told = reducer.has_stopped();
                self.disconnected = (broken && !was_told).then(|| reducer.into_message());
                Ended::Failed
            }
        }
    }

    fn take(
        &mut self,
        reply: Reply,
        reducer: &mut Reducer,
        earlier: Option<&MessageId>,
    ) -> Result<(), String> {
        if !reply.status.is_success() {
            return Err(reply.body.text());
        }
        if reply.status == StatusCode::NO_CONTENT {
            return Err("The response body is empty.".to_owned());
        }
        let result = self.reduce(&reply, reducer, earlier);
        self.show(reducer, earlier);
        result?;
        match (reducer.error_text(), reply.body.broken) {
            (Some(text), _) => Err(text.to_owned()),
            (None, Some(broken)) => Err(broken.to_string()),
            (None, None) => Ok(()),
        }
    }

    fn reduce(
        &mut self,
        reply: &Reply,
        reducer: &mut Reducer,
        earlier: Option<&MessageId>,
    ) -> Result<(), String> {
        for event in reply.body.chunk_events() {
            let received = match Received::parse(&event.data) {
                Ok(received) => received,
                // Nobody reads it any more.
                Err(_) if reducer.error_text().is_some() => continue,
                Err(error) => return Err(error.to_string()),
            };
            if let Received::Known { chunk, .. } = &received {
                self.last_chunks.push(chunk.clone().into_owned());
                if matches!(chunk, Chunk::Start { .. }) {
                    // From here on the message may have another name; what was shown stays.
                    self.show(reducer, earlier);
                }
            }
            reducer.push(&received).map_err(|error| error.to_string())?;
            if let Received::Known { chunk, .. } = &received {
                self.run_tool(chunk, reducer);
            }
        }
        Ok(())
    }

    /// Runs a tool of the page's own, whose result is in the message before the next chunk.
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

    /// Puts the message of the response where the client puts it.
    fn show(&mut self, reducer: &mut Reducer, earlier: Option<&MessageId>) {
        let Some(shown) = reducer.shown().map(Cow::into_owned) else {
            return;
        };
        let position = |id: &MessageId| self.messages.iter().rposition(|m| m.id == *id);
        match position(&shown.id).or_else(|| position(earlier?)) {
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
enum Ended {
    Ready,
    /// The person stopped it.
    Stopped,
    Failed,
}

/// How many requests a client may send without a word of the person. The real one has no such
/// guard.
const AUTOMATIC_REQUESTS: usize = 5;
