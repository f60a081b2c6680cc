//! A server is killed while it executes an approved call. Another one finds out, without an answer to the
//! request and without a reader of its stream.

use std::thread;

use serde_json::json;
use test_support::external_processes::Example;

use crate::http::{Stream, body_of, history, message, send, wait_until, world};
use crate::two_servers::Shared;

#[test]
fn a_call_whose_server_was_killed_gets_an_outcome_when_the_chat_is_loaded() {
    thread::scope(|threads| {
        for shared in [Shared::sqlite(), Shared::redis()].into_iter().flatten() {
            threads.spawn(move || kill_while_a_call_is_executed(&shared));
        }
    });
}

/// The tool takes three seconds.
fn kill_while_a_call_is_executed(shared: &Shared) {
    let (first, second) = (shared.start_on("0"), shared.start_on("0"));
    let body = json!({"id": "c", "messages": [message("delete backup.zip")]});
    Stream::post(&first, "/api/chat", &body).read_to_end();
    let pending = body_of(&send(&second, "GET /api/approvals", ""));
    let id = &pending["approvals"][0]["approvalId"];
    let decision = json!({"decisions": [{"approvalId": id, "approved": true}]});
    let mut writer = Stream::post(&first, "/api/chat/c/answers", &decision);
    writer.read_until(|stream| !stream.read.is_empty());
    wait_until(|| !send(&second, "GET /api/approvals", "").contains("approvalId"));
    drop::<Example>(first);

    let shows = |text: &str| history(&second).to_string().contains(text);
    wait_until(|| shows("It is not known whether"));
    // Two servers at most have the model read it, and the message is complete.
    wait_until(|| send(&second, "GET /api/chat/c/stream", "").starts_with("HTTP/1.0 204 "));
    assert!(!shows("approval-requested"), "{}: {}", shared.name, history(&second));
    assert!(world(&second).to_string().contains("backup.zip"), "{}", shared.name);
}
