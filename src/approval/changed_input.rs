//! [`EditableInput`]: what an approver may change of an input. [`ChangedInput`]: both versions of it.
//!
//! # An approver may change the input
//!
//! The record holds what may change (`editable`), and the decision holds the changed input. So one claim binds
//! both, a repetition cannot bring a third version, and the first outcome stands. The rule is in the claim itself;
//! the check of the change, schema and permissions are asked before it. The check gets both inputs, and the
//! original one is the record's: "may lower the amount, not raise it" cannot be said about the changed one alone,
//! and a history that shows another original changes nothing. A changed input is also checked before anything of
//! the request is stored, because a person who has mistyped needs the reason, and the question must stay open. A
//! request that is checked and then finds another state is rejected as any other.
//!
//! The approval id does not bind `editable`: the record is the server's own. Stateless approvals have no record
//! that keeps a changed input, so they refuse such tools when they are created.
//!
//! No chunk replaces the input of a call without taking its approval, except `tool-input-available` in the call's
//! own step, directly followed by the output. So the translator keeps the changed input
//! (`AgentEvent::InputChanged`) until the first output of the call, and leaves it out in a later step:
//! `data-approval` holds both versions in any case. The stored message holds the changed input in the call. The
//! model reads its own input in the call, and the changed one with the result, because a provider may verify its
//! own call.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{CanonicalJson, InexactInputError};
use crate::id::{ApprovalId, log_text};
use crate::json::Json;
use crate::message::{Part, ToolPart, UiMessage};

/// What the approver of a call may change of its input.
///
/// The approver sends the whole input again, and a field that cannot be changed must have its stored
/// value. The tool must accept the changed input like any other.
///
/// In JSON it is `true` for [`Everything`](Self::Everything), the list of the names for
/// [`Fields`](Self::Fields), and `false` for [`Nothing`](Self::Nothing).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "StoredEditable", into = "StoredEditable")]
#[non_exhaustive]
pub enum EditableInput {
    /// The input cannot be changed.
    #[default]
    Nothing,
    /// The top-level fields with these names can be changed, added and removed.
    Fields(Vec<Box<str>>),
    /// The whole input can be changed.
    Everything,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredEditable {
    Whole(bool),
    Fields(Vec<Box<str>>),
}

impl From<StoredEditable> for EditableInput {
    fn from(stored: StoredEditable) -> Self {
        match stored {
            StoredEditable::Whole(false) => EditableInput::Nothing,
            StoredEditable::Whole(true) => EditableInput::Everything,
            StoredEditable::Fields(names) => EditableInput::Fields(names),
        }
    }
}

impl From<EditableInput> for StoredEditable {
    fn from(editable: EditableInput) -> Self {
        match editable {
            EditableInput::Nothing => StoredEditable::Whole(false),
            EditableInput::Everything => StoredEditable::Whole(true),
            EditableInput::Fields(names) => StoredEditable::Fields(names),
        }
    }
}

impl EditableInput {
    /// Returns whether nothing of the input can be changed.
    pub fn is_nothing(&self) -> bool {
        *self == EditableInput::Nothing
    }

    /// Checks whether an approver may replace the `stored` input with `changed`.
    ///
    /// ```
    /// use ui_message_stream::Json;
    /// use ui_message_stream::approval::EditableInput;
    ///
    /// let editable = EditableInput::Fields(vec!["amount".into()]);
    /// let stored = Json::parse(r#"{"to": "ada", "amount": 900}"#)?;
    /// let smaller = Json::parse(r#"{"to": "ada", "amount": 100}"#)?;
    /// assert_eq!(editable.check(&stored, &smaller), Ok(()));
    ///
    /// let diverted = Json::parse(r#"{"to": "eve", "amount": 100}"#)?;
    /// assert_eq!(editable.check(&stored, &diverted).unwrap_err(), "`to` cannot be changed");
    /// # Ok::<(), ui_message_stream::json::JsonError>(())
    /// ```
    ///
    /// # Errors
    /// The text, for the approver, says what cannot be changed, or why a browser would not show
    /// `changed` as it is ([`InexactInputError`]).
    pub fn check(&self, stored: &Json, changed: &Json) -> Result<(), String> {
        if changed.as_str().len() > MAX_INPUT_BYTES {
            return Err(InexactInputError::TooLong.to_string());
        }
        let stored = CanonicalJson::new(stored).map_err(|error| error.to_string())?;
        let changed = CanonicalJson::new(changed).map_err(|error| error.to_string())?;
        match self {
            _ if stored == changed => Ok(()),
            EditableInput::Nothing => Err("the input cannot be changed".to_owned()),
            EditableInput::Everything => Ok(()),
            EditableInput::Fields(editable) => {
                let (Some(stored), Some(changed)) = (fields(&stored), fields(&changed)) else {
                    return Err("expected an object".to_owned());
                };
                let mut fixed = stored.keys().chain(changed.keys()).filter(|name| {
                    let stored = stored.get(*name);
                    let changed = changed.get(*name);
                    let differs =
                        stored.map(|value| value.get()) != changed.map(|value| value.get());
                    differs && !editable.contains(*name)
                });
                match fixed.next() {
                    Some(name) => Err(format!("`{}` cannot be changed", log_text(name))),
                    None => Ok(()),
                }
            }
        }
    }
}

type Fields<'a> = BTreeMap<Box<str>, &'a RawValue>;

/// Returns the fields of an object. Equal values have equal texts in the canonical form.
fn fields(form: &CanonicalJson) -> Option<Fields<'_>> {
    serde_json::from_str(form.as_str()).ok()
}

