//! JSON Schemas of types, and validation of JSON against a schema.

use jsonschema::{PatternOptions, Validator};
use schemars::Schema;
use serde_json::Value;
use ui_message_stream::Json;

/// Returns a validator for what a model wrote, or `None` if `schema` is not a valid JSON Schema.
///
/// Patterns are matched in linear time. A pattern with look-around or backreferences, as some
/// schemas have for e-mail addresses, is matched with backtracking. Backtracking could take as long
/// as the author of the schema or of the input wants, so it is limited: beyond the limit the input
/// is invalid.
pub(crate) fn compile_validator(schema: &Value) -> Option<Validator> {
    let linear = jsonschema::options().with_pattern_options(PatternOptions::regex()).build(schema);
    let backtracking = || {
        let limited = PatternOptions::fancy_regex().backtrack_limit(MAX_BACKTRACKS);
        jsonschema::options().with_pattern_options(limited).build(schema)
    };
    linear.or_else(|_| backtracking()).ok()
}

/// Returns a derived schema as JSON.
///
/// # Panics
/// If the schema cannot be written as JSON. A derived schema always can.
#[track_caller]
pub(crate) fn schema_json(schema: &Schema) -> Json {
    Json::from_serialize(schema).expect("a derived schema is plain JSON")
}

/// The maximum number of backtracking steps of a pattern. Some patterns look ahead once for each
/// character of a text.
const MAX_BACKTRACKS: usize = 10_000;
