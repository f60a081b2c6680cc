//! What a user of axum writes without this crate: the chunks as an enum, the request as a struct, and an agent that
//! yields chunks.

use bench_work::{Answer, paced};
use futures::{Stream, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The body of a request.
#[derive(Deserialize)]
pub(crate) struct ChatBody {
    pub(crate) id: String,
    #[expect(dead_code, reason = "the agent is scripted")]
    messages: Vec<Value>,
}

/// A chunk of the UI message stream.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub(crate) enum Chunk {
    Start { message_id: String },
    StartStep,
    TextStart { id: String },
    TextDelta { id: String, delta: String },
    TextEnd { id: String },
    ToolInputStart { tool_call_id: String, tool_name: String },
    ToolInputDelta { tool_call_id: String, input_text_delta: String },
    ToolInputAvailable { tool_call_id: String, tool_name: String, input: Value },
    ToolOutputAvailable { tool_call_id: String, output: Value },
    FinishStep,
    Finish { finish_reason: String },
}

/// Yields an answer without a pause.
pub(crate) fn answer(answer: &'static Answer) -> impl Stream<Item = Chunk> + Send {
    async_stream::stream! {
        yield Chunk::Start { message_id: "msg_1".into() };
        for (number, step) in answer.iter().enumerate() {
            yield Chunk::StartStep;
            let id = || format!("text-{number}");
            if !step.texts.is_empty() {
                yield Chunk::TextStart { id: id() };
                for text in &step.texts {
                    yield Chunk::TextDelta { id: id(), delta: (*text).into() };
                }
                yield Chunk::TextEnd { id: id() };
            }
            for call in &step.calls {
                let (tool_call_id, tool_name) = (|| call.id.clone(), || call.tool.into());
                yield Chunk::ToolInputStart { tool_call_id: tool_call_id(), tool_name: tool_name() };
                for piece in &call.pieces {
                    let input_text_delta = (*piece).into();
                    yield Chunk::ToolInputDelta { tool_call_id: tool_call_id(), input_text_delta };
                }
                yield Chunk::ToolInputAvailable {
                    tool_call_id: tool_call_id(),
                    tool_name: tool_name(),
                    input: serde_json::from_str(call.input).expect("it is JSON"),
                };
                let output = serde_json::to_value(&call.output).expect("rows are JSON");
                yield Chunk::ToolOutputAvailable { tool_call_id: tool_call_id(), output };
            }
            yield Chunk::FinishStep;
        }
        yield Chunk::Finish { finish_reason: "stop".into() };
    }
}

/// Yields a text at the pace of a model.
pub(crate) fn text_at_pace(deltas: usize) -> impl Stream<Item = Chunk> + Send {
    paced(deltas).map(|delta| Chunk::TextDelta { id: "text-1".into(), delta })
}
