//! Requests of the user `ada`.

use serde::Serialize;
use serde_json::{Value, json};
use ui_message_stream::ChatRequest;
use ui_message_stream::approval::Principal;
use ui_message_stream::request::Limits;

/// Returns the user of most tests.
pub fn ada() -> Principal {
    Principal::new("ada")
}

/// Returns a message of a user with one text part.
pub fn user_message(id: impl Serialize, text: &str) -> Value {
    json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]})
}

/// Parses the body of a request with the default limits.
///
/// # Panics
/// If the body is no request.
#[track_caller]
pub fn request(body: &Value) -> ChatRequest {
    ChatRequest::parse(body.to_string().as_bytes(), &Limits::default())
        .unwrap_or_else(|error| panic!("{error}: {body}"))
}

/// Returns a request that sends these messages, as a page does that holds all of them.
#[track_caller]
pub fn send(chat: &str, messages: &Value) -> ChatRequest {
    request(&json!({"id": chat, "messages": messages}))
}

/// Returns a request that sends only a new message of the user, without the messages before it.
#[track_caller]
pub fn say(chat: &str, id: &str, text: &str) -> ChatRequest {
    request(&json!({"id": chat, "message": user_message(id, text)}))
}

/// Returns a request that replaces the message of the user with this id.
#[track_caller]
pub fn edit(chat: &str, id: &str, text: &str) -> ChatRequest {
    request(&json!({"id": chat, "messages": [user_message(id, text)], "messageId": id}))
}

/// Responds to the approval request of a tool part, as a page does.
pub fn respond(part: &mut Value, approved: bool) {
    part["state"] = "approval-responded".into();
    part["approval"]["approved"] = approved.into();
}

/// Responds to all open approval requests of a message, as a page does.
pub fn respond_to_all(message: &mut Value, approved: bool) {
    let parts = message["parts"].as_array_mut().unwrap().iter_mut();
    parts
        .filter(|part| part["state"] == "approval-requested")
        .for_each(|part| respond(part, approved));
}

/// Returns the first part of a message that has this type.
///
/// # Panics
/// If the message has no such part.
#[track_caller]
pub fn part<'a>(message: &'a Value, kind: &str) -> &'a Value {
    let mut parts = message["parts"].as_array().unwrap().iter();
    parts.find(|part| part["type"] == kind).unwrap_or_else(|| panic!("no {kind}: {message}"))
}

/// As [`part`], to be changed.
#[track_caller]
pub fn part_mut<'a>(message: &'a mut Value, kind: &str) -> &'a mut Value {
    let mut parts = message["parts"].as_array_mut().unwrap().iter_mut();
    parts.find(|part| part["type"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

/// Returns the tool part of the call with this id.
///
/// # Panics
/// If the message has no such part.
pub fn call_mut<'a>(message: &'a mut Value, id: &str) -> &'a mut Value {
    let mut parts = message["parts"].as_array_mut().unwrap().iter_mut();
    parts.find(|part| part["toolCallId"] == id).unwrap()
}
