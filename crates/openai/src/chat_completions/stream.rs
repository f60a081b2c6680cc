//! [`ChunkReader`]: converts `chat.completion.chunk` objects to model events.

use std::collections::{HashSet, VecDeque};

use serde_json::Value;
use serde_json::value::RawValue;

use super::calls::Calls;
use super::fresh_id;
use super::provider_state::ReasoningState;
use crate::deltas::{Deltas, Target};
use crate::error::ProviderError;
use crate::fields::{Fields, LeftOut};
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
    /// What a delta had.
    streamed: HashSet<&'static str>,
    /// The response has a call.
    has_call: bool,
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
        let choices = chunk.objects("choices");
        let usage = chunk.object("usage");
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

    fn release(&mut self, events: Events<'_>) {
        self.deltas.end(|_| true, events);
    }

    fn end(
        &mut self,
        is_done: bool,
        left_out: &LeftOut,
        events: Events<'_>,
    ) -> Result<(), ProviderError> {
        // `[DONE]` means that no event follows, not that the response is complete: some servers also send it after
        // a failure. After the usage of the whole response it does, also without a reason.
        let is_whole = is_done && self.ends_with_usage;
        // A call without arguments may then be one whose arguments were lost.
        let is_cut = self.calls.has_call_without_arguments();
        let whole = if is_cut { FinishReason::Other } else { FinishReason::Stop };
        let reason = self.finished.or(is_whole.then_some(whole));
        let reason = reason.ok_or_else(ProviderError::truncated)?;
        self.end_calls(events);
        if reason == FinishReason::ToolCalls && !self.has_call {
            left_out.note("`choices.finish_reason`", "it names calls, and the response has none");
        }
        let reason = match reason {
            FinishReason::Stop | FinishReason::ToolCalls
                if self.has_call && left_out.may_lack_input() =>
            {
                FinishReason::Other
            }
            reason => reason,
        };
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
            streamed: HashSet::new(),
            has_call: false,
            usage: None,
            ends_with_usage: false,
            finished: None,
        }
    }

    fn choice(&mut self, choice: &Fields<'_>, events: Events<'_>) -> Result<(), ProviderError> {
        if let Some(error) = choice.error() {
            return Err(ProviderError::from_error_event(&error));
        }
        if let Some(delta) = choice.object("delta") {
            self.delta(&delta, true, events);
        }
        // A server that does not stream sends the whole message. Others repeat it behind its deltas, or add to them.
        if let Some(message) = choice.object("message") {
            self.delta(&message, false, events);
        }
        let reason = choice.text("finish_reason").map(|it| it.to_lowercase().replace('-', "_"));
        match reason.as_deref() {
            Some("error") => {
                return Err(ProviderError::from_error_event(&"finish_reason: error".into()));
            }
            Some(reason) => {
                // Some servers end every stream with `stop`, also after another reason.
                let is_good =
                    |reason| matches!(reason, FinishReason::Stop | FinishReason::ToolCalls);
                let known = self.finished.filter(|known| !is_good(*known));
                self.finished = known.or(Some(finish_reason(reason)));
                self.end_calls(events);
            }
            None => {}
        }
        Ok(())
    }

    fn end_calls(&mut self, events: Events<'_>) {
        self.has_call |= !self.calls.is_empty();
        self.calls.end(&self.fingerprint, &mut self.thoughts, events);
    }

    /// Reads a delta, or what no delta had of a whole message.
    fn delta(&mut self, delta: &Fields<'_>, is_delta: bool, events: Events<'_>) {
        // `reasoning_content` is the field of DeepSeek and most other servers, `reasoning` that of vLLM, Groq and
        // OpenRouter. Servers that send both send the same text in both.
        let reasoning = delta.string("reasoning_content").or_else(|| delta.string("reasoning"));
        self.emit(Target::Reasoning(None), reasoning, is_delta, events);
        // Mistral's reasoning models send pieces.
        if delta.raw("content").is_some_and(|content| content.get().starts_with('[')) {
            for piece in delta.objects("content") {
                for thought in piece.objects("thinking") {
                    let thought = thought.string("text");
                    self.emit(Target::Reasoning(None), thought, is_delta, events);
                }
                self.emit(Target::Text(None), piece.string("text"), is_delta, events);
            }
        } else {
            self.emit(Target::Text(None), delta.string("content"), is_delta, events);
        }
        self.emit(Target::Text(None), delta.string("refusal"), is_delta, events);
        // OpenRouter's field and LiteLLM's, sent in addition to the text.
        let details = delta.objects("reasoning_details");
        if !details.is_empty() && self.takes("reasoning_details", is_delta) {
            self.thoughts.add_details(details.iter().map(Fields::to_item));
        }
        let blocks = delta.objects("thinking_blocks");
        if !blocks.is_empty() && self.takes("thinking_blocks", is_delta) {
            self.thoughts.add_blocks(blocks.iter().map(Fields::to_item));
        }
        let fragments = delta.objects("tool_calls");
        if !fragments.is_empty() && self.takes("tool_calls", is_delta) {
            self.deltas.end(|_| true, events);
            for fragment in fragments {
                self.calls.push(&fragment, events);
            }
        }
        for annotation in delta.objects("annotations") {
            if let Some(cited) = annotation.object("url_citation") {
                let place = ["start_index", "end_index"].map(|name| cited.value(name));
                self.cite(Citation { place, ..Citation::of(&cited) }, events);
            }
        }
    }

    /// Emits a delta. Text ends the reasoning before it, and reasoning the text.
    fn emit(
        &mut self,
        target: Target,
        delta: Option<&RawValue>,
        is_delta: bool,
        events: Events<'_>,
    ) {
        let Some(delta) = delta else { return };
        let is_text = matches!(target, Target::Text(_));
        if !self.takes(if is_text { "text" } else { "reasoning" }, is_delta) {
            return;
        }
        self.deltas.end(|other| *other != target, events);
        self.deltas.push(target, delta, events);
    }

    /// Whether something of a delta or of a whole message is taken: of a message only what no delta had.
    fn takes(&mut self, what: &'static str, is_delta: bool) -> bool {
        if is_delta {
            self.streamed.insert(what);
        }
        is_delta || !self.streamed.contains(what)
    }

    /// Emits the search results of a chunk as sources. Some servers repeat them in every chunk.
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
        "stop" | "stop_sequence" | "end" | "end_turn" | "eos" | "eos_token" | "complete"
        | "completed" => FinishReason::Stop,
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "content_filter" => FinishReason::ContentFilter,
        "tool_calls" | "tool_call" | "function_calls" | "function_call" | "tool_use" => {
            FinishReason::ToolCalls
        }
        _ => FinishReason::Other,
    }
}
