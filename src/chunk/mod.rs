//! [`Chunk`]: one object of the UI message stream, every kind that `ai@6` knows.
//!
//! The table below is the protocol: kind, fields in the order of the wire, and for a field that
//! `ai@6.0.0` does not know, the version that brought it (`@ 202`: `ai@6.0.202`; `@ 0`: not in
//! `ai@5`). Which fields may be sent to which client is read off this table and stands nowhere else;
//! that `ai@5` lacks three kinds is the translator's business.
//!
//! A [`Chunk`] is what is written: it cannot be of a kind or hold a field that the client refuses.
//! What is read is a [`Received`]: also fields and kinds that this crate does not know, kept.
//!
//! Wire: [stream protocol](https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol)

mod field;
mod finish_reason;
mod received;
mod version;

use std::borrow::Cow;
use std::fmt;

use serde::de::Error as _;
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

pub use self::finish_reason::FinishReason;
pub use self::received::{ReadChunkError, Received};
pub use self::version::Version;

use self::field::Field;
pub(crate) use self::field::FieldWriter;
use crate::id::ApprovalId;
use crate::json::Json;
use crate::metadata::{ProviderMetadata, ToolMetadata};
use crate::record::{FieldError, Object};

/// How a tool's input streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum InputEncoding {
    /// As pieces of JSON, which the client repairs as they come.
    Json,
    /// As plain text.
    Text,
}

impl InputEncoding {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            InputEncoding::Json => "json",
            InputEncoding::Text => "text",
        }
    }

    pub(crate) fn from_wire(word: &str) -> Option<Self> {
        Some(match word {
            "json" => InputEncoding::Json,
            "text" => InputEncoding::Text,
            _ => return None,
        })
    }
}

