//! [`Calls`]: assembles the tool calls of a response from their fragments.
//!
//! Every provider divides tool calls in its own way. The call of a fragment is found in this order:
//!
//! - A fragment with an index belongs to the call with that index, unless it begins another call
//!   there: some servers use the first index for every call.
//! - A fragment without an index belongs to the call with its id.
//! - A fragment without an index and an id belongs to the last call.
//! - A fragment with an index that no call has, and with neither an id nor a name, belongs to the
//!   last call if the arguments of that call are incomplete: some servers number the fragments.
//!
//! A fragment that no rule reads is left out, and then no call of the response runs: its input may lack a piece.
//!
//! State that some servers need back with a call is stored in its provider metadata.

use std::collections::VecDeque;

use serde::de::IgnoredAny;

use super::fresh_id;
use super::provider_state::{self, ReasoningState};
use crate::fields::Fields;
use crate::response_items::Item;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::json::SplitText;
use ui_message_stream::model::ModelEvent;

/// The tool calls of a response.
#[derive(Debug, Default)]
pub(super) struct Calls(Vec<Call>);

#[derive(Debug)]
struct Call {
    index: Option<u64>,
    /// The id from the provider.
    provider_id: Option<String>,
    /// The id of the call, which is unique in the response.
    id: String,
    name: String,
    arguments: String,
    /// Reads the fragments of the arguments.
    fragments: SplitText,
    /// Whether the arguments came as one JSON value.
    has_value: bool,
    /// State that the server needs back with the call.
    extra_content: Option<Item>,
    /// The number of bytes of the arguments that were emitted. `None` before the start of the call
    /// was emitted.
    emitted_bytes: Option<usize>,
}

impl Calls {
    /// Reads a fragment of a call.
    pub(super) fn push(&mut self, fragment: &Fields<'_>, events: &mut VecDeque<ModelEvent>) {
        let function = fragment.object("function");
        let index = fragment.number("index");
        let id = fragment.text("id");
        let name = function.as_ref().and_then(|function| function.text("name"));
        // A string, which may begin or end with half a character. From some servers the arguments as a JSON value.
        let arguments = function.as_ref().and_then(|function| function.raw("arguments"));
        let arguments = arguments.filter(|arguments| arguments.get() != r#""""#);
        let is_of_unknown_index = index.is_none() && fragment.raw("index").is_some();
        if is_of_unknown_index && id.is_none() && self.0.len() > 1 {
            fragment.leave_out("function", "the call that it belongs to is not known");
            return;
        }
        let place = self.position(index, id.as_deref(), name.as_deref(), arguments.is_some());
        let place = place.unwrap_or_else(|| self.begin(index, id));
        let Some(call) = self.0.get_mut(place) else { return };
        if let Some(name) = name.filter(|_| call.name.is_empty()) {
            call.name = name;
        }
        if let Some(json) = arguments {
            let is_value = !json.get().starts_with('"');
            if call.has_value || is_value && !call.arguments.is_empty() {
                let function = function.as_ref().unwrap_or(fragment);
                function.leave_out("arguments", "a JSON value stands beside other pieces");
            } else {
                call.has_value = is_value;
                let text = call.fragments.push(json);
                call.arguments.push_str(text.as_deref().unwrap_or(json.get()));
            }
        }
        let extra_content = fragment.object("extra_content").map(|extra| extra.to_item());
        call.extra_content = extra_content.or(call.extra_content.take());
        call.emit_input(events);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Call::is_empty)
    }

    /// Whether a call has no arguments, not even `{}`.
    pub(super) fn has_call_without_arguments(&self) -> bool {
        self.0.iter().any(|call| !call.is_empty() && call.arguments.trim().is_empty())
    }

    /// Emits the calls. The last call carries the reasoning state that the server needs back.
    pub(super) fn end(
        &mut self,
        fingerprint: &str,
        thoughts: &mut ReasoningState,
        events: &mut VecDeque<ModelEvent>,
    ) {
        self.0.retain(|call| !call.is_empty());
        let last = self.0.len().saturating_sub(1);
        for (at, mut call) in self.0.drain(..).enumerate() {
            let thoughts =
                if at == last { std::mem::take(thoughts) } else { ReasoningState::default() };
            call.arguments.extend(call.fragments.end());
            call.emit_input(events);
            let mut whole = call.call();
            whole.provider_metadata =
                provider_state::metadata(fingerprint, call.extra_content.take(), thoughts);
            events.push_back(ModelEvent::ToolCall(Box::new(whole), call.arguments));
        }
    }

