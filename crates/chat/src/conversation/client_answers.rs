//! [`ClientAnswers`]: the request body of a client that keeps no messages. It holds the outputs of
//! the tools that the client executes and the decisions of the user.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use ui_message_stream::approval::{ApprovalDecision, ClientToolResult, UnverifiedToolOutput};
use ui_message_stream::id::{ApprovalId, ToolCallId};
use ui_message_stream::json::{ExtraFields, FieldError, Json, Object, each_field, json_or_null};
use ui_message_stream::request::{Limits, ParseRequestError};

/// Answers to the open calls of the last message of a conversation.
///
/// A browser sends its messages, which contain the answers. A client that knows only the ids of
/// calls and approvals sends `ClientAnswers`. [`Chat::request_from_answers`](super::Chat::request_from_answers) converts
/// them to the request that a browser would send.
///
/// An output is `{"toolCallId", "output"}`, or `{"toolCallId", "output", "status": "error"}` where
/// `output` is the text of the error. A decision is
/// `{"approvalId", "approved", "reason"?, "input"?}`. For
/// compatibility with clients of other servers, `tool_outputs` and `tool_returns` are read as
/// `toolOutputs`, `tool_call_id` as `toolCallId`, and `tool_return` as `output`. All other fields
/// of the body are the application's own, as in a [`ChatRequest`](ui_message_stream::ChatRequest).
/// A body that is one output, or a list of outputs, is read, too.
///
/// ```
/// use ui_message_stream_chat::ClientAnswers;
/// use ui_message_stream::request::Limits;
///
/// let body = br#"{
///     "toolOutputs": [
///         {"tool_call_id": "call_1", "tool_return": {"city": "Berlin"}, "status": "success"}
///     ],
///     "decisions": [{"approvalId": "ap_1", "approved": false, "reason": "not now"}]
/// }"#;
/// let answers = ClientAnswers::parse(body, &Limits::default())?;
/// assert_eq!(answers.tool_outputs[0].tool_call_id.as_str(), "call_1");
/// assert!(!answers.decisions[0].approved);
///
/// let body = br#"{"toolOutputs": [{"toolCallId": "call_1"}]}"#;
/// let error = ClientAnswers::parse(body, &Limits::default()).unwrap_err();
/// assert_eq!(error.to_string(), "toolOutputs[0].output: missing");
/// # Ok::<(), ui_message_stream::request::ParseRequestError>(())
/// ```
#[derive(Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct ClientAnswers {
    /// The outputs of the calls that the client executed.
    pub tool_outputs: Vec<UnverifiedToolOutput>,
    /// The decisions of the user on approval requests.
    pub decisions: Vec<ApprovalDecision>,
    /// The application's own fields.
    pub custom: ExtraFields,
}

debug_without_content!(ClientAnswers { ; tool_outputs, decisions });

impl ClientAnswers {
    /// Parses the body of a POST request.
    ///
    /// # Errors
    /// - [`ParseRequestError::TooLong`], [`TooDeep`](ParseRequestError::TooDeep),
    ///   [`TooManyNodes`](ParseRequestError::TooManyNodes) and
    ///   [`TooManyAnswers`](ParseRequestError::TooManyAnswers) name the limit that the body
    ///   exceeds.
    /// - [`ParseRequestError::NotUtf8`] and [`ParseRequestError::NotJson`] name the place where the
    ///   body stops being UTF-8 or JSON.
    /// - [`ParseRequestError::Field`] names the field that has the wrong shape or appears twice,
    ///   the call whose output is missing or appears twice, or the decision that contradicts
    ///   another one.
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, ParseRequestError> {
        let ReceivedBody { outputs, decisions, custom } =
            ReceivedBody::parse(limits.text(body)?, limits)?;
        limits.check_answer_count(outputs.len() + decisions.len())?;
        let mut seen = HashSet::new();
        let mut tool_outputs: Vec<UnverifiedToolOutput> = Vec::new();
        for (path, body) in outputs {
            let output = body.into_output().map_err(|error| error.within(&path))?;
            limits
                .check_id("toolCallId", &output.tool_call_id)
                .map_err(|error| error.within(&path))?;
            if !seen.insert(output.tool_call_id.clone()) {
                let duplicate = FieldError::new("toolCallId", "has an output already");
                return Err(duplicate.within(&path).into());
            }
            tool_outputs.push(output);
        }
        check_decisions(&decisions, limits)?;
        let mut decided: HashMap<&ApprovalId, bool> = HashMap::new();
        for (at, decision) in decisions.iter().enumerate() {
            let first = decided.entry(&decision.approval_id).or_insert(decision.approved);
            if *first != decision.approved {
                let contradiction = FieldError::new("approved", CONTRADICTS);
                return Err(contradiction.within(&decision_path(at)).into());
            }
        }
        Ok(ClientAnswers { tool_outputs, decisions, custom })
    }
}

