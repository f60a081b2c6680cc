//! [`ToolContext`] and [`ApprovalContext`]: what a tool and a predicate may look at beside the input.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::yield_now;

use crate::approval::{Principal, RecordId};
use crate::event::{Data, File, Source, Text};
use crate::history::Chat;
use crate::id::{ChatId, ToolCallId};
use crate::json::{Json, JsonError};
use crate::run::ToolEvent;

/// What a tool is handed beside its input.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolContext {
    /// Names the call.
    pub tool_call_id: ToolCallId,
    /// Whose chat it is.
    pub principal: Principal,
    /// Which chat.
    pub chat_id: ChatId,
    /// The same on every attempt to run an approved call; `None` of a call that needed no approval.
    pub idempotency_key: Option<RecordId>,
    pub(super) beside: Option<Beside>,
}

impl ToolContext {
    /// For a test of a handler: of this call, in nobody's chat.
    pub fn new(tool_call_id: impl Into<ToolCallId>) -> Self {
        ToolContext {
            tool_call_id: tool_call_id.into(),
            principal: Principal::anonymous(),
            chat_id: ChatId::new(""),
            idempotency_key: None,
            beside: None,
        }
    }

    /// Shows data of the application beside the call, as another part `data-<name>` of the message.
    /// The model does not read it. Of a call that a person approved nothing is shown but its final
    /// output: it may run with nobody there.
    ///
    /// ```
    /// # use ui_message_stream::agent::{Told, Tool, ToolContext};
    /// # use ui_message_stream::event::Source;
    /// # use ui_message_stream::stream::BoxError;
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Look { at: String }
    /// let look = Tool::new("look", async |look: Look, context: ToolContext| {
    ///     context.data("looking-at", &look.at).await?;
    ///     let (source_id, url) = ("s1".into(), look.at.into());
    ///     context.source(Source::Url { source_id, url, title: None }).await?;
    ///     Ok::<_, BoxError>("a harbour")
    /// });
    /// # let _ = look;
    /// ```
    ///
    /// # Errors
    /// [`NotShown`]: all that one call shows beside its output is no longer than the output
    /// [may be](super::Tool::with_most_output_bytes), and no more than 32 parts. The client sends it
    /// back with every request: what changes is better shown [in one
    /// place](Self::data_with_id).
    pub async fn data(
        &self,
        name: impl Into<Text>,
        data: &(impl Serialize + ?Sized + Sync),
    ) -> Result<(), NotShown> {
        let (name, id, data) = (name.into(), None, Json::of(data)?);
        self.show(ToolEvent::Data(Box::new(Data { name, id, data, transient: false }))).await
    }

    /// The same in the place of the message's data of this name and id, if there is some: for what
    /// changes while the tool runs.
    ///
    /// # Errors
    /// As [`data`](Self::data).
    pub async fn data_with_id(
        &self,
        name: impl Into<Text>,
        id: impl Into<Text>,
        data: &(impl Serialize + ?Sized + Sync),
    ) -> Result<(), NotShown> {
        let (name, id, data) = (name.into(), Some(id.into()), Json::of(data)?);
        self.show(ToolEvent::Data(Box::new(Data { name, id, data, transient: false }))).await
    }

    /// Shows something that the tool used.
    ///
    /// # Errors
    /// As [`data`](Self::data).
    pub async fn source(&self, source: Source) -> Result<(), NotShown> {
        self.show(ToolEvent::Source(Box::new(source))).await
    }

    /// Shows a file that the tool made. The model reads it with the next step.
    ///
    /// # Errors
    /// As [`data`](Self::data); a `data:` URL counts with its whole length.
    pub async fn file(&self, file: File) -> Result<(), NotShown> {
        self.show(ToolEvent::File(Box::new(file))).await
    }

    /// Shows an output that a later one replaces.
    ///
    /// ```
    /// # use ui_message_stream::agent::{Told, Tool, ToolContext};
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Copy { files: Vec<String> }
    /// let copy = Tool::new("copy", async |copy: Copy, context: ToolContext| {
    ///     for (done, file) in copy.files.iter().enumerate() {
    ///         context.preliminary(&format!("{file} is next, {done} are done")).await?;
    ///     }
    ///     Ok::<_, ui_message_stream::stream::BoxError>("all are done")
    /// });
    /// # let _ = copy;
    /// ```
    ///
    /// # Errors
    /// [`NotShown`]: it may be as long as the output
    /// [may be](super::Tool::with_most_output_bytes).
    pub async fn preliminary(
        &self,
        output: &(impl Serialize + ?Sized + Sync),
    ) -> Result<(), NotShown> {
        self.show(ToolEvent::Preliminary(Json::of(output)?)).await
    }

    async fn show(&self, event: ToolEvent) -> Result<(), NotShown> {
        match &self.beside {
            Some(beside) => beside.show(event).await,
            None => {
                yield_now().await;
                Ok(())
            }
        }
    }
}

