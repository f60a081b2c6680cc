//! One tool call, from its announcement to its result, and what announces it.

use serde_json::{Map, Value};
use ui_message_stream::chunk::InputEncoding;
use ui_message_stream::event::{Executor, ToolCall};
use ui_message_stream::{Chunk, Json};

use crate::translator_properties::compare::FIRST_TYPE;
use crate::translator_properties::continued::value;
use crate::translator_properties::wildcard;

/// The step number of the calls in the continued message, which belong to no step of this run.
pub(crate) const HELD: usize = usize::MAX;

/// The step number of the calls that a repeated step has removed.
pub(crate) const REMOVED: usize = usize::MAX - 1;

/// A tool call of the message.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The agent's id of the call.
    pub(crate) id: String,
    /// The executor. For a call of the continued message it is the server, unless the part says the
    /// provider or the agent says the client.
    pub(crate) executed_by: Executor,
    /// Whether this run announced the call or started to answer it, and therefore owes a result.
    pub(crate) owed: bool,
    /// The step of the run in which it was announced.
    pub(crate) step: usize,
    pub(crate) state: State,
    /// Whether another part of the continued message has this id too, and neither has a result.
    pub(crate) is_anyones: bool,
    /// The user's decision, if the continued message holds one.
    pub(crate) answered: Option<bool>,
    /// The fields that do not depend on the state.
    fields: Map<String, Value>,
    /// The input, once it is complete.
    input: Value,
    dynamic: bool,
    /// The client knows the decision.
    shows_answer: bool,
    /// The part of the continued message, until an event changes it.
    untouched: Option<Value>,
}

