//! [`ChunkReader`]: converts `chat.completion.chunk` objects to model events.

use std::collections::VecDeque;

use serde_json::Value;
use serde_json::value::RawValue;

use super::calls::{CallFragment, Calls};
use super::fresh_id;
use super::provider_state::ReasoningState;
use crate::deltas::{Deltas, Target};
use crate::error::ProviderError;
use crate::fields::Fields;
use crate::response_stream::ReadEvent;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, Source};
use ui_message_stream::model::{ModelEvent, Usage};

/// Reads the chunks of one response.
#[derive(Debug)]
pub(super) struct ChunkReader {
    /// The fingerprint of the model.
    fingerprint: String,
    deltas: Deltas,
    calls: Calls,
    /// The reasoning state that the server needs back.
    thoughts: ReasoningState,
    /// The citations emitted so far. Some servers repeat them in every chunk.
    cited: Vec<Citation>,
    /// Whether a delta had content.
    has_content: bool,
    usage: Option<Usage>,
    /// The usage of the whole response came last, in a chunk without a choice.
    ends_with_usage: bool,
    finished: Option<FinishReason>,
}

/// A cited web page.
#[derive(Debug, PartialEq)]
struct Citation {
    url: Option<String>,
    title: Option<String>,
    place: [Option<Value>; 2],
}

type Events<'a> = &'a mut VecDeque<ModelEvent>;

impl ReadEvent for ChunkReader {
    fn read(&mut self, chunk: &Fields<'_>, events: Events<'_>) -> Result<(), ProviderError> {
        let (choices, usage) = (chunk.objects("choices"), chunk.object("usage"));
        self.ends_with_usage = choices.is_empty() && (usage.is_some() || self.ends_with_usage);
        if let Some(usage) = usage {
            let tokens = |name| usage.number(name).unwrap_or(0);
            // Some servers send the usage so far with every chunk.
            self.usage = Some(Usage {
                input_tokens: tokens("prompt_tokens"),
                output_tokens: tokens("completion_tokens"),
            });
        }
        for choice in choices.iter().filter(|choice| choice.number("index").unwrap_or(0) == 0) {
            self.choice(choice, events)?;
        }
        self.cite_results(chunk, events);
        Ok(())
    }

    fn end(&mut self, is_done: bool, events: Events<'_>) -> Result<(), ProviderError> {
        // `[DONE]` means that no event follows, not that the response is complete: some servers also send it after
        // a failure. After the usage of the whole response it does, also without a reason.
        let is_whole = is_done && self.ends_with_usage;
        let reason = self.finished.or(is_whole.then_some(FinishReason::Stop));
        self.deltas.end(|_| true, events);
        let reason = reason.ok_or_else(ProviderError::truncated)?;
        self.end_calls(events);
        events.extend(self.usage.take().map(ModelEvent::Usage));
        events.push_back(ModelEvent::Finished(reason));
        Ok(())
    }
}

impl ChunkReader {
    pub(super) fn new(fingerprint: String) -> Self {
        ChunkReader {
            fingerprint,
            deltas: Deltas::default(),
            calls: Calls::default(),
            thoughts: ReasoningState::default(),
            cited: Vec::new(),
            has_content: false,
            usage: None,
            ends_with_usage: false,
            finished: None,
        }
    }

    fn choice(&mut self, choice: &Fields<'_>, events: Events<'_>) -> Result<(), ProviderError> {
        if let Some(error) = choice.value("error") {
            return Err(ProviderError::from_error_event(&error));
        }
        // A server that does not stream sends the whole message. Others repeat it behind its deltas.
        let whole = choice.object("message").filter(|_| !self.has_content);
        if let Some(delta) = choice.object("delta").or(whole) {
            let before = events.len();
            self.delta(&delta, events);
            self.has_content |= events.len() > before;
        }
        match choice.text("finish_reason").as_deref() {
            Some("error") => {
                return Err(ProviderError::from_error_event(&"finish_reason: error".into()));
            }
            Some(reason) => {
                self.finished = Some(finish_reason(reason));
                self.end_calls(events);
            }
            None => {}
        }
        Ok(())
    }

