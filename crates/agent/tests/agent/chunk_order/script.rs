//! A recorded case: the history, the model's output, and what the AI SDK's server sent.

use std::collections::VecDeque;
use std::fs;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use serde_json::{Value, json};
use ui_message_stream::BoxError;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{Model, ModelEvent, ModelRequest, ModelStream};

use super::side_by_side::lines_of;

pub(crate) struct Script {
    pub(crate) note: String,
    pub(crate) messages: Vec<Value>,
    pub(crate) turns: Vec<Vec<Value>>,
    pub(crate) most_steps: u32,
    chunks: Vec<Value>,
    model_calls: usize,
}

impl Script {
    pub(crate) fn read(case: &str) -> Self {
        let name = format!("fixtures/upstream/server/{case}.json");
        let path = test_support::repository().join(name);
        let file: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
        let list = |value: &Value| value.as_array().unwrap().clone();
        Script {
            note: file["note"].as_str().unwrap().to_owned(),
            messages: list(&file["messages"]),
            turns: list(&file["modelTurns"]).iter().map(list).collect(),
            most_steps: file["maxSteps"].as_u64().unwrap_or(3) as u32,
            chunks: list(&file["expected"]["chunks"]),
            model_calls: list(&file["expected"]["modelPrompts"]).len(),
        }
    }

    pub(crate) fn expected(&self) -> Vec<String> {
        lines_of(&self.chunks, self.model_calls)
    }
}

/// A model that emits the given turns, one for each call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scripted(Arc<Mutex<Played>>);

#[derive(Debug, Default)]
struct Played {
    turns: VecDeque<Vec<Value>>,
    calls: usize,
}

impl Scripted {
    /// Replaces the remaining turns with these.
    pub(crate) fn set_turns(&self, turns: Vec<Vec<Value>>) {
        *self.0.lock().unwrap() = Played { turns: turns.into(), calls: 0 };
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.lock().unwrap().calls
    }
}

impl Model for Scripted {
    fn call(&self, _: ModelRequest) -> ModelStream {
        let mut played = self.0.lock().unwrap();
        played.calls += 1;
        let parts = played.turns.pop_front().expect("the model is called as often as recorded");
        let parts = parts.into_iter().filter(|part| part["type"] != "tool-input-end");
        Box::pin(futures::stream::iter(parts.collect::<Vec<_>>()).map(|part| to_model_event(&part)))
    }
}

fn to_model_event(part: &Value) -> Result<ModelEvent, BoxError> {
    let text = |key: &str| part[key].as_str().unwrap().to_owned();
    let call = |id: &str| ToolCall::new(text(id), text("toolName"));
    let event = match part["type"].as_str().unwrap() {
        "text-start" => AgentEvent::TextStart { id: text("id").into() },
        "text-delta" => {
            AgentEvent::TextDelta { id: Some(text("id").into()), delta: text("delta").into() }
        }
        "text-end" => AgentEvent::TextEnd { id: text("id").into() },
        "reasoning-start" => AgentEvent::ReasoningStart { id: text("id").into() },
        "reasoning-delta" => {
            AgentEvent::ReasoningDelta { id: Some(text("id").into()), delta: text("delta").into() }
        }
        "reasoning-end" => {
            AgentEvent::ReasoningEnd { id: Some(text("id").into()), provider_metadata: None }
        }
        "tool-input-start" => {
            AgentEvent::tool_input_start(ToolCall::new(text("id"), text("toolName")))
        }
        "tool-input-delta" => AgentEvent::tool_input_delta(text("id"), text("delta")),
        "provider-asks" => {
            let call = call("toolCallId").provider_executed().dynamic();
            return Ok(ModelEvent::ProviderApprovalRequest(Box::new(call), text("input")));
        }
        "tool-result" => {
            let mut chunk = json!({"type": "tool-output-available", "providerExecuted": true});
            for (key, of) in [
                ("toolCallId", "toolCallId"),
                ("output", "result"),
                ("dynamic", "dynamic"),
                ("providerMetadata", "providerMetadata"),
            ] {
                chunk[key] = part[of].clone();
            }
            AgentEvent::Chunk(Box::new(serde_json::from_value(chunk).unwrap()))
        }
        "tool-call" => {
            return Ok(ModelEvent::ToolCall(Box::new(call("toolCallId")), text("input")));
        }
        "error" => return Err(text("error").into()),
        "finish" => {
            let reason = part["finishReason"]["unified"].clone();
            let reason: FinishReason = serde_json::from_value(reason).unwrap();
            return Ok(ModelEvent::Finished(reason));
        }
        other => panic!("{other}"),
    };
    Ok(ModelEvent::Event(event))
}
