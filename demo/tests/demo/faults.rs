//! What users get if a server, a connection or Redis fails at a known moment. The servers are
//! processes, and Redis is a real one.

use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use test_support::external_processes::{Example, Gate};
use test_support::patience;

use crate::http::{Stream, body_of, connect, history, message, send, text_of, wait_until, world};
use crate::two_servers::Shared;

/// Begins an answer that counts until the gate with this name is open, and reads its beginning.
fn count(server: &Example, chat: &str, gate: &str) -> Stream {
    let question = message(&format!("until {gate}"));
    let body = json!({"id": chat, "messages": [question]});
    let mut answer = Stream::post(server, "/api/chat", &body);
    answer.read_until(|answer| answer.text().contains("3 "));
    answer
}

/// Returns what a text is that ends as this one: each number once, without a gap.
fn counted(text: &str) -> String {
    let words = text.split(' ').filter(|word| !word.is_empty() && *word != "done").count();
    let numbers: String = (1..=words).map(|number| format!("{number} ")).collect();
    if text.ends_with("done") { numbers + "done" } else { numbers }
}

/// Checks that an answer has counted until its gate was open.
fn must_be_whole(text: &str) {
    assert!(text.ends_with(" done"), "{text}");
    assert_eq!(text, counted(text));
}

#[test]
fn a_text_whose_server_is_killed_is_kept_and_its_readers_get_an_end_at_another_server() {
    thread::scope(|threads| {
        for shared in [Shared::sqlite(), Shared::redis(), Shared::cluster()].into_iter().flatten() {
            threads.spawn(move || {
                let shared = shared.without_interval();
                let first = shared.start_on("0");
                let second = shared.start_on("0");
                let _gate = shared.gate("text");
                let mut cut = count(&first, "c", "text");
                drop(first);
                cut.read_to_end();
                assert!(!cut.is_complete(), "{}", shared.name);
                let mut rest = Stream::get_after(&second, "/api/chat/c/stream", &cut);
                rest.read_to_end();
                assert!(rest.is_complete(), "{}: {:?}", shared.name, rest.read);
                assert_eq!(rest.error().as_deref(), Some(INTERRUPTED), "{}", shared.name);
                let kept = text_of(&history(&second));
                assert_eq!(format!("{}{}", cut.text(), rest.text()), kept, "{}", shared.name);
                assert_eq!(counted(&kept), kept, "{}", shared.name);
            });
        }
    });
}

#[test]
fn an_answer_is_completed_if_its_client_closes_resets_or_abandons_its_connection() {
    let server = Example::start("chat", &[]);
    let gate = Gate::closed(server.gates(), "text");
    let ask = |chat: &str| {
        let body = json!({"id": chat, "messages": [message("until text")]});
        connect(&server, "POST /api/chat", "", &body.to_string())
    };
    let closed = ask("closed");
    let reset = ask("reset");
    let abandoned = ask("abandoned");
    wait_until(|| {
        let chats = ["closed", "reset", "abandoned"];
        chats.iter().all(|chat| written(&server, chat).is_some_and(|text| text.contains("3 ")))
    });
    closed.shutdown(std::net::Shutdown::Write).unwrap();
    // What it has not read makes its system reset the connection.
    drop(reset);
    let before = ["closed", "reset", "abandoned"].map(|chat| written(&server, chat).unwrap().len());
    for (chat, length) in ["closed", "reset", "abandoned"].into_iter().zip(before) {
        wait_until(|| written(&server, chat).unwrap().len() > length + 6);
    }
    gate.open();
    for chat in ["closed", "reset", "abandoned"] {
        wait_until(|| written(&server, chat).unwrap().ends_with("done"));
        must_be_whole(&written(&server, chat).unwrap());
    }
    drop(abandoned);
}

/// Returns what is written of the answer in this chat.
fn written(server: &Example, chat: &str) -> Option<String> {
    let found = send(server, &format!("GET /api/chat/{chat}"), "");
    let chat = found.starts_with("HTTP/1.0 200 ").then(|| body_of(&found))?;
    chat["messages"][1].is_object().then(|| text_of(&chat))
}

#[test]
fn a_client_that_is_cut_again_and_again_reads_each_part_of_the_answer_once() {
    let server = Example::start("chat", &[]);
    let gate = Gate::closed(server.gates(), "text");
    let mut reader = count(&server, "c", "text");
    let mut text = String::new();
    for part in 2..=5 {
        text.push_str(&reader.text());
        let mut next = Stream::get_after(&server, "/api/chat/c/stream", &reader);
        next.read_until(|next| next.text().split(' ').count() > part);
        reader = next;
    }
    gate.open();
    reader.read_to_end();
    text.push_str(&reader.text());
    must_be_whole(&text);
    assert_eq!(text_of(&history(&server)), text);
}

