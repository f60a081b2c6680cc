//! Concurrent runs in one chat: the turn continues once, after all open approval requests and
//! client tool calls have an answer, however often the answers arrive. A call that may still run is
//! never reported as not executed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_stream::stream;
use chat_test_support::answers::{answer, decide, stored};
use serde_json::{Value, json};
use test_support::any_tool::AnyTool;
use test_support::requests::{ada, edit, request, respond, respond_to_all, user_message};
use tokio::sync::Semaphore;
use ui_message_stream::approval::{Approvals, ToolOutcome};
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::{ChatRequest, Json};
use ui_message_stream_chat::{ChatServer, Turn};

struct Host {
    chats: ChatServer,
    /// One permit lets the agent continue.
    agent: Arc<Semaphore>,
    tool: Arc<Semaphore>,
    /// What the model read in each call.
    read: Arc<Mutex<Vec<String>>>,
}

/// The agent's first call requests one approval, two if the user's text contains "twice" (it waits
/// for a permit between them), or leaves a call to the client if the text contains "where". If the
/// text contains "both", it does both and waits for a permit at the end. If the text contains
/// "slowly", it first waits for a permit. Each later call waits for a permit, then emits a text.
fn host() -> Host {
    let (agent, tool) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let read: Arc<Mutex<Vec<String>>> = Arc::default();
    let (permits, prompts) = (Arc::clone(&agent), Arc::clone(&read));
    let calls = AtomicUsize::new(0);
    let respond = move |turn: Turn| {
        let messages = turn.to_model_messages().model_messages(&turn.chat.messages);
        prompts.lock().unwrap().push(serde_json::to_string(&messages).unwrap());
        let (permits, call) = (Arc::clone(&permits), calls.fetch_add(1, Ordering::SeqCst));
        let user_text = serde_json::to_string(&turn.chat.messages[0]).unwrap();
        stream! {
            if call > 0 {
                permits.acquire().await.unwrap().forget();
                yield Ok::<_, std::io::Error>(AgentEvent::text("Went on"));
                return;
            }
            if user_text.contains("slowly") {
                permits.acquire().await.unwrap().forget();
            }
            if user_text.contains("where") || user_text.contains("both") {
                let call = ToolCall::new("place", "where").client_executed();
                yield Ok(AgentEvent::tool_input(call, Json::null()));
            }
            if user_text.contains("where") {
                return;
            }
            let call_count = 1 + usize::from(user_text.contains("twice"));
            for name in ["first", "second"].into_iter().take(call_count) {
                let call = ToolCall::new(name, "slow");
                yield Ok(AgentEvent::tool_input(call.clone(), Json::null()));
                yield Ok(turn.approvals.request_approval_of(&call, &Json::null()).await);
                if name == "first" && !user_text.contains("once") {
                    permits.acquire().await.unwrap().forget();
                }
            }
        }
    };
    let tool_permits = Arc::clone(&tool);
    // The tool ends when it receives a permit.
    let slow = AnyTool::new(move |_| {
        let permits = Arc::clone(&tool_permits);
        async move {
            permits.acquire().await.unwrap().forget();
            ToolOutcome::Output(Json::string("done"))
        }
    });
    let chats = ChatServer::new(respond, Approvals::new(slow));
    Host { chats, agent, tool, read }
}

async fn wait_one_second() {
    tokio::time::sleep(Duration::from_secs(1)).await;
}

impl Host {
    async fn post(&self, message: Value) -> String {
        answer(&self.chats, Self::request(&message)).await.unwrap()
    }

    /// The first assistant message as a client sends it whose user has approved its call.
    async fn approved_message(&self) -> Value {
        let chat = stored(&self.chats).await;
        let mut message = serde_json::to_value(&chat.messages[1]).unwrap();
        respond_to_all(&mut message, true);
        message
    }

    fn request(message: &Value) -> ChatRequest {
        let id = &message["id"];
        request(&json!({"id": "chat", "messages": [message], "messageId": id}))
    }

    async fn approve(&self, call: &str) {
        let pending = self.chats.approvals().pending(&ada()).await.unwrap();
        let mut pending = pending.iter();
        let asked = pending.find(|it| it.record.tool_call_id.as_str() == call).unwrap();
        assert!(decide(&self.chats, &asked.approval_id, true).await);
    }

    /// The last message as a client sends it that has executed its tool, and whose user has approved
    /// the other calls.
    async fn message_with_client_output(&self) -> Value {
        let chat = stored(&self.chats).await;
        let mut message = serde_json::to_value(chat.messages.last()).unwrap();
        for part in message["parts"].as_array_mut().unwrap() {
            if part["state"] == "input-available" {
                (part["state"], part["output"]) = (json!("output-available"), json!("here"));
            } else if part["state"] == "approval-requested" {
                respond(part, true);
            }
        }
        message
    }

