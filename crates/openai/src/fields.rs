//! [`Fields`]: the fields of a provider's JSON object. What is not understood is left out.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Display;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::response_items::Item;
use ui_message_stream::id::log_text;
use ui_message_stream::json::{Object, SplitText, with_replaced_halves};

/// What was not understood of a response, and was left out. The first of each place is logged, of at most 8 places.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    known: RefCell<BTreeMap<String, String>>,
    may_lack_input: Cell<bool>,
}

impl LeftOut {
    /// Notes that what is at this place was left out. Each place is logged once. After 8 places nothing is noted.
    pub(super) fn note(&self, place: &str, why: impl Display) {
        if PLACES_OF_INPUT.contains(&place) {
            self.may_lack_input.set(true);
        }
        let mut known = self.known.borrow_mut();
        if known.contains_key(place) || known.len() == MAX_PLACES {
            return;
        }
        let what = format!("{place}: {why}");
        tracing::warn!(
            what = &*log_text(&what),
            "a part of the provider's response is not understood, and is left out"
        );
        known.insert(place.to_owned(), what);
    }

    /// Returns the place and the reason of one of the parts: the first one in the order of the alphabet.
    pub(super) fn any(&self) -> Option<String> {
        self.known.borrow().values().next().cloned()
    }

    /// Whether a piece of the input of a call may have been left out.
    pub(super) fn may_lack_input(&self) -> bool {
        self.may_lack_input.get()
    }
}

/// The place of data that was meant as an event.
pub(super) const BROKEN_EVENT: &str = "an event";

/// Where a piece of the input of a call is, or the name of the call that it belongs to.
const PLACES_OF_INPUT: [&str; 11] = [
    BROKEN_EVENT,
    // Chat Completions.
    "`event.choices`",
    "`choices.delta`",
    "`choices.message`",
    "`delta.tool_calls`",
    "`message.tool_calls`",
    "`tool_calls.function`",
    "`function.arguments`",
    // Responses.
    "`arguments.delta`",
    "`event.item_id`",
    "`event.output_index`",
];

/// How many places are logged.
const MAX_PLACES: usize = 8;

/// The fields of an object, still text: numbers keep their digits. A field of another type than it should have counts as
/// missing, as `null` does.
#[derive(Debug)]
pub(super) struct Fields<'v> {
    object: Object<'v>,
    name: &'static str,
    left_out: &'v LeftOut,
}

