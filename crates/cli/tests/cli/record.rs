use std::fs;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Value, json};
use test_support::patience;

use crate::http::{Connection, HttpMessage, backend, exchange, hostile_requests, post};
use crate::program::{Server, run, scratch, text};

const STREAM: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\
                      Transfer-Encoding: chunked\r\n\r\n";

fn record(backend: &str, folder: &Path) -> Server {
    Server::start(&["record", backend, "--out", text(folder)])
}

#[test]
fn requests_and_responses_are_forwarded_unchanged() {
    let pieces = [": hi\r\n\r\nda", "ta: \u{e9}\n\ndata: not \rJSON\n\n\n\n", "\n"];
    let pieces = pieces.map(|piece| format!("{:x}\r\n{piece}\r\n", piece.len())).concat();
    let stream = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nSet-Cookie: a=1\r\n\
        X-Vercel-AI-UI-Message-Stream: v1\r\nSet-Cookie: b=2; Path=/\r\nX-Empty:\r\n\
        Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nTransfer-Encoding: chunked\r\n\r\n";
    let responses = [
        format!("{stream}{pieces}0\r\n\r\n"),
        "HTTP/1.1 429 Slow Down\r\nContent-Type: application/json\r\nRetry-After: 7\r\n\
         Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: 16\r\n\r\n{\"error\": \"busy\"}"
            .to_owned(),
        "HTTP/1.1 204 No Content\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n".to_owned(),
        "HTTP/1.1 302 Found\r\nLocation: http://elsewhere.test/\r\n\
         Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nContent-Length: 0\r\n\r\n"
            .to_owned(),
    ];
    let requests = [
        post("/api/chat?trace=%2F&x=a%20b", "{\"id\": \"1\",\r\n\"messages\": []}"),
        post("/api/chat", "not JSON"),
        "GET / HTTP/1.1\r\nHost: localhost:81\r\nOrigin: http://localhost:81\r\nCookie: a=1\r\n\
         Accept-Encoding: gzip, br\r\nUser-Agent: me\r\nConnection: close\r\n\r\n"
            .to_owned(),
        "DELETE /api/chat/7/stream HTTP/1.1\r\nHost: localhost\r\nX-Mine: 1\r\nX-Mine: 2\r\n\
         Connection: close\r\n\r\n"
            .to_owned(),
        "PUT /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 3\r\n\r\n\u{e9}!"
            .to_owned(),
    ];
    for response in responses {
        for request in &requests {
            let response = response.clone();
            let (url, received) = backend(2, move |mut connection| {
                let received = connection.read_message();
                connection.write(&response);
                received
            });
            let direct = exchange(&url, request);
            let recorder = record(&url, &scratch("record_untouched"));
            let mut recorded = exchange(&recorder.url, request);
            // The recorder sends this header for its own connection.
            recorded.headers.retain(|header| header != "connection: close");
            assert_eq!(recorded, direct, "{request}");
            let received: Vec<HttpMessage> = received.join().unwrap();
            assert_eq!(received[0], received[1]);
        }
    }
}

#[test]
fn a_page_of_another_machine_does_not_reach_the_backend() {
    let (url, seen) = backend(1, |mut connection| {
        let seen = connection.read_message();
        connection.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        seen.first_line
    });
    let recorder = record(&url, &scratch("record_hostile"));
    for request in hostile_requests("/hostile") {
        let refused = exchange(&recorder.url, &request);
        assert_eq!(refused.first_line, "HTTP/1.1 403 Forbidden", "{request}");
    }
    let page = post("/own", "{}").replacen("\r\n", "\r\nOrigin: http://localhost:5173\r\n", 1);
    assert_eq!(exchange(&recorder.url, &page).first_line, "HTTP/1.1 200 OK");
    assert_eq!(seen.join().unwrap(), ["POST /own HTTP/1.1"]);
}

#[test]
fn each_chunk_is_forwarded_before_the_next_one_is_sent() {
    let (send_next, next) = mpsc::channel::<()>();
    let (url, served) = backend(1, move |mut connection| {
        connection.read_message();
        connection.write(STREAM);
        for n in 1..=5 {
            connection.write_chunk(&format!("data: {{\"type\":\"data-x\",\"data\":{n}}}\n\n"));
            next.recv().unwrap();
        }
        connection.write_chunk("");
    });
    let recorder = record(&url, &scratch("record_timing"));
    let mut front = Connection::open(&recorder.url);
    front.write(&post("/api/chat", "{}"));
    // The head arrives with the first chunk while the backend waits.
    for n in 1..=5 {
        front.read_until(&format!("\"data\":{n}}}\n\n"));
        send_next.send(()).unwrap();
    }
    front.read_until("0\r\n\r\n");
    served.join().unwrap();
}

