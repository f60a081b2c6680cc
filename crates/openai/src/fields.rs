//! [`Fields`]: the fields of a provider's JSON object. What is not understood is left out.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;

use serde_json::Value;

use crate::response_items::Item;
use ui_message_stream::id::log_text;

/// What was not understood of a response, and was left out. The first of each kind is logged.
#[derive(Debug, Default)]
pub(super) struct LeftOut(RefCell<BTreeMap<String, String>>);

impl LeftOut {
    /// Notes that what is at this place was left out. Each place is logged once.
    pub(super) fn note(&self, place: &str, why: impl Display) {
        let mut known = self.0.borrow_mut();
        if known.contains_key(place) || known.len() == MAX_KINDS {
            return;
        }
        let what = format!("{place}: {why}");
        tracing::warn!(
            what = &*log_text(&what),
            "a part of the provider's response is not understood, and is left out"
        );
        known.insert(place.to_owned(), what);
    }

    /// Returns the place and the reason of a part.
    pub(super) fn first(&self) -> Option<String> {
        self.0.borrow().values().next().cloned()
    }
}

/// How many kinds are logged.
const MAX_KINDS: usize = 8;

/// The fields of an object. A field of another type than it should have counts as missing, as `null` does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'v> {
    object: &'v Item,
    name: &'static str,
    left_out: &'v LeftOut,
}

impl<'v> Fields<'v> {
    pub(super) fn new(object: &'v Item, name: &'static str, left_out: &'v LeftOut) -> Self {
        Fields { object, name, left_out }
    }

    /// Returns a field that is not `null`.
    pub(super) fn value(self, field: &str) -> Option<&'v Value> {
        self.object.get(field).filter(|value| !value.is_null())
    }

    /// Returns a text that is not empty.
    pub(super) fn text(self, field: &str) -> Option<&'v str> {
        self.read(field, "a string", Value::as_str).filter(|text| !text.is_empty())
    }

    /// Returns a count. Some servers write numbers as strings, or with a fraction.
    pub(super) fn number(self, field: &str) -> Option<u64> {
        self.read(field, "a number", |value| match value {
            Value::String(text) => text.trim().parse().ok(),
            // The largest count that a number with a fraction holds exactly.
            _ => value.as_u64().or_else(|| {
                let number = value.as_f64()?;
                (0.0..=9_007_199_254_740_992.0).contains(&number).then_some(number as u64)
            }),
        })
    }

    pub(super) fn object(self, field: &'static str) -> Option<Fields<'v>> {
        let object = self.read(field, "an object", Value::as_object)?;
        Some(Fields { object, name: field, ..self })
    }

    pub(super) fn list(self, field: &str) -> &'v [Value] {
        self.read(field, "a list", Value::as_array).map(|list| &**list).unwrap_or_default()
    }

    /// Returns the objects of a list.
    pub(super) fn objects(self, field: &'static str) -> impl Iterator<Item = Fields<'v>> {
        self.list(field).iter().filter_map(move |value| {
            let object = value.as_object();
            if object.is_none() {
                self.leave_out(field, "its entries are no objects");
            }
            Some(Fields { object: object?, name: field, ..self })
        })
    }

    pub(super) fn leave_out(self, field: &str, why: &str) {
        self.left_out.note(&format!("`{}.{field}`", self.name), why);
    }

    fn read<T>(
        self,
        field: &str,
        expected: &str,
        read: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Option<T> {
        let read = read(self.value(field)?);
        if read.is_none() {
            self.leave_out(field, &format!("it is not {expected}"));
        }
        read
    }
}
