//! [`Calls`]: the tool calls of an answer, put together from their pieces.
//!
//! Every provider cuts them in its own way. A piece belongs to the call of its index, unless it
//! begins another one there: some count every call as the first. Without an index it belongs to the
//! call of its id, and without both to the last one. So it does where nobody is called by its index
//! and it says neither id nor name, if the last one can go on: some count pieces.
//!
//! What some servers want back with a call goes with it as provider metadata.

use std::collections::VecDeque;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::fresh_id;
use super::provider_state::{self, Thoughts};
use crate::function_tools::cut_off;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::run::ModelEvent;

/// A piece of a tool call.
#[derive(Debug, Default, Deserialize)]
pub(super) struct CallPiece {
    index: Option<u64>,
    id: Option<String>,
    function: Option<FunctionPiece>,
    extra_content: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct FunctionPiece {
    name: Option<String>,
    /// Text, and of some servers the arguments themselves.
    arguments: Option<Box<RawValue>>,
}

/// The tool calls of an answer.
#[derive(Debug, Default)]
pub(super) struct Calls(Vec<Call>);

#[derive(Debug)]
struct Call {
    index: Option<u64>,
    /// What the provider calls it.
    sent_id: Option<String>,
    /// What it is called: no other call of the answer is.
    id: String,
    name: String,
    arguments: String,
    /// What the server wants back with it.
    extra_content: Option<Map<String, Value>>,
    /// How much of the arguments was said; `None` before the call was announced.
    said: Option<usize>,
}

impl Calls {
    pub(super) fn take(&mut self, piece: CallPiece, said: &mut VecDeque<ModelEvent>) {
        let CallPiece { index, id, function, extra_content } = piece;
        let id = id.filter(|id| !id.is_empty());
        let FunctionPiece { name, arguments } = function.unwrap_or_default();
        let name = name.filter(|name| !name.is_empty());
        let arguments = arguments.map_or_else(String::new, |arguments| text(&arguments));
        let place = self.place(index, id.as_deref(), name.as_deref(), &arguments);
        let place = place.unwrap_or_else(|| self.begin(index, id));
        let Some(call) = self.0.get_mut(place) else { return };
        if let Some(name) = name.filter(|_| call.name.is_empty()) {
            call.name = name;
        }
        call.arguments.push_str(&arguments);
        if let Some(Value::Object(extra)) = extra_content {
            call.extra_content = Some(extra);
        }
        call.tell(said);
    }

    /// The calls are whole, or cut off. The last one keeps what the server wants of the thoughts.
    pub(super) fn end(
        &mut self,
        is_cut_off: bool,
        mark: &str,
        thoughts: &mut Thoughts,
        said: &mut VecDeque<ModelEvent>,
    ) {
        // Nobody was called, and nothing was said.
        self.0.retain(|call| !call.name.is_empty() || !call.arguments.is_empty());
        let last = self.0.len().saturating_sub(1);
        for (at, mut call) in self.0.drain(..).enumerate() {
            let thoughts = if at == last { std::mem::take(thoughts) } else { Thoughts::default() };
            let mut whole = call.call();
            whole.provider_metadata =
                provider_state::metadata(mark, call.extra_content.take(), thoughts);
            let arguments = if is_cut_off { cut_off(call.arguments) } else { call.arguments };
            said.push_back(ModelEvent::Call(Box::new(whole), arguments));
        }
    }

    /// Which call a piece belongs to.
    fn place(
        &self,
        index: Option<u64>,
        id: Option<&str>,
        name: Option<&str>,
        arguments: &str,
    ) -> Option<usize> {
        let same_index = |call: &Call| index.is_some() && call.index == index;
        let same_id = |call: &Call| id.is_some() && call.sent_id.as_deref() == id;
        let last = match (index, id) {
            (Some(_), _) => match self.0.iter().rposition(same_index) {
                Some(place) => place,
                // A count that goes on while the id stays is of pieces.
                None if name.is_none() && id.is_some() => {
                    let is_it = |call: &Call| same_id(call) && !call.is_whole();
                    self.0.iter().rposition(is_it)?
                }
                None => return self.going_on(id, name),
            },
            (None, Some(_)) => self.0.iter().rposition(same_id)?,
            (None, None) => self.0.len().checked_sub(1)?,
        };
        let call = self.0.get(last)?;
        let is_another = match (id, &call.sent_id) {
            (Some(id), Some(known)) => name.is_some() && id != known,
            (None, None) if name.is_none() || call.name.is_empty() => false,
            // Some say the name again with each piece, the last of which may be empty.
            (None, None) if index.is_some() => {
                let says_more = !arguments.is_empty() || name != Some(&*call.name);
                says_more && call.is_whole()
            }
            (None, None) => true,
            _ => false,
        };
        (!is_another).then_some(last)
    }

    /// The last call, if a piece says of none which it belongs to, and that one is not whole.
    fn going_on(&self, id: Option<&str>, name: Option<&str>) -> Option<usize> {
        let last = self.0.len().checked_sub(1)?;
        let goes_on = id.is_none() && name.is_none() && !self.0.get(last)?.is_whole();
        goes_on.then_some(last)
    }

