//! One tool call, from its announcement to its result, and what announces it.

use serde_json::{Map, Value, json};
use ui_message_stream::chunk::InputEncoding;
use ui_message_stream::event::{Executor, ToolCall};
use ui_message_stream::{Chunk, Json};

use crate::translator_properties::continued::value;
use crate::translator_properties::wildcard;

/// The step of the calls that the continued message holds: none of this run.
pub(crate) const HELD: usize = usize::MAX;

/// A tool call of the message.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// What the agent calls it.
    pub(crate) id: String,
    /// Who runs it. Of a call that the continued message holds it is the server, unless it says that
    /// the provider does, or the agent says that the client does.
    pub(crate) executed_by: Executor,
    /// This run announced it or began to answer it, and so owes it a result.
    pub(crate) owed: bool,
    /// In which step of the run it was announced.
    pub(crate) step: usize,
    pub(crate) state: State,
    /// Another part of the continued message has this id too, and neither has a result.
    pub(crate) is_anyones: bool,
    /// The person's answer, if the continued message brought one.
    pub(crate) answered: Option<bool>,
    /// The fields that do not depend on the state.
    fields: Map<String, Value>,
    /// The input, once it is whole.
    input: Value,
    dynamic: bool,
    /// The part as the continued message held it, until something happens to it.
    untouched: Option<Value>,
}

/// How far a call has come.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    /// Its input so far, and whether it is plain text.
    Streaming(String, InputEncoding),
    /// The input is there.
    Ready,
    /// It waits for a person.
    Waiting,
    /// The person answered, a request ago.
    Answered,
    Preliminary(Value),
    Output(Value),
    /// It failed: with which text.
    Failed(Value),
    Denied,
    /// The input is not what the tool takes: the input as it came, and the error.
    Invalid(Value, Value),
    /// Its input stopped half way, a request ago.
    Abandoned,
    /// The continued message holds it in a state that nobody here knows.
    Foreign,
}

impl Call {
    /// A tool part of the continued message; `None` for other parts.
    pub(crate) fn held(part: &Value) -> Option<Self> {
        let kind = part["type"].as_str()?;
        if kind != "dynamic-tool" && !kind.starts_with("tool-") {
            return None;
        }
        let mut answered = None;
        let state = match part["state"].as_str()? {
            "input-available" => State::Ready,
            "approval-requested" => State::Waiting,
            "approval-responded" => {
                answered = part["approval"]["approved"].as_bool();
                State::Answered
            }
            "output-available" if part["preliminary"] == true => {
                State::Preliminary(part["output"].clone())
            }
            "output-available" => State::Output(part["output"].clone()),
            "output-error" => State::Failed(part["errorText"].clone()),
            "output-denied" => State::Denied,
            "input-streaming" => State::Abandoned,
            _ => State::Foreign,
        };
        let mut fields = part.as_object()?.clone();
        for key in ["state", "input", "output", "errorText", "preliminary"] {
            fields.remove(key);
        }
        Some(Call {
            id: part["toolCallId"].as_str()?.to_owned(),
            executed_by: match part["providerExecuted"] == true {
                true => Executor::Provider,
                false => Executor::Server,
            },
            owed: false,
            step: HELD,
            state,
            is_anyones: false,
            answered,
            fields,
            input: part.get("input").cloned().unwrap_or_default(),
            dynamic: kind == "dynamic-tool",
            untouched: Some(part.clone()),
        })
    }

    /// Whether it has the one result that nothing comes after.
    pub(crate) fn has_result(&self) -> bool {
        matches!(
            self.state,
            State::Output(_) | State::Failed(_) | State::Denied | State::Invalid(..)
        )
    }

    /// Whether its id still means this call when it is announced again.
    pub(crate) fn is_open(&self) -> bool {
        !self.has_result() && !matches!(self.state, State::Abandoned | State::Foreign)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.step == HELD
    }

    /// Whether the person said no, and has not been asked again.
    pub(crate) fn is_refused(&self) -> bool {
        self.state == State::Answered && self.answered == Some(false)
    }

