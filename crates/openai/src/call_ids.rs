//! The ids of calls in requests.

use std::borrow::Cow;

use serde_json::Value;
use ui_message_stream::model::CallIdRule;

/// Adapts the id in this field of an object, if it has one.
pub(super) fn adapt_call_id(object: &mut Value, field: &str, rule: &CallIdRule) {
    if let Some(Value::String(id)) = object.get_mut(field)
        && let Cow::Owned(other) = rule.apply(id)
    {
        *id = other;
    }
}
