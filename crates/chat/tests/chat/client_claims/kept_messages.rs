//! A page that removes messages from its history and sends a new one, to a server that keeps them.

use chat_test_support::answers::{answer, server_of};
use futures::stream;
use serde_json::{Value, json};
use test_support::requests::{ada, send, user_message};
use test_support::thread_subscriber::captured;
use ui_message_stream::AgentEvent;
use ui_message_stream_chat::{ChatServer, PostedHistory, Turn};

fn message(id: &str) -> Value {
    user_message(id, id)
}

async fn post(chats: &ChatServer, chat: &str, messages: &[Value]) {
    answer(chats, send(chat, &json!(messages))).await.unwrap();
}

/// What is logged of two turns and of edits by a cut list in two chats.
async fn logged(posted_history: PostedHistory) -> String {
    let (log, _guard) = captured();
    let agent = |_: Turn| stream::iter([AgentEvent::text("Hi")]);
    let chats = server_of(agent).with_posted_history(posted_history);
    for chat in ["one", "two"] {
        let [first, second] = [message("m1"), message("m2")];
        post(&chats, chat, std::slice::from_ref(&first)).await;
        let stored = chats.chat(&ada(), &chat.into()).await.unwrap();
        let answer = serde_json::to_value(&stored.messages[1]).unwrap();
        post(&chats, chat, &[first.clone(), answer.clone(), second]).await;
        assert_eq!(
            log.text().is_empty(),
            chat == "one" || posted_history == PostedHistory::Truncate
        );
        post(&chats, chat, &[first.clone(), answer, message("m3")]).await;
        post(&chats, chat, &[message("m4")]).await;
    }
    log.text()
}

#[tokio::test]
async fn messages_that_are_kept_though_the_page_removed_them_are_logged_once() {
    let log = logged(PostedHistory::Keep).await;
    assert_eq!(log.matches("PostedHistory::Truncate").count(), 1, "{log}");
    assert!(log.contains("WARN") && log.contains("kept=2"), "{log}");
}

#[tokio::test]
async fn nothing_is_logged_if_the_posted_history_counts() {
    assert_eq!(logged(PostedHistory::Truncate).await, "");
}
