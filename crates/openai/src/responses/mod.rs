//! [`Responses`]: a model behind `POST …/responses`.

mod provider_tools;
mod provider_state;
mod previous_response;
mod response_id;
mod request;
mod stream;

use std::fmt;

use serde_json::{Value, json};

use self::request::{Prompt, Taken};
use self::stream::EventReader;
use crate::endpoint::Endpoint;
use crate::files::Takes;
use crate::request_overrides::Extra;
use crate::response_stream::{Answer, Otherwise};
use crate::strict_schema::format;
use ui_message_stream::agent::{Model, ModelRequest, ModelStream, OutputSchema};
use ui_message_stream::json::Json;

/// A model behind `POST …/responses`: its reasoning is kept between calls, and it may use tools that
/// the provider runs.
///
/// What the provider runs is shown as calls of it with their results: `web_search`, `file_search`,
/// `code_interpreter`, `image_generation`, and of a tool server `mcp.<server>.<tool>`. Where it asks before it runs a
/// tool, the person is asked, and it is told the answer with the reason; what then comes of the call
/// is shown as the output of the call that was approved.
///
/// Of files it is sent pictures (PNG, JPEG, GIF, WebP), PDF, and the words of `text/*` and
/// `application/json` that is in the request; every other one is named in words.
///
/// An answer in a structure is asked for as `text.format`. With `text` set to `null` it is not, for a
/// server that refuses it: it is held against its schema here all the same.
///
/// Nothing is stored there unless [`with_stored_responses`](Self::with_stored_responses) says so:
/// what it wants back is kept as provider metadata in the messages. It goes to the endpoint that made
/// it; and where that cannot read it any more and refuses (400, 404), it is asked once more without
/// thoughts, and with what it ran as calls that ran elsewhere.
#[derive(Clone)]
pub struct Responses {
    endpoint: Endpoint,
    model: Box<str>,
    tools: Vec<Value>,
    include: Vec<Box<str>>,
    reasoning: Option<Box<str>>,
    is_stored: bool,
    takes: Takes,
    extra: Extra,
}

impl Responses {
    /// This model there.
    pub fn new(endpoint: Endpoint, model: impl Into<Box<str>>) -> Self {
        Responses {
            endpoint,
            model: model.into(),
            tools: Vec::new(),
            include: Vec::new(),
            reasoning: None,
            is_stored: false,
            takes: Takes::ALL,
            extra: Extra::default(),
        }
    }

    /// For a model that reasons: how much (`low`, `medium`, `high`), with a summary for the person to
    /// read and the encrypted thoughts, which it gets back with every call. Other models refuse it,
    /// and without it thoughts are left out.
    #[must_use]
    pub fn with_reasoning(mut self, effort: &str) -> Self {
        self.reasoning = Some(effort.into());
        self
    }

