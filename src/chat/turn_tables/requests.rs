//! Messages, edits, regenerations, and the requests that are refused.

use super::harness::*;
use crate::approval::DeferredOutcome;
use crate::chat::conversation::PostedHistory;
use crate::chat::log::{BeginResult, Fence};
use crate::chat::turn::machine::{ChatTurn, Input, Request};
use crate::limits::ChatLimits;
use crate::message::{Part, Role, UiMessage};
use crate::request::{ChatRequest, Limits};

#[test]
fn a_repeated_message_joins_the_run_that_answers_it() {
    let table = vec![("load", loaded(live_chat("r0", "a0"))), ("take r0/1 passed", is_live())];
    check(turn(post(NEW_MESSAGE)), table, "join r0 a0 · end");
}

#[test]
fn a_repeated_message_whose_run_has_ended_gets_the_stored_message() {
    let table = vec![("load", loaded(answered_chat()))];
    check(turn(post(NEW_MESSAGE)), table, "stored a0 · end");
}

#[test]
fn a_repeated_message_without_a_response_is_refused() {
    let mut chat = live_chat("r0", "a0");
    chat.end_live_run();
    check(turn(post(NEW_MESSAGE)), vec![("load", loaded(chat))], "already received · end");
}

#[test]
fn an_edit_stops_the_run_and_removes_what_follows_the_message() {
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 any", taken(2)),
        ("read r0", Input::Log(Some(Vec::new()))),
        ("load", loaded(live_chat("r0", "a0"))),
        ("close 0", nothing_closed()),
        ("save [u1] live r0/2 a0", Input::Saved(true)),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("append r0/2@0 start ended", appended()),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1] live r1/1 a1", Input::Saved(true)),
        ("append r0/2@2 abort [DONE] end", appended()),
    ];
    let edit = r#"{"id":"c","messageId":"u1","messages":[
        {"id":"u1","role":"user","parts":[{"type":"text","text":"changed"}]}]}"#;
    check(turn(post(edit)), table, "join r1 a1 · append r1/1@0 start step");
}

#[test]
fn an_edit_that_the_request_does_not_name_is_refused_and_the_run_goes_on() {
    for body in [
        r#"{"id":"c","message":{"id":"u1","role":"user","parts":[{"type":"text","text":"changed"}]}}"#,
        r#"{"id":"c","trigger":"regenerate-message","messages":[
            {"id":"u1","role":"user","parts":[{"type":"text","text":"changed"}]}]}"#,
    ] {
        for chat in [live_chat("r0", "a0"), answered_chat()] {
            let table = vec![("load", loaded(chat))];
            check(turn(post(body)), table, "refused UnnamedEdit · end");
        }
    }
}

#[test]
fn a_regeneration_replaces_the_response_that_it_names() {
    let posted = r#""messages":[{"id":"a0","role":"assistant","parts":[]}],"#;
    for id in ["", r#""messageId":"a0","#, r#""messages":[],"#, posted] {
        let table = vec![
            ("load", loaded(answered_chat())),
            ("close 0", nothing_closed()),
            ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ];
        let body = format!(r#"{{"id":"c",{id}"trigger":"regenerate-message"}}"#);
        check(turn(post(&body)), table, "save [u1] live r1/1 a1");
    }
    let unknown = r#"{"id":"c","trigger":"regenerate-message","messageId":"a7"}"#;
    let table = vec![("load", loaded(answered_chat()))];
    check(turn(post(unknown)), table, "refused NothingToRegenerate · end");
}

#[test]
fn a_regeneration_replaces_the_stored_response() {
    let table = vec![
        ("load", loaded(answered_chat())),
        ("close 0", nothing_closed()),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
    ];
    let regenerate = r#"{"id":"c","trigger":"regenerate-message","messageId":"a0","messages":[
        {"id":"u1","role":"user","parts":[{"type":"text","text":"Hi"}]}]}"#;
    check(turn(post(regenerate)), table, "save [u1] live r1/1 a1");
}

