//! Edits and regenerations as clients post them that send only their last message, or none: each is done,
//! or refused with the reason, and never gets an answer to another text.

use axum::http::StatusCode;
use chat_test_support::test_server::{Client, Host};
use serde_json::{Value, json};
use test_support::requests::user_message;

/// A chat of three answered messages.
async fn chat_of_three(host: &Host) {
    let mut page = Client::new("alice", "chat");
    for number in 1..=3 {
        page.messages.push(user_message(format!("m{number}"), &format!("question {number}")));
        page.send(host).await;
    }
}

/// What the model has read in its last call.
fn read(host: &Host) -> String {
    host.model.prompts().pop().unwrap()
}

#[tokio::test]
async fn the_last_message_with_its_id_as_message_id_is_an_edit() {
    for trigger in [json!("submit-message"), Value::Null] {
        let host = Host::new();
        chat_of_three(&host).await;
        let body = json!({
            "id": "chat", "trigger": trigger, "messageId": "m2", "message": user_message("m2", "changed"),
        });
        let answer = host.chat("alice", body.to_string()).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        assert!(read(&host).contains("changed"), "{}", read(&host));
        let after = host.messages("alice").await;
        assert_eq!(after.len(), 4);
        assert_eq!(after[2]["parts"][0]["text"], "changed");

        // The same request again gets the stored answer.
        let prompts = host.model.prompts().len();
        let again = host.chat("alice", body.to_string()).await;
        assert_eq!(again.status, StatusCode::OK, "{}", again.text);
        assert_eq!((host.messages("alice").await, host.model.prompts().len()), (after, prompts));
    }
}

#[tokio::test]
async fn an_edit_without_message_id_is_refused_with_what_to_send() {
    let host = Host::new();
    chat_of_three(&host).await;
    let (before, prompts) = (host.messages("alice").await, host.model.prompts().len());
    let changed = user_message("m3", "changed");
    let history = [&before[..4], std::slice::from_ref(&changed)].concat();
    for body in [
        json!({"id": "chat", "message": changed}),
        json!({"id": "chat", "messages": history}),
        json!({"id": "chat", "messages": history, "trigger": "regenerate-message"}),
        json!({"id": "chat", "message": changed, "trigger": "regenerate-message"}),
    ] {
        let answer = host.chat("alice", body.to_string()).await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{body}: {}", answer.text);
        assert!(answer.text.contains("`messageId`"), "{}", answer.text);
        assert_eq!(
            (host.messages("alice").await, host.model.prompts().len()),
            (before.clone(), prompts)
        );
    }
}

#[tokio::test]
async fn a_regeneration_without_messages_is_done_from_the_stored_chat() {
    for messages in [None, Some(json!([]))] {
        for (place, question, kept) in [(None, "question 3", 6), (Some(3), "question 2", 4)] {
            let host = Host::new();
            chat_of_three(&host).await;
            let before = host.messages("alice").await;
            let id = place.map(|place: usize| before[place]["id"].clone());
            let mut body = json!({"id": "chat", "trigger": "regenerate-message", "messageId": id});
            if let Some(messages) = &messages {
                body["messages"] = messages.clone();
            }
            let answer = host.chat("alice", body.to_string()).await;
            assert_eq!(answer.status, StatusCode::OK, "{body}: {}", answer.text);
            assert!(read(&host).contains(question), "{body}: {}", read(&host));
            let after = host.messages("alice").await;
            assert_eq!(after[..kept - 1], before[..kept - 1], "{body}");
            assert_eq!(after.len(), kept, "{body}");
            assert_ne!(after[kept - 1]["id"], before[kept - 1]["id"], "{body}");
        }
    }
}

#[tokio::test]
async fn a_regeneration_of_a_message_that_the_chat_does_not_hold_is_refused() {
    let host = Host::new();
    chat_of_three(&host).await;
    let before = host.messages("alice").await;
    for (chat, id) in [("chat", Some("unknown")), ("other", Some("m1")), ("other", None)] {
        let body = json!({"id": chat, "trigger": "regenerate-message", "messageId": id});
        let answer = host.chat("alice", body.to_string()).await;
        assert_eq!(answer.status, StatusCode::CONFLICT, "{body}: {}", answer.text);
        assert!(answer.text.contains("no such message to regenerate"), "{}", answer.text);
    }
    assert_eq!(host.messages("alice").await, before);
}
