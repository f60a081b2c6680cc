//! Tests of the fold.

use bytes::Bytes;

use super::*;
use crate::PostedHistory;
use crate::conversation::request_change::change_of;
use crate::log::state::stored::StateSnapshot;
use crate::store::Snapshot;
use ui_message_stream::json::Json;
use ui_message_stream::message::ToolState;
use ui_message_stream::request::{ChatRequest, Limits};

fn state() -> ChatState {
    let mut state = ChatState::new("c", Principal::new("ada"));
    let body = br#"{"id":"c","messages":[{"id":"u1","role":"user","parts":[{"type":"text","text":"Hi"}]}]}"#;
    let request = ChatRequest::parse(body, &Limits::default()).unwrap();
    let change = change_of(state.chat(), &request, PostedHistory::Keep).unwrap();
    let begin = OtherEntry::Begin { run: "r1".into(), message_id: "a1".into() };
    for entry in [OtherEntry::Request(change), begin, OtherEntry::Step] {
        state.apply(&entry.into()).unwrap();
    }
    state
}

fn frame(chunk: &str) -> Entry {
    Entry::Frame(Bytes::from(format!("data: {chunk}\n\n")))
}

fn call() -> PendingToolCall {
    PendingToolCall::awaiting_approval("ap1", "c1", "act", Json::parse("{}").unwrap())
}

/// The message with the call alone.
fn message() -> UiMessage {
    UiMessage::parse(
        r#"{"id":"a1","role":"assistant","parts":[{"type":"tool-act","toolCallId":"c1",
            "state":"approval-requested","input":{},"approval":{"id":"ap1"}}]}"#,
    )
    .unwrap()
}

/// A text, a call that waits, and a text that is not ended.
fn step() -> Vec<Entry> {
    let input = r#"{"type":"tool-input-available","toolCallId":"c1","toolName":"act","input":{}}"#;
    let asked = r#"{"type":"tool-approval-request","approvalId":"ap1","toolCallId":"c1"}"#;
    vec![
        frame(r#"{"type":"text-start","id":"0"}"#),
        frame(r#"{"type":"text-delta","id":"0","delta":"Wait"}"#),
        frame(input),
        OtherEntry::Call { message: message(), frames: format!("data: {asked}\n\n") }.into(),
        frame(r#"{"type":"text-delta","id":"0","delta":" here"}"#),
    ]
}

fn approved() -> Entry {
    let outcome = DeferredOutcome::Executed {
        outcome: ui_message_stream::approval::ToolOutcome::Output(Json::string("done")),
    };
    let received = ReceivedResult::new(call().with_outcome(outcome), None);
    OtherEntry::Result { received, chunks: Vec::new() }.into()
}

fn text(state: &ChatState) -> String {
    state.chat().message(&"a1".into()).unwrap().text()
}

#[test]
fn a_result_within_a_text_changes_its_call_and_the_text_goes_on() {
    let mut state = state();
    step().iter().for_each(|entry| state.apply(entry).unwrap());
    state.apply(&approved()).unwrap();
    let unread = state.unread().len();
    state.apply(&approved()).unwrap();
    assert_eq!(state.unread().len(), unread, "a second result changes nothing");
    state.apply(&frame(r#"{"type":"text-delta","id":"0","delta":"."}"#)).unwrap();
    state.return_message();
    assert_eq!(text(&state), "Wait here.");
    let message = state.chat().message(&"a1".into()).unwrap();
    let part = message.tool_parts().next().unwrap();
    assert!(matches!(part.state, ToolState::OutputAvailable { .. }), "{:?}", part.state);
}

#[test]
fn without_frames_the_open_calls_are_the_same() {
    let mut whole = state();
    let mut control = whole.clone();
    for entry in step() {
        whole.apply(&entry).unwrap();
        match entry.kind() {
            crate::store::EntryKind::Frame => {}
            _ => {
                control.skip_frames(whole.length() - 1);
                control.apply(&entry).unwrap();
            }
        }
    }
    control.skip_frames(whole.length());
    whole.return_message();
    assert!(control.lacks_frames() && !whole.lacks_frames());
    let calls = |state: &ChatState| state.chat().undecided_calls();
    assert_eq!(calls(&control), calls(&whole));
    assert_eq!(control.length(), whole.length());
    control.apply(&approved()).unwrap();
    assert_eq!(calls(&control), []);
}

#[test]
fn a_stopped_run_ends_its_text_and_keeps_the_call_that_waits() {
    let mut state = state();
    step().iter().for_each(|entry| state.apply(entry).unwrap());
    let end = OtherEntry::End { run: "r1".into(), end: RunEnd::Stopped };
    state.apply(&end.into()).unwrap();
    let message = state.chat().message(&"a1".into()).unwrap();
    let Part::Text(first) = &message.parts[0] else { panic!("{message:?}") };
    assert_eq!(first.state, Some(ui_message_stream::message::TextState::Done));
    assert_eq!(state.chat().undecided_calls().len(), 1);
    assert!(state.live().is_none() && state.chat().message_to_continue().is_none());
}

#[test]
fn a_run_that_leaves_calls_open_and_writes_nothing_may_lack_answers() {
    let mut state = state();
    step().iter().for_each(|entry| state.apply(entry).unwrap());
    let end = OtherEntry::End { run: "r1".into(), end: RunEnd::Finished };
    let begin = OtherEntry::Begin { run: "r2".into(), message_id: "a1".into() };
    state.apply(&end.into()).unwrap();
    assert!(!state.may_lack_answers());
    state.apply(&begin.into()).unwrap();
    assert!(state.may_lack_answers());
    state.apply(&approved()).unwrap();
    assert!(!state.may_lack_answers());
}

#[test]
fn a_snapshot_and_the_entries_after_it_give_the_same_state() {
    let mut state = state();
    step().iter().for_each(|entry| state.apply(entry).unwrap());
    assert!(state.snapshot().is_none(), "within a step");
    for chunk in [r#"{"type":"text-end","id":"0"}"#, r#"{"type":"finish-step"}"#] {
        state.apply(&frame(chunk)).unwrap();
    }
    state.apply(&OtherEntry::StepEnd(StepEnd::default()).into()).unwrap();
    let StateSnapshot { position, head, messages } = state.snapshot().unwrap();
    let messages = messages.iter().map(|message| serde_json::to_string(message).unwrap()).collect();
    let snapshot = Snapshot { position, head, messages };
    let mut stored = ChatState::of_snapshot(&snapshot).unwrap();
    let end = OtherEntry::End { run: "r1".into(), end: RunEnd::Finished };
    for entry in [approved(), OtherEntry::Step.into(), end.into()] {
        state.apply(&entry).unwrap();
        stored.apply(&entry).unwrap();
    }
    assert_eq!(stored.snapshot().unwrap().head, state.snapshot().unwrap().head);
    assert_eq!(stored.chat().messages, state.chat().messages);
}
