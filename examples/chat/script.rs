//! The agent of the demo: a scripted model that reads the last thing the person wrote, and says as
//! events what a real one would do.

use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use futures::Stream;
use serde_json::{Value, json};
use tokio::time::sleep;
use ui_message_stream::approval::{DeferredOutcome, DeferredToolResults, OpenCall, REFUSED};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::id::ChatId;
use ui_message_stream::message::{Part, ToolState};
use ui_message_stream::{ChatRequest, Json};
use uuid::Uuid;

use crate::Demo;

/// What goes wrong in the agent; the page shows none of it.
type AgentError = Box<dyn std::error::Error + Send + Sync>;

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
                DeferredOutcome::Approved { input } => {
                    match demo.world.run_tool(tool, &input.to::<Value>()?) {
                        Ok(output) => {
                            news.push(format!("{tool} ran: {output}."));
                            yield Ok(AgentEvent::tool_output(id, Json::of(&output)?));
                        }
                        Err(error) => {
                            news.push(format!("{tool} failed: {error}."));
                            yield Ok(AgentEvent::tool_failed(id, error));
                        }
                    }
                }
                DeferredOutcome::Denied { reason } => {
                    news.push(denied(tool, reason.as_deref()));
                    yield Ok(AgentEvent::tool_denied(id));
                }
                // The client shows the output that it gave.
                DeferredOutcome::Output { output } => news.push(format!("{tool} said {output}.")),
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
    let parts = chat
        .continued()
        .map(|message| message.parts.as_slice())
        .unwrap_or_default();
    let last_step = parts
        .iter()
        .rposition(|part| matches!(part, Part::StepStart { .. }));
    let calls = parts
        .iter()
        .skip(last_step.unwrap_or(0))
        .filter_map(Part::as_tool);
    let settled = calls.filter(|call| deferred.result_of(&call.tool_call_id).is_none());
    let described = settled.filter_map(|call| match &call.state {
        ToolState::OutputAvailable {
            output: Some(output),
            ..
        } => Some(format!("{} ran: {output}.", call.tool_name)),
        ToolState::OutputDenied { approval, .. } => {
            let reason = approval
                .as_ref()
                .and_then(|approval| approval.reason.as_deref());
            Some(denied(&call.tool_name, reason))
        }
        _ => None,
    });
    described.collect()
}

fn denied(tool: &str, reason: Option<&str>) -> String {
    let why = reason.unwrap_or("you gave no reason");
    format!("{tool} was denied and did not run: {why}.")
}

/// What the model does with a message of the person.
fn turn(
    demo: Arc<Demo>,
    chat: ChatId,
    said: String,
) -> impl Stream<Item = Result<AgentEvent, AgentError>> + Send {
    let asks = |word: &str| said.to_lowercase().contains(word);
    let file = json!({ "path": demo.world.file_named_in(&said) });
    let transfer = json!({ "to": "Harbour Bakery", "amount": 5000 });
    let weather = json!({ "city": "Lisbon" });
    let (opening, calls): (&str, Vec<(&str, Value)>) = if asks("mixed") {
        let calls = vec![
            ("get_weather", weather),
            ("delete_file", file),
            ("transfer", transfer),
        ];
        ("Three things at once.", calls)
    } else if asks("delete") {
        (
            "I can delete that file for you.",
            vec![("delete_file", file)],
        )
    } else if asks("weather") {
        ("Let me look.", vec![("get_weather", weather)])
    } else if asks("location") {
        (
            "Your browser knows that.",
            vec![("get_location", json!({}))],
        )
    } else {
        ("", vec![])
    };
    let (is_slow, fails) = (asks("slow"), asks("fail"));
    stream! {
        yield Ok(AgentEvent::StepStart);
        for await event in words(opening) { yield Ok(event); }
        let mut outputs = Vec::new();
        let mut waits = false;
        for (tool, input) in calls {
            let (call, json) = (tool_call(tool), Json::of(&input)?);
            let id = call.id.clone();
            yield Ok(AgentEvent::tool_input_start(call.clone()));
            for piece in pieces(json.as_str(), 8) {
                yield Ok(AgentEvent::tool_input_delta(id.clone(), piece));
                sleep(PACE).await;
            }
            yield Ok(AgentEvent::tool_input(call, json.clone()));
            match tool {
                "get_location" => {
                    demo.open_calls.add(&chat, OpenCall::left_to_client(id, tool, json));
                    waits = true;
                }
                "get_weather" => outputs.push((id, demo.world.run_tool(tool, &input)?)),
                _ => {
                    let approval = format!("ap_{}", Uuid::new_v4().simple());
                    let open = OpenCall::awaiting_approval(approval.clone(), id.clone(), tool, json);
                    demo.open_calls.add(&chat, open);
                    yield Ok(AgentEvent::approval_requested(id, approval));
                    waits = true;
                }
            }
        }
        for (id, output) in &outputs {
            yield Ok(AgentEvent::tool_output(id.clone(), Json::of(output)?));
        }
        yield Ok(AgentEvent::StepFinish);
        if waits {
            yield Ok(AgentEvent::finish(FinishReason::ToolCalls));
            return;
        }
        yield Ok(AgentEvent::StepStart);
        if fails {
            for await event in words("This will not end well, I am afr") { yield Ok(event); }
            yield Err("the model went away".into());
        } else if is_slow {
            for n in 1..=200 {
                yield Ok(AgentEvent::text(format!("{n} ")));
                sleep(Duration::from_millis(100)).await;
            }
        } else if let Some((_, output)) = outputs.first() {
            let (city, sky) = (output["city"].as_str(), output["sky"].as_str());
            let report = format!(
                "It is {} °C in {} and the sky is {}.",
                output["celsius"], city.unwrap_or("town"), sky.unwrap_or("there"),
            );
            for await event in words(&report) { yield Ok(event); }
        } else {
            for await event in words(&format!("You said: {said}")) { yield Ok(event); }
        }
        yield Ok(AgentEvent::StepFinish);
        yield Ok(AgentEvent::finish(FinishReason::Stop));
    }
}

fn tool_call(tool: &'static str) -> ToolCall {
    let call = ToolCall::new(format!("call_{}", Uuid::new_v4().simple()), tool);
    match tool {
        "delete_file" => call.with_title("Delete a file"),
        "transfer" => call.with_title("Transfer money"),
        "get_location" => call.with_title("Share your location").client_executed(),
        _ => call.with_title("Look up the weather"),
    }
}

/// A text as a model writes it.
fn words(text: &str) -> impl Stream<Item = AgentEvent> + Send + use<> {
    let words: Vec<String> = text.split_inclusive(' ').map(str::to_owned).collect();
    stream! {
        for word in words {
            yield AgentEvent::text(word);
            sleep(PACE).await;
        }
    }
}

fn pieces(text: &str, size: usize) -> impl Iterator<Item = String> {
    let characters: Vec<char> = text.chars().collect();
    let pieces: Vec<String> = characters
        .chunks(size)
        .map(|piece| piece.iter().collect())
        .collect();
    pieces.into_iter()
}

const PACE: Duration = Duration::from_millis(12);
