//! [`Results`]: what core does with one input.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use serde::Serialize;
use serde_json::value::RawValue;
use ui_message_stream::approval::{ApprovalRecord, CanonicalJson, ResumePlan};
use ui_message_stream::checker::{Checker, Rule, Violation};
use ui_message_stream::chunk::{ReadChunkError, ReceivedChunk, Version};
use ui_message_stream::json::each_field;
use ui_message_stream::model::{ModelMessage, ToModelMessages};
use ui_message_stream::reducer::{PartialJson, Reducer};
use ui_message_stream::request::Limits;
use ui_message_stream::sse::{Decoder, Encoder};
use ui_message_stream::{AgentEvent, ChatRequest, Chunk, Json, UiMessage};
use ui_message_stream_openai::response_items::{self, Item};

use crate::places::{MESSAGE, OTHERS, STREAM};

#[derive(Default)]
pub struct Results {
    /// All results, one a line. They do not depend on the state of `serde_json`.
    pub text: String,
    /// Texts that core has changed although it promises not to.
    pub faults: Vec<String>,
}

impl Results {
    pub fn of_file(bytes: &[u8]) -> Self {
        let mut results = Results::default();
        results.request(bytes);
        let text = String::from_utf8_lossy(bytes);
        results.nested(&text, 0);
        let lines: Vec<&str> = text.lines().collect();
        lines.iter().for_each(|line| results.nested(line, 0));
        let chunks: Vec<&str> =
            lines.iter().map(|line| field(line, "chunk").unwrap_or(line)).collect();
        results.stream(&chunks);
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        let events: Vec<String> = std::iter::from_fn(|| Some(decoder.poll()?.data)).collect();
        events.iter().for_each(|event| results.nested(event, 0));
        results.stream(&events.iter().map(String::as_str).collect::<Vec<_>>());
        results
    }

    /// Puts a value at each place where core passes JSON on, or expects something else.
    pub fn of_value(value: &str) -> Self {
        let mut results = Results::default();
        results.nested(value, 0);
        let half = value.floor_char_boundary(value.len() / 2);
        let halves = [&value[..half], &value[half..]].map(|half| Json::string(half).to_string());
        let fill = |template: &&str| {
            let [first, second] = &halves;
            let filled = template.replace("FIRST", first).replace("SECOND", second);
            filled.replace("MESSAGE", MESSAGE).replace("VALUE", value)
        };
        let stream: Vec<String> = STREAM.iter().map(fill).collect();
        results.stream(&stream.iter().map(String::as_str).collect::<Vec<_>>());
        let texts = stream.into_iter().chain(OTHERS.iter().map(fill));
        texts.for_each(|text| results.value(&text));
        results
    }

    fn note(&mut self, what: &str, result: Result<impl Display, impl Display>) {
        let written = match result {
            Ok(result) => writeln!(self.text, "{what}: {result}"),
            Err(error) => writeln!(self.text, "{what} refused: {error}"),
        };
        written.expect("a string grows");
    }

    fn must(&mut self, is_kept: bool, what: &str, text: &str) {
        if !is_kept {
            self.faults.push(format!("{what} changes {text}"));
        }
    }

    /// Reads a text, and all values and texts of JSON in it.
    fn nested(&mut self, text: &str, depth: usize) {
        self.value(text);
        // Deeper, each level repeats what the levels around it did.
        if depth == 8 {
            return;
        }
        let (fields, items) = (fields(text), items(text));
        let values = items.into_iter().chain(fields.into_iter().map(|(_, value)| value));
        values.for_each(|value| self.nested(value, depth + 1));
        if let Ok(inner) = serde_json::from_str::<String>(text)
            && inner.starts_with(['{', '['])
        {
            self.nested(&inner, depth + 1);
        }
    }

    /// Reads a text as each thing that it can be.
    fn value(&mut self, text: &str) {
        let text = text.trim_matches([' ', '\t', '\n', '\r']);
        let json = Json::parse(text);
        if let Ok(json) = &json {
            self.must(json.as_str() == text.replace(['\n', '\r'], " "), "Json", text);
            let form = CanonicalJson::new(json);
            self.note("canonical", form.map(|form| form.as_str().to_owned()));
        }
        self.note("json", json);
        self.chunk(text);
        self.message(text);
        self.request(text.as_bytes());
        self.note("format", ApprovalRecord::check_format(text).map(|()| ""));
        let record = serde_json::from_str::<ApprovalRecord>(text);
        self.note("record", record.map(|record| written(&record)).map_err(|_| ""));
        self.response_item(text);
        let items = items(text);
        if !items.is_empty() {
            self.stream(&items);
            let messages = items.iter().map(|item| UiMessage::parse(item)).collect();
            let messages: Result<Vec<_>, _> = messages;
            messages.into_iter().for_each(|messages| self.messages(&messages));
        }
    }

    fn chunk(&mut self, text: &str) {
        let received = ReceivedChunk::parse(text);
        if let Ok(received) = &received {
            let output = written(received);
            self.passes_on("chunk", text, &output);
            let again = ReceivedChunk::parse(&output).expect("what is written is read");
            self.must(written(&again) == output, "chunk", &output);
        }
        let error = |error| match error {
            // In the words of `serde_json`.
            ReadChunkError::Syntax(_) => "no object".to_owned(),
            error => error.to_string(),
        };
        self.note("chunk", received.map(|received| written(&received)).map_err(error));
    }

