//! The scripted model: reads the user's last message and answers as a real model would.

use std::ops::RangeInclusive;
use std::time::Duration;

use async_stream::try_stream;
use serde_json::{Value, json};
use tokio::time::sleep;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{
    AssistantContent, Model, ModelEvent, ModelMessage, ModelRequest, ModelStream, ToolContent,
    ToolResult, ToolResultContent, UserContent,
};
use uuid::Uuid;

use crate::gates::Gate;
use crate::world::{describe_denial, describe_output};

/// A model without a provider. It reads the names of the user's files in its instructions, the last text of
/// the user, and the results of its calls.
#[derive(Debug)]
pub struct ScriptedModel;

impl Model for ScriptedModel {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let (mut sentences, user_text) = latest_input(&request.messages);
        let last_number = last_number(&request.messages);
        let files = file_names(request.instructions.as_deref().unwrap_or_default());
        let reply = user_text.map(|user_text| reply(&user_text, &files, last_number));
        Box::pin(try_stream! {
            let ScriptedReply { opening, after, calls } = reply.unwrap_or_else(|| {
                if sentences.is_empty() {
                    sentences.push("Nothing was left to do.".to_owned());
                }
                ScriptedReply::default()
            });
            sentences.push(opening);
            for word in words(&sentences.join(" ")) {
                yield ModelEvent::Event(AgentEvent::text(word));
                sleep(CHUNK_INTERVAL).await;
            }
            match after {
                After::None => {}
                After::Numbers(numbers) => for n in numbers {
                    yield ModelEvent::Event(AgentEvent::text(format!("{n} ")));
                    sleep(NUMBER_INTERVAL).await;
                },
                After::NumbersUntil(gate) => {
                    let mut n = 0;
                    while n == 0 || gate.is_closed() {
                        n += 1;
                        yield ModelEvent::Event(AgentEvent::text(format!("{n} ")));
                        sleep(NUMBER_INTERVAL).await;
                    }
                    yield ModelEvent::Event(AgentEvent::text("done"));
                }
                After::NumberBeforeEach(gates) => for (n, gate) in (1..).zip(gates) {
                    yield ModelEvent::Event(AgentEvent::text(format!("{n} ")));
                    gate.pass().await;
                },
                After::Failure => Err("the model went away")?,
            }
            for (tool, input) in &calls {
                let call = ToolCall::new(format!("call_{}", Uuid::new_v4().simple()), *tool);
                yield ModelEvent::Event(AgentEvent::tool_input_start(call.clone()));
                let input = input.to_string();
                for piece in pieces(&input, 8) {
                    yield ModelEvent::Event(AgentEvent::tool_input_delta(call.id.clone(), piece));
                    sleep(CHUNK_INTERVAL).await;
                }
                yield ModelEvent::ToolCall(Box::new(call), input);
            }
            let reason = if calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
            yield ModelEvent::Finished(reason);
        })
    }
}

