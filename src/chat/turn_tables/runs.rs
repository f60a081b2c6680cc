//! What a live run appends, saves and waits for.

use super::harness::*;
use crate::chat::log::{
    AppendRefusal, AppendResult, BeginResult, Fence, HolderStatus, LogEntry, TakeRefusal,
    TakeResult,
};
use crate::chat::turn::machine::{Action, ChatTurn, Effect, Input, Request};
use crate::event::AgentEvent;

#[test]
fn a_new_message_begins_a_run_and_ends_it_after_the_save() {
    let table = vec![
        ("load", Input::Loaded(None)),
        ("close 0", nothing_closed()),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1] live r1/1 a1", Input::Saved(true)),
        ("join r1 a1 · append r1/1@0 start step", appended()),
        ("call agent", text("Hello")),
        ("append r1/1@2 start-step text-start text-delta", appended()),
        ("", finish()),
        ("stop agent · append r1/1@5 text-end finish-step ended", appended()),
        ("load", Input::Loaded(Some((Box::new(live_chat("r1", "a1")), 7)))),
        ("save [u1 a1]@7", Input::Saved(true)),
        ("append r1/1@8 finish [DONE] end", appended()),
    ];
    check(turn(post(NEW_MESSAGE)), table, "end");
}

/// Returns a turn whose agent has ended a step and begun the next one. The log holds 7 entries.
fn in_the_second_step() -> ChatTurn {
    let mut turn = running();
    turn.handle(text("One"));
    turn.handle(Input::Agent(AgentEvent::StepFinish));
    let step = "append r1/1@2 start-step text-start text-delta text-end finish-step";
    let mut turn = check(turn, vec![(step, appended())], "");
    turn.handle(Input::Agent(AgentEvent::StepStart));
    turn
}

#[test]
fn the_message_is_saved_at_the_end_of_each_step_but_the_last() {
    let table = vec![
        ("load", loaded(live_chat("r1", "a1"))),
        ("save [u1 a1] live r1/1 a1 keeps 7", Input::Saved(true)),
        ("", text("Two")),
        ("append r1/1@7 start-step text-start text-delta", appended()),
        ("", Input::AgentEnded),
        ("append r1/1@10 text-end finish-step ended", appended()),
        ("load", loaded(live_chat("r1", "a1"))),
        ("save [u1 a1]", Input::Saved(true)),
        ("append r1/1@13 finish [DONE] end", appended()),
    ];
    check(in_the_second_step(), table, "end");
}

#[test]
fn a_save_of_a_step_whose_reply_was_lost_is_not_repeated() {
    let table = vec![
        ("load", loaded(live_chat("r1", "a1"))),
        ("save [u1 a1] live r1/1 a1 keeps 7", Input::SaveUnknown),
    ];
    check(in_the_second_step(), table, "");
}

#[test]
fn a_turn_whose_run_is_taken_during_a_save_and_a_load_waits_for_both_replies() {
    let table = vec![
        ("load", loaded(live_chat("r1", "a1"))),
        ("save [u1 a1] live r1/1 a1 keeps 7", Input::Tick),
        ("load · append r1/1@7", refused(AppendRefusal::Taken)),
        ("stop agent", Input::Saved(false)),
        ("", loaded(live_chat("r1", "a1"))),
    ];
    check(in_the_second_step(), table, "revoke unshown · end");
}

#[test]
fn what_is_said_during_an_append_joins_the_next_one() {
    let mut turn = running();
    turn.handle(text("a"));
    assert_eq!(actions(&mut turn), "append r1/1@2 start-step text-start text-delta");
    for _ in 0..3 {
        turn.handle(text("b"));
        assert_eq!(actions(&mut turn), "");
    }
    turn.handle(appended());
    assert_eq!(actions(&mut turn), "append r1/1@5 text-delta text-delta text-delta");
}

#[test]
fn an_agent_waits_while_256_kib_are_not_stored() {
    let mut turn = running();
    assert!(turn.accepts_events());
    turn.handle(text("a"));
    let _ = actions(&mut turn);
    turn.handle(text(&"x".repeat(256 * 1024)));
    assert!(!turn.accepts_events());
    let _ = actions(&mut turn);
    turn.handle(appended());
    let _ = actions(&mut turn);
    assert!(!turn.accepts_events(), "the long text is being appended");
    turn.handle(appended());
    assert!(turn.accepts_events());
}

