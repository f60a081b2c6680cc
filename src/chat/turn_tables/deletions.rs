//! Conversations that are deleted.

use super::harness::*;
use crate::chat::log::{AppendRefusal, BeginResult, Fence};
use crate::chat::turn::machine::{Input, Request};

#[test]
fn a_deletion_takes_the_run_and_revokes_before_and_after_it_deletes() {
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 any", taken(2)),
        ("read r0", Input::Log(Some(log_of_half_a_text()))),
        ("load", loaded(live_chat("r0", "a0"))),
        ("revoke all @1", Input::Revoked),
        ("delete @1", Input::Deleted(true)),
        // The user may begin a new conversation with this id, and its agent may ask at once.
        ("revoke all of none", Input::Revoked),
        ("append r0/2@5 text-end finish-step ended abort [DONE] end", appended()),
    ];
    check(turn(Request::Delete), table, "nothing · end");
}

#[test]
fn a_deletion_of_a_chat_that_has_changed_loads_it_again() {
    let table = vec![
        ("load", loaded(answered_chat())),
        ("revoke all @1", Input::Revoked),
        // Another turn has begun a run meanwhile.
        ("delete @1", Input::Deleted(false)),
        ("load", loaded(live_chat("r0", "a0"))),
    ];
    check(turn(Request::Delete), table, "take r0/1 any");
}

#[test]
fn a_deletion_whose_chat_is_gone_revokes_what_is_left_of_it() {
    let table = vec![("load", Input::Loaded(None)), ("revoke all of none", Input::Revoked)];
    check(turn(Request::Delete), table, "nothing · end");
}

#[test]
fn a_deletion_whose_chat_is_gone_ends_the_log_that_it_has_taken() {
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 any", taken(2)),
        ("read r0", Input::Log(Some(log_of_half_a_text()))),
        ("load", Input::Loaded(None)),
        ("revoke all of none", Input::Revoked),
        ("append r0/2@5 finish [DONE] end", appended()),
    ];
    check(turn(Request::Delete), table, "nothing · end");
}

#[test]
fn a_deletion_that_fails_deletes_nothing_more() {
    for last in [
        vec![("load", Input::Failed)],
        vec![("load", loaded(answered_chat())), ("revoke all @1", Input::Failed)],
        vec![
            ("load", loaded(answered_chat())),
            ("revoke all @1", Input::Revoked),
            ("delete @1", Input::Failed),
        ],
    ] {
        check(turn(Request::Delete), last, "failed · end");
    }
}

#[test]
fn a_run_whose_chat_was_deleted_does_not_save_it() {
    let table = vec![
        ("", text("Hello")),
        ("append r1/1@2 start-step text-start text-delta", appended()),
        ("", finish()),
        ("stop agent · append r1/1@5 text-end finish-step ended", appended()),
        ("load", Input::Loaded(None)),
        ("append r1/1@8", refused(AppendRefusal::Taken)),
    ];
    check(running(), table, "stop agent · revoke unshown · end");
}

#[test]
fn a_turn_that_has_responded_does_not_create_a_deleted_chat() {
    // The answers have begun a run, and a result arrives after the run was taken.
    let table = vec![
        ("load", loaded(asked_chat(false))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0", Input::Saved(true)),
        ("join r1 a0 · redeem 1 · append r1/1@0 start", refused(AppendRefusal::Taken)),
        ("stop agent · revoke unshown", Input::CallSettled(Box::new(executed("s1", "ap1")))),
        ("load", Input::Loaded(None)),
        ("", Input::Redeemed),
    ];
    check(turn(answer("s1", "ap1", true)), table, "end");
}

#[test]
fn a_reader_ends_the_log_of_a_run_whose_chat_was_deleted() {
    let table = vec![
        ("take r0/1 passed", taken(2)),
        ("read r0", Input::Log(Some(log_of_half_a_text()))),
        ("load", Input::Loaded(None)),
        ("append r0/2@5 finish [DONE] end", appended()),
    ];
    let request = Request::Mend { run: "r0".into(), fence: Fence(1) };
    check(turn(request), table, "nothing · end");
}
