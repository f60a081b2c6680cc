//! The servers on hyper and on actix-web, as processes, and what a hostile page makes a browser send
//! to them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// A server, running on its own port.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(program: &str) -> Self {
        let mut process =
            Command::new(program).env("PORT", "0").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).unwrap().trim_end_matches("/api/chat\n");
        Server { address: address.to_owned(), process }
    }

    /// Sends a request with these lines of the head, and returns the status and the whole response.
    fn send(&self, request: &str, head: &str) -> (u16, String) {
        const CHAT: &str = r#"{"id":"c","messages":[{"id":"u","role":"user","parts":[{"type":"text","text":"Hi"}]}]}"#;
        let mut connection = TcpStream::connect(&self.address).unwrap();
        let head = head.replace("$HOST", &self.address);
        let length = CHAT.len();
        write!(
            connection,
            "{request} HTTP/1.1\r\n{head}content-length: {length}\r\nconnection: close\r\n\r\n{CHAT}"
        )
        .unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        (response.split(' ').nth(1).unwrap().parse().unwrap(), response)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

const POST: &str = "POST /api/chat";
const JSON: &str = "host: $HOST\r\ncontent-type: application/json\r\n";

fn answers_only_its_own_pages(program: &str) {
    let server = Server::start(program);
    let own = format!("{JSON}origin: http://$HOST\r\n");
    for head in [JSON, &own] {
        let (status, response) = server.send(POST, head);
        assert_eq!(status, 200, "{response}");
        assert!(response.contains("x-vercel-ai-ui-message-stream: v1"), "{response}");
        assert!(response.contains("Hello") && response.contains("data: [DONE]"), "{response}");
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
        ("GET /api/chat", format!("host: $HOST\r\n{origin}"), 403),
        ("DELETE /api/chat/c/stream", rebound.to_owned(), 403),
    ] {
        let (status, response) = server.send(request, &head);
        assert_eq!(status, expected, "{request} {head}: {response}");
        assert!(!response.contains("Hello"), "{response}");
    }
}

#[test]
fn a_server_on_hyper_answers_only_its_own_pages() {
    answers_only_its_own_pages(env!("CARGO_BIN_EXE_hyper_server"));
}

#[test]
fn a_server_on_actix_web_answers_only_its_own_pages() {
    answers_only_its_own_pages(env!("CARGO_BIN_EXE_actix_server"));
}
