//! [`ToolContext`] and [`ApprovalContext`]: what a tool handler and an approval predicate receive
//! in addition to the input.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::yield_now;

use super::inner_calls::{InnerCalls, Resumed};
use super::tool_error::{ToolError, cannot_ask};
use crate::tool_loop::ToolEvent;
use ui_message_stream::BoxError;
use ui_message_stream::approval::{Principal, Progress, RecordId};
use ui_message_stream::event::{Data, File, Source, Text};
use ui_message_stream::id::{ChatId, ToolCallId};
use ui_message_stream::json::{Json, JsonError};
use ui_message_stream::message::ToolPart;
use ui_message_stream_chat::Chat;

/// The context of a tool call, which a handler receives in addition to the input.
///
/// ```
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
/// use ui_message_stream_agent::{Tool, ToolContext};
/// use ui_message_stream::BoxError;
///
/// /// Builds the project.
/// #[derive(Deserialize, JsonSchema)]
/// struct Build {
///     target: String,
/// }
///
/// let build = Tool::new("build", async |input: Build, context: ToolContext| {
///     // The client shows the progress while the tool runs.
///     context.emit_data("progress", &json!({"done": 1, "of": 2})).await?;
///     Ok::<_, BoxError>(format!("{} is built", input.target))
/// });
/// # let _ = build;
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolContext {
    /// The id of the call.
    pub tool_call_id: ToolCallId,
    /// The owner of the chat.
    pub principal: Principal,
    /// The id of the chat.
    pub chat_id: ChatId,
    /// A key that is the same on every attempt to run an approved call. `None` if the call needed
    /// no approval.
    pub idempotency_key: Option<RecordId>,
    pub(super) emitter: Option<PartEmitter>,
    /// The calls that the tool asks for. `None` if it cannot ask.
    pub(super) inner: Option<InnerCalls>,
    pub(super) resumed: Option<Arc<Resumed>>,
}

impl ToolContext {
    /// Creates a context for a test of a handler: for this call, with an anonymous principal and an
    /// empty chat id.
    pub fn new(tool_call_id: impl Into<ToolCallId>) -> Self {
        ToolContext {
            tool_call_id: tool_call_id.into(),
            principal: Principal::anonymous(),
            chat_id: ChatId::new(""),
            idempotency_key: None,
            emitter: None,
            inner: None,
            resumed: None,
        }
    }

    /// Asks the user to approve a call of one of the [inner tools](super::Tool::with_inner_tools) of this
    /// tool. Returns the id of the call. The handler then returns the error of [`suspend`](Self::suspend);
    /// it is called again when all calls that it has asked for have results.
    ///
    /// The inner tool runs as every approved call does: once, with the input that the user has seen.
    ///
    /// ```
    /// use schemars::JsonSchema;
    /// use serde::{Deserialize, Serialize};
    /// use ui_message_stream::BoxError;
    /// use ui_message_stream::id::ToolCallId;
    /// use ui_message_stream_agent::{Tool, ToolContext};
    ///
    /// /// Deletes a file.
    /// #[derive(Serialize, Deserialize, JsonSchema)]
    /// struct Delete {
    ///     path: String,
    /// }
    ///
    /// /// Tidies up a folder.
    /// #[derive(Deserialize, JsonSchema)]
    /// struct TidyUp {
    ///     folder: String,
    /// }
    ///
    /// let delete = Tool::new("delete", async |delete: Delete| Ok::<_, BoxError>(delete.path));
    /// let tidy_up = Tool::new("tidy_up", async |input: TidyUp, context: ToolContext| {
    ///     let Some(resumed) = context.resumed() else {
    ///         let path = format!("{}/old.txt", input.folder);
    ///         let call = context.request_approval("delete", &Delete { path })?;
    ///         return Err(context.suspend(&call));
    ///     };
    ///     let call: ToolCallId = resumed.state()?;
    ///     let result = resumed.result(&call).map(|result| result.text().into_owned());
    ///     Ok::<_, BoxError>(result.unwrap_or_default())
    /// });
    /// let tidy_up = tidy_up.with_inner_tools([delete.needs_approval()]);
    /// # let _ = tidy_up;
    /// ```
    ///
    /// # Errors
    /// [`ToolError`] if the input cannot be written as JSON, and if this call cannot ask: the user has
    /// approved it itself, or the context is that of a test.
    pub fn request_approval(
        &self,
        tool: &str,
        input: &(impl Serialize + ?Sized),
    ) -> Result<ToolCallId, ToolError> {
        let Some(inner) = &self.inner else { return Err(cannot_ask()) };
        let input = Json::from_serialize(input).map_err(|error| ToolError(error.to_string()))?;
        let number = self.resumed().map_or(0, |resumed| resumed.asked) + inner.count();
        Ok(inner.add(&number.to_string().into(), tool, &[], input))
    }