#[test]
fn the_head_of_a_response_is_forwarded_before_its_body() {
    let (send_next, next) = mpsc::channel::<()>();
    let (url, served) = backend(1, move |mut connection| {
        connection.read_message();
        connection.write(STREAM);
        next.recv().unwrap();
        connection.write_chunk("");
    });
    let recorder = record(&url, &scratch("record_head"));
    let mut front = Connection::open(&recorder.url);
    front.write(&post("/api/chat", "{}"));
    front.read_until("\r\n\r\n");
    send_next.send(()).unwrap();
    front.read_until("0\r\n\r\n");
    served.join().unwrap();
}

#[test]
fn if_the_front_end_disconnects_the_backend_is_disconnected() {
    for has_started in [true, false] {
        let (has_read, is_read) = mpsc::channel();
        let (url, served) = backend(1, move |mut connection| {
            connection.read_message();
            if has_started {
                connection.write(STREAM);
                connection.write_chunk(": begun\n\n");
            }
            let _ = has_read.send(());
            // Returns when the recorder closes the connection, and panics after a timeout.
            connection.read_to_end();
        });
        let recorder = record(&url, &scratch("record_hang_up"));
        let mut front = Connection::open(&recorder.url);
        front.write(&post("/api/chat", "{}"));
        // A recorder that has not connected to the backend would not do so later.
        is_read.recv_timeout(patience()).unwrap();
        if has_started {
            front.read_until("begun");
        }
        drop(front);
        served.join().unwrap();
    }
}

#[test]
fn if_the_backend_disconnects_the_front_end_is_disconnected() {
    let (url, served) = backend(1, |mut connection| {
        connection.read_message();
        connection.write(STREAM);
        connection.write_chunk("data: {\"type\":\"start\"}\n\n");
    });
    let folder = scratch("record_broken_off");
    let recorder = record(&url, &folder);
    let mut front = Connection::open(&recorder.url);
    front.write(&post("/api/chat", "{}"));
    let read = front.read_to_end();
    assert!(read.contains("start") && !read.ends_with("0\r\n\r\n"), "{read}");
    served.join().unwrap();
    assert_eq!(lines(&folder.join("001.jsonl")).len(), 2);
}

#[test]
fn an_unreachable_backend_is_a_bad_gateway() {
    let recorder = record("http://127.0.0.1:9", &scratch("record_nobody"));
    let response = exchange(&recorder.url, &post("/api/chat", "{}"));
    assert!(response.first_line.starts_with("HTTP/1.1 502"), "{}", response.first_line);
}

#[test]
fn a_recording_contains_the_request_the_chunks_and_their_times() {
    let (go_on, may_go_on) = mpsc::channel();
    let (url, served) = backend(3, move |mut connection| {
        let request = connection.read_message();
        if request.first_line.starts_with("GET") {
            connection.write(STREAM);
            connection.write_chunk("data: {\"type\":\"start\"}\n\n");
            return connection.write_chunk("");
        }
        connection.write(STREAM);
        connection
            .write_chunk(": hello\n\ndata: {\"type\":\"start\",\ndata: \"messageId\":\"m\"}\n\nda");
        may_go_on.recv().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        connection.write_chunk("ta: {\"type\":\"data-x\",\"data\":1.50}\r\n\r");
        connection.write_chunk("\ndata: oops\n\ndata: [DONE]\n\ndata: {\"type\":\"lost\"}");
        connection.write_chunk("");
    });
    let folder = scratch("record_files");
    let mut recorder = record(&url, &folder);
    let get = "GET /api/chat/1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    exchange(&recorder.url, get);
    let mut front = Connection::open(&recorder.url);
    front.write(&post("/api/chat", "{\"id\": \"a\",\n \"messages\": [1.50]}"));
    // The first chunk is recorded before the next one is sent.
    front.read_until("\"messageId\":\"m\"}");
    go_on.send(()).unwrap();
    front.read_message();
    assert_eq!(recorder.next_line(), text(&folder.join("001.jsonl")));
    let written = fs::read_to_string(folder.join("001.jsonl")).unwrap();
    let lines: Vec<&str> = written.lines().collect();
    assert_eq!(lines[0], "{\"request\":{\"id\": \"a\",  \"messages\": [1.50]}}");
    assert!(lines[1].ends_with(",\"chunk\":{\"type\":\"start\", \"messageId\":\"m\"}}"));
    assert!(lines[2].ends_with(",\"chunk\":{\"type\":\"data-x\",\"data\":1.50}}"));
    assert_eq!(lines.len(), 3, "{written}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = fs::metadata(folder.join("001.jsonl")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
    let at = |line: &str| serde_json::from_str::<Value>(line).unwrap()["at"].as_u64().unwrap();
    assert!(at(lines[2]) - at(lines[1]) >= 150, "{written}");

    // The files of an earlier run are kept.
    drop(recorder);
    let mut recorder = record(&url, &folder);
    go_on.send(()).unwrap();
    exchange(&recorder.url, &post("/api/chat", "no JSON"));
    assert_eq!(recorder.next_line(), text(&folder.join("002.jsonl")));
    assert_eq!(fs::read_to_string(folder.join("001.jsonl")).unwrap(), written);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 2);
    served.join().unwrap();
}

