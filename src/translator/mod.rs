//! [`Translator`]: agent events in, chunks out.
//!
//! Its promise: whatever events come, in whatever order, the chunks that go out are a sequence that
//! the real client accepts, and reducing them gives the message that the events meant. So it opens
//! and closes parts and steps, knows the message being continued, and turns what cannot be meant
//! into a [`TranslateError`] instead of a chunk that the client would throw at.
//!
//! It is synchronous and holds no events: one event becomes its chunks at once.

mod close;
mod error;
mod open_parts;
mod passthrough;
mod tool_calls;
mod tools;

use std::borrow::Cow;

pub use self::error::TranslateError;

use self::open_parts::{Kind, OpenParts};
use self::tool_calls::ToolCalls;
use crate::chunk::{Chunk, Version};
use crate::event::{AgentEvent, Data, File, Source};
use crate::id::MessageId;
use crate::json::Json;
use crate::message::{Part, Role, UiMessage};
use crate::metadata::ProviderMetadata;

/// Turns one response's events into its chunks.
///
/// ```
/// use ui_message_stream::chunk::{Chunk, FinishReason};
/// use ui_message_stream::{AgentEvent, Translator};
///
/// let mut translator = Translator::new("msg_1");
/// let mut kinds = Vec::new();
/// for event in [AgentEvent::text("Hello"), AgentEvent::finish(FinishReason::Stop)] {
///     translator.handle_event(&event, &mut |chunk: Chunk<'_>| kinds.push(chunk.kind()))?;
/// }
/// assert_eq!(
///     kinds,
///     ["start", "start-step", "text-start", "text-delta", "text-end", "finish-step", "finish"]
/// );
/// # Ok::<(), ui_message_stream::translator::TranslateError>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Translator {
    version: Version,
    approvals: bool,
    message_id: Option<MessageId>,
    metadata: Option<Json>,
    /// The continued message has metadata that no object can be merged into.
    metadata_is_closed: bool,
    started: bool,
    ended: bool,
    step: Step,
    texts: OpenParts,
    reasoning: OpenParts,
    calls: ToolCalls,
}

/// Where the stream is among the steps.
#[derive(Debug, Default)]
struct Step {
    open: bool,
    /// The agent said that it begins, or it is said with its first content.
    announced: bool,
    /// The agent did not say that it begins.
    implied: bool,
    /// How many steps this response has begun; 0 is the continued message's last one.
    number: u32,
}

impl Translator {
    /// Translates the response that begins a new message.
    ///
    /// With an id, a client that reconnects replaces its copy instead of making a second message.
    pub fn new(message_id: impl Into<MessageId>) -> Self {
        Self::with_id(Some(message_id.into()))
    }

    /// Translates the response that begins a new message, whose id the client makes.
    pub fn unnamed() -> Self {
        Self::with_id(None)
    }

    /// Translates the response that goes on with this assistant message, as the client holds it.
    ///
    /// The message keeps its id, and its calls are known: results may come for them, before the
    /// first step, and none is announced again. A message of another role is not gone on with: the
    /// client would take it for replaced.
    pub fn continuing(message: &UiMessage) -> Self {
        if message.role != Role::Assistant {
            return Self::unnamed();
        }
        let mut translator = Self::new(message.id.clone());
        translator.metadata_is_closed = message
            .metadata
            .as_ref()
            .is_some_and(|metadata| !metadata.is_null() && !metadata.is_object());
        let last_step =
            message.parts.iter().rposition(|part| matches!(part, Part::StepStart { .. }));
        for (index, part) in message.parts.iter().enumerate() {
            if let Part::Tool(part) = part {
                translator.calls.continue_call(part, last_step.is_none_or(|start| index > start));
            }
        }
        translator
    }

    fn with_id(message_id: Option<MessageId>) -> Self {
        Translator {
            version: Version::default(),
            approvals: true,
            message_id,
            metadata: None,
            metadata_is_closed: false,
            started: false,
            ended: false,
            step: Step::default(),
            texts: OpenParts::new("text"),
            reasoning: OpenParts::new("reasoning"),
            calls: ToolCalls::default(),
        }
    }

    /// Writes for the oldest client that will read; [`Version::V6`] unless set.
    pub fn with_version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// Never asks a person: a call that needs an approval is refused instead.
    ///
    /// Always so for clients that know no approvals. The agent must not run such a call either.
    pub fn without_approvals(mut self) -> Self {
        self.approvals = false;
        self
    }