/// Both versions of an input that the approver of a call has changed: as JSON, or decoded.
///
/// A rule about a change compares them. This one lets an approver lower an amount, and not raise it:
///
/// ```
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::ChangedInput;
///
/// #[derive(serde::Deserialize)]
/// struct Transfer {
///     amount: u64,
/// }
///
/// fn only_lower(input: &ChangedInput) -> Result<(), String> {
///     let input: ChangedInput<Transfer> =
///         input.decode().map_err(|_| "amount: must be a whole number".to_owned())?;
///     if input.changed.amount <= input.original.amount {
///         Ok(())
///     } else {
///         Err("amount: may be lowered, not raised".to_owned())
///     }
/// }
///
/// let json = |amount: u64| Json::try_from(serde_json::json!({ "amount": amount }));
/// let change = |from, to| Ok::<_, ui_message_stream::json::JsonError>(ChangedInput {
///     original: json(from)?,
///     changed: json(to)?,
/// });
/// assert_eq!(only_lower(&change(80, 60)?), Ok(()));
/// assert!(only_lower(&change(80, 95)?).is_err());
/// # Ok::<(), ui_message_stream::json::JsonError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChangedInput<I = Json> {
    /// The input that the model produced. The server's own record holds it.
    #[serde(rename = "originalInput")]
    pub original: I,
    /// The input that the approver sent. The tool runs with it.
    #[serde(rename = "changedInput")]
    pub changed: I,
}

impl ChangedInput {
    /// Reads both versions as `I`.
    ///
    /// # Errors
    /// The error of `serde_json` if one of them is not an `I`.
    pub fn decode<I: DeserializeOwned>(&self) -> Result<ChangedInput<I>, serde_json::Error> {
        let ChangedInput { original, changed } = self;
        Ok(ChangedInput { original: original.decode()?, changed: changed.decode()? })
    }

    /// Reads both versions from the data beside this call of the message.
    pub fn of_call(message: &UiMessage, call: &ToolPart) -> Option<Self> {
        call.approval_id()?;
        let data = message.parts.iter().rev().filter_map(|part| match part {
            Part::Data(data) if &*data.name == APPROVAL_DATA_NAME => Some(data),
            _ => None,
        });
        let mut of_call =
            data.filter(|data| data.id.as_deref() == Some(call.tool_call_id.as_str()));
        Self::from_descriptor(of_call.next()?.data.as_ref()?)
    }

    /// Reads both versions from the data of a `data-approval` part
    /// ([`ApprovalRecord::descriptor`](super::ApprovalRecord::descriptor)). Returns `None` if the
    /// approver has changed nothing.
    pub fn from_descriptor(descriptor: &Json) -> Option<Self> {
        // Most calls are not changed, and the data is read for each.
        let is_changed = descriptor.as_str().contains("\"changedInput\"");
        is_changed.then(|| descriptor.decode().ok()).flatten()
    }
}

/// A changed input that is not accepted. The approval request stays pending.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InputError {
    /// The id of the approval request.
    pub approval_id: ApprovalId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// What is wrong with the input, and where. The approver reads it.
    pub problem: String,
}

impl std::error::Error for InputError {}

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the changed input for `{}`: {}", log_text(&self.tool_name), self.problem)
    }
}

/// The name of the data part that the client shows beside a call with an approval request.
pub const APPROVAL_DATA_NAME: &str = "approval";

/// The maximum length of an input that needs approval, in bytes.
pub(super) const MAX_INPUT_BYTES: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn json(text: &str) -> Json {
        Json::parse(text).unwrap()
    }

    #[test]
    fn a_field_that_is_not_editable_keeps_its_value() {
        let editable = EditableInput::Fields(vec!["note".into()]);
        let stored = json(r#"{"to":"ada","sum":1.0}"#);
        let check = |changed: &str| editable.check(&stored, &json(changed));
        assert_eq!(check(r#"{"sum":1,"note":"thanks","to":"ada"}"#), Ok(()));
        assert_eq!(check(r#"{"sum":2,"to":"ada"}"#), Err("`sum` cannot be changed".into()));
        assert_eq!(check(r#"{"to":"ada"}"#), Err("`sum` cannot be changed".into()));
        let added = check(r#"{"to":"ada","sum":1,"cc":"eve"}"#);
        assert_eq!(added, Err("`cc` cannot be changed".into()));
        assert_eq!(check("[]"), Err("expected an object".into()));
    }

    #[test]
    fn an_input_that_a_browser_shows_differently_is_not_accepted() {
        let large = json(r#"{"id":9007199254740993}"#);
        assert!(EditableInput::Everything.check(&json("{}"), &large).is_err());
        let long = Json::string(&"a".repeat(MAX_INPUT_BYTES));
        assert!(EditableInput::Everything.check(&json("{}"), &long).is_err());
    }

    #[test]
    fn an_equal_input_is_no_change() {
        assert_eq!(
            EditableInput::Nothing.check(&json(r#"{"a":1.0}"#), &json(r#"{ "a":1}"#)),
            Ok(())
        );
        assert!(EditableInput::Nothing.check(&json(r#"{"a":1.0}"#), &json(r#"{"a":2}"#)).is_err());
    }

    #[test]
    fn it_is_stored_as_a_flag_or_as_names() {
        let forms = [
            (EditableInput::Nothing, "false"),
            (EditableInput::Everything, "true"),
            (EditableInput::Fields(vec!["a".into()]), r#"["a"]"#),
        ];
        for (editable, text) in forms {
            assert_eq!(serde_json::to_string(&editable).unwrap(), text);
            assert_eq!(serde_json::from_str::<EditableInput>(text).unwrap(), editable);
        }
    }
}