    fn calls(&self) -> usize {
        self.read.lock().unwrap().len()
    }
}

#[tokio::test(start_paused = true)]
async fn a_turn_does_not_continue_before_approvals_requested_during_a_tool_run_are_decided() {
    let host = host();
    let approve_while_running = async {
        wait_one_second().await;
        host.approve("first").await;
        wait_one_second().await;
        // The agent requests the second approval while the first tool runs.
        host.agent.add_permits(1);
        wait_one_second().await;
        host.tool.add_permits(1);
        wait_one_second().await;
    };
    futures::join!(host.post(user_message("m1", "twice")), approve_while_running);
    assert_eq!(host.calls(), 1, "the second approval is pending");
    host.agent.add_permits(1);
    host.tool.add_permits(1);
    host.approve("second").await;
    wait_one_second().await;
    assert_eq!(host.calls(), 2);
    assert!(host.read.lock().unwrap()[1].matches("done").count() == 2, "{:?}", host.read);
}

#[tokio::test(start_paused = true)]
async fn a_client_output_that_is_sent_again_during_its_turn_is_answered_once() {
    let host = host();
    host.post(user_message("m1", "where")).await;
    let message = host.message_with_client_output().await;
    let second_post = async {
        wait_one_second().await;
        let add_permits = async {
            wait_one_second().await;
            host.agent.add_permits(2);
        };
        futures::join!(host.post(message.clone()), add_permits).0
    };
    let (first, second) = futures::join!(host.post(message.clone()), second_post);
    assert_eq!(host.calls(), 2);
    assert!(first.contains("Went on"), "{first}");
    assert!(second.contains("Went on"), "{second}");
    assert_eq!(host.message_with_client_output().await.to_string().matches("Went on").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_output_counts_that_is_sent_before_the_run_has_ended_that_made_the_call() {
    let host = host();
    let answer_while_running = async {
        wait_one_second().await;
        host.tool.add_permits(1);
        let message = host.message_with_client_output().await;
        let add_permits = async {
            wait_one_second().await;
            host.agent.add_permits(2);
        };
        futures::join!(host.post(message), add_permits).0
    };
    let (_, response) = futures::join!(host.post(user_message("m1", "both")), answer_while_running);
    assert!(response.contains("Went on"), "{response}");
    assert_eq!(host.calls(), 2);
    let read = host.read.lock().unwrap()[1].clone();
    assert!(read.contains("here") && read.contains("done"), "{read}");
    let chat = stored(&host.chats).await;
    assert_eq!(chat.client_executed, []);
}

#[tokio::test(start_paused = true)]
async fn a_new_message_during_an_approved_call_sends_it_to_the_model_as_executing() {
    let host = host();
    host.post(user_message("m1", "once")).await;
    host.approve("first").await;
    wait_one_second().await;
    host.agent.add_permits(9);
    host.post(user_message("m2", "and?")).await;
    let read = host.read.lock().unwrap().last().unwrap().clone();
    assert!(read.contains(r#""result":"executing""#), "{read}");
    assert!(!read.contains("unknown") && !read.contains("not-executed"), "{read}");
    host.tool.add_permits(1);
    wait_one_second().await;
    host.post(user_message("m3", "and now?")).await;
    assert!(host.read.lock().unwrap().last().unwrap().contains("done"));
}

#[tokio::test(start_paused = true)]
async fn a_continued_run_stops_when_its_message_is_edited_away() {
    let host = host();
    host.post(user_message("m1", "once")).await;
    host.tool.add_permits(1);
    host.approve("first").await;
    wait_one_second().await;
    assert_eq!(host.calls(), 2, "the run has continued and waits for a permit");
    let request = edit("chat", "m1", "once more");
    drop(host.chats.stream_response(&ada(), request).await.unwrap());
    wait_one_second().await;
    // The new run takes one permit. The removed run would take the other.
    host.agent.add_permits(2);
    wait_one_second().await;
    assert_eq!(host.agent.available_permits(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_edited_away_during_a_tool_run_leaves_no_trace_in_the_chat() {
    let host = host();
    host.post(user_message("m1", "once")).await;
    // The approval arrives in a chat request, and the tool runs until it gets a permit.
    let page = host.approved_message().await;
    let edit_while_running = async {
        wait_one_second().await;
        host.agent.add_permits(1);
        host.post(user_message("m1", "once more")).await;
        host.tool.add_permits(1);
        wait_one_second().await;
    };
    futures::join!(host.post(page), edit_while_running);
    let chat = stored(&host.chats).await;
    assert_eq!(chat.messages.len(), 2, "{:?}", chat.messages);
    assert!(!chat.messages[1].parts.is_empty());
    assert_eq!(host.calls(), 2);
}
