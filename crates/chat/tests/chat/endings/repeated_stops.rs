//! A stop ends the run that was live when it came, and no run that begins later.

use std::sync::atomic::Ordering;
use std::time::Duration;

use chat_test_support::answers::{post, stored};
use futures::StreamExt;
use test_support::eventually;
use test_support::requests::ada;
use tokio::time::sleep;
use ui_message_stream::message::AnswerEnd;
use ui_message_stream_chat::ChatServer;
use ui_message_stream_chat::store::ListChats;

use crate::endings::faults::server;

async fn is_live(chats: &ChatServer) -> bool {
    let list = ListChats { limit: 1, after: None, search: None };
    chats.list(&ada(), list).await.unwrap().chats[0].is_live
}

#[tokio::test(start_paused = true)]
async fn a_stop_that_is_repeated_because_its_reply_was_lost_does_not_stop_the_next_answer() {
    let server = server();
    let first = post(&server.chats, "m1", "Hi").await;
    let first = tokio::spawn(first.for_each(async |_| {}));
    sleep(Duration::from_secs(1)).await;
    assert!(is_live(&server.chats).await);

    let other = server.other();
    server.faults.lost_appends.store(1, Ordering::SeqCst);
    let stop = tokio::spawn(async move { other.stop(&ada(), &"chat".into()).await });
    eventually(async || !is_live(&server.chats).await).await;
    assert!(!stop.is_finished(), "the stop does not know that it has stopped the run");
    let next = post(&server.chats, "m2", "And now?").await;
    let next = tokio::spawn(next.for_each(async |_| {}));
    stop.await.unwrap().unwrap();
    assert!(is_live(&server.chats).await);

    server.permits.add_permits(2);
    next.await.unwrap();
    first.await.unwrap();
    let chat = stored(&server.chats).await;
    assert_eq!(chat.answer_end(), Some(AnswerEnd::Finished));
    assert_eq!(chat.messages.len(), 4);
}