/// Makes the enum, its reader and its writer from one table.
macro_rules! chunks {
    ($(
        $(#[$doc:meta])*
        $kind:literal $variant:ident {
            $( $(#[$field_doc:meta])* $field:ident $key:literal $(@ $since:literal)? : $type:ty, )*
        }
    )*) => {
        /// One object of the UI message stream.
        ///
        /// It borrows on its way out and owns what it holds when it is kept ([`Chunk::into_owned`]).
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
            /// `data-<name>`: data of the application. With an `id` it replaces what came before
            /// under the same name and id; `transient` data is shown to `onData` and not kept.
            Data {
                /// What follows `data-` in the kind.
                name: Cow<'a, str>,
                /// Which data this replaces.
                id: Option<Cow<'a, str>>,
                /// The data.
                data: Option<Cow<'a, Json>>,
                /// Whether the message does not keep it.
                transient: Option<bool>,
            },
        }

        impl<'a> Chunk<'a> {
            /// The `type` on the wire.
            pub fn kind(&self) -> Cow<'static, str> {
                match self {
                    $( Chunk::$variant { .. } => Cow::Borrowed($kind), )*
                    Chunk::Data { name, .. } => Cow::Owned(format!("data-{name}")),
                }
            }

            /// The `type` on the wire, in two pieces, so that nothing is allocated for it.
            pub(crate) fn kind_pieces(&self) -> (&'static str, &str) {
                match self {
                    $( Chunk::$variant { .. } => ($kind, ""), )*
                    Chunk::Data { name, .. } => ("data-", name),
                }
            }

            /// Keeps the chunk beyond what it borrows from.
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

            /// Leaves out the fields that a client of this version does not know.
            ///
            /// The kind is not looked at: of the kinds, `ai@5` lacks `tool-input-error`,
            /// `tool-approval-request` and `tool-output-denied`.
            #[must_use]
            pub fn for_version(self, version: Version) -> Self {
                match self {
                    $( Chunk::$variant { $( mut $field ),* } => {
                        $( $( if !version.knows(since($since)) { $field.leave_out(); } )? )*
                        $( let _ = &mut $field; )*
                        Chunk::$variant { $($field),* }
                    } )*
                    data => data,
                }
            }

            /// Hands over the fields in the order of the wire, without the `type`.
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

            /// The name of the variant and its fields, an approval's id redacted.
            fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $( Chunk::$variant { $($field),* } => {
                        let mut shown = f.debug_struct(stringify!($variant));
                        $( shown.field(stringify!($field), &Shown($key, $field)); )*
                        shown.finish()
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

            /// Reads the fields of a known kind; `None` if the kind is not known.
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
        self.show(f)
    }
}

/// A field under its key: the id of an approval is shown as [`ApprovalId`] shows it.
struct Shown<'a>(&'static str, &'a dyn fmt::Debug);

impl fmt::Debug for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 != "approvalId" {
            return self.1.fmt(f);
        }
        let quoted = format!("{:?}", self.1);
        ApprovalId::new(quoted.trim_matches('"')).fmt(f)
    }
}

/// The version a number in the table stands for.
fn since(patch: u16) -> Version {
    if patch == 0 { Version::V6 } else { Version::V6At(patch) }
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
        /// Names the part until its end.
        id "id": Cow<'a, str>,
        /// What the provider wants back.
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
        /// Replaces the part's own.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// Opens a reasoning part.
    "reasoning-start" ReasoningStart {
        /// Names the part until its end.
        id "id": Cow<'a, str>,
        /// What the provider wants back.
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
        /// Names the call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// Which tool.
        tool_name "toolName": Cow<'a, str>,
        /// How the input streams; JSON if not said.
        input_encoding "inputEncoding" @ 308: Option<InputEncoding>,
        /// Whether the provider runs the tool.
        provider_executed "providerExecuted": Option<bool>,
        /// What the provider wants back.
        provider_metadata "providerMetadata" @ 39: Option<Cow<'a, ProviderMetadata>>,
        /// What the application attaches.
        tool_metadata "toolMetadata" @ 176: Option<Cow<'a, ToolMetadata>>,
        /// Whether the client does not know the tool by name. The same on every chunk of a call.
        dynamic "dynamic": Option<bool>,
        /// What a person reads instead of the name.
        title "title" @ 0: Option<Cow<'a, str>>,
    }
    /// Adds to a streaming tool input.
    "tool-input-delta" ToolInputDelta {
        /// Which call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// The text to add.
        input_text_delta "inputTextDelta": Cow<'a, str>,
    }
    /// A tool call with its whole input.
    "tool-input-available" ToolInputAvailable {
        /// Names the call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// Which tool.
        tool_name "toolName": Cow<'a, str>,
        /// The input.
        input "input": Option<Cow<'a, Json>>,
        /// Whether the provider runs the tool.
        provider_executed "providerExecuted": Option<bool>,
        /// What the provider wants back.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
        /// What the application attaches.
        tool_metadata "toolMetadata" @ 176: Option<Cow<'a, ToolMetadata>>,
        /// Whether the client does not know the tool by name. The same on every chunk of a call.
        dynamic "dynamic": Option<bool>,
        /// What a person reads instead of the name.
        title "title" @ 0: Option<Cow<'a, str>>,
    }
    /// A tool call whose input is not what the tool takes. Not in `ai@5`.
    "tool-input-error" ToolInputError {
        /// Names the call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// Which tool.
        tool_name "toolName": Cow<'a, str>,
        /// The input as it came; text that is not JSON stands here as a string.
        input "input": Option<Cow<'a, Json>>,
        /// What is wrong with it.
        error_text "errorText": Cow<'a, str>,
        /// Whether the provider runs the tool.
        provider_executed "providerExecuted": Option<bool>,
        /// What the provider wants back.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
        /// What the application attaches.
        tool_metadata "toolMetadata" @ 176: Option<Cow<'a, ToolMetadata>>,
        /// Whether the client does not know the tool by name. The same on every chunk of a call.
        dynamic "dynamic": Option<bool>,
        /// What a person reads instead of the name.
        title "title" @ 0: Option<Cow<'a, str>>,
    }
    /// Asks a person whether a tool may run. Not in `ai@5`.
    "tool-approval-request" ToolApprovalRequest {
        /// Names the question; the answer comes back under it.
        approval_id "approvalId": Cow<'a, str>,
        /// Which call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// What to show the person.
        approval_descriptor "approvalDescriptor" @ 274: Option<Cow<'a, Json>>,
        /// The input as the schema saw it, where it differs.
        input_schema_input "inputSchemaInput" @ 290: Option<Cow<'a, Json>>,
        /// Opaque to the client, which returns it.
        signature "signature" @ 202: Option<Cow<'a, str>>,
    }
    /// What a tool returned; `preliminary` if more is to come.
    "tool-output-available" ToolOutputAvailable {
        /// Which call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// The output.
        output "output": Option<Cow<'a, Json>>,
        /// Whether the provider ran the tool.
        provider_executed "providerExecuted": Option<bool>,
        /// What the provider wants back.
        provider_metadata "providerMetadata" @ 120: Option<Cow<'a, ProviderMetadata>>,
        /// What the application attaches.
        tool_metadata "toolMetadata" @ 176: Option<Cow<'a, ToolMetadata>>,
        /// Whether the client does not know the tool by name. The same on every chunk of a call.
        dynamic "dynamic": Option<bool>,
        /// Whether a later output replaces this one.
        preliminary "preliminary" @ 0: Option<bool>,
    }
    /// A tool failed, or was refused by the server.
    "tool-output-error" ToolOutputError {
        /// Which call.
        tool_call_id "toolCallId": Cow<'a, str>,
        /// What the person reads.
        error_text "errorText": Cow<'a, str>,
        /// Whether the provider ran the tool.
        provider_executed "providerExecuted": Option<bool>,
        /// What the provider wants back.
        provider_metadata "providerMetadata" @ 120: Option<Cow<'a, ProviderMetadata>>,
        /// What the application attaches.
        tool_metadata "toolMetadata" @ 176: Option<Cow<'a, ToolMetadata>>,
        /// Whether the client does not know the tool by name. The same on every chunk of a call.
        dynamic "dynamic": Option<bool>,
    }
    /// The person said no. Not in `ai@5`.
    "tool-output-denied" ToolOutputDenied {
        /// Which call.
        tool_call_id "toolCallId": Cow<'a, str>,
    }
    /// A web page that the answer rests on.
    "source-url" SourceUrl {
        /// Names the source.
        source_id "sourceId": Cow<'a, str>,
        /// Where it is.
        url "url": Cow<'a, str>,
        /// Its title.
        title "title": Option<Cow<'a, str>>,
        /// What the provider wants back.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// A document that the answer rests on.
    "source-document" SourceDocument {
        /// Names the source.
        source_id "sourceId": Cow<'a, str>,
        /// Its media type.
        media_type "mediaType": Cow<'a, str>,
        /// Its title.
        title "title": Cow<'a, str>,
        /// Its file name.
        filename "filename": Option<Cow<'a, str>>,
        /// What the provider wants back.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// A file that the model made.
    "file" File {
        /// Where it is: `https:` or `data:`.
        url "url": Cow<'a, str>,
        /// Its media type.
        media_type "mediaType": Cow<'a, str>,
        /// What the provider wants back.
        provider_metadata "providerMetadata": Option<Cow<'a, ProviderMetadata>>,
    }
    /// Merged into the message's metadata.
    "message-metadata" MessageMetadata {
        /// What to merge.
        message_metadata "messageMetadata": Option<Cow<'a, Json>>,
    }
    /// Closes a step.
    "finish-step" FinishStep {}
    /// Something failed; the client stops reading here.
    "error" Error {
        /// What the person reads.
        error_text "errorText": Cow<'a, str>,
    }
    /// The run was stopped.
    "abort" Abort {
        /// By whom or by what.
        reason "reason" @ 15: Option<Cow<'a, str>>,
    }
    /// Closes the message.
    "finish" Finish {
        /// Why.
        finish_reason "finishReason" @ 0: Option<FinishReason>,
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

/// Writes fields as entries of a serde map, keeping the first failure.
pub(crate) struct Entries<M: SerializeMap> {
    pub(crate) map: M,
    pub(crate) failed: Option<M::Error>,
}

impl<M: SerializeMap> Entries<M> {
    fn entry<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        if self.failed.is_none() {
            self.failed = self.map.serialize_entry(key, value).err();
        }
    }
}

impl<M: SerializeMap> FieldWriter for Entries<M> {
    fn text(&mut self, key: &'static str, value: &str) {
        self.entry(key, value);
    }
    fn json(&mut self, key: &'static str, value: &Json) {
        self.entry(key, value);
    }
    fn flag(&mut self, key: &'static str, value: bool) {
        self.entry(key, &value);
    }
}

/// Reads a chunk of a known kind, dropping fields that this crate does not know.
impl<'de> Deserialize<'de> for Chunk<'static> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        match Received::parse(raw.get()).map_err(D::Error::custom)? {
            Received::Known { chunk, .. } => Ok(chunk.into_owned()),
            Received::Unknown { kind, .. } => {
                Err(D::Error::custom(format!("unknown kind of chunk `{kind}`")))
            }
        }
    }
}
