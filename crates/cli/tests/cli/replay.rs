use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use test_support::fixture_files::fixture_files;

use crate::http::{Connection, exchange, post};
use crate::program::{Server, scratch, text};

const GET: &str = "GET /api/chat/1/stream HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";

/// A recording of one data chunk at each of these times.
fn recording(folder: &str, name: &str, times: &[u64]) -> PathBuf {
    let path = scratch(folder).join(name);
    let mut lines = "{\"request\":{\"id\":\"1\"}}\n".to_owned();
    for at in times {
        lines += &format!("{{\"at\":{at},\"chunk\":{{\"type\":\"data-x\", \"data\":{at}}}}}\n");
    }
    fs::write(&path, lines).unwrap();
    path
}

/// What the requests are answered with, without its head.
fn answer(server: &Server) -> String {
    String::from_utf8(exchange(&server.url, &post("/api/chat", "{}")).body).unwrap()
}

#[test]
fn each_request_takes_the_next_recording_and_the_first_again_after_the_last() {
    let first = recording("replay_first", "001.jsonl", &[1]);
    let second = recording("replay_second", "002.jsonl", &[2, 3]);
    let server = Server::start(&["replay", "--speed", "0", text(&first), text(&second)]);
    assert!(server.url.ends_with("/api/chat"), "{}", server.url);
    let frame = |at: u64| format!("data: {{\"type\":\"data-x\", \"data\":{at}}}\n\n");
    let done = "data: [DONE]\n\n";
    for _ in 0..2 {
        assert_eq!(answer(&server), frame(1) + done);
        assert_eq!(exchange(&server.url, GET).first_line, "HTTP/1.1 204 No Content");
        let stopped = exchange(&server.url, &GET.replace("GET", "DELETE"));
        assert_eq!(stopped.first_line, "HTTP/1.1 204 No Content");
        assert_eq!(answer(&server), frame(2) + &frame(3) + done);
    }
}

#[test]
fn chunks_come_at_their_times_or_faster() {
    let path = recording("replay_times", "001.jsonl", &[0, 600]);
    for (speed, least, most) in [("1", 550, 5_000), ("3", 180, 550), ("0", 0, 300)] {
        let server = Server::start(&["replay", text(&path), "--speed", speed]);
        let mut front = Connection::open(&server.url);
        front.write(&post("/api/chat", "{}"));
        front.read_until("\"data\":0}\n\n");
        let began = Instant::now();
        front.read_until("\"data\":600}\n\n");
        let took = began.elapsed();
        let range = Duration::from_millis(least)..Duration::from_millis(most);
        assert!(range.contains(&took), "speed {speed}: {took:?}");
    }
}

#[test]
fn a_time_beyond_all_time_is_waited_for_without_harm() {
    let path = recording("replay_late", "001.jsonl", &[0, u64::MAX]);
    let server = Server::start(&["replay", text(&path), "--speed", "0.001"]);
    let mut front = Connection::open(&server.url);
    front.write(&post("/api/chat", "{}"));
    front.read_until("\"data\":0}\n\n");
    assert!(front.is_silent_for(Duration::from_millis(200)));
}

#[test]
fn responses_and_chunks_alone_are_recordings_too() {
    let events = fixture_files("upstream/sse", "canonical.txt").remove(0);
    let chunks = scratch("replay_forms").join("chunks.jsonl");
    fs::write(&chunks, "\u{FEFF}{\"type\":\"start\"}\n\n{\"type\":\"finish\"}\n").unwrap();
    let split = scratch("replay_split").join("split.txt");
    fs::write(&split, "data: {\"type\":\ndata: \"start\"}\n\n").unwrap();
    let empty = scratch("replay_empty").join("empty.jsonl");
    fs::write(&empty, "{\"request\":{}}\n").unwrap();
    let recordings = [&events, &chunks, &split, &empty].map(|path| text(path));
    let server = Server::start(&[&["replay", "--speed", "0"][..], &recordings].concat());
    assert_eq!(answer(&server), fs::read_to_string(&events).unwrap());
    assert_eq!(
        answer(&server),
        "data: {\"type\":\"start\"}\n\ndata: {\"type\":\"finish\"}\n\ndata: [DONE]\n\n"
    );
    assert_eq!(answer(&server), "data: {\"type\": \"start\"}\n\ndata: [DONE]\n\n");
    assert_eq!(answer(&server), "data: [DONE]\n\n");
}

#[test]
fn a_page_of_another_port_may_ask_and_a_long_history_is_read() {
    let path = recording("replay_page", "001.jsonl", &[1]);
    let server = Server::start(&["replay", "--speed", "0", text(&path)]);
    let asks = "OPTIONS /api/chat HTTP/1.1\r\nHost: h\r\nOrigin: http://localhost:5173\r\n\
                Access-Control-Request-Method: POST\r\nConnection: close\r\n\
                Access-Control-Request-Headers: content-type\r\n\r\n";
    let may = exchange(&server.url, asks);
    assert_eq!(may.first_line, "HTTP/1.1 200 OK");
    for header in ["origin: *", "methods: *", "headers: *"] {
        let header = format!("access-control-allow-{header}");
        assert!(may.headers.contains(&header), "{:?}", may.headers);
    }
    let long = exchange(&server.url, &post("/api/chat", &"x".repeat(20 << 20)));
    assert_eq!(long.first_line, "HTTP/1.1 200 OK");
    assert!(long.body.ends_with(b"[DONE]\n\n"));
    for header in ["content-type: text/event-stream", "x-vercel-ai-ui-message-stream: v1"] {
        assert!(long.headers.iter().any(|found| found == header), "{:?}", long.headers);
    }
}
