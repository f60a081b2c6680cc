//! What events mean for steps, text, data and metadata.

use serde_json::{Map, Value, json};
use ui_message_stream::chunk::Citations;
use ui_message_stream::event::Executor;
use ui_message_stream::metadata::ProviderMetadata;

use super::call::{Call, REMOVED, State};
use super::{Answers, Part, Reading, Step, ok};
use crate::translator_properties::continued::value;
use crate::translator_properties::wildcard;

impl Reading {
    pub(super) fn step_starts(&mut self) -> Answers {
        self.step_ends();
        self.step = Step::Announced;
        ok()
    }

    pub(super) fn step_ends(&mut self) -> Answers {
        self.step = Step::None;
        self.unnamed = None;
        self.named.clear();
        for call in &mut self.calls {
            call.input_breaks_off(wildcard::some_text());
        }
        ok()
    }

    /// Ensures that a step is open for new content, and that it is the right one.
    fn in_a_step(&mut self) {
        if self.is_step_answered() {
            self.step_ends();
        }
        let announced = match self.step {
            Step::Open { .. } => return,
            Step::Announced => true,
            Step::None => false,
        };
        self.parts.push(Part::Plain(json!({"type": "step-start"})));
        self.steps += 1;
        self.step = Step::Open { announced };
    }

    /// Whether the next content begins a step that the agent does not mark.
    pub(super) fn is_step_answered(&self) -> bool {
        let unmarked = matches!(self.step, Step::Open { announced: false });
        unmarked && self.named.is_empty() && self.tools_are_done()
    }

    /// Whether all calls of this step that the provider does not execute have a result, and no
    /// input is streaming: then the next content is the model's response to them.
    fn tools_are_done(&self) -> bool {
        let mut any = false;
        for call in self.calls.iter().filter(|call| call.step == self.steps) {
            if matches!(call.state, State::Streaming(..)) {
                return false;
            }
            if call.executed_by != Executor::Provider {
                any = true;
                if !call.has_result() {
                    return false;
                }
            }
        }
        any
    }

    /// A source has no meaning if its URL leads to no web page.
    pub(super) fn source(&mut self, part: Value) -> Answers {
        let url = part["url"].as_str().map(str::to_lowercase);
        if url.is_some_and(|url| !url.starts_with("https:") && !url.starts_with("http:")) {
            return vec!["SourceUrl"];
        }
        self.content(part)
    }

    fn content(&mut self, part: Value) -> Answers {
        self.in_a_step();
        self.parts.push(Part::Plain(part));
        ok()
    }

    pub(super) fn file(&mut self, part: Value) -> Answers {
        let url = part["url"].as_str().unwrap_or_default();
        if !["https:", "http:", "data:"].iter().any(|scheme| url.starts_with(scheme)) {
            return vec!["FileUrl"];
        }
        self.unnamed = None;
        self.content(part)
    }

    pub(super) fn reasoning_file(&mut self, part: Value) -> Answers {
        match self.known.base {
            true => self.file(part),
            // Its URL is checked in any case.
            false => Reading::default().file(part),
        }
    }

    pub(super) fn custom(&mut self, part: Value) -> Answers {
        if self.known.base {
            self.unnamed = None;
            return self.content(part);
        }
        ok()
    }

    /// The client removes the parts of the step. Another client keeps them, and its open parts end.
    pub(super) fn step_is_reset(&mut self) -> Answers {
        if !matches!(self.step, Step::Open { .. }) {
            return ok();
        }
        self.unnamed = None;
        self.named.clear();
        if !self.known.reset_step {
            for number in 0..self.calls.len() {
                self.calls[number].input_breaks_off(wildcard::some_text());
                let call = &self.calls[number];
                if call.step == self.steps && !call.has_result() {
                    self.fails_with(number, wildcard::some_text());
                }
            }
            return ok();
        }
        let is_start =
            |part: &Part| matches!(part, Part::Plain(part) if part["type"] == "step-start");
        let begin = self.parts.iter().rposition(is_start).map_or(0, |start| start + 1);
        for part in self.parts.drain(begin..) {
            if let Part::Call(number) = part {
                self.by_id.retain(|_, named| *named != number);
                self.calls[number].is_removed();
                self.lost_calls.push(self.calls[number].id.clone());
            }
        }
        self.descriptions.retain(|_, part| *part < begin);
        // An earlier call of this run keeps its id.
        for (number, call) in self.calls.iter().enumerate() {
            if !call.is_held() && call.step != REMOVED {
                self.by_id.entry(call.id.clone()).or_insert(number);
            }
        }
        ok()
    }

    /// Adds a new call.
    pub(super) fn new_call(&mut self, mut call: Call) {
        self.in_a_step();
        self.unnamed = None;
        call.step = self.steps;
        let number = self.calls.len();
        self.parts.push(Part::Call(number));
        self.by_id.insert(call.id.clone(), number);
        self.calls.push(call);
    }