#[test]
fn a_silent_run_renews_its_lease_and_looks_for_results() {
    let table = vec![
        ("", Input::Tick),
        ("load · append r1/1@2", appended()),
        ("", loaded(live_chat("r1", "a1"))),
    ];
    check(running(), table, "");
}

#[test]
fn after_a_refused_append_the_agent_stops_and_the_turn_is_over() {
    let table = vec![
        ("", Input::Tick),
        ("load · append r1/1@2", refused(AppendRefusal::Taken)),
        ("stop agent", loaded(live_chat("r1", "a1"))),
    ];
    check(running(), table, "revoke unshown · end");
}

#[test]
fn a_run_that_reaches_a_limit_before_its_model_call_ends_with_the_error() {
    let status = HolderStatus { has_to_end: true, ..HolderStatus::default() };
    let limit = Input::Appended(AppendResult::Appended(status));
    let mut table = vec![
        ("load", loaded(asked_chat(false))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0", Input::Saved(true)),
        ("join r1 a0 · redeem 1 · append r1/1@0 start", appended()),
        ("", Input::CallSettled(Box::new(executed("s1", "ap1")))),
        ("append r1/1@1 results tool-output-available", Input::Redeemed),
        ("", limit),
    ];
    table
        .push(("stop agent · append r1/1@3 start-step data-run-end finish-step ended", appended()));
    check(turn(answer("s1", "ap1", true)), table, "load");
}

#[test]
fn a_save_that_only_sets_the_fence_revokes_no_requests_that_the_log_shows() {
    let mut log = log_of_a_question(false);
    log.push(frame(r#"{"type":"finish-step"}"#));
    log.push(LogEntry::Note(r#"{"ended":{"frames":[]}}"#.into()));
    let mut answered = live_chat("r0", "a0");
    answered.receive_result(&executed("s1", "ap1"));
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 any", taken(2)),
        ("read r0", Input::Log(Some(log))),
        ("load", loaded(live_chat("r0", "a0"))),
        // Another turn has saved a result, which the log lacks.
        ("save [u1 a0]", Input::Saved(false)),
    ];
    let mut turn = check(turn(Request::Stop), table, "load");
    turn.handle(loaded(answered));
    let save = turn.poll();
    let Action::Start(Effect::Save { chat, ended, .. }) = save else { panic!("{save:?}") };
    assert_eq!(chat.live_run(), fenced(live_chat("r0", "a0"), 2).live_run());
    assert!(ended.is_none(), "{ended:?}");
}

#[test]
fn a_run_whose_chat_the_store_has_lost_saves_it_after_an_append() {
    let table = vec![
        ("", text("Hello")),
        ("append r1/1@2 start-step text-start text-delta", appended()),
        ("", finish()),
        ("stop agent · append r1/1@5 text-end finish-step ended", appended()),
        ("load", Input::Loaded(None)),
        ("append r1/1@8", appended()),
        ("save [u1 a1]", Input::Saved(true)),
        ("append r1/1@8 finish [DONE] end", appended()),
    ];
    check(running(), table, "end");
}

#[test]
fn each_save_counts_the_messages_that_it_does_not_change() {
    let mut chat = answered_chat();
    for number in 1..200 {
        chat.messages.push(crate::message::UiMessage::new(
            format!("more{number}"),
            crate::message::Role::User,
            Vec::new(),
        ));
    }
    let mut turn = turn(post(SECOND_MESSAGE));
    let unchanged = |turn: &mut ChatTurn| loop {
        match turn.poll() {
            Action::Start(Effect::Save { chat, unchanged, revision, .. }) => {
                break (*chat, unchanged, revision);
            }
            Action::Wait | Action::End => panic!("no save"),
            _ => {}
        }
    };
    let _ = actions(&mut turn);
    turn.handle(loaded(chat));
    let _ = actions(&mut turn);
    turn.handle(nothing_closed());
    turn.handle(Input::Redeemed);
    let _ = actions(&mut turn);
    turn.handle(Input::Begun(BeginResult::Begun(Fence(1))));
    let (saved, first, _) = unchanged(&mut turn);
    assert_eq!((saved.messages.len(), first), (202, 201));
    turn.handle(Input::Saved(true));
    let _ = actions(&mut turn);
    turn.handle(appended());
    let _ = actions(&mut turn);
    turn.handle(text("Hello"));
    let _ = actions(&mut turn);
    turn.handle(finish());
    for _ in 0..2 {
        let _ = actions(&mut turn);
        turn.handle(appended());
    }
    let _ = actions(&mut turn);
    turn.handle(Input::Loaded(Some((Box::new(saved), 2))));
    let (saved, second, revision) = unchanged(&mut turn);
    assert_eq!((saved.messages.len(), second, revision), (203, 202, Some(2)));
}

#[test]
fn a_save_without_a_reply_is_compared_with_the_chat() {
    let begin = || {
        vec![
            ("load", Input::Loaded(None)),
            ("close 0", nothing_closed()),
            ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
            ("save [u1] live r1/1 a1", Input::SaveUnknown),
        ]
    };
    let mut arrived = begin();
    arrived.push(("load", loaded(live_chat("r1", "a1"))));
    check(turn(post(NEW_MESSAGE)), arrived, "join r1 a1 · append r1/1@0 start step");
    // The save may have arrived and its run may have ended: the id of the run is not used again.
    let mut lost = begin();
    lost.push(("load", Input::Loaded(None)));
    lost.push(("begin r1-1", Input::Begun(BeginResult::Begun(Fence(1)))));
    check(turn(post(NEW_MESSAGE)), lost, "save [u1] live r1-1/1 a1");
}

#[test]
fn the_end_follows_a_save_whose_reply_was_lost() {
    let table = vec![
        ("", finish()),
        ("stop agent · append r1/1@2 ended", appended()),
        ("load", loaded(live_chat("r1", "a1"))),
        ("save [u1]", Input::Saved(false)),
        ("load", loaded(answered_chat())),
        ("append r1/1@3 finish [DONE] end", appended()),
    ];
    check(running(), table, "end");
}

#[test]
fn a_failed_turn_ends_the_run_that_it_has_begun() {
    let table = vec![
        ("load", Input::Loaded(None)),
        ("close 0", nothing_closed()),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1] live r1/1 a1", Input::Saved(false)),
        ("load", Input::Failed),
    ];
    check(turn(post(NEW_MESSAGE)), table, "append r1/1@0 end · failed · end");
    // The conversation may name the run.
    let table = vec![
        ("load", Input::Loaded(None)),
        ("close 0", nothing_closed()),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1] live r1/1 a1", Input::Failed),
    ];
    check(turn(post(NEW_MESSAGE)), table, "failed · end");
}

#[test]
fn a_run_whose_log_is_lost_is_replaced() {
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 any", Input::Taken(TakeResult::Refused(TakeRefusal::NotFound))),
        ("read r0", Input::Log(None)),
        ("load", loaded(live_chat("r0", "a0"))),
        ("close 0", nothing_closed()),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 u2] live r1/1 a1", Input::Saved(true)),
    ];
    check(turn(post(SECOND_MESSAGE)), table, "join r1 a1 · append r1/1@0 start step");
}

