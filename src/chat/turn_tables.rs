//! The decisions of [`ChatTurn`] as tables: the actions that a turn asks for, and the inputs that it
//! gets.

mod harness;

use self::harness::*;
use crate::approval::DeferredOutcome;
use crate::chat::Chat;
use crate::chat::conversation::{KeptSteps, LiveRun, LostRun, PostedHistory, ReceivedResult};
use crate::chat::log::{
    AppendRefusal, AppendResult, BeginResult, Fence, HolderStatus, LogEntry, TakeRefusal,
    TakeResult,
};
use crate::chat::turn::machine::{Action, ChatTurn, Effect, Input, Request};
use crate::event::AgentEvent;
use crate::limits::ChatLimits;
use crate::request::{ChatRequest, Limits};

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
fn a_turn_whose_run_is_taken_during_a_save_waits_for_the_reply() {
    let table = vec![
        ("load", loaded(live_chat("r1", "a1"))),
        ("save [u1 a1] live r1/1 a1 keeps 7", Input::Tick),
        ("load · append r1/1@7", refused(AppendRefusal::Taken)),
        ("stop agent", Input::Saved(false)),
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
    let table = vec![("", Input::Tick), ("load · append r1/1@2", refused(AppendRefusal::Taken))];
    check(running(), table, "stop agent · revoke unshown · end");
}

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
fn stop_without_a_run_does_nothing() {
    for chat in [None, Some((Box::new(answered_chat()), 1))] {
        let table = vec![("load", Input::Loaded(chat))];
        check(turn(Request::Stop), table, "nothing · end");
    }
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
fn a_reader_mends_the_conversation_when_the_lease_has_passed() {
    let table = vec![
        ("take r0/1 passed", taken(2)),
        ("read r0", Input::Log(Some(log_of_half_a_text()))),
        ("load", loaded(live_chat("r0", "a0"))),
        ("save [u1] live r0/2 a0", Input::Saved(true)),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("append r0/2@5 text-end finish-step ended", appended()),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("save [u1 a0]", Input::Saved(true)),
        ("append r0/2@8 error finish [DONE] end", appended()),
    ];
    check(mend(), table, "nothing · end");
}

/// A run that was lost, and whose log has 6 entries.
fn lost(run: &str) -> LostRun {
    LostRun { run: run.into(), fence: Fence(2), entries: 6, losses: 1 }
}

/// What is read of a lost run: its log, and the conversation with the fence of the new holder.
fn lost_run(log: Vec<LogEntry>, chat: Chat) -> Vec<(&'static str, Input)> {
    vec![
        ("take r0/1 passed", taken(2)),
        ("read r0", Input::Log(Some(log))),
        ("load", loaded(fenced(chat, 2))),
    ]
}

fn log_of_a_step_with_a_call() -> Vec<LogEntry> {
    let mut log = log_of_a_question(false);
    log[4] = frame(r#"{"type":"tool-output-available","toolCallId":"s1","output":1}"#);
    log.push(frame(r#"{"type":"finish-step"}"#));
    log
}

#[test]
fn a_run_that_was_lost_between_two_steps_is_resumed_by_another_run() {
    let mut table = lost_run(log_of_a_step_with_a_call(), live_chat("r0", "a0"));
    table.extend([
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0 resumes r0", Input::Saved(true)),
        ("append r0/2@6 resumed-by end", appended()),
    ]);
    check(mend(), table, "join r1 a0 · append r1/1@0 start step");
}

#[test]
fn a_run_is_resumed_at_most_twice() {
    let lost_again = |losses| {
        let resumes = Some(LostRun { losses, ..lost("r") });
        let mut chat = live_chat("r0", "a0");
        chat.set_live_run(LiveRun { resumes, ..live("r0", "a0") });
        chat
    };
    let table = lost_run(log_of_a_step_with_a_call(), lost_again(1));
    check(mend(), table, "begin r1");
    let mut table = lost_run(log_of_a_step_with_a_call(), lost_again(2));
    table.extend([
        ("append r0/2@6 ended", appended()),
        ("load", loaded(fenced(lost_again(2), 2))),
        ("save [u1 a0]", Input::Saved(true)),
        ("append r0/2@7 error finish [DONE] end", appended()),
    ]);
    check(mend(), table, "nothing · end");
}

#[test]
fn a_lost_run_whose_message_is_complete_or_waits_for_an_answer_is_finished() {
    let mut text = log_of_half_a_text();
    text.push(frame(r#"{"type":"text-end","id":"1"}"#));
    text.push(frame(r#"{"type":"finish-step"}"#));
    let mut question = log_of_a_question(false);
    question.push(frame(r#"{"type":"finish-step"}"#));
    let mut table = lost_run(text, live_chat("r0", "a0"));
    table.extend([
        ("append r0/2@7 ended", appended()),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("save [u1 a0]", Input::Saved(true)),
    ]);
    check(mend(), table, "append r0/2@8 finish [DONE] end");
    let mut table = lost_run(question, live_chat("r0", "a0"));
    table.extend([
        ("find 1", nothing_closed()),
        ("append r0/2@6 ended", appended()),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("find 1", nothing_closed()),
        ("save [u1 a0]", Input::Saved(true)),
    ]);
    check(mend(), table, "append r0/2@7 finish [DONE] end");
}

#[test]
fn a_lost_run_whose_answers_were_not_redeemed_ends_with_an_error() {
    let start = vec![frame(r#"{"type":"start","messageId":"a0"}"#)];
    let mut table = lost_run(start, with_run(asked_chat(false), "r0", "a0"));
    table.extend([
        ("find 1", nothing_closed()),
        ("append r0/2@1 ended", appended()),
        ("load", loaded(fenced(with_run(asked_chat(false), "r0", "a0"), 2))),
        ("find 1", nothing_closed()),
        ("save [u1 a0]", Input::Saved(true)),
    ]);
    check(mend(), table, "append r0/2@2 error finish [DONE] end");
}

#[test]
fn a_run_that_was_lost_while_an_approved_call_was_executed_is_resumed() {
    let executing = r#"{"type":"data-approval","id":"s1","data":{"state":"approved"}}"#;
    let start = vec![frame(r#"{"type":"start","messageId":"a0"}"#), frame(executing)];
    let chat = || with_run(asked_chat(false), "r0", "a0");
    let mut table = lost_run(start, chat());
    table.extend([
        ("find 1", Input::CallsClosed(vec![executed("s1", "ap1")])),
        ("append r0/2@2 results tool-output-available", appended()),
        ("load", loaded(fenced(chat(), 2))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0 resumes r0", Input::Saved(true)),
    ]);
    check(mend(), table, "append r0/2@4 resumed-by end");
}

#[test]
fn a_run_for_one_page_is_joined_by_no_other_and_mended_by_all() {
    let only_for = |page: &str| {
        let mut chat = live_chat("r0", "a0");
        chat.set_live_run(LiveRun { only_for: Some(page.into()), ..live("r0", "a0") });
        chat
    };
    let join = |chat| vec![("load", loaded(chat)), ("take r0/1 passed", is_live())];
    check(turn(Request::Follow), join(only_for("lost")), "nothing · end");
    check(turn(Request::Follow), join(live_chat("r0", "a0")), "join r0 a0 · end");
    // The message is repeated by a page that does not hold the lost one. It waits for the end.
    let mut table = join(only_for("lost"));
    table.extend([("", Input::Tick), ("load", loaded(answered_chat()))]);
    check(turn(post(NEW_MESSAGE)), table, "stored a0 · end");
    let table = vec![("load", loaded(only_for("lost"))), ("take r0/1 passed", taken(2))];
    check(turn(Request::Follow), table, "read r0");
}

#[test]
fn a_lost_run_with_an_empty_log_gets_a_start_for_its_readers() {
    let mut table = lost_run(Vec::new(), live_chat("r0", "a0"));
    table.extend([
        ("append r0/2@0 start", appended()),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1] live r1/1 a0 resumes r0", Input::Saved(true)),
        ("append r0/2@1 resumed-by end", appended()),
    ]);
    check(mend(), table, "join r1 a0 · append r1/1@0 start step");
}

#[test]
fn a_step_whose_log_is_gone_is_not_repeated() {
    let table = vec![
        ("take r0/1 passed", Input::Taken(TakeResult::Refused(TakeRefusal::NotFound))),
        ("read r0", Input::Log(None)),
        ("load", loaded(live_chat("r0", "a0"))),
        ("save [u1]", Input::Saved(true)),
    ];
    check(mend(), table, "nothing · end");
    // The message holds more than the log.
    let log = log_of_a_step_with_a_call();
    let mut chat = crate::chat::run_log::keep_log(&live_chat("r0", "a0"), &live("r0", "a0"), &log);
    let kept = Some(KeptSteps { entries: 7, begun_parts: 0 });
    chat.set_live_run(LiveRun { kept, ..live("r0", "a0") });
    let mut table = lost_run(log, chat.clone());
    table.extend([
        ("append r0/2@6 ended", appended()),
        ("load", loaded(fenced(chat, 2))),
        ("save [u1 a0]", Input::Saved(true)),
        ("append r0/2@7 error finish [DONE] end", appended()),
    ]);
    check(mend(), table, "nothing · end");
}

#[test]
fn all_calls_of_a_cut_step_get_results_although_one_has_been_decided() {
    let mut log = log_of_a_question(false);
    log.push(frame(
        r#"{"type":"tool-input-available","toolCallId":"s2","toolName":"act","input":{}}"#,
    ));
    let chat = || fenced(live_chat("r0", "a0"), 2);
    let mut table = lost_run(log, chat());
    table.extend([
        ("find 1", Input::CallsClosed(vec![executed("s1", "ap1")])),
        (
            "append r0/2@6 results tool-output-available finish-step tool-output-error ended",
            appended(),
        ),
        ("load", loaded(chat())),
        ("save [u1 a0]", Input::Saved(true)),
        ("append r0/2@11 error finish [DONE] end", appended()),
    ]);
    check(mend(), table, "nothing · end");
}

#[test]
fn a_lost_run_whose_model_call_has_ended_ends_as_this_call_has() {
    let mut log = log_of_half_a_text();
    log.push(frame(r#"{"type":"text-end","id":"1"}"#));
    log.push(frame(r#"{"type":"finish-step"}"#));
    let abort = r#"{"ended":{"frames":["data: {\"type\":\"abort\"}\n\n"]}}"#;
    log.push(LogEntry::Note(abort.into()));
    let mut table = lost_run(log.clone(), live_chat("r0", "a0"));
    table.push(("save [u1 a0]", Input::Saved(true)));
    check(mend(), table, "append r0/2@8 abort [DONE] end");
    // Another turn has saved the message.
    let table = lost_run(log, answered_chat());
    check(mend(), table, "append r0/2@8 abort [DONE] end");
}

#[test]
fn a_call_of_the_client_in_a_kept_step_stays_open_when_the_run_is_lost() {
    let call = r#"{"client-executed":[{"toolCallId":"c1","toolName":"act","input":{}}]}"#;
    let mut log = log_of_a_question(false);
    log[3] = LogEntry::Note(call.into());
    log[4] =
        frame(r#"{"type":"tool-input-available","toolCallId":"c1","toolName":"act","input":{}}"#);
    log.push(frame(r#"{"type":"finish-step"}"#));
    let mut chat = crate::chat::run_log::keep_log(&live_chat("r0", "a0"), &live("r0", "a0"), &log);
    assert_eq!(chat.client_executed.len(), 1);
    let kept = Some(KeptSteps { entries: 6, begun_parts: 0 });
    chat.set_live_run(LiveRun { kept, ..live("r0", "a0") });
    log.push(frame(r#"{"type":"start-step"}"#));
    log.push(frame(r#"{"type":"text-start","id":"1"}"#));
    let mut table = lost_run(log, chat);
    table.push(("find 1", nothing_closed()));
    check(mend(), table, "append r0/2@8 text-end finish-step ended");
}

#[test]
fn an_approval_that_no_model_call_has_sent_stays_open_when_its_run_is_lost() {
    let mut log = log_of_a_question(true);
    log.push(frame(r#"{"type":"finish-step"}"#));
    let grant = serde_json::json!({ "results": { "results": [granted()], "frames": 0 } });
    log.push(LogEntry::Note(grant.to_string().into()));
    let mut chat = crate::chat::run_log::keep_log(&live_chat("r0", "a0"), &live("r0", "a0"), &log);
    assert_eq!(chat.unsent_approvals.len(), 1);
    let kept = Some(KeptSteps { entries: 7, begun_parts: 0 });
    chat.set_live_run(LiveRun { kept, ..live("r0", "a0") });
    log.push(frame(r#"{"type":"start-step"}"#));
    log.push(frame(r#"{"type":"text-start","id":"1"}"#));
    let table = lost_run(log, chat);
    check(mend(), table, "append r0/2@9 text-end finish-step ended");
}

#[test]
fn a_question_that_is_sent_again_reads_the_end_of_its_lost_run() {
    let chat = || fenced(live_chat("r0", "a0"), 2);
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 passed", taken(2)),
        ("read r0", Input::Log(Some(log_of_half_a_text()))),
        ("load", loaded(chat())),
        ("append r0/2@5 text-end finish-step ended", appended()),
        ("load", loaded(chat())),
        ("save [u1 a0]", Input::Saved(true)),
        ("append r0/2@8 error finish [DONE] end", appended()),
    ];
    check(turn(post(NEW_MESSAGE)), table, "join r0 a0 · end");
}

#[test]
fn answers_that_are_known_read_the_end_of_their_lost_run() {
    let answered = || {
        let mut chat = asked_chat(false);
        chat.record_received(&executed("s1", "ap1"));
        chat.set_unread_results(false);
        fenced(with_run(chat, "r0", "a0"), 2)
    };
    let log = vec![
        frame(r#"{"type":"start","messageId":"a0"}"#),
        LogEntry::Note(r#""step""#.into()),
        frame(r#"{"type":"start-step"}"#),
        frame(r#"{"type":"text-start","id":"1"}"#),
    ];
    let mut saved = answered();
    saved.end_live_run();
    let table = vec![
        ("load", loaded(answered())),
        ("redeem 1", Input::Redeemed),
        ("load", loaded(answered())),
        ("take r0/2 passed", taken(3)),
        ("read r0", Input::Log(Some(log))),
        ("load", loaded(fenced(answered(), 3))),
        ("append r0/3@4 text-end finish-step ended", appended()),
        ("load", loaded(fenced(answered(), 3))),
        ("save [u1 a0]", Input::Saved(true)),
        ("load", loaded(saved.clone())),
        ("append r0/3@7 error finish [DONE] end", appended()),
        ("load", loaded(saved)),
    ];
    check(turn(answer("s1", "ap1", true)), table, "join r0 a0 · end");
}

#[test]
fn a_run_that_was_lost_before_it_began_ends_the_log_that_it_resumes() {
    let chat = || {
        let mut chat = chat_with(log_of_a_step_with_a_call());
        chat.set_live_run(LiveRun { resumes: Some(lost("r0")), ..live("r9", "a0") });
        fenced(chat, 2)
    };
    let mend = turn(Request::Mend { run: "r9".into(), fence: Fence(1) });
    let table = vec![
        ("take r9/1 passed", taken(2)),
        ("read r9", Input::Log(Some(Vec::new()))),
        ("load", loaded(chat())),
        ("append r0/2@6 resumed-by end · append r9/2@0 start", appended()),
        ("load", loaded(chat())),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1 a0] live r1/1 a0 resumes r9", Input::Saved(true)),
        ("append r9/2@1 resumed-by end", appended()),
    ];
    check(mend, table, "join r1 a0 · append r1/1@0 start step");
}

#[test]
fn a_regeneration_that_is_sent_again_joins_the_run_whose_first_step_is_kept() {
    let regenerate = post(
        r#"{"id":"c","trigger":"regenerate-message","messageId":"a0","messages":[
        {"id":"u1","role":"user","parts":[{"type":"text","text":"Hi"}]}]}"#,
    );
    let regenerated = |live_run: LiveRun| {
        let Request::Post(request) = &regenerate else { panic!("not a post") };
        let mut chat = answered_chat();
        let _ = chat.apply_request(request, PostedHistory::Keep);
        let log = log_of_a_step_with_a_call();
        chat.set_live_run(live("r5", "a5"));
        let mut chat = crate::chat::run_log::keep_log(&chat, &live("r5", "a5"), &log);
        chat.set_live_run(live_run);
        chat
    };
    let kept = Some(KeptSteps { entries: 6, begun_parts: 0 });
    let resumes = Some(lost("r4"));
    for run in [LiveRun { kept, ..live("r5", "a5") }, LiveRun { resumes, ..live("r5", "a5") }] {
        let table = vec![("load", loaded(regenerated(run))), ("take r5/1 passed", is_live())];
        check(turn(regenerate.clone()), table, "join r5 a5 · end");
    }
}

#[test]
fn the_log_of_a_resumed_run_names_the_run_that_resumes_it() {
    // The turn that has saved this was lost before it ended the log.
    let mut chat = live_chat("r9", "a0");
    let resumes = Some(lost("r0"));
    chat.set_live_run(LiveRun { resumes, ..live("r9", "a0") });
    let mut table = lost_run(log_of_a_step_with_a_call(), chat.clone());
    table.push(("append r0/2@6 resumed-by end", appended()));
    table.push(("load", loaded(chat)));
    check(mend(), table, "nothing · end");
}

#[test]
fn a_question_whose_run_was_lost_before_it_wrote_anything_is_answered_by_another_run() {
    let table = vec![
        ("take r0/1 passed", taken(2)),
        ("read r0", Input::Log(Some(log_of_half_a_text()[..2].to_vec()))),
        ("load", loaded(live_chat("r0", "a0"))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1] live r1/1 a0 resumes r0", Input::Saved(true)),
        ("append r0/2@2 resumed-by end", appended()),
    ];
    check(mend(), table, "join r1 a0 · append r1/1@0 start step");
}

#[test]
fn a_lost_run_that_the_conversation_no_longer_names_is_ended() {
    for chat in [Some((Box::new(answered_chat()), 1)), None] {
        let table = vec![
            ("take r0/1 passed", taken(2)),
            ("read r0", Input::Log(Some(log_of_half_a_text()))),
            ("load", Input::Loaded(chat.clone())),
            ("append r0/2@5 finish [DONE] end", appended()),
        ];
        match chat {
            Some(chat) => {
                let mut table = table;
                table.push(("load", Input::Loaded(Some(chat))));
                check(mend(), table, "nothing · end");
            }
            None => drop(check(mend(), table, "nothing · end")),
        }
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
fn a_run_whose_lease_was_renewed_is_not_mended() {
    check(mend(), vec![("take r0/1 passed", is_live())], "nothing · end");
}

#[test]
fn a_mended_conversation_learns_what_the_ledger_has_decided() {
    let table = vec![
        ("take r0/1 passed", taken(2)),
        ("read r0", Input::Log(Some(log_of_a_question(false)))),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("find 1", Input::CallsClosed(vec![executed("s1", "ap1")])),
        ("append r0/2@5 results tool-output-available finish-step ended", appended()),
    ];
    check(mend(), table, "load");
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

/// A grant to the provider of the call that `a0` asks about.
fn granted() -> ReceivedResult {
    let outcome = DeferredOutcome::ForwardToProvider { approved: true, reason: None, claim: None };
    received("p1", "ap1", outcome)
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
fn a_message_that_does_not_fit_is_refused() {
    let mut settings = settings();
    settings.limits = ChatLimits::default().with_max_chat_messages(2);
    let turn = ChatTurn::new(post(SECOND_MESSAGE), settings);
    check(turn, vec![("load", loaded(answered_chat()))], "limit · end");
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
fn a_result_that_arrives_during_the_last_save_is_not_in_the_log_and_is_saved_later() {
    let mut table = ending_while_a_tool_runs();
    table.push(("save [u1 a0]", Input::CallSettled(Box::new(executed("s1", "ap1")))));
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
fn a_repeated_message_closes_no_calls_of_its_lost_response_and_continues_it() {
    let mut log = log_of_a_question(false);
    log.push(frame(r#"{"type":"finish-step"}"#));
    let table = vec![
        ("load", loaded(live_chat("r0", "a0"))),
        ("take r0/1 passed", taken(2)),
        ("read r0", Input::Log(Some(log))),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("find 1", Input::CallsClosed(vec![executed("s1", "ap1")])),
        ("append r0/2@6 results tool-output-available", appended()),
        ("load", loaded(fenced(live_chat("r0", "a0"), 2))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
    ];
    check(turn(post(NEW_MESSAGE)), table, "save [u1 a0] live r1/1 a0 resumes r0");
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
