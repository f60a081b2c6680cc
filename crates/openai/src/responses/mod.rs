//! [`Responses`]: models behind `POST …/responses`.

mod provider_tools;
mod provider_state;
mod previous_response;
mod items;
mod last_item;
mod request;
mod stream;

use std::fmt;

use serde_json::{Value, json};

use self::request::{Fingerprints, Prompt, PromptOptions, ReadableReasoning};
use self::stream::EventReader;
use crate::endpoint::Endpoint;
use crate::error::ProviderError;
use crate::files::{SupportedFiles, file_settings};
use crate::request_forms::{FirstForm, Form, RequestForms};
use crate::request_overrides::RequestOverrides;
use crate::response_stream::{ReadEvent, ResponseStream};
use crate::strict_schema::output_format;
use ui_message_stream::json::Json;
use ui_message_stream::model::{Model, ModelMessage, ModelRequest, ModelStream, OutputSchema};

/// A model behind `POST …/responses`. This API preserves reasoning between calls, and the model can
/// use tools that the provider executes.
///
/// Tools that the provider executes appear as tool calls with results: `web_search`, `file_search`,
/// `code_interpreter`, `image_generation`, and `mcp.<server>.<tool>` for a tool of an MCP server.
/// If the provider requests approval before it executes a tool, the user is asked, and the approval
/// response is sent to the provider with the reason. The result of the execution then appears as
/// the output of the approved call.
///
/// Accepted files are images (PNG, JPEG, GIF, WebP), PDF, and the text of `text/*` and
/// `application/json` with its data in the message. A sentence replaces every other file.
///
/// Structured output is requested with `text.format`. If the field `text` is set to `null` it is
/// not requested, for servers that reject it; the response is still validated against the schema.
///
/// The provider stores no responses unless [`with_stored_responses`](Self::with_stored_responses)
/// is set. The state that the provider needs back is stored as provider metadata in the messages,
/// and is sent to the endpoint that produced it. If the provider rejects the request (status 400 or
/// 404), it is sent again, at most twice, with the calls that the provider executed as calls that were
/// executed elsewhere:
///
/// - With the encrypted reasoning and without its id, if the error names an id of the request. Some
///   servers look for each id in what they have stored, also if nothing is stored. Unless responses
///   are stored, the later requests of this model and its clones have this form from the start.
/// - Without reasoning after any other error, and if the provider rejects the form without ids.
#[derive(Clone)]
pub struct Responses {
    endpoint: Endpoint,
    model: Box<str>,
    tools: Vec<Value>,
    include: Vec<Box<str>>,
    reasoning: Option<Box<str>>,
    is_stored: bool,
    supported_files: SupportedFiles,
    extra: RequestOverrides,
    first_form: FirstForm,
}

impl Responses {
    /// Creates an adapter for this model at this endpoint.
    pub fn new(endpoint: Endpoint, model: impl Into<Box<str>>) -> Self {
        Responses {
            endpoint,
            model: model.into(),
            tools: Vec::new(),
            include: Vec::new(),
            reasoning: None,
            is_stored: false,
            supported_files: SupportedFiles::ALL,
            extra: RequestOverrides::default(),
            first_form: FirstForm::default(),
        }
    }

    /// Sets the reasoning effort of a reasoning model (`low`, `medium`, `high`). Also requests a
    /// reasoning summary, which the user can read, and the encrypted reasoning, which is sent back
    /// with every call.
    ///
    /// Models without reasoning reject the setting. Without the setting, a model gets only the
    /// encrypted reasoning back that it sent itself at the same endpoint; other reasoning in the
    /// conversation is left out of requests.
    #[must_use]
    pub fn with_reasoning(mut self, effort: &str) -> Self {
        self.reasoning = Some(effort.into());
        self
    }

