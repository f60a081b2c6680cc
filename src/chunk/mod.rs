//! [`Chunk`]: one object of the UI message stream, the kinds of `ai@6` and `ai@7`, but for
//! `steering-message` of `ai@7`.
//!
//! The table below is the protocol: kinds, and fields in the order of the wire. A kind or a field that `ai@5` does
//! not know has the versions that introduced it, one of `ai@6` and one of `ai@7`: `@ 274 / 87` is `ai@6.0.274` and
//! `ai@7.0.87`, and `@ _ / 0` is `ai@7.0.0` and no `ai@6`. This table alone decides which fields may be sent to
//! which client.
//!
//! A [`Chunk`] is for writing: it cannot be of a kind or hold a field that the client refuses. A
//! [`ReceivedChunk`] is for reading: it also keeps fields and kinds that this crate does not know. A [`ChunkReader`] reads
//! all chunks of a stream.
//!
//! Wire: [stream protocol](https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol)

mod citations;
mod field;
mod finish_reason;
mod input_encoding;
mod reader;
mod received;
mod version;

use std::borrow::Cow;
use std::fmt;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

pub use self::citations::{Citations, CitationsError};
pub use self::finish_reason::FinishReason;
pub use self::input_encoding::InputEncoding;
pub use self::reader::ChunkReader;
pub use self::received::{ReadChunkError, ReceivedChunk};
pub(crate) use self::version::NEWEST_V6;
use self::version::Since;
pub use self::version::{ParseVersionError, Version};

pub(crate) use self::field::FieldWriter;
use self::field::{Entries, Field};
use crate::id::ApprovalId;
use crate::json::{FieldError, Json, Object};
use crate::metadata::{ProviderMetadata, ToolMetadata};

