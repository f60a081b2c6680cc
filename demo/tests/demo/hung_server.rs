//! One of two servers hangs, and the other one stops its runs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_support::external_processes::Example;

use crate::two_servers::Shared;

#[test]
fn a_run_that_is_stopped_while_its_server_hangs_writes_and_executes_nothing_more() {
    thread::scope(|threads| {
        for shared in [Shared::sqlite(), Shared::redis(), Shared::cluster()].into_iter().flatten() {
            threads.spawn(move || {
                a_text_is_stopped(&shared);
                a_tool_that_executes_is_not_stopped(&shared);
            });
        }
    });
}

/// The first server hangs while it writes a text, which is followed by a call of a tool.
fn a_text_is_stopped(shared: &Shared) {
    let (first, second) = (shared.start_on("0"), shared.start_on("0"));
    let question = message("slow 20 transfer");
    let mut writer = Stream::post(&first, "/api/chat", &json!({"id": "c", "messages": [question]}));
    writer.read_until(|stream| stream.text().contains("2 "));
    let mut reader = Stream::get(&second, "/api/chat/c/stream");
    reader.read_until(|stream| stream.text().contains("3 "));

    shared.hang(&first);
    stop(&second);
    reader.read_to_end();
    let kept = history(&second);
    assert!(text_of(&kept).starts_with("1 2 3 "), "{}: {kept}", shared.name);
    assert_eq!(reader.text(), text_of(&kept), "{}", shared.name);

    first.hang(false);
    writer.read_to_end();
    assert!(text_of(&kept).starts_with(&writer.text()), "{}: {}", shared.name, writer.text());
    // The rest of the text and the call would take two seconds.
    thread::sleep(Duration::from_secs(3));
    for server in [&first, &second] {
        assert_eq!(history(server), kept, "{}", shared.name);
        assert!(send(server, "GET /api/chat/c/stream", "").starts_with("HTTP/1.0 204 "));
        assert_eq!(world(server)["transfers"], json!([]), "{}", shared.name);
    }

    // The first server still works, and a text that is not stopped is followed by the call.
    let question = message("slow 2 transfer");
    let body = json!({"id": "other", "messages": [question]});
    Stream::post(&first, "/api/chat", &body).read_to_end();
    assert_eq!(world(&second)["transfers"][0]["amount"], 500, "{}", shared.name);
}

/// The first server hangs while it executes an approved call, which takes three seconds.
fn a_tool_that_executes_is_not_stopped(shared: &Shared) {
    let (first, second) = (shared.start_on("0"), shared.start_on("0"));
    send(&first, "DELETE /api/chat/c", "");
    let question = message("delete backup.zip");
    let body = json!({"id": "c", "messages": [question]});
    Stream::post(&first, "/api/chat", &body).read_to_end();
    let pending = body_of(&send(&second, "GET /api/approvals", ""));
    let id = &pending["approvals"][0]["approvalId"];
    let decision = json!({"decisions": [{"approvalId": id, "approved": true}]});
    let mut writer = Stream::post(&first, "/api/chat/c/answers", &decision);
    writer.read_until(|stream| !stream.read.is_empty());
    let mut reader = Stream::get(&second, "/api/chat/c/stream");
    reader.read_until(|stream| !stream.read.is_empty());
    // The approval is claimed.
    wait_until(|| !send(&second, "GET /api/approvals", "").contains("approvalId"));

    shared.hang(&first);
    stop(&second);
    reader.read_to_end();
    first.hang(false);
    writer.read_to_end();
    // The file is deleted once, and both servers say so.
    let outcome = json!({"path": "backup.zip", "deleted": true});
    let shows = |server| history(server).to_string().contains(&outcome.to_string());
    wait_until(|| shows(&first) && shows(&second));
    assert!(!world(&second).to_string().contains("backup.zip"), "{}", shared.name);
}

fn world(server: &Example) -> Value {
    body_of(&send(server, "GET /api/world", ""))
}

fn wait_until(holds: impl Fn() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < TIMEOUT, "the state is not reached");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The response of a server, which a thread reads.
struct Stream {
    lines: Receiver<String>,
    read: Vec<String>,
}

impl Stream {
    fn post(server: &Example, path: &str, body: &Value) -> Self {
        Self::open(server, &format!("POST {path}"), &body.to_string())
    }

    fn get(server: &Example, path: &str) -> Self {
        Self::open(server, &format!("GET {path}"), "")
    }

    fn open(server: &Example, request: &str, body: &str) -> Self {
        let connection = BufReader::new(connect(server, request, body));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in connection.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Stream { lines, read: Vec::new() }
    }

    fn read_until(&mut self, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            let line = self.lines.recv_timeout(TIMEOUT);
            self.read.push(line.unwrap_or_else(|_| panic!("this is too little: {:?}", self.read)));
        }
    }

    fn read_to_end(&mut self) {
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => self.read.push(line),
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
                Err(_) => panic!("a reader gets an end: {:?}", self.read),
            }
        }
    }

    /// Returns the text that the stream has brought.
    fn text(&self) -> String {
        let chunks = self.read.iter().filter_map(|line| line.strip_prefix("data: "));
        let chunks = chunks.filter_map(|chunk| serde_json::from_str::<Value>(chunk).ok());
        chunks.filter_map(|chunk| chunk["delta"].as_str().map(str::to_owned)).collect()
    }
}

fn message(text: &str) -> Value {
    json!({"id": "u", "role": "user", "parts": [{"type": "text", "text": text}]})
}

/// Stops the run.
fn stop(server: &Example) {
    let stopped = send(server, "DELETE /api/chat/c/stream", "");
    assert!(stopped.starts_with("HTTP/1.0 204 "), "{stopped}");
}

fn history(server: &Example) -> Value {
    body_of(&send(server, "GET /api/chat/c", ""))
}

/// Returns the text of the answer.
fn text_of(history: &Value) -> String {
    let parts = history["messages"][1]["parts"].as_array().unwrap();
    parts.iter().filter_map(|part| part["text"].as_str()).collect()
}

fn body_of(response: &str) -> Value {
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {head} {body}"))
}

fn send(server: &Example, request: &str, body: &str) -> String {
    let mut response = String::new();
    connect(server, request, body).read_to_string(&mut response).unwrap();
    response
}

/// Sends a request whose response ends with the connection.
fn connect(server: &Example, request: &str, body: &str) -> TcpStream {
    let host = server.url.trim_start_matches("http://");
    let mut connection = TcpStream::connect(host).unwrap();
    let length = body.len();
    write!(
        connection,
        "{request} HTTP/1.0\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    connection
}

/// After this time, a server that does not send fails the test.
const TIMEOUT: Duration = Duration::from_secs(30);
