use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use test_support::fixture_files::fixture_files;

use crate::http::{Connection, exchange, hostile_requests, post};
use crate::program::{Server, scratch, text};

const GET: &str = "GET /api/chat/1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// Creates a recording with a data chunk at each of these times.
fn recording(folder: &str, name: &str, times: &[u64]) -> PathBuf {
    let path = scratch(folder).join(name);
    let mut lines = "{\"request\":{\"id\":\"1\"}}\n".to_owned();
    for at in times {
        lines += &format!("{{\"at\":{at},\"chunk\":{{\"type\":\"data-x\", \"data\":{at}}}}}\n");
    }
    fs::write(&path, lines).unwrap();
    path
}

/// Sends a request and returns the body of the response.
fn response_body(server: &Server) -> String {
    String::from_utf8(exchange(&server.url, &post("/api/chat", "{}")).body).unwrap()
}

#[test]
fn each_request_is_answered_with_the_next_recording_and_then_the_first_again() {
    let first = recording("replay_first", "001.jsonl", &[1]);
    let second = recording("replay_second", "002.jsonl", &[2, 3]);
    let server = Server::start(&["replay", "--speed", "0", text(&first), text(&second)]);
    assert!(server.url.ends_with("/api/chat"), "{}", server.url);
    let frame = |at: u64| format!("data: {{\"type\":\"data-x\", \"data\":{at}}}\n\n");
    let done = "data: [DONE]\n\n";
    for _ in 0..2 {
        assert_eq!(response_body(&server), frame(1) + done);
        assert_eq!(exchange(&server.url, GET).first_line, "HTTP/1.1 204 No Content");
        let stopped = exchange(&server.url, &GET.replace("GET", "DELETE"));
        assert_eq!(stopped.first_line, "HTTP/1.1 204 No Content");
        assert_eq!(response_body(&server), frame(2) + &frame(3) + done);
    }
}

#[test]
fn chunks_are_sent_at_their_recorded_times_or_faster() {
    const HOUR: u64 = 3_600_000;
    for (speed, at, least) in [("1", 600, 600), ("2", 800, 400), ("1e6", HOUR, 3), ("0", HOUR, 0)] {
        let path = recording("replay_times", &format!("{speed}.jsonl"), &[0, at]);
        let server = Server::start(&["replay", text(&path), "--speed", speed]);
        let mut front = Connection::open(&server.url);
        let began = Instant::now();
        front.write(&post("/api/chat", "{}"));
        // Fails after a timeout of one minute.
        front.read_until(&format!("\"data\":{at}}}\n\n"));
        let took = began.elapsed();
        assert!(took >= Duration::from_millis(least), "speed {speed}: {took:?}");
    }
}

#[test]
fn a_time_that_is_too_large_for_a_clock_causes_no_panic() {
    let path = recording("replay_late", "001.jsonl", &[0, u64::MAX]);
    let server = Server::start(&["replay", text(&path), "--speed", "0.001"]);
    let mut front = Connection::open(&server.url);
    front.write(&post("/api/chat", "{}"));
    // The frame, and the end of the HTTP chunk that contains it.
    front.read_until("\"data\":0}\n\n\r\n");
    front.assert_silent_for(Duration::from_millis(200));
}

#[test]
fn a_response_and_a_file_of_chunks_can_be_replayed_too() {
    let events = fixture_files("upstream/sse", "canonical.txt").remove(0);
    let chunks = scratch("replay_forms").join("chunks.jsonl");
    fs::write(&chunks, "\u{FEFF}{\"type\":\"start\"}\n\n{\"type\":\"finish\"}\n").unwrap();
    let split = scratch("replay_split").join("split.txt");
    fs::write(&split, "data: {\"type\":\ndata: \"start\"}\n\n").unwrap();
    let empty = scratch("replay_empty").join("empty.jsonl");
    fs::write(&empty, "{\"request\":{}}\n").unwrap();
    let recordings = [&events, &chunks, &split, &empty].map(|path| text(path));
    let server = Server::start(&[&["replay", "--speed", "0"][..], &recordings].concat());
    assert_eq!(response_body(&server), fs::read_to_string(&events).unwrap());
    assert_eq!(
        response_body(&server),
        "data: {\"type\":\"start\"}\n\ndata: {\"type\":\"finish\"}\n\ndata: [DONE]\n\n"
    );
    assert_eq!(response_body(&server), "data: {\"type\": \"start\"}\n\ndata: [DONE]\n\n");
    assert_eq!(response_body(&server), "data: [DONE]\n\n");
}

#[test]
fn a_page_of_another_machine_gets_no_recording() {
    let path = recording("replay_hostile", "001.jsonl", &[1]);
    let later = recording("replay_hostile_later", "002.jsonl", &[2]);
    let server = Server::start(&["replay", "--speed", "0", text(&path), text(&later)]);
    for request in hostile_requests("/api/chat") {
        let refused = exchange(&server.url, &request);
        assert_eq!(refused.first_line, "HTTP/1.1 403 Forbidden", "{request}");
        let mut headers = refused.headers.iter();
        assert!(!headers.any(|header| header.starts_with("access-control")), "{request}");
    }
    // A refused request takes no recording from those that follow.
    assert!(response_body(&server).contains("\"data\":1}"));
}

#[test]
fn requests_from_another_origin_and_with_a_long_body_are_accepted() {
    let path = recording("replay_page", "001.jsonl", &[1]);
    let server = Server::start(&["replay", "--speed", "0", text(&path)]);
    let preflight = "OPTIONS /api/chat HTTP/1.1\r\nHost: localhost\r\n\
                Origin: http://localhost:5173\r\nAccess-Control-Request-Method: POST\r\nConnection: close\r\n\
                Access-Control-Request-Headers: content-type\r\n\r\n";
    let allowed = exchange(&server.url, preflight);
    assert_eq!(allowed.first_line, "HTTP/1.1 200 OK");
    for header in ["origin: *", "methods: *", "headers: *"] {
        let header = format!("access-control-allow-{header}");
        assert!(allowed.headers.contains(&header), "{:?}", allowed.headers);
    }
    let long = exchange(&server.url, &post("/api/chat", &"x".repeat(20 << 20)));
    assert_eq!(long.first_line, "HTTP/1.1 200 OK");
    assert!(long.body.ends_with(b"[DONE]\n\n"));
    for header in ["content-type: text/event-stream", "x-vercel-ai-ui-message-stream: v1"] {
        assert!(long.headers.iter().any(|found| found == header), "{:?}", long.headers);
    }
}
