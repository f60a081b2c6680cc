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
        let (name, schema) = (T::schema_name(), schema_for!(T));
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
    /// The text that the user reads. The problem is logged with `tracing`, without the content of
    /// the output.
    pub(super) fn parse_message(&self, message: &UiMessage) -> Result<Json, Text> {
        let mismatch = |why: &str| {
            tracing::error!(
                output = &*self.schema.name,
                why,
                "the answer is not what was asked for"
            );
            Text::from(UserText::AnswerOfWrongType)
        };
        let answer = Json::parse(&message.last_text()).map_err(|_| mismatch("it is not JSON"))?;
        let value = answer.decode().map_err(|_| mismatch("it is not JSON"))?;
        if let Some(error) = self.validator.iter_errors(&value).next() {
            return Err(mismatch(&format!(
                "it does not fit at \"{}\"",
                log_text(error.instance_path().as_str())
            )));
        }
        match (self.can_decode)(&answer) {
            true => Ok(answer),
            false => Err(mismatch("it fits the schema and cannot be read")),
        }
    }
}
