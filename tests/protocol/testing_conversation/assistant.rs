//! An assistant like that of the demo: it deletes files after an approval, and calls a client tool
//! for the user's location. It stores its open calls itself.

use std::sync::Mutex;

use serde_json::{Value, json};
use ui_message_stream::approval::{
    DeferredOutcome, DeferredToolResults, PendingToolCall, ResumePlan,
};
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::Part;
use ui_message_stream::testing::ScriptedAgent;
use ui_message_stream::{AgentEvent, ChatRequest, Json, UiMessageStream};

#[derive(Default)]
pub(crate) struct Assistant {
    open: Mutex<Vec<PendingToolCall>>,
    deleted: Mutex<Vec<String>>,
    calls: Mutex<usize>,
}

impl Assistant {
    /// The route.
    pub(crate) fn respond(&self, chat: ChatRequest) -> UiMessageStream {
        let plan = ResumePlan::new(chat.messages(), chat.continued_message());
        let deferred = plan.settle(&std::mem::take(&mut *self.open.lock().unwrap()));
        self.open.lock().unwrap().extend_from_slice(deferred.pending());
        let mut events = self.redeem(&deferred);
        if let Some(message) = chat.new_user_message()
            && let [Part::Text(user_text)] = &message.parts[..]
        {
            events.extend(self.turn(&user_text.text));
        }
        UiMessageStream::reply(&chat, ScriptedAgent::new(events))
    }

    pub(crate) fn deleted(&self) -> Vec<String> {
        self.deleted.lock().unwrap().clone()
    }

    /// Carries out the decisions.
    fn redeem(&self, deferred: &DeferredToolResults) -> Vec<AgentEvent> {
        let mut events = Vec::new();
        for result in deferred.results() {
            let id = result.tool_call_id.clone();
            let news = match &result.outcome {
                DeferredOutcome::Approved { input, .. } => {
                    let input: Value = input.decode().unwrap();
                    let path = input["path"].as_str().unwrap().to_owned();
                    let output = Json::from_serialize(&json!({ "deleted": path })).unwrap();
                    events.push(AgentEvent::tool_output(id, output));
                    self.deleted.lock().unwrap().push(path.clone());
                    format!("{path} is deleted.")
                }
                DeferredOutcome::Denied { reason } => {
                    events.push(AgentEvent::tool_denied(id));
                    format!("It stays, you said: {}.", reason.as_deref().unwrap_or("no"))
                }
                DeferredOutcome::Output { output } => format!("You are at {output}."),
                DeferredOutcome::OutputError { error_text } => {
                    format!("I cannot know: {error_text}.")
                }
                _ => {
                    events.push(AgentEvent::tool_failed(id, "Nobody asked for this."));
                    "I did nothing.".to_owned()
                }
            };
            events.push(AgentEvent::text(news));
        }
        events
    }

    /// The model's events for a message of the user.
    fn turn(&self, user_text: &str) -> Vec<AgentEvent> {
        let calls: &[(&str, Value)] = if user_text.contains("everything") {
            let file = |path: &str| ("delete_file", json!({ "path": path }));
            &[file("notes.txt"), file("old.log")]
        } else if user_text.contains("Delete") {
            &[("delete_file", json!({ "path": "notes.txt" }))]
        } else if user_text.contains("location") {
            &[("get_location", json!({}))]
        } else {
            return vec![AgentEvent::text(format!("You said: {user_text}"))];
        };
        let events = calls.iter().flat_map(|(tool, input)| self.call(tool, input));
        events.collect()
    }

    fn call(&self, tool: &'static str, input: &Value) -> Vec<AgentEvent> {
        let mut calls = self.calls.lock().unwrap();
        *calls += 1;
        let (id, approval) = (format!("call_{calls}"), format!("ap_{calls}"));
        let input = Json::from_serialize(input).unwrap();
        let call = ToolCall::new(id.clone(), tool);
        let mut open = self.open.lock().unwrap();
        if tool == "get_location" {
            open.push(PendingToolCall::client_executed(id, tool, input.clone()));
            return vec![AgentEvent::tool_input(call.client_executed(), input)];
        }
        open.push(PendingToolCall::awaiting_approval(
            approval.clone(),
            id.clone(),
            tool,
            input.clone(),
        ));
        vec![AgentEvent::tool_input(call, input), AgentEvent::approval_requested(id, approval)]
    }
}
