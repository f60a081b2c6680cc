//! `bench-peer-rig-ai-sdk PORT`: the items of a rig agent's stream, sent with `adapt_rig_stream_sse`.

use std::convert::Infallible;

use axum::Json;
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, post};
use bench_work::{Answer, Call, Step};
use futures::stream;
use rig::OneOrMany;
use rig::agent::MultiTurnStreamItem as Item;
use rig::completion::Usage;
use rig::message::{ToolCall, ToolFunction, ToolResult, ToolResultContent};
use rig::streaming::{StreamedAssistantContent as Said, StreamedUserContent, ToolCallDeltaContent};
use rig_ai_sdk::adapt_rig_stream_sse;
use serde_json::Value;

fn main() -> std::io::Result<()> {
    bench_work::serve(route)
}

fn route(answer: &'static Answer) -> MethodRouter {
    post(async move |Json(_): Json<Value>| respond(answer))
}

fn respond(answer: &'static Answer) -> Response {
    let end = Item::final_response("", Usage::new());
    let items = answer.iter().flat_map(of_step).chain([end]);
    let items = stream::iter(items.map(Ok::<_, Infallible>));
    Sse::new(adapt_rig_stream_sse(items)).keep_alive(KeepAlive::default()).into_response()
}

/// Returns what the agent emits in one step.
fn of_step(step: &'static Step) -> impl Iterator<Item = Item<()>> + Send {
    let texts = step.texts.iter().map(|text| Said::text(text));
    let calls = step.calls.iter().flat_map(of_call);
    let said = texts.chain(calls).chain([Said::Final(())]).map(Item::StreamAssistantItem);
    let results = step.calls.iter().map(|call| {
        let output = serde_json::to_string(&call.output).expect("rows are JSON");
        let content = OneOrMany::one(ToolResultContent::text(output));
        let result = ToolResult { id: call.id.clone(), call_id: None, content };
        Item::StreamUserItem(StreamedUserContent::tool_result(result))
    });
    said.chain(results)
}

fn of_call(call: &'static Call) -> impl Iterator<Item = Said<()>> + Send {
    let delta = |content| Said::ToolCallDelta { id: call.id.clone(), content };
    let begin = delta(ToolCallDeltaContent::Name(call.tool.to_owned()));
    let pieces = call.pieces.iter();
    let pieces = pieces.map(move |piece| delta(ToolCallDeltaContent::Delta((*piece).to_owned())));
    let end = std::iter::once_with(|| {
        let input = serde_json::from_str(call.input).expect("it is JSON");
        let function = ToolFunction::new(call.tool.to_owned(), input);
        Said::ToolCall(ToolCall::new(call.id.clone(), function))
    });
    [begin].into_iter().chain(pieces).chain(end)
}
