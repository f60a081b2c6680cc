//! The agent: what it emits in answer to a model call.

use std::ops::RangeFrom;

use super::random::Random;
use ui_message_stream::approval::DeferredToolResult;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::json::Json;

/// Returns the events of a model call that sends these approvals to the provider. `fresh` returns a number
/// that it has not returned before.
pub(super) fn answer(
    fresh: &mut dyn FnMut() -> u32,
    random: &mut Random,
    sent: Vec<DeferredToolResult>,
) -> Vec<AgentEvent> {
    let mut events = Vec::new();
    for approval in sent {
        if random.below(3) > 0 {
            events.push(AgentEvent::tool_output(approval.tool_call_id, Json::string("done")));
        }
    }
    // Some models number their calls from the start in each answer.
    let mut numbers = random.one_in(3).then_some(0..);
    for _ in 0..random.below(5) {
        emit(fresh, random, &mut numbers, &mut events);
        if random.one_in(3) {
            events.extend([AgentEvent::StepFinish, AgentEvent::StepStart]);
        }
    }
    match random.below(5) {
        0 => {}
        1 => events.push(AgentEvent::error("failed")),
        _ => events.push(AgentEvent::finish(FinishReason::Stop)),
    }
    events
}

/// The agent writes a text, has executed a tool, or calls one of the server, of the provider or of the
/// client. `numbers` are those of the server's calls, if their ids recur.
fn emit(
    fresh: &mut dyn FnMut() -> u32,
    random: &mut Random,
    numbers: &mut Option<RangeFrom<u32>>,
    events: &mut Vec<AgentEvent>,
) {
    let number = fresh();
    let call = |prefix: &str| ToolCall::new(format!("{prefix}{number}"), "act");
    let mut call_of_server = || match numbers.as_mut().and_then(Iterator::next) {
        Some(number) => ToolCall::new(format!("s-{number}"), "act"),
        None => call("s"),
    };
    let (call, is_asked) = match random.below(6) {
        5 => {
            let call = call_of_server();
            let output = AgentEvent::tool_output(call.id.clone(), Json::string("seen"));
            events.push(AgentEvent::tool_input(call, Json::parse("{}").unwrap()));
            return events.push(output);
        }
        0 => (call_of_server(), true),
        1 => (call("p").provider_executed(), true),
        2 => (call("c").client_executed(), false),
        _ => return events.push(AgentEvent::text(format!("{number} "))),
    };
    let id = call.id.clone();
    events.push(AgentEvent::tool_input(call, Json::parse("{}").unwrap()));
    if is_asked {
        events.push(AgentEvent::approval_requested(id, format!("ap{number}")));
    }
}
