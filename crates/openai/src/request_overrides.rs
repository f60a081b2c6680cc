//! [`RequestOverrides`]: request fields that the host sets.

use std::fmt;

use serde_json::{Map, Value};

use ui_message_stream::json::Json;

/// Request fields that the host sets. They replace the fields of the adapter.
#[derive(Clone, Default)]
pub(super) struct RequestOverrides(Vec<(Box<str>, Value)>);

impl RequestOverrides {
    pub(super) fn set(&mut self, name: &str, value: &Json) {
        // A `Json` always contains valid JSON.
        let value = value.decode().unwrap_or(Value::Null);
        self.0.push((name.into(), value));
    }

    /// Returns the value of a field that the host has set last.
    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.0.iter().rev().find(|(other, _)| **other == *name).map(|(_, value)| value)
    }

    /// Writes the fields to a request. `null` removes a field.
    pub(super) fn apply_to(&self, body: &mut Map<String, Value>) {
        for (name, value) in &self.0 {
            match value {
                Value::Null => drop(body.remove(&**name)),
                value => drop(body.insert(name.to_string(), value.clone())),
            }
        }
    }
}

/// Shows only the names, because a value may be a secret.
impl fmt::Debug for RequestOverrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}