#[test]
fn an_answer_goes_on_after_redis_was_killed_or_has_hung() {
    let Some(mut shared) = Shared::redis() else { return };
    let server = shared.start_on("0");
    let gate = shared.gate("text");
    let mut answer = count(&server, "c", "text");
    // A server that cannot write is not ready.
    let is_ready = || send(&server, "GET /ready", "").starts_with("HTTP/1.0 200 ");
    shared.redis_mut().kill();
    wait_until(|| !is_ready());
    shared.redis_mut().start_again();
    let length = answer.text().len();
    answer.read_until(|answer| answer.text().len() > length + 20);
    shared.redis_mut().hang(true);
    wait_until(|| !is_ready());
    shared.redis_mut().hang(false);
    gate.open();
    answer.read_to_end();
    assert_eq!(answer.error(), None);
    must_be_whole(&answer.text());
    assert_eq!(text_of(&history(&server)), answer.text());
}

#[test]
fn an_answer_is_cut_off_if_redis_stays_away_and_the_chat_goes_on_afterwards() {
    let Some(mut shared) = Shared::redis().map(Shared::without_interval) else { return };
    let server = shared.start_on("0");
    let _gate = shared.gate("text");
    let mut answer = count(&server, "c", "text");
    shared.redis_mut().kill();
    answer.read_to_end();
    // A page with the reconnecting fetch does not take it for complete.
    assert!(!answer.is_complete() && answer.error().is_none(), "{:?}", answer.read);
    shared.redis_mut().start_again();
    // What was shown is kept.
    wait_until(|| {
        let shown = written(&server, "c");
        shown.is_some_and(|kept| !kept.is_empty() && kept.starts_with(&answer.text()))
    });
    let mut next = message("slow 3");
    next["id"] = json!("u2");
    let mut again = Stream::post(&server, "/api/chat", &json!({"id": "c", "message": next}));
    again.read_to_end();
    assert_eq!((again.text(), again.error()), ("1 2 3 ".to_owned(), None));
}

#[test]
fn an_approved_call_is_not_executed_while_redis_is_away_and_once_afterwards() {
    let Some(mut shared) = Shared::redis() else { return };
    let server = shared.start_on("0");
    let body = json!({"id": "c", "messages": [message("mixed 5001")]});
    Stream::post(&server, "/api/chat", &body).read_to_end();
    let pending = body_of(&send(&server, "GET /api/approvals", ""));
    let mut pending = pending["approvals"].as_array().unwrap().iter();
    let transfer = pending.find(|one| one["toolName"] == "transfer").unwrap();
    let decision = json!({"approvalId": transfer["approvalId"], "approved": true});
    let answer = json!({"decisions": [decision]}).to_string();
    let approve = || send(&server, "POST /api/chat/c/answers", &answer);
    let transfers = || world(&server)["transfers"].as_array().unwrap().len();

    shared.redis_mut().kill();
    let refused = approve();
    assert!(refused.starts_with("HTTP/1.0 503 "), "{refused}");
    assert_eq!(transfers(), 0);
    shared.redis_mut().start_again();
    wait_until(|| approve().starts_with("HTTP/1.0 200 "));
    wait_until(|| transfers() == 1);
    approve();
    assert_eq!(transfers(), 1);
}

#[test]
fn a_server_that_gets_sigterm_completes_what_ends_in_time_and_hands_over_the_rest() {
    let Some(mut shared) = Shared::sqlite() else { return };
    shared.lease = 10 * patience();
    let mut first = shared.start_on("0");
    let second = shared.start_on("0");
    let gate = shared.gate("short");
    let _gate = shared.gate("long");
    let mut short = count(&first, "short", "short");
    let mut long = count(&first, "c", "long");
    first.terminate();
    wait_until(|| first.log().contains("the server stops"));
    gate.open();
    short.read_to_end();
    assert!(short.is_complete(), "{:?}", short.read);
    must_be_whole(&short.text());
    long.read_to_end();
    assert!(!long.is_complete(), "{:?}", long.read);
    assert!(first.wait());
    let asked = Instant::now();
    let mut rest = Stream::get_after(&second, "/api/chat/c/stream", &long);
    rest.read_to_end();
    assert!(asked.elapsed() < patience(), "the other server waits for the end of the lease");
    assert_eq!(rest.error().as_deref(), Some(INTERRUPTED));
    let kept: Value = history(&second);
    assert_eq!(format!("{}{}", long.text(), rest.text()), text_of(&kept));
}

#[test]
fn a_second_sigterm_ends_the_server_at_once() {
    let Some(shared) = Shared::sqlite().map(Shared::without_interval) else { return };
    let mut first = shared.start_on("0");
    let second = shared.start_on("0");
    let _gate = shared.gate("text");
    let mut cut = count(&first, "c", "text");
    first.terminate();
    // A request that arrives before would read the answer to its end.
    wait_until(|| first.log().contains("the server stops"));
    assert!(send(&first, "GET /api/chat/c/stream", "").starts_with("HTTP/1.0 503 "));
    first.terminate();
    // After the time for its answers it would be successful.
    assert!(!first.wait());
    cut.read_to_end();
    let mut rest = Stream::get_after(&second, "/api/chat/c/stream", &cut);
    rest.read_to_end();
    assert_eq!(rest.error().as_deref(), Some(INTERRUPTED));
    assert_eq!(format!("{}{}", cut.text(), rest.text()), text_of(&history(&second)));
}

const INTERRUPTED: &str = "The server was interrupted. The answer is not complete.";