    /// Returns the index of the call that a fragment belongs to, or `None` if it begins another
    /// call.
    fn position(
        &self,
        index: Option<u64>,
        id: Option<&str>,
        name: Option<&str>,
        has_arguments: bool,
    ) -> Option<usize> {
        let same_index = |call: &Call| index.is_some() && call.index == index;
        let same_id = |call: &Call| id.is_some() && call.provider_id.as_deref() == id;
        let last = match (index, id) {
            (Some(_), _) => match self.0.iter().rposition(same_index) {
                Some(place) => place,
                // If the index increases while the id stays the same, the index numbers the
                // fragments.
                None if name.is_none() && id.is_some() => {
                    let is_it = |call: &Call| same_id(call) && !call.is_complete();
                    self.0.iter().rposition(is_it)?
                }
                None => return self.last_incomplete(id, name),
            },
            (None, Some(_)) => self.0.iter().rposition(same_id)?,
            (None, None) => self.0.len().checked_sub(1)?,
        };
        let call = self.0.get(last)?;
        let is_another = match (id, &call.provider_id) {
            (Some(id), Some(known)) => name.is_some() && id != known,
            (None, None) if name.is_none() || call.name.is_empty() => false,
            // Some servers repeat the name in each fragment, and the last fragment may be empty.
            (None, None) if index.is_some() => {
                let has_more = has_arguments || name != Some(&*call.name);
                has_more && call.is_complete()
            }
            (None, None) => true,
            _ => false,
        };
        (!is_another).then_some(last)
    }

    /// Returns the last call if the fragment has neither an id nor a name, and the arguments of
    /// that call are incomplete.
    fn last_incomplete(&self, id: Option<&str>, name: Option<&str>) -> Option<usize> {
        let last = self.0.len().checked_sub(1)?;
        let is_continued = id.is_none() && name.is_none() && !self.0.get(last)?.is_complete();
        is_continued.then_some(last)
    }

    fn begin(&mut self, index: Option<u64>, provider_id: Option<String>) -> usize {
        let is_free = |id: &String| self.0.iter().all(|call| call.id != *id);
        let id = provider_id.clone().filter(is_free);
        let id = id.unwrap_or_else(|| fresh_id("call"));
        self.0.push(Call {
            index,
            provider_id,
            id,
            name: String::new(),
            arguments: String::new(),
            fragments: SplitText::default(),
            has_value: false,
            extra_content: None,
            emitted_bytes: None,
        });
        self.0.len() - 1
    }
}

impl Call {
    fn call(&self) -> ToolCall {
        ToolCall::new(self.id.clone(), self.name.clone())
    }

    /// Whether the call names no tool and has no arguments.
    fn is_empty(&self) -> bool {
        self.name.is_empty() && self.arguments.is_empty()
    }

    /// Whether the arguments are a complete JSON object.
    fn is_complete(&self) -> bool {
        let arguments = &self.arguments;
        arguments.ends_with('}') && serde_json::from_str::<IgnoredAny>(arguments).is_ok()
    }

