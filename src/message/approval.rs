//! The approval in a tool part: requested, responded, or settled.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::read::{Fault, Reader};
use crate::id::ApprovalId;
use crate::json::{ExtraFields, FieldError, Json, Object, entry_if_any};

/// A request to the user to approve a tool call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RequestedApproval {
    /// The id of the approval.
    pub id: ApprovalId,
    /// What the server attached to the request.
    pub details: ApprovalDetails,
}

/// An approval response: the user's answer about a tool call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RespondedApproval {
    /// The id of the approval.
    pub id: ApprovalId,
    /// Whether the user approved the call.
    pub approved: bool,
    /// The reason, in the user's words.
    pub reason: Option<String>,
    /// What the server attached to the request.
    pub details: ApprovalDetails,
}

/// The approval of a call that has its result.
///
/// The result may exist without an answer, or against it: an application can give a call its output
/// in every state.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SettledApproval {
    /// The id of the approval.
    pub id: ApprovalId,
    /// Whether the user approved the call, if the user answered.
    pub approved: Option<bool>,
    /// The reason, in the user's words.
    pub reason: Option<String>,
    /// What the server attached to the request.
    pub details: ApprovalDetails,
}

/// What the server attached to an approval request. The client returns it unchanged.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct ApprovalDetails {
    /// What to show the user.
    pub descriptor: Option<Json>,
    /// The input as the tool's schema parsed it, where that differs.
    pub input_schema_input: Option<Json>,
    /// Why the user is asked. Only `ai@7` sends it.
    pub request_reason: Option<String>,
    /// Whether a policy gives the answer. Then no user is asked. Only `ai@7` sends it.
    pub is_automatic: Option<bool>,
    /// A signature that the client returns unread.
    pub signature: Option<String>,
    /// Fields that this crate does not know.
    pub extra: ExtraFields,
}

impl ApprovalDetails {
    /// Returns whether a policy of the server has decided, and not a user.
    pub(crate) fn is_automatic(&self) -> bool {
        self.is_automatic == Some(true)
    }
}

impl RequestedApproval {
    /// Returns the response of the user to this request.
    pub fn respond(self, approved: bool, reason: Option<String>) -> RespondedApproval {
        RespondedApproval { id: self.id, approved, reason, details: self.details }
    }

    /// Returns the approval of a call that has its result, without the signature.
    pub fn settle(self, approved: bool, reason: Option<String>) -> SettledApproval {
        let details = ApprovalDetails { signature: None, ..self.details };
        SettledApproval { id: self.id, approved: Some(approved), reason, details }
    }
}

impl RespondedApproval {
    /// Returns the request to which this is the response.
    pub fn request(&self) -> RequestedApproval {
        RequestedApproval { id: self.id.clone(), details: self.details.clone() }
    }
}

impl SettledApproval {
    /// Returns whether a policy of the server has decided, and not a user.
    pub fn is_automatic(&self) -> bool {
        self.details.is_automatic()
    }

    /// Removes the approval from the fields of a tool part and reads it, if it is present.
    pub(super) fn take(
        object: &mut Object<'_>,
        reader: &mut Reader,
    ) -> Result<Option<Self>, Fault> {
        let Some(raw) = object.take("approval") else {
            return Ok(None);
        };
        Self::read(raw, reader).map(Some).map_err(|fault| fault.within("approval"))
    }

    fn read(raw: &RawValue, reader: &mut Reader) -> Result<Self, Fault> {
        Ok(Self::from_object(reader.object(raw.get(), KNOWN)?)?)
    }

    /// Reads an approval from the fields of its object.
    pub(crate) fn from_object(mut object: Object<'_>) -> Result<Self, FieldError> {
        Ok(SettledApproval {
            id: ApprovalId::new(&*object.text("id")?),
            approved: object.flag_if_any("approved")?,
            reason: object.text_if_any("reason")?.map(Into::into),
            details: ApprovalDetails {
                descriptor: object.json_if_any("descriptor")?,
                input_schema_input: object.json_if_any("inputSchemaInput")?,
                request_reason: object.text_if_any("requestReason")?.map(Into::into),
                is_automatic: object.flag_if_any("isAutomatic")?,
                signature: object.text_if_any("signature")?.map(Into::into),
                extra: object.into_extra()?,
            },
        })
    }

    /// Reads an approval among the other fields of a part whose state has none. Ignores what is no approval.
    pub(crate) fn stale(extra: &ExtraFields) -> Option<Self> {
        let json = extra.get("approval")?;
        Self::from_object(Object::parse(json.as_str()).ok()?).ok()
    }

    /// Converts the approval of a part in the state `approval-requested`.
    ///
    /// # Errors
    /// If the approval holds an answer.
    pub(super) fn into_requested(self) -> Result<RequestedApproval, FieldError> {
        // An ambiguous part is refused: an answer must never be read as an open request.
        if self.approved.is_some() {
            return Err(FieldError::new("approval.approved", "expected only with an answer"));
        }
        if self.reason.is_some() {
            return Err(FieldError::new("approval.reason", "expected only with an answer"));
        }
        Ok(RequestedApproval { id: self.id, details: self.details })
    }

    /// Converts the approval of a part in the state `approval-responded`.
    ///
    /// # Errors
    /// If the approval holds no answer.
    pub(super) fn into_responded(self) -> Result<RespondedApproval, FieldError> {
        let approved = self.approved.ok_or(FieldError::missing("approval.approved"))?;
        Ok(RespondedApproval { id: self.id, approved, reason: self.reason, details: self.details })
    }
}

impl Serialize for RequestedApproval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write_approval(serializer, &self.id, None, &None, &self.details)
    }
}

impl Serialize for RespondedApproval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let approved = Some(self.approved);
        write_approval(serializer, &self.id, approved, &self.reason, &self.details)
    }
}

impl Serialize for SettledApproval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write_approval(serializer, &self.id, self.approved, &self.reason, &self.details)
    }
}

fn write_approval<S: Serializer>(
    serializer: S,
    id: &ApprovalId,
    approved: Option<bool>,
    reason: &Option<String>,
    details: &ApprovalDetails,
) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry("id", id)?;
    entry_if_any(&mut map, "approved", &approved)?;
    entry_if_any(&mut map, "reason", reason)?;
    entry_if_any(&mut map, "descriptor", &details.descriptor)?;
    entry_if_any(&mut map, "inputSchemaInput", &details.input_schema_input)?;
    entry_if_any(&mut map, "requestReason", &details.request_reason)?;
    entry_if_any(&mut map, "isAutomatic", &details.is_automatic)?;
    entry_if_any(&mut map, "signature", &details.signature)?;
    details.extra.write(&mut map)?;
    map.end()
}

const KNOWN: &[&str] = &[
    "id",
    "approved",
    "reason",
    "descriptor",
    "inputSchemaInput",
    "requestReason",
    "isAutomatic",
    "signature",
];
