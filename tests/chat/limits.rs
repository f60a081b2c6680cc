//! What a chat, a user and a store may hold, and what happens at each limit.

use axum::http::{Method, StatusCode};
use serde_json::json;
use test_support::test_server::{Answer, Client, Host};
use test_support::thread_subscriber::{CapturedLog, subscribe};
use ui_message_stream::approval::{PendingToolCall, Principal};
use ui_message_stream::chat::Chat;
use ui_message_stream::chat::store::{ChatStore, InMemoryChatStore, SaveChat, SaveResult};
use ui_message_stream::limits::ChatLimits;
use ui_message_stream::{Json, UiMessage};

/// A POST of one new message, which repeats no history.
async fn post_text(host: &Host, user: &str, number: usize, text: &str) -> Answer {
    let message = json!({
        "id": format!("u{number}"), "role": "user", "parts": [{"type": "text", "text": text}],
    });
    host.chat(user, json!({"id": "chat", "message": message}).to_string()).await
}

#[tokio::test]
async fn a_message_beyond_the_messages_or_bytes_of_a_chat_is_refused_with_the_setting() {
    let limits = ChatLimits::default();
    for (limits, setting) in [
        (
            limits.clone().with_max_chat_messages(4),
            "the chat is full: more than 4 messages; `ChatLimits::with_max_chat_messages` allows \
             more",
        ),
        (
            limits.with_max_chat_bytes(2_000),
            "the chat is full: more than 2000 bytes; `ChatLimits::with_max_chat_bytes` allows more",
        ),
    ] {
        let host = Host::new().with_limits(limits);
        let text = "x".repeat(300);
        for number in 0..2 {
            assert_eq!(post_text(&host, "alice", number, &text).await.status, StatusCode::OK);
        }
        let stored = host.get("alice", "/api/chat/chat").await.text;
        let refused = post_text(&host, "alice", 2, &"x".repeat(3_000)).await;
        assert_eq!((refused.status.as_u16(), &*refused.text), (413, setting));
        // The chat is unchanged and can be read, and the user can begin another one.
        assert_eq!(host.get("alice", "/api/chat/chat").await.text, stored);
        Client::new("alice", "other").say(&host, "hello").await;
    }
}

#[tokio::test]
async fn an_approval_in_a_full_chat_can_still_be_given() {
    let host = Host::new().with_limits(ChatLimits::default().with_max_chat_bytes(200));
    let mut alice = Client::new("alice", "chat");
    alice.say(&host, "delete notes.txt").await;
    assert_eq!(post_text(&host, "alice", 9, "hello").await.status, 413);
    alice.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
}

#[tokio::test]
async fn a_chat_id_that_browsers_remove_from_a_path_is_refused() {
    let host = Host::new();
    let message = json!({"id": "u", "role": "user", "parts": [{"type": "text", "text": "hello"}]});
    for id in ["", ".", ".."] {
        let posted = host.chat("alice", json!({"id": id, "message": message}).to_string()).await;
        let expected = "id: expected another id than an empty one, `.` or `..`";
        assert_eq!((posted.status.as_u16(), &*posted.text), (400, expected), "{id:?}");
        let denied = json!({"chatId": id, "approved": false}).to_string();
        let denied = host.send("alice", Method::POST, "/api/approvals", denied).await;
        assert_eq!(denied.status.as_u16(), 400, "{id:?}");
        assert!(denied.text.starts_with("chatId: expected another id"), "{}", denied.text);
    }
    assert!(
        host.chat("alice", json!({"id": "...", "message": message}).to_string())
            .await
            .status
            .is_success()
    );
}

#[tokio::test]
async fn half_a_surrogate_pair_in_a_reason_is_replaced() {
    let host = Host::new();
    let mut alice = Client::new("alice", "chat");
    alice.say(&host, "delete notes.txt").await;
    let denial = r#"{"chatId":"chat","approved":false,"reason":"no\ud800!"}"#.to_owned();
    let denied = host.send("alice", Method::POST, "/api/approvals", denial).await;
    assert_eq!(denied.status, StatusCode::OK, "{}", denied.text);
    let stored = host.get("alice", "/api/chat/chat").await.text;
    assert!(stored.contains("no\u{FFFD}!"), "{stored}");
}