#[test]
fn a_regeneration_after_another_response_begins_a_new_message() {
    let mut chat = answered_chat();
    chat.upsert_message(UiMessage::new("a9", Role::Assistant, vec![Part::text("Second")]));
    let table = vec![
        ("load", loaded(chat)),
        ("close 0", nothing_closed()),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
    ];
    let regenerate = r#"{"id":"c","trigger":"regenerate-message","messageId":"a9","messages":[
        {"id":"u1","role":"user","parts":[{"type":"text","text":"Hi"}]},
        {"id":"a0","role":"assistant","parts":[{"type":"text","text":"Hello"}]}]}"#;
    check(turn(post(regenerate)), table, "save [u1 a0] live r1/1 a1");
}

#[test]
fn a_regeneration_during_the_run_is_a_repetition() {
    let regenerate = r#"{"id":"c","trigger":"regenerate-message","messages":[
        {"id":"u1","role":"user","parts":[{"type":"text","text":"Hi"}]}]}"#;
    let mut chat = answered_chat();
    let request = ChatRequest::parse(regenerate.as_bytes(), &Limits::default()).unwrap();
    let _ = chat.apply_request(&request, PostedHistory::Keep);
    chat.set_live_run(live("r0", "a9"));
    let table = vec![("load", loaded(chat)), ("take r0/1 passed", is_live())];
    check(turn(post(regenerate)), table, "join r0 a9 · end");
}

#[test]
fn a_reader_joins_the_live_run_and_otherwise_gets_nothing() {
    let follow = || turn(Request::Follow);
    let table = vec![("load", loaded(live_chat("r0", "a0"))), ("take r0/1 passed", is_live())];
    check(follow(), table, "join r0 a0 · end");
    check(follow(), vec![("load", loaded(answered_chat()))], "nothing · end");
    check(follow(), vec![("load", Input::Loaded(None))], "nothing · end");
}

#[test]
fn a_new_message_closes_the_open_calls_before_the_run_begins() {
    let table = vec![
        ("load", loaded(asked_chat(false))),
        ("close 1", Input::CallsClosed(vec![received("s1", "ap1", DeferredOutcome::Superseded)])),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
    ];
    check(turn(post(SECOND_MESSAGE)), table, "save [u1 a0 u2] live r1/1 a1");
}

#[test]
fn a_user_with_too_many_runs_is_refused() {
    let table = vec![
        ("load", Input::Loaded(None)),
        ("close 0", nothing_closed()),
        ("begin r1", Input::Begun(BeginResult::TooManyRuns)),
        // Another turn of the same request may have been faster.
        ("", Input::ChatChanged),
        ("load", Input::Loaded(None)),
        ("begin r1-1", Input::Begun(BeginResult::TooManyRuns)),
    ];
    check(turn(post(NEW_MESSAGE)), table, "too many runs · end");
}

#[test]
fn a_new_chat_of_a_user_with_too_many_is_refused_and_its_log_is_ended() {
    let table = vec![
        ("load", Input::Loaded(None)),
        ("close 0", nothing_closed()),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1] live r1/1 a1", Input::TooManyChats),
    ];
    check(turn(post(NEW_MESSAGE)), table, "append r1/1@0 end · limit · end");
}

#[test]
fn a_message_that_does_not_fit_is_refused() {
    let mut settings = settings();
    settings.limits = ChatLimits::default().with_max_chat_messages(2);
    let turn = ChatTurn::new(post(SECOND_MESSAGE), settings);
    check(turn, vec![("load", loaded(answered_chat()))], "limit · end");
}

#[test]
fn a_message_that_is_refused_for_too_many_runs_keeps_what_the_old_run_has_written() {
    let too_many = || Input::Begun(BeginResult::TooManyRuns);
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 any", taken(2)),
        ("read r0", Input::Log(Some(log_of_half_a_text()))),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("close 0", nothing_closed()),
        ("append r0/2@5 text-end finish-step ended", appended()),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("begin r1", too_many()),
        ("", Input::Tick),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("begin r1-1", too_many()),
        ("too many runs · save [u1 a0]", Input::Saved(true)),
        ("append r0/2@8 abort [DONE] end", appended()),
    ];
    check(turn(post(SECOND_MESSAGE)), table, "end");
}

