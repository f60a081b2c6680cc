//! The scripted model: it reads the last thing the person wrote, and does what a real one would.

use std::sync::Arc;
use std::time::Duration;

use async_stream::stream;
use futures::Stream;
use serde_json::{Value, json};
use tokio::time::sleep;
use ui_message_stream::Json;
use ui_message_stream::approvals::AskError;
use ui_message_stream::chat::Turn;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use uuid::Uuid;

use crate::agent::AgentError;
use crate::world::{SharedWorld, in_words};

/// What the model does with a message of the person.
pub(crate) fn turn(
    world: Arc<SharedWorld>,
    turn: Turn,
    said: String,
) -> impl Stream<Item = Result<AgentEvent, AgentError>> + Send {
    let asks = |word: &str| said.to_lowercase().contains(word);
    let file = json!({ "path": world.file_named_in(&said) });
    let transfer = json!({ "to": "Harbour Bakery", "amount": 5000 });
    let weather = json!({ "city": "Lisbon" });
    let (opening, calls): (&str, Vec<(&str, Value)>) = if asks("mixed") {
        let calls = vec![("get_weather", weather), ("delete_file", file), ("transfer", transfer)];
        ("Three things at once.", calls)
    } else if asks("delete") {
        ("I can delete that file for you.", vec![("delete_file", file)])
    } else if asks("weather") {
        ("Let me look.", vec![("get_weather", weather)])
    } else if asks("location") {
        ("Your browser knows that.", vec![("get_location", json!({}))])
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
                "get_location" => waits = true,
                "get_weather" => outputs.push((id, world.run_tool(tool, &input)?)),
                _ => {
                    let what = described(tool, &input);
                    match turn.approvals.ask(&turn.message_id, &id, tool, &json, Some(&what)).await {
                        Ok(asked) => {
                            yield Ok(asked.event(id));
                            waits = true;
                        }
                        Err(AskError::NotShownAsIs(wrong)) => {
                            yield Ok(AgentEvent::tool_failed(id, wrong.to_string()));
                        }
                        Err(error) => {
                            yield Err(error.into());
                            return;
                        }
                    }
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
            for await event in words(&in_words("get_weather", output)) { yield Ok(event); }
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

/// What a person is asked.
fn described(tool: &str, input: &Value) -> String {
    match tool {
        "delete_file" => format!("Delete {}", input["path"].as_str().unwrap_or("a file")),
        "transfer" => {
            format!("Send {} to {}", input["amount"], input["to"].as_str().unwrap_or("?"))
        }
        other => other.to_owned(),
    }
}

/// A text as a model writes it.
pub(crate) fn words(text: &str) -> impl Stream<Item = AgentEvent> + Send + use<> {
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
    let pieces: Vec<String> = characters.chunks(size).map(|piece| piece.iter().collect()).collect();
    pieces.into_iter()
}

const PACE: Duration = Duration::from_millis(12);
