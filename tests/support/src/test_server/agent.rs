//! The agent: a model that finds a word in what the person said, and a loop around it.

use std::sync::{Arc, Mutex};

use async_stream::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use ui_message_stream::approvals::AskError;
use ui_message_stream::chat::{Respond, Turn};
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::{Part, Role};
use ui_message_stream::stream::BoxError;
use ui_message_stream::{AgentEvent, Json, UiMessage};
use uuid::Uuid;

use super::tools::Tools;

/// What the model does when it finds a word.
#[derive(Debug, Clone, Deserialize)]
pub struct Line {
    /// The word, in lower case.
    pub word: String,
    /// The calls that it makes.
    pub calls: Vec<Scripted>,
}

/// A call as a model streams it: its input need not be JSON.
#[derive(Debug, Clone, Deserialize)]
pub struct Scripted {
    /// The name of the tool.
    pub tool: String,
    /// The text that it streams as the input.
    pub input: String,
    /// The id of the call; without one it is made up.
    pub id: Option<String>,
}

/// The model.
#[derive(Debug, Clone)]
pub struct Model {
    script: Arc<Vec<Line>>,
    prompts: Arc<Mutex<Vec<String>>>,
    failure: Arc<Mutex<Option<String>>>,
}

/// What the model says to a prompt.
enum Said {
    Text(String),
    Calls(Vec<Scripted>),
}

impl Model {
    /// It says these lines before those that it knows.
    pub fn new(script: Vec<Line>) -> Self {
        Model { script: script.into(), prompts: Arc::default(), failure: Arc::default() }
    }

    /// What it read, one text for each time that it was called.
    pub fn prompts(&self) -> Vec<String> {
        self.prompts.lock().unwrap().clone()
    }

    /// Lets it fail from now on, in the middle of a text.
    pub fn set_failure(&self, error: &str) {
        *self.failure.lock().unwrap() = Some(error.to_owned());
    }

    /// Reads a prompt: all that the agent was given, as it was given.
    fn read(&self, turn: &Turn, results: &[Value]) -> Said {
        let messages = &turn.chat.messages;
        // As text: what a client gave may be JSON that not every reader takes.
        let prompt = [
            serde_json::to_string(messages).unwrap(),
            serde_json::to_string(&turn.deferred).unwrap(),
            serde_json::to_string(&turn.not_executed().collect::<Vec<_>>()).unwrap(),
            serde_json::to_string(results).unwrap(),
        ];
        self.prompts.lock().unwrap().push(prompt.join("\n"));
        let user = messages.iter().rposition(|message| message.role == Role::User);
        let said = user.map(|at| text_of(&messages[at])).unwrap_or_default();
        let mut since = messages[user.map_or(0, |at| at + 1)..].iter();
        let goes_on = turn.request.as_ref().is_none_or(|request| request.continued().is_some());
        let was_told = goes_on && !turn.deferred.results().is_empty();
        if was_told || !results.is_empty() || since.any(has_result) {
            return Said::Text("That is what came of it.".to_owned());
        }
        match self.calls_for(&said) {
            Some(calls) => Said::Calls(calls),
            None => Said::Text(format!("You said: {said}")),
        }
    }

    fn calls_for(&self, said: &str) -> Option<Vec<Scripted>> {
        let lower = said.to_lowercase();
        let scripted = self.script.iter().find(|line| lower.contains(&line.word));
        if let Some(line) = scripted {
            return Some(line.calls.clone());
        }
        let file = FILES.iter().find(|file| said.contains(**file)).unwrap_or(&FILES[0]);
        let call = |tool: &str, input: Value| Scripted {
            tool: tool.to_owned(),
            input: input.to_string(),
            id: None,
        };
        let weather = || call("get_weather", json!({"city": "Lisbon"}));
        let deletion = || call("delete_file", json!({"path": file}));
        let transfer = || call("transfer", json!({"to": "Harbour Bakery", "amount": 5000}));
        let found = ["mixed", "delete", "weather", "location"].into_iter();
        Some(match found.into_iter().find(|word| lower.contains(word))? {
            "mixed" => vec![weather(), deletion(), transfer()],
            "delete" => vec![deletion()],
            "weather" => vec![weather()],
            _ => vec![call("get_location", json!({}))],
        })
    }
}