/// Makes the enum, its reader and its writer from one table.
macro_rules! chunks {
    ($(
        $(#[$doc:meta])*
        $kind:literal $variant:ident $(@ $kind_v6:tt / $kind_v7:literal)? {
            $( $(#[$field_doc:meta])* $field:ident $key:literal $(@ $v6:tt / $v7:literal)? : $type:ty, )*
        }
    )*) => {
        /// One object of the UI message stream.
        ///
        /// It usually borrows its fields. [`Chunk::into_owned`] makes it independent of them.
        ///
        /// ```
        /// use ui_message_stream::Chunk;
        ///
        /// let chunk = Chunk::TextStart { id: "text-1".into(), provider_metadata: None };
        /// assert_eq!(serde_json::to_string(&chunk)?, r#"{"type":"text-start","id":"text-1"}"#);
        /// # Ok::<(), serde_json::Error>(())
        /// ```
        #[derive(Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Chunk<'a> {
            $( $(#[$doc])* $variant { $( $(#[$field_doc])* $field: $type, )* }, )*
            /// `data-<name>`: data of the application. With an `id` it replaces earlier data of the
            /// same name and id. `transient` data is passed to `onData` and not kept.
            Data {
                /// The kind without `data-`.
                name: Cow<'a, str>,
                /// The id of the data. Data with the same name and id is replaced.
                id: Option<Cow<'a, str>>,
                /// The data.
                data: Option<Cow<'a, Json>>,
                /// Whether the message does not keep it.
                transient: Option<bool>,
            },
        }

        impl<'a> Chunk<'a> {
            /// Returns the `type` on the wire.
            pub fn kind(&self) -> Cow<'static, str> {
                match self {
                    $( Chunk::$variant { .. } => Cow::Borrowed($kind), )*
                    Chunk::Data { name, .. } => Cow::Owned(format!("data-{name}")),
                }
            }

            /// Returns the `type` on the wire in two pieces, without an allocation.
            pub(crate) fn kind_pieces(&self) -> (&'static str, &str) {
                match self {
                    $( Chunk::$variant { .. } => ($kind, ""), )*
                    Chunk::Data { name, .. } => ("data-", name),
                }
            }

            /// Clones the borrowed fields, so that the chunk borrows nothing.
            pub fn into_owned(self) -> Chunk<'static> {
                match self {
                    $( Chunk::$variant { $($field),* } =>
                        Chunk::$variant { $($field: Field::into_owned($field)),* }, )*
                    Chunk::Data { name, id, data, transient } => Chunk::Data {
                        name: Field::into_owned(name),
                        id: Field::into_owned(id),
                        data: Field::into_owned(data),
                        transient,
                    },
                }
            }

            /// Removes the fields that a client of this version does not know, and replaces a finish reason that
            /// it does not know by `other`.
            ///
            /// The kind is not checked: see [`is_kind_known_to`](Self::is_kind_known_to).
            #[must_use]
            pub fn for_version(self, version: Version) -> Self {
                match self {
                    $( Chunk::$variant { $( mut $field ),* } => {
                        $( $( if !version.knows(since!($v6 / $v7)) { $field.leave_out(); } )? )*
                        $( $field.restrict_to(version); )*
                        Chunk::$variant { $($field),* }
                    } )*
                    data => data,
                }
            }

            /// Returns whether a client of this version has this kind of chunk. If it does not, it refuses the
            /// stream.
            pub fn is_kind_known_to(&self, version: Version) -> bool {
                match self {
                    $( $( Chunk::$variant { .. } => version.knows(since!($kind_v6 / $kind_v7)), )? )*
                    _ => true,
                }
            }

            /// Passes the fields to a writer in the order of the wire, without the `type`.
            pub(crate) fn write_fields(&self, writer: &mut impl FieldWriter) {
                match self {
                    $( Chunk::$variant { $($field),* } => { $( $field.write($key, writer); )* } )*
                    Chunk::Data { id, data, transient, .. } => {
                        id.write("id", writer);
                        data.write("data", writer);
                        transient.write("transient", writer);
                    }
                }
            }

            /// Formats the name of the variant and its fields. The id of an approval is redacted.
            fn fmt_debug(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $( Chunk::$variant { $($field),* } => {
                        let mut debug = f.debug_struct(stringify!($variant));
                        $( debug.field(stringify!($field), &DebugField($key, $field)); )*
                        debug.finish()
                    } )*
                    Chunk::Data { name, id, data, transient } => f
                        .debug_struct("Data")
                        .field("name", name)
                        .field("id", id)
                        .field("data", data)
                        .field("transient", transient)
                        .finish(),
                }
            }

            /// Returns the keys of a kind without `type`, or `None` if the kind is unknown.
            pub(crate) fn keys(kind: &str) -> Option<&'static [&'static str]> {
                match kind {
                    $( $kind => Some(&[$($key),*]), )*
                    _ => kind.starts_with("data-").then_some(&["id", "data", "transient"]),
                }
            }

            /// Reads the fields of a known kind. Returns `None` if the kind is unknown.
            fn read(kind: &str, object: &mut Object<'a>) -> Result<Option<Self>, FieldError> {
                Ok(Some(match kind {
                    $( $kind => Chunk::$variant { $( $field: Field::read(object, $key)?, )* }, )*
                    _ => {
                        let Some(name) = kind.strip_prefix("data-") else { return Ok(None) };
                        Chunk::Data {
                            name: Cow::Owned(name.to_owned()),
                            id: Field::read(object, "id")?,
                            data: Field::read(object, "data")?,
                            transient: Field::read(object, "transient")?,
                        }
                    }
                }))
            }
        }
    };
}

impl fmt::Debug for Chunk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_debug(f)
    }
}

/// A field with its key, for `Debug`. The id of an approval is redacted as by [`ApprovalId`].
struct DebugField<'a>(&'static str, &'a dyn fmt::Debug);

impl fmt::Debug for DebugField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 != "approvalId" {
            return self.1.fmt(f);
        }
        let quoted = format!("{:?}", self.1);
        ApprovalId::new(quoted.trim_matches('"')).fmt(f)
    }
}

/// The versions of a row of the table.
macro_rules! since {
    (_ / $v7:literal) => {
        Since { v6: None, v7: $v7 }
    };
    ($v6:literal / $v7:literal) => {
        Since { v6: Some($v6), v7: $v7 }
    };
}