#[tokio::test]
async fn a_long_id_or_reason_is_refused_with_the_name_of_its_field() {
    let host = Host::new();
    let mut alice = Client::new("alice", "chat");
    alice.say(&host, "delete notes.txt").await;
    let answered = alice.answered(true);
    let tool = answered["messages"][1]["parts"].as_array().unwrap();
    let tool = tool.iter().position(|part| part["toolCallId"].is_string()).unwrap();
    let part = format!("messages[1].parts[{tool}]");
    let pointer = format!("/messages/1/parts/{tool}");
    let refused = async |answer: Answer, field: &str, setting: &str| {
        let text = format!("{field}: longer than {setting} allows more");
        assert_eq!((answer.status.as_u16(), answer.text.as_str()), (400, text.as_str()));
    };
    let id = "128 bytes; `Limits::with_max_id_bytes`";
    let approval_id = "256 bytes; `Limits::with_max_id_bytes`";
    let reason = "4096 bytes; `Limits::with_max_reason_bytes`";
    for (pointer, field, length, setting) in [
        ("/id".to_owned(), "id".to_owned(), 129, id),
        ("/messageId".to_owned(), "messageId".to_owned(), 129, id),
        ("/messages/0/id".to_owned(), "messages[0].id".to_owned(), 129, id),
        (format!("{pointer}/toolCallId"), format!("{part}.toolCallId"), 129, id),
        (format!("{pointer}/approval/id"), format!("{part}.approval.id"), 257, approval_id),
        (format!("{pointer}/approval/reason"), format!("{part}.approval.reason"), 4097, reason),
    ] {
        let mut body = answered.clone();
        body["messages"][1]["parts"][tool]["approval"]["reason"] = "no".into();
        *body.pointer_mut(&pointer).unwrap() = "x".repeat(length).into();
        refused(host.chat("alice", body.to_string()).await, &field, setting).await;
        *body.pointer_mut(&pointer).unwrap() = "x".repeat(length - 1).into();
        assert_eq!(host.chat("mallory", body.to_string()).await.status, 200, "{pointer}");
    }

    let long = "x".repeat(129);
    for (method, path) in [
        (Method::GET, format!("/api/chat/{long}")),
        (Method::GET, format!("/api/chat/{long}/stream")),
        (Method::DELETE, format!("/api/chat/{long}/stream")),
        (Method::DELETE, format!("/api/chat/{long}")),
    ] {
        refused(host.send("alice", method, &path, "").await, "id", id).await;
    }
    let decision = |id: &str, reason: &str| json!({"decisions": [{"approvalId": id, "approved": false, "reason": reason}]});
    let (long_id, long_reason) = ("x".repeat(257), "x".repeat(4097));
    for (body, field, setting) in [
        (decision(&long_id, ""), "decisions[0].approvalId", approval_id),
        (decision("a", &long_reason), "decisions[0].reason", reason),
        (json!({"chatId": long, "approved": false}), "chatId", id),
        (json!({"chatId": "c", "approved": false, "reason": long_reason}), "reason", reason),
    ] {
        refused(host.decide("alice", &body).await, field, setting).await;
    }
    for (body, field, setting) in [
        (decision(&long_id, ""), "decisions[0].approvalId", approval_id),
        (decision("a", &long_reason), "decisions[0].reason", reason),
        (
            json!({"toolOutputs": [{"toolCallId": long, "output": 1}]}),
            "toolOutputs[0].toolCallId",
            id,
        ),
    ] {
        let path = "/api/chat/chat/answers";
        let answer = host.send("alice", Method::POST, path, body.to_string()).await;
        refused(answer, field, setting).await;
    }
    assert!(host.tools.effects().is_empty());
}

