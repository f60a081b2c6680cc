//! Two chat servers that share a Postgres: a decision, a Stop and readers at the other server.

use std::sync::Arc;
use std::time::Duration;

use chat_test_support::test_server::{Client, Host};
use futures::{StreamExt, stream};
use serde_json::json;
use test_support::{eventually, within_patience};
use tokio::sync::Barrier;
use tokio::time::sleep;
use ui_message_stream::approval::{Approvals, EmptyToolbox, KeyRing, Principal};
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest};
use ui_message_stream_chat::{ChatServer, ChatStream, Turn};
use ui_message_stream_postgres::PostgresStore;

use crate::database::Database;

#[tokio::test]
async fn a_call_that_is_approved_at_the_other_server_is_executed_once_and_read_at_both() {
    let Some(database) = Database::new() else { return };
    let host = async || {
        let store = Arc::new(database.open().await);
        let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
        let ledger = store.clone();
        Host::with(Vec::new(), |approvals| approvals.with_keys(keys).with_ledger(ledger))
            .with_chats(|chats| chats.with_store(store))
    };
    let (first, second) = (host().await, host().await);
    let mut ada = Client::new("ada", "chat");
    ada.say(&first, "delete notes.txt").await;
    let decision = json!({"approvalId": ada.approval_ids()[0], "approved": true});
    let decision = json!({"decisions": [decision]});

    second.tools.hold(true);
    let readers_begin = Barrier::new(3);
    let (decided, read, read_by_other, ()) = tokio::join!(
        second.decide("ada", &decision),
        read_live(&first, &readers_begin),
        read_live(&second, &readers_begin),
        async {
            eventually(async || !second.tools.effects().is_empty()).await;
            within_patience(readers_begin.wait()).await;
            second.tools.hold(false);
        },
    );
    assert_eq!(decided.json()["decisions"][0]["accepted"], true, "{}", decided.text);
    assert!(read.contains("tool-output-available") && read.contains("[DONE]"), "{read}");
    assert_eq!(read, read_by_other);
    let repeated = first.decide("ada", &decision).await;
    assert_eq!(repeated.json()["decisions"][0]["accepted"], true, "{}", repeated.text);
    assert_eq!((first.tools.effects().len(), second.tools.effects().len()), (0, 1));
    let histories =
        [&first, &second].map(async |host| host.get("ada", "/api/chat/chat").await.text);
    let [history, history_of_other] = histories;
    assert_eq!(history.await, history_of_other.await);
}

/// Reads the run that is live, or becomes so. Waits for the others before it reads the first byte.
async fn read_live(host: &Host, others: &Barrier) -> String {
    let (ada, chat, mut stream) = (Principal::new("ada"), "chat".into(), None);
    eventually(async || {
        stream = host.chats.resume_stream(&ada, &chat, None).await.unwrap();
        stream.is_some()
    })
    .await;
    others.wait().await;
    String::from_utf8(bytes_of(stream.unwrap()).await).unwrap()
}

#[tokio::test]
async fn a_stop_at_the_other_server_ends_the_answer_and_all_its_readers_get_the_same_bytes() {
    let Some(database) = Database::new() else { return };
    let server = async || {
        let store: Arc<PostgresStore> = Arc::new(database.open().await);
        let words = |_: Turn| {
            stream::repeat(()).then(async |()| {
                sleep(Duration::from_millis(5)).await;
                AgentEvent::text("word ")
            })
        };
        let approvals = Approvals::new(EmptyToolbox).with_ledger(store.clone());
        let chats = ChatServer::new(words, approvals).with_store(store);
        // Otherwise the stopped server has shown text that is not stored.
        chats.with_append_interval(Duration::ZERO)
    };
    let (first, second) = (server().await, server().await);
    let (ada, chat) = (Principal::new("ada"), "chat".into());
    let parts = json!([{"type": "text", "text": "Go on"}]);
    let message = json!({"id": "m", "role": "user", "parts": parts});
    let body = json!({"id": "chat", "messages": [message]}).to_string();
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
    let answer = first.stream_response(&ada, request).await.unwrap();
    let again = second.resume_stream(&ada, &chat, None).await.unwrap().unwrap();
    let (answer, again, ()) = tokio::join!(bytes_of(answer), bytes_of(again), async {
        eventually(async || {
            let messages = second.chat(&ada, &chat).await.unwrap().messages;
            messages.last().is_some_and(|message| message.text().contains("word "))
        })
        .await;
        second.stop(&ada, &chat).await.unwrap();
    });
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.contains("word ") && answer.contains(r#""type":"abort""#), "{answer}");
    assert_eq!(answer.as_bytes(), again);
    let [kept, kept_at_other] =
        [&first, &second].map(async |server| server.chat(&ada, &chat).await);
    let kept = kept.await.unwrap().messages;
    assert_eq!(kept, kept_at_other.await.unwrap().messages);
    let words = answer.matches("word ").count();
    assert_eq!(kept[1].text(), "word ".repeat(words));
}

async fn bytes_of(response: ChatStream) -> Vec<u8> {
    let frames = response.map(|frame| frame.unwrap().to_vec()).collect::<Vec<_>>();
    within_patience(frames).await.concat()
}