impl<'v> Fields<'v> {
    /// Reads an object.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub(super) fn parse(
        text: &'v str,
        name: &'static str,
        left_out: &'v LeftOut,
    ) -> Result<Self, serde_json::Error> {
        Ok(Fields { object: Object::parse(text)?, name, left_out })
    }

    /// Returns the text of a field that is not `null`.
    pub(super) fn raw(&self, field: &str) -> Option<&'v RawValue> {
        let (_, raw) = self.object.rest().filter(|(name, _)| *name == field).last()?;
        (raw.get() != "null").then_some(raw)
    }

    /// Returns a field that is not `null`.
    pub(super) fn value(&self, field: &str) -> Option<Value> {
        self.read(field, "JSON of this depth", value)
    }

    /// Returns the error that the object reports in its field `error`. Some servers send an empty value with each event.
    /// `{}` is none of these: JavaScript writes an exception in this way.
    pub(super) fn error(&self) -> Option<Value> {
        let nothing = ["false", "0", r#""""#, "[]"];
        self.value("error").filter(|error| !nothing.contains(&&*error.to_string()))
    }

    /// Returns a string that is not empty, and may begin or end with half a character.
    pub(super) fn string(&self, field: &str) -> Option<&'v RawValue> {
        let is_string = |raw: &'v RawValue| raw.get().starts_with('"').then_some(raw);
        self.read(field, "a string", is_string).filter(|raw| raw.get() != r#""""#)
    }

    /// Returns the delta of an event that has nothing else. `what` it is a delta of is logged if it is no string.
    pub(super) fn delta(&self, what: &str) -> Option<&'v RawValue> {
        let delta = self.raw("delta").filter(|raw| raw.get().starts_with('"'));
        if delta.is_none() {
            self.left_out.note(&format!("`{what}.delta`"), "it is not a string");
        }
        delta.filter(|raw| raw.get() != r#""""#)
    }

    /// Returns a text that is not empty.
    pub(super) fn text(&self, field: &str) -> Option<String> {
        text(self.string(field)?)
    }

    /// Returns JSON in a string. From some servers it is not in a string.
    pub(super) fn json_text(&self, field: &str) -> Option<String> {
        self.raw(field).map(|raw| text(raw).unwrap_or_else(|| raw.get().to_owned()))
    }

    /// Returns a count. Some servers write numbers as strings, or with a fraction.
    pub(super) fn number(&self, field: &str) -> Option<u64> {
        self.read(field, "a number", |raw| {
            let digits = raw.get().trim_matches('"').trim();
            digits.parse().ok().or_else(|| {
                let number: f64 = digits.parse().ok()?;
                // The largest count that a number with a fraction holds exactly.
                (0.0..=9_007_199_254_740_992.0).contains(&number).then_some(number as u64)
            })
        })
    }

    pub(super) fn object(&self, field: &'static str) -> Option<Self> {
        self.read(field, "an object", |raw| self.inner(field, raw))
    }

    /// Returns the objects of a list.
    pub(super) fn objects(&self, field: &'static str) -> Vec<Self> {
        self.entries(field, "objects", |raw| self.inner(field, raw))
    }

    /// Returns the texts of a list.
    pub(super) fn texts(&self, field: &'static str) -> Vec<String> {
        self.entries(field, "strings", text)
    }

    /// Returns the whole object.
    pub(super) fn to_item(&self) -> Item {
        let fields = self.object.rest();
        fields.filter_map(|(name, raw)| Some((name.to_owned(), value(raw)?))).collect()
    }

    pub(super) fn leave_out(&self, field: &str, why: &str) {
        self.left_out.note(&format!("`{}.{field}`", self.name), why);
    }

    /// Whether a piece of the input of a call may have been left out of the response so far.
    pub(super) fn may_lack_input(&self) -> bool {
        self.left_out.may_lack_input()
    }

    fn inner(&self, name: &'static str, raw: &'v RawValue) -> Option<Self> {
        Fields::parse(raw.get(), name, self.left_out).ok()
    }

    /// Returns the entries of a list that are not `null`.
    fn entries<T>(
        &self,
        field: &'static str,
        expected: &str,
        read: impl Fn(&'v RawValue) -> Option<T>,
    ) -> Vec<T> {
        let list = |raw: &'v RawValue| serde_json::from_str::<Vec<&RawValue>>(raw.get()).ok();
        let list = self.read(field, "a list", list).unwrap_or_default().into_iter();
        let entries = list.filter(|raw| raw.get() != "null").filter_map(|raw| {
            let entry = read(raw);
            if entry.is_none() {
                self.leave_out(field, &format!("its entries are not all {expected}"));
            }
            entry
        });
        entries.collect()
    }

    fn read<T>(
        &self,
        field: &str,
        expected: &str,
        read: impl FnOnce(&'v RawValue) -> Option<T>,
    ) -> Option<T> {
        let read = read(self.raw(field)?);
        if read.is_none() {
            self.leave_out(field, &format!("it is not {expected}"));
        }
        read
    }
}

fn value(raw: &RawValue) -> Option<Value> {
    serde_json::from_str(&with_replaced_halves(raw.get())).ok()
}

fn text(raw: &RawValue) -> Option<String> {
    let mut text = SplitText::default();
    let mut read = text.push(raw)?.into_owned();
    read.extend(text.end());
    Some(read)
}
