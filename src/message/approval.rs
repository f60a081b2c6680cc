//! What a message says of an approval: asked, answered, or past.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use super::entry_if_any;
use super::read::{Fault, Reader};
use crate::id::ApprovalId;
use crate::json::Json;
use crate::record::{Extra, FieldError, Object};

/// A question to a person about a tool call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Approval {
    /// Names the question.
    pub id: ApprovalId,
    /// What came with it.
    pub details: ApprovalDetails,
}

/// A person's answer about a tool call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct AnsweredApproval {
    /// Names the question.
    pub id: ApprovalId,
    /// Yes or no.
    pub approved: bool,
    /// Why, in the person's words.
    pub reason: Option<String>,
    /// What came with the question.
    pub details: ApprovalDetails,
}

/// What a person was asked about a call that has its result.
///
/// The result may have come without an answer, or in spite of it: an application can give a call
/// its output whatever state it is in.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PastApproval {
    /// Names the question.
    pub id: ApprovalId,
    /// Yes or no, if there was an answer.
    pub approved: Option<bool>,
    /// Why, in the person's words.
    pub reason: Option<String>,
    /// What came with the question.
    pub details: ApprovalDetails,
}

/// What a server attached to its question. The client returns it untouched.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct ApprovalDetails {
    /// What to show the person.
    pub descriptor: Option<Json>,
    /// The input as the tool's schema takes it, where that differs.
    pub input_schema_input: Option<Json>,
    /// Opaque to the client.
    pub signature: Option<String>,
    /// Fields that this crate does not know.
    pub extra: Extra,
}

impl PastApproval {
    /// Takes the approval out of a tool part if it is there, answered or not.
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
        Ok(PastApproval {
            id: ApprovalId::new(&*object.text("id")?),
            approved: object.flag_if_any("approved")?,
            reason: object.text_if_any("reason")?.map(Into::into),
            details: ApprovalDetails {
                descriptor: object.json_if_any("descriptor")?,
                input_schema_input: object.json_if_any("inputSchemaInput")?,
                signature: object.text_if_any("signature")?.map(Into::into),
                extra: object.into_extra()?,
            },
        })
    }

    /// The question, of a part that waits for its answer.
    pub(super) fn unanswered(self) -> Result<Approval, FieldError> {
        // Never an answer taken for a question: what is in doubt is refused.
        if self.approved.is_some() {
            return Err(FieldError::new("approval.approved", "expected only with an answer"));
        }
        if self.reason.is_some() {
            return Err(FieldError::new("approval.reason", "expected only with an answer"));
        }
        Ok(Approval { id: self.id, details: self.details })
    }

    /// The answer, of a part that has it.
    pub(super) fn answered(self) -> Result<AnsweredApproval, FieldError> {
        let approved = self.approved.ok_or(FieldError::missing("approval.approved"))?;
        Ok(AnsweredApproval { id: self.id, approved, reason: self.reason, details: self.details })
    }
}

impl Serialize for Approval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        write_approval(serializer, &self.id, None, &None, &self.details)
    }
}

impl Serialize for AnsweredApproval {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let approved = Some(self.approved);
        write_approval(serializer, &self.id, approved, &self.reason, &self.details)
    }
}

impl Serialize for PastApproval {
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
    entry_if_any(&mut map, "signature", &details.signature)?;
    details.extra.write(&mut map)?;
    map.end()
}

const KNOWN: &[&str] = &["id", "approved", "reason", "descriptor", "inputSchemaInput", "signature"];
