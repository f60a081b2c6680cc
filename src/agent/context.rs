//! [`ToolContext`] and [`ApprovalContext`]: what a tool and a predicate may look at beside the input.

use std::sync::Arc;

use serde::Serialize;
use tokio::sync::mpsc;

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
    pub(super) preliminary: Option<Preliminary>,
}

impl ToolContext {
    /// For a test of a handler: of this call, in nobody's chat.
    pub fn new(tool_call_id: impl Into<ToolCallId>) -> Self {
        ToolContext {
            tool_call_id: tool_call_id.into(),
            principal: Principal::anonymous(),
            chat_id: ChatId::new(""),
            idempotency_key: None,
            preliminary: None,
        }
    }

    /// Shows data of the application beside the call, as a part `data-<name>` of the message. The
    /// model does not read it. Of a call that a person approved it is not shown, nor are a
    /// [`source`](Self::source) and a [`file`](Self::file): that one may run with nobody there.
    ///
    /// ```
    /// # use ui_message_stream::agent::{Told, Tool, ToolContext};
    /// # use ui_message_stream::event::Source;
    /// # use ui_message_stream::stream::BoxError;
    /// # #[derive(serde::Deserialize, schemars::JsonSchema)] struct Look { at: String }
    /// let look = Tool::new("look", async |look: Look, context: ToolContext| {
    ///     context.data("looking-at", &look.at).await?;
    ///     let (source_id, url) = ("s1".into(), look.at.into());
    ///     context.source(Source::Url { source_id, url, title: None }).await;
    ///     Ok::<_, BoxError>("a harbour")
    /// });
    /// # let _ = look;
    /// ```
    ///
    /// # Errors
    /// [`JsonError`] if it is not data that can be sent.
    pub async fn data(
        &self,
        name: impl Into<Text>,
        data: &(impl Serialize + ?Sized + Sync),
    ) -> Result<(), JsonError> {
        let data = Json::of(data)?;
        let data = Data { name: name.into(), id: None, data, transient: false };
        self.show(data.data.as_str().len(), ToolEvent::Data(Box::new(data))).await;
        Ok(())
    }

    /// Shows something that the tool used.
    pub async fn source(&self, source: Source) {
        self.show(0, ToolEvent::Source(Box::new(source))).await;
    }

    /// Shows a file that the tool made. The model reads of it in the next turn.
    pub async fn file(&self, file: File) {
        self.show(file.url.len(), ToolEvent::File(Box::new(file))).await;
    }

    async fn show(&self, bytes: usize, event: ToolEvent) {
        if let Some(preliminary) = &self.preliminary {
            preliminary.show(bytes, event).await;
        }
    }

    /// Shows an output that a later one replaces; one that is longer than the tool's output
    /// [may be](super::Tool::with_most_output_bytes) is not shown. Of a call that a person approved only
    /// the final output is.
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
    /// [`JsonError`] if it is not an output that can be sent.
    pub async fn preliminary(
        &self,
        output: &(impl Serialize + ?Sized + Sync),
    ) -> Result<(), JsonError> {
        let output = Json::of(output)?;
        self.show(output.as_str().len(), ToolEvent::Preliminary(output)).await;
        Ok(())
    }
}

/// Where it is shown what comes before the end.
#[derive(Debug, Clone)]
pub(super) struct Preliminary {
    pub(super) shown: mpsc::Sender<ToolEvent>,
    pub(super) most_bytes: usize,
}

impl Preliminary {
    pub(super) async fn show(&self, bytes: usize, event: ToolEvent) {
        if bytes > self.most_bytes {
            tracing::warn!("what a tool shows is longer than its output may be, and is not shown");
            return;
        }
        // Nobody may be listening any more; the tool goes on.
        let _ = self.shown.send(event).await;
    }
}

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
    /// The conversation so far, with what this turn has said and done up to the call.
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
