//! The users of the demo: each browser by its cookie, and all other clients as one.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};
use test_support::external_processes::Demo;
use test_support::external_processes::round_robin::RoundRobin;

use crate::two_servers::Shared;

/// Sends a request with these lines in its head, and returns the head and the body of the response.
fn send(demo: &str, request: &str, head: &str, body: &str) -> (String, String) {
    let host = demo.strip_prefix("http://").unwrap().trim_end_matches('/');
    let mut connection = TcpStream::connect(host).unwrap();
    write!(
        connection,
        "{request} HTTP/1.1\r\nhost: {host}\r\n{head}content-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut response = String::new();
    connection.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Returns the cookie that a response sets, with its attributes.
fn set_cookie(head: &str) -> Option<&str> {
    head.lines().find_map(|line| line.strip_prefix("set-cookie: "))
}

/// Opens the page as a new browser does, and returns the line of the head with its cookie.
pub(crate) fn new_browser(demo: &str) -> String {
    let (head, page) = send(demo, "GET /", "sec-fetch-site: none\r\n", "");
    assert!(page.contains("<!doctype html>"), "{head}");
    assert!(head.contains("cache-control: no-store"), "{head}");
    let cookie = set_cookie(&head).unwrap();
    for attribute in ["HttpOnly", "SameSite=Strict", "Path=/"] {
        assert!(cookie.split("; ").any(|one| one == attribute), "{cookie}");
    }
    format!("cookie: {}\r\n", cookie.split(';').next().unwrap())
}

/// Asks for a deletion in this chat.
fn ask(demo: &str, cookie: &str, chat: &str) -> String {
    let parts = json!([{"type": "text", "text": "delete notes.txt"}]);
    let body = json!({"id": chat, "messages": [{"id": "u", "role": "user", "parts": parts}]});
    let (head, body) = send(demo, "POST /api/chat", cookie, &body.to_string());
    assert!(body.contains("tool-approval-request"), "{head}\n{body}");
    assert_eq!(set_cookie(&head), None);
    body
}

/// Returns the chats in which an approval waits.
fn waiting(demo: &str, cookie: &str) -> Vec<String> {
    let (head, body) = send(demo, "GET /api/approvals", cookie, "");
    assert_eq!(set_cookie(&head), None);
    let list: Value = serde_json::from_str(&body).unwrap();
    let chats = list["approvals"].as_array().unwrap().iter().map(|one| one["chatId"].as_str());
    chats.map(|chat| chat.unwrap().to_owned()).collect()
}

#[test]
fn each_browser_is_a_user_and_all_other_clients_are_one() {
    let demo = Demo::start();
    let first = new_browser(&demo.url);
    let second = new_browser(&demo.url);
    assert_ne!(first, second);
    ask(&demo.url, &first, "of the first");
    ask(&demo.url, &second, "of the second");
    ask(&demo.url, "", "of others");
    assert_eq!(waiting(&demo.url, &first), ["of the first"]);
    assert_eq!(waiting(&demo.url, &second), ["of the second"]);
    // A cookie that the demo did not sign is none.
    let forged = first.replace("\r\n", "x\r\n");
    for other in ["", &forged, "cookie: demo-user=1\r\n"] {
        assert_eq!(waiting(&demo.url, other), ["of others"]);
    }
    for stranger in [second.as_str(), ""] {
        let (head, _) = send(&demo.url, "GET /api/chat/of%20the%20first", stranger, "");
        assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    }
    // A browser keeps its cookie.
    let (head, _) = send(&demo.url, "GET /", &first, "");
    assert_eq!(set_cookie(&head), None);
}

#[test]
fn a_browser_is_one_user_of_two_servers_behind_a_proxy_and_keeps_one_cookie() {
    let shared = Shared::sqlite().unwrap();
    let first = shared.start_on("0");
    let second = shared.start_on("0");
    let proxy = RoundRobin::start(&[&first.url, &second.url]);
    let browser = new_browser(&proxy.url);
    // Each request reaches the next server.
    for _ in 0..2 {
        let (head, _) = send(&proxy.url, "GET /", &browser, "");
        assert_eq!(set_cookie(&head), None);
    }
    ask(&proxy.url, &browser, "chat");
    for _ in 0..2 {
        assert_eq!(waiting(&proxy.url, &browser), ["chat"]);
    }
    // A browser sends its cookies to all ports of a host.
    let (head, _) = send(&first.url, "GET /", &browser, "");
    assert!(set_cookie(&head).is_some(), "the server itself is another address");
}

#[test]
fn a_link_on_another_site_replaces_no_cookie() {
    let demo = Demo::start();
    // The browser withholds its cookies from this request, but takes those of the response.
    let link =
        "sec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\nsec-fetch-dest: document\r\n";
    let (head, page) = send(&demo.url, "GET /", link, "");
    assert!(page.contains("<!doctype html>"), "{head}");
    assert_eq!(set_cookie(&head), None);
    assert!(head.contains("refresh: 0; url=/?opened-again"), "{head}");
    // The chat that the link names stays in the address, and nothing else does.
    for (query, opened) in [
        ("chat=a-B_1&x=y", "chat=a-B_1&opened-again"),
        ("chat=%2F%2Fother.test", "opened-again"),
        ("chat=a;url=//other.test", "opened-again"),
    ] {
        let (head, _) = send(&demo.url, &format!("GET /?{query}"), link, "");
        assert!(head.contains(&format!("refresh: 0; url=/?{opened}\r\n")), "{head}");
    }
    let again = send(&demo.url, "GET /?chat=a&opened-again", link, "").0;
    assert!(!again.contains("refresh"), "{again}");
    // This is not repeated for ever.
    let (head, _) = send(&demo.url, "GET /?opened-again", link, "");
    assert!(set_cookie(&head).is_none() && !head.contains("refresh"), "{head}");
    let (head, _) = send(&demo.url, "GET /?opened-again", "sec-fetch-site: same-origin\r\n", "");
    assert!(set_cookie(&head).is_some(), "{head}");
}