    /// Whether it waits for the person or the client.
    pub(crate) fn waits_for_somebody(&self) -> bool {
        match self.state {
            State::Waiting => true,
            State::Ready => self.executed_by == Executor::Client,
            _ => false,
        }
    }

    pub(crate) fn becomes(&mut self, state: State) {
        // Of an input that stopped half way, clients of one age keep the text and others do not.
        if let Some(raw_input) = self.fields.get_mut("rawInput") {
            *raw_input = wildcard::anything();
        }
        self.state = state;
        self.untouched = None;
    }

    pub(crate) fn waits_for(&mut self, approval_id: &str) {
        self.fields.insert("approval".into(), json!({ "id": approval_id }));
        self.becomes(State::Waiting);
    }

    pub(crate) fn approval_id(&self) -> &str {
        self.fields["approval"]["id"].as_str().unwrap_or_default()
    }

    pub(crate) fn has_input(&mut self, input: Value) {
        self.input = input;
        self.becomes(State::Ready);
    }

    /// What the streamed text amounts to, if that is an input. Of plain text nobody knows whether
    /// it is whole.
    pub(crate) fn whole_input(&self) -> Option<Value> {
        match &self.state {
            State::Streaming(text, InputEncoding::Json) => {
                Json::parse(text).ok().map(|json| value(&json))
            }
            _ => None,
        }
    }

    /// The text that streamed so far is all there will be.
    pub(crate) fn input_breaks_off(&mut self, error: Value) {
        if let State::Streaming(text, _) = &self.state {
            let text = text.as_str().into();
            self.becomes(State::Invalid(text, error));
        }
    }

    /// A second announcement may say another title; which one counts is not said anywhere.
    pub(crate) fn is_also_called(&mut self, title: Option<&Value>) {
        if let Some(title) = title
            && self.fields.get("title") != Some(title)
        {
            self.fields.insert("title".into(), wildcard::anything());
        }
    }

    /// The run ends. What nobody else can bring to its end does not stay open.
    pub(crate) fn settle_what_is_owed(&mut self, cut_short: bool, goes_on: bool, approvals: bool) {
        let is_provider_executed = self.executed_by == Executor::Provider && !self.is_refused();
        let owed = match &self.state {
            State::Answered if is_provider_executed => !goes_on,
            // The client sends an answer again until it is settled.
            State::Answered => true,
            State::Ready | State::Preliminary(_) => {
                self.owed
                    && match self.executed_by {
                        Executor::Server => true,
                        Executor::Provider => cut_short,
                        _ => false,
                    }
            }
            _ => false,
        };
        if owed {
            let denied = self.is_refused() && approvals;
            self.becomes(if denied { State::Denied } else { State::Failed(wildcard::some_text()) });
        }
    }

    /// The part, with wildcards.
    pub(crate) fn rendered(&self) -> Value {
        if self.is_anyones {
            return wildcard::twin(&Value::Object(self.fields.clone()));
        }
        if let Some(part) = &self.untouched {
            return wildcard::untouched(part);
        }
        let mut part = self.fields.clone();
        let mut set = |key: &str, value: &Value| _ = part.insert(key.into(), value.clone());
        set("input", &self.input);
        let state = match &self.state {
            State::Streaming(..) => "input-streaming",
            State::Ready => "input-available",
            State::Waiting => "approval-requested",
            State::Answered => "approval-responded",
            State::Preliminary(output) => {
                set("output", output);
                set("preliminary", &true.into());
                "output-available"
            }
            State::Output(output) => {
                set("output", output);
                "output-available"
            }
            State::Failed(error) => {
                set("errorText", error);
                "output-error"
            }
            State::Denied => "output-denied",
            State::Invalid(input, error) => {
                set("input", &Value::Null);
                set(if self.dynamic { "input" } else { "rawInput" }, input);
                set("errorText", error);
                "output-error"
            }
            State::Abandoned | State::Foreign => unreachable!("{self:?} was touched"),
        };
        set("state", &state.into());
        Value::Object(part)
    }
}

