//! What a chat knows about its history: whether it holds everything that happened.

use serde_json::{Value, json};
use test_support::requests::{ada, request, user_message};
use ui_message_stream::UiMessage;
use ui_message_stream_chat::{
    Chat, HistoryCompleteness, HistoryImport, PostedHistory, RequestEffect,
};

use HistoryCompleteness::{Complete, Imported, Truncated};

fn user(id: &str) -> Value {
    user_message(id, "Go")
}

fn text(id: &str) -> Value {
    json!({"id": id, "role": "assistant", "parts": [{"type": "text", "text": "Hello"}]})
}

fn call(id: &str) -> Value {
    json!({"id": id, "role": "assistant", "parts": [
        {"type": "tool-fetch", "toolCallId": "c1", "state": "output-available", "input": {}, "output": 1},
    ]})
}

fn edit_of(id: &str) -> Value {
    let message = user_message(id, "Stop");
    json!({"id": "chat", "messages": [message], "messageId": id})
}

/// Applies a request whose response is a new message.
fn apply(chat: &mut Chat, body: &Value) {
    let effect = chat.apply_request(&request(body), PostedHistory::Keep);
    assert_eq!(effect, RequestEffect::NewResponse, "{body}");
}

fn message(message: &Value) -> UiMessage {
    UiMessage::parse(&message.to_string()).unwrap()
}

fn imported(messages: &Value) -> Chat {
    let request = request(&json!({"id": "chat", "messages": messages}));
    Chat::from_client_history(&request, ada(), HistoryImport::Texts)
}

#[test]
fn a_chat_from_a_clients_history_is_imported_unless_it_begins_with_the_request() {
    for (messages, history) in [
        (json!([user("m1")]), Complete),
        (json!([user("m1"), text("m2"), user("m3")]), Imported),
        // Nothing of this message is imported, and that is what the chat must know.
        (json!([call("m2"), user("m3")]), Imported),
        (json!([user("m1"), call("m2")]), Imported),
    ] {
        assert_eq!(imported(&messages).history, history, "{messages}");
    }
}

#[test]
fn a_chat_is_truncated_if_an_edit_or_a_regeneration_removes_tool_calls() {
    let edit = edit_of("m3");
    let regenerate =
        json!({"id": "chat", "trigger": "regenerate-message", "messageId": "m4", "messages": []});
    for change in [edit, regenerate] {
        for (messages, history) in [
            ([user("m1"), text("m2"), user("m3"), call("m4")], Truncated),
            ([user("m1"), text("m2"), user("m3"), text("m4")], Complete),
            // The call is before the removed messages.
            ([user("m1"), call("m2"), user("m3"), text("m4")], Complete),
        ] {
            let mut chat = Chat::new("chat", ada());
            chat.messages = messages.iter().map(message).collect();
            apply(&mut chat, &change);
            assert!(chat.message(&"m4".into()).is_none());
            assert_eq!(chat.history, history, "{change} {messages:?}");
        }
    }
}

#[test]
fn a_chat_stays_imported_if_it_is_truncated() {
    let mut chat = imported(&json!([user("m1"), text("m2"), user("m3")]));
    chat.messages.push(message(&call("m4")));
    apply(&mut chat, &edit_of("m1"));
    assert_eq!(chat.history, Imported);
}

#[test]
fn the_completeness_is_stored() {
    let mut chat = Chat::new("chat", ada());
    for (history, name) in
        [(Complete, "complete"), (Imported, "imported"), (Truncated, "truncated")]
    {
        chat.history = history;
        let stored = serde_json::to_value(&chat).unwrap();
        assert_eq!(stored["history"], name);
        assert_eq!(serde_json::from_value::<Chat>(stored).unwrap(), chat);
    }
}
