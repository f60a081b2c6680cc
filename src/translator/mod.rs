//! [`Translator`]: agent events in, chunks out.
//!
//! The translator accepts any events in any order. Its chunks are always a sequence that the AI SDK
//! client accepts, and from which the client builds the message that the events describe. To
//! achieve this, the translator opens and closes parts and steps, and keeps a list of the tool
//! calls of the message, including those of the message that the response continues. An event
//! without a valid translation becomes a [`TranslateError`] instead of a chunk on which the client
//! would throw.
//!
//! The translator is synchronous and buffers no events: each event is translated at once.
//!
//! If all tool calls in the last step have results, `useChat` with `sendAutomaticallyWhen` would send
//! the same request again at once. Such a response ends with one more step, which holds only a part
//! `data-run-end`. Its data is `{"finishReason": …}`, or `{}` if the agent gave no reason. Front ends
//! and readers of the stream can ignore the part and its step.

mod close;
mod error;
mod open_parts;
mod out;
mod passthrough;
mod tool_calls;
mod tool_chunks;
mod tools;

use std::borrow::Cow;

pub use self::error::TranslateError;

use self::close::{close_calls, close_step, close_streaming_inputs, run_end_step};
use self::open_parts::{Kind, OpenParts, PartEnd};
use self::out::Out;
use self::passthrough::pass_through;
pub use self::tool_calls::ResultKind;
use self::tool_calls::ToolCalls;
use crate::UserText;
use crate::chunk::{Chunk, FinishReason, Version};
use crate::event::{AgentEvent, Data, Executor, File, Source};
use crate::id::{MessageId, PartId, ToolCallId};
use crate::json::Json;
use crate::message::{Part, Role, UiMessage, has_scheme};
use crate::metadata::ProviderMetadata;

/// Translates the events of one response to chunks.
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
#[must_use]
pub struct Translator {
    version: Version,
    approvals: bool,
    /// Whether the metadata of a call gets the id that the model gave to it.
    records_model_ids: bool,
    message_id: Option<MessageId>,
    metadata: Option<Json>,
    /// The continued message has metadata that is not an object, so none can be merged into it.
    has_unmergeable_metadata: bool,
    begins_message: bool,
    started: bool,
    ended: bool,
    step: Step,
    parts: OpenParts,
    calls: ToolCalls,
}

debug_without_content!(Translator { version, message_id, started, ended });

/// The current step.
#[derive(Debug, Default)]
struct Step {
    open: bool,
    /// The agent began the next step, whose `start-step` is written with its first content.
    announced: bool,
    /// The step began at content, without an event of the agent.
    implied: bool,
    /// How many steps this response has begun. 0 is the last step of the continued message.
    number: u32,
}

impl Translator {
    /// Creates a translator for a response that begins a new message.
    ///
    /// A client that reconnects finds its copy of the message by this id and replaces it. Without
    /// an id it would add a second message.
    pub fn new(message_id: impl Into<MessageId>) -> Self {
        Self::with_id(Some(message_id.into()))
    }

    /// Creates a translator for a response that begins a new message. The client generates the id
    /// of the message.
    pub fn without_message_id() -> Self {
        Self::with_id(None)
    }

