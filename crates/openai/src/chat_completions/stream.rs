//! [`ChunkReader`]: `chat.completion.chunk`s to what the model says.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::{Value, from_value};

use super::calls::{CallPiece, Calls};
use super::fresh_id;
use super::provider_state::Thoughts;
use crate::error::ProviderError;
use crate::response_stream::Read;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, Source};
use ui_message_stream::run::{ModelEvent, Usage};

/// Reads the chunks of one answer.
#[derive(Debug)]
pub(super) struct ChunkReader {
    /// Of the model that is read.
    mark: String,
    calls: Calls,
    /// What the server wants back of its thoughts.
    thoughts: Thoughts,
    /// What was cited: some servers say it again with every chunk.
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
    /// DeepSeek's name for it, and most others'.
    reasoning_content: Option<String>,
    /// The name of vLLM, Groq and OpenRouter.
    reasoning: Option<String>,
    /// OpenRouter's, beside the words.
    reasoning_details: Option<Value>,
    /// LiteLLM's, beside the words.
    thinking_blocks: Option<Value>,
    refusal: Option<String>,
    tool_calls: Option<Vec<CallPiece>>,
    annotations: Option<Value>,
}

/// Of what it says, the pages that it cites.
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

/// Mistral's reasoning models say pieces.
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

impl Read for ChunkReader {
    fn read(&mut self, data: &str, said: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        let chunk: Chunk = serde_json::from_str(data).map_err(ProviderError::not_understood)?;
        if let Some(error) = chunk.error.filter(|error| !error.is_null()) {
            return Err(ProviderError::reported(&error));
        }
        if let Some(Tokens { prompt_tokens, completion_tokens }) = chunk.usage {
            // Some say with every chunk what it cost so far.
            self.usage = Some(Usage {
                input_tokens: prompt_tokens.unwrap_or(0),
                output_tokens: completion_tokens.unwrap_or(0),
            });
        }
        let choices = chunk.choices.into_iter().flatten();
        for choice in choices.filter(|choice| choice.index.unwrap_or(0) == 0) {
            self.delta(choice.delta.unwrap_or_default(), said);
            if let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) {
                self.finished = Some(finish_reason(&reason));
                self.end_calls(said);
            }
        }
        Ok(())
    }

    fn end(&mut self, said: &mut VecDeque<ModelEvent>) -> Result<(), ProviderError> {
        // `[DONE]` says that nothing follows, not that all was said: some end so when they fail.
        let reason = self.finished.ok_or_else(ProviderError::cut)?;
        self.end_calls(said);
        said.extend(self.usage.take().map(ModelEvent::Used));
        said.push_back(ModelEvent::Finished(reason));
        Ok(())
    }
}

impl ChunkReader {
    pub(super) fn new(mark: String) -> Self {
        let (calls, thoughts) = (Calls::default(), Thoughts::default());
        ChunkReader { mark, calls, thoughts, cited: Vec::new(), usage: None, finished: None }
    }

    fn end_calls(&mut self, said: &mut VecDeque<ModelEvent>) {
        let is_cut_off = matches!(
            self.finished,
            Some(FinishReason::Length | FinishReason::ContentFilter | FinishReason::Error)
        );
        self.calls.end(is_cut_off, &self.mark, &mut self.thoughts, said);
    }

    fn delta(&mut self, delta: Delta, said: &mut VecDeque<ModelEvent>) {
        let mut say = |text: Option<String>, event: fn(String) -> AgentEvent| {
            let text = text.filter(|text| !text.is_empty());
            said.extend(text.map(|text| ModelEvent::Said(event(text))));
        };
        // Who sends both sends the same twice.
        let reasoning = delta.reasoning_content.filter(|text| !text.is_empty());
        say(reasoning.or(delta.reasoning), AgentEvent::reasoning);
        match delta.content {
            Some(Content::Text(text)) => say(Some(text), AgentEvent::text),
            Some(Content::Pieces(pieces)) => {
                for piece in pieces {
                    for thought in piece.thinking.into_iter().flatten() {
                        say(thought.text, AgentEvent::reasoning);
                    }
                    say(piece.text, AgentEvent::text);
                }
            }
            None => {}
        }
        say(delta.refusal, AgentEvent::text);
        self.thoughts.add_details(delta.reasoning_details.unwrap_or_default());
        self.thoughts.add_blocks(delta.thinking_blocks.unwrap_or_default());
        for piece in delta.tool_calls.into_iter().flatten() {
            self.calls.take(piece, said);
        }
        if let Some(Value::Array(annotations)) = delta.annotations {
            let annotations = annotations.into_iter().filter_map(|said| from_value(said).ok());
            annotations.for_each(|annotation| self.cite(annotation, said));
        }
    }

    fn cite(&mut self, annotation: Annotation, said: &mut VecDeque<ModelEvent>) {
        let Some(cited) = annotation.url_citation.filter(|cited| !self.cited.contains(cited))
        else {
            return;
        };
        if let Some(url) = cited.url.clone().filter(|url| !url.is_empty()) {
            let title = cited.title.clone().filter(|title| !title.is_empty());
            let source_id = fresh_id("source").into();
            let source = Source::Url { source_id, url: url.into(), title: title.map(Into::into) };
            said.push_back(ModelEvent::Said(AgentEvent::Source(Box::new(source))));
        }
        self.cited.push(cited);
    }
}

fn finish_reason(reason: &str) -> FinishReason {
    match reason {
        "stop" | "end_turn" | "eos" => FinishReason::Stop,
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "content_filter" => FinishReason::ContentFilter,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "error" => FinishReason::Error,
        _ => FinishReason::Other,
    }
}
