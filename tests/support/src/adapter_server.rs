//! Tests of a server that serves the chat of `examples/adapter.rs`, for any framework. Each takes the
//! path of the server's program.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::iter;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use serde_json::{Value, json};

use crate::external_processes::{Example, node_project, run_node};
use crate::patience;

/// Runs the real clients: they approve, deny, and answer with an output of their own.
pub fn every_client_approves_denies_and_answers(program: impl AsRef<OsStr>) {
    let Some(client) = node_project("tests/client") else { return };
    let program = program.as_ref();
    let servers: Vec<_> = (0..SERVERS).map(|_| Example::run(program, &[])).collect();
    let urls = servers.iter().map(|server| &*server.url);
    let arguments: Vec<_> = iter::once("adapter.mjs").chain(urls).collect();
    let printed = run_node(&client, &arguments);
    assert!(printed.ends_with(" 0 failed\n"), "{printed}");
}

/// Reads a part of the response while the tool is running.
///
/// The tool of `example-agent` runs until this function closes a connection, which it does after it
/// has read the text that comes before the outcome of the tool.
pub fn frames_arrive_while_the_tool_runs(program: impl AsRef<OsStr>) {
    let gate = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Example::run(program, &[("TOOL_GATE", gate.local_addr().unwrap().to_string())]);
    let (send_started, started) = mpsc::channel();
    thread::spawn(move || send_started.send(gate.accept().unwrap().0));

    let question =
        json!({"id": "u", "role": "user", "parts": [{"type": "text", "text": "where?"}]});
    let asked = text_of(post(&server, &json!([question])));
    let chunks = asked.lines().filter_map(|line| line.strip_prefix("data: "));
    let approval = chunks
        .filter_map(|chunk| serde_json::from_str::<Value>(chunk).ok())
        .find(|chunk| chunk["type"] == "tool-approval-request")
        .unwrap_or_else(|| panic!("{asked}"));
    let reply = json!({"id": "a", "role": "assistant", "parts": [
        {
            "type": "tool-delete_file",
            "toolCallId": approval["toolCallId"],
            "state": "approval-responded",
            "input": {"path": "notes.txt"},
            "approval": {"id": approval["approvalId"], "approved": true},
        },
        {
            "type": "tool-get_location",
            "toolCallId": "call_2",
            "state": "output-available",
            "input": {},
            "output": {"city": "Lisbon"},
        },
    ]});

    let mut response = post(&server, &json!([question, reply]));
    let mut before = String::new();
    while !before.contains("Lisbon") {
        let read = response.read_line(&mut before).expect("text is sent while the tool runs");
        assert!(read > 0, "{before}");
    }
    assert!(!before.contains("tool-output-available"), "{before}");
    drop(started.recv_timeout(patience()).expect("the tool runs"));
    let after = text_of(response);
    assert!(after.contains("tool-output-available") && after.contains("[DONE]"), "{after}");
}

/// Sends what a hostile page makes a browser send.
pub fn only_its_own_pages_are_answered(program: impl AsRef<OsStr>) {
    let server = Example::run(program, &[]);
    let own = format!("{JSON}origin: http://$HOST\r\n");
    for head in [JSON, &own] {
        let (status, response) = status_of(send(&server, POST, head, FIRST_MESSAGE));
        assert_eq!(status, 200, "{response}");
        assert!(response.contains("x-vercel-ai-ui-message-stream: v1"), "{response}");
        assert!(response.contains("approvalId") && response.contains("[DONE]"), "{response}");
    }
    let text = "host: $HOST\r\ncontent-type: text/plain\r\n";
    let origin = "origin: https://evil.example\r\n";
    let cross_site = "sec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n";
    let rebound = "host: evil.example\r\norigin: http://evil.example\r\n\
                   content-type: application/json\r\n";
    for (request, head, expected) in [
        (POST, format!("{text}{origin}{cross_site}"), 403),
        (POST, format!("{text}{cross_site}"), 403),
        (POST, text.to_owned(), 415),
        (POST, "host: $HOST\r\n".to_owned(), 415),
        (POST, format!("{JSON}{origin}"), 403),
        (POST, rebound.to_owned(), 403),
        ("GET /effects", format!("host: $HOST\r\n{origin}"), 403),
        ("GET /effects", rebound.to_owned(), 403),
        ("DELETE /api/chat/c/stream", rebound.to_owned(), 403),
    ] {
        let (status, response) = status_of(send(&server, request, &head, FIRST_MESSAGE));
        assert_eq!(status, expected, "{request} {head}: {response}");
        assert!(!response.contains("approvalId"), "{response}");
    }
}

/// Sends bodies that are not chat requests. Every server gives the statuses of the axum extractor.
pub fn bodies_that_are_no_chat_requests_are_rejected(program: impl AsRef<OsStr>) {
    let server = Example::run(program, &[]);
    let messages = vec![json!({"id": "u", "role": "user", "parts": []}); 501];
    let too_many = json!({"id": "c", "messages": messages}).to_string();
    for (body, expected) in
        [("{", 400), ("[]", 400), (r#"{"messages": []}"#, 400), (too_many.as_str(), 413)]
    {
        let (status, response) = status_of(send(&server, POST, JSON, body));
        assert_eq!(status, expected, "{response}");
    }
}

/// Asks for an answer that is still written, as `useChat` does with `resume: true`.
pub fn a_page_that_is_opened_again_finds_no_answer_to_rejoin(program: impl AsRef<OsStr>) {
    let server = Example::run(program, &[]);
    let request = "GET /api/chat/c/stream";
    let (status, response) = status_of(send(&server, request, "host: $HOST\r\n", ""));
    assert_eq!(status, 204, "{response}");
}

/// Posts the messages of a chat, as a page of the server.
fn post(server: &Example, messages: &Value) -> BufReader<TcpStream> {
    send(server, POST, JSON, &json!({"id": "c", "messages": messages}).to_string())
}

/// Sends a request with these lines of the head.
fn send(server: &Example, request: &str, head: &str, body: &str) -> BufReader<TcpStream> {
    let address = server.url.trim_start_matches("http://");
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(patience())).unwrap();
    let head = head.replace("$HOST", address);
    let length = body.len();
    write!(
        connection,
        "{request} HTTP/1.1\r\n{head}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .unwrap();
    BufReader::new(connection)
}

fn text_of(mut response: BufReader<TcpStream>) -> String {
    let mut text = String::new();
    response.read_to_string(&mut text).unwrap();
    text
}

fn status_of(response: BufReader<TcpStream>) -> (u16, String) {
    let text = text_of(response);
    (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
}

const POST: &str = "POST /api/chat";
const JSON: &str = "host: $HOST\r\ncontent-type: application/json\r\n";
const FIRST_MESSAGE: &str =
    r#"{"id":"c","messages":[{"id":"u","role":"user","parts":[{"type":"text","text":"Hi"}]}]}"#;
/// How many conversations with a program run at the same time, each with a server of its own.
const SERVERS: usize = 4;
