//! [`OutputSchema`]: what an answer is to look like, where an agent answers in a structure.

use std::sync::Arc;

use jsonschema::Validator;
use schemars::{JsonSchema, schema_for};
use serde::de::DeserializeOwned;

use super::model::validator_of;
use crate::event::Text;
use crate::json::Json;
use crate::message::UiMessage;
use crate::model_message::sanitize_tool_name;

/// What the answer of a model is to look like.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OutputSchema {
    /// What it is called: letters, digits, `_` and `-`, at most 64 of them.
    pub name: Box<str>,
    /// The JSON Schema of an object.
    pub schema: Json,
}

impl OutputSchema {
    /// A schema of this name.
    pub fn new(name: impl Into<Box<str>>, schema: Json) -> Self {
        OutputSchema { name: name.into(), schema }
    }
}

/// What an agent answers in.
#[derive(Debug, Clone)]
pub(super) struct Output {
    schema: Arc<OutputSchema>,
    validator: Arc<Validator>,
    is_one: fn(&Json) -> bool,
}

impl Output {
    #[track_caller]
    pub(super) fn of<T: JsonSchema + DeserializeOwned>() -> Self {
        let (name, schema) = (T::schema_name(), schema_for!(T));
        let is_object = schema.get("type").is_some_and(|kind| kind == "object");
        assert!(is_object, "an answer in a structure is an object, which {name} is not");
        let Some(validator) = validator_of(schema.as_value()) else {
            panic!("the schema of {name} is none");
        };
        Output {
            validator: Arc::new(validator),
            schema: Arc::new(OutputSchema::new(
                sanitize_tool_name(&name),
                Json::of(&schema).expect("a derived schema is plain JSON"),
            )),
            is_one: |answer| answer.to::<T>().is_ok(),
        }
    }

    pub(super) fn schema(&self) -> Arc<OutputSchema> {
        Arc::clone(&self.schema)
    }

    /// The answer that a message ends with.
    ///
    /// # Errors
    /// In words for the person; what is wrong with it goes to `tracing`, without what it holds.
    pub(super) fn read(&self, message: &UiMessage) -> Result<Json, Text> {
        let wrong = |why: &str| {
            tracing::error!(
                output = &*self.schema.name,
                why,
                "the answer is not what was asked for"
            );
            Text::from(NOT_AS_ASKED)
        };
        let answer = Json::parse(&message.last_text()).map_err(|_| wrong("it is not JSON"))?;
        let value = answer.to().map_err(|_| wrong("it is not JSON"))?;
        if let Some(error) = self.validator.iter_errors(&value).next() {
            return Err(wrong(&format!("it does not fit at {:?}", error.instance_path().as_str())));
        }
        match (self.is_one)(&answer) {
            true => Ok(answer),
            false => Err(wrong("it fits the schema and cannot be read")),
        }
    }
}

/// Said to the person of an answer that is something else.
const NOT_AS_ASKED: &str = "The answer is not in the form that it was to have.";