    /// Adds a tool that the provider executes. The tool's own fields define which calls need no
    /// approval.
    ///
    /// ```
    /// # use serde_json::json;
    /// # use ui_message_stream::Json;
    /// # use ui_message_stream_openai::{Endpoint, Responses};
    /// # let endpoint = Endpoint::openai("sk-test")?;
    /// let model = Responses::new(endpoint, "gpt-5-mini")
    ///     .with_hosted_tool(&Json::from_serialize(&json!({"type": "web_search"}))?)
    ///     .with_hosted_tool(&Json::from_serialize(&json!({
    ///         "type": "mcp", "server_label": "links", "server_url": "https://links.example/mcp",
    ///         "require_approval": "always",
    ///     }))?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_hosted_tool(mut self, tool: &Json) -> Self {
        // A `Json` always contains valid JSON.
        let tool: Value = tool.decode().unwrap_or_default();
        let text = |field: &str| tool.get(field).and_then(Value::as_str);
        text("authorization").into_iter().for_each(|token| self.endpoint.add_header_secrets(token));
        text("server_url").into_iter().for_each(|address| self.endpoint.add_url_secrets(address));
        let headers = tool.get("headers").and_then(Value::as_object).into_iter().flatten();
        for header in headers.filter_map(|(_, value)| value.as_str()) {
            self.endpoint.add_header_secrets(header);
        }
        self.tools.push(tool);
        self
    }

    /// Requests additional data in the response, such as `web_search_call.action.sources`.
    #[must_use]
    pub fn with_include(mut self, what: &str) -> Self {
        self.include.push(what.into());
        self
    }

    /// Lets the provider store the responses. Each request then refers to the last completed
    /// response by `previous_response_id` and sends only what follows it.
    ///
    /// The provider deletes stored responses after some weeks. If it rejects a request (status 400
    /// or 404), the request is sent again, at most twice, with the whole conversation.
    #[must_use]
    pub fn with_stored_responses(mut self) -> Self {
        self.is_stored = true;
        self
    }

    file_settings!();

    /// Sets a field of the request, which replaces the adapter's own value. `null` removes the
    /// field.
    #[must_use]
    pub fn with_field(mut self, name: &str, value: &Json) -> Self {
        self.extra.set(name, value);
        self
    }

    /// Whether the model is configured to reason.
    fn has_reasoning(&self) -> bool {
        match self.extra.value("reasoning") {
            Some(reasoning) => !reasoning.is_null(),
            None => {
                let included = self.include.iter().any(|what| **what == *ENCRYPTED_REASONING);
                self.reasoning.is_some() || included
            }
        }
    }

    fn fingerprints(&self) -> Fingerprints {
        Fingerprints {
            endpoint: self.endpoint.model_fingerprint(""),
            model: self.endpoint.model_fingerprint(&self.model),
        }
    }

    /// Returns a reader of the response to these messages.
    pub(crate) fn reader(&self, messages: &[ModelMessage]) -> impl ReadEvent + use<> {
        let approved = request::approved_calls(messages);
        let is_stored = self.is_stored;
        // Stored reasoning needs no other state than its id.
        let awaits_state = self.has_reasoning() && !is_stored;
        EventReader::new(approved, is_stored, awaits_state, self.fingerprints())
    }

    /// Returns the body of a form of a request: the whole one, or one of `FORMS`.
    fn body(&self, request: &ModelRequest, form: usize) -> Value {
        let reader = &self.fingerprints();
        let is_configured = self.has_reasoning();
        let options = PromptOptions {
            has_provider_items: form == 0,
            can_refer: form == 0 && self.is_stored,
            reasoning: (form <= WITHOUT_IDS).then_some(ReadableReasoning { reader, is_configured }),
            files: self.supported_files,
        };
        let Prompt { input, previous_response_id } = Prompt::new(&request.messages, options);
        let mut body = serde_json::Map::new();
        body.insert("model".into(), (&*self.model).into());
        if let Some(instructions) = request.instructions.as_deref() {
            body.insert("instructions".into(), instructions.into());
        }
        body.insert("input".into(), input.into());
        if let Some(id) = previous_response_id {
            body.insert("previous_response_id".into(), id.into());
        }
        let functions = request.tools.iter().filter_map(request::tool);
        let tools: Vec<Value> = functions.chain(self.tools.iter().cloned()).collect();
        if !tools.is_empty() {
            body.insert("tools".into(), tools.into());
        }
        let mut include: Vec<&str> = self.include.iter().map(|what| &**what).collect();
        if let Some(effort) = self.reasoning.as_deref() {
            body.insert("reasoning".into(), json!({"effort": effort, "summary": "auto"}));
            if !self.is_stored {
                include.push(ENCRYPTED_REASONING);
            }
        }
        if !include.is_empty() {
            body.insert("include".into(), include.into());
        }
        body.insert("store".into(), self.is_stored.into());
        body.insert("stream".into(), true.into());
        self.extra.apply_to(&mut body);
        let is_text_removed = self.extra.value("text").is_some_and(Value::is_null);
        if let Some(output) = request.output.as_ref().filter(|_| !is_text_removed) {
            // Keeps the other fields of `text` that the host sets, such as `verbosity`.
            let text = body.entry("text").or_insert_with(|| json!({}));
            if let Value::Object(text) = text {
                text.entry("format").or_insert_with(|| text_format(output));
            }
        }
        body.into()
    }
}