    /// Metadata that the message starts with: an object. Anything else is left out, see
    /// [`TranslateError::Metadata`].
    pub fn with_metadata(mut self, metadata: Json) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Opens the message, if nothing did yet. Call it before anything slow begins.
    pub fn start(&mut self, out: &mut impl FnMut(Chunk<'_>)) {
        self.ensure_started(out);
    }

    /// Turns an event into its chunks, in order.
    ///
    /// # Errors
    /// [`TranslateError`] says what about the event cannot be meant. The chunks that went out
    /// before and the ones that follow are as valid as ever.
    #[inline]
    pub fn handle_event(
        &mut self,
        event: &AgentEvent,
        out: &mut impl FnMut(Chunk<'_>),
    ) -> Result<(), TranslateError> {
        if let AgentEvent::TextDelta { id: None, delta } = event
            && !delta.is_empty()
            && let Some(id) = self.texts.unnamed()
        {
            out(Chunk::TextDelta {
                id: Cow::Borrowed(id),
                delta: Cow::Borrowed(delta),
                provider_metadata: None,
            });
            return Ok(());
        }
        self.handle_other(event, out)
    }

    /// Ends the message: closes what is open, then says that it ended.
    ///
    /// Emits nothing if an event already ended it. Nothing can follow: the translator is consumed.
    pub fn finish(mut self, out: &mut impl FnMut(Chunk<'_>)) {
        if !self.ended {
            // Without metadata there is nothing to refuse.
            let _ = self.end_finished(None, None, out);
        }
    }

    fn handle_other(&mut self, event: &AgentEvent, out: Out<'_>) -> Result<(), TranslateError> {
        if self.ended {
            return Err(TranslateError::Ended);
        }
        match event {
            AgentEvent::StepStart => self.start_step(out),
            AgentEvent::TextStart { id } => self.start_part(Kind::Text, id, None, out),
            AgentEvent::TextDelta { id, delta } => {
                self.add_to_part(Kind::Text, id.as_ref(), delta, None, out);
            }
            AgentEvent::TextEnd { id } => self.end_part(Kind::Text, Some(id), None, out)?,
            AgentEvent::ReasoningStart { id } => self.start_part(Kind::Reasoning, id, None, out),
            AgentEvent::ReasoningDelta { id, delta } => {
                self.add_to_part(Kind::Reasoning, id.as_ref(), delta, None, out);
            }
            AgentEvent::ReasoningEnd { id, provider_metadata } => {
                let metadata = provider_metadata.as_ref();
                self.end_part(Kind::Reasoning, id.as_ref(), metadata, out)?;
            }
            AgentEvent::ToolInputStart { call } => self.start_tool_input(call, None, out)?,
            AgentEvent::ToolInputDelta { tool_call_id, delta } => {
                self.add_tool_input(tool_call_id, delta, out)?;
            }
            AgentEvent::ToolInput { call, input } => self.tool_input(call, input, out)?,
            AgentEvent::ToolInputInvalid { call, input, error } => {
                self.invalid_tool_input(call, input, error, out)?;
            }
            AgentEvent::ApprovalRequested { tool_call_id, approval_id, details } => {
                let details = details.as_deref();
                let question = tools::Question {
                    approval_id,
                    descriptor: details.and_then(|details| details.descriptor.as_ref()),
                    input_schema_input: None,
                    signature: details.and_then(|details| details.signature.as_deref()),
                };
                self.ask(tool_call_id, &question, out)?;
            }
            AgentEvent::ToolDenied { tool_call_id } => self.deny(tool_call_id, out)?,
            AgentEvent::ToolOutput { tool_call_id, output, preliminary } => {
                let result = tools::Output::plain(output, *preliminary);
                self.tool_output(tool_call_id, &result, out)?;
            }
            AgentEvent::ToolFailed { tool_call_id, error } => {
                self.tool_failed(tool_call_id, error, tools::Attached::NONE, out)?;
            }
            AgentEvent::Source(source) => self.source(source, out),
            AgentEvent::File(file) => self.file(file, None, out),
            AgentEvent::Data(data) => self.data(data, out),
            AgentEvent::Metadata(metadata) => self.add_metadata(metadata, out)?,
            AgentEvent::StepFinish => self.finish_step(out),
            AgentEvent::Error { error_text } => self.end_failed(error_text, out),
            AgentEvent::Abort { reason } => self.end_aborted(reason.as_deref(), out),
            AgentEvent::Finish { reason, metadata } => {
                self.end_finished(Some(*reason), metadata.as_ref(), out)?;
            }
            AgentEvent::Chunk(chunk) => self.pass_through(chunk, out)?,
        }
        Ok(())
    }

    /// Whether a person can be asked, and so whether a denial can be shown.
    fn can_ask(&self) -> bool {
        self.approvals && self.version.knows_approvals()
    }

    /// The one way out: no field leaves that the client does not know.
    fn emit(&self, chunk: Chunk<'_>, out: Out<'_>) {
        out(chunk.for_version(self.version));
    }

    fn ensure_started(&mut self, out: Out<'_>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        let chunk = Chunk::Start {
            message_id: self.message_id.as_deref().map(Cow::Borrowed),
            message_metadata: self
                .metadata
                .as_ref()
                .filter(|metadata| self.can_merge(metadata))
                .map(Cow::Borrowed),
        };
        self.emit(chunk, out);
    }

    /// The client's merge of metadata throws, or makes nonsense, unless both sides are objects.
    fn can_merge(&self, metadata: &Json) -> bool {
        metadata.is_object() && !self.metadata_is_closed
    }

    /// Makes room for content: the message is open, and a step.
    ///
    /// Content that follows the results of all tool calls belongs to the next model call. Where the
    /// agent marks no steps, the next one begins here.
    fn open_step(&mut self, out: Out<'_>) {
        self.ensure_started(out);
        let may_end = self.step.open && self.step.implied;
        let has_named = self.texts.has_named() || self.reasoning.has_named();
        if may_end && !has_named && self.calls.step_is_over(self.step.number) {
            self.finish_step(out);
        }
        if !self.step.open {
            self.step = Step {
                open: true,
                announced: false,
                implied: !self.step.announced,
                number: self.step.number + 1,
            };
            self.emit(Chunk::StartStep {}, out);
        }
    }

    fn start_step(&mut self, out: Out<'_>) {
        self.ensure_started(out);
        self.finish_step(out);
        // It is written with its first content: the client shows no step before, and a step that
        // stays empty would hide the last one from what decides about resubmission.
        self.step.announced = true;
    }

    fn finish_step(&mut self, out: Out<'_>) {
        self.ensure_started(out);
        self.close_parts(out);
        self.close_streaming_inputs(out);
        self.step.announced = false;
        if std::mem::take(&mut self.step.open) {
            self.emit(Chunk::FinishStep {}, out);
        }
    }

    fn source(&mut self, source: &Source, out: Out<'_>) {
        self.open_step(out);
        let chunk = match source {
            Source::Url { source_id, url, title } => Chunk::SourceUrl {
                source_id: Cow::Borrowed(source_id),
                url: Cow::Borrowed(url),
                title: title.as_deref().map(Cow::Borrowed),
                provider_metadata: None,
            },
            Source::Document { source_id, media_type, title, filename } => Chunk::SourceDocument {
                source_id: Cow::Borrowed(source_id),
                media_type: Cow::Borrowed(media_type),
                title: Cow::Borrowed(title),
                filename: filename.as_deref().map(Cow::Borrowed),
                provider_metadata: None,
            },
        };
        self.emit(chunk, out);
    }

    fn file(&mut self, file: &File, metadata: Option<&ProviderMetadata>, out: Out<'_>) {
        self.open_step(out);
        self.close_unnamed(out);
        let chunk = Chunk::File {
            url: Cow::Borrowed(&file.url),
            media_type: Cow::Borrowed(&file.media_type),
            provider_metadata: metadata.map(Cow::Borrowed),
        };
        self.emit(chunk, out);
    }

    /// Data stands where it comes, within a step or between two.
    fn data(&mut self, data: &Data, out: Out<'_>) {
        self.ensure_started(out);
        let chunk = Chunk::Data {
            name: Cow::Borrowed(&data.name),
            id: data.id.as_deref().map(Cow::Borrowed),
            data: Some(Cow::Borrowed(&data.data)),
            transient: data.transient.then_some(true),
        };
        self.emit(chunk, out);
    }

    fn add_metadata(&mut self, metadata: &Json, out: Out<'_>) -> Result<(), TranslateError> {
        self.ensure_started(out);
        if metadata.is_null() {
            return Ok(());
        }
        if !self.can_merge(metadata) {
            return Err(TranslateError::Metadata);
        }
        let message_metadata = Some(Cow::Borrowed(metadata));
        self.emit(Chunk::MessageMetadata { message_metadata }, out);
        Ok(())
    }
}

/// Where chunks go.
type Out<'o> = &'o mut dyn FnMut(Chunk<'_>);
