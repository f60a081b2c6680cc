//! The outcomes of calls are stored as data of the conversation. They are never derived from the
//! texts that users see.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chat_test_support::answers::{decide, questions};
use serde_json::{Value, json};
use test_support::any_tool::AnyTool;
use test_support::requests::{ada, edit};
use ui_message_stream::UserText;
use ui_message_stream::approval::{Approvals, DeferredOutcome, DeferredToolResult, ToolOutcome};
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::message::Role;
use ui_message_stream::{ChatRequest, Json, UiMessage};
use ui_message_stream_chat::{Chat, ChatServer, PostedHistory, Recorder, RequestEffect, Turn};

/// Applies a request whose response is a new message.
fn apply(chat: &mut Chat, request: &ChatRequest) {
    let effect = chat.apply_request(request, PostedHistory::Keep);
    assert_eq!(effect, RequestEffect::NewResponse);
}

#[tokio::test(start_paused = true)]
async fn a_tool_error_equal_to_a_text_of_this_crate_is_still_a_failure() {
    for text in [
        UserText::Refused.text(),
        UserText::Expired.text(),
        UserText::Revoked.text(),
        UserText::OutcomeUnknown.text(),
    ] {
        let prompts: Arc<Mutex<Vec<Value>>> = Arc::default();
        let model = Arc::clone(&prompts);
        let agent = move |turn: Turn| {
            let messages = turn.to_model_messages().model_messages(&turn.chat.messages);
            let mut turns = model.lock().unwrap();
            turns.push(serde_json::to_value(messages).unwrap());
            let is_first = turns.len() == 1;
            async_stream::stream! {
                if is_first {
                    let call = ToolCall::new("call", "tool");
                    yield AgentEvent::tool_input(call.clone(), Json::null());
                    yield turn.approvals.request_approval_of(&call, &Json::null()).await;
                }
            }
        };
        let chats = ChatServer::new(
            agent,
            Approvals::new(AnyTool::with_outcome(ToolOutcome::Failed(text.to_owned()))),
        );
        chats.complete_response(&ada(), edit("chat", "m1", "go")).await.unwrap();
        assert!(decide(&chats, &questions(&chats).await[0], true).await);
        tokio::time::sleep(Duration::from_secs(1)).await;
        chats.complete_response(&ada(), edit("chat", "m2", "and now?")).await.unwrap();
        let prompts = prompts.lock().unwrap();
        assert_eq!(
            prompts.len(),
            3,
            "one call before the decision, one for the decision, one after it"
        );
        for messages in &prompts[1..] {
            let result = &messages[2]["tool"]["content"][0]["result"]["result"];
            assert_eq!(*result, json!({"error": text}), "{messages}");
        }
    }
}

/// A chat whose last message holds this call.
fn chat_with(part: Value) -> Chat {
    let message = json!({"id": "m2", "role": "assistant", "parts": [part]});
    let mut chat = Chat::new("chat", ada());
    apply(&mut chat, &edit("chat", "m1", "go"));
    chat.upsert_message(UiMessage::parse(&message.to_string()).unwrap());
    chat
}

fn awaiting_approval() -> Chat {
    chat_with(json!({"type": "tool-t", "toolCallId": "c", "state": "approval-requested",
        "input": {}, "approval": {"id": "ap"}}))
}

fn result(outcome: Value) -> DeferredToolResult {
    let result =
        json!({"toolCallId": "c", "toolName": "t", "approvalId": "ap", "outcome": outcome});
    serde_json::from_value(result).unwrap()
}

fn executed(outcome: Value) -> DeferredToolResult {
    result(json!({"executed": {"outcome": outcome}}))
}

fn recorded(chat: &Chat) -> Vec<&DeferredOutcome> {
    chat.call_outcomes.iter().map(|recorded| &recorded.outcome).collect()
}

#[test]
fn a_late_result_replaces_an_unknown_outcome_but_not_an_error_with_the_same_text() {
    let output = executed(json!({"output": 1}));
    let mut unknown = awaiting_approval();
    unknown.record_result(&result(json!("outcome-unknown")), None);
    assert_eq!(recorded(&unknown), [&DeferredOutcome::OutcomeUnknown]);
    unknown.record_result(&output, None);
    assert_eq!(recorded(&unknown), [&DeferredOutcome::OutcomeUnknown; 0]);

    let mut failed = awaiting_approval();
    failed.record_result(&executed(json!({"failed": UserText::OutcomeUnknown.text()})), None);
    let before = failed.clone();
    failed.record_result(&output, None);
    assert_eq!(failed, before);
    assert_ne!(failed.messages, unknown.messages);
}