    fn end_calls(&mut self, events: Events<'_>) {
        self.calls.end(&self.fingerprint, &mut self.thoughts, events);
    }

    fn delta(&mut self, delta: &Fields<'_>, events: Events<'_>) {
        // `reasoning_content` is the field of DeepSeek and most other servers, `reasoning` that of vLLM, Groq and
        // OpenRouter. Servers that send both send the same text in both.
        let reasoning = delta.string("reasoning_content").or_else(|| delta.string("reasoning"));
        self.emit(Target::Reasoning(None), reasoning, events);
        // Mistral's reasoning models send pieces.
        if delta.raw("content").is_some_and(|content| content.get().starts_with('[')) {
            for piece in delta.objects("content") {
                for thought in piece.objects("thinking") {
                    self.emit(Target::Reasoning(None), thought.string("text"), events);
                }
                self.emit(Target::Text(None), piece.string("text"), events);
            }
        } else {
            self.emit(Target::Text(None), delta.string("content"), events);
        }
        self.emit(Target::Text(None), delta.string("refusal"), events);
        // OpenRouter's field and LiteLLM's, sent in addition to the text.
        let state = |name| delta.value(name).unwrap_or_default();
        self.thoughts.add_details(state("reasoning_details"));
        self.thoughts.add_blocks(state("thinking_blocks"));
        let fragments = delta.objects("tool_calls");
        if !fragments.is_empty() {
            self.deltas.end(|_| true, events);
        }
        for fragment in fragments {
            self.calls.push(CallFragment::new(&fragment), events);
        }
        for annotation in delta.objects("annotations") {
            if let Some(cited) = annotation.object("url_citation") {
                let place = ["start_index", "end_index"].map(|name| cited.value(name));
                self.cite(Citation { place, ..Citation::of(&cited) }, events);
            }
        }
    }

    /// Emits a delta. Text ends the reasoning before it, and reasoning the text.
    fn emit(&mut self, target: Target, delta: Option<&RawValue>, events: Events<'_>) {
        let Some(delta) = delta else { return };
        self.deltas.end(|other| *other != target, events);
        self.deltas.push(target, delta, events);
    }

    /// Cites what a server with web search has found. Some repeat it in every chunk.
    fn cite_results(&mut self, chunk: &Fields<'_>, events: Events<'_>) {
        let results = chunk.objects("search_results");
        let mut results: Vec<Citation> = results.iter().map(Citation::of).collect();
        if results.is_empty() {
            results.extend(chunk.texts("citations").into_iter().map(Citation::of_url));
        }
        results.into_iter().for_each(|cited| self.cite(cited, events));
    }

    fn cite(&mut self, cited: Citation, events: Events<'_>) {
        if self.cited.contains(&cited) {
            return;
        }
        if let Some(url) = cited.url.clone() {
            let source_id = fresh_id("source").into();
            let title = cited.title.clone().map(Into::into);
            let source = Source::Url { source_id, url: url.into(), title };
            events.push_back(ModelEvent::Event(AgentEvent::Source(Box::new(source))));
        }
        self.cited.push(cited);
    }
}

impl Citation {
    fn of(cited: &Fields<'_>) -> Self {
        Citation { url: cited.text("url"), title: cited.text("title"), place: [None, None] }
    }

    fn of_url(url: String) -> Self {
        Citation { url: Some(url), title: None, place: [None, None] }
    }
}

fn finish_reason(reason: &str) -> FinishReason {
    match reason {
        "stop" | "stop_sequence" | "end" | "end_turn" | "eos" | "eos_token" => FinishReason::Stop,
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "content_filter" => FinishReason::ContentFilter,
        "tool_calls" | "tool_call" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        _ => FinishReason::Other,
    }
}
