//! The agent: a model that looks for a word in the user's message, and the loop around it.

use std::sync::{Arc, Mutex};

use async_stream::stream;
use serde::Deserialize;
use serde_json::{Value, json};
use ui_message_stream::UserText;
use ui_message_stream::approval::RequestApprovalError;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::{Part, Role};
use ui_message_stream::{AgentEvent, BoxError, Json, UiMessage};
use ui_message_stream_agent::ApprovalContext;
use ui_message_stream_chat::{ChatAgent, Turn};
use uuid::Uuid;

use super::tools::Tools;

/// The tool calls of the model for one word.
#[derive(Debug, Clone, Deserialize)]
pub struct Line {
    /// The word, in lower case.
    pub word: String,
    /// The calls that the model makes.
    pub calls: Vec<Scripted>,
}

/// A call as a model streams it. Its input need not be JSON.
#[derive(Debug, Clone, Deserialize)]
pub struct Scripted {
    /// The name of the tool.
    pub tool: String,
    /// The text of the input.
    pub input: String,
    /// The id of the call. Without one, an id is generated.
    pub id: Option<String>,
}

/// The model.
#[derive(Debug, Clone)]
pub struct Model {
    script: Arc<Vec<Line>>,
    prompts: Arc<Mutex<Vec<String>>>,
    failure: Arc<Mutex<Option<String>>>,
}

/// The reply of the model to a prompt.
enum Reply {
    Text(String),
    Calls(Vec<Scripted>),
}

impl Model {
    /// Creates a model that looks for the words of `script` before its own words.
    pub fn new(script: Vec<Line>) -> Self {
        Model { script: script.into(), prompts: Arc::default(), failure: Arc::default() }
    }

    /// Returns the prompts that the model was called with, one text for each call.
    pub fn prompts(&self) -> Vec<String> {
        self.prompts.lock().unwrap().clone()
    }

    /// Lets the model fail from now on, after it has sent a text.
    pub fn set_failure(&self, error: &str) {
        *self.failure.lock().unwrap() = Some(error.to_owned());
    }

    /// Reads a prompt: everything that the agent received, unchanged.
    fn read(&self, turn: &Turn, results: &[Value]) -> Reply {
        let messages = &turn.chat.messages;
        // As text, because a client may send JSON that not every reader accepts.
        let prompt = [
            serde_json::to_string(messages).unwrap(),
            serde_json::to_string(&turn.deferred).unwrap(),
            serde_json::to_string(&turn.not_executed().collect::<Vec<_>>()).unwrap(),
            serde_json::to_string(results).unwrap(),
        ];
        self.prompts.lock().unwrap().push(prompt.join("\n"));
        let user = messages.iter().rposition(|message| message.role == Role::User);
        let user_text = user.map(|at| text_of(&messages[at])).unwrap_or_default();
        let mut since = messages.iter().skip(user.map_or(0, |at| at + 1));
        let continues_turn =
            turn.request.as_ref().is_none_or(|request| request.continued_message().is_some());
        let has_deferred_results = continues_turn && !turn.deferred.results().is_empty();
        if has_deferred_results || !results.is_empty() || since.any(has_result) {
            return Reply::Text("That is what came of it.".to_owned());
        }
        match self.calls_for(&user_text) {
            Some(calls) => Reply::Calls(calls),
            None => Reply::Text(format!("You said: {user_text}")),
        }
    }

    fn calls_for(&self, user_text: &str) -> Option<Vec<Scripted>> {
        let lower = user_text.to_lowercase();
        let scripted = self.script.iter().find(|line| lower.contains(&line.word));
        if let Some(line) = scripted {
            return Some(line.calls.clone());
        }
        let file = FILES.iter().find(|file| user_text.contains(**file)).unwrap_or(&FILES[0]);
        let call = |tool: &str, input: Value| Scripted {
            tool: tool.to_owned(),
            input: input.to_string(),
            id: None,
        };
        let weather = || call("get_weather", json!({"city": "Lisbon"}));
        let deletion = || call("delete_file", json!({"path": file}));
        let transfer = || call("transfer", json!({"to": "Harbour Bakery", "amount": 5000}));
        let found = ["mixed", "delete", "weather", "publish", "location"].into_iter();
        Some(match found.into_iter().find(|word| lower.contains(word))? {
            "mixed" => vec![weather(), deletion(), transfer()],
            "delete" => vec![deletion()],
            "weather" => vec![weather()],
            "publish" => vec![call("publish", json!({"text": "It is sunny."}))],
            _ => vec![call("get_location", json!({}))],
        })
    }
}

/// Creates the agent: it calls the model, runs the tools that need no approval, and repeats.
pub(super) fn scripted(model: Model, tools: Tools) -> impl ChatAgent {
    move |turn: Turn| {
        let (model, tools) = (model.clone(), tools.clone());
        stream! {
            let mut results = Vec::new();
            loop {
                let calls = match model.read(&turn, &results) {
                    Reply::Calls(calls) => calls,
                    Reply::Text(text) => {
                        yield Ok::<_, BoxError>(AgentEvent::text(text));
                        let failure = model.failure.lock().unwrap().clone();
                        if let Some(error) = failure {
                            yield Err(error.into());
                        }
                        return;
                    }
                };
                let mut is_paused = false;
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
                        is_paused = true;
                        yield Ok(AgentEvent::tool_input(announced.client_executed(), input));
                        continue;
                    }
                    let policy = tools.policy(&call.tool);
                    if !policy.authorizes(&call.tool, &turn.principal, &input).await {
                        results.push(json!({"toolCallId": id, "error": UserText::NotPermitted.text()}));
                        yield Ok(AgentEvent::tool_input(announced, input));
                        yield Ok(AgentEvent::tool_failed(id.as_str(), UserText::NotPermitted));
                        continue;
                    }
                    let context = ApprovalContext::new(id.as_str(), turn.chat.clone());
                    if policy.requires_approval(&call.tool, &input, context).await {
                        let id = id.as_str().into();
                        let approvals = &turn.approvals;
                        match approvals.request_approval(&turn.message_id, &id, &call.tool, &input, None).await {
                            Ok(issued) => {
                                is_paused = true;
                                yield Ok(AgentEvent::tool_input(announced, input));
                                yield Ok(issued.event(id));
                            }
                            Err(RequestApprovalError::Ledger(error)) => {
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
                        // The output is JSON that no client can receive.
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
                if is_paused {
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