impl ClientAnswers {
    /// Returns the inputs that the user has changed, by the ids of their approval requests.
    pub(super) fn changed_inputs(&self) -> HashMap<ApprovalId, Json> {
        let changed = self
            .decisions
            .iter()
            .filter_map(|decision| Some((decision.approval_id.clone(), decision.input.clone()?)));
        changed.collect()
    }
}

/// Checks the lengths of the texts of decisions, and that a denial has no input.
pub(crate) fn check_decisions(
    decisions: &[ApprovalDecision],
    limits: &Limits,
) -> Result<(), FieldError> {
    let mut inputs: HashMap<&ApprovalId, Option<&Json>> = HashMap::new();
    for (at, decision) in decisions.iter().enumerate() {
        let ApprovalDecision { approval_id, approved, reason, input } = decision;
        let first = *inputs.entry(approval_id).or_insert(input.as_ref());
        let checked = match input {
            Some(_) if !approved => Err(FieldError::new("input", INPUT_OF_DENIAL)),
            input if *approved && first != input.as_ref() => {
                Err(FieldError::new("input", CONTRADICTS))
            }
            _ => limits.check_decision(approval_id, reason.as_deref()),
        };
        checked.map_err(|error| error.within(&decision_path(at)))?;
    }
    Ok(())
}

/// Returns the path of a decision in the body, for error messages.
fn decision_path(at: usize) -> String {
    format!("decisions[{at}]")
}

/// Returns the path of an output in the body, for error messages.
pub(super) fn output_path(at: usize) -> String {
    format!("toolOutputs[{at}]")
}

/// A body, whose texts are not checked.
#[derive(Default)]
struct ReceivedBody {
    /// Each with its path in the body, for error messages.
    outputs: Vec<(String, ToolOutputBody)>,
    decisions: Vec<ApprovalDecision>,
    custom: ExtraFields,
}

impl ReceivedBody {
    fn parse(text: &str, limits: &Limits) -> Result<Self, ParseRequestError> {
        if text.trim_start().starts_with('[') {
            let outputs = with_paths("", parse_answers(text, "")?);
            return Ok(ReceivedBody { outputs, ..Self::default() });
        }
        let mut object = Object::default();
        let mut result = Ok(());
        let mut nodes = 0_usize;
        let mut has_lists = false;
        let mut is_output = false;
        let mut first = None;
        let add = |key: &str, value| {
            nodes += 1;
            if nodes <= limits.max_nodes() && result.is_ok() {
                has_lists |= FIELD_NAMES.contains(&key);
                is_output |= matches!(key, "toolCallId" | "tool_call_id");
                first.get_or_insert_with(|| key.to_owned());
                result = object.add(key, value, &FIELD_NAMES);
            }
        };
        each_field(text, add).map_err(ParseRequestError::NotJson)?;
        if nodes > limits.max_nodes() {
            return Err(ParseRequestError::TooManyNodes { limit: limits.max_nodes() });
        }
        result?;
        match first.filter(|_| !has_lists) {
            Some(_) if is_output => {
                let one: ToolOutputBody = parse_answers(text, "")?;
                return Ok(ReceivedBody { outputs: vec![(String::new(), one)], ..Self::default() });
            }
            Some(unknown) => return Err(unknown_field(&unknown).into()),
            None => {}
        }
        let mut body = Self::default();
        for name in FIELD_NAMES {
            let Some(list) = object.take(name).map(RawValue::get).filter(|list| *list != "null")
            else {
                continue;
            };
            match name {
                DECISIONS => body.decisions = parse_answers(list, name)?,
                _ => body.outputs.extend(with_paths(name, parse_answers(list, name)?)),
            }
        }
        body.custom = object.into_extra()?;
        match body.custom.get(APPROVAL_INPUTS) {
            Some(_) => Err(FieldError::new(APPROVAL_INPUTS, INPUT_OF_DECISION).into()),
            None => Ok(body),
        }
    }
}

