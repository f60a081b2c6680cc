//! The same route for those who do not read a stream: the message, why it ends there, and what waits.

#![cfg(all(feature = "axum", feature = "approvals"))]

mod host;

use axum::body::Body;
use axum::http::{Request, header};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

use host::{Host, PERSON};

/// Posts, and asks for an answer of this type.
async fn post(host: &Host, accept: &str, body: &Value) -> (String, String) {
    let request = Request::post("/api/chat")
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, accept)
        .header(PERSON, "alice")
        .body(Body::from(body.to_string()))
        .unwrap();
    let response = host.routes.clone().oneshot(request).await.unwrap();
    let media_type = response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (media_type, String::from_utf8(body.to_vec()).unwrap())
}

async fn ask(host: &Host, messages: Value) -> Value {
    let body = json!({"id": "chat", "messages": messages});
    let (media_type, text) = post(host, "application/json", &body).await;
    assert_eq!(media_type, "application/json");
    serde_json::from_str(&text).unwrap()
}

fn user(text: &str) -> Value {
    json!([{"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}])
}

#[tokio::test]
async fn a_message_that_is_complete() {
    let answer = ask(&Host::new(), user("hello")).await;
    assert_eq!(answer["stopReason"], "stop");
    assert_eq!(answer["approvals"], json!([]));
    assert_eq!(answer["message"]["role"], "assistant");
    assert!(answer["message"]["parts"].to_string().contains("You said: hello"));
}

#[tokio::test]
async fn what_waits_for_a_person_is_decided_by_the_other_route_and_goes_on() {
    let host = Host::new();
    let asked = ask(&host, user("delete notes.txt")).await;
    assert_eq!(asked["stopReason"], "requires_approval");
    let approval = &asked["approvals"][0];
    assert_eq!(approval["toolName"], "delete_file");
    assert_eq!(approval["input"], json!({"path": "notes.txt"}));
    let decision = json!({"approvalId": approval["approvalId"], "approved": true});
    let decided = host.decide("alice", &json!({"decisions": [decision]})).await.json();
    assert_eq!(decided["decisions"][0]["counts"], true);

    // The same answer within the message: the outcome is there, and nothing is decided twice.
    let mut message = asked["message"].clone();
    let parts = message["parts"].as_array_mut().unwrap();
    let call = parts.iter_mut().find(|part| part["type"] == "tool-delete_file").unwrap();
    call["state"] = json!("approval-responded");
    call["approval"]["approved"] = json!(true);
    let mut messages = user("delete notes.txt");
    messages.as_array_mut().unwrap().push(message);
    let answer = ask(&host, messages).await;
    assert_eq!(answer["stopReason"], "stop");
    assert!(answer["message"]["parts"].to_string().contains("output-available"), "{answer}");
    assert_eq!(host.tools.effects().len(), 1);
}

#[tokio::test]
async fn what_waits_for_the_client() {
    let answer = ask(&Host::new(), user("location")).await;
    assert_eq!(answer["stopReason"], "requires_client_tool");
}

#[tokio::test]
async fn a_run_that_failed_says_so_and_no_more() {
    let host = Host::new();
    host.model.set_failure("password=hunter2");
    let answer = ask(&host, user("hello")).await;
    assert_eq!(answer["stopReason"], "error");
    assert!(!answer.to_string().contains("hunter2"));
}

#[tokio::test]
async fn who_reads_streams_gets_one() {
    for accept in ["*/*", "text/event-stream", "application/json, text/event-stream"] {
        let body = json!({"id": "chat", "messages": user("hello")});
        let (media_type, text) = post(&Host::new(), accept, &body).await;
        assert_eq!(media_type, "text/event-stream", "{accept}");
        assert!(text.ends_with("data: [DONE]\n\n"));
    }
}
