//! [`Reducer`]: chunks in, the [`UiMessage`] out that the real client holds.
//!
//! What the browser shows is what should be stored, so this agrees with `ai@6.0.326` in everything:
//! where a part is looked for, what a second chunk leaves of the first, how metadata is merged and
//! half a tool input repaired. Where the client throws, this returns a [`ReduceError`].
//!
//! A chunk costs what it holds; looking at the message costs what changed since the last look, and of
//! metadata that was merged all its text, for it is one value. What is held is the message and the
//! text of tool inputs that were streamed, for the client takes deltas of these to the end; where the
//! whole input is written just as it was streamed, that is one text. What is wrong with a stream
//! though the client takes it, the checker says. [`compact`] goes the other way: from a message to
//! the fewest chunks that rebuild it.
//!
//! Three things are otherwise in a browser. Its strings may hold half a surrogate pair, and two
//! halves in two deltas become one character; here each is U+FFFD, except within a
//! [`Json`](crate::Json), which stays as it was sent. Its numbers are doubles; here they keep their
//! text. And it bears about 1 500 levels of nesting; here only metadata that is merged is limited.
//!
//! Wire: [stream protocol](https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol)

mod apply;
mod call;
mod compact;
mod error;
mod held;
mod merge;
mod partial_json;
mod tool_calls;
mod tool_input;

use std::borrow::Cow;
use std::collections::HashMap;

pub use self::compact::{CompactError, compact};
pub use self::error::ReduceError;
pub use self::partial_json::PartialJson;

use self::merge::MergedMetadata;
use self::tool_calls::ToolCalls;
use crate::chunk::{Chunk, FinishReason, Received};
use crate::id::MessageId;
use crate::message::{Part, Role, UiMessage};

/// Reduces a stream, chunk by chunk, to the message that the client holds.
///
/// ```
/// use ui_message_stream::chunk::Received;
/// use ui_message_stream::reducer::Reducer;
///
/// let mut reducer = Reducer::new();
/// for chunk in [
///     r#"{"type":"start","messageId":"msg_1"}"#,
///     r#"{"type":"text-start","id":"0"}"#,
///     r#"{"type":"text-delta","id":"0","delta":"Hel"}"#,
///     r#"{"type":"text-delta","id":"0","delta":"lo"}"#,
/// ] {
///     reducer.push(&Received::parse(chunk)?)?;
/// }
/// assert_eq!(
///     serde_json::to_string(reducer.message())?,
///     r#"{"id":"msg_1","role":"assistant","parts":[{"type":"text","text":"Hello","state":"streaming"}]}"#,
/// );
///
/// let error = reducer.push(&Received::parse(r#"{"type":"text-end","id":"1"}"#)?);
/// assert_eq!(error.unwrap_err().to_string(), r#"`text-end` names part "1", which is not open"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Reducer {
    reset_on: ResetOn,
    after_error: AfterError,
    message: UiMessage,
    metadata: MergedMetadata,
    texts: HashMap<Box<str>, usize>,
    reasonings: HashMap<Box<str>, usize>,
    calls: ToolCalls,
    /// Where data is that can be replaced, by name and id.
    data: HashMap<Box<str>, HashMap<Box<str>, usize>>,
    has_started: bool,
    /// How many parts the client shows, once it shows the message.
    shown_parts: Option<usize>,
    /// The parts that it does not show yet, while the message is lent without them.
    hidden: Vec<Part>,
    /// The id that it shows, where a `start` failed that renamed the message.
    shown_id: Option<MessageId>,
    finish_reason: Option<FinishReason>,
    error_text: Option<String>,
    reading: Reading,
}

/// When a `start` chunk empties the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum ResetOn {
    /// Never; another id renames the message. So does `Chat` with the response to a POST.
    #[default]
    Never,
    /// When it has another id than the message. So does `readUIMessageStream`, and `Chat` with a
    /// resumed stream of a transport with `resumeStreamIsReplay: false`.
    OtherId,
    /// When it is the first one, or has another id. So does `Chat` with a resumed stream, which it
    /// takes for a replay from the beginning.
    FirstStart,
}

/// What follows an `error` chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum AfterError {
    /// Nothing: what comes after it is passed over, as by `Chat`.
    #[default]
    Stop,
    /// Whatever comes, as with `readUIMessageStream`.
    ReadOn,
}

/// How the reading of a stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    On,
    /// An `error` chunk came.
    Stopped,
    /// The client threw.
    Failed,
}

impl Default for Reducer {
    fn default() -> Self {
        Self::new()
    }
}

impl Reducer {
    /// Begins a new message. Until a `start` chunk names it, its id is empty; a client makes one up.
    pub fn new() -> Self {
        Self::of(UiMessage::new("", Role::Assistant, Vec::new()))
    }

    /// Goes on with the assistant message that the stream continues.
    ///
    /// Of a message of anyone else only the id is taken, for a new message, as
    /// `readUIMessageStream` does; `Chat` would make up an id of its own.
    pub fn continuing(message: UiMessage) -> Self {
        match message.role {
            Role::Assistant => Self::of(message),
            _ => Self::of(UiMessage::new(message.id, Role::Assistant, Vec::new())),
        }
    }

