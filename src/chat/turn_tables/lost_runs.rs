//! Runs whose server was lost.

use super::harness::*;
use crate::approval::DeferredOutcome;
use crate::chat::Chat;
use crate::chat::conversation::{KeptSteps, LiveRun, LostRun, PostedHistory};
use crate::chat::log::{BeginResult, Fence, LogEntry, TakeRefusal, TakeResult};
use crate::chat::turn::machine::{Action, ChatTurn, Effect, Input, Request};

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

/// The steps of a turn that resumes the lost run `r0`, whose log is empty, after it has saved a result.
fn until_the_run_is_resumed(told: Chat) -> Vec<(&'static str, Input)> {
    vec![
        ("save [u1] live r0/1 a9 new 1", Input::Saved(true)),
        ("load", loaded(told.clone())),
        ("take r0/1 passed", taken(2)),
        ("read r0", Input::Log(Some(Vec::new()))),
        ("load", loaded(fenced(told.clone(), 2))),
        ("append r0/2@0 start results", appended()),
        ("load", loaded(fenced(told, 2))),
        ("begin r1", Input::Begun(BeginResult::Begun(Fence(1)))),
        ("save [u1] live r1/1 a9 resumes r0", Input::Saved(true)),
    ]
}

/// Checks the id of the message with which the next run begins, after the log of the old one has ended.
fn check_start(mut turn: ChatTurn, message: &str) {
    turn.handle(appended());
    let (join, append) = (turn.poll(), turn.poll());
    assert!(matches!(join, Action::Respond(_)), "{join:?}");
    let Action::Start(Effect::Append { entries, .. }) = append else { panic!("{append:?}") };
    let start = String::from_utf8_lossy(entries[0].bytes());
    assert!(start.contains(&format!(r#""messageId":"{message}""#)), "{start}");
}

#[test]
fn answers_to_a_removed_message_resume_a_lost_run_with_the_message_of_that_run() {
    let late = received("s1", "ap1", DeferredOutcome::Superseded);
    let chat = with_run(edited_chat(), "r0", "a9");
    let mut told = chat.clone();
    told.receive_result(&late);
    let mut table = vec![
        ("load", loaded(chat.clone())),
        ("redeem 1", Input::CallSettled(Box::new(late))),
        ("load", Input::Redeemed),
        ("", loaded(chat)),
    ];
    table.extend(until_the_run_is_resumed(told));
    let turn = check(turn(answer("s1", "ap1", true)), table, "append r0/2@2 resumed-by end");
    // The readers of the lost run hold no part of the message that the page posts.
    check_start(turn, "a9");
}

#[test]
fn a_page_whose_run_was_lost_repeats_its_answer_and_reads_the_message_that_only_it_holds() {
    let mut chat = live_chat("r0", "a9");
    chat.set_live_run(LiveRun { only_for: Some("a0".into()), ..live("r0", "a9") });
    let mut told = chat.clone();
    told.receive_result(&executed("s1", "ap1"));
    let mut table = vec![
        ("load", loaded(chat.clone())),
        ("redeem 1", Input::CallSettled(Box::new(executed("s1", "ap1")))),
        ("load", Input::Redeemed),
        ("", loaded(chat)),
    ];
    table.extend(until_the_run_is_resumed(told));
    let turn = check(turn(answer("s1", "ap1", true)), table, "append r0/2@2 resumed-by end");
    check_start(turn, "a0");
}

#[test]
fn all_pages_read_a_run_that_resumes_the_message_of_a_lost_one() {
    let body = r#"{"id":"c","messages":[
        {"id":"u1","role":"user","parts":[{"type":"text","text":"Hi"}]},
        {"id":"a9","role":"assistant","parts":[{"type":"step-start"}]}]}"#;
    let chat = live_chat("r0", "a9");
    let start = frame(r#"{"type":"start","messageId":"a9"}"#);
    let table = vec![
        ("load", loaded(chat.clone())),
        ("redeem 0", Input::Redeemed),
        ("load", loaded(chat.clone())),
        ("take r0/1 passed", taken(2)),
        ("read r0", Input::Log(Some(vec![start, LogEntry::Note(r#""step""#.into())]))),
        ("load", loaded(fenced(chat, 2))),
    ];
    let mut turn = check(turn(post(body)), table, "begin r1");
    turn.handle(Input::Begun(BeginResult::Begun(Fence(1))));
    let save = turn.poll();
    let Action::Start(Effect::Save { chat, .. }) = save else { panic!("{save:?}") };
    assert_eq!(chat.live_run().and_then(|live| live.only_for.clone()), None);
}
