//! [`ChatCompletions`]: a model behind `POST …/chat/completions`.

mod calls;
mod provider_state;
mod mistral;
mod request;
mod stream;

use uuid::Uuid;

use self::stream::ChunkReader;
use crate::endpoint::Endpoint;
use crate::files::Takes;
use crate::request_overrides::Extra;
use crate::response_stream::{Answer, Otherwise};
use ui_message_stream::agent::{Model, ModelRequest, ModelStream};
use ui_message_stream::json::Json;

/// A model behind `POST …/chat/completions`, which OpenAI and most others serve.
///
/// What they do differently is taken as it comes: reasoning as `reasoning_content`, as `reasoning`
/// or as pieces of content; tool calls whole or in pieces, with an index or without, with an id on
/// every piece, once, or never. What a server wants back with a call (Google's `extra_content`,
/// OpenRouter's `reasoning_details`, LiteLLM's `thinking_blocks`) is kept as provider metadata and
/// sent with it, to the same model there.
///
/// Pages that it cites are sources of the message.
///
/// An answer in a structure is asked for as `response_format`. Some servers refuse it, as DeepSeek's
/// does, or do beside tools, as Groq's: with the field set to `null` it is not asked for, but held
/// against its schema here all the same, so that instructions can ask for it.
///
/// A call that some provider ran earlier in the conversation is sent as any other call and its
/// result, and what the model said upon it as a message of its own. Of files it is sent pictures
/// (PNG, JPEG, GIF, WebP), PDF that is in the request, and the words of `text/*` and
/// `application/json` that is in it; every other one is named in words.
#[derive(Debug, Clone)]
pub struct ChatCompletions {
    endpoint: Endpoint,
    model: Box<str>,
    sends_reasoning: bool,
    is_mistral: bool,
    takes: Takes,
    extra: Extra,
}

impl ChatCompletions {
    /// This model there.
    pub fn new(endpoint: Endpoint, model: impl Into<Box<str>>) -> Self {
        let (model, extra) = (model.into(), Extra::default());
        let (sends_reasoning, is_mistral) = (false, false);
        ChatCompletions { endpoint, model, sends_reasoning, is_mistral, takes: Takes::ALL, extra }
    }

    /// Sets a field of the request, in place of the adapter's own; `null` leaves one out:
    /// `temperature`, `reasoning_effort`, or `stream_options` for a server that does not take it,
    /// which else is asked once more without, each time.
    ///
    /// ```
    /// # use ui_message_stream::Json;
    /// # use ui_message_stream_openai::{ChatCompletions, Endpoint};
    /// # let endpoint = Endpoint::at("http://localhost:11434/v1")?;
    /// let model = ChatCompletions::new(endpoint, "qwen3").with_field("temperature", &Json::of(&0.2)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_field(mut self, name: &str, value: &Json) -> Self {
        self.extra.set(name, value);
        self
    }

    /// Sends the model with each of its messages what it thought, as `reasoning_content`, which is a
    /// blank where it thought nothing. Models that think between their calls refuse a conversation in
    /// which it is missing, as DeepSeek's and Moonshot's do; others refuse it.
    #[must_use]
    pub fn with_reasoning_sent_back(mut self) -> Self {
        self.sends_reasoning = true;
        self
    }

    /// For Mistral's own API, and for servers that hold its models to their templates, as vLLM does.
    /// They refuse a conversation, and that for good, in which the person speaks right behind the
    /// result of a tool, as where a call waits for an answer and they write on, or in which the id of
    /// a call is not of nine letters and digits, as those of every other provider. So a sentence is
    /// put between the two, such ids are sent as others that stand for them, and PDF is named in
    /// words.
    ///
    /// ```
    /// # use ui_message_stream_openai::{ChatCompletions, Endpoint};
    /// let endpoint = Endpoint::at("https://api.mistral.ai/v1")?.with_key("secret")?;
    /// let model = ChatCompletions::new(endpoint, "mistral-medium-latest").for_mistral();
    /// # Ok::<(), ui_message_stream_openai::EndpointError>(())
    /// ```
    #[must_use]
    pub fn for_mistral(mut self) -> Self {
        self.is_mistral = true;
        self.without_files()
    }

    /// Names PDF in words instead of sending it, for a server that takes no `file`, as most but
    /// OpenAI's own.
    #[must_use]
    pub fn without_files(mut self) -> Self {
        self.takes.files = false;
        self
    }

    /// Names pictures in words instead of sending them, for a model that only reads.
    #[must_use]
    pub fn without_images(mut self) -> Self {
        self.takes.images = false;
        self
    }

    /// Names pictures in words that are not in the request, for a server that fetches none, as
    /// Ollama.
    #[must_use]
    pub fn without_image_urls(mut self) -> Self {
        self.takes.image_urls = false;
        self
    }
}

impl Model for ChatCompletions {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let mark = self.endpoint.mark(&self.model);
        let body = request::body(&request, self, &mark);
        let path = &["chat", "completions"];
        let reader = ChunkReader::new(mark.clone());
        let model = self.clone();
        let otherwise = Otherwise {
            may_help: |error| {
                matches!(error.status(), Some(400 | 422)) && error.names(STREAM_OPTIONS)
            },
            body: Box::new(move || {
                let model = model.with_field(STREAM_OPTIONS, &Json::null());
                request::body(&request, &model, &mark)
            }),
        };
        Box::pin(Answer::to(&self.endpoint, path, body, Some(otherwise), reader))
    }

    fn name(&self) -> Option<&str> {
        Some(&self.model)
    }

    fn provider(&self) -> Option<&str> {
        self.endpoint.provider()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a provider may give a call no id, and sources never"
)]
fn fresh_id(kind: &str) -> String {
    format!("{kind}_{}", Uuid::new_v4().simple())
}

/// What asks a server to say what the answer cost.
const STREAM_OPTIONS: &str = "stream_options";