/// Why something is not shown beside a call.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotShown {
    /// It is no JSON that can be sent.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// It is longer than it may be.
    #[error("it is longer than the output of the tool may be, of which {most} bytes are left")]
    TooLong {
        /// How many bytes it could have.
        most: usize,
    },
    /// The call shows too much already.
    #[error("the call has added {MOST_PARTS} parts to the message already, and no more fit")]
    TooMany,
}

/// Where it is shown what comes before the end.
#[derive(Debug, Clone)]
pub(super) struct Beside {
    shown: mpsc::Sender<ToolEvent>,
    most_bytes: usize,
    kept: Arc<Mutex<Kept>>,
}

/// What stays in the message of what one call showed: the client sends it back with every request.
#[derive(Debug, Default)]
struct Kept {
    parts: usize,
    bytes: usize,
    /// How long data is that a later one takes the place of.
    replaced: HashMap<(String, String), usize>,
}

impl Beside {
    pub(super) fn new(shown: mpsc::Sender<ToolEvent>, most_bytes: usize) -> Self {
        Beside { shown, most_bytes, kept: Arc::default() }
    }

    /// Whoever listens, and whoever stops the tool, has their turn then, also if it never waits.
    pub(super) async fn show(&self, event: ToolEvent) -> Result<(), NotShown> {
        let shown = self.send(event).await;
        yield_now().await;
        shown
    }

    async fn send(&self, event: ToolEvent) -> Result<(), NotShown> {
        match &event {
            ToolEvent::Preliminary(output) if output.as_str().len() > self.most_bytes => {
                return Err(NotShown::TooLong { most: self.most_bytes });
            }
            ToolEvent::Data(data) => {
                let id = data.id.as_deref().unwrap_or_default();
                let place = data.id.as_ref().map(|id| (data.name.to_string(), id.to_string()));
                self.keep(&[&data.name, id, data.data.as_str()], place)?;
            }
            ToolEvent::Source(source) => match &**source {
                Source::Url { source_id, url, title } => {
                    self.keep(&[source_id, url, title.as_deref().unwrap_or_default()], None)?;
                }
                Source::Document { source_id, media_type, title, filename } => {
                    let filename = filename.as_deref().unwrap_or_default();
                    self.keep(&[source_id, media_type, title, filename], None)?;
                }
            },
            ToolEvent::File(file) => self.keep(&[&file.url, &file.media_type], None)?,
            _ => {}
        }
        // Nobody may be listening any more; the tool goes on.
        let _ = self.shown.send(event).await;
        Ok(())
    }

    fn keep(&self, texts: &[&str], place: Option<(String, String)>) -> Result<(), NotShown> {
        let bytes: usize = texts.iter().map(|text| text.len()).sum();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let before = place.as_ref().and_then(|place| kept.replaced.get(place)).copied();
        let others = kept.bytes - before.unwrap_or(0);
        let parts = kept.parts + usize::from(before.is_none());
        if parts > MOST_PARTS {
            return Err(NotShown::TooMany);
        }
        if others + bytes > self.most_bytes {
            return Err(NotShown::TooLong { most: self.most_bytes.saturating_sub(others) });
        }
        (kept.parts, kept.bytes) = (parts, others + bytes);
        if let Some(place) = place {
            kept.replaced.insert(place, bytes);
        }
        Ok(())
    }
}

/// How many parts one call may add to the message. All messages of a request may have two thousand, of
/// dozens of such calls.
const MOST_PARTS: usize = 32;

/// What a predicate may look at beside the input.
///
/// ```
/// use ui_message_stream::agent::ApprovalContext;
/// use ui_message_stream::approval::Principal;
/// use ui_message_stream::history::Chat;
/// use ui_message_stream::message::UiMessage;
///
/// /// Whoever has read a page of strangers is asked before anything leaves the house.
/// fn has_read_a_page(context: &ApprovalContext) -> bool {
///     let mut calls = context.chat.messages.iter().flat_map(UiMessage::tool_parts);
///     calls.any(|call| &*call.tool_name == "fetch")
/// }
///
/// let chat = Chat::new("chat", Principal::new("ada"));
/// assert!(!has_read_a_page(&ApprovalContext::new("call_1", chat)));
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ApprovalContext {
    /// Names the call.
    pub tool_call_id: ToolCallId,
    /// Whose chat it is.
    pub principal: Principal,
    /// The conversation so far, with what this turn has said and done before the call. Other calls of
    /// the same step are in it as well; that one is there does not say that it was approved.
    pub chat: Arc<Chat>,
}

impl ApprovalContext {
    /// For a test of a predicate: of this call, in this chat.
    pub fn new(tool_call_id: impl Into<ToolCallId>, chat: Chat) -> Self {
        ApprovalContext {
            tool_call_id: tool_call_id.into(),
            principal: chat.owner.clone(),
            chat: Arc::new(chat),
        }
    }
}
