//! A chat with an agent whose model makes the calls that it is told to.

use std::sync::{Arc, Mutex};

use futures::stream;
use serde_json::Value;
use ui_message_stream::ChatRequest;
use ui_message_stream::agent::{Agent, Model, ModelRequest, ModelStream, ToolDescription};
use ui_message_stream::approval::Principal;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::run::ModelEvent;
use ui_message_stream::testing::Conversation;

/// A model that makes these calls when the person has spoken, and says "Done." when it is called
/// again. It keeps what tools it was offered last.
#[derive(Debug, Clone)]
pub struct Calls {
    calls: Arc<Mutex<Vec<(String, Value)>>>,
    offered: Arc<Mutex<Vec<ToolDescription>>>,
    read: Arc<Mutex<String>>,
}

impl Calls {
    /// A model that makes these calls: each a tool and an input.
    pub fn of(calls: &[(&str, Value)]) -> Self {
        let calls = calls.iter().map(|(tool, input)| ((*tool).to_owned(), input.clone()));
        Calls {
            calls: Arc::new(Mutex::new(calls.collect())),
            offered: Arc::default(),
            read: Arc::default(),
        }
    }

    /// The messages that it read last, as JSON.
    pub fn read(&self) -> String {
        self.read.lock().unwrap().clone()
    }

    /// The tools that it was offered last.
    pub fn offered(&self) -> Vec<ToolDescription> {
        self.offered.lock().unwrap().clone()
    }
}

impl Model for Calls {
    fn call(&self, request: ModelRequest) -> ModelStream {
        *self.offered.lock().unwrap() = request.tools.to_vec();
        *self.read.lock().unwrap() = serde_json::to_string(&request.messages).unwrap();
        let calls = std::mem::take(&mut *self.calls.lock().unwrap());
        let finished = |reason| Ok(ModelEvent::Finished(reason));
        if calls.is_empty() {
            let said = ModelEvent::Said(AgentEvent::text("Done."));
            return Box::pin(stream::iter([Ok(said), finished(FinishReason::Stop)]));
        }
        let calls = calls.into_iter().enumerate().map(|(at, (tool, input))| {
            let call = ToolCall::new(format!("call_{at}"), tool);
            Ok(ModelEvent::Call(Box::new(call), input.to_string()))
        });
        let calls: Vec<_> = calls.chain([finished(FinishReason::ToolCalls)]).collect();
        Box::pin(stream::iter(calls))
    }
}

/// The browser's side of a chat with this agent.
pub fn page(agent: Agent) -> Conversation<'static> {
    let chats = agent.into_chats();
    Conversation::new(async move |chat: ChatRequest| {
        chats.answer(&Principal::new("ada"), chat).await.unwrap()
    })
}

/// The chunks of the last answer.
pub fn chunks(page: &Conversation<'_>) -> Vec<Value> {
    page.last_chunks().iter().map(|chunk| serde_json::to_value(chunk).unwrap()).collect()
}

/// The result of each call, in the order of their ids: the output, or the words of the error.
pub fn outcomes(chunks: &[Value]) -> Vec<Value> {
    let settled = chunks.iter().filter_map(|chunk| {
        let said = [&chunk["output"], &chunk["errorText"]];
        let said = said.into_iter().find(|said| !said.is_null())?;
        Some((chunk["toolCallId"].as_str()?.to_owned(), said.clone()))
    });
    let mut settled: Vec<_> = settled.collect();
    settled.sort_by(|a, b| a.0.cmp(&b.0));
    settled.into_iter().map(|(_, said)| said).collect()
}

/// Whether a person is asked.
pub fn asks(chunks: &[Value]) -> bool {
    chunks.iter().any(|chunk| chunk["type"] == "tool-approval-request")
}

/// Whether the stream came to a good end.
pub fn ends_well(chunks: &[Value]) -> bool {
    chunks.last().is_some_and(|chunk| chunk["type"] == "finish")
        && !chunks.iter().any(|chunk| chunk["type"] == "error")
}
