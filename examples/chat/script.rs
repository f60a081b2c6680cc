//! The agent of the demo: what was decided is done first, then the scripted model goes on.

use std::sync::Arc;

use async_stream::stream;
use futures::Stream;
use serde_json::Value;
use ui_message_stream::approval::{DeferredOutcome, DeferredToolResults, REFUSED};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::message::{Part, ToolState};
use ui_message_stream::{AgentEvent, ChatRequest, Json};

use crate::Demo;
use crate::model::{turn, words};
use crate::world::{denied_in_words, in_words};

/// What goes wrong in the agent; the page shows none of it.
pub(crate) type AgentError = Box<dyn std::error::Error + Send + Sync>;

/// One turn: first what was decided is done, then the model goes on.
pub(crate) fn run(
    demo: Arc<Demo>,
    chat: &ChatRequest,
    deferred: DeferredToolResults,
) -> impl Stream<Item = Result<AgentEvent, AgentError>> + Send + use<> {
    let chat_id = chat.id().clone();
    let said = chat.new_user_message().map(|message| {
        let texts = message.parts.iter().filter_map(|part| match part {
            Part::Text(part) => Some(part.text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join(" ")
    });
    let earlier = settled_before(chat, &deferred);
    stream! {
        let mut news = earlier;
        for result in deferred.results() {
            let (id, tool) = (result.tool_call_id.clone(), &result.tool_name);
            match &result.outcome {
                DeferredOutcome::Approved { input, .. } => {
                    match demo.world.run_tool(tool, &input.to::<Value>()?) {
                        Ok(output) => {
                            news.push(in_words(tool, &output));
                            yield Ok(AgentEvent::tool_output(id, Json::of(&output)?));
                        }
                        Err(error) => {
                            news.push(format!("{tool} failed: {error}."));
                            yield Ok(AgentEvent::tool_failed(id, error));
                        }
                    }
                }
                DeferredOutcome::Denied { reason } => {
                    news.push(denied_in_words(tool, reason.as_deref()));
                    yield Ok(AgentEvent::tool_denied(id));
                }
                // The client shows the output that it gave.
                DeferredOutcome::Output { output } => {
                    // Not every string of a browser is one here.
                    let output = output.to().unwrap_or_else(|_| output.as_str().into());
                    news.push(in_words(tool, &output));
                }
                DeferredOutcome::OutputError { error_text } => {
                    news.push(format!("{tool} failed in your browser: {error_text}."));
                }
                _ => {
                    news.push(format!("{tool} was not executed."));
                    yield Ok(AgentEvent::tool_failed(id, REFUSED));
                }
            }
        }
        if said.is_none() && !deferred.pending().is_empty() {
            // The rest still waits for an answer: the model is not called.
            yield Ok(AgentEvent::finish(FinishReason::ToolCalls));
            return;
        }
        for call in deferred.superseded() {
            news.push(format!("{} was not answered, so it did not run.", call.tool_name));
        }
        if !news.is_empty() {
            // A real model reads all of this in the transcript.
            yield Ok(AgentEvent::StepStart);
            for await event in words(&news.join(" ")) { yield Ok(event); }
            yield Ok(AgentEvent::StepFinish);
        }
        let Some(said) = said else {
            if news.is_empty() {
                for await event in words("Nothing was left to do.") { yield Ok(event); }
            }
            yield Ok(AgentEvent::finish(FinishReason::Stop));
            return;
        };
        for await event in turn(demo, chat_id, said) { yield event; }
    }
}

/// The results that the last step had before this request, where answers came one by one.
fn settled_before(chat: &ChatRequest, deferred: &DeferredToolResults) -> Vec<String> {
    let parts = chat.continued().map(|message| message.parts.as_slice()).unwrap_or_default();
    let last_step = parts.iter().rposition(|part| matches!(part, Part::StepStart { .. }));
    let calls = parts.iter().skip(last_step.unwrap_or(0)).filter_map(Part::as_tool);
    let settled = calls.filter(|call| deferred.result_of(&call.tool_call_id).is_none());
    let described = settled.filter_map(|call| match &call.state {
        ToolState::OutputAvailable { output: Some(output), .. } => {
            Some(in_words(&call.tool_name, &output.to().ok()?))
        }
        ToolState::OutputDenied { approval, .. } => {
            let reason = approval.as_ref().and_then(|approval| approval.reason.as_deref());
            Some(denied_in_words(&call.tool_name, reason))
        }
        _ => None,
    });
    described.collect()
}