    /// Creates a translator for a response that continues this assistant message, as the client
    /// holds it.
    ///
    /// The message keeps its id. Events may give results to its tool calls, even before the first
    /// step. An event that announces a call which the message already holds, with a complete input
    /// and no result, sends no chunk. If the message is not an assistant message, the response
    /// begins a new message without an id. With the same id the client would replace the message.
    pub fn continuing(message: &UiMessage) -> Self {
        if message.role != Role::Assistant {
            return Self::without_message_id();
        }
        let mut translator = Self::new(message.id.clone());
        translator.begins_message = false;
        translator.has_unmergeable_metadata = message
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
            records_model_ids: false,
            message_id,
            metadata: None,
            has_unmergeable_metadata: false,
            begins_message: true,
            started: false,
            ended: false,
            step: Step::default(),
            parts: OpenParts::new(),
            calls: ToolCalls::default(),
        }
    }

    /// Sets the oldest version of the AI SDK (npm package `ai`) that your clients use. Chunk kinds and
    /// fields that this version does not know are not sent. The default is [`Version::V6`].
    pub fn with_version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// Disables approval requests. If the agent requests an approval, the call gets an error as its
    /// result instead, and the agent must not run it.
    ///
    /// For clients that do not know approvals ([`Version::V5`]), approval requests are always
    /// disabled.
    pub fn without_approvals(mut self) -> Self {
        self.approvals = false;
        self
    }

    /// Returns whether the response begins a message, and continues none.
    #[cfg(feature = "body")]
    pub(crate) fn begins_message(&self) -> bool {
        self.begins_message
    }

    /// Requires a result of these calls of the continued message from this response, because another
    /// response that announced them was cut off.
    #[cfg(feature = "approvals")]
    pub fn require_results(&mut self, ids: &[ToolCallId]) {
        self.calls.require_results(ids);
    }

    /// Marks these calls of the continued message as executed by the client, for which the turn waits.
    #[cfg(feature = "approvals")]
    pub fn set_client_executed(&mut self, ids: &[ToolCallId]) {
        self.calls.set_client_executed(ids);
    }

    /// Leaves these calls open, and no others that are approved: the user has answered them, and their
    /// results come later.
    #[cfg(feature = "approvals")]
    pub fn set_answered(&mut self, ids: &[ToolCallId]) {
        self.calls.set_answered(ids);
    }

    /// Adds to the metadata of a call the id that the model gave to it, if that is too long for the
    /// wire.
    pub fn recording_model_ids(mut self) -> Self {
        self.records_model_ids = true;
        self
    }

    /// Sets the metadata in the `start` chunk. It must be an object; any other value is not sent.
    /// It is not sent either if the continued message has metadata that is not an object, see
    /// [`TranslateError::Metadata`].
    pub fn with_metadata(mut self, metadata: Json) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Emits `start`, if it was not emitted yet. Call it before slow work begins.
    pub fn start(&mut self, out: &mut impl FnMut(Chunk<'_>)) {
        self.ensure_started(&mut Out::new(self.version, out));
    }

    /// Translates an event and passes its chunks to `out`, in order.
    ///
    /// # Errors
    /// A [`TranslateError`] that names the rule that the event breaks. The event is dropped, and
    /// the chunks before and after it form a valid sequence. The caller may continue with the next
    /// event.
    #[inline]
    pub fn handle_event(
        &mut self,
        event: &AgentEvent,
        out: &mut impl FnMut(Chunk<'_>),
    ) -> Result<(), TranslateError> {
        if let AgentEvent::TextDelta { id: None, delta } = event
            && let Some(id) = self.open_part_of(delta)
        {
            out(Chunk::TextDelta {
                id: Cow::Borrowed(id),
                delta: Cow::Borrowed(delta),
                provider_metadata: None,
            });
            return Ok(());
        }
        self.handle_other(event, &mut Out::new(self.version, out))
    }

    /// Translates an event about a call that was settled outside of the response. The model has not
    /// read the result, so the text that it is writing goes on.
    #[cfg(feature = "approvals")]
    pub fn handle_result(
        &mut self,
        event: &AgentEvent,
        out: &mut impl FnMut(Chunk<'_>),
    ) -> Result<(), TranslateError> {
        self.translate(event, &mut Out::new(self.version, out))
    }

    /// Returns the id of the open part that receives this text, which has no id of its own. The
    /// translation is then one delta of that part.
    #[inline]
    pub(crate) fn open_part_of(&self, delta: &str) -> Option<&str> {
        self.parts.unnamed_text().filter(|_| !delta.is_empty())
    }

    /// Ends the message: closes all open parts, gives a result (usually an error) to every open
    /// call that does not wait for the user, the client or the provider, emits `finish-step` if a
    /// step is open, then `finish`. The finish reason is `tool-calls` if a call waits for the user
    /// or the client, and absent otherwise.
    ///
    /// Emits nothing if an event already ended the message. The translator is consumed.
    pub fn finish(mut self, out: &mut impl FnMut(Chunk<'_>)) {
        self.end(out);
    }

    /// Ends the message as [`finish`](Self::finish) does.
    pub fn end(&mut self, out: &mut dyn FnMut(Chunk<'_>)) {
        if !self.ended {
            // It fails only over metadata, and there is none.
            let _ = self.end_finished(None, None, &mut Out::new(self.version, out));
        }
    }

    /// Returns the calls to which this translator gave this kind of result, by their ids on the
    /// wire.
    pub fn settled_as(&self, kind: ResultKind) -> impl Iterator<Item = &ToolCallId> {
        self.calls.settled_as(kind)
    }

    fn handle_other(
        &mut self,
        event: &AgentEvent,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        self.translate(event, out)?;
        if may_be_result(event) {
            self.close_answered_text(out);
        }
        Ok(())
    }

    fn translate(&mut self, event: &AgentEvent, out: &mut Out<'_>) -> Result<(), TranslateError> {
        if self.ended {
            return Err(TranslateError::Ended);
        }
        match event {
            AgentEvent::StepStart => self.start_step(out),
            AgentEvent::TextStart { id } => self.start_part(Kind::Text, id, None, out),
            AgentEvent::TextDelta { id, delta } => {
                self.add_to_part(Kind::Text, id.as_ref(), delta, None, out);
            }
            AgentEvent::TextEnd { id } => {
                self.parts.end(Kind::Text, Some(id), PartEnd::default(), out)?;
            }
            AgentEvent::ReasoningStart { id } => self.start_part(Kind::Reasoning, id, None, out),
            AgentEvent::ReasoningDelta { id, delta } => {
                self.add_to_part(Kind::Reasoning, id.as_ref(), delta, None, out);
            }
            AgentEvent::ReasoningEnd { id, provider_metadata } => {
                let end = PartEnd { metadata: provider_metadata.as_ref(), ..PartEnd::default() };
                self.parts.end(Kind::Reasoning, id.as_ref(), end, out)?;
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
                let request = tools::ApprovalRequest {
                    approval_id,
                    descriptor: details.and_then(|details| details.descriptor.as_ref()),
                    input_schema_input: None,
                    reason: details.and_then(|details| details.reason.as_deref()),
                    is_automatic: None,
                    signature: details.and_then(|details| details.signature.as_deref()),
                };
                self.request_described_approval(tool_call_id, &request, out)?;
            }
            AgentEvent::ToolDenied { tool_call_id } => self.deny(tool_call_id, out)?,
            AgentEvent::DenialOverruled { tool_call_id } => self.overrule_denial(tool_call_id)?,
            AgentEvent::InputChanged { tool_call_id, input } => {
                self.change_input(tool_call_id, input)?;
            }
            AgentEvent::HandedToClient { tool_call_id, input } => {
                self.hand_to_client(tool_call_id, input, out)?;
            }
            AgentEvent::ToolOutput { tool_call_id, output, preliminary } => {
                let result = tools::Output::plain(output, *preliminary);
                self.tool_output(tool_call_id, &result, out)?;
            }
            AgentEvent::ToolFailed { tool_call_id, error } => {
                self.tool_failed(tool_call_id, error, tool_chunks::CallMetadata::NONE, out)?;
            }
            AgentEvent::ToolRefused { tool_call_id, reason } => {
                self.refuse(tool_call_id, reason, out)?;
            }
            AgentEvent::Source(source) => self.source(source, out)?,
            AgentEvent::File(file) => {
                self.file(&file.url, &file_chunk(file), out)?;
            }
            AgentEvent::Data(data) => self.data(data, out),
            AgentEvent::Metadata(metadata) => self.add_metadata(metadata, out)?,
            AgentEvent::StepFinish => self.finish_step(out),
            AgentEvent::Error { error_text } => self.end_failed(error_text, out),
            AgentEvent::Abort { reason } => self.end_aborted(reason.as_deref(), out),
            AgentEvent::Finish { reason, metadata } => {
                self.end_finished(Some(*reason), metadata.as_ref(), out)?;
            }
            AgentEvent::Chunk(chunk) => pass_through(self, chunk, out)?,
        }
        Ok(())
    }

    /// Returns whether the client can show an approval request, and so also a denial.
    fn can_request_approval(&self) -> bool {
        self.approvals && self.version.knows_approvals()
    }

    fn ensure_started(&mut self, out: &mut Out<'_>) {
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
        out.emit(chunk);
    }

    /// Returns whether the client can merge the metadata: it throws, or makes a wrong value, unless
    /// both sides are objects.
    fn can_merge(&self, metadata: &Json) -> bool {
        metadata.is_object() && !self.has_unmergeable_metadata
    }

    /// Opens the message and a step for content that follows, unless they are open.
    ///
    /// Content that follows the results of all tool calls belongs to the next model call. If the
    /// agent marks no steps, the next step begins here.
    fn open_step(&mut self, out: &mut Out<'_>) {
        self.ensure_started(out);
        if self.is_step_answered() {
            self.finish_step(out);
        }
        if !self.step.open {
            self.step = Step {
                open: true,
                announced: false,
                implied: !self.step.announced,
                number: self.step.number + 1,
            };
            out.emit(Chunk::StartStep {});
        }
    }

    /// Returns whether the next content begins another step, although the agent marks none.
    fn is_step_answered(&self) -> bool {
        let may_end = self.step.open && self.step.implied && !self.parts.has_named();
        may_end && self.calls.step_is_over(self.step.number)
    }

    /// Closes the text that is being written, after a result, if all tool calls of the step now have
    /// results: text that follows belongs to the next step. Reasoning stays open, because the end of
    /// its part may have metadata.
    fn close_answered_text(&mut self, out: &mut Out<'_>) {
        if self.is_step_answered() {
            self.parts.close_unnamed_text(out);
        }
    }

    fn start_step(&mut self, out: &mut Out<'_>) {
        self.ensure_started(out);
        self.finish_step(out);
        // `start-step` is written with the first content. The client shows no step before that, and
        // an empty last step would change what the client decides about resubmission.
        self.step.announced = true;
    }

    fn finish_step(&mut self, out: &mut Out<'_>) {
        self.ensure_started(out);
        self.parts.close_all(out);
        close_streaming_inputs(&mut self.calls, out);
        self.step.announced = false;
        if std::mem::take(&mut self.step.open) {
            out.emit(Chunk::FinishStep {});
        }
    }

    /// Lets the model call of this step be repeated. A client that does not know the chunk keeps what it has
    /// read of the step, so everything in it ends before.
    fn reset_step(&mut self, out: &mut Out<'_>) {
        if !self.step.open {
            return;
        }
        self.parts.close_all(out);
        close_streaming_inputs(&mut self.calls, out);
        let can_request_approval = self.can_request_approval();
        close_step(&mut self.calls, self.step.number, can_request_approval, out);
        let reset = Chunk::ResetStep {};
        if reset.is_kind_known_to(self.version) {
            self.calls.forget_step(self.step.number);
            out.emit(reset);
        }
    }

    fn start_part(
        &mut self,
        kind: Kind,
        id: &PartId,
        metadata: Option<&ProviderMetadata>,
        out: &mut Out<'_>,
    ) {
        self.open_step(out);
        self.parts.start(kind, id, metadata, out);
    }

    fn add_to_part(
        &mut self,
        kind: Kind,
        id: Option<&PartId>,
        delta: &str,
        metadata: Option<&ProviderMetadata>,
        out: &mut Out<'_>,
    ) {
        if delta.is_empty() && metadata.is_none() {
            return;
        }
        if !self.parts.is_open(kind, id) {
            self.open_step(out);
        }
        self.parts.add(kind, id, delta, metadata, out);
    }

    fn source(&mut self, source: &Source, out: &mut Out<'_>) -> Result<(), TranslateError> {
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
        self.source_chunk(chunk, out)
    }

    fn source_chunk(&mut self, chunk: Chunk<'_>, out: &mut Out<'_>) -> Result<(), TranslateError> {
        if let Chunk::SourceUrl { source_id, url, .. } = &chunk
            && !has_scheme(url, SOURCE_SCHEMES)
        {
            return Err(TranslateError::SourceUrl(source_id.to_string()));
        }
        self.open_step(out);
        out.emit(chunk);
        Ok(())
    }

    /// Emits the chunk of a file at this URL.
    fn file(
        &mut self,
        url: &str,
        chunk: &Chunk<'_>,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        if !has_scheme(url, FILE_SCHEMES) {
            return Err(TranslateError::FileUrl);
        }
        self.content(chunk, out);
        Ok(())
    }

    /// Emits a chunk that is a part of its own, unless the client does not know it.
    fn content(&mut self, chunk: &Chunk<'_>, out: &mut Out<'_>) {
        if chunk.is_kind_known_to(self.version) {
            self.open_step(out);
            self.parts.close_unnamed(out);
            out.emit(chunk.clone());
        }
    }

    /// Emits data at its place in the stream, within a step or between two.
    fn data(&mut self, data: &Data, out: &mut Out<'_>) {
        self.ensure_started(out);
        let chunk = Chunk::Data {
            name: Cow::Borrowed(&data.name),
            id: data.id.as_deref().map(Cow::Borrowed),
            data: Some(Cow::Borrowed(&data.data)),
            transient: data.transient.then_some(true),
        };
        out.emit(chunk);
    }

    fn add_metadata(&mut self, metadata: &Json, out: &mut Out<'_>) -> Result<(), TranslateError> {
        self.ensure_started(out);
        if metadata.is_null() {
            return Ok(());
        }
        if !self.can_merge(metadata) {
            return Err(TranslateError::Metadata);
        }
        let message_metadata = Some(Cow::Borrowed(metadata));
        out.emit(Chunk::MessageMetadata { message_metadata });
        Ok(())
    }

    fn end_finished(
        &mut self,
        reason: Option<FinishReason>,
        metadata: Option<&Json>,
        out: &mut Out<'_>,
    ) -> Result<(), TranslateError> {
        if reason.is_some_and(|reason| !reason.is_known_to(self.version)) {
            // The answer is cut, which this client has no reason for. It reads nothing after the error.
            let added = metadata.map_or(Ok(()), |metadata| self.add_metadata(metadata, out));
            self.end_failed(UserText::AnswerCutOff.text(), out);
            return added;
        }
        let is_cut = reason == Some(FinishReason::Interrupted);
        self.close_run(if is_cut { Executor::Provider } else { Executor::Server }, out);
        let reason =
            reason.or_else(|| self.calls.has_pending_calls().then_some(FinishReason::ToolCalls));
        self.end_resubmission(reason, out);
        let mergeable = metadata.filter(|metadata| self.can_merge(metadata));
        let chunk =
            Chunk::Finish { finish_reason: reason, message_metadata: mergeable.map(Cow::Borrowed) };
        out.emit(chunk);
        match metadata {
            Some(metadata) if mergeable.is_none() && !metadata.is_null() => {
                Err(TranslateError::Metadata)
            }
            _ => Ok(()),
        }
    }

    fn end_aborted(&mut self, reason: Option<&str>, out: &mut Out<'_>) {
        self.close_run(Executor::Provider, out);
        self.end_resubmission(None, out);
        out.emit(Chunk::Abort { reason: reason.map(Cow::Borrowed) });
    }

    fn end_failed(&mut self, error_text: &str, out: &mut Out<'_>) {
        self.close_run(Executor::Provider, out);
        out.emit(Chunk::Error { error_text: Cow::Borrowed(error_text) });
        let finish =
            Chunk::Finish { finish_reason: Some(FinishReason::Error), message_metadata: None };
        out.emit(finish);
    }

    /// Closes all parts, gives a result to every call that needs one from this response, and closes
    /// the step. `up_to` is the last executor whose open calls need a result.
    fn close_run(&mut self, up_to: Executor, out: &mut Out<'_>) {
        self.ensure_started(out);
        self.ended = true;
        self.parts.close_all(out);
        close_streaming_inputs(&mut self.calls, out);
        let can_request_approval = self.can_request_approval();
        close_calls(&mut self.calls, up_to, can_request_approval, out);
        self.finish_step(out);
    }

    /// Appends a step if the client would otherwise send the same request at once, again and again.
    fn end_resubmission(&mut self, reason: Option<FinishReason>, out: &mut Out<'_>) {
        if self.calls.would_resubmit(self.step.number, self.version) {
            self.step.number += 1;
            run_end_step(reason, out);
        }
    }
}

fn file_chunk(file: &File) -> Chunk<'_> {
    Chunk::File {
        url: Cow::Borrowed(&file.url),
        media_type: Cow::Borrowed(&file.media_type),
        provider_metadata: None,
    }
}

/// Whether the event may be the result of a call. An approval request is one if it cannot be answered.
fn may_be_result(event: &AgentEvent) -> bool {
    match event {
        AgentEvent::ToolOutput { preliminary, .. } => !preliminary,
        AgentEvent::ToolFailed { .. }
        | AgentEvent::ToolRefused { .. }
        | AgentEvent::ToolDenied { .. }
        | AgentEvent::ToolInputInvalid { .. }
        | AgentEvent::ApprovalRequested { .. } => true,
        AgentEvent::Chunk(chunk) => match &**chunk {
            Chunk::ToolOutputAvailable { preliminary, .. } => *preliminary != Some(true),
            chunk => matches!(
                chunk,
                Chunk::ToolOutputError { .. }
                    | Chunk::ToolOutputDenied { .. }
                    | Chunk::ToolInputError { .. }
                    | Chunk::ToolApprovalRequest { .. }
            ),
        },
        _ => false,
    }
}

/// The schemes that the URL of a source may have.
const SOURCE_SCHEMES: &[&str] = &["https", "http"];

/// The schemes that the URL of a file may have. `http` is one of them, unlike in a
/// [request](crate::request::Limits::with_file_schemes): the browser fetches the file, not the
/// server.
const FILE_SCHEMES: &[&str] = &["https", "http", "data"];
