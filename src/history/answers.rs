//! [`Answers`]: what a client posts that keeps no messages: the outputs of the tools that it runs,
//! and what the person decided.

use std::collections::{HashMap, HashSet};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use crate::approval::{ClientOutput, ClientResult, PersonsDecision};
use crate::id::{ApprovalId, ToolCallId};
use crate::json::Json;
use crate::record::{Extra, FieldError, Object, each_field};
use crate::request::{Limits, ParseRequestError};

/// Answers to the calls that wait at the end of a conversation.
///
/// A browser sends its messages with the answers in them. What only knows a call's id sends these,
/// and [`Chat::answered`](super::Chat::answered) makes the same of them.
///
/// An output is `{"toolCallId", "output"}`, or `{"toolCallId", "output", "status": "error"}` where
/// the output is the error's text. For clients of other servers `tool_call_id` and `tool_return` are
/// read as well. Fields of other names are the application's own, as in a
/// [`ChatRequest`](crate::ChatRequest).
///
/// ```
/// use ui_message_stream::history::Answers;
/// use ui_message_stream::request::Limits;
///
/// let body = br#"{
///     "toolOutputs": [{"tool_call_id": "call_1", "tool_return": {"city": "Berlin"}, "status": "success"}],
///     "decisions": [{"approvalId": "ap_1", "approved": false, "reason": "not now"}]
/// }"#;
/// let answers = Answers::parse(body, &Limits::default())?;
/// assert_eq!(answers.tool_outputs[0].tool_call_id.as_str(), "call_1");
/// assert!(!answers.decisions[0].approved);
///
/// let error = Answers::parse(br#"{"toolOutputs": [{"toolCallId": "call_1"}]}"#, &Limits::default());
/// assert_eq!(error.unwrap_err().to_string(), "toolOutputs[0].output: missing");
/// # Ok::<(), ui_message_stream::request::ParseRequestError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Answers {
    /// What came of calls that the client ran.
    pub tool_outputs: Vec<ClientOutput>,
    /// What the person decided.
    pub decisions: Vec<PersonsDecision>,
    /// The application's own fields.
    pub custom: Extra,
}

impl Answers {
    /// Reads the body of a POST.
    ///
    /// # Errors
    /// - [`ParseRequestError::TooLong`], [`TooDeep`](ParseRequestError::TooDeep) and
    ///   [`TooManyAnswers`](ParseRequestError::TooManyAnswers) name the limit that the
    ///   body exceeds.
    /// - [`ParseRequestError::NotUtf8`] and [`ParseRequestError::NotJson`] say where it ends to be
    ///   text, and JSON.
    /// - [`ParseRequestError::Field`] names the output that is missing or given for a call twice, and
    ///   the decision that contradicts another one.
    pub fn parse(body: &[u8], limits: &Limits) -> Result<Self, ParseRequestError> {
        let text = limits.text(body)?;
        let mut body = fields(text, limits)?;
        let [decisions, outputs @ ..] = KNOWN;
        let mut given: Vec<Given> = Vec::new();
        for name in outputs {
            given.extend(list(&mut body, name)?);
        }
        let decisions: Vec<PersonsDecision> = list(&mut body, decisions)?;
        let custom = body.into_extra()?;
        limits.take_answers(given.len() + decisions.len())?;
        let mut seen = HashSet::new();
        let mut tool_outputs: Vec<ClientOutput> = Vec::new();
        for (at, given) in given.into_iter().enumerate() {
            let output = given.read().map_err(|error| error.within(&place(at)))?;
            if !seen.insert(output.tool_call_id.clone()) {
                let twice = FieldError::new("toolCallId", "has an output already");
                return Err(twice.within(&place(at)).into());
            }
            tool_outputs.push(output);
        }
        let mut decided: HashMap<&ApprovalId, bool> = HashMap::new();
        for (at, decision) in decisions.iter().enumerate() {
            let first = decided.entry(&decision.approval_id).or_insert(decision.approved);
            if *first != decision.approved {
                let contradicts = FieldError::new("approved", CONTRADICTS);
                return Err(contradicts.within(&format!("decisions[{at}]")).into());
            }
        }
        Ok(Answers { tool_outputs, decisions, custom })
    }
}

/// Where an output stands in the body.
pub(super) fn place(at: usize) -> String {
    format!("toolOutputs[{at}]")
}

/// The fields of the body, each known one once.
fn fields<'a>(text: &'a str, limits: &Limits) -> Result<Object<'a>, ParseRequestError> {
    let most = limits.max_nodes;
    let (mut object, mut wrong, mut nodes) = (Object::default(), Ok(()), 0_usize);
    let add = |key: &str, value: &'a RawValue| {
        nodes += 1;
        if nodes <= most && wrong.is_ok() {
            wrong = object.add(key, value, &KNOWN);
        }
    };
    each_field(text, add).map_err(ParseRequestError::NotJson)?;
    if nodes > most {
        return Err(ParseRequestError::TooManyNodes { limit: most });
    }
    wrong?;
    Ok(object)
}

/// Takes a list out if it is there.
fn list<T: DeserializeOwned>(
    body: &mut Object<'_>,
    name: &'static str,
) -> Result<Vec<T>, ParseRequestError> {
    let list = body.take(name).map(|raw| serde_json::from_str::<Option<Vec<T>>>(raw.get()));
    let list = list.transpose().map_err(|_| FieldError::new(name, SHAPE))?;
    Ok(list.flatten().unwrap_or_default())
}

/// The decisions, and the outputs as they are called here and elsewhere.
const KNOWN: [&str; 4] = ["decisions", "toolOutputs", "tool_outputs", "tool_returns"];

const SHAPE: &str = "expected a list of `{\"toolCallId\", \"output\", \"status\"?}`, of decisions one of \
                     `{\"approvalId\", \"approved\", \"reason\"?}`";

const CONTRADICTS: &str = "contradicts another answer to the same approval";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Given {
    #[serde(alias = "tool_call_id")]
    tool_call_id: ToolCallId,
    #[serde(default, alias = "tool_return", deserialize_with = "given")]
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

impl Given {
    fn read(self) -> Result<ClientOutput, FieldError> {
        let output = self.output.ok_or_else(|| FieldError::missing("output"))?;
        let result = match self.status {
            Status::Success => ClientResult::Output(output),
            Status::Error => {
                let text = output.to::<String>();
                ClientResult::ErrorText(text.unwrap_or_else(|_| output.as_str().to_owned()))
            }
        };
        Ok(ClientOutput { tool_call_id: self.tool_call_id, result })
    }
}

/// What is given as `null` is not missing.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(deserializer).map(Some)
}