/// A call as an event or a chunk announces it.
#[derive(Debug)]
pub(crate) struct Announced {
    pub(crate) id: String,
    pub(crate) with: With,
    tool_name: String,
    dynamic: bool,
    executed_by: Executor,
    title: Option<Value>,
    metadata: Option<Value>,
}

/// What is known of the input when the call is announced.
#[derive(Debug)]
pub(crate) enum With {
    /// It streams in from here on.
    Start(InputEncoding),
    Input(Value),
    /// It is not what the tool takes: the input and the error.
    Invalid(Value, String),
}

impl Announced {
    pub(crate) fn of(call: &ToolCall) -> Self {
        Announced {
            id: call.id.as_str().to_owned(),
            with: With::Start(InputEncoding::Json),
            tool_name: call.tool_name.to_string(),
            dynamic: call.dynamic,
            executed_by: call.executed_by,
            title: call.title.as_deref().map(Value::from),
            metadata: call.provider_metadata.as_ref().map(|metadata| value(metadata.as_json())),
        }
    }

    pub(crate) fn with_input(mut self, input: Value) -> Self {
        self.with = With::Input(input);
        self
    }

    pub(crate) fn with_invalid(mut self, input: Value, error: &str) -> Self {
        self.with = With::Invalid(input, error.to_owned());
        self
    }

    /// A chunk does not say that the server runs a tool, so the client does.
    pub(crate) fn of_chunk(chunk: &Chunk<'_>) -> Option<Self> {
        // The three kinds share their fields, and the names of them are the wire's own.
        let chunk_json = serde_json::to_value(chunk).ok()?;
        let input = chunk_json.get("input").cloned().unwrap_or_default();
        let with = match chunk {
            Chunk::ToolInputStart { input_encoding, .. } => {
                With::Start(input_encoding.unwrap_or(InputEncoding::Json))
            }
            Chunk::ToolInputAvailable { .. } => With::Input(input),
            Chunk::ToolInputError { error_text, .. } => {
                With::Invalid(input, error_text.clone().into_owned())
            }
            _ => return None,
        };
        Some(Announced {
            id: chunk_json["toolCallId"].as_str()?.to_owned(),
            with,
            tool_name: chunk_json["toolName"].as_str()?.to_owned(),
            dynamic: chunk_json["dynamic"] == true,
            executed_by: match chunk_json["providerExecuted"] == true {
                true => Executor::Provider,
                false => Executor::Client,
            },
            title: chunk_json.get("title").cloned(),
            metadata: chunk_json.get("providerMetadata").cloned(),
        })
    }

    pub(crate) fn title(&self) -> Option<&Value> {
        self.title.as_ref()
    }

    /// What it says of who runs the tool, which the first word on a call may not have said yet.
    pub(crate) fn executor(&self) -> Executor {
        self.executed_by
    }

    /// The call that begins here.
    pub(crate) fn into_call(self) -> Call {
        let mut fields = Map::new();
        let mut set = |key: &str, value: Value| _ = fields.insert(key.into(), value);
        if self.dynamic {
            set("type", "dynamic-tool".into());
            set("toolName", self.tool_name.into());
        } else {
            set("type", format!("tool-{}", self.tool_name).into());
        }
        set("toolCallId", wildcard::call_id(&self.id));
        set("providerExecuted", (self.executed_by == Executor::Provider).into());
        match (&self.with, self.title) {
            // The client passes over the title of a call whose input is an error.
            (With::Invalid(..), _) => set("title", wildcard::anything()),
            (_, Some(title)) => set("title", title),
            (_, None) => {}
        }
        if let (With::Input(_), Some(metadata)) = (&self.with, self.metadata) {
            set("callProviderMetadata", metadata);
        }
        let (state, input) = match self.with {
            With::Start(encoding) => (State::Streaming(String::new(), encoding), Value::Null),
            With::Input(input) => (State::Ready, input),
            With::Invalid(input, error) => (State::Invalid(input, error.into()), Value::Null),
        };
        Call {
            id: self.id,
            executed_by: self.executed_by,
            owed: true,
            step: 0,
            state,
            is_anyones: false,
            answered: None,
            fields,
            input,
            dynamic: self.dynamic,
            untouched: None,
        }
    }
}
