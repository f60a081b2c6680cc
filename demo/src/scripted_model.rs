//! The scripted model: it reads the last thing that was said, and does what a real one would.

use std::sync::Arc;
use std::time::Duration;

use async_stream::try_stream;
use serde_json::{Value, json};
use tokio::time::sleep;
use ui_message_stream::agent::{Model, ModelRequest, ModelStream};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model_message::{
    ModelMessage, ToolContent, ToolResult, ToolResultContent, UserContent,
};
use ui_message_stream::run::ModelEvent;
use uuid::Uuid;

use crate::world::{SharedWorld, denied_in_words, in_words};

/// A model without a provider. It reads the last text of the user, and what came back of its calls.
#[derive(Debug)]
pub struct ScriptedModel {
    world: Arc<SharedWorld>,
}

impl ScriptedModel {
    /// Creates a model that offers the files of this world.
    pub fn new(world: Arc<SharedWorld>) -> Self {
        ScriptedModel { world }
    }
}

impl Model for ScriptedModel {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let (mut news, said) = heard(&request.messages);
        let turn = said.map(|said| self.turn(&said));
        Box::pin(try_stream! {
            let Turn { opening, calls, closing } = turn.unwrap_or_else(|| {
                if news.is_empty() {
                    news.push("Nothing was left to do.".to_owned());
                }
                Turn::default()
            });
            news.push(opening);
            for word in words(&news.join(" ")) {
                yield ModelEvent::Said(AgentEvent::text(word));
                sleep(PACE).await;
            }
            for (tool, input) in &calls {
                let call = ToolCall::new(format!("call_{}", Uuid::new_v4().simple()), *tool);
                yield ModelEvent::Said(AgentEvent::tool_input_start(call.clone()));
                let input = input.to_string();
                for piece in pieces(&input, 8) {
                    yield ModelEvent::Said(AgentEvent::tool_input_delta(call.id.clone(), piece));
                    sleep(PACE).await;
                }
                yield ModelEvent::Call(Box::new(call), input);
            }
            match closing {
                Closing::None => {}
                Closing::Slowly => for n in 1..=200 {
                    yield ModelEvent::Said(AgentEvent::text(format!("{n} ")));
                    sleep(Duration::from_millis(100)).await;
                },
                Closing::Fails => Err("the model went away")?,
            }
            let reason = if calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
            yield ModelEvent::Finished(reason);
        })
    }
}

/// What the model does with a message of the person.
#[derive(Default)]
struct Turn {
    opening: String,
    calls: Vec<(&'static str, Value)>,
    closing: Closing,
}

#[derive(Default)]
enum Closing {
    #[default]
    None,
    Slowly,
    Fails,
}

impl ScriptedModel {
    fn turn(&self, said: &str) -> Turn {
        let asks = |word: &str| said.to_lowercase().contains(word);
        let file = ("delete_file", json!({ "path": self.world.file_named_in(said) }));
        let transfer = ("transfer", json!({ "to": "Harbour Bakery", "amount": 5000 }));
        let weather = ("get_weather", json!({ "city": "Lisbon" }));
        let (opening, calls) = if asks("mixed") {
            ("Three things at once.", vec![weather, file, transfer])
        } else if asks("delete") {
            ("I can delete that file for you.", vec![file])
        } else if asks("weather") {
            ("Let me look.", vec![weather])
        } else if asks("location") {
            ("Your browser knows that.", vec![("get_location", json!({}))])
        } else if asks("slow") {
            return Turn { closing: Closing::Slowly, ..Turn::default() };
        } else if asks("fail") {
            let opening = "This will not end well, I am afr".to_owned();
            return Turn { opening, closing: Closing::Fails, ..Turn::default() };
        } else {
            return Turn { opening: format!("You said: {said}"), ..Turn::default() };
        };
        Turn { opening: opening.to_owned(), calls, closing: Closing::None }
    }
}

/// What became of calls since the model spoke last, and what the person said since.
fn heard(messages: &[ModelMessage]) -> (Vec<String>, Option<String>) {
    let is_assistant = |message: &ModelMessage| matches!(message, ModelMessage::Assistant { .. });
    let spoke = messages.iter().rposition(is_assistant);
    let since = &messages[spoke.map_or(0, |at| at + 1)..];
    let (mut news, mut said) = (Vec::new(), None);
    for message in since {
        match message {
            ModelMessage::Tool { content } => news.extend(content.iter().filter_map(became)),
            ModelMessage::User { content } => {
                let texts = content.iter().filter_map(|content| match content {
                    UserContent::Text(text) => Some(text.text.as_str()),
                    _ => None,
                });
                said = Some(texts.collect::<Vec<_>>().join(" "));
            }
            _ => {}
        }
    }
    (news, said)
}

/// What became of a call, in words.
fn became(content: &ToolContent) -> Option<String> {
    let ToolContent::Result(ToolResultContent { tool_name, result, .. }) = content else {
        return None;
    };
    Some(match result {
        // Not every string of a browser is one here.
        ToolResult::Output(output) => {
            in_words(tool_name, &output.to().unwrap_or_else(|_| output.as_str().into()))
        }
        ToolResult::Error(why) => format!("{tool_name} failed: {why}."),
        ToolResult::Denied { reason } => denied_in_words(tool_name, reason.as_deref()),
        other => format!("{tool_name}: {}.", other.text().trim_end_matches('.')),
    })
}

/// A text as a model writes it.
fn words(text: &str) -> Vec<String> {
    text.split_inclusive(' ').map(str::to_owned).collect()
}

fn pieces(text: &str, size: usize) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(size).map(|piece| piece.iter().collect()).collect()
}

const PACE: Duration = Duration::from_millis(12);