#[test]
fn a_stream_is_recorded_with_any_content_type() {
    let event = "data: {\"type\":\"start\"}\n\n";
    let folder = scratch("record_content_types");
    for (number, kind) in
        ["", "Content-Type: text/plain\r\n", "Content-Type: Text/Event-Stream; charset=utf-8\r\n"]
            .into_iter()
            .enumerate()
    {
        let head = format!(
            "HTTP/1.1 201 Created\r\n{kind}Content-Encoding: identity\r\nContent-Length: {}\r\n\r\n",
            event.len()
        );
        let (url, served) = backend(1, move |mut connection| {
            connection.read_message();
            connection.write(&head);
            connection.write(event);
        });
        let recorder = record(&url, &folder);
        let forwarded = exchange(&recorder.url, &post("/api/chat", "{}"));
        assert_eq!(forwarded.body, event.as_bytes());
        served.join().unwrap();
        let written = lines(&folder.join(format!("00{}.jsonl", number + 1)));
        assert_eq!(written.len(), 2, "{kind}");
        assert_eq!(written[1]["chunk"], json!({"type": "start"}), "{kind}");
    }
}

#[test]
fn if_nothing_is_recorded_the_reason_is_on_standard_error() {
    let event = "data: {\"type\":\"start\"}\n\n";
    for (head, body, reason) in [
        ("200 OK\r\nContent-Type: text/html", "<p>data: x</p>\n\n", "no event in the answer"),
        ("200 OK", "", "no event in the answer"),
        ("200 OK", "data: {\"type\":\"start\"}\n", "no event in the answer"),
        (
            "500 Internal Server Error\r\nContent-Type: text/event-stream",
            event,
            "the answer is 500 Internal Server Error",
        ),
        (
            "200 OK\r\nContent-Encoding: br\r\nContent-Type: text/event-stream",
            event,
            "compressed (\"br\") though asked not to be",
        ),
    ] {
        let response = format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let (url, served) = backend(1, move |mut connection| {
            connection.read_message();
            connection.write(&response);
        });
        let folder = scratch("record_nothing");
        let mut recorder = record(&url, &folder);
        let forwarded = exchange(&recorder.url, &post("/api/chat?key=secret", "{}"));
        assert_eq!(forwarded.body, body.as_bytes(), "{head}");
        let expected = format!("POST /api/chat: {reason}, nothing is written");
        assert_eq!(recorder.next_error_line(), expected, "{head}");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0, "{head}");
        served.join().unwrap();
    }
}

#[test]
fn the_backend_is_asked_for_an_uncompressed_response() {
    let (url, received) = backend(1, |mut connection| {
        let request = connection.read_message();
        connection.write("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        request
    });
    let recorder = record(&url, &scratch("record_identity"));
    let request = post("/api/chat", "{}").replacen("\r\n", "\r\nAccept-Encoding: gzip, br\r\n", 1);
    exchange(&recorder.url, &request);
    let received = received.join().unwrap().remove(0).headers;
    let encodings: Vec<_> = received.iter().filter(|h| h.starts_with("accept-encoding")).collect();
    assert_eq!(encodings, ["accept-encoding: identity"]);
}

#[test]
fn a_recording_is_checked_and_reduced_with_the_message_that_its_request_continues() {
    let part = json!({"type": "tool-pay", "toolCallId": "c", "state": "approval-responded",
        "input": {}, "approval": {"id": "ap", "approved": true}});
    let message = json!({"id": "m", "role": "assistant", "parts": [part]});
    let request = json!({"id": "1", "messageId": "m", "messages": [message]});
    let chunks = [
        json!({"type": "start", "messageId": "m"}),
        json!({"type": "tool-output-available", "toolCallId": "c", "output": 7}),
        json!({"type": "finish"}),
    ];
    let mut recording = format!("{}\n", json!({ "request": request }));
    for (at, chunk) in chunks.iter().enumerate() {
        recording += &format!("{}\n", json!({ "at": at, "chunk": chunk }));
    }
    let path = scratch("record_continued").join("001.jsonl");
    fs::write(&path, recording).unwrap();
    let checked = run(&["check", text(&path)]);
    assert_eq!((checked.code, checked.out.as_str()), (0, ""));
    let reduced: Value = serde_json::from_str(&run(&["reduce", text(&path)]).out).unwrap();
    assert_eq!(reduced["id"], "m");
    assert_eq!(reduced["parts"][0]["output"], 7);
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
