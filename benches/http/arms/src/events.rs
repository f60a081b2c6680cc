//! An agent of the host: it emits the answers as events of this crate.

use bench_work::{Said, paced};
use futures::{Stream, StreamExt, stream};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::ToolCall;
use ui_message_stream::{AgentEvent, Json};

/// Emits an answer without a pause.
pub(crate) fn answer(said: &'static [Said]) -> impl Stream<Item = AgentEvent> + Send {
    stream::iter(events(said))
}

/// Emits a text at the pace of a model.
pub(crate) fn text_at_pace(deltas: usize) -> impl Stream<Item = AgentEvent> + Send {
    paced(deltas).map(AgentEvent::text)
}

/// Returns the events of an answer. Each is made when it is asked for.
pub(crate) fn events(said: &'static [Said]) -> impl Iterator<Item = AgentEvent> + Send {
    said.iter().copied().map(event).chain([AgentEvent::finish(FinishReason::Stop)])
}

/// Makes an event that owns its texts, as the texts of a model are not static.
pub(crate) fn event(said: Said) -> AgentEvent {
    match said {
        Said::Text(text) => AgentEvent::text(text.to_owned()),
        Said::Begin(call) => {
            AgentEvent::tool_input_start(ToolCall::new(call.id.clone(), call.tool))
        }
        Said::Piece(call, piece) => AgentEvent::tool_input_delta(call.id.clone(), piece.to_owned()),
        Said::Input(call) => {
            let input = Json::parse(call.input).expect("it is JSON");
            AgentEvent::tool_input(ToolCall::new(call.id.clone(), call.tool), input)
        }
        Said::Output(call) => {
            let output = Json::from_serialize(&call.output).expect("rows are JSON");
            AgentEvent::tool_output(call.id.clone(), output)
        }
    }
}
