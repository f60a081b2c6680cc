//! A host whose provider requests approval of its own calls, as one server and as two servers with
//! the same ledger and chat store.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chat_test_support::answers::{answer, decide, post, stored};
use chat_test_support::model_double::{text, tool_call};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use test_support::requests::{ada, request, respond, say};
use test_support::responses::chunks_of;
use ui_message_stream::Json;
use ui_message_stream::approval::store::{InMemoryLedger, LedgerStore};
use ui_message_stream::approval::{Approvals, KeyRing, UnixMillis};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{Model, ModelEvent, ModelRequest, ModelStream};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::ChatServer;
use ui_message_stream_chat::store::InMemoryLogStore;

use super::inputs::Number;

/// A provider that gives these replies, one for each model call, and then the text `Done`.
#[derive(Debug, Clone)]
pub(crate) struct Provider {
    pub(crate) script: Arc<Mutex<VecDeque<Reply>>>,
    pub(crate) requests: Arc<Mutex<Vec<Value>>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Reply {
    /// An approval request for shortening a link.
    ApprovalRequest,
    /// An approval request, and a call of a server tool that needs approval as well.
    ApprovalRequestAndDelete,
    /// An approval request, and a call of a slow server tool that needs approval.
    ApprovalRequestAndSlowDelete,
    /// A call of a slow server tool without approval.
    SlowCall,
    /// An approval request, and a call of the slow server tool without approval.
    ApprovalRequestAndSlowCall,
    /// The output of the link call.
    LinkOutput,
    /// The output of the link call, and a call of the slow server tool.
    LinkOutputAndSlowCall,
    /// The output of the link call, after 100 seconds.
    LateLinkOutput,
    /// A stream without events that never ends.
    Hang,
}

impl Model for Provider {
    fn call(&self, request: ModelRequest) -> ModelStream {
        self.requests.lock().unwrap().push(serde_json::to_value(&request.messages).unwrap());
        let reply = self.script.lock().unwrap().pop_front();
        let approval_request = || {
            let call = ToolCall::new("link", "mcp.shorten").provider_executed().dynamic();
            let input = r#"{"url":"https://long.example"}"#.to_owned();
            ModelEvent::ProviderApprovalRequest(Box::new(call), input)
        };
        let tool_call = |id: &str, tool: &str| tool_call(id, tool, r#"{"n":1}"#);
        let link_output = || {
            let output = AgentEvent::tool_output("link", Json::string("https://s.example"));
            ModelEvent::Event(output)
        };
        let events = match reply {
            Some(Reply::Hang) => return Box::pin(stream::pending()),
            Some(Reply::LateLinkOutput) => {
                let events = [link_output(), ModelEvent::Finished(FinishReason::Stop)];
                let late = async {
                    tokio::time::sleep(Duration::from_secs(100)).await;
                    stream::iter(events.map(Ok))
                };
                return Box::pin(stream::once(late).flatten());
            }
            Some(Reply::ApprovalRequest) => vec![approval_request()],
            Some(Reply::ApprovalRequestAndSlowDelete) => {
                vec![approval_request(), tool_call("own", "slow_delete")]
            }
            Some(Reply::ApprovalRequestAndDelete) => {
                vec![approval_request(), tool_call("own", "delete")]
            }
            Some(Reply::SlowCall) => vec![tool_call("slow", "slow")],
            Some(Reply::ApprovalRequestAndSlowCall) => {
                vec![approval_request(), tool_call("slow", "slow")]
            }
            Some(Reply::LinkOutputAndSlowCall) => vec![link_output(), tool_call("slow", "slow")],
            Some(Reply::LinkOutput) => vec![link_output(), text("Shortened")],
            None => vec![text("Done")],
        };
        let finished = ModelEvent::Finished(FinishReason::Stop);
        Box::pin(stream::iter(events.into_iter().chain([finished]).map(Ok)))
    }
}

pub(crate) struct Host {
    pub(crate) chats: ChatServer,
    /// Another server with the same ledger and chat store.
    pub(crate) other: ChatServer,
    /// A server as `other`, whose secret was replaced.
    pub(crate) with_another_secret: ChatServer,
    pub(crate) provider: Provider,
    pub(crate) deleted: Arc<AtomicUsize>,
    pub(crate) ledger: Arc<InMemoryLedger>,
    pub(crate) store: Arc<InMemoryLogStore>,
}

pub(crate) const NOW: UnixMillis = UnixMillis(1_000_000_000_000);

impl Host {
    pub(crate) fn with_replies(script: &[Reply]) -> Self {
        Self::with_ledger(script, |ledger| ledger)
    }

    /// As [`with_replies`](Self::with_replies), after the first message of the user.
    pub(crate) async fn asked(script: &[Reply]) -> Self {
        let host = Self::with_replies(script);
        host.say("m1").await;
        host
    }

