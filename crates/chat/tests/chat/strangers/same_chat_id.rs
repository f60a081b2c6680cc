//! Two users may have chats with the same id, and learn nothing of each other's chats.

use axum::http::{Method, StatusCode};
use chat_test_support::test_server::{Answer, Client, Host};
use serde_json::{Value, json};
use test_support::requests::user_message;

#[tokio::test]
async fn two_users_have_chats_with_one_id() {
    let host = Host::new();
    let (mut alice, mut bob) = (Client::new("alice", "chat"), Client::new("bob", "chat"));
    alice.say(&host, "what is hers").await;
    bob.say(&host, "what is his").await;
    alice.say(&host, "more of hers").await;
    let texts = async |user: &str| {
        let messages = host.messages(user).await;
        messages.iter().map(|message| message["parts"].to_string()).collect::<String>()
    };
    let (hers, his) = (texts("alice").await, texts("bob").await);
    assert!(hers.contains("more of hers") && !hers.contains("his"), "{hers}");
    assert!(his.contains("what is his") && !his.contains("hers"), "{his}");
    assert!(!host.model.prompts()[2].contains("his"), "{:?}", host.model.prompts());
}

/// The requests that need no chat of the user, for the chat with this id.
async fn ask_without_a_chat(host: &Host, user: &str, id: &str) -> Vec<Answer> {
    let message = user_message("m1", "hello");
    let answers = json!({"toolOutputs": [{"toolCallId": "c1", "output": 1}]});
    let denial = json!({"chatId": id, "approved": false});
    let (chat, stream) = (format!("/api/chat/{id}"), format!("/api/chat/{id}/stream"));
    let mut received = Vec::new();
    for (method, path, body) in [
        (Method::GET, &*chat, Value::Null),
        (Method::GET, &*stream, Value::Null),
        (Method::DELETE, &*stream, Value::Null),
        (Method::POST, &*format!("{chat}/answers"), answers),
        (Method::POST, "/api/approvals", denial),
        (Method::POST, "/api/chat", json!({"id": id, "messages": [message]})),
        (Method::GET, &*chat, Value::Null),
        (Method::DELETE, &*stream, Value::Null),
        (Method::DELETE, &*chat, Value::Null),
        (Method::GET, "/api/chat", Value::Null),
    ] {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        received.push(host.send(user, method, path, body).await);
    }
    received
}

#[tokio::test]
async fn the_id_of_another_users_chat_is_answered_like_an_unknown_id() {
    let host = Host::new();
    Client::new("alice", "hers").say(&host, "delete notes.txt").await;
    let foreign = ask_without_a_chat(&host, "bob", "hers").await;
    let unknown = ask_without_a_chat(&host, "bob", "free").await;
    // The history holds random ids.
    let is_history = |at: &usize| *at == 6;
    for at in (0..foreign.len()).filter(|at| !is_history(at)) {
        let (foreign, unknown) = (&foreign[at], &unknown[at]);
        let name_of_id = foreign.text_with_numbered_ids().replace("hers", "free");
        assert_eq!(name_of_id, unknown.text_with_numbered_ids());
    }
    let statuses: Vec<StatusCode> = foreign.iter().map(|answer| answer.status).collect();
    assert_eq!(statuses, [404, 204, 204, 404, 200, 200, 200, 204, 204, 200]);
    assert_eq!(host.pending("alice").await.len(), 1, "the blanket denial was of bob's own chat");
    let hers = host.get("alice", "/api/chat/hers").await;
    assert!(hers.text.contains("delete notes.txt") && !hers.text.contains("hello"));
}

#[tokio::test(start_paused = true)]
async fn stopping_a_chat_does_not_stop_another_users_chat_with_its_id() {
    let host = Host::new();
    let (mut alice, mut bob) = (Client::new("alice", "chat"), Client::new("bob", "chat"));
    alice.say(&host, "delete notes.txt").await;
    bob.say(&host, "hello").await;
    let answered = host.answer_and_hold(&alice).await;
    let stopped = host.send("bob", Method::DELETE, "/api/chat/chat/stream", "").await;
    assert_eq!(stopped.status, 204);
    // A turn of bob's chat does not wait for alice's run either.
    bob.say(&host, "hello again").await;
    host.tools.hold(false);
    let answer = answered.await.unwrap();
    assert_eq!(answer.of_type("text-delta").len(), 1, "{}", answer.text);
    assert!(answer.of_type("abort").is_empty(), "{}", answer.text);
}

/// An approver may decide for others, and has a chat with the same id.
#[tokio::test]
async fn an_approver_decides_in_the_chat_of_the_requester_and_never_in_a_chat_with_its_id() {
    let host = Host::with(Vec::new(), |approvals| {
        approvals.authorize_decision(|principal, _| principal.id() == Some("boss"))
    });
    let (mut alice, mut boss) = (Client::new("alice", "chat"), Client::new("boss", "chat"));
    alice.say(&host, "delete notes.txt").await;
    boss.say(&host, "delete budget.xlsx").await;
    let (hers, own) = (alice.approval_ids().remove(0), boss.approval_ids().remove(0));

    // The approval of the other chat is not redeemed in the approver's chat.
    let mut posted = alice.answered(true);
    posted["messages"] = json!([posted["messages"][1]]);
    let answer = host.chat("boss", posted.to_string()).await;
    assert_eq!(answer.status, StatusCode::CONFLICT);
    assert!(host.tools.effects().is_empty(), "{:?}", host.tools.effects());

    let denied = host.decide("boss", &json!({"chatId": "chat", "approved": false})).await.json();
    assert_eq!(denied["decisions"].as_array().unwrap().len(), 1, "{denied}");
    assert_eq!(denied["decisions"][0]["approvalId"], own);

    assert!(host.decides("boss", &hers, true).await);
    let effects = host.tools.effects();
    assert!(effects.len() == 1 && effects[0].input.to_string().contains("notes.txt"));
    let hers = host.get("alice", "/api/chat/chat").await.text;
    assert!(hers.contains("output-available"), "{hers}");
    let his = host.get("boss", "/api/chat/chat").await.text;
    assert!(!his.contains("notes.txt"), "{his}");
}
