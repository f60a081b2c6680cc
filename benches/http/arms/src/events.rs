//! An agent of the host: it emits the answers as events of this crate.

use std::iter::once_with;

use bench_work::{Answer, Call, Step, paced};
use futures::{Stream, StreamExt, stream};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::ToolCall;
use ui_message_stream::{AgentEvent, Json};

/// Emits an answer without a pause.
pub(crate) fn answer(answer: &'static Answer) -> impl Stream<Item = AgentEvent> + Send {
    stream::iter(events(answer))
}

/// Emits a text at the pace of a model.
pub(crate) fn text_at_pace(deltas: usize) -> impl Stream<Item = AgentEvent> + Send {
    paced(deltas).map(AgentEvent::text)
}

/// Returns the events of an answer. Each is made when it is asked for.
pub(crate) fn events(answer: &'static Answer) -> impl Iterator<Item = AgentEvent> + Send {
    let of_step = |step: &'static Step| {
        let texts = step.texts.iter().map(|text| AgentEvent::text(*text));
        texts.chain(step.calls.iter().flat_map(of_call))
    };
    answer.iter().flat_map(of_step).chain([AgentEvent::finish(FinishReason::Stop)])
}

fn of_call(call: &'static Call) -> impl Iterator<Item = AgentEvent> {
    let tool_call = move || ToolCall::new(&*call.id, call.tool);
    let begin = [AgentEvent::tool_input_start(tool_call())];
    let pieces = call.pieces.iter();
    let pieces = pieces.map(move |piece| AgentEvent::tool_input_delta(&*call.id, *piece));
    let input = once_with(move || {
        AgentEvent::tool_input(tool_call(), Json::parse(call.input).expect("it is JSON"))
    });
    let output = once_with(move || {
        let output = Json::from_serialize(&call.output).expect("rows are JSON");
        AgentEvent::tool_output(&*call.id, output)
    });
    begin.into_iter().chain(pieces).chain(input).chain(output)
}
