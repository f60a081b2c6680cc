//! [`StructuredOutput`]: the schema of an agent's structured output, and its check.

use std::sync::Arc;

use jsonschema::Validator;
use schemars::{JsonSchema, schema_for};
use serde::de::DeserializeOwned;

use crate::schema::{compile_validator, schema_json};
use ui_message_stream::UserText;
use ui_message_stream::event::Text;
use ui_message_stream::id::log_text;
use ui_message_stream::json::Json;
use ui_message_stream::message::UiMessage;
use ui_message_stream::model::OutputSchema;
use ui_message_stream::model::sanitize_tool_name;

/// The structured output of an agent.
#[derive(Debug, Clone)]
pub(super) struct StructuredOutput {
    schema: Arc<OutputSchema>,
    validator: Arc<Validator>,
    can_decode: fn(&Json) -> bool,
}

impl StructuredOutput {
    #[track_caller]
    pub(super) fn new<T: JsonSchema + DeserializeOwned>() -> Self {
        let name = T::schema_name();
        let schema = schema_for!(T);
        let is_object = schema.get("type").is_some_and(|kind| kind == "object");
        assert!(is_object, "structured output must be an object; {name} is not");
        let Some(validator) = compile_validator(schema.as_value()) else {
            panic!("the schema of {name} is not a valid JSON Schema");
        };
        StructuredOutput {
            validator: Arc::new(validator),
            schema: Arc::new(OutputSchema::new(sanitize_tool_name(&name), schema_json(&schema))),
            can_decode: |answer| answer.decode::<T>().is_ok(),
        }
    }

    pub(super) fn schema(&self) -> Arc<OutputSchema> {
        Arc::clone(&self.schema)
    }

    /// Parses the structured output at the end of a message.
    ///
    /// # Errors
    /// The text that the user reads.
    pub(super) fn parse_message(&self, message: &UiMessage) -> Result<Json, Text> {
        self.check(message).map_err(|_| UserText::AnswerOfWrongType.into())
    }

    /// Parses the structured output at the end of a message.
    ///
    /// # Errors
    /// The text that the model reads if it is asked again. The problem is logged with `tracing`, without the content of
    /// the output.
    pub(super) fn check(&self, message: &UiMessage) -> Result<Json, String> {
        let mismatch = |why: &str| {
            let output = &*self.schema.name;
            tracing::error!(output, why, "the answer is not what was asked for");
            format!(
                "This answer is not what was asked for: {why}. Answer again, with nothing but the JSON."
            )
        };
        let text = message.last_text();
        let answer = Json::parse(without_fence(&text)).map_err(|_| mismatch("it is not JSON"))?;
        let value = answer.decode().map_err(|_| mismatch("it is not JSON"))?;
        if let Some(error) = self.validator.iter_errors(&value).next() {
            let place = log_text(error.instance_path().as_str());
            return Err(mismatch(&format!("it does not fit the schema at \"{place}\"")));
        }
        if (self.can_decode)(&answer) {
            Ok(answer)
        } else {
            Err(mismatch("it fits the schema and cannot be read"))
        }
    }
}

/// Returns the content of a text that is one block of code in Markdown, as some models write JSON.
fn without_fence(text: &str) -> &str {
    let block = text.trim().strip_prefix("```").and_then(|text| text.strip_suffix("```"));
    let Some(block) = block else { return text };
    // The first line names the language.
    let language = block.find(|it: char| !it.is_ascii_alphanumeric()).unwrap_or_default();
    block.get(language..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::without_fence;

    #[test]
    fn a_block_of_code_counts_as_its_content() {
        for (text, content) in [
            ("{}", "{}"),
            ("```json\n{\"a\": 1}\n```", "{\"a\": 1}"),
            ("\n```\n{}\n```\n", "{}"),
            ("```json {} ```", "{}"),
            ("Here it is: ```{}```", "Here it is: ```{}```"),
            ("```json\n{}", "```json\n{}"),
            ("``````", ""),
            ("```", "```"),
        ] {
            assert_eq!(without_fence(text).trim(), content);
        }
    }
}