/// Returns the outputs of a list with this name, each with its path.
fn with_paths(name: &str, outputs: Vec<ToolOutputBody>) -> Vec<(String, ToolOutputBody)> {
    let outputs = outputs.into_iter().enumerate();
    outputs.map(|(at, output)| (format!("{name}[{at}]"), output)).collect()
}

/// Parses answers. `name` is that of the field, empty for the whole body.
fn parse_answers<T: DeserializeOwned>(
    text: &str,
    name: &'static str,
) -> Result<T, ParseRequestError> {
    serde_json::from_str(text).map_err(|error| {
        if error.is_data() {
            FieldError::new(name, EXPECTED_LISTS).into()
        } else {
            ParseRequestError::NotJson(error)
        }
    })
}

/// The error of a body without answers, whose first field is this one.
fn unknown_field(name: &str) -> FieldError {
    let is_name = |char: char| char.is_ascii_alphanumeric() || "_-".contains(char);
    let name = if name.len() <= MAX_SHOWN_NAME && name.chars().all(is_name) {
        format!("unknown field `{name}`")
    } else {
        "unknown fields".to_owned()
    };
    FieldError::new("", format!("{name}; expected `decisions`, `toolOutputs` or `tool_call_id`"))
}

/// The name of the decisions, and the names of the outputs: our own and those of other servers.
const FIELD_NAMES: [&str; 4] = [DECISIONS, "toolOutputs", "tool_outputs", "tool_returns"];

const DECISIONS: &str = "decisions";

/// The longest name of a field in an error, in bytes.
const MAX_SHOWN_NAME: usize = 64;

const EXPECTED_LISTS: &str = "expected a list of `{\"toolCallId\", \"output\", \"status\"?}`, \
                              of decisions one of `{\"approvalId\", \"approved\", \"reason\"?, \
                              \"input\"?}`";

/// The field of `useChat` for changed inputs.
const APPROVAL_INPUTS: &str = "approvalInputs";

const INPUT_OF_DECISION: &str = "expected the `input` of a decision in its place";

const INPUT_OF_DENIAL: &str = "a denied call does not run: leave `input` out";

const CONTRADICTS: &str = "contradicts another answer to the same approval";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolOutputBody {
    #[serde(alias = "tool_call_id")]
    tool_call_id: ToolCallId,
    #[serde(default, alias = "tool_return", deserialize_with = "json_or_null")]
    output: Option<Json>,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
enum Status {
    #[default]
    Success,
    Error,
}

impl ToolOutputBody {
    fn into_output(self) -> Result<UnverifiedToolOutput, FieldError> {
        let output = self.output.ok_or_else(|| FieldError::missing("output"))?;
        let result = match self.status {
            Status::Success => ClientToolResult::Output(output),
            Status::Error => {
                let text = output.decode::<String>();
                ClientToolResult::ErrorText(text.unwrap_or_else(|_| output.as_str().to_owned()))
            }
        };
        Ok(UnverifiedToolOutput::new(self.tool_call_id, result))
    }
}