    fn of(message: UiMessage) -> Self {
        let mut data: HashMap<Box<str>, HashMap<Box<str>, usize>> = HashMap::new();
        for (at, part) in message.parts.iter().enumerate() {
            if let Part::Data(part) = part
                && let Some(id) = &part.id
            {
                data.entry(part.name.clone()).or_default().entry(id.clone()).or_insert(at);
            }
        }
        Reducer {
            reset_on: ResetOn::default(),
            after_error: AfterError::default(),
            metadata: MergedMetadata::of(message.metadata.clone()),
            texts: HashMap::new(),
            reasonings: HashMap::new(),
            calls: ToolCalls::of(&message.parts),
            data,
            message,
            has_started: false,
            shown_parts: None,
            hidden: Vec::new(),
            shown_id: None,
            finish_reason: None,
            error_text: None,
            reading: Reading::On,
        }
    }

    /// Sets when a `start` chunk empties the message. The default is [`ResetOn::Never`].
    pub fn with_reset_on(mut self, reset_on: ResetOn) -> Self {
        self.reset_on = reset_on;
        self
    }

    /// Sets what follows an `error` chunk. The default is [`AfterError::Stop`].
    pub fn with_after_error(mut self, after_error: AfterError) -> Self {
        self.after_error = after_error;
        self
    }

    /// Takes the next chunk, as it came.
    ///
    /// # Errors
    /// [`ReduceError`] wherever the client would throw. The chunk has then changed nothing, but that
    /// a `start` has renamed the message and a `finish` has said why the model stopped. Every later
    /// chunk fails with [`ReduceError::AlreadyFailed`].
    pub fn push(&mut self, received: &Received<'_>) -> Result<(), ReduceError> {
        self.take(|reducer| match received {
            Received::Known { chunk, extra } => reducer.apply(chunk, extra),
            Received::Unknown { kind, .. } => {
                Err(ReduceError::UnknownKind { kind: kind.as_ref().into() })
            }
        })
    }

    /// Takes the next chunk.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_chunk(&mut self, chunk: &Chunk<'_>) -> Result<(), ReduceError> {
        self.take(|reducer| reducer.apply(chunk, &[]))
    }

    /// The message so far, whole. Of what changed since the last look the half-received tool inputs
    /// are repaired, which costs what they hold.
    ///
    /// The client's page may lag behind it: see [`shown`](Self::shown).
    pub fn message(&mut self) -> &UiMessage {
        self.message.parts.append(&mut self.hidden);
        self.calls.put_together(&mut self.message.parts);
        if let Some(metadata) = self.metadata.take_change() {
            self.message.metadata = Some(metadata);
        }
        &self.message
    }

    /// The message as it is on the page; nothing if this stream has not shown it yet.
    ///
    /// A `start-step` is shown only with what comes after it. A message is shown with the first
    /// chunk that gives it an id, metadata, or a part. It is lent, but where a `start` failed that
    /// renamed it: then it is a copy with the old id.
    pub fn shown(&mut self) -> Option<Cow<'_, UiMessage>> {
        let parts = self.shown_parts?;
        self.message();
        if parts < self.message.parts.len() {
            self.hidden = self.message.parts.split_off(parts);
        }
        Some(match &self.shown_id {
            Some(id) => Cow::Owned(UiMessage { id: id.clone(), ..self.message.clone() }),
            None => Cow::Borrowed(&self.message),
        })
    }

    /// The message, when nothing more comes.
    pub fn into_message(mut self) -> UiMessage {
        self.message();
        self.message
    }

    /// Why the model stopped, if a `finish` chunk said so.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }

    /// What the first `error` chunk said.
    pub fn error_text(&self) -> Option<&str> {
        self.error_text.as_deref()
    }

    /// Whether nothing more is read: a chunk failed, or there was an `error` chunk and it
    /// [stops](AfterError::Stop) the reading. Whoever reads the stream need not go on.
    pub fn has_stopped(&self) -> bool {
        self.reading != Reading::On
    }

    /// Takes a chunk, if any is taken, and notes what the client shows of the message.
    fn take(
        &mut self,
        apply: impl FnOnce(&mut Self) -> Result<bool, ReduceError>,
    ) -> Result<(), ReduceError> {
        match self.reading {
            Reading::On => {}
            Reading::Stopped => return Ok(()),
            Reading::Failed => return Err(ReduceError::AlreadyFailed),
        }
        self.message.parts.append(&mut self.hidden);
        let is_shown = apply(self).inspect_err(|_| self.reading = Reading::Failed)?;
        if is_shown {
            self.shown_parts = Some(self.message.parts.len());
        }
        Ok(())
    }

    fn note_error(&mut self, text: &str) {
        self.error_text.get_or_insert_with(|| text.to_owned());
        if self.after_error == AfterError::Stop {
            self.reading = Reading::Stopped;
        }
    }
}
