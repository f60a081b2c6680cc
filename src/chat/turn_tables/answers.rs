//! Answers to approval requests, and outputs of the client's calls.

use super::harness::*;
use crate::approval::DeferredOutcome;
use crate::chat::conversation::{PostedHistory, ReceivedResult};
use crate::chat::log::{AppendRefusal, AppendResult, BeginResult, Fence, HolderStatus};
use crate::chat::turn::machine::{Action, Effect, Input};
use crate::event::AgentEvent;
use crate::request::{ChatRequest, Limits};

#[test]
fn answers_run_in_a_run_of_their_own_and_the_model_is_called_after_the_last() {
    let table = vec![
        ("load", loaded(asked_chat(false))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0", Input::Saved(true)),
        ("join r1 a0 · redeem 1 · append r1/1@0 start", appended()),
        ("", Input::CallSettled(Box::new(executed("s1", "ap1")))),
        ("append r1/1@1 results tool-output-available", Input::Redeemed),
        ("", appended()),
        ("load", loaded(with_run(asked_chat(false), "r1", "a0"))),
        ("append r1/1@3 step", appended()),
    ];
    check(turn(answer("s1", "ap1", true)), table, "call agent");
}

#[test]
fn repeated_answers_get_the_stored_message() {
    let mut chat = asked_chat(false);
    chat.record_received(&executed("s1", "ap1"));
    chat.set_unread_results(false);
    let table = vec![
        ("load", loaded(chat.clone())),
        ("redeem 1", Input::CallSettled(Box::new(executed("s1", "ap1")))),
        ("load", loaded(chat.clone())),
        ("", Input::Redeemed),
        ("load", loaded(chat)),
    ];
    check(turn(answer("s1", "ap1", true)), table, "stored a0 · end");
}

#[test]
fn a_page_that_approves_a_call_after_it_was_denied_gets_a_reply() {
    let denied = received("s1", "ap1", DeferredOutcome::Denied { reason: None });
    let rejected = ReceivedResult { shown: Some(DeferredOutcome::Rejected), ..denied.clone() };
    let mut chat = asked_chat(false);
    chat.record_received(&denied);
    chat.set_unread_results(false);
    let table = vec![
        ("load", loaded(chat.clone())),
        ("redeem 1", Input::CallSettled(Box::new(rejected))),
        ("load", loaded(chat)),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0", Input::Saved(true)),
    ];
    check(turn(answer("s1", "ap1", true)), table, "join r1 a0 · append r1/1@0 start");
}

#[test]
fn answers_during_a_run_are_settled_at_once_and_the_run_reads_them() {
    let chat = with_run(asked_chat(false), "r0", "a0");
    let mut told = chat.clone();
    told.receive_result(&executed("s1", "ap1"));
    let table = vec![
        ("load", loaded(chat.clone())),
        ("redeem 1", Input::CallSettled(Box::new(executed("s1", "ap1")))),
        ("load", loaded(chat)),
        ("save [u1 a0] live r0/1 a0 new 1", Input::Saved(true)),
        ("load", loaded(told)),
        ("", Input::Redeemed),
        ("load", loaded(with_run(asked_chat(false), "r0", "a0"))),
        ("take r0/1 passed", is_live()),
    ];
    check(turn(answer("s1", "ap1", true)), table, "join r0 a0 · end");
}

#[test]
fn a_run_writes_the_results_that_arrive_and_its_end_waits_for_them() {
    let mut told = live_chat("r1", "a1");
    told.receive_result(&executed("s1", "ap1"));
    let table = vec![
        ("", Input::Agent(question(false).0)),
        ("append r1/1@2 start-step tool-input-available", Input::Agent(question(false).1)),
        ("", appended()),
        ("append r1/1@4 tool-approval-request", appended()),
        ("", finish()),
        ("stop agent · append r1/1@5 finish-step ended", appended()),
        ("load", loaded(live_chat("r1", "a1"))),
        ("save [u1 a1]", Input::Saved(false)),
        ("load", loaded(told.clone())),
        ("append r1/1@7 results tool-output-available", appended()),
        // The result is unread: the model is called again, in the same run.
        ("append r1/1@9 step", appended()),
    ];
    check(running(), table, "call agent");
}

/// The steps of a turn that answers `a0` with this grant, until it claims it.
fn until_the_claim() -> Vec<(&'static str, Input)> {
    vec![
        ("load", loaded(asked_chat(true))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0", Input::Saved(true)),
        ("join r1 a0 · redeem 1 · append r1/1@0 start", appended()),
        ("", Input::CallSettled(Box::new(granted()))),
        ("append r1/1@1 results", Input::Redeemed),
        ("", appended()),
        ("load", loaded(with_run(asked_chat(true), "r1", "a0"))),
        // The append proves that the run is not taken.
        ("append r1/1@2 step", appended()),
    ]
}

#[test]
fn an_approval_of_a_provider_is_claimed_when_the_model_is_called() {
    let claimed = granted().result;
    let mut table = until_the_claim();
    table.push(("claim 1", Input::Claimed(vec![claimed])));
    check(turn(answer("p1", "ap1", true)), table, "call agent sends 1 · append r1/1@3 claimed");
}

/// A run that executes an approved call and has to end, up to the save.
fn ending_while_a_tool_runs() -> Vec<(&'static str, Input)> {
    let status = HolderStatus { has_to_end: true, ..HolderStatus::default() };
    vec![
        ("load", loaded(asked_chat(false))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0", Input::Saved(true)),
        (
            "join r1 a0 · redeem 1 · append r1/1@0 start",
            Input::Appended(AppendResult::Appended(status)),
        ),
        ("stop agent · append r1/1@1 ended", appended()),
        ("load", loaded(with_run(asked_chat(false), "r1", "a0"))),
    ]
}

#[test]
fn the_result_of_a_tool_that_ends_after_its_run_was_ended_is_saved() {
    let mut table = ending_while_a_tool_runs();
    table.push(("save [u1 a0]", Input::Saved(true)));
    table.push(("append r1/1@2 abort [DONE] end", appended()));
    table.push(("", Input::CallSettled(Box::new(executed("s1", "ap1")))));
    table.push(("load", loaded(asked_chat(false))));
    table.push(("begin r1-1", Input::Begun(BeginResult::Begun(Fence(1)))));
    check(turn(answer("s1", "ap1", true)), table, "save [u1 a0] live r1-1/1 a0");
}

#[test]
fn a_result_that_the_end_of_a_run_leaves_unread_is_read_although_the_run_is_taken_before_it() {
    let executed = executed("s1", "ap1");
    let mut unread = asked_chat(false);
    unread.record_received(&executed);
    let mut table = ending_while_a_tool_runs();
    let loaded_in_run = table.pop().unwrap();
    table.extend([
        ("load", Input::CallSettled(Box::new(executed))),
        ("append r1/1@2 results tool-output-available", Input::Redeemed),
        ("", appended()),
        ("", loaded_in_run.1),
        ("save [u1 a0]", Input::Saved(true)),
        ("append r1/1@4 abort [DONE] end", refused(AppendRefusal::Taken)),
        ("stop agent · revoke unshown · load", loaded(unread)),
        ("begin r1-1", Input::Begun(BeginResult::Begun(Fence(1)))),
    ]);
    check(turn(answer("s1", "ap1", true)), table, "save [u1 a0] live r1-1/1 a0");
}

#[test]
fn a_run_is_saved_after_the_load_that_is_under_way() {
    let executed = executed("s1", "ap1");
    let mut unread = asked_chat(false);
    unread.record_received(&executed);
    let before = || loaded(with_run(asked_chat(false), "r1", "a0"));
    let mut table = ending_while_a_tool_runs();
    table.pop();
    table.extend([
        ("load", Input::CallSettled(Box::new(executed))),
        ("append r1/1@2 results tool-output-available", Input::Redeemed),
        ("", before()),
        ("", Input::ChatChanged),
        ("load", appended()),
        ("", before()),
        ("save [u1 a0]", Input::Saved(true)),
        ("append r1/1@4 abort [DONE] end", appended()),
        ("load", loaded(unread)),
        ("begin r1-1", Input::Begun(BeginResult::Begun(Fence(1)))),
    ]);
    check(turn(answer("s1", "ap1", true)), table, "save [u1 a0] live r1-1/1 a0");
}

#[test]
fn a_result_that_arrives_during_the_last_save_is_not_in_the_log_and_is_saved_later() {
    let mut table = ending_while_a_tool_runs();
    // Nothing is loaded before the end, so nothing that is older than the save.
    table.push(("save [u1 a0]", Input::ChatChanged));
    table.push(("", Input::CallSettled(Box::new(executed("s1", "ap1")))));
    table.push(("", Input::Redeemed));
    table.push(("", Input::Saved(true)));
    table.push(("append r1/1@2 abort [DONE] end", appended()));
    table.push(("load", loaded(asked_chat(false))));
    table.push(("begin r1-1", Input::Begun(BeginResult::Begun(Fence(1)))));
    check(turn(answer("s1", "ap1", true)), table, "save [u1 a0] live r1-1/1 a0");
}

#[test]
fn a_result_that_arrives_after_a_save_without_a_reply_is_not_in_the_log_either() {
    let mut table = ending_while_a_tool_runs();
    table.push(("save [u1 a0]", Input::SaveUnknown));
    table.push(("load", Input::CallSettled(Box::new(executed("s1", "ap1")))));
    table.push(("", Input::Redeemed));
    table.push(("", loaded(asked_chat(false))));
    table.push(("append r1/1@2 abort [DONE] end", appended()));
    table.push(("load", loaded(asked_chat(false))));
    table.push(("begin r1-1", Input::Begun(BeginResult::Begun(Fence(1)))));
    check(turn(answer("s1", "ap1", true)), table, "save [u1 a0] live r1-1/1 a0");
}

#[test]
fn a_run_that_is_ended_while_it_claims_approvals_does_not_call_the_model() {
    let granted = granted();
    let status = HolderStatus { has_to_end: true, ..HolderStatus::default() };
    let mut chat = with_run(asked_chat(true), "r1", "a0");
    chat.receive_result(&granted);
    let mut table = until_the_claim();
    table.extend([
        ("claim 1", Input::Tick),
        ("append r1/1@3", Input::Appended(AppendResult::Appended(status))),
        ("", Input::Claimed(vec![granted.result])),
        ("stop agent · append r1/1@3 claimed tool-output-error outcomes ended", appended()),
        ("load", loaded(chat)),
        ("save [u1 a0]", Input::Saved(true)),
    ]);
    check(turn(answer("p1", "ap1", true)), table, "append r1/1@7 abort [DONE] end");
}

#[test]
fn an_approval_of_another_page_stays_unsent_if_the_run_of_the_page_that_denied_it_is_ended() {
    let status = HolderStatus { has_to_end: true, ..HolderStatus::default() };
    let late = received("p1", "ap1", DeferredOutcome::ForwardedToProvider);
    let mut told = with_run(asked_chat(true), "r1", "a0");
    told.receive_result(&granted());
    let table = vec![
        ("load", loaded(asked_chat(true))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0", Input::Saved(true)),
        ("join r1 a0 · redeem 1 · append r1/1@0 start", appended()),
        ("", Input::CallSettled(Box::new(late))),
        ("", Input::Redeemed),
        ("load", loaded(told.clone())),
        ("append r1/1@1 results", Input::Appended(AppendResult::Appended(status))),
        // The step keeps the page from sending its answer again.
        ("stop agent · append r1/1@2 start-step data-run-end finish-step ended", appended()),
    ];
    let mut turn = check(turn(answer("p1", "ap1", false)), table, "load");
    turn.handle(loaded(told));
    let save = turn.poll();
    let Action::Start(Effect::Save { chat, .. }) = save else { panic!("{save:?}") };
    assert_eq!(chat.unsent_approvals, [granted().result]);
}

#[test]
fn a_run_whose_save_had_no_reply_begins_with_the_results_that_were_saved_meanwhile() {
    let mut told = with_run(asked_chat(true), "r1", "a0");
    told.receive_result(&granted());
    let status = HolderStatus { has_to_end: true, ..HolderStatus::default() };
    let table = vec![
        ("load", loaded(asked_chat(true))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0", Input::SaveUnknown),
        ("load", loaded(told)),
        (
            "join r1 a0 · redeem 1 · append r1/1@0 start results",
            Input::CallSettled(Box::new(granted())),
        ),
        ("", Input::Appended(AppendResult::Appended(status))),
    ];
    // The approval is sent by the next run.
    let last = "stop agent · append r1/1@2 start-step data-run-end finish-step ended";
    check(turn(answer("p1", "ap1", false)), table, last);
}

#[test]
fn answers_to_a_removed_message_begin_no_run() {
    let regenerate = r#"{"id":"c","trigger":"regenerate-message","messageId":"a0","messages":[
        {"id":"u1","role":"user","parts":[{"type":"text","text":"Hi"}]}]}"#;
    let request = ChatRequest::parse(regenerate.as_bytes(), &Limits::default()).unwrap();
    let mut chat = asked_chat(false);
    let _ = chat.apply_request(&request, PostedHistory::Keep);
    chat.set_live_run(live("r0", "a9"));
    let mut chat = crate::chat::run_log::keep_log(&chat, &live("r0", "a9"), &log_of_half_a_text());
    chat.end_live_run();
    let closed = received("s1", "ap1", DeferredOutcome::Superseded);
    let table = vec![
        ("load", loaded(chat.clone())),
        ("redeem 1", Input::CallSettled(Box::new(closed))),
        ("load", loaded(chat.clone())),
        ("", Input::Redeemed),
        ("load", loaded(chat)),
    ];
    check(turn(answer("s1", "ap1", true)), table, "stored a9 · end");
}

#[test]
fn answers_whose_message_is_removed_after_their_run_was_begun_end_its_log() {
    let table = vec![
        ("load", loaded(asked_chat(false))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0", Input::Saved(false)),
        // The user has edited the question, and the run that answered it has written nothing.
        ("load", loaded(edited_chat())),
        ("already received · redeem 1", Input::Redeemed),
    ];
    check(turn(answer("s1", "ap1", true)), table, "append r1/1@0 end · end");
}

#[test]
fn requests_of_a_model_call_that_failed_are_revoked_after_the_next_call() {
    let mut turn = running();
    let mut told = live_chat("r1", "a1");
    told.receive_result(&executed("s1", "ap1"));
    let inputs = [
        Input::Agent(question(false).0),
        Input::Agent(question(false).1),
        appended(),
        appended(),
        Input::Agent(AgentEvent::error("failed")),
        appended(),
        // The result is unread, and the model is called again.
        loaded(told.clone()),
        appended(),
        appended(),
        finish(),
        appended(),
    ];
    for input in inputs {
        let _ = actions(&mut turn);
        turn.handle(input);
    }
    assert_eq!(actions(&mut turn), "load");
    turn.handle(loaded(told));
    let save = turn.poll();
    let Action::Start(Effect::Save { ended, .. }) = save else { panic!("{save:?}") };
    assert!(ended.is_some());
}

#[test]
fn a_run_whose_approvals_cannot_be_claimed_ends_with_an_error() {
    let mut table = until_the_claim();
    table.extend([
        ("claim 1", Input::NotClaimed),
        ("stop agent · append r1/1@3 claimed tool-output-error outcomes ended", appended()),
        ("load", loaded(with_run(asked_chat(true), "r1", "a0"))),
        ("save [u1 a0]", Input::Saved(true)),
    ]);
    check(turn(answer("p1", "ap1", true)), table, "append r1/1@7 error finish [DONE] end");
}