    /// Returns the error that a handler returns to wait for the results of the calls that it has
    /// asked for. `state` is what it needs to go on: at most 256 KiB of JSON, which the ledger keeps.
    pub fn suspend(&self, state: &(impl Serialize + ?Sized)) -> BoxError {
        match (&self.inner, Json::from_serialize(state)) {
            (Some(inner), Ok(state)) => inner.suspend(state),
            (None, Ok(_)) => cannot_ask().into(),
            (_, Err(error)) => error.into(),
        }
    }

    /// Returns what the handler goes on with. `None` if the call begins.
    pub fn resumed(&self) -> Option<&Resumed> {
        self.resumed.as_deref()
    }

    /// Adds application data to the message, as another part `data-<name>`.
    ///
    /// The model does not read the data. If a user approved the call, it runs before the model is called, also if
    /// no client is connected. What the `emit` methods add to the message is then lost if the answer is stopped
    /// or replaced meanwhile, or if another answer is being written in the chat when the call is approved.
    ///
    /// ```
    /// # use ui_message_stream_agent::{ToolError, Tool, ToolContext};
    /// # use ui_message_stream::event::Source;
    /// # use ui_message_stream::BoxError;
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Look { at: String }
    /// let look = Tool::new("look", async |look: Look, context: ToolContext| {
    ///     context.emit_data("looking-at", &look.at).await?;
    ///     let (source_id, url) = ("s1".into(), look.at.into());
    ///     context.emit_source(Source::Url { source_id, url, title: None }).await?;
    ///     Ok::<_, BoxError>("a harbour")
    /// });
    /// # let _ = look;
    /// ```
    ///
    /// # Errors
    /// - [`EmitError::Json`] if the data cannot be written as JSON.
    /// - [`EmitError::TooLong`] if the parts that this call has added, together with this part,
    ///   would be longer than the [maximum output](super::Tool::with_max_output_bytes), in bytes.
    /// - [`EmitError::TooMany`] if this call has already added 32 parts.
    ///
    /// The client sends all parts back with every request. For data that changes while the tool
    /// runs, use [`emit_data_with_id`](Self::emit_data_with_id): it replaces the previous data.
    pub async fn emit_data(
        &self,
        name: impl Into<Text>,
        data: &(impl Serialize + ?Sized + Sync),
    ) -> Result<(), EmitError> {
        let name = name.into();
        let id = None;
        let data = Json::from_serialize(data)?;
        self.emit(ToolEvent::Data(Box::new(Data { name, id, data, transient: false }))).await
    }

    /// Adds application data to the message, or replaces the data with the same name and id. Use
    /// this method for data that changes while the tool runs.
    ///
    /// # Errors
    /// As [`emit_data`](Self::emit_data).
    pub async fn emit_data_with_id(
        &self,
        name: impl Into<Text>,
        id: impl Into<Text>,
        data: &(impl Serialize + ?Sized + Sync),
    ) -> Result<(), EmitError> {
        let name = name.into();
        let id = Some(id.into());
        let data = Json::from_serialize(data)?;
        self.emit(ToolEvent::Data(Box::new(Data { name, id, data, transient: false }))).await
    }