    fn begin(&mut self, index: Option<u64>, sent_id: Option<String>) -> usize {
        let is_free = |id: &String| self.0.iter().all(|call| call.id != *id);
        let id = sent_id.clone().filter(is_free);
        let id = id.unwrap_or_else(|| fresh_id("call"));
        let (name, arguments) = (String::new(), String::new());
        let (extra_content, said) = (None, None);
        self.0.push(Call { index, sent_id, id, name, arguments, extra_content, said });
        self.0.len() - 1
    }
}

impl Call {
    fn call(&self) -> ToolCall {
        ToolCall::new(self.id.clone(), self.name.clone())
    }

    /// Whether nothing can be added to its arguments.
    fn is_whole(&self) -> bool {
        let arguments = &self.arguments;
        arguments.ends_with('}') && serde_json::from_str::<IgnoredAny>(arguments).is_ok()
    }

    /// Announces it once it has a name, and says what came of its arguments.
    fn tell(&mut self, said: &mut VecDeque<ModelEvent>) {
        if self.name.is_empty() {
            return;
        }
        let told = match self.said {
            Some(told) => told,
            None => {
                let start = AgentEvent::tool_input_start(self.call());
                said.push_back(ModelEvent::Said(start));
                0
            }
        };
        let news = self.arguments.get(told..).unwrap_or_default();
        if !news.is_empty() {
            let delta = AgentEvent::tool_input_delta(self.id.clone(), news.to_owned());
            said.push_back(ModelEvent::Said(delta));
        }
        self.said = Some(self.arguments.len());
    }
}

/// Arguments as text, which those of some servers are not.
fn text(arguments: &RawValue) -> String {
    match serde_json::from_str::<Option<String>>(arguments.get()) {
        Ok(text) => text.unwrap_or_default(),
        Err(_) => arguments.get().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The calls that pieces make: id, name, arguments, and how many pieces were said of them.
    fn calls(pieces: &[&str]) -> Vec<(String, String, String, usize)> {
        let (mut calls, mut said) = (Calls::default(), VecDeque::new());
        for piece in pieces {
            calls.take(serde_json::from_str(piece).unwrap(), &mut said);
        }
        calls.end(false, "mark", &mut Thoughts::default(), &mut said);
        let deltas_of = |wanted: &str| {
            let deltas = said.iter().filter_map(|event| match event {
                ModelEvent::Said(AgentEvent::ToolInputDelta { tool_call_id, delta }) => {
                    (**tool_call_id == *wanted).then(|| delta.to_string())
                }
                _ => None,
            });
            deltas.collect::<Vec<String>>()
        };
        let whole = said.iter().filter_map(|event| match event {
            ModelEvent::Call(call, input) => {
                let deltas = deltas_of(&call.id);
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
        pieces: usize,
    ) -> (String, String, String, usize) {
        (id.to_owned(), name.to_owned(), arguments.to_owned(), pieces)
    }

    #[test]
    fn pieces_are_put_together_however_they_were_cut() {
        let pieces = [
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":""}}"#,
            r#"{"index":1,"id":"b","function":{"name":"g","arguments":"{"}}"#,
            r#"{"index":0,"id":"","function":{"name":null,"arguments":"{\"n\":"}}"#,
            r#"{"index":1,"id":"b","function":{"name":"g","arguments":"}"}}"#,
            r#"{"index":0,"function":{"arguments":"1}"}}"#,
        ];
        assert_eq!(calls(&pieces), [call("a", "f", r#"{"n":1}"#, 2), call("b", "g", "{}", 2)]);
    }

    #[test]
    fn a_call_may_lack_its_index_its_arguments_or_be_the_first_every_time() {
        let without_index = [
            r#"{"id":"a","function":{"name":"f","arguments":"{}"}}"#,
            r#"{"id":"b","function":{"name":"f","arguments":"{\"n\""}}"#,
            r#"{"function":{"arguments":":2}"}}"#,
        ];
        let expected = [call("a", "f", "{}", 1), call("b", "f", r#"{"n":2}"#, 2)];
        assert_eq!(calls(&without_index), expected);
        let always_the_first = [
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":{"n":1}}}"#,
            r#"{"index":0,"id":"b","function":{"name":"f"}}"#,
        ];
        assert_eq!(
            calls(&always_the_first),
            [call("a", "f", r#"{"n":1}"#, 1), call("b", "f", "", 0)]
        );
    }

    #[test]
    fn a_piece_that_says_of_no_call_which_belongs_to_the_last_one() {
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
    fn every_call_has_an_id_of_its_own() {
        let pieces = [
            r#"{"index":0,"id":"a","function":{"name":"f","arguments":"1"}}"#,
            r#"{"index":1,"id":"a","function":{"name":"f","arguments":"2"}}"#,
            r#"{"index":2,"function":{"name":"f","arguments":"{}"}}"#,
            r#"{"index":3,"function":{"arguments":"4"}}"#,
            r#"{"index":3,"function":{"name":"g","arguments":"5"}}"#,
        ];
        let calls = calls(&pieces);
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
