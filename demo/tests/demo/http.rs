//! Requests to a demo, and [`Stream`], a response that is read while it is written.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

use serde_json::{Value, json};
use test_support::external_processes::{self, Example};
use test_support::patience;

pub(crate) fn world(server: &Example) -> Value {
    body_of(&send(server, "GET /api/world", ""))
}

pub(crate) fn wait_until(holds: impl Fn() -> bool) {
    external_processes::wait_until("the state is reached", holds);
}

/// The response of a server, which a thread reads.
pub(crate) struct Stream {
    lines: Receiver<String>,
    pub(crate) read: Vec<String>,
}

impl Stream {
    pub(crate) fn post(server: &Example, path: &str, body: &Value) -> Self {
        Self::of(connect(server, &format!("POST {path}"), "", &body.to_string()))
    }

    pub(crate) fn get(server: &Example, path: &str) -> Self {
        Self::of(connect(server, &format!("GET {path}"), "", ""))
    }

    /// Reads on after the last frame of another stream, as a page does whose connection was lost.
    pub(crate) fn get_after(server: &Example, path: &str, other: &Stream) -> Self {
        let last = other.read.iter().rev().find_map(|line| line.strip_prefix("id: ")).unwrap();
        let head = format!("last-event-id: {last}\r\n");
        Self::of(connect(server, &format!("GET {path}"), &head, ""))
    }

    fn of(connection: TcpStream) -> Self {
        let connection = BufReader::new(connection);
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in connection.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Stream { lines, read: Vec::new() }
    }

    pub(crate) fn read_until(&mut self, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            let line = self.lines.recv_timeout(patience());
            self.read.push(line.unwrap_or_else(|_| panic!("this is too little: {:?}", self.read)));
        }
    }

    pub(crate) fn read_to_end(&mut self) {
        loop {
            match self.lines.recv_timeout(patience()) {
                Ok(line) => self.read.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(_) => panic!("a reader gets an end: {:?}", self.read),
            }
        }
        // A frame that was cut does not count.
        while self.read.last().is_some_and(|line| !line.is_empty()) {
            self.read.pop();
        }
    }

    /// Returns whether the stream has brought the end of the response.
    pub(crate) fn is_complete(&self) -> bool {
        self.read.iter().any(|line| line == "data: [DONE]")
    }

    /// Returns the text of the error that the stream has brought.
    pub(crate) fn error(&self) -> Option<String> {
        self.chunks().find_map(|chunk| chunk["errorText"].as_str().map(str::to_owned))
    }

    fn chunks(&self) -> impl Iterator<Item = Value> {
        let chunks = self.read.iter().filter_map(|line| line.strip_prefix("data: "));
        chunks.filter_map(|chunk| serde_json::from_str(chunk).ok())
    }

    /// Returns the text that the stream has brought.
    pub(crate) fn text(&self) -> String {
        self.chunks().filter_map(|chunk| chunk["delta"].as_str().map(str::to_owned)).collect()
    }
}

pub(crate) fn message(text: &str) -> Value {
    json!({"id": "u", "role": "user", "parts": [{"type": "text", "text": text}]})
}

pub(crate) fn history(server: &Example) -> Value {
    body_of(&send(server, "GET /api/chat/c", ""))
}

/// Returns the text of the answer.
pub(crate) fn text_of(history: &Value) -> String {
    let parts = history["messages"][1]["parts"].as_array().unwrap();
    parts.iter().filter_map(|part| part["text"].as_str()).collect()
}

pub(crate) fn body_of(response: &str) -> Value {
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {head} {body}"))
}

pub(crate) fn send(server: &Example, request: &str, body: &str) -> String {
    let mut response = String::new();
    connect(server, request, "", body).read_to_string(&mut response).unwrap();
    response
}

/// Sends a request whose response ends with the connection. `head` holds further lines.
pub(crate) fn connect(server: &Example, request: &str, head: &str, body: &str) -> TcpStream {
    let host = server.url.trim_start_matches("http://");
    let mut connection = TcpStream::connect(host).unwrap();
    let length = body.len();
    write!(
        connection,
        "{request} HTTP/1.0\r\nhost: {host}\r\n{head}content-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    connection
}
