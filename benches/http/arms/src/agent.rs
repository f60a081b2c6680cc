//! `Agent` with its tool loop and typed tools, behind the chat server. Its model is scripted.

use axum::Router;
use axum::middleware::from_fn;
use bench_work::{Answer, Row, Said, said};
use futures::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::ToolCall;
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest, ModelStream};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::axum::chat_routes;

use crate::chats::sign_in;
use crate::events;

pub(crate) fn routes() -> Router {
    let file = Tool::new("read_file", async |_: ReadFile| output_of(bench_work::text()));
    let rows = Tool::new("read_rows", async |_: ReadRows| output_of(bench_work::outputs()));
    let text = Agent::new(Scripted::new(bench_work::text())).tool(file);
    let outputs = Agent::new(Scripted::new(bench_work::outputs())).tool(rows);
    Router::new()
        .nest("/text", chat_routes(text.into_chat_server()))
        .nest("/outputs", chat_routes(outputs.into_chat_server()))
        .layer(from_fn(sign_in))
}

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "the output is always the same")]
struct ReadFile {
    path: String,
    lines: Vec<u32>,
    mode: String,
}

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "the output is always the same")]
struct ReadRows {
    table: String,
}

/// Returns the output that all calls of this answer have.
fn output_of(answer: &'static Answer) -> Result<&'static [Row], ToolError> {
    Ok(&answer[0].calls[0].output)
}

/// A model that says one step of an answer in each call.
#[derive(Debug)]
struct Scripted(Vec<&'static [Said]>);

impl Scripted {
    fn new(answer: &'static Answer) -> Self {
        Scripted(answer.iter().map(|step| said(std::slice::from_ref(step))).collect())
    }
}

impl Model for Scripted {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let is_tool = |message: &&ModelMessage| matches!(message, ModelMessage::Tool { .. });
        let step = self.0[request.messages.iter().filter(is_tool).count()];
        let reason = match step.last() {
            Some(Said::Text(_)) => FinishReason::Stop,
            _ => FinishReason::ToolCalls,
        };
        let events = step.iter().filter_map(|said| event(*said));
        Box::pin(stream::iter(events.chain([ModelEvent::Finished(reason)]).map(Ok)))
    }
}

/// Returns what the model emits. The agent, and not the model, emits outputs of tools.
fn event(said: Said) -> Option<ModelEvent> {
    let event = match said {
        Said::Input(call) => {
            let tool_call = ToolCall::new(call.id.clone(), call.tool);
            return Some(ModelEvent::ToolCall(Box::new(tool_call), call.input.to_owned()));
        }
        Said::Output(_) => return None,
        Said::Text(_) | Said::Begin(_) | Said::Piece(..) => events::event(said),
    };
    Some(ModelEvent::Event(event))
}