/// A chat of one message of about this number of bytes.
fn chat(owner: &str, id: impl ToString, bytes: usize) -> Chat {
    let mut chat = Chat::new(id.to_string(), Principal::new(owner));
    let text = json!({"type": "text", "text": "x".repeat(bytes)});
    let message = json!({"id": "m", "role": "user", "parts": [text]});
    chat.messages.push(UiMessage::parse(&message.to_string()).unwrap());
    chat
}

async fn is_stored(store: &InMemoryChatStore, owner: &str, id: impl ToString) -> bool {
    let id = id.to_string().into();
    store.load(&Principal::new(owner), &id).await.unwrap().is_some()
}

#[tokio::test]
async fn ten_thousand_chats_of_a_user_evict_own_chats_only_and_those_with_questions_last() {
    let log = CapturedLog::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let _subscription = subscribe(subscriber);
    let store = InMemoryChatStore::new();
    for number in 0..100 {
        let _ = store.save(SaveChat::new(&chat("bob", number, 1))).await.unwrap();
    }
    let mut asking = chat("alice", "asking", 1);
    let call = PendingToolCall::client_executed("call", "tool", Json::null());
    asking.client_executed.push(call);
    assert!(asking.has_open_questions());
    let _ = store.save(SaveChat::new(&asking)).await.unwrap();
    for number in 0..10_001 {
        let chat = chat("alice", number, 1);
        let save = SaveChat::new(&chat).with_max_user_chats(Some(4_096));
        assert!(matches!(store.save(save).await.unwrap(), SaveResult::Saved(_)));
    }
    for number in 0..100 {
        assert!(is_stored(&store, "bob", number).await, "bob's chat {number}");
    }
    assert!(is_stored(&store, "alice", "asking").await);
    assert!(!is_stored(&store, "alice", 5_905).await);
    assert!(is_stored(&store, "alice", 5_906).await, "4 095 of these chats are kept");
    assert!(is_stored(&store, "alice", 10_000).await);
    let evicted = log.text().matches("a chat was evicted").count();
    assert_eq!(evicted, 10_002 - 4_096);
    assert!(log.text().contains("ChatLimits::with_max_user_chats limit=4096"), "{}", log.text());
}

#[tokio::test]
async fn chats_with_open_questions_are_evicted_too_if_the_user_has_no_others() {
    let store = InMemoryChatStore::new();
    for number in 0..5 {
        let asking = asking("alice", number, 1);
        let save = SaveChat::new(&asking).with_max_user_chats(Some(3));
        let _ = store.save(save).await.unwrap();
    }
    let plain = chat("alice", "plain", 1);
    let _ = store.save(SaveChat::new(&plain).with_max_user_chats(Some(3))).await.unwrap();
    for (id, is_kept) in [("0", false), ("1", false), ("2", false), ("3", true), ("4", true)] {
        assert_eq!(is_stored(&store, "alice", id).await, is_kept, "{id}");
    }
    assert!(is_stored(&store, "alice", "plain").await, "a chat is not evicted when it is saved");
}

