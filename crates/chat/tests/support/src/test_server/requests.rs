//! The requests that a client sends to the server, and the messages that it holds, as in `useChat`.

use axum::body::Body;
use axum::http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use test_support::eventually;
use test_support::requests::{respond, user_message};
use test_support::responses::{chunks_of, message_of, text_of};
use tokio::task::JoinHandle;

use super::{Host, PRINCIPAL_HEADER};
use crate::answers::send;

/// A response as a client receives it.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub text: String,
}

impl Answer {
    /// Returns the chunks of the response.
    pub fn chunks(&self) -> Vec<Value> {
        chunks_of(&self.text)
    }

    /// Returns the chunks of this type.
    pub fn of_type(&self, kind: &str) -> Vec<Value> {
        let mut chunks = self.chunks();
        chunks.retain(|chunk| chunk["type"] == kind);
        chunks
    }

    /// Returns the body as JSON.
    pub fn json(&self) -> Value {
        assert_eq!(self.status, StatusCode::OK, "{}", self.text);
        serde_json::from_str(&self.text).expect("JSON")
    }

    /// Returns status, headers and body, with the n-th id replaced by `<n>`.
    pub fn text_with_numbered_ids(&self) -> String {
        let mut ids: Vec<String> = Vec::new();
        let frames = self.text.split("\n\n").map(|frame| {
            // The number after the id of the run would show what the log holds besides the frames.
            let id = frame.strip_prefix("id: ").and_then(|id| id.split_once('\n'));
            let number =
                id.and_then(|(id, _)| id.rsplit_once('.')).map_or("", |(_, number)| number);
            let chunk = data_of(frame).and_then(|data| serde_json::from_str(data).ok());
            let data = data_of(frame).unwrap_or(frame).to_owned();
            let data = chunk.map_or(data, |mut chunk: Value| {
                number_ids(&mut chunk, &mut ids);
                chunk.to_string()
            });
            format!("{number} {data}")
        });
        let frames: Vec<String> = frames.collect();
        format!("{} {:?}\n{}", self.status, self.headers, frames.join("\n\n"))
    }
}

/// Returns the data of a frame. A frame of a run has an id before it.
fn data_of(frame: &str) -> Option<&str> {
    let frame = match frame.strip_prefix("id: ") {
        Some(frame) => frame.split_once('\n')?.1,
        None => frame,
    };
    frame.strip_prefix("data: ")
}

fn number_ids(chunk: &mut Value, ids: &mut Vec<String>) {
    for (key, value) in chunk.as_object_mut().into_iter().flatten() {
        let Value::String(text) = value else { continue };
        if !matches!(key.as_str(), "id" | "messageId" | "toolCallId" | "approvalId") {
            continue;
        }
        let known = ids.iter().position(|id| id == text);
        let number = known.unwrap_or_else(|| {
            ids.push(text.clone());
            ids.len() - 1
        });
        *text = format!("<{}>", number + 1);
    }
}

impl Host {
    /// Sends a request as a user's client does.
    pub async fn send(
        &self,
        person: &str,
        method: Method,
        path: &str,
        body: impl Into<Body>,
    ) -> Answer {
        self.send_with(&[], person, method, path, body).await
    }

    /// Sends a request with more headers.
    pub async fn send_with(
        &self,
        headers: &[(&str, &str)],
        person: &str,
        method: Method,
        path: &str,
        body: impl Into<Body>,
    ) -> Answer {
        let headers: Vec<_> = headers.iter().copied().chain([(PRINCIPAL_HEADER, person)]).collect();
        let response = send(&self.routes, method, path, &headers, body).await;
        let (parts, body) = response.into_parts();
        let text = text_of(body).await;
        Answer { status: parts.status, headers: parts.headers, text }
    }

    /// Posts to the chat.
    pub async fn chat(&self, person: &str, body: impl Into<Body>) -> Answer {
        self.send(person, Method::POST, "/api/chat", body).await
    }

    /// Sends a GET request.
    pub async fn get(&self, person: &str, path: &str) -> Answer {
        self.send(person, Method::GET, path, Body::empty()).await
    }

    /// Returns the messages of the chat `chat`.
    pub async fn messages(&self, person: &str) -> Vec<Value> {
        let mut history = self.get(person, "/api/chat/chat").await.json();
        serde_json::from_value(history["messages"].take()).unwrap()
    }

