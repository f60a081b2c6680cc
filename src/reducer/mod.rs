//! [`Reducer`]: takes chunks and returns the [`UiMessage`] that the AI SDK client holds.
//!
//! The stored message should be the message that the browser shows. The reducer therefore agrees
//! with `ai@6.0.326` in every respect: which part a chunk refers to, which fields a second chunk
//! keeps from the first, how metadata is merged, and how an incomplete tool input is repaired.
//! Where the client throws, the reducer returns a [`ReduceError`].
//!
//! The time to push a chunk is proportional to the size of the chunk, but for `reset-step` and
//! `tool-approval-response`, which search the message. The time to read the message
//! is proportional to the size of the changes since the last read. The metadata is one value: a
//! change to it counts with the size of the whole metadata. The reducer holds the message and the
//! text of the tool inputs that were streamed, because the client accepts deltas of these until the
//! stream ends. If the complete input is equal to the streamed text, the reducer holds it once. A
//! stream can be wrong although the client accepts it: the [`checker`](crate::checker) reports
//! that. [`compact`] works in the other direction: it turns a message into the fewest chunks that
//! rebuild it.
//!
//! There are three differences from a browser:
//!
//! - A browser's strings may hold half of a surrogate pair. A [`ChunkReader`](crate::chunk::ChunkReader) joins two halves
//!   in two deltas, as a browser does. Each other half becomes U+FFFD, or is left out at the end of a part, except within
//!   a [`Json`](crate::Json), which stays as it was sent.
//! - A browser's numbers are doubles. Here numbers keep their text.
//! - A browser supports about 1 500 levels of nesting. Here only the depth of merged metadata is
//!   limited.
//!
//! Wire: [stream protocol](https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol)

mod tool_part_fields;
mod compact;
mod error;
mod merge;
mod response_reader;
mod partial_json;
mod state;
mod tool_calls;
mod streamed_input;

use std::borrow::Cow;
use std::collections::HashMap;

pub use self::compact::{CompactError, compact};
pub use self::error::ReduceError;
pub use self::partial_json::PartialJson;
pub use self::response_reader::{ReadResponseError, ResponseReader};
pub use self::state::ResetOn;

use self::state::State;
use crate::chunk::{Chunk, FinishReason, ReceivedChunk, Version};
use crate::message::{Part, Role, UiMessage};

/// Reduces a stream, chunk by chunk, to the message that the client holds.
///
/// ```
/// use ui_message_stream::chunk::ChunkReader;
/// use ui_message_stream::reducer::Reducer;
///
/// let (mut reader, mut reducer) = (ChunkReader::default(), Reducer::new());
/// for chunk in [
///     r#"{"type":"start","messageId":"msg_1"}"#,
///     r#"{"type":"text-start","id":"0"}"#,
///     r#"{"type":"text-delta","id":"0","delta":"Hel"}"#,
///     r#"{"type":"text-delta","id":"0","delta":"lo"}"#,
/// ] {
///     reducer.push(&reader.read(chunk)?)?;
/// }
/// assert_eq!(
///     serde_json::to_string(reducer.message())?,
///     r#"{"id":"msg_1","role":"assistant","parts":[{"type":"text","text":"Hello","state":"streaming"}]}"#,
/// );
///
/// let error = reducer.push(&reader.read(r#"{"type":"text-end","id":"1"}"#)?);
/// assert_eq!(error.unwrap_err().to_string(), r#"`text-end` names part "1", which is not open"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Reducer {
    state: State,
    after_error: AfterError,
    /// How many parts the client shows. `None` until it shows the message.
    shown_parts: Option<usize>,
    /// The parts that the client does not show yet. They are removed from the message while it is
    /// lent by [`rendered`](Self::rendered).
    hidden: Vec<Part>,
    reading: Reading,
}

debug_without_content!(Reducer { shown_parts; hidden });

/// What the reducer does after an `error` chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum AfterError {
    /// Ignores all later chunks, as `Chat` does.
    #[default]
    Stop,
    /// Applies later chunks as before, as `readUIMessageStream` does.
    Continue,
}

/// Whether the reducer still applies chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    Active,
    /// An `error` chunk ended the reading.
    Stopped,
    /// A chunk failed at which the client throws.
    Failed,
}

impl Default for Reducer {
    fn default() -> Self {
        Self::new()
    }
}

impl Reducer {
    /// Creates a reducer for a new message. The message's id is empty until a `start` chunk sets
    /// it; a client generates an id instead.
    pub fn new() -> Self {
        Self::from_state(State::new())
    }