#[tokio::test]
async fn the_bytes_of_a_user_and_of_the_store_are_bounded() {
    let store = InMemoryChatStore::new().with_max_user_bytes(40_000).with_max_store_bytes(60_000);
    for number in 0..3 {
        let _ = store.save(SaveChat::new(&chat("alice", number, 10_000))).await.unwrap();
    }
    let _ = store.save(SaveChat::new(&chat("bob", 0, 5_000))).await.unwrap();
    // Alice has too many bytes: one of hers goes.
    let _ = store.save(SaveChat::new(&chat("alice", 3, 10_000))).await.unwrap();
    assert!(!is_stored(&store, "alice", 0).await && is_stored(&store, "alice", 1).await);
    // The store has too many: of the user who saves, and else of the user who has the most.
    let _ = store.save(SaveChat::new(&chat("bob", 1, 20_000))).await.unwrap();
    assert!(!is_stored(&store, "bob", 0).await && is_stored(&store, "bob", 1).await);
    assert!(is_stored(&store, "alice", 1).await);
    let _ = store.save(SaveChat::new(&chat("carol", 0, 10_000))).await.unwrap();
    assert!(!is_stored(&store, "alice", 1).await && is_stored(&store, "alice", 2).await);
    assert!(is_stored(&store, "bob", 1).await && is_stored(&store, "carol", 0).await);
    // A chat that grows is counted once.
    let (carol, id) = (Principal::new("carol"), "0".into());
    for _ in 0..20 {
        let stored = store.load(&carol, &id).await.unwrap().unwrap();
        let save = SaveChat::replacing(&stored, &stored.chat);
        assert_ne!(store.save(save).await.unwrap(), SaveResult::Conflict);
    }
    assert!(is_stored(&store, "alice", 2).await && is_stored(&store, "bob", 1).await);
}

#[tokio::test]
async fn too_many_pending_approvals_of_a_chat_or_a_user_end_the_call_with_an_error() {
    let limits = ChatLimits::default();
    for (limits, error) in [
        (
            limits.clone().with_max_chat_approvals(1),
            "1 approval requests are pending; `ChatLimits::with_max_chat_approvals` allows more",
        ),
        (
            limits.with_max_user_approvals(1),
            "1 approval requests are pending; `ChatLimits::with_max_user_approvals` allows more",
        ),
    ] {
        let host = Host::new().with_limits(limits);
        let mut alice = Client::new("alice", "chat");
        let answer = alice.say(&host, "mixed").await;
        assert_eq!(answer.of_type("tool-approval-request").len(), 1, "{}", answer.text);
        let errors = answer.of_type("tool-input-error");
        assert_eq!(errors.len(), 1, "{}", answer.text);
        assert_eq!(errors[0]["errorText"], error);
        // The limit of one user does not affect another one, and an answered request is free again.
        let other = Client::new("bob", "chat").say(&host, "delete notes.txt").await;
        assert_eq!(other.of_type("tool-approval-request").len(), 1);
        alice.answer(&host, false).await;
        let again = alice.say(&host, "delete notes.txt").await;
        assert_eq!(again.of_type("tool-approval-request").len(), 1, "{}", again.text);
        assert_eq!(host.pending("alice").await.len(), 1);
    }
}

#[tokio::test]
async fn an_expired_approval_request_does_not_count() {
    let host = Host::new().with_limits(ChatLimits::default().with_max_user_approvals(1));
    let mut alice = Client::new("alice", "chat");
    alice.say(&host, "delete notes.txt").await;
    let mut second = Client::new("alice", "second");
    let refused = second.say(&host, "delete draft.md").await;
    assert!(refused.of_type("tool-approval-request").is_empty(), "{}", refused.text);
    host.wait(std::time::Duration::from_secs(2 * 60 * 60));
    let asked = Client::new("alice", "third").say(&host, "delete draft.md").await;
    assert_eq!(asked.of_type("tool-approval-request").len(), 1, "{}", asked.text);
}

