//! The agent of the demo: it says what became of the calls that were left open, then the scripted
//! model goes on.

use std::sync::Arc;

use async_stream::stream;
use futures::Stream;
use ui_message_stream::AgentEvent;
use ui_message_stream::chat::Turn;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::message::{Part, Role, ToolPart, ToolState, UiMessage};

use crate::model;
use crate::world::{SharedWorld, denied_in_words, in_words};

/// What goes wrong in the agent; the page shows none of it.
pub(crate) type AgentError = Box<dyn std::error::Error + Send + Sync>;

/// An agent that acts on this world.
pub(crate) fn of(
    world: Arc<SharedWorld>,
) -> impl Fn(Turn) -> std::pin::Pin<Box<dyn Stream<Item = Result<AgentEvent, AgentError>> + Send>> {
    move |turn| Box::pin(run(Arc::clone(&world), turn))
}

/// One turn.
fn run(
    world: Arc<SharedWorld>,
    turn: Turn,
) -> impl Stream<Item = Result<AgentEvent, AgentError>> + Send {
    stream! {
        let news = news(&turn);
        if !news.is_empty() {
            // A real model reads all of this in the transcript.
            yield Ok(AgentEvent::StepStart);
            for await event in model::words(&news.join(" ")) { yield Ok(event); }
            yield Ok(AgentEvent::StepFinish);
        }
        match turn.chat.messages.last().filter(|message| message.role == Role::User) {
            Some(message) => {
                let said = texts(message);
                for await event in model::turn(world, turn, said) { yield event; }
            }
            None => {
                if news.is_empty() {
                    for await event in model::words("Nothing was left to do.") { yield Ok(event); }
                }
                yield Ok(AgentEvent::finish(FinishReason::Stop));
            }
        }
    }
}

fn texts(message: &UiMessage) -> String {
    let texts = message.parts.iter().filter_map(|part| match part {
        Part::Text(part) => Some(part.text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join(" ")
}

/// What became of calls since the model spoke last.
fn news(turn: &Turn) -> Vec<String> {
    let mut news = Vec::new();
    if let Some(message) = turn.chat.message(&turn.message_id) {
        let is_step = |part: &Part| matches!(part, Part::StepStart { .. });
        let last_step = message.parts.iter().rposition(is_step).unwrap_or(0);
        news.extend(message.parts[last_step..].iter().filter_map(Part::as_tool).filter_map(became));
    }
    for result in turn.not_executed() {
        news.push(format!("{} was not executed.", result.tool_name));
    }
    for call in turn.deferred.superseded() {
        news.push(format!("{} was not answered, so it did not run.", call.tool_name));
    }
    news
}

/// What became of a call, in words.
fn became(call: &ToolPart) -> Option<String> {
    Some(match &call.state {
        ToolState::OutputAvailable { output: Some(output), .. } => {
            // Not every string of a browser is one here.
            in_words(&call.tool_name, &output.to().unwrap_or_else(|_| output.as_str().into()))
        }
        ToolState::OutputError { error_text, .. } => {
            format!("{} failed: {error_text}.", call.tool_name)
        }
        ToolState::OutputDenied { approval, .. } => {
            let reason = approval.as_ref().and_then(|approval| approval.reason.as_deref());
            denied_in_words(&call.tool_name, reason)
        }
        _ => return None,
    })
}
