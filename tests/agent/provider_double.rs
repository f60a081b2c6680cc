//! A host whose model asks before its provider runs something, as one server and as two over the same
//! ledger and the same conversations.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use ui_message_stream::agent::{Agent, Tool, ToolError};
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{ApprovalDecision, Approvals, KeyRing, Principal, UnixMillis};
use ui_message_stream::chat::ChatServer;
use ui_message_stream::chat::store::InMemoryChatStore;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{Model, ModelEvent, ModelRequest, ModelStream};
use ui_message_stream::request::Limits;
use ui_message_stream::{ChatRequest, Json};

/// A provider that says these things, one for each time that it is called, and then `Done`.
#[derive(Debug, Clone)]
pub(crate) struct Provider {
    pub(crate) script: Arc<Mutex<VecDeque<Says>>>,
    pub(crate) heard: Arc<Mutex<Vec<Value>>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Says {
    /// It asks whether it may shorten a link.
    Asks,
    /// It asks, and calls a tool of the server that needs approval as well.
    AsksAndCalls,
    /// It asks, and calls a tool of the server that needs approval and takes a while.
    AsksAndCallsSlowly,
    /// It calls a tool of the server that takes a while and needs nobody.
    CallsSlow,
    /// It asks, and calls the slow one.
    AsksAndCallsSlow,
    /// What came of the link.
    Shortened,
    /// What came of the link, and it calls the slow one.
    ShortenedAndCallsSlow,
    /// Nothing, and it never ends.
    Hangs,
}

impl Model for Provider {
    fn call(&self, request: ModelRequest) -> ModelStream {
        self.heard.lock().unwrap().push(serde_json::to_value(&request.messages).unwrap());
        let says = self.script.lock().unwrap().pop_front();
        let asks = || {
            let call = ToolCall::new("link", "mcp.shorten").provider_executed().dynamic();
            ModelEvent::ProviderApprovalRequest(
                Box::new(call),
                r#"{"url":"https://long.example"}"#.to_owned(),
            )
        };
        let calls = |id: &str, tool: &'static str| {
            let call = ToolCall::new(id, tool);
            ModelEvent::ToolCall(Box::new(call), r#"{"n":1}"#.to_owned())
        };
        let events = match says {
            Some(Says::Hangs) => return Box::pin(stream::pending()),
            Some(Says::Asks) => vec![asks()],
            Some(Says::AsksAndCallsSlowly) => vec![asks(), calls("own", "slow_delete")],
            Some(Says::AsksAndCalls) => vec![asks(), calls("own", "delete")],
            Some(Says::CallsSlow) => vec![calls("slow", "slow")],
            Some(Says::AsksAndCallsSlow) => vec![asks(), calls("slow", "slow")],
            Some(Says::ShortenedAndCallsSlow) => vec![
                ModelEvent::Event(AgentEvent::tool_output(
                    "link",
                    Json::string("https://s.example"),
                )),
                calls("slow", "slow"),
            ],
            Some(Says::Shortened) => vec![
                ModelEvent::Event(AgentEvent::tool_output(
                    "link",
                    Json::string("https://s.example"),
                )),
                ModelEvent::Event(AgentEvent::text("Shortened")),
            ],
            None => vec![ModelEvent::Event(AgentEvent::text("Done"))],
        };
        let finished = ModelEvent::Finished(FinishReason::Stop);
        Box::pin(stream::iter(events.into_iter().chain([finished]).map(Ok)))
    }
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Input {
    n: u64,
}

pub(crate) struct Host {
    pub(crate) chats: ChatServer,
    /// Another server over the same ledger and the same conversations.
    pub(crate) other: ChatServer,
    pub(crate) provider: Provider,
    pub(crate) deleted: Arc<AtomicUsize>,
    pub(crate) ledger: Arc<InMemoryLedger>,
    pub(crate) store: Arc<InMemoryChatStore>,
}

pub(crate) const NOW: UnixMillis = UnixMillis(1_000_000_000_000);

pub(crate) fn ada() -> Principal {
    Principal::new("ada")
}

impl Host {
    pub(crate) fn that(script: &[Says]) -> Self {
        let provider = Provider {
            script: Arc::new(Mutex::new(script.iter().copied().collect())),
            heard: Arc::default(),
        };
        let deleted = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&deleted);
        let delete = Tool::new("delete", move |input: Input| {
            counter.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, ToolError>(input.n) }
        });
        let slow = Tool::new("slow", async |input: Input| {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok::<_, ToolError>(format!("found {}", input.n))
        });
        let slow_delete = Tool::new("slow_delete", async |input: Input| {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok::<_, ToolError>(input.n)
        });
        let agent = Agent::new(provider.clone())
            .tool(delete.needs_approval())
            .tool(slow_delete.needs_approval())
            .tool(slow);
        let ledger = Arc::new(InMemoryLedger::with_test_clock(NOW));
        let keys = || KeyRing::new(1, &[7; 32]).unwrap();
        let store = Arc::new(InMemoryChatStore::new());
        let server = || {
            let approvals = Approvals::new(agent.clone()).with_ledger(ledger.clone());
            ChatServer::new(agent.clone(), approvals.with_keys(keys())).with_store(store.clone())
        };
        let (chats, other) = (server(), server());
        Host { chats, other, provider, deleted, ledger, store }
    }