chunks! {
    /// Opens the message. A `messageId` other than the continued message's makes a second message.
    "start" Start {
        /// The id the message has from now on.
        message_id "messageId": Option<Cow<'a, str>>,
        /// Merged into the message's metadata.
        message_metadata "messageMetadata": Option<Cow<'a, Json>>,
    }
    /// Opens a step: one model call and the tool calls it caused.
    "start-step" StartStep {}
    /// Opens a text part.
    "text-start" TextStart {
        /// The id of the part until its end.
        id "id": Cow<'a, str>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// Adds to an open text part.
    "text-delta" TextDelta {
        /// Which part.
        id "id": Cow<'a, str>,
        /// The text to add.
        delta "delta": Cow<'a, str>,
        /// Replaces the part's own.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// Closes a text part.
    "text-end" TextEnd {
        /// Which part.
        id "id": Cow<'a, str>,
        /// What the text rests on.
        citations "citations" @ _ / 138: Option<Cow<'a, Citations>>,
        /// Replaces the part's own.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// Opens a reasoning part.
    "reasoning-start" ReasoningStart {
        /// The id of the part until its end.
        id "id": Cow<'a, str>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// Adds to an open reasoning part.
    "reasoning-delta" ReasoningDelta {
        /// Which part.
        id "id": Cow<'a, str>,
        /// The text to add.
        delta "delta": Cow<'a, str>,
        /// Replaces the part's own.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// Closes a reasoning part.
    "reasoning-end" ReasoningEnd {
        /// Which part.
        id "id": Cow<'a, str>,
        /// Replaces the part's own.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// Announces a tool call whose input streams in.
    "tool-input-start" ToolInputStart {
        /// The id of the call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// The name of the tool.
        tool_name "toolName": Cow<'a, str>,
        /// How the input is streamed. An absent value means JSON.
        input_encoding "inputEncoding" @ 308 / 142: Option<InputEncoding>,
        /// Whether the provider runs the tool.
        provider_executed "providerExecuted": Option<bool>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata" @ 39 / 0: Option<Cow<'a, ProviderMetadata>>,
        /// Metadata of the application.
        tool_metadata "toolMetadata" @ 176 / 0: Option<Cow<'a, ToolMetadata>>,
        /// Whether the tool is unknown to the client. The same on every chunk of a call.
        dynamic "dynamic": Option<bool>,
        /// The title that the user sees instead of the name of the tool.
        title "title" @ 0 / 0: Option<Cow<'a, str>>,
    }
    /// Adds to a streaming tool input.
    "tool-input-delta" ToolInputDelta {
        /// The id of the call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// The text to add.
        input_text_delta "inputTextDelta": Cow<'a, str>,
    }
    /// A tool call with its whole input.
    "tool-input-available" ToolInputAvailable {
        /// The id of the call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// The name of the tool.
        tool_name "toolName": Cow<'a, str>,
        /// The input.
        input "input": Option<Cow<'a, Json>>,
        /// Whether the provider runs the tool.
        provider_executed "providerExecuted": Option<bool>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
        /// Metadata of the application.
        tool_metadata "toolMetadata" @ 176 / 0: Option<Cow<'a, ToolMetadata>>,
        /// Whether the tool is unknown to the client. The same on every chunk of a call.
        dynamic "dynamic": Option<bool>,
        /// The title that the user sees instead of the name of the tool.
        title "title" @ 0 / 0: Option<Cow<'a, str>>,
    }
    /// A tool call whose input is not valid for the tool.
    "tool-input-error" ToolInputError @ 0 / 0 {
        /// The id of the call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// The name of the tool.
        tool_name "toolName": Cow<'a, str>,
        /// The input as the model wrote it. Text that is not JSON is a string here.
        input "input": Option<Cow<'a, Json>>,
        /// What is wrong with the input.
        error_text "errorText": Cow<'a, str>,
        /// Whether the provider runs the tool.
        provider_executed "providerExecuted": Option<bool>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
        /// Metadata of the application.
        tool_metadata "toolMetadata" @ 176 / 0: Option<Cow<'a, ToolMetadata>>,
        /// Whether the tool is unknown to the client. The same on every chunk of a call.
        dynamic "dynamic": Option<bool>,
        /// The title that the user sees instead of the name of the tool.
        title "title" @ 0 / 0: Option<Cow<'a, str>>,
    }
    /// Asks the user whether a tool call may run.
    "tool-approval-request" ToolApprovalRequest @ 0 / 0 {
        /// The id of the approval request. The response carries the same id.
        approval_id "approvalId": Cow<'a, str>,
        /// The id of the call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// What to show the user.
        approval_descriptor "approvalDescriptor" @ 274 / 87: Option<Cow<'a, Json>>,
        /// The input as the tool's schema parsed it, where that differs.
        input_schema_input "inputSchemaInput" @ 290 / 113: Option<Cow<'a, Json>>,
        /// Why the user is asked.
        reason "reason" @ _ / 82: Option<Cow<'a, str>>,
        /// Whether a policy gives the answer. Then no user is asked.
        is_automatic "isAutomatic" @ _ / 0: Option<bool>,
        /// A signature that the client returns unread.
        signature "signature" @ 202 / 0: Option<Cow<'a, str>>,
    }
    /// Announces the answer to an approval request of the message.
    "tool-approval-response" ToolApprovalResponse @ _ / 0 {
        /// The id of the approval request.
        approval_id "approvalId": Cow<'a, str>,
        /// Whether the call may run.
        approved "approved": bool,
        /// The reason of the answer.
        reason "reason": Option<Cow<'a, str>>,
        /// Whether the provider runs the tool.
        provider_executed "providerExecuted": Option<bool>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// The output of a tool, `preliminary` if a later output replaces it.
    "tool-output-available" ToolOutputAvailable {
        /// The id of the call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// The output.
        output "output": Option<Cow<'a, Json>>,
        /// Whether the provider ran the tool.
        provider_executed "providerExecuted": Option<bool>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata" @ 120 / 0: Option<Cow<'a, ProviderMetadata>>,
        /// Metadata of the application.
        tool_metadata "toolMetadata" @ 176 / 0: Option<Cow<'a, ToolMetadata>>,
        /// Whether the tool is unknown to the client. The same on every chunk of a call.
        dynamic "dynamic": Option<bool>,
        /// Whether a later output replaces this one.
        preliminary "preliminary" @ 0 / 0: Option<bool>,
    }
    /// A tool call failed, or the server refused to run it.
    "tool-output-error" ToolOutputError {
        /// The id of the call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// The text that the user sees.
        error_text "errorText": Cow<'a, str>,
        /// Whether the provider ran the tool.
        provider_executed "providerExecuted": Option<bool>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata" @ 120 / 0: Option<Cow<'a, ProviderMetadata>>,
        /// Metadata of the application.
        tool_metadata "toolMetadata" @ 176 / 0: Option<Cow<'a, ToolMetadata>>,
        /// Whether the tool is unknown to the client. The same on every chunk of a call.
        dynamic "dynamic": Option<bool>,
    }
    /// The user denied the call.
    "tool-output-denied" ToolOutputDenied @ 0 / 0 {
        /// The id of the call.
        tool_call_id "toolCallId": Cow<'a, str>,
    }
    /// A web page that the answer rests on.
    "source-url" SourceUrl {
        /// The id of the source.
        source_id "sourceId": Cow<'a, str>,
        /// Its URL.
        url "url": Cow<'a, str>,
        /// Its title.
        title "title": Option<Cow<'a, str>>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// A document that the answer rests on.
    "source-document" SourceDocument {
        /// The id of the source.
        source_id "sourceId": Cow<'a, str>,
        /// Its media type.
        media_type "mediaType": Cow<'a, str>,
        /// Its title.
        title "title": Cow<'a, str>,
        /// Its file name.
        filename "filename": Option<Cow<'a, str>>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// A file that the model made.
    "file" File {
        /// Its URL: `https:` or `data:`.
        url "url": Cow<'a, str>,
        /// Its media type.
        media_type "mediaType": Cow<'a, str>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// A file that the model made while it reasoned.
    "reasoning-file" ReasoningFile @ _ / 0 {
        /// Its URL: `https:` or `data:`.
        url "url": Cow<'a, str>,
        /// Its media type.
        media_type "mediaType": Cow<'a, str>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// Content of a provider that has no kind of its own, for example a compaction.
    "custom" Custom @ _ / 0 {
        /// What it is: `<provider>.<type>`.
        content_kind "kind": Cow<'a, str>,
        /// Metadata that the provider expects back with the next request.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// Merged into the message's metadata.
    "message-metadata" MessageMetadata {
        /// What to merge.
        message_metadata "messageMetadata": Option<Cow<'a, Json>>,
    }
    /// Closes a step.
    "finish-step" FinishStep {}
    /// Removes the parts of the current step: its model call is repeated.
    "reset-step" ResetStep @ _ / 70 {}
    /// Reports a failure. The client stops reading here.
    "error" Error {
        /// The text that the user sees.
        error_text "errorText": Cow<'a, str>,
    }
    /// The run was stopped.
    "abort" Abort {
        /// Who or what stopped it.
        reason "reason" @ 15 / 0: Option<Cow<'a, str>>,
    }
    /// Closes the message.
    "finish" Finish {
        /// The reason.
        finish_reason "finishReason" @ 0 / 0: Option<FinishReason>,
        /// Merged into the message's metadata.
        message_metadata "messageMetadata": Option<Cow<'a, Json>>,
    }
}

impl Serialize for Chunk<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", &self.kind())?;
        let mut entries = Entries { map, failed: None };
        self.write_fields(&mut entries);
        match entries.failed {
            Some(error) => Err(error),
            None => entries.map.end(),
        }
    }
}