#[tokio::test]
async fn an_output_of_the_client_beyond_the_bytes_of_a_chat_is_refused_with_the_setting() {
    let host = Host::new().with_limits(ChatLimits::default().with_max_chat_bytes(5_000));
    let mut alice = Client::new("alice", "chat");
    alice.say(&host, "location").await;
    let stored = host.get("alice", "/api/chat/chat").await.text;
    let call = alice.last()["parts"].as_array().unwrap();
    let place = call.iter().position(|part| part["toolCallId"].is_string()).unwrap();
    let call_id = call[place]["toolCallId"].clone();
    let answers = async |bytes: usize| {
        let output = json!({"toolCallId": call_id, "output": "x".repeat(bytes)});
        let body = json!({"toolOutputs": [output]}).to_string();
        host.send("alice", Method::POST, "/api/chat/chat/answers", body).await
    };
    let posted = async |bytes: usize| {
        let mut client = alice.clone();
        let parts = client.messages.last_mut().unwrap()["parts"].as_array_mut().unwrap();
        parts[place]["state"] = "output-available".into();
        parts[place]["output"] = "x".repeat(bytes).into();
        host.chat("alice", client.body().to_string()).await
    };
    let full = "the chat is full: more than 5000 bytes; `ChatLimits::with_max_chat_bytes` allows \
                more";
    for refused in [answers(10_000).await, posted(10_000).await] {
        assert_eq!((refused.status.as_u16(), &*refused.text), (413, full));
    }
    assert_eq!(host.get("alice", "/api/chat/chat").await.text, stored);
    assert_eq!(answers(3_000).await.status, StatusCode::OK);
    assert!(host.get("alice", "/api/chat/chat").await.text.len() > 3_000);
    // An output that is delivered again adds nothing.
    assert_eq!(answers(3_000).await.status, StatusCode::OK);
    assert_eq!(posted(10_000).await.status, StatusCode::OK);
    assert!(host.get("alice", "/api/chat/chat").await.text.len() < 5_000);
}

#[tokio::test]
async fn the_outputs_of_many_turns_do_not_fill_a_chat_beyond_its_limit() {
    let host = Host::new().with_limits(ChatLimits::default().with_max_chat_bytes(20_000));
    let mut refused = 0;
    for number in 0..20 {
        let text = post_text(&host, "alice", number, "location").await;
        if text.status == 413 {
            refused += 1;
            continue;
        }
        let call = &text.of_type("tool-input-available")[0]["toolCallId"];
        let output = json!({"toolCallId": call, "output": "x".repeat(3_000)});
        let body = json!({"toolOutputs": [output]}).to_string();
        let answer = host.send("alice", Method::POST, "/api/chat/chat/answers", body).await;
        refused += usize::from(answer.status == 413);
    }
    assert!(refused > 10, "{refused}");
    let chat = host.chats.chat(&Principal::new("alice"), &"chat".into()).await.unwrap();
    assert!((15_000..22_000).contains(&chat.bytes()), "{}", chat.bytes());
}

#[tokio::test]
async fn a_chat_with_more_bytes_than_its_user_may_have_is_not_saved_and_evicts_no_other() {
    let store = InMemoryChatStore::new().with_max_user_bytes(20_000).with_max_store_bytes(40_000);
    for number in 0..3 {
        let _ = store
            .save(SaveChat::new(&chat(&format!("user {number}"), "chat", 8_000)))
            .await
            .unwrap();
    }
    let _ = store.save(SaveChat::new(&chat("alice", "chat", 5_000))).await.unwrap();
    let alice = Principal::new("alice");
    let stored = store.load(&alice, &"chat".into()).await.unwrap().unwrap();
    let grown = chat("alice", "chat", 25_000);
    let error = store.save(SaveChat::replacing(&stored, &grown)).await.unwrap_err();
    let error = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        error.ends_with("is larger than `InMemoryChatStore::with_max_user_bytes` allows: 20000")
    );
    for number in 0..3 {
        assert!(is_stored(&store, &format!("user {number}"), "chat").await, "{number}");
    }
    let kept = store.load(&alice, &"chat".into()).await.unwrap().unwrap();
    assert_eq!(kept.chat, stored.chat);
}

/// A chat that waits for the output of a client.
fn asking(owner: &str, id: impl ToString, bytes: usize) -> Chat {
    let mut asking = chat(owner, id, bytes);
    let call = PendingToolCall::client_executed("call", "tool", Json::null());
    asking.client_executed.push(call);
    asking
}