#[test]
fn a_run_without_readers_and_one_that_has_to_end_are_stopped() {
    let unread = HolderStatus { unread: std::time::Duration::from_secs(600), has_to_end: false };
    let has_to_end = HolderStatus { has_to_end: true, ..HolderStatus::default() };
    for status in [unread, has_to_end] {
        let status = Input::Appended(AppendResult::Appended(status));
        let table = vec![
            ("", text("a")),
            ("append r1/1@2 start-step text-start text-delta", status),
            ("stop agent · append r1/1@5 text-end finish-step ended", appended()),
            ("load", loaded(live_chat("r1", "a1"))),
            ("save [u1 a1]", Input::Saved(true)),
        ];
        check(running(), table, "append r1/1@8 abort [DONE] end");
    }
}

#[test]
fn a_log_that_is_too_long_ends_with_an_error() {
    let long = "x".repeat(2 << 20);
    let table = vec![
        ("", text(&long)),
        ("append r1/1@2 start-step text-start text-delta", appended()),
        ("stop agent · append r1/1@5 text-end finish-step ended", appended()),
        ("load", loaded(live_chat("r1", "a1"))),
        ("save [u1 a1]", Input::Saved(true)),
    ];
    check(running(), table, "append r1/1@8 error finish [DONE] end");
}

#[test]
fn a_failing_store_ends_the_turn() {
    check(turn(post(NEW_MESSAGE)), vec![("load", Input::Failed)], "failed · end");
}

#[test]
fn a_run_whose_store_fails_stops_its_agent_also_while_an_append_has_no_reply() {
    check(running(), vec![("", Input::Failed)], "stop agent · revoke unshown · end");
    let table =
        vec![("", text("a")), ("append r1/1@2 start-step text-start text-delta", Input::Failed)];
    check(running(), table, "stop agent · revoke unshown · end");
}