    /// Holds the approved tool of a client back, and returns when it has had its effect. The task has the
    /// response, once the tool is not held back any more.
    pub async fn answer_and_hold(&self, client: &Client) -> JoinHandle<Answer> {
        self.tools.hold(true);
        let (host, mut client) = (self.clone(), client.clone());
        let answered = tokio::spawn(async move { client.answer(&host, true).await });
        eventually(async || !self.tools.effects().is_empty()).await;
        answered
    }

    /// Returns the approval requests that wait for a user, as the route lists them.
    pub async fn pending(&self, person: &str) -> Vec<Value> {
        let mut answer = self.get(person, "/api/approvals").await.json();
        serde_json::from_value(answer["approvals"].take()).unwrap()
    }

    /// Approves or denies a call on the approvals route. Returns whether the decision counts.
    pub async fn decides(&self, person: &str, approval_id: &str, approved: bool) -> bool {
        let decision = json!({"approvalId": approval_id, "approved": approved});
        let answer = self.decide(person, &json!({"decisions": [decision]})).await.json();
        answer["decisions"][0]["accepted"].as_bool().unwrap()
    }

    /// Posts decisions to the approvals route.
    pub async fn decide(&self, person: &str, body: &Value) -> Answer {
        self.send(person, Method::POST, "/api/approvals", body.to_string()).await
    }
}

/// A client that holds one conversation.
#[derive(Debug, Clone)]
pub struct Client {
    /// The user.
    pub person: String,
    /// The id of the chat.
    pub chat: String,
    /// The messages of the chat.
    pub messages: Vec<Value>,
}

impl Client {
    /// Creates a client without messages.
    pub fn new(person: &str, chat: &str) -> Self {
        Client { person: person.to_owned(), chat: chat.to_owned(), messages: Vec::new() }
    }

    /// Sends a message of the user and applies the response.
    pub async fn say(&mut self, host: &Host, text: &str) -> Answer {
        let id = format!("{}-u{}", self.chat, self.messages.len());
        self.messages.push(user_message(id, text));
        self.send(host).await
    }

    /// Responds to all open approval requests and applies the response of the server.
    pub async fn answer(&mut self, host: &Host, approved: bool) -> Answer {
        self.respond(approved);
        self.send(host).await
    }

    /// Responds to all open approval requests, and sends nothing.
    pub fn respond(&mut self, approved: bool) {
        self.pending_parts_mut().for_each(|part| respond(part, approved));
    }

    /// Posts the history as it is and applies the response.
    pub async fn send(&mut self, host: &Host) -> Answer {
        let answer = host.chat(&self.person, self.body().to_string()).await;
        self.apply_response(&answer);
        answer
    }

    /// Returns the body that `send` would post now.
    pub fn body(&self) -> Value {
        let last = self.messages.last().filter(|message| message["role"] == "assistant");
        json!({
            "id": self.chat,
            "messages": self.messages,
            "trigger": "submit-message",
            "messageId": last.map(|message| message["id"].clone()),
        })
    }

    /// Returns the body that would be posted if the user responded to all open approval requests.
    pub fn answered(&self, approved: bool) -> Value {
        let mut client = self.clone();
        client.respond(approved);
        client.body()
    }

    /// Returns the parts that wait for an approval response.
    pub fn pending_parts(&self) -> Vec<Value> {
        self.clone().pending_parts_mut().map(|part| part.clone()).collect()
    }

    /// Returns the ids of the open approval requests.
    pub fn approval_ids(&self) -> Vec<String> {
        let ids = self.pending_parts().into_iter().map(|part| part["approval"]["id"].clone());
        ids.map(|id| id.as_str().unwrap().to_owned()).collect()
    }

    fn pending_parts_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        let parts = self
            .messages
            .iter_mut()
            .flat_map(|message| message["parts"].as_array_mut().into_iter().flatten());
        parts.filter(|part| part["state"] == "approval-requested")
    }

    /// Applies a response as the client that requested it does.
    pub fn apply_response(&mut self, answer: &Answer) {
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        let held = self.messages.pop_if(|message| message["role"] == "assistant");
        let held = held.map(|message| serde_json::from_value(message).unwrap());
        self.messages.push(serde_json::to_value(message_of(held, &answer.text)).unwrap());
    }

    /// Returns the last message.
    pub fn last(&self) -> &Value {
        self.messages.last().unwrap()
    }

    /// Returns the state of each call of the last message.
    pub fn states(&self) -> Vec<String> {
        let parts = self.last()["parts"].as_array().unwrap().iter();
        parts
            .filter_map(|part| part["toolCallId"].as_str().and(part["state"].as_str()))
            .map(str::to_owned)
            .collect()
    }
}
