//! JSON numbers as a browser reads them.

use serde_json::Value;

/// Converts all numbers to doubles. (`ui_message_stream` stores their text.)
pub fn as_doubles(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::from(number.as_f64().unwrap()),
        Value::Array(items) => items.into_iter().map(as_doubles).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (key, as_doubles(value))).collect()
        }
        other => other,
    }
}
