//! Every chat and approval route, requested as a hostile page makes a browser request it: from
//! another origin, and by a name that resolves to this machine (CSRF, DNS rebinding). The routes
//! have no additional policy layer: the default policy guards each of them.

use axum::http::{Method, StatusCode};
use chat_test_support::answers::send;
use chat_test_support::test_server::{Host, PRINCIPAL_HEADER};
use serde_json::json;
use test_support::responses::text_of;
use test_support::thread_subscriber::captured_from;
use tracing::Level;

#[tokio::test]
async fn the_reason_of_a_rejected_request_is_logged_at_debug() {
    let (log, _guard) = captured_from(Level::DEBUG);
    let host = Host::new();
    for (user, name, body) in [
        (Some("alice"), "127.0.0.1", r#"{"id":"c","messages":7}"#),
        (None, "127.0.0.1", "{}"),
        (Some("alice"), "evil.example", "{}"),
    ] {
        let mut headers = vec![("host", name)];
        headers.extend(user.map(|user| (PRINCIPAL_HEADER, user)));
        send(&host.routes, Method::POST, "/api/chat", &headers, body).await;
    }
    let text = log.text();
    let lines: Vec<_> = text.lines().filter(|line| line.contains("is rejected")).collect();
    let expected =
        [("status=400", "messages"), ("status=401", "signed in"), ("status=403", "host")];
    assert_eq!(lines.len(), expected.len(), "{text}");
    for (line, (status, reason)) in lines.into_iter().zip(expected) {
        assert!(line.contains("DEBUG") && line.contains(status) && line.contains(reason), "{line}");
    }
}

#[tokio::test]
async fn every_route_rejects_a_hostile_page() {
    let (host, mut browser) = Host::with_alice("delete notes.txt").await;
    let answered = browser.answered(true).to_string();
    let id = &browser.approval_ids()[0];
    let decision = json!({"decisions": [{"approvalId": id, "approved": true}]}).to_string();
    let routes = [
        ("POST", "/api/chat", answered.as_str()),
        ("POST", "/api/chat/chat/answers", decision.as_str()),
        ("GET", "/api/chat/chat", ""),
        ("GET", "/api/chat/chat/stream", ""),
        ("DELETE", "/api/chat/chat/stream", ""),
        ("GET", "/api/chat", ""),
        ("DELETE", "/api/chat/chat", ""),
        ("GET", "/api/approvals", ""),
        ("POST", "/api/approvals", decision.as_str()),
    ];
    let pages = [
        ("evil.example", "http://evil.example"),
        ("127.0.0.1.evil.example:3000", "http://127.0.0.1.evil.example:3000"),
        ("127.0.0.1:3000", "https://evil.example"),
        ("127.0.0.1:3000", "null"),
    ];
    for (method, path, body) in routes {
        for (name, origin) in pages {
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            let headers = [("host", name), ("origin", origin), (PRINCIPAL_HEADER, "alice")];
            let response =
                send(&host.routes, method.clone(), path, &headers, body.to_owned()).await;
            assert_eq!(response.status(), StatusCode::FORBIDDEN, "{method} {path} {name} {origin}");
            assert!(!response.headers().contains_key("access-control-allow-origin"));
            let text = text_of(response.into_body()).await;
            assert!(!text.contains("notes.txt") && !text.contains("a1."), "{text}");
        }
    }
    assert!(host.tools.effects().is_empty());
    assert_eq!(host.model.prompts().len(), 1);
    // The user's own page may still send requests.
    browser.answer(&host, true).await;
    assert_eq!(host.tools.effects().len(), 1);
}