    pub(crate) async fn post(&self, body: Value) -> Vec<Value> {
        self.post_to(&self.chats, body).await
    }

    pub(crate) async fn post_to(&self, chats: &ChatServer, body: Value) -> Vec<Value> {
        let request = ChatRequest::parse(body.to_string().as_bytes(), &Limits::default()).unwrap();
        let response = chats.stream_response(&ada(), request).await.unwrap();
        let bytes: Vec<u8> =
            response.map(|bytes| bytes.unwrap().to_vec()).collect::<Vec<_>>().await.concat();
        let text = String::from_utf8(bytes).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        let chunks = data.filter(|data| *data != "[DONE]");
        chunks.map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// Says something, and does not wait for the end of the answer.
    pub(crate) async fn say_and_leave(&self, id: &str) {
        self.say_and_leave_at(&self.chats, id).await;
    }

    pub(crate) async fn say_and_leave_at(&self, chats: &ChatServer, id: &str) {
        let body = json!({"id": "chat", "messages": [said(id)]}).to_string();
        let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
        drop(chats.stream_response(&ada(), request).await.unwrap());
    }

    pub(crate) async fn say(&self, id: &str) -> Vec<Value> {
        self.post(json!({"id": "chat", "messages": [said(id)]})).await
    }

    /// The messages that the server keeps.
    pub(crate) async fn kept(&self) -> Vec<Value> {
        let chat = self.chats.chat(&ada(), &"chat".into()).await.unwrap();
        chat.messages.iter().map(|message| serde_json::to_value(message).unwrap()).collect()
    }

    /// The last message, as a page sends it back that has answered these calls.
    pub(crate) async fn answering(&self, answers: &[(&str, bool)]) -> Value {
        let mut message = self.kept().await.pop().unwrap();
        for part in message["parts"].as_array_mut().unwrap() {
            let answer = answers.iter().find(|(id, _)| part["toolCallId"] == *id);
            if let Some((_, approved)) = answer {
                part["state"] = json!("approval-responded");
                part["approval"]["approved"] = json!(approved);
            }
        }
        json!({"id": "chat", "messages": [message]})
    }

    /// Decides elsewhere.
    pub(crate) async fn decide(&self, call: &str, approved: bool) -> bool {
        let pending = self.chats.approvals().pending(&ada()).await.unwrap();
        let it = pending.iter().find(|pending| pending.record.tool_call_id.as_str() == call);
        let approval_id = it.expect("it waits").approval_id.clone();
        let decision = ApprovalDecision { approval_id, approved, reason: None };
        self.chats.decide(&ada(), vec![decision]).await.unwrap()[0].accepted
    }

    /// Until the runs under way have ended, or wait for more than a minute.
    pub(crate) async fn settles(&self) {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }

    /// What the provider was told of its question, each time that it was called: the answer, or in
    /// what words the result was given.
    pub(crate) fn told(&self) -> Vec<String> {
        let heard = self.provider.heard.lock().unwrap();
        heard.iter().map(told).collect()
    }

    pub(crate) fn yeses(&self) -> usize {
        self.told().iter().filter(|told| *told == "yes").count()
    }
}

pub(crate) fn said(id: &str) -> Value {
    json!({"id": id, "role": "user", "parts": [{"type": "text", "text": "Go"}]})
}

pub(crate) fn told(messages: &Value) -> String {
    let mut told = String::from("nothing");
    let messages =
        messages.as_array().unwrap().iter().flat_map(|m| m.as_object().unwrap().values());
    for content in messages.flat_map(|message| message["content"].as_array().unwrap()) {
        let text = content.to_string();
        if !text.contains(r#""toolCallId":"link""#) {
            continue;
        }
        for (sign, means) in [
            (r#""approved":true"#, "yes"),
            (r#""approved":false"#, "no"),
            (r#""outcome-unknown""#, "unknown"),
            (r#""https://s.example""#, "the result"),
        ] {
            if text.contains(sign) {
                told = means.to_owned();
            }
        }
    }
    told
}

pub(crate) fn part<'a>(messages: &'a [Value], call: &str) -> &'a Value {
    let mut parts = messages.iter().flat_map(|message| message["parts"].as_array().unwrap());
    parts.find(|part| part["toolCallId"] == call).unwrap()
}

pub(crate) fn is_shortened(chunks: &[Value]) -> bool {
    chunks.iter().any(|chunk| chunk["output"] == "https://s.example")
}