    /// Adds a source that the tool used.
    ///
    /// # Errors
    /// [`EmitError::TooLong`] and [`EmitError::TooMany`], as [`emit_data`](Self::emit_data).
    pub async fn emit_source(&self, source: Source) -> Result<(), EmitError> {
        self.emit(ToolEvent::Source(Box::new(source))).await
    }

    /// Adds a file that the tool made. The model reads it in the next step.
    ///
    /// # Errors
    /// [`EmitError::TooLong`] and [`EmitError::TooMany`], as [`emit_data`](Self::emit_data). A
    /// `data:` URL counts with its whole length.
    pub async fn emit_file(&self, file: File) -> Result<(), EmitError> {
        self.emit(ToolEvent::File(Box::new(file))).await
    }

    /// Sends a preliminary output, which a later output replaces.
    ///
    /// ```
    /// # use ui_message_stream_agent::{ToolError, Tool, ToolContext};
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Copy { files: Vec<String> }
    /// let copy = Tool::new("copy", async |copy: Copy, context: ToolContext| {
    ///     for (done, file) in copy.files.iter().enumerate() {
    ///         context.emit_preliminary(&format!("{file} is next, {done} are done")).await?;
    ///     }
    ///     Ok::<_, ui_message_stream::BoxError>("all are done")
    /// });
    /// # let _ = copy;
    /// ```
    ///
    /// # Errors
    /// - [`EmitError::Json`] if the output cannot be written as JSON.
    /// - [`EmitError::TooLong`] if the output is longer than the [maximum
    ///   output](super::Tool::with_max_output_bytes), in bytes.
    pub async fn emit_preliminary(
        &self,
        output: &(impl Serialize + ?Sized + Sync),
    ) -> Result<(), EmitError> {
        self.emit(ToolEvent::Preliminary(Json::from_serialize(output)?)).await
    }

    async fn emit(&self, event: ToolEvent) -> Result<(), EmitError> {
        match &self.emitter {
            Some(emitter) => emitter.emit(event).await,
            None => {
                yield_now().await;
                Ok(())
            }
        }
    }
}

/// An error of emitting a part or a preliminary output during a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmitError {
    /// The value cannot be written as JSON.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The value is longer than the remaining number of bytes.
    #[error("it is longer than the output of the tool may be, of which {max_bytes} bytes are left")]
    TooLong {
        /// The maximum length of the value, in bytes.
        max_bytes: usize,
    },
    /// The call has already added the maximum number of parts.
    #[error("the call has added {MAX_PARTS} parts to the message already, and no more fit")]
    TooMany,
}

/// Sends the parts and preliminary outputs of one running call, within its limits.
#[derive(Debug, Clone)]
pub(super) struct PartEmitter {
    target: Target,
    max_bytes: usize,
    emitted: Arc<Mutex<EmittedParts>>,
}

/// Where the parts of a call go.
#[derive(Debug, Clone)]
enum Target {
    Step(mpsc::Sender<ToolEvent>),
    /// The call was approved, and runs before the next step.
    Approved(Progress),
}

/// The size of the parts that one call added to the message. The client sends them back with every
/// request.
#[derive(Debug, Default)]
struct EmittedParts {
    parts: usize,
    bytes: usize,
    /// The length in bytes of data that later data can replace, by name and id.
    replaceable: HashMap<(String, String), usize>,
}

impl PartEmitter {
    pub(super) fn new(events: mpsc::Sender<ToolEvent>, max_bytes: usize) -> Self {
        PartEmitter { target: Target::Step(events), max_bytes, emitted: Arc::default() }
    }

    /// Creates the emitter of an approved call.
    pub(super) fn of_approved(progress: Progress, max_bytes: usize) -> Self {
        PartEmitter { target: Target::Approved(progress), max_bytes, emitted: Arc::default() }
    }

