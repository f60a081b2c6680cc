//! The pages of a conversation and of the pending approvals, over HTTP.

use std::collections::HashSet;

use axum::body::Body;
use axum::http::{Method, StatusCode};
use chat_test_support::test_server::{Client, Host};
use serde_json::{Value, json};
use ui_message_stream::Json;
use ui_message_stream::approval::Principal;

/// Reads a page of the chat. Returns its ids and its cursors.
async fn page(
    host: &Host,
    user: &str,
    query: &str,
) -> (Vec<String>, Option<String>, Option<String>) {
    let answer = host.get(user, &format!("/api/chat/chat{query}")).await.json();
    let ids = answer["messages"].as_array().unwrap().iter();
    let ids = ids.map(|message| message["id"].as_str().unwrap().to_owned()).collect();
    let cursor = |name: &str| answer[name].as_str().map(ToOwned::to_owned);
    (ids, cursor("before"), cursor("after"))
}

#[tokio::test]
async fn a_long_chat_is_read_from_the_newest_page_to_the_oldest() {
    let host = Host::new();
    let mut alice = Client::new("alice", "chat");
    for _ in 0..60 {
        alice.say(&host, "hello").await;
    }
    let chat = host.chats.chat(&Principal::new("alice"), &"chat".into()).await.unwrap();
    let stored: Vec<_> = chat.messages.iter().map(|message| message.id.to_string()).collect();
    assert_eq!(stored.len(), 120);
    let (newest, before, after) = page(&host, "alice", "").await;
    assert_eq!((&newest[..], after), (&stored[20..], None));
    // A turn in between moves no message to another page.
    alice.say(&host, "one more").await;
    let (oldest, none, after) = page(&host, "alice", &format!("?before={}", before.unwrap())).await;
    assert_eq!((&oldest[..], none), (&stored[..20], None));
    let (rest, _, _) = page(&host, "alice", &format!("?after={}", after.unwrap())).await;
    assert_eq!(rest[..], stored[20..]);

    let refused = host.get("alice", "/api/chat/chat?before=nothing").await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert_eq!(refused.text, "before: not a place in this chat");
    assert_eq!(host.get("bob", "/api/chat/chat?before=nothing").await.status, 404);
}

#[tokio::test]
async fn a_path_without_a_route_and_a_method_that_a_route_does_not_take_are_answered_in_words() {
    let host = Host::new();
    for path in ["/api/chat/chat/messages", "/api/approvals/one"] {
        let answer = host.get("alice", path).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(answer.text, "there is no such route");
    }
    let routes = [("/api/chat", "GET,HEAD,POST,DELETE"), ("/api/approvals", "GET,HEAD,POST")];
    for (path, allowed) in routes {
        let answer = host.send("alice", Method::PUT, path, Body::empty()).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED, "{path}");
        assert_eq!(
            (&*answer.text, &answer.headers["allow"]),
            ("this route does not take PUT", &allowed.parse().unwrap())
        );
    }
}

/// Requests approval of a deletion, in one of many chats. Returns the id of the approval.
async fn ask(host: &Host, number: usize) -> String {
    let chat = format!("chat {}", number / 50).into();
    let approvals = host.chats.approvals().for_chat(&Principal::new("alice"), &chat);
    let (call, input) = (format!("call {number}").into(), json!({"path": "notes.txt"}));
    let (message, input) = ("m".into(), Json::from_serialize(&input).unwrap());
    let issued = approvals.request_approval(&message, &call, "delete_file", &input, None).await;
    issued.unwrap().approval_id.to_string()
}

#[tokio::test]
async fn two_thousand_pending_approvals_are_listed_once_while_some_are_decided() {
    let host = Host::new();
    let mut pending = Vec::new();
    for number in 0..2_000 {
        pending.push(ask(&host, number).await);
    }
    let (mut listed, mut decided) = (Vec::new(), HashSet::new());
    let mut path = "/api/approvals".to_owned();
    for number in 0.. {
        let mut answer = host.get("alice", &path).await.json();
        let page: Vec<Value> = serde_json::from_value(answer["approvals"].take()).unwrap();
        assert!(if number == 0 { page.len() == 100 } else { page.len() <= 100 }, "{}", page.len());
        listed.extend(page.iter().map(|item| item["approvalId"].as_str().unwrap().to_owned()));
        let Some(after) = answer["after"].as_str() else { break };
        path = format!("/api/approvals?after={after}");
        // The last one of the page, and one of a later page.
        for id in [listed.last().unwrap(), &pending[1_000 + 41 * number % 1_000]] {
            host.decides("alice", id, false).await;
            decided.insert(id.clone());
        }
    }
    let distinct: HashSet<&String> = listed.iter().collect();
    assert_eq!(distinct.len(), listed.len(), "no approval is listed twice");
    let lost = pending.iter().filter(|id| !decided.contains(*id) && !distinct.contains(id));
    assert_eq!(lost.count(), 0, "no pending approval is lost");
    assert!(listed.len() > 1_900, "{}", listed.len());
    let wrong = host.get("alice", "/api/approvals?after=x").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    assert_eq!(wrong.text, "after: not a place in the list of approvals");
}

#[tokio::test]
async fn a_large_chat_is_written_in_pieces_that_are_its_json() {
    let host = Host::new();
    let mut alice = Client::new("alice", "chat");
    let text = "a line \"with\" characters that JSON escapes\n".repeat(10_000);
    alice.say(&host, &text).await;
    let chat = host.chats.chat(&Principal::new("alice"), &"chat".into()).await.unwrap();
    let listed = host.get("alice", "/api/chat").await.json();
    let version = &listed["chats"][0]["version"];
    let expected = json!({"messages": chat.messages, "version": version, "ended": "finished"});
    assert!(expected.to_string().len() > 500_000);
    assert_eq!(host.get("alice", "/api/chat/chat").await.json(), expected);
}
