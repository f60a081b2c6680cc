//! `Agent` with its tool loop and typed tools, behind the chat server. Its model is scripted.

use axum::Router;
use axum::middleware::from_fn;
use bench_work::{Answer, Row, Step};
use futures::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use ui_message_stream::AgentEvent;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::ToolCall;
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest, ModelStream};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::axum::chat_routes;

use crate::chats::sign_in;

pub(crate) fn routes() -> Router {
    let file = Tool::new("read_file", async |_: ReadFile| output_of(bench_work::text()));
    let rows = Tool::new("read_rows", async |_: ReadRows| output_of(bench_work::outputs()));
    let text = Agent::new(Scripted(bench_work::text())).tool(file);
    let outputs = Agent::new(Scripted(bench_work::outputs())).tool(rows);
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
struct Scripted(&'static Answer);

impl Model for Scripted {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let is_tool = |message: &&ModelMessage| matches!(message, ModelMessage::Tool { .. });
        let step = request.messages.iter().filter(is_tool).count();
        Box::pin(stream::iter(says(&self.0[step]).map(Ok)))
    }
}

fn says(step: &'static Step) -> impl Iterator<Item = ModelEvent> + Send {
    let texts = step.texts.iter().map(|text| AgentEvent::text(*text));
    let calls = step.calls.iter().flat_map(|call| {
        let tool_call = ToolCall::new(&*call.id, call.tool);
        let begin = AgentEvent::tool_input_start(tool_call.clone());
        let pieces = call.pieces.iter();
        let pieces = pieces.map(|piece| AgentEvent::tool_input_delta(&*call.id, *piece));
        let end = ModelEvent::ToolCall(Box::new(tool_call), call.input.to_owned());
        [begin].into_iter().chain(pieces).map(ModelEvent::Event).chain([end])
    });
    let reason = match step.calls.is_empty() {
        true => FinishReason::Stop,
        false => FinishReason::ToolCalls,
    };
    texts.map(ModelEvent::Event).chain(calls).chain([ModelEvent::Finished(reason)])
}