    /// As [`with_replies`](Self::with_replies). The servers use what `ledger` returns.
    pub(crate) fn with_ledger<L: LedgerStore>(
        script: &[Reply],
        ledger_of: impl FnOnce(Arc<InMemoryLedger>) -> Arc<L>,
    ) -> Self {
        let provider = Provider {
            script: Arc::new(Mutex::new(script.iter().copied().collect())),
            requests: Arc::default(),
        };
        let deleted = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&deleted);
        let delete = Tool::new("delete", move |input: Number| {
            counter.fetch_add(1, Ordering::SeqCst);
            async move { Ok::<_, ToolError>(input.n) }
        });
        let slow = Tool::new("slow", async |input: Number| {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok::<_, ToolError>(format!("found {}", input.n))
        });
        let slow_delete = Tool::new("slow_delete", async |input: Number| {
            tokio::time::sleep(Duration::from_secs(20)).await;
            Ok::<_, ToolError>(input.n)
        });
        let agent = Agent::new(provider.clone())
            .tool(delete.needs_approval())
            .tool(slow_delete.needs_approval())
            .tool(slow);
        let ledger = Arc::new(InMemoryLedger::with_test_clock(NOW));
        let used_ledger = ledger_of(ledger.clone());
        let store = Arc::new(InMemoryLogStore::new());
        let server = |secret: u8| {
            let keys = KeyRing::new(1, &test_support::secret(secret)).unwrap();
            let approvals = Approvals::new(agent.clone()).with_ledger(used_ledger.clone());
            let chats = ChatServer::new(agent.clone(), approvals.with_keys(keys));
            chats.with_store(store.clone())
        };
        let (chats, other, with_another_secret) = (server(7), server(7), server(8));
        Host { chats, other, with_another_secret, provider, deleted, ledger, store }
    }

    pub(crate) async fn post(&self, body: Value) -> Vec<Value> {
        self.post_to(&self.chats, body).await
    }

    pub(crate) async fn post_to(&self, chats: &ChatServer, body: Value) -> Vec<Value> {
        chunks_of(&answer(chats, request(&body)).await.unwrap())
    }

    /// Sends a message and does not wait for the end of the response.
    pub(crate) async fn send_without_reading(&self, id: &str) {
        self.send_without_reading_to(&self.chats, id).await;
    }

    pub(crate) async fn send_without_reading_to(&self, chats: &ChatServer, id: &str) {
        drop(post(chats, id, "Go").await);
    }

    pub(crate) async fn say(&self, id: &str) {
        self.say_to(&self.chats, id).await;
    }

    pub(crate) async fn say_to(&self, chats: &ChatServer, id: &str) {
        answer(chats, say("chat", id, "Go")).await.unwrap();
    }

    /// The stored messages.
    pub(crate) async fn stored_messages(&self) -> Vec<Value> {
        let messages = &stored(&self.chats).await.messages;
        messages.iter().map(|message| serde_json::to_value(message).unwrap()).collect()
    }

    /// A request body with the last message in which these calls are decided.
    pub(crate) async fn body_with_decisions(&self, answers: &[(&str, bool)]) -> Value {
        let mut message = self.stored_messages().await.pop().unwrap();
        for part in message["parts"].as_array_mut().unwrap() {
            let answer = answers.iter().find(|(id, _)| part["toolCallId"] == *id);
            if let Some((_, approved)) = answer {
                respond(part, *approved);
            }
        }
        json!({"id": "chat", "messages": [message]})
    }

    /// Decides out of band.
    pub(crate) async fn decide(&self, call: &str, approved: bool) -> bool {
        let pending = self.chats.approvals().pending(&ada()).await.unwrap();
        let approval = pending.iter().find(|pending| pending.record.tool_call_id.as_str() == call);
        let approval = approval.expect("the approval is pending");
        decide(&self.chats, &approval.approval_id, approved).await
    }

    /// Decides out of band, which counts, and waits until all runs have ended.
    pub(crate) async fn decide_and_wait(&self, call: &str, approved: bool) {
        assert!(self.decide(call, approved).await);
        self.wait_until_idle().await;
    }

    /// Waits until all active runs have ended, or wait for more than a minute.
    pub(crate) async fn wait_until_idle(&self) {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }

    /// What the provider read about its call in each model call: the decision or the result.
    pub(crate) fn provider_inputs(&self) -> Vec<String> {
        let requests = self.provider.requests.lock().unwrap();
        requests.iter().map(decision_in).collect()
    }

    pub(crate) fn approvals_sent(&self) -> usize {
        self.provider_inputs().iter().filter(|input| *input == "approved").count()
    }
}

pub(crate) fn decision_in(messages: &Value) -> String {
    let mut found = String::from("nothing");
    let messages =
        messages.as_array().unwrap().iter().flat_map(|m| m.as_object().unwrap().values());
    for content in messages.flat_map(|message| message["content"].as_array().unwrap()) {
        let text = content.to_string();
        if !text.contains(r#""toolCallId":"link""#) {
            continue;
        }
        for (sign, meaning) in [
            (r#""approved":true"#, "approved"),
            (r#""approved":false"#, "denied"),
            (r#""outcome-unknown""#, "unknown"),
            (r#""https://s.example""#, "the result"),
        ] {
            if text.contains(sign) {
                found = meaning.to_owned();
            }
        }
    }
    found
}

pub(crate) fn part<'a>(messages: &'a [Value], call: &str) -> &'a Value {
    let mut parts = messages.iter().flat_map(|message| message["parts"].as_array().unwrap());
    parts.find(|part| part["toolCallId"] == call).unwrap()
}

pub(crate) fn is_shortened(chunks: &[Value]) -> bool {
    chunks.iter().any(|chunk| chunk["output"] == "https://s.example")
}
