//! Runs that another turn takes or stops.

use super::harness::*;
use crate::chat::conversation::LiveRun;
use crate::chat::log::{AppendRefusal, BeginResult, Fence, TakeRefusal, TakeResult};
use crate::chat::turn::machine::{Input, Request};

#[test]
fn a_second_message_takes_the_run_and_keeps_its_message() {
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 any", taken(2)),
        ("read r0", Input::Log(Some(log_of_half_a_text()))),
        ("load", loaded(live_chat("r0", "a0"))),
        ("close 0", nothing_closed()),
        // The fence in the chat keeps the old holder from saving an end without these frames.
        ("save [u1] live r0/2 a0", Input::Saved(true)),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("append r0/2@5 text-end finish-step ended", appended()),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0 u2] live r1/1 a1", Input::Saved(true)),
        ("append r0/2@8 abort [DONE] end", appended()),
    ];
    check(turn(post(SECOND_MESSAGE)), table, "join r1 a1 · append r1/1@0 start step");
}

#[test]
fn a_turn_whose_fence_is_older_than_the_one_in_the_chat_waits() {
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 any", taken(2)),
        ("read r0", Input::Log(Some(log_of_half_a_text()))),
        ("load", loaded(fenced(live_chat("r0", "a0"), 3))),
        ("", Input::ChatChanged),
        // The other turn is ending the run, unless its lease passes.
        ("load", loaded(fenced(live_chat("r0", "a0"), 3))),
        ("take r0/3 passed", is_live()),
        ("", Input::Tick),
    ];
    check(turn(post(SECOND_MESSAGE)), table, "load");
}

#[test]
fn a_turn_that_lost_the_take_waits_until_the_other_one_has_ended_the_run_or_is_lost() {
    let other = || Input::Taken(TakeResult::Refused(TakeRefusal::OtherFence(Fence(2))));
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 any", other()),
        ("take r0/2 passed", is_live()),
        ("", Input::Tick),
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 any", other()),
        ("take r0/2 passed", taken(3)),
    ];
    check(turn(post(SECOND_MESSAGE)), table, "read r0");
}

#[test]
fn stop_keeps_the_half_written_message_and_names_no_run() {
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 any", taken(2)),
        ("read r0", Input::Log(Some(log_of_half_a_text()))),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("append r0/2@5 text-end finish-step ended", appended()),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("save [u1 a0]", Input::Saved(true)),
        ("append r0/2@8 abort [DONE] end", appended()),
    ];
    check(turn(Request::Stop), table, "nothing · end");
}

/// The page that has approved the call sends its answer again when a response ends, unless the response
/// ends with another step. That would go on after the stop.
#[test]
fn a_stop_while_an_approved_call_is_executed_ends_with_a_step() {
    let log = vec![
        frame(r#"{"type":"start","messageId":"a0"}"#),
        frame(r#"{"type":"data-approval","id":"s1","data":{"state":"approved"}}"#),
    ];
    let chat = || with_run(asked_chat(false), "r0", "a0");
    let table = vec![
        ("load", loaded(chat())),
        ("take r0/1 any", taken(2)),
        ("read r0", Input::Log(Some(log))),
        ("load", loaded(chat())),
        ("save [u1 a0] live r0/2 a0", Input::Saved(true)),
        ("load", loaded(fenced(chat(), 2))),
    ];
    let end = "append r0/2@2 start-step data-run-end finish-step ended";
    check(turn(Request::Stop), table, end);
}

#[test]
fn a_stop_during_the_mending_of_a_lost_run_stops_the_run_that_resumes_it() {
    let mut resumed = live_chat("r1", "a0");
    resumed.set_live_run(LiveRun { resumes: Some(lost("r0")), ..live("r1", "a0") });
    let table = vec![
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("take r0/2 passed", Input::Taken(TakeResult::Refused(TakeRefusal::LeaseRenewed))),
        ("", Input::ChatChanged),
        ("load", loaded(resumed)),
    ];
    check(turn(Request::Stop), table, "take r1/1 any");
}

#[test]
fn stop_without_a_run_does_nothing() {
    for chat in [None, Some((Box::new(answered_chat()), 1))] {
        let table = vec![("load", Input::Loaded(chat))];
        check(turn(Request::Stop), table, "nothing · end");
    }
}

#[test]
fn a_request_joins_a_run_that_was_taken_unless_the_turn_that_took_it_is_lost() {
    let other = || Input::Taken(TakeResult::Refused(TakeRefusal::OtherFence(Fence(2))));
    for (result, last) in [(is_live(), "join r0 a0 · end"), (taken(3), "read r0")] {
        let table = vec![
            ("load", loaded(live_chat("r0", "a0"))),
            ("take r0/1 passed", other()),
            ("take r0/2 passed", result),
        ];
        check(turn(Request::Follow), table, last);
    }
}

#[test]
fn results_that_arrive_after_the_run_was_taken_are_saved() {
    let chat = || with_run(asked_chat(false), "r1", "a0");
    let mut next = asked_chat(false);
    next.set_stopped();
    let table = vec![
        ("load", loaded(asked_chat(false))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0", Input::Saved(true)),
        ("join r1 a0 · redeem 1 · append r1/1@0 start", refused(AppendRefusal::Taken)),
        ("stop agent · revoke unshown", Input::CallSettled(Box::new(executed("s1", "ap1")))),
        ("load", loaded(chat())),
        ("save [u1 a0] live r1/1 a0 new 1", Input::Saved(false)),
        // The user has stopped the run: its message is not continued.
        ("load", loaded(next)),
    ];
    check(turn(answer("s1", "ap1", true)), table, "save [u1 a0]");
}
