//! `GET /`: the list of a user's chats, page by page.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use chat_test_support::test_server::{Client, Host};
use serde_json::{Value, json};
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::store::{InMemoryLogStore, ListChats, LogStore};

/// Begins chats with these ids, each later than the one before.
async fn begin(host: &Host, user: &str, ids: &[String]) {
    for id in ids {
        Client::new(user, id).say(host, &format!("hello from {id}")).await;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
}

fn ids(page: &Value) -> Vec<String> {
    let chats = page["chats"].as_array().unwrap().iter();
    chats.map(|chat| chat["id"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn the_chats_of_a_user_are_listed_newest_first_with_title_and_time() {
    let host = Host::new();
    let mut first = Client::new("alice", "first");
    first.say(&host, "hello from first").await;
    tokio::time::sleep(Duration::from_millis(3)).await;
    begin(&host, "alice", &["second".into()]).await;
    begin(&host, "bob", &["his".into()]).await;
    let answer = host.get("alice", "/api/chat").await;
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.headers["cache-control"], "no-store");
    let page = answer.json();
    assert_eq!(ids(&page), ["second", "first"]);
    assert_eq!(page.get("after"), None);
    assert_eq!(page["chats"][0]["title"], "hello from second");
    assert!(page["chats"][0]["updatedAt"].as_u64() > page["chats"][1]["updatedAt"].as_u64());
    first.say(&host, "more").await;
    let page = host.get("alice", "/api/chat").await.json();
    assert_eq!(ids(&page), ["first", "second"]);
    assert_eq!(page["chats"][0]["title"], "hello from first");
    assert_eq!(host.get("carol", "/api/chat").await.json(), json!({"chats": []}));
}

#[tokio::test(start_paused = true)]
async fn pages_of_any_size_hold_each_chat_once() {
    let host = Host::new();
    let all: Vec<String> = (0..23).map(|number| format!("chat {number:02}/é?&")).collect();
    begin(&host, "alice", &all).await;
    let newest_first: Vec<String> = all.into_iter().rev().collect();
    let page = host.get("alice", "/api/chat").await.json();
    assert_eq!(ids(&page), newest_first[..20], "20 chats are the default");
    for limit in [1, 7, 20, 22, 23, 100] {
        let (mut read, mut path) = (Vec::new(), format!("/api/chat?limit={limit}"));
        loop {
            let page = host.get("alice", &path).await.json();
            assert!(ids(&page).len() <= limit);
            read.extend(ids(&page));
            let Some(next) = page["after"].as_str() else { break };
            path = format!("/api/chat?after={next}&limit={limit}");
        }
        assert_eq!(read, newest_first, "limit {limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_search_lists_the_chats_whose_title_contains_a_text() {
    let host = Host::new();
    for (id, text) in [("a", "Ärger & Co. = 100%"), ("b", "the co. of others"), ("c", "none")] {
        Client::new("alice", id).say(&host, text).await;
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    for (search, expected) in [
        ("CO.", &["b", "a"][..]),
        ("%26+Co", &["a"]),
        ("%C3%84rger%20%26", &["a"]),
        ("100%25", &["a"]),
        ("", &["c", "b", "a"]),
        ("missing", &[]),
    ] {
        let page = host.get("alice", &format!("/api/chat?search={search}")).await.json();
        assert_eq!(ids(&page), expected, "{search}");
    }
    let page = host.get("alice", "/api/chat?search=co.&limit=1").await.json();
    let next = format!("/api/chat?search=co.&limit=1&after={}", page["after"].as_str().unwrap());
    assert_eq!(
        (ids(&page), ids(&host.get("alice", &next).await.json())),
        (vec!["b".into()], vec!["a".into()])
    );
    let refused = host.get("alice", "/api/chat?search=%C3").await;
    let expected = (StatusCode::BAD_REQUEST, "search: expected a text in UTF-8");
    assert_eq!((refused.status, &*refused.text), expected);
}

#[tokio::test(start_paused = true)]
async fn an_invalid_limit_or_cursor_is_refused_with_its_name() {
    let host = Host::new();
    for limit in ["0", "101", "-1", "x", "", "1.5", "99999999999999999999999"] {
        let answer = host.get("alice", &format!("/api/chat?limit={limit}")).await;
        let expected = "limit: expected a whole number from 1 to 100";
        assert_eq!((answer.status, &*answer.text), (StatusCode::BAD_REQUEST, expected), "{limit}");
    }
    for cursor in ["", "1", "x-Y2hhdA", "1-!", "1-%00", "1-gA"] {
        let answer = host.get("alice", &format!("/api/chat?after={cursor}")).await;
        let expected = "after: not a place in the list of chats";
        assert_eq!((answer.status, &*answer.text), (StatusCode::BAD_REQUEST, expected), "{cursor}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_chat_is_neither_read_nor_listed_after_its_time_to_live() {
    let store = std::sync::Arc::new(InMemoryLogStore::with_test_clock(UnixMillis(1_000_000)));
    let limits = ChatLimits::default().with_chat_ttl(Duration::from_secs(60));
    let shared = store.clone();
    let host = Host::new().with_chats(|chats| chats.with_limits(limits).with_store(shared));
    let mut alice = host.alice_says("hello").await;
    store.set_test_time(UnixMillis(1_050_000));
    // Each turn begins the time again.
    alice.say(&host, "hello again").await;
    store.set_test_time(UnixMillis(1_109_999));
    assert_eq!(ids(&host.get("alice", "/api/chat").await.json()), ["chat"]);
    store.set_test_time(UnixMillis(1_110_000));
    assert_eq!(ids(&host.get("alice", "/api/chat").await.json()), Vec::<String>::new());
    assert_eq!(host.get("alice", "/api/chat/chat").await.status, StatusCode::NOT_FOUND);
    let list = ListChats { limit: 1, after: None, search: None };
    assert_eq!(store.list(&Principal::new("alice"), list).await.unwrap().chats, []);
}

#[tokio::test(start_paused = true)]
async fn a_chat_is_renamed_by_its_user_and_keeps_the_title() {
    let host = Host::new();
    begin(&host, "alice", &["one".into()]).await;
    let rename = async |user: &str, body: Value| {
        host.send(user, Method::PATCH, "/api/chat/one", body.to_string()).await
    };
    let title = async || host.get("alice", "/api/chat").await.json()["chats"][0]["title"].clone();
    let answer = rename("alice", json!({"title": "Invoices"})).await;
    assert_eq!((answer.status, &*answer.text), (StatusCode::NO_CONTENT, ""));
    assert_eq!(title().await, "Invoices");
    begin(&host, "alice", &["one".into()]).await;
    assert_eq!(title().await, "Invoices", "after another message");

    for (user, body, status) in [
        ("bob", json!({"title": "Mine"}), StatusCode::NOT_FOUND),
        ("alice", json!({"title": 7}), StatusCode::BAD_REQUEST),
        ("alice", json!({"name": "Mine"}), StatusCode::BAD_REQUEST),
        ("alice", json!({"title": "é".repeat(201)}), StatusCode::BAD_REQUEST),
    ] {
        let answer = rename(user, body).await;
        assert_eq!(answer.status, status, "{}", answer.text);
        assert_eq!(title().await, "Invoices");
    }
    let longest = "é".repeat(200);
    rename("alice", json!({"title": longest})).await;
    assert_eq!(title().await, longest);
}

#[tokio::test(start_paused = true)]
async fn a_user_deletes_all_chats_with_their_questions_and_no_chat_of_another_user() {
    let host = Host::new();
    let all: Vec<String> = (0..120).map(|number| format!("chat {number}")).collect();
    for id in &all {
        Client::new("alice", id).say(&host, "hello").await;
    }
    let mut asked = Client::new("alice", "asked");
    asked.say(&host, "delete notes.txt").await;
    Client::new("bob", "his").say(&host, "hello").await;
    assert_eq!(host.pending("alice").await.len(), 1);
    for _ in 0..2 {
        let answer = host.send("alice", Method::DELETE, "/api/chat", "").await;
        assert_eq!(answer.status, StatusCode::NO_CONTENT, "{}", answer.text);
        assert_eq!(host.get("alice", "/api/chat").await.json(), json!({"chats": []}));
    }
    assert!(host.pending("alice").await.is_empty());
    assert_eq!(ids(&host.get("bob", "/api/chat").await.json()), ["his"]);
    let body = asked.answered(true).to_string();
    assert_eq!(host.chat("alice", body).await.status, StatusCode::CONFLICT);
    assert!(host.tools.effects().is_empty());
}