    /// Creates a reducer for a stream that continues this assistant message.
    ///
    /// If the message has another role, the reducer starts a new message with the same id, as
    /// `readUIMessageStream` does. `Chat` would generate a new id instead.
    pub fn continuing(message: UiMessage) -> Self {
        let message = match message.role {
            Role::Assistant => message,
            _ => UiMessage::new(message.id, Role::Assistant, Vec::new()),
        };
        Self::from_state(State::from_message(message))
    }

    fn from_state(state: State) -> Self {
        Reducer {
            state,
            after_error: AfterError::default(),
            shown_parts: None,
            hidden: Vec::new(),
            reading: Reading::Active,
        }
    }

    /// Sets when a `start` chunk empties the message. The default is [`ResetOn::Never`].
    pub fn with_reset_on(mut self, reset_on: ResetOn) -> Self {
        self.state.reset_on = reset_on;
        self
    }

    /// Sets what the reducer does after an `error` chunk. The default is [`AfterError::Stop`].
    pub fn with_after_error(mut self, after_error: AfterError) -> Self {
        self.after_error = after_error;
        self
    }

    /// Sets the client whose message this is. Call this first. The default is the newest `ai@6` that this crate
    /// knows, and all versions of `ai@6` are treated as that one. A client of `ai@7` knows more kinds of chunks, and
    /// from 7.0.79 on keeps texts open over the end of a step.
    ///
    /// ```
    /// use ui_message_stream::chunk::{ReceivedChunk, Version};
    /// use ui_message_stream::reducer::Reducer;
    ///
    /// let chunk = ReceivedChunk::parse(r#"{"type":"custom","kind":"openai.compaction"}"#)?;
    /// assert!(Reducer::new().push(&chunk).is_err());
    /// let mut newer = Reducer::new().with_client(Version::V7);
    /// newer.push(&chunk)?;
    /// assert_eq!(newer.message().parts.len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_client(mut self, version: Version) -> Self {
        self.state.set_client(version);
        self
    }

    /// Leaves out the text of a streamed input once the approval of its call is requested: older clients drop
    /// it then, and newer ones keep it in a field that no chunk can write.
    #[cfg(feature = "approvals")]
    pub fn without_input_texts(mut self) -> Self {
        self.state.calls.drops_input_texts = true;
        self
    }

    /// Applies the next chunk, as it was received.
    ///
    /// # Errors
    /// A [`ReduceError`] if the client would throw at this chunk. The failed chunk does not change
    /// the message, with two exceptions: a `start` changes the message's id, and a `finish` sets
    /// the finish reason. Every later chunk fails with [`ReduceError::AlreadyFailed`].
    pub fn push(&mut self, received: &ReceivedChunk<'_>) -> Result<(), ReduceError> {
        self.accept(|reducer| match received {
            ReceivedChunk::Known { chunk, extra } if is_known(chunk, reducer.state.client) => {
                reducer.state.apply(&as_read(chunk, reducer.state.client), extra)
            }
            ReceivedChunk::Known { chunk, .. } => {
                Err(ReduceError::UnknownKind { kind: (&*chunk.kind()).into() })
            }
            ReceivedChunk::Unknown { kind, .. } => {
                Err(ReduceError::UnknownKind { kind: kind.as_ref().into() })
            }
        })
    }

    /// Applies the next chunk, also kinds and fields that the client does not know.
    ///
    /// # Errors
    /// A [`ReduceError`], as for [`push`](Self::push).
    pub fn push_chunk(&mut self, chunk: &Chunk<'_>) -> Result<(), ReduceError> {
        // Most chunks are deltas of the newest text.
        if let Chunk::TextDelta { id, delta, provider_metadata: None } = chunk
            && self.reading == Reading::Active
            && self.hidden.is_empty()
            && let Some(text) = self.state.newest_text(id)
        {
            text.push_str(delta);
            self.shown_parts = Some(self.state.message.parts.len());
            return Ok(());
        }
        self.accept(|reducer| reducer.state.apply(chunk, &[]))
    }

    /// Returns the whole message so far. It parses each incomplete tool input that changed since
    /// `message` was last called. The time is linear in the size of these inputs.
    ///
    /// The page in the browser may not show all of this message yet, see
    /// [`rendered`](Self::rendered).
    pub fn message(&mut self) -> &UiMessage {
        self.state.message.parts.append(&mut self.hidden);
        self.state.message()
    }

    /// Returns the message as the page in the browser shows it, or `None` if this stream has not
    /// shown it yet.
    ///
    /// A `start-step` is shown only together with the next chunk that is shown. A message is first
    /// shown with the first chunk that gives it an id, metadata or a part. The message is borrowed,
    /// except after a failed `start` that changed its id: then it is a copy with the old id.
    pub fn rendered(&mut self) -> Option<Cow<'_, UiMessage>> {
        let parts = self.shown_parts?;
        self.message();
        let State { message, shown_id, .. } = &mut self.state;
        if parts < message.parts.len() {
            self.hidden = message.parts.split_off(parts);
        }
        Some(match shown_id {
            Some(id) => Cow::Owned(UiMessage { id: id.clone(), ..message.clone() }),
            None => Cow::Borrowed(message),
        })
    }

    /// Exchanges the message for another one with the same parts, or for one that is never read.
    #[cfg(feature = "approvals")]
    pub fn exchange_message(&mut self, message: UiMessage) -> UiMessage {
        self.message();
        std::mem::replace(&mut self.state.message, message)
    }

    /// Returns the message. Call it after the last chunk.
    pub fn into_message(mut self) -> UiMessage {
        self.message();
        self.state.message
    }

    /// Returns the shortest list of chunks that produces the current message. A client that reads
    /// them can continue with the next chunks of this stream.
    ///
    /// Works like [`compact`], but open texts and tool inputs keep the ids that they have in the
    /// stream. Further deltas for an input that was already complete are not supported.
    ///
    /// # Errors
    /// [`CompactError`], as for [`compact`].
    pub fn compact(&mut self) -> Result<Vec<Chunk<'static>>, CompactError> {
        self.message();
        let State { message, texts, reasonings, .. } = &self.state;
        let open = texts.iter().chain(reasonings.iter());
        let open: HashMap<usize, &str> = open.map(|(id, at)| (at, id)).collect();
        let chunks = compact::rebuild(message, Some(&open))?;
        Ok(chunks.into_iter().map(Chunk::into_owned).collect())
    }

    /// Returns the finish reason of the `finish` chunk, or `None` if there was no such chunk or it
    /// had no reason.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.state.finish_reason
    }

    /// Returns the text of the first `error` chunk.
    pub fn error_text(&self) -> Option<&str> {
        self.state.error_text.as_deref()
    }

    /// Returns whether all later chunks are ignored or fail: a chunk failed, or there was an
    /// `error` chunk and the reducer [stops](AfterError::Stop) there. The caller can then stop
    /// reading the stream.
    pub fn has_stopped(&self) -> bool {
        self.reading != Reading::Active
    }

    /// Applies a chunk if chunks are still applied, and records what the client shows after it.
    fn accept(
        &mut self,
        apply: impl FnOnce(&mut Self) -> Result<bool, ReduceError>,
    ) -> Result<(), ReduceError> {
        match self.reading {
            Reading::Active => {}
            Reading::Stopped => return Ok(()),
            Reading::Failed => return Err(ReduceError::AlreadyFailed),
        }
        self.state.message.parts.append(&mut self.hidden);
        let is_shown = apply(self).inspect_err(|_| self.reading = Reading::Failed)?;
        if is_shown {
            self.shown_parts = Some(self.state.message.parts.len());
        }
        if self.after_error == AfterError::Stop && self.state.error_text.is_some() {
            self.reading = Reading::Stopped;
        }
        Ok(())
    }
}

/// Returns the chunk without the fields that only some versions of `ai@7` know, if this client does not.
fn as_read<'c>(chunk: &'c Chunk<'c>, client: Version) -> Cow<'c, Chunk<'c>> {
    match chunk {
        Chunk::TextEnd { citations: Some(_), .. }
        | Chunk::ToolApprovalRequest { reason: Some(_), .. }
        | Chunk::ToolApprovalRequest { is_automatic: Some(_), .. } => {
            Cow::Owned(chunk.clone().for_version(client))
        }
        _ => Cow::Borrowed(chunk),
    }
}

/// Whether the client knows the kind of a chunk, and its finish reason.
fn is_known(chunk: &Chunk<'_>, client: Version) -> bool {
    let reason = match chunk {
        Chunk::Finish { finish_reason, .. } => *finish_reason,
        _ => None,
    };
    chunk.is_kind_known_to(client) && reason.is_none_or(|reason| reason.is_known_to(client))
}
