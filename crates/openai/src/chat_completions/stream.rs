//! [`ChunkReader`]: converts `chat.completion.chunk` objects to model events.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::{Value, from_value};

use super::calls::{CallFragment, Calls};
use super::fresh_id;
use super::provider_state::ReasoningState;
use crate::error::ProviderError;
use crate::response_stream::ReadEvent;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, Source};
use ui_message_stream::model::{ModelEvent, Usage};

/// Reads the chunks of one response.
#[derive(Debug)]
pub(super) struct ChunkReader {
    /// The fingerprint of the model.
    fingerprint: String,
    calls: Calls,
    /// The reasoning state that the server needs back.
    thoughts: ReasoningState,
    /// The citations emitted so far. Some servers repeat them in every chunk.
    cited: Vec<Citation>,
    usage: Option<Usage>,
    finished: Option<FinishReason>,
}

#[derive(Deserialize)]
struct Chunk {
    choices: Option<Vec<Choice>>,
    usage: Option<Tokens>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    index: Option<u64>,
    delta: Option<Delta>,
    finish_reason: Option<String>,
}

#[derive(Default, Deserialize)]
struct Delta {
    content: Option<Content>,
    /// The field of DeepSeek and most other servers.
    reasoning_content: Option<String>,
    /// The field of vLLM, Groq and OpenRouter.
    reasoning: Option<String>,
    /// OpenRouter's field, sent in addition to the text.
    reasoning_details: Option<Value>,
    /// LiteLLM's field, sent in addition to the text.
    thinking_blocks: Option<Value>,
    refusal: Option<String>,
    tool_calls: Option<Vec<CallFragment>>,
    annotations: Option<Value>,
}

/// An annotation of the text. Only citations of web pages are read.
#[derive(Deserialize)]
struct Annotation {
    url_citation: Option<Citation>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Citation {
    url: Option<String>,
    title: Option<String>,
    start_index: Option<Value>,
    end_index: Option<Value>,
}

/// The content of a message. Mistral's reasoning models send pieces.
#[derive(Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Pieces(Vec<Piece>),
}

#[derive(Deserialize)]
struct Piece {
    text: Option<String>,
    thinking: Option<Vec<Piece>>,
}

#[derive(Deserialize)]
struct Tokens {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
}

impl ReadEvent for ChunkReader {
    fn read(&mut self, data: &str, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        let chunk: Chunk = serde_json::from_str(data).map_err(ProviderError::malformed)?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            return Err(ProviderError::from_error_event(&error));
        }
        if let Some(Tokens { prompt_tokens, completion_tokens }) = chunk.usage {
            // Some servers send the usage so far with every chunk.
            self.usage = Some(Usage {
                input_tokens: prompt_tokens.unwrap_or(0),
                output_tokens: completion_tokens.unwrap_or(0),
            });
        }
        let choices = chunk.choices.into_iter().flatten();
        for choice in choices.filter(|choice| choice.index.unwrap_or(0) == 0) {
            self.delta(choice.delta.unwrap_or_default(), events);
            if let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) {
                self.finished = Some(finish_reason(&reason));
                self.end_calls(events);
            }
        }
        Ok(())
    }

    fn end(&mut self, events: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        // `[DONE]` means that no event follows, not that the response is complete: some servers
        // also send it after a failure.
        let reason = self.finished.ok_or_else(ProviderError::truncated)?;
        self.end_calls(events);
        events.extend(self.usage.take().map(ModelEvent::Usage));
        events.push_back(ModelEvent::Finished(reason));
        Ok(())
    }
}

impl ChunkReader {
    pub(super) fn new(fingerprint: String) -> Self {
        let (calls, thoughts) = (Calls::default(), ReasoningState::default());
        ChunkReader { fingerprint, calls, thoughts, cited: Vec::new(), usage: None, finished: None }
    }

    fn end_calls(&mut self, events: &mut VecDeque<ModelEvent>) {
        // With any other reason, also an unknown one, the response may have ended within a call.
        let is_complete =
            matches!(self.finished, Some(FinishReason::Stop | FinishReason::ToolCalls));
        self.calls.end(!is_complete, &self.fingerprint, &mut self.thoughts, events);
    }

    fn delta(&mut self, delta: Delta, events: &mut VecDeque<ModelEvent>) {
        let mut emit = |text: Option<String>, event: fn(String) -> AgentEvent| {
            let text = text.filter(|text| !text.is_empty());
            events.extend(text.map(|text| ModelEvent::Event(event(text))));
        };
        // Servers that send both fields send the same text in both.
        let reasoning = delta.reasoning_content.filter(|text| !text.is_empty());
        emit(reasoning.or(delta.reasoning), AgentEvent::reasoning);
        match delta.content {
            Some(Content::Text(text)) => emit(Some(text), AgentEvent::text),
            Some(Content::Pieces(pieces)) => {
                for piece in pieces {
                    for thought in piece.thinking.into_iter().flatten() {
                        emit(thought.text, AgentEvent::reasoning);
                    }
                    emit(piece.text, AgentEvent::text);
                }
            }
            None => {}
        }
        emit(delta.refusal, AgentEvent::text);
        self.thoughts.add_details(delta.reasoning_details.unwrap_or_default());
        self.thoughts.add_blocks(delta.thinking_blocks.unwrap_or_default());
        for piece in delta.tool_calls.into_iter().flatten() {
            self.calls.push(piece, events);
        }
        if let Some(Value::Array(annotations)) = delta.annotations {
            let annotations = annotations.into_iter().filter_map(|value| from_value(value).ok());
            annotations.for_each(|annotation| self.cite(annotation, events));
        }
    }

    fn cite(&mut self, annotation: Annotation, events: &mut VecDeque<ModelEvent>) {
        let Some(cited) = annotation.url_citation.filter(|cited| !self.cited.contains(cited))
        else {
            return;
        };
        if let Some(url) = cited.url.clone().filter(|url| !url.is_empty()) {
            let title = cited.title.clone().filter(|title| !title.is_empty());
            let source_id = fresh_id("source").into();
            let source = Source::Url { source_id, url: url.into(), title: title.map(Into::into) };
            events.push_back(ModelEvent::Event(AgentEvent::Source(Box::new(source))));
        }
        self.cited.push(cited);
    }
}

fn finish_reason(reason: &str) -> FinishReason {
    match reason {
        "stop" | "stop_sequence" | "end" | "end_turn" | "eos" | "eos_token" => FinishReason::Stop,
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "content_filter" => FinishReason::ContentFilter,
        "tool_calls" | "tool_call" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "error" => FinishReason::Error,
        _ => FinishReason::Other,
    }
}