#[test]
fn removing_a_message_removes_the_outcomes_of_its_calls() {
    for outcome in ["expired", "revoked", "outcome-unknown"] {
        let mut chat = awaiting_approval();
        chat.record_result(&result(json!(outcome)), None);
        assert_eq!(chat.call_outcomes[0].message_id, Some("m2".into()));
        let mut stored: Chat =
            serde_json::from_str(&serde_json::to_string(&chat).unwrap()).unwrap();
        assert_eq!(stored, chat);
        apply(&mut stored, &edit("chat", "m1", "go on"));
        assert_eq!(stored.call_outcomes, []);
        // The agent replaces the message.
        chat.upsert_message(UiMessage::new("m2", Role::Assistant, Vec::new()));
        assert_eq!(chat.call_outcomes, []);
    }
}

#[test]
fn storing_a_message_again_lists_each_call_that_the_client_executes_once() {
    let mut recorder = Recorder::new("m2");
    let mut call = |id: &str| {
        let call = ToolCall::new(id, "t").client_executed();
        recorder.handle_event(&AgentEvent::tool_input(call, Json::null()));
        recorder.snapshot()
    };
    let (first, second) = (call("c1"), call("c2"));
    let listed = |chat: &Chat| -> Vec<String> {
        chat.client_executed.iter().map(|call| call.tool_call_id.to_string()).collect()
    };
    let mut chat = Chat::new("chat", ada());
    chat.upsert_message(first.clone());
    chat.upsert_message(second);
    assert_eq!(listed(&chat), ["c1", "c2"]);
    // The message is replaced by another one with this id.
    chat.upsert_message(first.clone());
    assert_eq!(listed(&chat), ["c1"]);
}

#[test]
fn a_recorder_returns_the_outcomes_of_calls_that_ended_without_a_result() {
    let refused = {
        let mut recorder = Recorder::new("m2");
        let events = [
            AgentEvent::tool_input(ToolCall::new("c", "t"), Json::null()),
            AgentEvent::tool_denied("c"),
        ];
        events.iter().for_each(|event| recorder.handle_event(event));
        recorder.finish().unwrap()
    };
    let chat =
        chat_with(json!({"type": "tool-t", "toolCallId": "c", "state": "approval-responded",
        "input": {}, "providerExecuted": true, "approval": {"id": "ap", "approved": true}}));
    let unknown = |events: &[AgentEvent]| {
        let mut recorder = Recorder::continuing(chat.messages[1].clone());
        events.iter().for_each(|event| recorder.handle_event(event));
        recorder.finish().unwrap()
    };
    let aborted = unknown(&[AgentEvent::Abort { reason: None }]);
    let text = AgentEvent::text("It does not answer.");
    let finished = unknown(std::slice::from_ref(&text));
    let failed = unknown(&[AgentEvent::tool_failed("c", UserText::OutcomeUnknown), text]);
    for (recorded, outcomes) in [
        (&refused, &[DeferredOutcome::Rejected][..]),
        (&aborted, &[DeferredOutcome::OutcomeUnknown]),
        (&finished, &[DeferredOutcome::OutcomeUnknown]),
        (&failed, &[]),
    ] {
        let outcomes_of_recorder: Vec<_> =
            recorded.call_outcomes.iter().map(|recorded| recorded.outcome.clone()).collect();
        assert_eq!(outcomes_of_recorder, outcomes);
    }
    let mut stored = chat;
    stored.upsert_message(aborted);
    assert_eq!(recorded(&stored), [&DeferredOutcome::OutcomeUnknown]);
}

#[test]
fn an_approval_for_a_provider_that_is_recorded_twice_is_sent_once() {
    let call = json!({
        "type": "tool-act", "toolCallId": "p1", "state": "approval-requested", "input": {},
        "providerExecuted": true, "approval": {"id": "ap1"},
    });
    let message = json!({"id": "a1", "role": "assistant", "parts": [{"type": "step-start"}, call]});
    let mut chat = Chat::new("chat", ada());
    chat.messages.push(UiMessage::parse(&message.to_string()).unwrap());
    let outcome = DeferredOutcome::ForwardToProvider { approved: true, reason: None, claim: None };
    let granted: DeferredToolResult = serde_json::from_value(json!({
        "toolCallId": "p1", "toolName": "act", "approvalId": "ap1",
        "outcome": serde_json::to_value(outcome).unwrap(),
    }))
    .unwrap();
    // Two requests of the page arrive at the same time.
    chat.record_result(&granted, None);
    chat.record_result(&granted, None);
    assert_eq!(chat.take_unsent_approvals().len(), 1);
}
