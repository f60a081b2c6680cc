//! [`NewApprovalRequest`]: an approval request to be created, and its conversion to a record.

use std::time::Duration;

use super::changed_input::MAX_INPUT_BYTES;
use super::{
    ApprovalRecord, ApprovalState, CanonicalJson, DefinitionDigest, EditableInput,
    InexactInputError, KeyRing, OnNewMessage, Principal, RecordId, UnixMillis,
};
use crate::id::{ChatId, MessageId, ToolCallId};
use crate::json::{Format, Json};

/// An approval request that is about to be created.
///
/// ```
/// use std::time::Duration;
///
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::{
///     DefinitionDigest, EditableInput, KeyRing, NewApprovalRequest, OnNewMessage, Principal,
///     RecordId, UnixMillis,
/// };
///
/// let request = NewApprovalRequest {
///     requester: Principal::new("ada"),
///     chat_id: "chat-1".into(),
///     message_id: "m2".into(),
///     tool_call_id: "call_1".into(),
///     tool_name: "delete_file".into(),
///     definition: DefinitionDigest::new("delete_file", "Deletes a file.", &Json::null()),
///     input: Json::parse(r#"{"path":"notes.txt"}"#)?,
///     provider_executed: false,
///     idempotent: false,
///     on_new_message: OnNewMessage::Lapse,
///     decided_by_others: false,
///     editable: EditableInput::Nothing,
///     description: None,
///     approval_ttl: Duration::from_secs(60 * 60),
/// };
///
/// # let secret = test_support::secret(1);
/// // The host provides the secret, the random bytes and the time.
/// let keys = KeyRing::new(1, &secret)?;
/// let now = UnixMillis(1_795_000_000_000);
/// let id = RecordId::of_requester(&request.requester, [7; 16]);
/// let record = request.into_record(&keys, id, now)?;
/// assert!(record.is_pending());
/// assert_eq!(&*record.description, r#"delete_file {"path":"notes.txt"}"#);
///
/// // The client gets the approval id. It is bound to exactly this record.
/// let approval_id = record.approval_id(&keys, now).expect("the active key never expires");
/// assert!(record.is_bound_to(&approval_id, &keys, now));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct NewApprovalRequest {
    /// The principal that owns the chat.
    pub requester: Principal,
    /// The chat that contains the call.
    pub chat_id: ChatId,
    /// The assistant message that contains the call.
    pub message_id: MessageId,
    /// The id of the tool call.
    pub tool_call_id: ToolCallId,
    /// The name of the tool.
    pub tool_name: Box<str>,
    /// The digest of the tool's definition.
    pub definition: DefinitionDigest,
    /// The tool input that the model produced.
    pub input: Json,
    /// Whether the provider executes the tool.
    pub provider_executed: bool,
    /// Whether the tool recognizes a repeated call, and may therefore run again after a crash.
    pub idempotent: bool,
    /// What happens when the requester sends a newer message.
    pub on_new_message: OnNewMessage,
    /// Whether another principal than the requester decides. The requester's messages then do not
    /// close the request.
    pub decided_by_others: bool,
    /// What the approver may change of the input.
    pub editable: EditableInput,
    /// The description that the user reads.
    ///
    /// If it is `None`, the description is the tool's name and the first 200 characters of the
    /// input.
    pub description: Option<Box<str>>,
    /// The time that the user has to respond. The request expires after it.
    pub approval_ttl: Duration,
}

debug_without_content!(NewApprovalRequest {
    requester,
    chat_id,
    message_id,
    tool_call_id,
    tool_name,
    provider_executed,
    approval_ttl
});

impl NewApprovalRequest {
    /// Creates the record of this approval request, in the state [`ApprovalState::Pending`].
    ///
    /// `id` must be one [of the requester](RecordId::of_requester), made from 16 random bytes.
    ///
    /// # Errors
    /// [`InexactInputError`] if a browser would show another input than the one that the tool would
    /// run with, or if the input is longer than 256 KiB. The user is not asked in that case. The
    /// model should get the error, as for any other input that the tool does not accept.
    pub fn into_record(
        self,
        keys: &KeyRing,
        id: RecordId,
        now: UnixMillis,
    ) -> Result<ApprovalRecord, InexactInputError> {
        if self.input.as_str().len() > MAX_INPUT_BYTES {
            return Err(InexactInputError::TooLong);
        }
        CanonicalJson::new(&self.input)?;
        let description = self.description;
        let description =
            description.unwrap_or_else(|| default_description(&self.tool_name, &self.input));
        Ok(ApprovalRecord {
            format: Format::default(),
            id,
            key_id: keys.active_key_id(),
            requested_at: now,
            expires_at: now.after(self.approval_ttl),
            requester: self.requester,
            chat_id: self.chat_id,
            message_id: self.message_id,
            tool_call_id: self.tool_call_id,
            tool_name: self.tool_name,
            definition: self.definition,
            input: self.input,
            provider_executed: self.provider_executed,
            idempotent: self.idempotent,
            on_new_message: self.on_new_message,
            decided_by_others: self.decided_by_others,
            editable: self.editable,
            audience: Vec::new(),
            delivery: None,
            outer: None,
            description,
            state: ApprovalState::Pending,
        })
    }
}

/// Returns the description of a call for which the host gave none.
pub(super) fn default_description(tool_name: &str, input: &Json) -> Box<str> {
    format!("{tool_name} {}", shorten_input(input.as_str())).into()
}

/// Shortens an input to fit into a description. The client shows the complete input separately.
fn shorten_input(input: &str) -> String {
    match input.char_indices().nth(MAX_DESCRIBED_INPUT_CHARS) {
        Some((end, _)) => format!("{}…", &input[..end]),
        None => input.to_owned(),
    }
}

const MAX_DESCRIBED_INPUT_CHARS: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_of_more_than_256_kib_is_rejected() {
        let request_with_input_of = |bytes: usize| {
            let request = NewApprovalRequest {
                requester: Principal::anonymous(),
                chat_id: "c".into(),
                message_id: "m".into(),
                tool_call_id: "call".into(),
                tool_name: "write".into(),
                definition: DefinitionDigest::new("write", "", &Json::null()),
                input: Json::string(&"a".repeat(bytes - 2)),
                provider_executed: false,
                idempotent: false,
                on_new_message: OnNewMessage::Lapse,
                decided_by_others: false,
                editable: EditableInput::Nothing,
                description: None,
                approval_ttl: Duration::from_secs(1),
            };
            let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
            request.into_record(&keys, RecordId::from_bytes([0; 16]), UnixMillis(0))
        };
        assert!(request_with_input_of(256 << 10).is_ok());
        assert!(matches!(request_with_input_of((256 << 10) + 1), Err(InexactInputError::TooLong)));
    }
}
