//! A server is killed while it executes an approved call. Another one finds out, without an answer to the
//! request and without a reader of its stream.

use std::thread;

use test_support::external_processes::Example;

use crate::http::{history, message, send, wait_until, world};
use crate::hung_server::approve_its_call;
use crate::two_servers::Shared;

#[test]
fn a_call_whose_server_was_killed_gets_an_outcome_when_the_chat_is_loaded() {
    thread::scope(|threads| {
        for shared in [Shared::sqlite(), Shared::redis()].into_iter().flatten() {
            threads.spawn(move || kill_while_a_call_is_executed(&shared));
        }
    });
}

fn kill_while_a_call_is_executed(shared: &Shared) {
    let first = shared.start_on("0");
    let second = shared.start_on("0");
    let gate = shared.gate("backup.zip");
    let _response = approve_its_call(&first, &message("delete backup.zip"));
    gate.reached();
    drop::<Example>(first);
    // Another execution would delete the file.
    gate.open();

    let shows = |text: &str| history(&second).to_string().contains(text);
    wait_until(|| shows("It is not known whether"));
    // The model reads that, and the message is complete.
    wait_until(|| send(&second, "GET /api/chat/c/stream", "").starts_with("HTTP/1.0 204 "));
    assert!(!shows("approval-requested"), "{}: {}", shared.name, history(&second));
    assert!(world(&second).to_string().contains("backup.zip"), "{}", shared.name);
}