#[test]
fn a_mended_message_of_a_user_with_too_many_runs_is_saved_and_not_continued() {
    let mut log = log_of_a_question(false);
    log.push(frame(r#"{"type":"finish-step"}"#));
    let mut chat = fenced(live_chat("r0", "a0"), 2);
    chat.receive_result(&executed("s1", "ap1"));
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 passed", taken(2)),
        ("read r0", Input::Log(Some(log))),
        ("load", loaded(chat.clone())),
        ("append r0/2@6 results tool-output-available", appended()),
        ("load", loaded(chat.clone())),
        ("begin r1", Input::Begun(BeginResult::TooManyRuns)),
        ("", Input::Tick),
        ("load", loaded(chat.clone())),
        ("begin r1-1", Input::Begun(BeginResult::TooManyRuns)),
        ("append r0/2@8 ended", appended()),
        ("load", loaded(chat.clone())),
        ("save [u1 a0]", Input::Saved(true)),
        ("append r0/2@9 error finish [DONE] end", appended()),
    ];
    check(turn(Request::Follow), table, "nothing · end");
}

#[test]
fn results_of_a_user_with_too_many_runs_are_saved_without_a_run() {
    let mut chat = asked_chat(false);
    chat.record_received(&executed("s1", "ap1"));
    let table = vec![
        ("load", loaded(with_run(asked_chat(false), "r0", "a0"))),
        ("redeem 1", Input::CallSettled(Box::new(executed("s1", "ap1")))),
        // The run has ended meanwhile.
        ("load", loaded(asked_chat(false))),
        ("begin r1", Input::Begun(BeginResult::TooManyRuns)),
        ("", Input::Tick),
        ("load", loaded(asked_chat(false))),
        ("begin r1-1", Input::Begun(BeginResult::TooManyRuns)),
        ("too many runs · save [u1 a0]", Input::Saved(true)),
        ("load", loaded(chat)),
        ("", Input::Redeemed),
    ];
    check(turn(answer("s1", "ap1", true)), table, "end");
}

#[test]
fn a_log_shows_the_results_of_calls_that_the_page_does_not_hold() {
    let mut log = log_of_a_question(false);
    log.push(frame(
        r#"{"type":"tool-input-available","toolCallId":"s2","toolName":"act","input":{}}"#,
    ));
    log.push(frame(r#"{"type":"tool-approval-request","approvalId":"ap2","toolCallId":"s2"}"#));
    let chat = chat_with(log);
    let mut told = with_run(chat.clone(), "r1", "a0");
    told.receive_result(&executed("s2", "ap2"));
    let table = vec![
        ("load", loaded(chat)),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0", Input::Saved(true)),
        ("join r1 a0 · redeem 1 · append r1/1@0 start", appended()),
        ("", Input::Redeemed),
        ("load", loaded(told)),
    ];
    let last = "append r1/1@1 results tool-output-available";
    check(turn(answer("s1", "ap1", true)), table, last);
}

#[test]
fn the_result_of_a_call_that_runs_beside_a_new_message_is_recorded() {
    let table = vec![
        ("load", loaded(asked_chat(false))),
        ("close 1", nothing_closed()),
        ("begin r1", Input::CallSettled(Box::new(executed("s1", "ap1")))),
        ("", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0 u2] live r1/1 a1", Input::Saved(true)),
    ];
    let last = "join r1 a1 · append r1/1@0 start results step";
    check(turn(post(SECOND_MESSAGE)), table, last);
}

#[test]
fn an_edit_that_removes_open_calls_fails_if_the_ledger_fails() {
    let table = vec![("load", loaded(asked_chat(false))), ("close 1", Input::CallsNotClosed)];
    let edit = r#"{"id":"c","messageId":"u1","messages":[
        {"id":"u1","role":"user","parts":[{"type":"text","text":"changed"}]}]}"#;
    check(turn(post(edit)), table, "failed · end");
}

#[test]
fn calls_that_are_new_after_a_failure_of_the_ledger_are_closed() {
    let regenerate = r#"{"id":"c","trigger":"regenerate-message","messageId":"a0","messages":[
        {"id":"u1","role":"user","parts":[{"type":"text","text":"Hi"}]}]}"#;
    let table = vec![
        ("load", loaded(answered_chat())),
        ("close 0", Input::CallsNotClosed),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1] live r1/1 a1", Input::Saved(false)),
        // Another turn has continued the message, and its agent has asked something.
        ("load", loaded(asked_chat(false))),
    ];
    check(turn(post(regenerate)), table, "close 1");
}
