//! [`MessageContents`]: the contents of a message, for comparisons.

use serde_json::Value;
use ui_message_stream::UiMessage;
use ui_message_stream::message::{Part, ToolPart};

/// The contents of a message, grouped by kind.
#[derive(Debug, Default, PartialEq)]
pub struct MessageContents {
    /// All text.
    pub text: String,
    /// All reasoning.
    pub reasoning: String,
    /// For each call: tool, input, state, output.
    pub calls: Vec<(String, Value, String, Value)>,
    /// The URL of each source.
    pub sources: Vec<String>,
}

impl MessageContents {
    /// Reads a message.
    pub fn of(message: &UiMessage) -> Self {
        let mut held = MessageContents::default();
        for part in &message.parts {
            match part {
                Part::Text(part) => held.text.push_str(&part.text),
                Part::Reasoning(part) => held.reasoning.push_str(&part.text),
                Part::Tool(part) => held.calls.push(call(part)),
                Part::SourceUrl(part) => held.sources.push(part.url.to_string()),
                _ => {}
            }
        }
        held
    }
}

fn call(part: &ToolPart) -> (String, Value, String, Value) {
    let json: Value = serde_json::to_value(Part::Tool(Box::new(part.clone()))).unwrap();
    let output = if json["output"].is_null() { &json["errorText"] } else { &json["output"] };
    let state = part.state.as_str().to_owned();
    (part.tool_name.to_string(), json["input"].clone(), state, output.clone())
}
