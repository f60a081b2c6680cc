//! Each rejected request is logged once, with its status and the place in the source that rejected it, and
//! without content.

use std::collections::BTreeMap;
use std::slice;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::{Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use chat_test_support::answers::server_of;
use chat_test_support::test_server::PRINCIPAL_HEADER;
use futures::stream;
use serde_json::{Value, json};
use test_support::requests::user_message;
use test_support::responses::text_of;
use test_support::thread_subscriber::captured_from;
use tower::ServiceExt;
use tracing::Level;
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::axum::{approval_routes, chat_routes};
use ui_message_stream_chat::{ChatLimits, Turn};

/// The text of each message. No line of the log has it.
const SECRET: &str = "a secret";

/// The text of a message to which the agent gives no response.
const SILENT: &str = "a secret without a response";

fn routes(limits: ChatLimits) -> Router {
    let agent = |turn: Turn| {
        let last = serde_json::to_string(&turn.chat.messages.last()).unwrap();
        let is_silent = last.contains(SILENT);
        stream::iter((!is_silent).then(|| AgentEvent::text("Hi")))
    };
    let chats = server_of(agent).with_limits(limits);
    let authenticate = async |mut request: Request, next: Next| {
        if let Some(user) = request.headers().get(PRINCIPAL_HEADER) {
            let user = Principal::new(user.to_str().unwrap());
            request.extensions_mut().insert(user);
        }
        next.run(request).await
    };
    let routes = chat_routes(chats.clone()).nest("/approvals", approval_routes(chats));
    routes.layer(from_fn(authenticate))
}

fn post(body: &Value) -> Request {
    post_to("/", body)
}

fn post_to(path: &str, body: &Value) -> Request {
    Request::post(path)
        .header(CONTENT_TYPE, "application/json")
        .header(PRINCIPAL_HEADER, "ada")
        .body(Body::from(body.to_string()))
        .unwrap()
}

/// A message of the assistant, in which the user has approved a call.
fn approved(id: &str) -> Value {
    let approval = json!({"id": "a1.unknown", "approved": true});
    let part = json!({
        "type": "tool-delete_file", "toolCallId": "c1", "state": "approval-responded",
        "input": {"path": SECRET}, "approval": approval,
    });
    json!({"id": id, "role": "assistant", "parts": [part]})
}

fn submit(messages: &[Value]) -> Value {
    json!({"id": "chat", "trigger": "submit-message", "messages": messages})
}

fn edit(message: Value) -> Value {
    let mut body = submit(&[message]);
    body["messageId"] = body["messages"][0]["id"].clone();
    body
}

fn regenerate(messages: &[Value], id: Option<&str>) -> Value {
    json!({"id": "chat", "trigger": "regenerate-message", "messages": messages, "messageId": id})
}

/// Sends a request that succeeds, and reads its response. Returns the id of the message in it.
async fn succeed(routes: &Router, body: &Value) -> String {
    let response = routes.clone().oneshot(post(body)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK, "{body}");
    let text = text_of(response.into_body()).await;
    let id = text.split(r#""messageId":""#).nth(1).unwrap();
    id.split('"').next().unwrap().to_owned()
}

/// Sends a request that is rejected. Returns the place that the only line of the log names.
async fn site_of(routes: &Router, request: Request, status: StatusCode) -> String {
    let (log, guard) = captured_from(Level::DEBUG);
    let response: Response = routes.clone().oneshot(request).await.unwrap();
    drop(guard);
    let text = log.text();
    assert_eq!(response.status(), status, "{text}");
    assert!(!text.contains(SECRET), "{text}");
    let lines: Vec<&str> =
        text.lines().filter(|line| line.contains("a request is rejected")).collect();
    let [line] = lines[..] else { panic!("{status}: {text}") };
    assert!(line.contains(" DEBUG ") && line.contains(" reason=\""), "{line}");
    assert!(line.contains(&format!(" status={} ", status.as_u16())), "{line}");
    let (_, site) = line.split_once(" site=").unwrap();
    assert!(site.contains(".rs:") && !site.contains(' '), "{line}");
    site.to_owned()
}

#[tokio::test]
async fn each_rejected_request_is_logged_once_with_its_status_and_its_site() {
    let limits = ChatLimits::default().with_max_chat_messages(2).with_max_user_readers(1);
    let routes = routes(limits);
    succeed(&routes, &submit(&[user_message("m1", SECRET)])).await;
    let get = |path: &str| {
        let request = Request::builder().method(Method::GET).uri(path);
        request.header(PRINCIPAL_HEADER, "ada").body(Body::empty()).unwrap()
    };
    let message = submit(&[user_message("m2", SECRET)]);
    let changed = |change: fn(&mut Request)| {
        let mut request = post(&message);
        change(&mut request);
        request
    };
    let origin = |request: &mut Request| {
        request.headers_mut().insert(ORIGIN, "https://other.example".parse().unwrap());
    };
    for (request, status) in [
        (post(&json!({"id": SECRET})), StatusCode::BAD_REQUEST),
        (post_to("/approvals", &json!({"approved": SECRET})), StatusCode::BAD_REQUEST),
        (changed(|it| _ = it.headers_mut().remove(PRINCIPAL_HEADER)), StatusCode::UNAUTHORIZED),
        (changed(origin), StatusCode::FORBIDDEN),
        (get("/nowhere"), StatusCode::NOT_FOUND),
        (post(&submit(&[user_message("m1", "changed")])), StatusCode::CONFLICT),
        (post(&message), StatusCode::PAYLOAD_TOO_LARGE),
        (
            changed(|it| _ = it.headers_mut().remove(CONTENT_TYPE)),
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
        ),
    ] {
        site_of(&routes, request, status).await;
    }
    let _reader = routes.clone().oneshot(get("/?events")).await.unwrap();
    site_of(&routes, post(&message), StatusCode::TOO_MANY_REQUESTS).await;
}

#[tokio::test]
async fn the_log_names_another_site_for_each_cause_of_409() {
    let routes = routes(ChatLimits::default());
    succeed(&routes, &submit(&[user_message("m1", SECRET)])).await;
    let removed = succeed(&routes, &submit(&[user_message("m2", SECRET)])).await;
    // Each edit of the first message removes what follows.
    for text in ["an older edit", "a newer edit"] {
        succeed(&routes, &edit(user_message("m1", text))).await;
    }
    let m1 = user_message("m1", "a newer edit");
    // The first message has no response when the third one is sent.
    succeed(&routes, &edit(user_message("m1", SILENT))).await;
    let silent = user_message("m1", SILENT);
    succeed(&routes, &regenerate(slice::from_ref(&silent), None)).await;
    let last = succeed(&routes, &submit(&[user_message("m3", SECRET)])).await;

    let mut elsewhere = submit(&[user_message("m1", SECRET), approved("a1")]);
    elsewhere["id"] = "elsewhere".into();
    let continued = json!({"id": removed, "role": "assistant", "parts": []});
    let mut sites = BTreeMap::new();
    for (name, body) in [
        ("a removed message is continued", submit(&[m1.clone(), continued])),
        ("a removed message is sent again", submit(&[user_message("m2", SECRET)])),
        ("a message without a response is sent again", submit(slice::from_ref(&silent))),
        ("a message has another text", submit(slice::from_ref(&m1))),
        ("an edit that was replaced is sent again", edit(user_message("m1", "an older edit"))),
        ("a message has another text in a regeneration", regenerate(&[m1], None)),
        ("a removed response is regenerated", regenerate(&[], Some(&removed))),
        ("the response to a removed message is regenerated", {
            regenerate(&[user_message("m2", SECRET)], None)
        }),
        ("a regeneration is sent again", regenerate(&[silent], None)),
        ("an unknown response is regenerated", regenerate(&[], Some("nowhere"))),
        ("calls of an unknown chat are answered", elsewhere),
        ("calls of an unknown message are answered", submit(&[approved("nowhere")])),
        ("calls that a message lacks are answered", submit(&[approved(&last)])),
    ] {
        let site = site_of(&routes, post(&body), StatusCode::CONFLICT).await;
        assert!(site.contains("crates/chat/src/"), "{name}: {site}");
        let other = sites.insert(site, name);
        assert_eq!(other, None, "{name}: {sites:#?}");
    }
}