/// The model's reply to a message of the user.
#[derive(Default)]
struct ScriptedReply {
    opening: String,
    after: After,
    calls: Vec<(&'static str, Value)>,
}

/// What follows the opening.
#[derive(Default)]
enum After {
    #[default]
    None,
    /// Ten numbers each second.
    Numbers(RangeInclusive<u32>),
    /// As many as are written until a test opens the gate.
    NumbersUntil(Gate),
    /// A test opens one gate after the other.
    NumberBeforeEach(Vec<Gate>),
    Failure,
}

fn reply(user_text: &str, files: &[&str], last_number: Option<u32>) -> ScriptedReply {
    let mentions = |word: &str| user_text.to_lowercase().contains(word);
    let file = ("delete_file", json!({ "path": file_to_delete(user_text, files) }));
    let mut numbers = user_text.split_whitespace().filter_map(|word| word.parse::<u32>().ok());
    let amount = numbers.find(|&number| number > 1_000).unwrap_or(5_000);
    let transfer = ("transfer", json!({ "to": "Harbour Bakery", "amount": amount }));
    let weather = ("get_weather", json!({ "city": "Lisbon" }));
    // So small that it needs no approval.
    let small = ("transfer", json!({ "to": "Harbour Bakery", "amount": 500 }));
    let small = if mentions("transfer") { vec![small] } else { Vec::new() };
    let (opening, calls) = if let Some(gate) = gates_after("until", user_text).next() {
        let after = After::NumbersUntil(gate);
        return ScriptedReply { after, calls: small, ..ScriptedReply::default() };
    } else if mentions("before each") {
        let after = After::NumberBeforeEach(gates_after("each", user_text).collect());
        return ScriptedReply { after, ..ScriptedReply::default() };
    } else if mentions("tidy") {
        let two = files.iter().take(2).copied().collect::<Vec<_>>().join(" and ");
        let task = json!({ "task": format!("Clear out {two}.") });
        ("The janitor can do that.", vec![("janitor", task)])
    } else if mentions("clear out") {
        // The janitor reads this.
        let delete = |path| ("delete_file", json!({ "path": path }));
        ("", file_names(user_text).into_iter().map(delete).collect())
    } else if mentions("mixed") {
        ("Three things at once.", vec![weather, file, transfer])
    } else if mentions("delete") {
        ("I can delete that file for you.", vec![file])
    } else if mentions("weather") {
        ("Let me look.", vec![weather])
    } else if mentions("location") {
        ("Your browser knows that.", vec![("get_location", json!({}))])
    } else if mentions("slow") {
        let end = user_text.split_whitespace().find_map(|word| word.parse().ok());
        let after = After::Numbers(1..=end.unwrap_or(200));
        return ScriptedReply { after, calls: small, ..ScriptedReply::default() };
    } else if let Some(last) = last_number.filter(|_| mentions("go on")) {
        let next = last.saturating_add(1);
        let after = After::Numbers(next..=next.saturating_add(9));
        return ScriptedReply { after, ..ScriptedReply::default() };
    } else if mentions("fail") {
        let opening = "This will not end well, I am afr".to_owned();
        return ScriptedReply { opening, after: After::Failure, ..ScriptedReply::default() };
    } else {
        return ScriptedReply {
            opening: format!("You said: {user_text}"),
            ..ScriptedReply::default()
        };
    };
    ScriptedReply { opening: opening.to_owned(), calls, after: After::None }
}

/// Returns the gates after this word.
fn gates_after(word: &str, user_text: &str) -> impl Iterator<Item = Gate> {
    user_text
        .split_whitespace()
        .skip_while(move |next| *next != word)
        .skip(1)
        .map_while(Gate::named)
}

/// Returns the file that the user names, also if it is missing. If they name none, returns the first file
/// that is left, or `notes.txt`, which is missing then.
fn file_to_delete<'a>(user_text: &'a str, files: &[&'a str]) -> &'a str {
    file_names(user_text).first().or(files.first()).copied().unwrap_or("notes.txt")
}

/// Returns the names of files in a text.
fn file_names(text: &str) -> Vec<&str> {
    let is_punctuation = |c: char| !c.is_alphanumeric();
    let words = text.split_whitespace().map(|word| word.trim_matches(is_punctuation));
    words.filter(|word| word.contains('.')).collect()
}

/// Returns the results of the calls and the text of the user since the model's last message.
fn latest_input(messages: &[ModelMessage]) -> (Vec<String>, Option<String>) {
    let is_assistant = |message: &ModelMessage| matches!(message, ModelMessage::Assistant { .. });
    let last_assistant = messages.iter().rposition(is_assistant);
    let since = &messages[last_assistant.map_or(0, |at| at + 1)..];
    let mut sentences = Vec::new();
    let mut user_text = None;
    for message in since {
        match message {
            ModelMessage::Tool { content } => {
                sentences.extend(content.iter().filter_map(describe_result))
            }
            ModelMessage::User { content } => {
                let mut texts = content.iter().filter_map(|content| match content {
                    UserContent::Text(text) => Some(text.text.as_str()),
                    _ => None,
                });
                // The one before it may say how the last answer has ended.
                user_text = Some(texts.next_back().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }
    (sentences, user_text)
}

/// Returns the number with which the model's last message ends.
fn last_number(messages: &[ModelMessage]) -> Option<u32> {
    let content = messages.iter().rev().find_map(|message| match message {
        ModelMessage::Assistant { content } => Some(content),
        _ => None,
    })?;
    match content.last()? {
        AssistantContent::Text(text) => text.text.split_whitespace().last()?.parse().ok(),
        _ => None,
    }
}

/// Describes the result of a call in a sentence.
fn describe_result(content: &ToolContent) -> Option<String> {
    let ToolContent::Result(ToolResultContent { tool_name, result, .. }) = content else {
        return None;
    };
    Some(match result {
        // Some strings that a browser sends are not valid Rust strings.
        ToolResult::Output(output) => {
            let read = output.decode().unwrap_or_else(|_| output.as_str().into());
            describe_output(tool_name, &without_note(read))
        }
        ToolResult::Error(error_text) => {
            format!("{tool_name} failed: {}.", error_text.trim_end_matches('.'))
        }
        ToolResult::Denied { reason } => describe_denial(tool_name, reason.as_deref()),
        other => format!("{tool_name}: {}.", other.text().trim_end_matches('.')),
    })
}

/// Returns the output of a call that has a sentence before it: its approver has changed the input.
fn without_note(read: Value) -> Value {
    let output = read.as_str().and_then(|text| text.split_once("The result is: "));
    output.and_then(|(_, output)| serde_json::from_str(output).ok()).unwrap_or(read)
}

/// Splits a text into words, as a model streams it.
fn words(text: &str) -> Vec<String> {
    text.split_inclusive(' ').map(str::to_owned).collect()
}

fn pieces(text: &str, size: usize) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    characters.chunks(size).map(|piece| piece.iter().collect()).collect()
}

const CHUNK_INTERVAL: Duration = Duration::from_millis(12);

const NUMBER_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_named_is_not_replaced_by_another_one() {
        let files = file_names("The user's files: draft.md, old.log.");
        assert_eq!(files, ["draft.md", "old.log"]);
        assert_eq!(file_to_delete("Please delete budget.xlsx!", &files), "budget.xlsx");
        assert_eq!(file_to_delete("delete a file", &files), "draft.md");
        assert_eq!(file_to_delete("delete a file", &[]), "notes.txt");
    }
}
