//! A chat with an agent whose model makes given tool calls.

use std::sync::{Arc, Mutex};

use futures::{StreamExt, stream};
use serde_json::Value;
use test_support::requests::ada;
use ui_message_stream::ChatRequest;
use ui_message_stream::model::{Model, ModelRequest, ModelStream, ToolDefinition};
use ui_message_stream::testing::Conversation;
use ui_message_stream_agent::Agent;
use ui_message_stream_chat::ChatServer;

use crate::model_double::{calls_all, says};

/// A model that makes the given calls when it is called first, and emits "Done." when it is called
/// again. It stores the messages and the tools of the last request.
#[derive(Debug, Clone)]
pub struct Calls {
    calls: Arc<Mutex<Vec<(String, Value)>>>,
    offered: Arc<Mutex<Vec<ToolDefinition>>>,
    read: Arc<Mutex<String>>,
}

impl Calls {
    /// Creates a model that makes these calls. Each call is a tool name and an input.
    pub fn of(calls: &[(&str, Value)]) -> Self {
        let calls = calls.iter().map(|(tool, input)| ((*tool).to_owned(), input.clone()));
        Calls {
            calls: Arc::new(Mutex::new(calls.collect())),
            offered: Arc::default(),
            read: Arc::default(),
        }
    }

    /// Returns the messages of the last request, as JSON.
    pub fn read(&self) -> String {
        self.read.lock().unwrap().clone()
    }

    /// Returns the tools of the last request.
    pub fn offered(&self) -> Vec<ToolDefinition> {
        self.offered.lock().unwrap().clone()
    }
}

impl Model for Calls {
    fn call(&self, request: ModelRequest) -> ModelStream {
        *self.offered.lock().unwrap() = request.tools.to_vec();
        *self.read.lock().unwrap() = serde_json::to_string(&request.messages).unwrap();
        let calls = std::mem::take(&mut *self.calls.lock().unwrap());
        let events = match calls.is_empty() {
            true => says("Done."),
            false => calls_all(calls.iter().map(|(tool, input)| (&**tool, input))),
        };
        Box::pin(stream::iter(events).map(Ok))
    }
}

/// Creates a client of a chat with this agent.
pub fn page(agent: Agent) -> Conversation<'static> {
    page_of(&agent.into_chat_server())
}

/// Creates a client of a chat with this agent, in which the user has sent this message.
pub async fn asked(agent: Agent, text: &str) -> Conversation<'static> {
    let mut page = page(agent);
    page.send(text).await;
    page
}

/// Creates a client of a chat of the user `ada` with this server.
pub fn page_of(chats: &ChatServer) -> Conversation<'static> {
    let chats = chats.clone();
    Conversation::new(async move |chat: ChatRequest| {
        chats.stream_response(&ada(), chat).await.unwrap()
    })
}

/// Returns the chunks of the last response.
pub fn chunks(page: &Conversation<'_>) -> Vec<Value> {
    page.last_chunks().iter().map(|chunk| serde_json::to_value(chunk).unwrap()).collect()
}

/// Returns the result of each call, in the order of the call ids: the output or the error text.
pub fn outcomes(chunks: &[Value]) -> Vec<Value> {
    let settled = chunks.iter().filter_map(|chunk| {
        let value = [&chunk["output"], &chunk["errorText"]];
        let value = value.into_iter().find(|value| !value.is_null())?;
        Some((chunk["toolCallId"].as_str()?.to_owned(), value.clone()))
    });
    let mut settled: Vec<_> = settled.collect();
    settled.sort_by(|a, b| a.0.cmp(&b.0));
    settled.into_iter().map(|(_, value)| value).collect()
}

/// Returns whether an approval is requested.
pub fn requests_approval(chunks: &[Value]) -> bool {
    chunks.iter().any(|chunk| chunk["type"] == "tool-approval-request")
}

/// Returns whether the stream ends with `finish` and without an error.
pub fn finishes_without_error(chunks: &[Value]) -> bool {
    chunks.last().is_some_and(|chunk| chunk["type"] == "finish")
        && !chunks.iter().any(|chunk| chunk["type"] == "error")
}