    /// Gives the model a tool that the provider runs. What it is allowed without being asked stands
    /// in the tool itself.
    ///
    /// ```
    /// # use serde_json::json;
    /// # use ui_message_stream::Json;
    /// # use ui_message_stream_openai::{Endpoint, Responses};
    /// # let endpoint = Endpoint::openai("sk-test")?;
    /// let model = Responses::new(endpoint, "gpt-5-mini")
    ///     .with_hosted_tool(&Json::of(&json!({"type": "web_search"}))?)
    ///     .with_hosted_tool(&Json::of(&json!({
    ///         "type": "mcp", "server_label": "links", "server_url": "https://links.example/mcp",
    ///         "require_approval": "always",
    ///     }))?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_hosted_tool(mut self, tool: &Json) -> Self {
        // What is written is JSON that any reader takes.
        let tool: Value = tool.to().unwrap_or_default();
        let text = |field: &str| tool.get(field).and_then(Value::as_str);
        text("authorization").into_iter().for_each(|token| self.endpoint.keep_secret_header(token));
        text("server_url").into_iter().for_each(|address| self.endpoint.keep_secrets_in(address));
        let headers = tool.get("headers").and_then(Value::as_object).into_iter().flatten();
        for header in headers.filter_map(|(_, value)| value.as_str()) {
            self.endpoint.keep_secret_header(header);
        }
        self.tools.push(tool);
        self
    }

    /// Asks for more than the answer has by itself: `web_search_call.action.sources`.
    #[must_use]
    pub fn with_include(mut self, what: &str) -> Self {
        self.include.push(what.into());
        self
    }

    /// Lets the provider store the responses, and sends it with each call only what was said since
    /// the last one that ended, by `previous_response_id`. It forgets them after some weeks: where it
    /// refuses what is sent (400, 404), it is asked once more, with the whole conversation.
    #[must_use]
    pub fn with_stored_responses(mut self) -> Self {
        self.is_stored = true;
        self
    }

    /// Names PDF in words instead of sending it, for a server that takes no `input_file`.
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

    /// Sets a field of the request, in place of the adapter's own; `null` leaves one out.
    #[must_use]
    pub fn with_field(mut self, name: &str, value: &Json) -> Self {
        self.extra.set(name, value);
        self
    }

    /// What the provider takes.
    fn taken<'m>(&self, mark: &'m str) -> Taken<'m> {
        let thoughts_of = self.reasons().then_some(mark);
        Taken { items: true, may_refer: self.is_stored, thoughts_of, files: self.takes }
    }

    /// What every provider takes, whoever made it.
    fn taken_anywhere(&self) -> Taken<'static> {
        Taken { items: false, may_refer: false, thoughts_of: None, files: self.takes }
    }

    /// Whether the model is one that is set up to reason.
    fn reasons(&self) -> bool {
        match self.extra.value("reasoning") {
            Some(reasoning) => !reasoning.is_null(),
            None => {
                let included = self.include.iter().any(|what| **what == *ENCRYPTED);
                self.reasoning.is_some() || included
            }
        }
    }

    fn body(&self, request: &ModelRequest, prompt: Prompt) -> Value {
        let Prompt { input, previous_response_id, .. } = prompt;
        let mut body = serde_json::Map::new();
        body.insert("model".into(), (&*self.model).into());
        if let Some(instructions) = request.instructions.as_deref() {
            body.insert("instructions".into(), instructions.into());
        }
        body.insert("input".into(), input.into());
        if let Some(id) = previous_response_id {
            body.insert("previous_response_id".into(), id.into());
        }
        let functions = request.tools.iter().map(request::tool);
        let tools: Vec<Value> = functions.chain(self.tools.iter().cloned()).collect();
        if !tools.is_empty() {
            body.insert("tools".into(), tools.into());
        }
        let mut include: Vec<&str> = self.include.iter().map(|what| &**what).collect();
        if let Some(effort) = self.reasoning.as_deref() {
            body.insert("reasoning".into(), json!({"effort": effort, "summary": "auto"}));
            if !self.is_stored {
                include.push(ENCRYPTED);
            }
        }
        if !include.is_empty() {
            body.insert("include".into(), include.into());
        }
        body.insert("store".into(), self.is_stored.into());
        body.insert("stream".into(), true.into());
        self.extra.put_into(&mut body);
        let leaves_out = self.extra.value("text").is_some_and(Value::is_null);
        if let Some(output) = request.output.as_ref().filter(|_| !leaves_out) {
            // Beside what the host sets of it, as `verbosity` is.
            let text = body.entry("text").or_insert_with(|| json!({}));
            if let Value::Object(text) = text {
                text.entry("format").or_insert_with(|| named(output));
            }
        }
        body.into()
    }
}

impl Model for Responses {
    fn call(&self, request: ModelRequest) -> ModelStream {
        // Whoever runs the models reads the thoughts of all of them.
        let mark = self.endpoint.mark("");
        let prompt = Prompt::of(&request.messages, self.taken(&mark));
        let reader = EventReader::new(request::approved(&request.messages), self.is_stored, mark);
        let refers = prompt.refers;
        let body = self.body(&request, prompt);
        let otherwise = refers.then(|| -> Otherwise {
            let model = self.clone();
            let body = Box::new(move || {
                let prompt = Prompt::of(&request.messages, model.taken_anywhere());
                model.body(&request, prompt)
            });
            Otherwise { may_help: |error| matches!(error.status(), Some(400 | 404)), body }
        });
        Box::pin(Answer::to(&self.endpoint, &["responses"], body, otherwise, reader))
    }

    fn name(&self) -> Option<&str> {
        Some(&self.model)
    }

    fn provider(&self) -> Option<&str> {
        self.endpoint.provider()
    }
}

fn named(output: &OutputSchema) -> Value {
    let mut format = format(output);
    format["type"] = "json_schema".into();
    format
}

/// What is to be included for the thoughts to be readable again.
const ENCRYPTED: &str = "reasoning.encrypted_content";

/// Of a tool its type only: it may hold what a tool server is shown.
impl fmt::Debug for Responses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools: Vec<_> = self.tools.iter().map(|tool| tool.get("type")).collect();
        f.debug_struct("Responses")
            .field("endpoint", &self.endpoint)
            .field("model", &self.model)
            .field("hosted_tools", &tools)
            .field("extra", &self.extra)
            .finish_non_exhaustive()
    }
}