/// The state of a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum State {
    /// The input so far, and whether it is plain text.
    Streaming(String, InputEncoding),
    /// The input is complete.
    Ready,
    /// It awaits approval.
    Waiting,
    /// The user decided, in an earlier request or elsewhere.
    Answered,
    Preliminary(Value),
    Output(Value),
    /// It failed with this text.
    Failed(Value),
    Denied,
    /// The input is invalid: the input as it arrived, and the error.
    Invalid(Value, Value),
    /// Its input was cut off in an earlier request.
    Abandoned,
    /// The continued message holds it in an unknown state.
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
            shows_answer: true,
            untouched: Some(part.clone()),
        })
    }

    /// Whether it has its final result.
    pub(crate) fn has_result(&self) -> bool {
        matches!(
            self.state,
            State::Output(_) | State::Failed(_) | State::Denied | State::Invalid(..)
        )
    }

    /// Whether its id still names this call when it is announced again.
    pub(crate) fn is_open(&self) -> bool {
        !self.has_result() && !matches!(self.state, State::Abandoned | State::Foreign)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.step == HELD
    }

    /// Whether the user denied it, and no new approval was requested.
    pub(crate) fn is_refused(&self) -> bool {
        self.state == State::Answered && self.answered == Some(false)
    }

    /// Whether it waits for the user or the client.
    pub(crate) fn is_waiting(&self) -> bool {
        match self.state {
            State::Waiting => true,
            State::Ready => self.executed_by == Executor::Client,
            _ => false,
        }
    }

    pub(crate) fn becomes(&mut self, state: State) {
        // For a cut-off input, some client versions keep the text and others do not.
        if let Some(raw_input) = self.fields.get_mut("rawInput") {
            *raw_input = wildcard::anything();
        }
        self.state = state;
        self.untouched = None;
    }

    pub(crate) fn waits_for(&mut self, approval: Value) {
        self.fields.insert("approval".into(), approval);
        self.becomes(State::Waiting);
    }

    /// The decision arrives. Without the chunk for it the client still shows the request.
    pub(crate) fn is_answered(&mut self, approved: bool, reason: Option<&str>, is_shown: bool) {
        if self.state != State::Waiting {
            return;
        }
        if is_shown {
            let approval = &mut self.fields["approval"];
            approval["approved"] = approved.into();
            if let Some(reason) = reason {
                approval["reason"] = reason.into();
            }
            self.becomes(State::Answered);
        }
        (self.state, self.answered, self.shows_answer) =
            (State::Answered, Some(approved), is_shown);
    }

    /// The client has removed the step of this call.
    pub(crate) fn is_removed(&mut self) {
        self.step = REMOVED;
        self.state = State::Foreign;
    }

    /// A client executes a call when it reads the whole input, so before its approval it has only the text of
    /// it. Some versions keep the text.
    pub(crate) fn may_keep_text_of_input(&mut self) {
        if self.executed_by == Executor::Client {
            self.fields.insert("rawInput".into(), wildcard::anything());
        }
    }

    pub(crate) fn has_approval(&self, id: &str) -> bool {
        self.fields.get("approval").is_some_and(|approval| approval["id"] == id)
    }

    pub(crate) fn approval_id(&self) -> &str {
        self.fields["approval"]["id"].as_str().unwrap_or_default()
    }

    pub(crate) fn has_input(&mut self, input: Value) {
        self.input = input;
        self.becomes(State::Ready);
    }

    /// The input that the streamed text holds, if it is complete. For plain text that is unknown.
    pub(crate) fn whole_input(&self) -> Option<Value> {
        match &self.state {
            State::Streaming(text, InputEncoding::Json) => {
                Json::parse(text).ok().map(|json| value(&json))
            }
            _ => None,
        }
    }

    /// Ends the input with the text that has streamed so far.
    pub(crate) fn input_breaks_off(&mut self, error: Value) {
        if let State::Streaming(text, _) = &self.state {
            let text = text.as_str().into();
            self.becomes(State::Invalid(text, error));
        }
    }

    /// A second announcement may name the executor, and give another name or title to the tool. Old
    /// clients show the first name of a static tool. It is not specified which title counts.
    pub(crate) fn is_announced_again(&mut self, announced: &Announced) {
        if let Some(title) = &announced.title
            && self.fields.get("title") != Some(title)
            && matches!(announced.with, With::Input(_))
        {
            self.fields.insert("title".into(), wildcard::anything());
        }
        let name = &*announced.tool_name;
        if self.dynamic {
            self.fields.insert("toolName".into(), name.into());
        } else if let Some(first) = self.fields.insert("type".into(), format!("tool-{name}").into())
        {
            self.fields.insert(FIRST_TYPE.into(), first);
        }
        match (self.executed_by, announced.executed_by) {
            (_, Executor::Provider) => self.is_executed_by_provider(),
            (Executor::Server, Executor::Client) => self.executed_by = Executor::Client,
            _ => {}
        }
    }

    pub(crate) fn is_executed_by_provider(&mut self) {
        self.executed_by = Executor::Provider;
        self.fields.insert("providerExecuted".into(), true.into());
    }

    /// Ends the run. A call that neither the user nor the client can end does not stay open.
    pub(crate) fn settle_owed_result(&mut self, cut_short: bool, goes_on: bool, approvals: bool) {
        let is_provider_executed = self.executed_by == Executor::Provider && !self.is_refused();
        let owed = match &self.state {
            State::Answered if is_provider_executed => !goes_on,
            // The client sends a decision again until it is settled.
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
            State::Answered if !self.shows_answer => "approval-requested",
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

/// A call as it is announced by an event or a chunk.
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

/// The input, as far as it is known when the call is announced.
#[derive(Debug)]
pub(crate) enum With {
    /// It will be streamed.
    Start(InputEncoding),
    Input(Value),
    /// It is invalid: the input and the error.
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

    /// A chunk cannot say that the server executes a tool, so the client does.
    pub(crate) fn of_chunk(chunk: &Chunk<'_>) -> Option<Self> {
        // The three kinds of chunks share their fields, under the names of the wire format.
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

    /// The executor, which the first chunk of a call may not have given yet.
    pub(crate) fn executor(&self) -> Executor {
        self.executed_by
    }

    /// The new call.
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
            // The client ignores the title of a call whose input is an error.
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
            shows_answer: true,
            untouched: None,
        }
    }
}
