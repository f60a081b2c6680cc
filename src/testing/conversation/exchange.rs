//! A request and its response, step by step as `Chat` of `ai@6.0.326` does it.

use std::borrow::Cow;
use std::collections::BTreeMap;

use http::StatusCode;
use serde::Serialize;

use super::Conversation;
use super::route::Reply;
use crate::chunk::{Chunk, Received};
use crate::id::{ChatId, MessageId};
use crate::json::Json;
use crate::message::{Role, UiMessage};
use crate::reducer::Reducer;
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
        self.exchange(&trigger, message_id).await;
        let mut sent = 1;
        while self.error.is_none() && (self.sends_automatically_when)(&self.messages) {
            assert!(
                sent < AUTOMATIC_REQUESTS,
                "the client sends the same again and again: `sendAutomaticallyWhen` holds after \
                 {sent} responses; follow tool results with a step that has content, or with an \
                 `error` chunk; {}",
                self.describe()
            );
            sent += 1;
            let last = self.messages.last().map(|message| message.id.clone());
            self.exchange(&Trigger::SubmitMessage, last).await;
        }
    }

    /// One request and its response, step by step as `Chat.makeRequest` has it.
    async fn exchange(&mut self, trigger: &Trigger, message_id: Option<MessageId>) {
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
        self.last_chunks.clear();
        let reply = self.route.post(body).await;
        self.check(&reply, continued.as_ref());
        let begun =
            continued.unwrap_or_else(|| UiMessage::new(made_id, Role::Assistant, Vec::new()));
        self.error = self.read(reply, Reducer::continuing(begun), earlier.as_ref()).err();
    }

    /// Holds a response against the checker. One that was refused or broke off is no stream.
    fn check(&self, reply: &Reply, continued: Option<&UiMessage>) {
        let is_whole = reply.status.is_success() && reply.body.broken.is_none();
        let Some(oldest_client) = self.oldest_client.filter(|_| is_whole) else {
            return;
        };
        let mut rules = Conformance::new().with_oldest_client(oldest_client);
        if let Some(message) = continued {
            rules = rules.continuing(message.clone());
        }
        let data = reply.body.chunk_events().map(|event| &event.data);
        rules.assert_none(&rules.check_data(data, reply.body.unfinished.is_some()));
    }

    /// Reads a response as the client does: as far as it can, and what it shows is kept.
    fn read(
        &mut self,
        reply: Reply,
        mut reducer: Reducer,
        earlier: Option<&MessageId>,
    ) -> Result<(), String> {
        if !reply.status.is_success() {
            return Err(reply.body.text());
        }
        if reply.status == StatusCode::NO_CONTENT {
            return Err("The response body is empty.".to_owned());
        }
        let result = self.reduce(&reply, &mut reducer, earlier);
        self.show(&mut reducer, earlier);
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
        }
        Ok(())
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

/// How many requests a client may send without a word of the person. The real one has no such
/// guard.
const AUTOMATIC_REQUESTS: usize = 5;
