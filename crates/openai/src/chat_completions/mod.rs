//! [`ChatCompletions`]: models behind `POST …/chat/completions`.

mod calls;
mod provider_state;
mod mistral;
mod request;
mod stream;

use uuid::Uuid;

use self::stream::ChunkReader;
use crate::endpoint::Endpoint;
use crate::files::{SupportedFiles, file_settings};
use crate::request_forms::{FirstForm, Form, RequestForms};
use crate::request_overrides::RequestOverrides;
use crate::response_stream::{ReadEvent, ResponseStream};
use ui_message_stream::json::Json;
use ui_message_stream::model::{Model, ModelRequest, ModelStream};

/// A model behind `POST …/chat/completions`, the API that OpenAI and most other providers serve.
///
/// The variants of different servers are accepted: reasoning in `reasoning_content`, in `reasoning`
/// or in pieces of the content; tool calls in one chunk or in fragments, with or without an index,
/// and with an id in every fragment, in one, or in none. State that a server needs back with a call
/// (Google's `extra_content`, OpenRouter's `reasoning_details`, LiteLLM's `thinking_blocks`) is
/// stored as provider metadata and sent back with the call to the same model at the same endpoint.
///
/// Cited web pages become sources of the message.
///
/// Structured output is requested with `response_format`. Some servers reject this field, such as
/// DeepSeek's, or reject it together with tools, such as Groq's. Set the field to `null` with
/// [`with_field`](Self::with_field) for such a server and request the format in the instructions;
/// the response is still validated against the schema.
///
/// A call that another provider executed earlier in the conversation is sent as an ordinary call
/// with its result, and the text that followed the result as a separate message. Accepted files are
/// images (PNG, JPEG, GIF, WebP), PDF with its data in the message, and the text of `text/*` and
/// `application/json` with its data in the message. A sentence replaces every other file.
#[derive(Debug, Clone)]
pub struct ChatCompletions {
    endpoint: Endpoint,
    model: Box<str>,
    sends_reasoning_content: bool,
    is_mistral: bool,
    supported_files: SupportedFiles,
    extra: RequestOverrides,
    first_form: FirstForm,
}

impl ChatCompletions {
    /// Creates an adapter for this model at this endpoint.
    pub fn new(endpoint: Endpoint, model: impl Into<Box<str>>) -> Self {
        let model = model.into();
        let extra = RequestOverrides::default();
        let sends_reasoning_content = false;
        let is_mistral = false;
        ChatCompletions {
            endpoint,
            model,
            sends_reasoning_content,
            is_mistral,
            supported_files: SupportedFiles::ALL,
            extra,
            first_form: FirstForm::default(),
        }
    }

    /// Sets a field of the request, which replaces the adapter's own value. `null` removes the
    /// field.
    ///
    /// Examples are `temperature` and `reasoning_effort`. If the server rejects `stream_options`, the
    /// request is sent a second time without it, and later requests do not contain it.
    ///
    /// ```
    /// # use ui_message_stream::Json;
    /// # use ui_message_stream_openai::{ChatCompletions, Endpoint};
    /// # let endpoint = Endpoint::new("http://localhost:11434/v1")?;
    /// let model = ChatCompletions::new(endpoint, "qwen3").with_field("temperature", &Json::from_serialize(&0.2)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_field(mut self, name: &str, value: &Json) -> Self {
        self.extra.set(name, value);
        self
    }

    /// Sends the reasoning of each assistant message back to the model as `reasoning_content`.
    /// Messages without reasoning get a single space.
    ///
    /// Models that reason between tool calls, such as those of DeepSeek and Moonshot, reject a
    /// conversation without the field. Other models reject the field.
    #[must_use]
    pub fn with_reasoning_content(mut self) -> Self {
        self.sends_reasoning_content = true;
        self
    }

    /// Adapts requests to Mistral's API and to servers that enforce the chat templates of its
    /// models, such as vLLM.
    ///
    /// These servers reject a conversation in which a user message directly follows a tool result,
    /// which occurs if a call waits for approval and the user sends another message. They also
    /// reject call ids that do not consist of nine letters and digits, as those of all other
    /// providers. Without this setting such a conversation can never continue. With it, an
    /// assistant message with a fixed sentence is inserted between the result and the user message,
    /// other call ids are replaced with derived ones, and a sentence replaces each PDF.
    ///
    /// ```
    /// # use ui_message_stream_openai::{ChatCompletions, Endpoint};
    /// let endpoint = Endpoint::new("https://api.mistral.ai/v1")?.with_key("secret")?;
    /// let model = ChatCompletions::new(endpoint, "mistral-medium-latest").for_mistral();
    /// # Ok::<(), ui_message_stream_openai::EndpointError>(())
    /// ```
    #[must_use]
    pub fn for_mistral(mut self) -> Self {
        self.is_mistral = true;
        self.without_files()
    }

    file_settings!();

    /// Returns a reader of a response.
    pub(crate) fn reader(&self) -> impl ReadEvent + use<> {
        ChunkReader::new(self.fingerprint())
    }

    fn fingerprint(&self) -> String {
        self.endpoint.model_fingerprint(&self.model)
    }
}

impl Model for ChatCompletions {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let model = self.clone();
        let forms = RequestForms {
            path: &["chat", "completions"],
            others: FORMS,
            first: self.first_form.clone(),
            body: Box::new(move |form| request::body(&request, &model, form == 0)),
        };
        Box::pin(ResponseStream::new(&self.endpoint, forms, self.reader()))
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

/// The forms of a request that follow the whole one.
const FORMS: &[Form] = &[Form {
    left_out: STREAM_OPTIONS,
    can_help: |error, _| {
        matches!(error.status(), Some(400 | 422)) && error.mentions(STREAM_OPTIONS)
    },
    is_remembered: true,
}];

/// The field that requests token usage in the stream.
const STREAM_OPTIONS: &str = "stream_options";