    /// Sends an event, then yields: the reader of the events and the timeout of the tool must be
    /// polled even if the tool never waits.
    pub(super) async fn emit(&self, event: ToolEvent) -> Result<(), EmitError> {
        let result = self.send(event).await;
        yield_now().await;
        result
    }

    async fn send(&self, event: ToolEvent) -> Result<(), EmitError> {
        match &event {
            ToolEvent::Preliminary(output) if output.as_str().len() > self.max_bytes => {
                return Err(EmitError::TooLong { max_bytes: self.max_bytes });
            }
            ToolEvent::Data(data) => {
                let id = data.id.as_deref().unwrap_or_default();
                let key = data.id.as_ref().map(|id| (data.name.to_string(), id.to_string()));
                self.reserve(&[&data.name, id, data.data.as_str()], key)?;
            }
            ToolEvent::Source(source) => match &**source {
                Source::Url { source_id, url, title } => {
                    self.reserve(&[source_id, url, title.as_deref().unwrap_or_default()], None)?;
                }
                Source::Document { source_id, media_type, title, filename } => {
                    let filename = filename.as_deref().unwrap_or_default();
                    self.reserve(&[source_id, media_type, title, filename], None)?;
                }
                other => {
                    self.reserve(&[&serde_json::to_string(other).unwrap_or_default()], None)?
                }
            },
            ToolEvent::File(file) => self.reserve(&[&file.url, &file.media_type], None)?,
            _ => {}
        }
        match &self.target {
            // The receiver may be closed. The tool continues to run.
            Target::Step(events) => drop(events.send(event).await),
            Target::Approved(progress) => emit_progress(progress, event)?,
        }
        Ok(())
    }

    /// Counts a part against the limits of the call. `key` is the name and id of replaceable data.
    ///
    /// # Errors
    /// [`EmitError::TooMany`] or [`EmitError::TooLong`]; nothing is counted then.
    fn reserve(&self, texts: &[&str], key: Option<(String, String)>) -> Result<(), EmitError> {
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let mut emitted = self.emitted.lock().unwrap_or_else(PoisonError::into_inner);
        let previous = key.as_ref().and_then(|key| emitted.replaceable.get(key)).copied();
        let other_bytes = emitted.bytes - previous.unwrap_or(0);
        let parts = emitted.parts + usize::from(previous.is_none());
        if parts > MAX_PARTS {
            return Err(EmitError::TooMany);
        }
        if other_bytes + bytes > self.max_bytes {
            return Err(EmitError::TooLong {
                max_bytes: self.max_bytes.saturating_sub(other_bytes),
            });
        }
        (emitted.parts, emitted.bytes) = (parts, other_bytes + bytes);
        if let Some(key) = key {
            emitted.replaceable.insert(key, bytes);
        }
        Ok(())
    }
}

fn emit_progress(progress: &Progress, event: ToolEvent) -> Result<(), EmitError> {
    let emitted = match event {
        ToolEvent::Preliminary(output) => return Ok(progress.emit(output)?),
        ToolEvent::Data(data) => progress.emit_data(*data),
        ToolEvent::Source(source) => progress.emit_source(*source),
        ToolEvent::File(file) => progress.emit_file(*file),
        ToolEvent::Output(_) | ToolEvent::Failed(_) | ToolEvent::Suspended { .. } => Ok(()),
    };
    emitted.map_err(|_| EmitError::TooMany)
}

/// The maximum number of parts that one call may add to the message. The default limit for all
/// messages of a request is 2000 parts, enough for dozens of such calls.
const MAX_PARTS: usize = 32;