    fn begin(&mut self, kind: &'static str, name: Option<&str>) -> usize {
        self.in_a_step();
        let part = self.parts.len();
        let mut part_fields = json!({"type": kind, "text": "", "state": "done"});
        match name {
            Some(name) => {
                self.unnamed = None;
                self.named.insert((kind, name.to_owned()), part);
                if kind == "reasoning" {
                    part_fields["id"] = name.into();
                }
            }
            None => self.unnamed = Some(part),
        }
        self.parts.push(Part::Plain(part_fields));
        part
    }

    pub(super) fn starts(
        &mut self,
        kind: &'static str,
        name: &str,
        metadata: Option<&ProviderMetadata>,
    ) -> Answers {
        let part = self.begin(kind, Some(name));
        self.signed(part, metadata);
        ok()
    }

    pub(super) fn adds(
        &mut self,
        kind: &'static str,
        name: Option<&str>,
        delta: &str,
        metadata: Option<&ProviderMetadata>,
    ) -> Answers {
        if delta.is_empty() && metadata.is_none() {
            return ok();
        }
        let part = match self.open_part(kind, name) {
            Some(part) => part,
            None => self.begin(kind, name),
        };
        if let Some(Value::String(text)) =
            self.plain(part).and_then(|part_fields| part_fields.get_mut("text"))
        {
            text.push_str(delta);
        }
        self.signed(part, metadata);
        ok()
    }

    pub(super) fn ends(
        &mut self,
        kind: &'static str,
        name: Option<&str>,
        metadata: Option<&ProviderMetadata>,
        citations: Option<&Citations>,
    ) -> Answers {
        let Some(part) = self.open_part(kind, name) else {
            return vec!["UnknownPart"];
        };
        match name {
            Some(name) => _ = self.named.remove(&(kind, name.to_owned())),
            None => self.unnamed = None,
        }
        self.signed(part, metadata);
        let citations = citations.filter(|_| self.known.citations);
        if let (Some(citations), Some(part)) = (citations, self.plain(part)) {
            part.insert("citations".into(), value(citations.as_json()));
        }
        ok()
    }

    fn open_part(&mut self, kind: &'static str, name: Option<&str>) -> Option<usize> {
        if let Some(name) = name {
            return self.named.get(&(kind, name.to_owned())).copied();
        }
        let part = self.unnamed?;
        (self.plain(part)?.get("type")? == kind).then_some(part)
    }

    fn plain(&mut self, part: usize) -> Option<&mut Map<String, Value>> {
        match &mut self.parts[part] {
            Part::Plain(part) => part.as_object_mut(),
            Part::Call(_) => None,
        }
    }

    fn signed(&mut self, part: usize, metadata: Option<&ProviderMetadata>) {
        if let (Some(metadata), Some(part)) = (metadata, self.plain(part)) {
            part.insert("providerMetadata".into(), value(metadata.as_json()));
        }
    }

    pub(super) fn data(
        &mut self,
        name: &str,
        id: Option<&str>,
        data: Value,
        transient: bool,
    ) -> Answers {
        if transient {
            return ok();
        }
        let kind = format!("data-{name}");
        let same = |part: &&mut Part| match part {
            Part::Plain(part) => id.is_some() && part["type"] == kind && part["id"].as_str() == id,
            Part::Call(_) => false,
        };
        match self.parts.iter_mut().find(same) {
            Some(Part::Plain(part)) => part["data"] = data,
            _ => self.parts.push(Part::Plain(json!({"type": kind, "id": id, "data": data}))),
        }
        ok()
    }

    /// Only objects can be merged. The client throws on anything else.
    pub(super) fn metadata(&mut self, metadata: Option<Value>) -> Answers {
        let Some(metadata) = metadata.filter(|metadata| !metadata.is_null()) else {
            return ok();
        };
        if !metadata.is_object() || !(self.metadata.is_object() || self.metadata.is_null()) {
            return vec!["Metadata"];
        }
        merge(&mut self.metadata, &metadata);
        ok()
    }
}

/// Objects are merged recursively, everything else is replaced; `null` at the top level is ignored.
fn merge(into: &mut Value, from: &Value) {
    match (into, from) {
        (_, Value::Null) => {}
        (Value::Object(into), Value::Object(from)) => {
            for (key, from) in from {
                // The client skips these keys, because they could reach a prototype.
                if matches!(key.as_str(), "__proto__" | "constructor" | "prototype") {
                    continue;
                }
                match into.get_mut(key) {
                    Some(into) if into.is_object() && from.is_object() => merge(into, from),
                    _ => _ = into.insert(key.clone(), from.clone()),
                }
            }
        }
        (into, from) => *into = from.clone(),
    }
}
