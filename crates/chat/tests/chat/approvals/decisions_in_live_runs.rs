//! Decisions that arrive while the model call that requested the approval still writes. The agent
//! marks no steps, so that the stored conversation lacks everything of the run.

use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use chat_test_support::answers::{decide, post, questions, read_until, stored};
use chat_test_support::test_server::Tools;
use serde_json::Value;
use test_support::requests::ada;
use test_support::responses::{chunks_of, message_of, text_of};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use ui_message_stream::approval::Approvals;
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::Role;
use ui_message_stream::{AgentEvent, Json, UiMessage};
use ui_message_stream_chat::{ChatServer, ChatStream, Turn};

/// Shorter than the interval of the comments that keep a connection open.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// A response that a page reads, and what it has read.
struct Page {
    response: ChatStream,
    read: String,
}

impl Page {
    /// Reads until this text has come.
    async fn read_until(&mut self, text: &str) {
        self.read += &timeout(MAX_WAIT, read_until(&mut self.response, text)).await.expect(text);
    }

    /// Reads the response to its end. Returns its chunks, and the message of a client that has read
    /// them.
    async fn read_to_end(mut self) -> (Vec<Value>, UiMessage) {
        self.read += &text_of(self.response).await;
        (chunks_of(&self.read), message_of(None, &self.read))
    }
}

fn delete_notes() -> (ToolCall, Json) {
    let input = Json::parse(r#"{"path":"notes.txt"}"#).unwrap();
    (ToolCall::new("call_0", "delete_file"), input)
}

/// Creates a server whose agent calls a tool without approval in its first turn, `plain_calls` times
/// in its second one, and then the tool that needs approval. All calls have one id, and the agent then
/// writes `Wa`, and metadata and `iting.` after a permit.
fn server(tools: &Tools, permits: &Arc<Semaphore>, plain_calls: usize) -> ChatServer {
    let permits = Arc::clone(permits);
    let agent = move |turn: Turn| {
        let permits = Arc::clone(&permits);
        stream! {
            let (call, input) = delete_notes();
            if turn.chat.messages.last().unwrap().role == Role::Assistant {
                yield AgentEvent::text("Done.");
                return;
            }
            let is_first = turn.chat.messages.len() == 1;
            for _ in 0..if is_first { 1 } else { plain_calls } {
                yield AgentEvent::tool_input(call.clone(), input.clone());
                yield AgentEvent::tool_output("call_0", Json::string("nothing"));
            }
            if is_first {
                return;
            }
            yield AgentEvent::tool_input(call.clone(), input.clone());
            yield turn.approvals.request_approval_of(&call, &input).await;
            yield AgentEvent::text("Wa");
            permits.acquire().await.unwrap().forget();
            yield AgentEvent::Metadata(Json::parse(r#"{"tokens":1}"#).unwrap());
            yield AgentEvent::text("iting.");
        }
    };
    ChatServer::new(agent, Approvals::new(tools.clone()))
}

/// Begins the second turn, and approves its call while the agent writes.
async fn approve_in_live_run(chats: &ChatServer) -> Page {
    text_of(post(chats, "m1", "Go").await).await;
    let mut page = Page { response: post(chats, "m2", "Go").await, read: String::new() };
    page.read_until("Wa").await;
    decide(chats, &questions(chats).await[0], true).await;
    page.read_until(r#""deleted":true"#).await;
    page
}

/// Creates a server, and approves a call of it in a live run.
async fn approved(plain_calls: usize) -> (Tools, Arc<Semaphore>, ChatServer, Page) {
    let (tools, permits) = (Tools::default(), Arc::new(Semaphore::new(0)));
    let chats = server(&tools, &permits, plain_calls);
    let page = approve_in_live_run(&chats).await;
    (tools, permits, chats, page)
}

fn texts(message: &UiMessage) -> Vec<String> {
    let parts = serde_json::to_value(message).unwrap()["parts"].take();
    let texts = parts.as_array().unwrap().iter().filter(|part| part["type"] == "text");
    texts.map(|part| part["text"].as_str().unwrap().to_owned()).collect()
}

/// The calls in a message: their ids and states.
fn calls(message: &UiMessage) -> Vec<(String, Value)> {
    let call =
        |part: &Value| Some((part["toolCallId"].as_str()?.to_owned(), part["state"].clone()));
    let parts = serde_json::to_value(message).unwrap()["parts"].take();
    parts.as_array().unwrap().iter().filter_map(call).collect()
}

#[tokio::test(start_paused = true)]
async fn no_earlier_call_with_its_id_takes_the_result_and_the_text_goes_on_after_it() {
    let (tools, permits, chats, page) = approved(0).await;
    permits.add_permits(1);
    let (_, message) = page.read_to_end().await;
    assert_eq!(calls(&message), [("call_0".to_owned(), "output-available".into())]);
    assert_eq!(tools.effects().len(), 1);
    let stored = stored(&chats).await;
    for message in [&message, stored.messages.last().unwrap()] {
        assert_eq!(texts(message), ["Waiting.", "Done."]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_after_the_result_ends_its_text_once() {
    let (_tools, _permits, chats, page) = approved(0).await;
    chats.stop(&ada(), &"chat".into()).await.unwrap();
    let (chunks, message) = page.read_to_end().await;
    let ends = chunks.iter().filter(|chunk| chunk["type"] == "text-end").count();
    assert_eq!(ends, 1, "{chunks:#?}");
    assert_eq!(chunks.last().unwrap()["type"], "abort");
    assert_eq!(texts(&message), ["Wa"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_whose_id_is_not_unique_in_its_message_gets_its_result() {
    let (_tools, permits, _chats, page) = approved(1).await;
    permits.add_permits(1);
    let (chunks, message) = page.read_to_end().await;
    let done = |id: &str| (id.to_owned(), "output-available".into());
    assert_eq!(calls(&message), [done("call_0"), done("call_0-1")]);
    let data = chunks.iter().filter(|chunk| chunk["type"] == "data-approval");
    assert!(data.clone().count() > 0);
    assert!(data.clone().all(|chunk| chunk["id"] == "call_0-1"), "{chunks:#?}");
}