    fn message(&mut self, text: &str) {
        let message = UiMessage::parse(text);
        if let Ok(message) = &message {
            let output = written(message);
            self.passes_on("message", text, &output);
            let parts = field(text, "parts").map(items).unwrap_or_default();
            parts.iter().for_each(|part| self.passes_on("part", part, &output));
            let again = UiMessage::parse(&output).expect("what is written is read");
            self.must(written(&again) == output, "message", &output);
        }
        self.note("message", message.map(|message| written(&message)));
    }

    /// Requires that the values of an object are in what is written of it, with the same text.
    fn passes_on(&mut self, what: &str, object: &str, output: &str) {
        // Of equal keys only the last value is kept.
        if Json::parse(object).is_err() {
            return;
        }
        for (key, value) in fields(object) {
            // These are read into fields, and a string is written in its shortest form.
            let is_text = !matches!(&*key, "parts" | "approval") && !value.starts_with('"');
            let Ok(json) = Json::parse(value) else { continue };
            self.must(!is_text || output.contains(json.as_str()), what, json.as_str());
        }
    }

    fn request(&mut self, body: &[u8]) {
        let chat = match ChatRequest::parse(body, &Limits::default()) {
            Ok(chat) => chat,
            Err(error) => return self.note("request", Err::<&str, _>(error)),
        };
        let custom = chat.custom_fields::<BTreeMap<String, Json>>();
        self.note("custom", custom.map(|custom| written(&custom)));
        let inputs: BTreeMap<_, _> = chat.approval_inputs().iter().collect();
        self.note("inputs", Ok::<_, &str>(written(&inputs)));
        let unsanitized: Vec<&UiMessage> = chat.unsanitized_messages().collect();
        self.note("sent", Ok::<_, &str>(written(&unsanitized)));
        let plan = ResumePlan::new(chat.messages(), chat.continued_message());
        self.note("deferred", Ok::<_, &str>(written(&plan.settle(&[]))));
        self.messages(chat.messages());
    }

    fn messages(&mut self, messages: &[UiMessage]) {
        let read = ToModelMessages::new().model_messages(messages);
        let output = written(&read);
        let again: Vec<ModelMessage> = serde_json::from_str(&output).expect("model messages");
        self.must(again == read, "model message", &output);
        self.note("model", Ok::<_, &str>(output));
    }

    /// What a client makes of these chunks, and what the checker finds in them.
    fn stream(&mut self, chunks: &[&str]) {
        let (mut reducer, mut checker) = (Reducer::new(), Checker::new());
        checker = checker.with_oldest_client(Version::V5);
        let (mut encoder, mut frames, mut partial) =
            (Encoder::default(), Vec::new(), PartialJson::default());
        let mut data = Vec::new();
        for text in chunks {
            for Violation { rule, subject, .. } in checker.handle_data(text) {
                let subject = if rule == Rule::NotJson { "" } else { &subject };
                self.note("violation", Ok::<_, &str>(format!("{} {subject}", rule.code())));
            }
            let Ok(received) = ReceivedChunk::parse(text) else { continue };
            let result = reducer.push(&received);
            self.note("reduced", result.as_ref().map(|()| ""));
            let ReceivedChunk::Known { chunk, .. } = received else { continue };
            encoder.encode(&chunk, &mut frames);
            match chunk {
                Chunk::ToolInputDelta { input_text_delta, .. } => {
                    partial.push(&input_text_delta);
                    self.note("partial", partial.read().ok_or(""));
                }
                Chunk::Data { id: None, data: Some(json), transient: None, .. }
                    if !reducer.has_stopped() =>
                {
                    data.push(json.into_owned());
                }
                _ => {}
            }
        }
        let message = written(&reducer.into_message());
        for json in data.iter().filter(|json| Json::parse(json.as_str()).is_ok()) {
            self.must(message.contains(json.as_str()), "reducer", json.as_str());
        }
        self.note("reduced to", Ok::<_, &str>(message));
        self.note("frames", String::from_utf8(frames));
    }

    /// What a provider's item becomes. Its numbers and keys follow the state: a browser reads the same value.
    fn response_item(&mut self, text: &str) {
        let Ok(item) = serde_json::from_str::<Item>(text) else { return };
        let kind = response_items::text_field(&item, "type");
        if response_items::tool_name(kind).is_none() && !kind.starts_with("mcp_") {
            return;
        }
        let (input, output) = match response_items::result_event("c".into(), &item) {
            AgentEvent::ToolOutput { output, .. } => (response_items::tool_input(&item), output),
            _ => (response_items::mcp_tool_input(&item), Json::null()),
        };
        for json in [input, output] {
            let form = CanonicalJson::new(&json);
            self.note("item", form.map(|form| form.as_str().to_owned()));
        }
    }
}

fn written(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("it serializes")
}

/// Returns the fields of an object, and none of any other text.
fn fields(text: &str) -> Vec<(String, &str)> {
    let mut fields = Vec::new();
    let read = each_field(text, |key, value| fields.push((key.to_owned(), value.get())));
    if read.is_ok() { fields } else { Vec::new() }
}

fn field<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    fields(object).into_iter().find_map(|(key, value)| (key == name).then_some(value))
}

/// Returns the items of a list, and none of any other text.
fn items(text: &str) -> Vec<&str> {
    let items: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
    items.into_iter().map(RawValue::get).collect()
}
