//! One of two servers hangs, and the other one stops its runs.

use std::thread;

use serde_json::{Value, json};
use test_support::external_processes::Example;

use crate::http::{Stream, body_of, history, message, send, text_of, wait_until, world};
use crate::two_servers::Shared;

#[test]
fn a_run_that_is_stopped_while_its_server_hangs_writes_and_executes_nothing_more() {
    thread::scope(|threads| {
        for shared in [Shared::sqlite(), Shared::redis(), Shared::cluster()].into_iter().flatten() {
            threads.spawn(move || {
                let shared = shared.without_interval();
                a_text_is_stopped(&shared);
                a_tool_that_executes_is_not_stopped(&shared);
            });
        }
    });
}

/// The first server hangs while it writes a text, which is followed by a call of a tool.
fn a_text_is_stopped(shared: &Shared) {
    let first = shared.start_on("0");
    let second = shared.start_on("0");
    let gate = shared.gate("text");
    let question = message("until text transfer");
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
    // The text would end now, and the call would follow.
    gate.open();
    // The first server still works, and a text that is not stopped is followed by the call. It takes longer than the
    // end of the text that is stopped.
    let question = message("slow 9 transfer");
    let body = json!({"id": "other", "messages": [question]});
    Stream::post(&first, "/api/chat", &body).read_to_end();
    for server in [&first, &second] {
        assert_eq!(history(server), kept, "{}", shared.name);
        assert!(send(server, "GET /api/chat/c/stream", "").starts_with("HTTP/1.0 204 "));
        let transfers = &world(server)["transfers"];
        assert_eq!(
            (transfers.as_array().unwrap().len(), &transfers[0]["amount"]),
            (1, &json!(500)),
            "{}",
            shared.name
        );
    }
}

/// The first server hangs while it executes an approved call.
fn a_tool_that_executes_is_not_stopped(shared: &Shared) {
    let first = shared.start_on("0");
    let second = shared.start_on("0");
    send(&first, "DELETE /api/chat/c", "");
    let gate = shared.gate("backup.zip");
    let question = message("delete backup.zip");
    let mut writer = approve_its_call(&first, &question);
    let mut reader = Stream::get(&second, "/api/chat/c/stream");
    reader.read_until(|stream| !stream.read.is_empty());
    gate.reached();

    shared.hang(&first);
    stop(&second);
    reader.read_to_end();
    first.hang(false);
    gate.open();
    writer.read_to_end();
    // The file is deleted once, and both servers say so.
    let outcome = json!({"path": "backup.zip", "deleted": true});
    let shows = |server| {
        let history = history(server);
        let messages = history["messages"].as_array().into_iter().flatten();
        messages
            .flat_map(|message| message["parts"].as_array().into_iter().flatten())
            .any(|part| part["output"] == outcome)
    };
    wait_until(|| shows(&first) && shows(&second));
    assert!(!world(&second).to_string().contains("backup.zip"), "{}", shared.name);
}

/// Sends a message to the chat "c", and approves the call that the model asks for. Returns the response, which
/// has begun.
pub(crate) fn approve_its_call(server: &Example, question: &Value) -> Stream {
    let body = json!({"id": "c", "messages": [question]});
    Stream::post(server, "/api/chat", &body).read_to_end();
    let pending = body_of(&send(server, "GET /api/approvals", ""));
    let id = &pending["approvals"][0]["approvalId"];
    let decision = json!({"decisions": [{"approvalId": id, "approved": true}]});
    let mut response = Stream::post(server, "/api/chat/c/answers", &decision);
    response.read_until(|stream| !stream.read.is_empty());
    response
}

/// Stops the run.
fn stop(server: &Example) {
    let stopped = send(server, "DELETE /api/chat/c/stream", "");
    assert!(stopped.starts_with("HTTP/1.0 204 "), "{stopped}");
}
