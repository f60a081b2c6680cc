//! An agent without a chat server: the host stores the messages, reads the events of each turn, and
//! redeems the approvals.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chat_test_support::model_double::{ModelDouble, calls, says};
use futures::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use test_support::requests::{request, user_message};
use ui_message_stream::approval::{ApprovalDecision, Approvals, Principal};
use ui_message_stream::event::AgentEvent;
use ui_message_stream::message::Part;
use ui_message_stream::model::{Model, ModelMessage};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::{Chat, ChatAgent, Recorder, Turn};

/// Returns a model that deletes the notes, and then repeats the result that it reads.
fn deletes() -> impl Model {
    ModelDouble::new(|request, _| match request.messages.last() {
        Some(result @ ModelMessage::Tool { .. }) => says(serde_json::to_string(result).unwrap()),
        _ => calls("call_1", "delete", r#"{"path":"notes.txt"}"#),
    })
}

#[derive(Deserialize, JsonSchema)]
struct File {
    path: String,
}

/// The chat with these messages, as the host has stored them.
fn chat(messages: &str) -> Chat {
    let mut chat = Chat::new("chat", Principal::new("ada"));
    chat.messages = serde_json::from_str(messages).unwrap();
    chat
}

fn user_request() -> Chat {
    chat(&json!([user_message("m1", "Delete my notes")]).to_string())
}

/// Runs a turn to its end. Returns the messages as the host stores them.
async fn run(agent: &Agent, turn: Turn) -> String {
    let mut chat = Chat::clone(&turn.chat);
    let before = chat.message(&turn.message_id).cloned();
    let mut recorder = match &before {
        Some(message) => Recorder::continuing(message.clone()),
        None => Recorder::new(turn.message_id.clone()),
    };
    let mut events = agent.respond(turn);
    while let Some(event) = events.next().await {
        recorder.handle_event(&event.unwrap());
    }
    chat.upsert_message(recorder.finish().unwrap());
    serde_json::to_string(&chat.messages).unwrap()
}

#[tokio::test]
async fn a_host_with_its_own_messages_runs_an_agent_and_redeems_its_approvals() {
    let ada = Principal::new("ada");
    for (approved, expected_text) in [(true, "deleted notes.txt"), (false, "denied")] {
        let deleted = Arc::new(Mutex::new(Vec::new()));
        let files = Arc::clone(&deleted);
        let delete = Tool::new("delete", move |file: File| {
            files.lock().unwrap().push(file.path.clone());
            async move { Ok::<_, ToolError>(format!("deleted {}", file.path)) }
        });
        let agent = Agent::new(deletes()).tool(delete.needs_approval());
        let approvals = Approvals::new(agent.clone());
        let stored = run(&agent, Turn::new(user_request(), "m2", &approvals)).await;
        assert!(deleted.lock().unwrap().is_empty());

        let mut chat = chat(&stored);
        let approval_id = chat.open_approvals()[0].approval_id.clone().unwrap();
        let decision = ApprovalDecision::new(approval_id, approved);
        let decided = approvals.group_by_message(&ada, vec![decision]).await.unwrap();
        let chat_approvals = approvals.for_chat(&ada, &chat.id);
        let mut resolved =
            chat_approvals.resolve(decided[0].plan(), &chat.client_executed).await.unwrap();
        while let Some(result) = resolved.next().await {
            chat.record_result(&result, resolved.descriptor(&result).as_ref());
        }
        let mut turn = Turn::new(chat, decided[0].message_id.clone(), &approvals);
        turn.deferred = resolved.results().clone();
        let stored = run(&agent, turn).await;
        let messages = self::chat(&stored).messages;
        assert_eq!(messages.len(), 2);
        let Some(Part::Text(text)) = messages[1].parts.last() else { panic!("{stored}") };
        assert!(text.text.contains(expected_text), "{}", text.text);
        assert_eq!(deleted.lock().unwrap().len(), usize::from(approved));
    }
}

#[tokio::test]
async fn a_turn_of_a_request_that_was_not_validated_fails_if_its_tools_are_invalid() {
    let delete = Tool::new("delete", async |_: File| Ok::<_, ToolError>("deleted"));
    let agent = Agent::new(deletes()).tool(delete).with_client_tools();
    let tools = json!([{"name": "delete", "inputSchema": {}}]);
    let body = json!({"id": "chat", "messages": user_request().messages, "clientTools": tools});
    let request = request(&body);
    let error = agent.validate_request(&request).unwrap_err();
    let mut turn = Turn::new(user_request(), "m2", &Approvals::new(agent.clone()));
    turn.request = Some(Arc::new(request));
    let events: Vec<_> = agent.respond(turn).map(Result::unwrap).collect().await;
    assert_eq!(events, [AgentEvent::error(error.to_string())]);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_events_stops_the_tools_of_the_run() {
    let is_running = Arc::new(());
    let running = Arc::clone(&is_running);
    let delete = Tool::new("delete", move |_: File| {
        let running = Arc::clone(&running);
        async move {
            let _running = running;
            tokio::time::sleep(Duration::from_secs(30)).await;
            Ok::<_, ToolError>("deleted")
        }
    });
    let agent = Agent::new(deletes()).tool(delete);
    let approvals = Approvals::new(agent.clone());
    let mut events = agent.respond(Turn::new(user_request(), "m2", &approvals));
    let wait = async { while events.next().await.is_some() {} };
    assert!(tokio::time::timeout(Duration::from_secs(1), wait).await.is_err());
    assert_eq!(Arc::strong_count(&is_running), 3);
    drop(events);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(Arc::strong_count(&is_running), 2);
}
