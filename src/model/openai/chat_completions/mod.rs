//! [`ChatCompletions`]: a model behind `POST …/chat/completions`.

mod calls;
mod request;
mod stream;

use self::stream::ChunkReader;
use super::answer::Answer;
use super::endpoint::Endpoint;
use super::extra::Extra;
use crate::agent::{Model, ModelRequest, ModelStream};
use crate::json::Json;

/// A model behind `POST …/chat/completions`, which OpenAI and most others serve.
///
/// What they do differently is taken as it comes: reasoning as `reasoning_content`, as `reasoning`
/// or as pieces of content; tool calls whole or in pieces, with an index or without, with an id on
/// every piece, once, or never.
///
/// A call that some provider ran earlier in the conversation is sent as any other call and its
/// result. A file that is neither a picture nor in the request is named in words.
#[derive(Debug, Clone)]
pub struct ChatCompletions {
    endpoint: Endpoint,
    model: Box<str>,
    sends_reasoning: bool,
    extra: Extra,
}

impl ChatCompletions {
    /// This model there.
    pub fn new(endpoint: Endpoint, model: impl Into<Box<str>>) -> Self {
        let (model, extra) = (model.into(), Extra::default());
        ChatCompletions { endpoint, model, sends_reasoning: false, extra }
    }

    /// Sets a field of the request, in place of the adapter's own; `null` leaves one out:
    /// `temperature`, `reasoning_effort`, or `stream_options` for a server that does not take it.
    ///
    /// ```
    /// # use ui_message_stream::Json;
    /// # use ui_message_stream::model::openai::{ChatCompletions, Endpoint};
    /// # let endpoint = Endpoint::at("http://localhost:11434/v1")?;
    /// let model = ChatCompletions::new(endpoint, "qwen3").with_field("temperature", &Json::of(&0.2)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_field(mut self, name: &str, value: &Json) -> Self {
        self.extra.set(name, value);
        self
    }

    /// Sends the model what it thought before its calls, as `reasoning_content`. Models that think
    /// between their calls want it, as DeepSeek's and Moonshot's do; others refuse it.
    #[must_use]
    pub fn with_reasoning_sent_back(mut self) -> Self {
        self.sends_reasoning = true;
        self
    }
}

impl Model for ChatCompletions {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let body = request::body(&request, &self.model, self.sends_reasoning, &self.extra);
        let path = &["chat", "completions"];
        Box::pin(Answer::to(&self.endpoint, path, body, ChunkReader::default()))
    }

    fn name(&self) -> Option<&str> {
        Some(&self.model)
    }
}