/// The agent's loop: the model, the tools that need no approval, and the model again.
pub(super) fn scripted(model: Model, tools: Tools) -> impl Respond {
    move |turn: Turn| {
        let (model, tools) = (model.clone(), tools.clone());
        stream! {
            let mut results = Vec::new();
            loop {
                let calls = match model.read(&turn, &results) {
                    Said::Calls(calls) => calls,
                    Said::Text(text) => {
                        yield Ok::<_, BoxError>(AgentEvent::text(text));
                        let failure = model.failure.lock().unwrap().clone();
                        if let Some(error) = failure {
                            yield Err(error.into());
                        }
                        return;
                    }
                };
                let mut waits = false;
                for call in calls {
                    let id = call.id.unwrap_or_else(|| format!("call_{}", Uuid::new_v4()));
                    let announced = ToolCall::new(id.as_str(), call.tool.clone());
                    let input = match Json::parse(&call.input) {
                        Ok(input) if tools.takes(&call.tool, &input) => input,
                        _ => {
                            let input = Json::string(&call.input);
                            let wrong = AgentEvent::tool_input_invalid(announced, input, INVALID);
                            results.push(json!({"toolCallId": id, "error": INVALID}));
                            yield Ok(wrong);
                            continue;
                        }
                    };
                    if call.tool == "get_location" {
                        waits = true;
                        yield Ok(AgentEvent::tool_input(announced.client_executed(), input));
                        continue;
                    }
                    if Tools::needs_approval(&call.tool, &input) {
                        let id = id.as_str().into();
                        let approvals = &turn.approvals;
                        match approvals.ask(&turn.message_id, &id, &call.tool, &input, None).await {
                            Ok(asked) => {
                                waits = true;
                                yield Ok(AgentEvent::tool_input(announced, input));
                                yield Ok(asked.event(id));
                            }
                            Err(AskError::Ledger(error)) => {
                                yield Err(error.into());
                                return;
                            }
                            Err(error) => {
                                let error = error.to_string();
                                results.push(json!({"toolCallId": id, "error": error}));
                                yield Ok(AgentEvent::tool_input_invalid(announced, input, error));
                            }
                        }
                        continue;
                    }
                    yield Ok(AgentEvent::tool_input(announced, input.clone()));
                    match tools.execute(&call.tool, &input).map(|output| Json::parse(&output)) {
                        Ok(Ok(output)) => {
                            results.push(json!({"toolCallId": id, "output": output}));
                            yield Ok(AgentEvent::tool_output(id.as_str(), output));
                        }
                        // What no client could be sent.
                        Ok(Err(error)) => {
                            let error = error.to_string();
                            results.push(json!({"toolCallId": id, "error": error}));
                            yield Ok(AgentEvent::tool_failed(id.as_str(), error));
                        }
                        Err(error) => {
                            yield Err(error.into());
                            return;
                        }
                    }
                }
                if waits {
                    yield Ok(AgentEvent::finish(FinishReason::ToolCalls));
                    return;
                }
            }
        }
    }
}

fn has_result(message: &UiMessage) -> bool {
    message.tool_parts().any(|part| part.is_settled())
}

fn text_of(message: &UiMessage) -> String {
    let texts = message.parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    texts.collect::<Vec<_>>().join(" ")
}

const FILES: [&str; 6] =
    ["notes.txt", "budget.xlsx", "holiday.jpg", "draft.md", "report.pdf", "old.log"];

const INVALID: &str = "The tool does not take this input.";