#[tokio::test]
async fn a_full_store_evicts_of_the_user_with_the_most_chats_or_bytes_and_questions_last() {
    for (store, evicted) in [
        (InMemoryChatStore::new().with_max_store_chats(4), "many"),
        (InMemoryChatStore::new().with_max_store_bytes(30_000), "large"),
    ] {
        let _ = store.save(SaveChat::new(&chat("many", 0, 10))).await.unwrap();
        let _ = store.save(SaveChat::new(&chat("many", 1, 10))).await.unwrap();
        let _ = store.save(SaveChat::new(&chat("large", 0, 15_000))).await.unwrap();
        let _ = store.save(SaveChat::new(&asking("asks", 0, 10))).await.unwrap();
        let _ = store.save(SaveChat::new(&chat("new", 0, 12_000))).await.unwrap();
        for (user, id) in [("many", 0), ("many", 1), ("large", 0), ("asks", 0), ("new", 0)] {
            let is_evicted = user == evicted && id == 0;
            assert_eq!(is_stored(&store, user, id).await, !is_evicted, "{user} {id}");
        }
    }
    // A chat without questions goes first, whoever has the most.
    let store = InMemoryChatStore::new().with_max_store_chats(4);
    for number in 0..3 {
        let _ = store.save(SaveChat::new(&asking("asks", number, 5_000))).await.unwrap();
    }
    let _ = store.save(SaveChat::new(&chat("plain", 0, 10))).await.unwrap();
    let _ = store.save(SaveChat::new(&chat("new", 0, 10))).await.unwrap();
    assert!(!is_stored(&store, "plain", 0).await);
    let _ = store.save(SaveChat::new(&asking("newer", 0, 10))).await.unwrap();
    assert!(!is_stored(&store, "new", 0).await);
    // If all others have questions, the oldest of the user with the most goes.
    let _ = store.save(SaveChat::new(&chat("newest", 0, 10))).await.unwrap();
    assert!(!is_stored(&store, "asks", 0).await && is_stored(&store, "asks", 1).await);
    assert!(is_stored(&store, "newer", 0).await);
}

#[tokio::test]
async fn a_chat_with_a_pending_approval_is_evicted_after_newer_ones_and_can_be_answered() {
    let host = Host::new().with_limits(ChatLimits::default().with_max_user_chats(2));
    let mut asking = Client::new("alice", "asking");
    asking.say(&host, "delete notes.txt").await;
    for number in 0..3 {
        Client::new("alice", &format!("plain {number}")).say(&host, "hello").await;
    }
    for (id, status) in
        [("asking", 200), ("plain%200", 404), ("plain%201", 404), ("plain%202", 200)]
    {
        assert_eq!(host.get("alice", &format!("/api/chat/{id}")).await.status, status, "{id}");
    }
    asking.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
    // Now it waits for nothing, and is evicted like any other.
    for number in 3..5 {
        Client::new("alice", &format!("plain {number}")).say(&host, "hello").await;
    }
    assert_eq!(host.get("alice", "/api/chat/asking").await.status, 404);
}

#[tokio::test]
async fn what_a_chat_remembers_of_removed_messages_counts_as_its_bytes() {
    let host = Host::new();
    let id = "m".repeat(120);
    for number in 0..300 {
        let text = json!({"type": "text", "text": format!("version {number}")});
        let message = json!({"id": id, "role": "user", "parts": [text]});
        let body = json!({"id": "chat", "messages": [message], "messageId": id});
        assert_eq!(host.chat("alice", body.to_string()).await.status, 200);
    }
    let chat = host.chats.chat(&Principal::new("alice"), &"chat".into()).await.unwrap();
    assert_eq!(chat.messages.len(), 2);
    let stored = serde_json::to_string(&chat).unwrap().len();
    assert!(stored > 80_000, "{stored}");
    assert!(chat.bytes() + 1_024 > stored, "{} of {stored}", chat.bytes());
    let read: Chat = serde_json::from_str(&serde_json::to_string(&chat).unwrap()).unwrap();
    assert_eq!((read.bytes(), &read), (chat.bytes(), &chat));
}
