//! Edits during a run: the response is stored after the message that it answers, or not at all, and
//! a decision does not recreate an evicted conversation.

use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use chat_test_support::answers::{answer, decide, post, questions, stored};
use serde_json::json;
use test_support::any_tool::AnyTool;
use test_support::requests::{ada, edit, request, send, user_message};
use tokio::sync::Semaphore;
use ui_message_stream::approval::Approvals;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::{Json, UiMessage};
use ui_message_stream_chat::store::InMemoryLogStore;
use ui_message_stream_chat::{ChatServer, Turn};

/// A server that answers the user's last text. A text with "slow" waits for a permit first, a text with
/// "delete" requests an approval.
fn server(deletes: AnyTool) -> (ChatServer, Arc<Semaphore>) {
    let permits = Arc::new(Semaphore::new(0));
    let of_agent = Arc::clone(&permits);
    let respond = move |turn: Turn| {
        let permits = Arc::clone(&of_agent);
        stream! {
            let user_text =
                turn.chat.messages.last().map(UiMessage::text).unwrap_or_default();
            if user_text.contains("slow") {
                permits.acquire().await.unwrap().forget();
            }
            if user_text.contains("delete") {
                let input = Json::string("notes.txt");
                let call = ToolCall::new("call", "delete");
                yield Ok::<_, std::io::Error>(AgentEvent::tool_input(call.clone(), input.clone()));
                yield Ok(turn.approvals.request_approval_of(&call, &input).await);
                return;
            }
            yield Ok(AgentEvent::text(format!("An answer to {user_text}")));
        }
    };
    (ChatServer::new(respond, Approvals::new(deletes)), permits)
}

async fn say(chats: &ChatServer, id: &str, text: &str) -> String {
    answer(chats, edit("chat", id, text)).await.unwrap()
}

/// Sends a message and drops the response unread.
async fn say_without_reading(chats: &ChatServer, id: &str, text: &str) {
    drop(post(chats, id, text).await);
    tokio::time::sleep(Duration::from_secs(1)).await;
}

/// Lets a waiting run continue, and waits until it has ended.
async fn release_one(permits: &Semaphore) {
    permits.add_permits(1);
    tokio::time::sleep(Duration::from_secs(1)).await;
}

async fn stored_texts(chats: &ChatServer) -> Vec<String> {
    stored(chats).await.messages.iter().map(UiMessage::text).collect()
}

#[tokio::test(start_paused = true)]
async fn a_response_ends_when_the_user_sends_another_message() {
    let (chats, permits) = server(AnyTool::with_output("deleted"));
    say_without_reading(&chats, "m1", "slow").await;
    say(&chats, "m2", "hello").await;
    release_one(&permits).await;
    assert_eq!(stored_texts(&chats).await, ["slow", "hello", "An answer to hello"]);
    assert_eq!(permits.available_permits(), 1, "the first run waits for no permit any more");
}

#[tokio::test(start_paused = true)]
async fn a_regenerated_response_is_stored_once() {
    let (chats, permits) = server(AnyTool::with_output("deleted"));
    say_without_reading(&chats, "m1", "slow").await;
    let regenerate = json!({
        "id": "chat", "messages": [user_message("m1", "slow")],
        "trigger": "regenerate-message", "messageId": "never-kept",
    });
    let (answer, ()) = futures::join!(answer(&chats, request(&regenerate)), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        // One permit for the old run, then one for the new run.
        release_one(&permits).await;
        release_one(&permits).await;
    });
    let answer = answer.unwrap();
    assert!(answer.contains("An answer to slow"), "{answer}");
    assert_eq!(stored_texts(&chats).await, ["slow", "An answer to slow"]);
}

#[tokio::test(start_paused = true)]
async fn a_response_to_an_edited_message_is_not_stored() {
    let (chats, permits) = server(AnyTool::with_output("deleted"));
    say(&chats, "m0", "hello").await;
    say_without_reading(&chats, "m1", "slow").await;
    say(&chats, "m1", "quick").await;
    release_one(&permits).await;
    assert_eq!(
        stored_texts(&chats).await,
        ["hello", "An answer to hello", "quick", "An answer to quick"]
    );
    assert_eq!(permits.available_permits(), 1, "the first run waits for no permit any more");
}

#[tokio::test(start_paused = true)]
async fn an_approval_request_of_a_response_that_is_not_stored_is_revoked() {
    let (chats, permits) = server(AnyTool::with_output("deleted"));
    say_without_reading(&chats, "m1", "slow delete").await;
    say(&chats, "m1", "hello").await;
    release_one(&permits).await;
    assert_eq!(stored_texts(&chats).await, ["hello", "An answer to hello"]);
    assert_eq!(questions(&chats).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_decision_for_an_evicted_chat_runs_no_tool_and_creates_no_chat() {
    let (deletes, deleted) = AnyTool::counted("deleted");
    let (chats, _permits) = server(deletes);
    say(&chats, "m1", "delete").await;
    let asked = questions(&chats).await;
    // The store is empty, the ledger is not.
    let chats = chats.with_store(Arc::new(InMemoryLogStore::new()));
    assert!(!decide(&chats, &asked[0], true).await);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(deleted.load(std::sync::atomic::Ordering::SeqCst), 0);
    assert_eq!(questions(&chats).await.len(), 1);
    assert!(chats.chat(&ada(), &"chat".into()).await.is_err(), "the chat was not recreated");

    // The next request of the client creates the chat, like any chat that the server does not know.
    let history = json!([
        user_message("m1", "hello"),
        {"id": "a1", "role": "assistant", "parts": [{"type": "text", "text": "Hi"}]},
        user_message("m2", "well"),
    ]);
    answer(&chats, send("chat", &history)).await.unwrap();
    assert_eq!(stored_texts(&chats).await, ["hello", "Hi", "well", "An answer to well"]);
}