impl Model for Responses {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let model = self.clone();
        let reader = self.reader(&request.messages);
        let forms = RequestForms {
            path: &["responses"],
            others: FORMS,
            // What is stored, and no longer found, differs between conversations.
            first: if self.is_stored { FirstForm::default() } else { self.first_form.clone() },
            body: Box::new(move |form| model.body(&request, form)),
        };
        Box::pin(ResponseStream::new(&self.endpoint, forms, reader))
    }

    fn name(&self) -> Option<&str> {
        Some(&self.model)
    }

    fn provider(&self) -> Option<&str> {
        self.endpoint.provider()
    }
}

fn text_format(output: &OutputSchema) -> Value {
    let mut format = output_format(output);
    format["type"] = "json_schema".into();
    format
}

/// The forms of a request that follow the whole one.
const FORMS: &[Form] = &[
    Form {
        left_out: "the ids of the provider's items",
        can_help: names_an_id,
        is_remembered: true,
    },
    // The key of the reasoning may be an old one. Other conversations may have reasoning of the current key.
    Form {
        left_out: "reasoning, and the ids of the provider's items",
        can_help: |error, _| is_rejection(error),
        is_remembered: false,
    },
];

/// The number of the form that has reasoning without its ids.
const WITHOUT_IDS: usize = 1;

fn is_rejection(error: &ProviderError) -> bool {
    matches!(error.status(), Some(400 | 404))
}

/// Whether the error is about an id of the request: it names the id or its place, as `input[3].id` does.
fn names_an_id(error: &ProviderError, body: &Value) -> bool {
    let items = body["input"].as_array().into_iter().flatten();
    let ids = items.map(|item| &item["id"]).chain([&body["previous_response_id"]]);
    // A short id, such as `1` or `msg`, is also a part of other texts.
    let is_named = |id: &str| match id.len() {
        0 => false,
        1..8 => error.mentions(&format!("'{id}'")) || error.mentions(&format!("\"{id}\\\"")),
        _ => error.mentions(id),
    };
    let mut ids = ids.filter_map(Value::as_str);
    is_rejection(error) && (error.mentions("].id") || ids.any(is_named))
}

/// The value of `include` that requests the encrypted reasoning.
const ENCRYPTED_REASONING: &str = "reasoning.encrypted_content";

/// Shows only the type of each tool, because a tool may contain credentials for an MCP server.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_an_id_only_if_the_id_is_quoted_or_long() {
        for (id, error, is_named) in [
            ("1", r#"{"message":"at most 128 tools"}"#, false),
            ("msg", r#"{"message":"invalid msg"}"#, false),
            ("msg", r#"{"message":"item 'msg' not found"}"#, true),
            ("msg", r#"{"message":"item \"msg\" not found"}"#, true),
            ("rs_12345", r#"{"message":"no item rs_12345"}"#, true),
            ("", r#"{"message":"item '' not found"}"#, false),
        ] {
            let error = ProviderError::from_status(400, error.to_owned());
            let body = json!({"input": [{"id": id}]});
            assert_eq!(names_an_id(&error, &body), is_named, "{id}: {error}");
        }
    }
}
