//! [`Extra`]: fields of a request that the host sets by itself.

use std::fmt;

use serde_json::{Map, Value};

use ui_message_stream::json::Json;

/// Fields of a request that the host sets by itself, in place of the adapter's own.
#[derive(Clone, Default)]
pub(super) struct Extra(Vec<(Box<str>, Value)>);

impl Extra {
    pub(super) fn set(&mut self, name: &str, value: &Json) {
        // What is written is JSON that any reader takes.
        let value = value.to().unwrap_or(Value::Null);
        self.0.push((name.into(), value));
    }

    /// What a field is set to, if it is.
    pub(super) fn value(&self, name: &str) -> Option<&Value> {
        self.0.iter().rev().find(|(other, _)| **other == *name).map(|(_, value)| value)
    }

    /// Puts them into a request; `null` takes a field out.
    pub(super) fn put_into(&self, body: &mut Map<String, Value>) {
        for (name, value) in &self.0 {
            match value {
                Value::Null => drop(body.remove(&**name)),
                value => drop(body.insert(name.to_string(), value.clone())),
            }
        }
    }
}

/// The names only: a value may be a secret.
impl fmt::Debug for Extra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}