/// The context of an approval decision: what a predicate receives in addition to the input.
///
/// A chat may not hold everything that happened in its conversation. For example, a server imports a
/// chat without its tool calls from the messages of a client, if it has lost the chat in a restart. A
/// predicate that [reads](Self::chat) such a history cannot be trusted: the call then needs approval,
/// even if the predicate returns `false`. A predicate that does not read the chat decides itself. So
/// does a predicate that handles incomplete histories, which it declares by reading the chat with
/// [`chat_even_if_incomplete`](Self::chat_even_if_incomplete).
///
/// ```
/// use ui_message_stream_agent::ApprovalContext;
/// use ui_message_stream::approval::Principal;
/// use ui_message_stream_chat::Chat;
/// use ui_message_stream::message::UiMessage;
///
/// /// Returns whether the chat contains a call that read a web page, which may hold injected text.
/// /// If the history of the chat is incomplete, the call needs approval in any case.
/// fn has_read_a_page(context: &ApprovalContext) -> bool {
///     let mut calls = context.chat().messages.iter().flat_map(UiMessage::tool_parts);
///     calls.any(|call| &*call.tool_name == "fetch")
/// }
///
/// let chat = Chat::new("chat", Principal::new("ada"));
/// assert!(!has_read_a_page(&ApprovalContext::new("call_1", chat)));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ApprovalContext {
    /// The id of the call.
    pub tool_call_id: ToolCallId,
    /// The owner of the chat.
    pub principal: Principal,
    /// The chat without the calls that only the client claims to have happened.
    chat: Arc<Chat>,
    /// The chat with these calls, if it has any.
    chat_with_unverified: Option<Arc<Chat>>,
    /// Whether [`chat`](Self::chat) was called. All clones of the context share it.
    has_read_chat: Arc<AtomicBool>,
}

impl ApprovalContext {
    /// Creates a context for the decision about this call, in this chat.
    pub fn new(tool_call_id: impl Into<ToolCallId>, chat: impl Into<Arc<Chat>>) -> Self {
        let chat = chat.into();
        let (chat, chat_with_unverified) = match chat.without_unverified_calls() {
            Some(verified) => (Arc::new(verified), Some(chat)),
            None => (chat, None),
        };
        ApprovalContext {
            tool_call_id: tool_call_id.into(),
            principal: chat.owner.clone(),
            chat,
            chat_with_unverified,
            has_read_chat: Arc::default(),
        }
    }

    /// Returns the conversation so far, including what this turn emitted before the call. It also
    /// contains other calls of the same step: the presence of a call does not mean that it was
    /// approved.
    ///
    /// If the [history is incomplete](Self::has_complete_history), a predicate that calls this method
    /// cannot waive the approval: the call needs approval even if the predicate returns `false`.
    pub fn chat(&self) -> &Chat {
        self.has_read_chat.store(true, Ordering::Relaxed);
        &self.chat
    }

    /// Returns the conversation so far, as [`chat`](Self::chat) does, for a predicate that handles
    /// incomplete histories. The result of the predicate then decides, even if the history is
    /// incomplete.
    pub fn chat_even_if_incomplete(&self) -> &Chat {
        &self.chat
    }

    /// Returns the calls that only the client claims to have happened, before the server had the
    /// conversation. See [`HistoryImport::TextsAndResults`](ui_message_stream_chat::HistoryImport). The chat
    /// that the other methods return does not contain them.
    ///
    /// The client can forge these calls and leave out others. So a predicate may find in them a
    /// reason to require approval, and none to waive it.
    pub fn unverified_calls(&self) -> impl Iterator<Item = &ToolPart> {
        self.chat_with_unverified.iter().flat_map(|chat| chat.unverified_calls())
    }

    /// Returns whether the chat holds everything that happened in the conversation. See
    /// [`HistoryCompleteness`](ui_message_stream_chat::HistoryCompleteness).
    pub fn has_complete_history(&self) -> bool {
        self.chat.history.is_complete()
    }

    /// Returns whether the predicate relied on an incomplete history.
    pub(super) fn has_read_incomplete_history(&self) -> bool {
        self.has_read_chat.load(Ordering::Relaxed) && !self.has_complete_history()
    }
}