    /// Emits the start of the call once its name is known, then the arguments that were not yet
    /// emitted.
    fn emit_input(&mut self, events: &mut VecDeque<ModelEvent>) {
        if self.name.is_empty() {
            return;
        }
        let emitted = match self.emitted_bytes {
            Some(emitted) => emitted,
            None => {
                let start = AgentEvent::tool_input_start(self.call());
                events.push_back(ModelEvent::Event(start));
                0
            }
        };
        let delta_text = self.arguments.get(emitted..).unwrap_or_default();
        if !delta_text.is_empty() {
            let delta = AgentEvent::tool_input_delta(self.id.clone(), delta_text.to_owned());
            events.push_back(ModelEvent::Event(delta));
        }
        self.emitted_bytes = Some(self.arguments.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fields::LeftOut;

    /// Returns the calls assembled from fragments: id, name, arguments, and the number of deltas.
    fn calls(fragments: &[&str]) -> Vec<(String, String, String, usize)> {
        let mut calls = Calls::default();
        let mut events = VecDeque::new();
        for fragment in fragments {
            let left_out = LeftOut::default();
            let fragment = Fields::parse(fragment, "tool_calls", &left_out).unwrap();
            calls.push(&fragment, &mut events);
        }
        calls.end("mark", &mut ReasoningState::default(), &mut events);
        let deltas_for = |wanted: &str| {
            let deltas = events.iter().filter_map(|event| match event {
                ModelEvent::Event(AgentEvent::ToolInputDelta { tool_call_id, delta }) => {
                    (**tool_call_id == *wanted).then(|| delta.to_string())
                }
                _ => None,
            });
            deltas.collect::<Vec<String>>()
        };
        let whole = events.iter().filter_map(|event| match event {
            ModelEvent::ToolCall(call, input) => {
                let deltas = deltas_for(&call.id);
                assert_eq!(deltas.concat(), *input);
                Some((call.id.to_string(), call.tool_name.to_string(), input.clone(), deltas.len()))
            }
            _ => None,
        });
        whole.collect()
    }

    fn call(
        id: &str,
        name: &str,
        arguments: &str,
        fragments: usize,
    ) -> (String, String, String, usize) {
        (id.to_owned(), name.to_owned(), arguments.to_owned(), fragments)
    }

    #[test]
    fn fragments_are_joined_independently_of_where_they_are_split() {
        let fragments = [
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":""}}"#,
            r#"{"index":1,"id":"b","function":{"name":"g","arguments":"{"}}"#,
            r#"{"index":0,"id":"","function":{"name":null,"arguments":"{\"n\":"}}"#,
            r#"{"index":1,"id":"b","function":{"name":"g","arguments":"}"}}"#,
            r#"{"index":0,"function":{"arguments":"1}"}}"#,
        ];
        assert_eq!(calls(&fragments), [call("a", "f", r#"{"n":1}"#, 2), call("b", "g", "{}", 2)]);
    }

    #[test]
    fn a_call_may_have_no_index_or_no_arguments_or_always_index_zero() {
        let without_index = [
            r#"{"id":"a","function":{"name":"f","arguments":"{}"}}"#,
            r#"{"id":"b","function":{"name":"f","arguments":"{\"n\""}}"#,
            r#"{"function":{"arguments":":2}"}}"#,
        ];
        let expected = [call("a", "f", "{}", 1), call("b", "f", r#"{"n":2}"#, 2)];
        assert_eq!(calls(&without_index), expected);
        let always_index_zero = [
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":{"n":1}}}"#,
            r#"{"index":0,"id":"b","function":{"name":"f"}}"#,
        ];
        assert_eq!(
            calls(&always_index_zero),
            [call("a", "f", r#"{"n":1}"#, 1), call("b", "f", "", 0)]
        );
    }

    #[test]
    fn arguments_that_are_a_json_value_keep_their_text() {
        let arguments = r#"{"a":12345678901234567890.10,"b": [1e2, "\ud83d\ude00"],"a0":-0.0}"#;
        let fragment = format!(r#"{{"id":"a","function":{{"name":"f","arguments":{arguments}}}}}"#);
        assert_eq!(calls(&[&fragment]), [call("a", "f", arguments, 1)]);
    }

    #[test]
    fn arguments_may_be_split_inside_a_character() {
        let fragments = [
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"{\"n\":\"\ud83d"}}"#,
            r#"{"index":1,"id":"b","function":{"name":"g","arguments":"\ud83d"}}"#,
            r#"{"index":0,"function":{"arguments":"\ude00\"}"}}"#,
        ];
        let expected = [call("a", "f", r#"{"n":"😀"}"#, 2), call("b", "g", "\u{FFFD}", 1)];
        assert_eq!(calls(&fragments), expected);
    }

    #[test]
    fn a_fragment_without_a_name_belongs_to_the_call_of_its_id_or_to_the_last_call() {
        let by_id = [
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":""}}"#,
            r#"{"index":1,"id":"a","function":{"arguments":"{\"n\":1}"}}"#,
        ];
        assert_eq!(calls(&by_id), [call("a", "f", r#"{"n":1}"#, 1)]);
        let counted = [
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":""}}"#,
            r#"{"index":1,"function":{"arguments":"{\"n\":"}}"#,
            r#"{"index":2,"function":{"arguments":"1}"}}"#,
            r#"{"index":3,"id":"b","function":{"name":"g","arguments":"{}"}}"#,
            r#"{"index":4,"id":"","function":{"name":"","arguments":""}}"#,
        ];
        assert_eq!(calls(&counted), [call("a", "f", r#"{"n":1}"#, 2), call("b", "g", "{}", 1)]);
    }

    #[test]
    fn every_call_has_a_unique_id() {
        let fragments = [
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"1"}}"#,
            r#"{"index":1,"id":"a","function":{"name":"f","arguments":"2"}}"#,
            r#"{"index":2,"function":{"name":"f","arguments":"{}"}}"#,
            r#"{"index":3,"function":{"arguments":"4"}}"#,
            r#"{"index":3,"function":{"name":"g","arguments":"5"}}"#,
        ];
        let calls = calls(&fragments);
        let inputs: Vec<&str> = calls.iter().map(|(.., input, _)| input.as_str()).collect();
        assert_eq!(inputs, ["1", "2", "{}", "45"]);
        let mut ids: Vec<&str> = calls.iter().map(|(id, ..)| id.as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4);
        let one_index = [
            r#"{"index":0,"function":{"name":"f","arguments":"{\"n\":{}"}}"#,
            r#"{"index":0,"function":{"name":"f","arguments":"}"}}"#,
            r#"{"index":0,"function":{"name":"f","arguments":""}}"#,
            r#"{"index":0,"function":{"name":"f","arguments":"{}"}}"#,
            r#"{"index":0,"function":{"name":"g"}}"#,
        ];
        let inputs = super::tests::calls(&one_index);
        let inputs: Vec<&str> = inputs.iter().map(|(.., input, _)| input.as_str()).collect();
        assert_eq!(inputs, [r#"{"n":{}}"#, "{}", ""]);
        let bare = [r#"{"function":{"name":"f"}}"#, r#"{"function":{"name":"g"}}"#];
        assert_eq!(super::tests::calls(&bare).len(), 2);
    }
}
