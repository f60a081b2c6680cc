//! What a chat, a user and a store may hold, and what happens at each limit.

use axum::http::{Method, StatusCode};
use chat_test_support::test_server::{Answer, Client, Host, Tools};
use futures::stream;
use serde_json::json;
use test_support::requests::user_message;
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::{ApprovalLimits, Approvals, Principal};
use ui_message_stream::chunk::{ChunkReader, ReceivedChunk};
use ui_message_stream_chat::Chat;
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::{ChatServer, Turn};

/// A POST of one new message, which repeats no history.
async fn post_text(host: &Host, user: &str, number: usize, text: &str) -> Answer {
    let message = user_message(format!("u{number}"), text);
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
    let mut alice = host.alice_says("delete notes.txt").await;
    assert_eq!(post_text(&host, "alice", 9, "hello").await.status, 413);
    alice.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
}

#[tokio::test]
async fn a_chat_id_that_browsers_remove_from_a_path_is_refused() {
    let host = Host::new();
    let message = user_message("u", "hello");
    for id in ["", ".", ".."] {
        let posted = host.chat("alice", json!({"id": id, "message": message}).to_string()).await;
        let expected = "id: expected another id than an empty one, `.` or `..`";
        assert_eq!((posted.status.as_u16(), &*posted.text), (400, expected), "{id:?}");
        let denied = json!({"chatId": id, "approved": false}).to_string();
        let denied = host.send("alice", Method::POST, "/api/approvals", denied).await;
        assert_eq!(denied.status.as_u16(), 400, "{id:?}");
        assert!(denied.text.starts_with("chatId: expected another id"), "{}", denied.text);
    }
    let taken = host.chat("alice", json!({"id": "...", "message": message}).to_string()).await;
    assert!(taken.status.is_success());
}

#[tokio::test]
async fn half_a_surrogate_pair_in_a_reason_is_replaced() {
    let (host, _) = Host::with_alice("delete notes.txt").await;
    let denial = r#"{"chatId":"chat","approved":false,"reason":"no\ud800!"}"#.to_owned();
    let denied = host.send("alice", Method::POST, "/api/approvals", denial).await;
    assert_eq!(denied.status, StatusCode::OK, "{}", denied.text);
    let stored = host.get("alice", "/api/chat/chat").await.text;
    assert!(stored.contains("no\u{FFFD}!"), "{stored}");
}

/// A back end in JavaScript or Java may split a text between the halves of a character.
#[tokio::test]
async fn a_character_that_another_server_has_split_is_stored_whole() {
    let agent = |_: Turn| {
        let mut reader = ChunkReader::default();
        let chunks = [
            r#"{"type":"text-start","id":"0"}"#,
            r#"{"type":"text-delta","id":"0","delta":"Hi \ud83d"}"#,
            r#"{"type":"text-delta","id":"0","delta":"\ude00!"}"#,
            r#"{"type":"text-end","id":"0"}"#,
        ];
        stream::iter(chunks.map(|chunk| match reader.read(chunk).unwrap() {
            ReceivedChunk::Known { chunk, .. } => AgentEvent::Chunk(Box::new(chunk.into_owned())),
            other => panic!("{other:?}"),
        }))
    };
    let chats = ChatServer::new(agent, Approvals::new(Tools::default()));
    let host = Host::new().with_chats(|_| chats);
    let answer = post_text(&host, "alice", 0, "Hi").await;
    let stored = host.get("alice", "/api/chat/chat").await.text;
    assert!(stored.contains("Hi 😀!"), "{stored}");
    assert!(!answer.text.contains('\u{FFFD}'), "{}", answer.text);
}

#[tokio::test]
async fn a_long_id_or_reason_is_refused_with_the_name_of_its_field() {
    let (host, alice) = Host::with_alice("delete notes.txt").await;
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
        // Mallory's chat does not hold the call.
        assert_eq!(host.chat("mallory", body.to_string()).await.status, 409, "{pointer}");
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

#[tokio::test]
async fn too_many_pending_approvals_of_a_chat_or_a_user_end_the_call_with_an_error() {
    let limits = ApprovalLimits::default();
    for (limits, error) in [
        (
            limits.clone().with_max_chat_approvals(1),
            "1 approval requests are pending; `ApprovalLimits::with_max_chat_approvals` allows more",
        ),
        (
            limits.with_max_user_approvals(1),
            "1 approval requests are pending; `ApprovalLimits::with_max_user_approvals` allows more",
        ),
    ] {
        let host = Host::with(Vec::new(), |approvals| approvals.with_limits(limits));
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
async fn an_output_of_the_client_beyond_the_bytes_of_a_chat_is_refused_with_the_setting() {
    let host = Host::new().with_limits(ChatLimits::default().with_max_chat_bytes(5_000));
    let alice = host.alice_says("location").await;
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
        let message = user_message(&id, &format!("version {number}"));
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
