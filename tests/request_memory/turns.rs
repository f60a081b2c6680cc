//! A turn takes as much memory in a chat of 5 000 messages as in one of 10, beyond what the agent
//! reads: the versions of a chat share its messages.

use std::sync::Arc;

use futures::{StreamExt, stream};
use serde_json::json;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::chat::store::{ChatStore, InMemoryChatStore, SaveChat, SaveResult};
use ui_message_stream::chat::{Chat, ChatServer, Turn};
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest, UiMessage};

use super::{ALONE, HEAP};

/// How many bytes a turn in a chat of 5 000 messages may take more at most than one in a chat of 10.
/// The list of the pages of a version has 8 bytes for 64 messages.
const MORE: usize = 16 << 10;

#[tokio::test]
async fn a_turn_takes_as_much_memory_in_a_long_chat_as_in_a_short_one() {
    let _alone = ALONE.lock().await;
    let mut peaks = Vec::new();
    // The first turn of a process takes more.
    for length in [10, 10, 1_000, 5_000] {
        peaks.push(peak_of_a_turn(length).await);
    }
    println!("peak of a turn at 10, 10, 1 000, 5 000 messages: {peaks:?} bytes");
    assert!(peaks[3] <= peaks[1] + MORE, "{peaks:?}");
}

/// Returns the peak of the memory that a turn with a constant agent takes, of a client that sends its
/// last message only.
async fn peak_of_a_turn(length: usize) -> usize {
    let store = Arc::new(InMemoryChatStore::new());
    let ada = Principal::new("ada");
    let mut chat = Chat::new("chat", ada.clone());
    for at in 0..length {
        let role = if at % 2 == 0 { "user" } else { "assistant" };
        let parts = json!([{"type": "text", "text": "A message of a usual length."}]);
        let message = json!({"id": format!("m{at:05}"), "role": role, "parts": parts});
        chat.messages.push(UiMessage::parse(&message.to_string()).unwrap());
    }
    assert_ne!(store.save(SaveChat::new(&chat)).await.unwrap(), SaveResult::Conflict);
    drop(chat);
    let agent = |_: Turn| stream::iter([AgentEvent::text("An answer.")]);
    let chats = ChatServer::new(agent, Approvals::new(EmptyToolbox)).with_store(store.clone());
    let parts = json!([{"type": "text", "text": "A question?"}]);
    let message = json!({"id": "new", "role": "user", "parts": parts});
    let body = json!({"id": "chat", "message": message}).to_string();
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();

    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let response = chats.stream_response(&ada, request).await.unwrap();
    drop(response.collect::<Vec<_>>().await);
    let peak = HEAP.peak_usage().saturating_sub(before);

    let stored = store.load(&ada, &"chat".into()).await.unwrap().unwrap().chat;
    assert_eq!(stored.messages.len(), length + 2);
    peak
}
