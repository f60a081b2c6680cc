//! [`Limits`]: how much a request may hold, which URLs its files may have, and the field of its
//! chat id.

use std::borrow::Cow;

use crate::id::ApprovalId;
use crate::json::FieldError;
use crate::message::has_scheme;

/// How much a request may hold, which URLs its files may have, and which field holds the id of its
/// chat.
///
/// A client sends its whole history every time, files included as `data:` URLs. So a conversation
/// that outgrows a limit cannot continue. The error of every limit names the setting that raises
/// it. How much accumulates in stored conversations is limited by
/// `ChatLimits`.
///
/// ```
/// use ui_message_stream::request::Limits;
///
/// let limits = Limits::default().with_max_bytes(16 << 20).with_max_messages(5_000);
/// assert_eq!(limits.max_bytes(), 16 << 20);
/// ```
#[derive(Debug, Clone)]
pub struct Limits {
    pub(super) max_bytes: usize,
    pub(super) max_depth: usize,
    pub(super) max_messages: usize,
    pub(super) max_parts: usize,
    pub(crate) max_nodes: usize,
    pub(super) max_data_url_bytes: usize,
    pub(super) max_id_bytes: usize,
    pub(super) max_reason_bytes: usize,
    pub(super) file_schemes: Cow<'static, [Cow<'static, str>]>,
    pub(super) chat_id_field: Cow<'static, str>,
}

impl Default for Limits {
    /// 2 MiB, 64 levels, 500 messages, 2 000 parts, 20 000 nodes; files at `https:` and `data:`
    /// URLs, a `data:` URL of at most 1 MiB; ids of at most 128 bytes, reasons of at most 4 KiB. The
    /// chat id is in the field `id`.
    fn default() -> Self {
        Limits {
            max_bytes: 2 << 20,
            max_depth: 64,
            max_messages: 500,
            max_parts: 2_000,
            max_nodes: 20_000,
            max_data_url_bytes: 1 << 20,
            max_id_bytes: 128,
            max_reason_bytes: 4096,
            file_schemes: Cow::Borrowed(&[Cow::Borrowed("https"), Cow::Borrowed("data")]),
            chat_id_field: Cow::Borrowed("id"),
        }
    }
}

impl Limits {
    /// Returns how many messages, parts and unknown fields the body may hold together.
    pub fn max_nodes(&self) -> usize {
        self.max_nodes
    }

    /// Returns how many bytes the body may have.
    pub fn max_bytes(&self) -> usize {
        self.max_bytes
    }

    /// Sets how many bytes the body may have.
    #[must_use]
    pub fn with_max_bytes(mut self, max_bytes: usize) -> Self {
        self.max_bytes = max_bytes;
        self
    }

    /// Sets how deep objects and arrays may nest; the body itself is the first level.
    #[must_use]
    pub fn with_max_depth(mut self, max_depth: usize) -> Self {
        self.max_depth = max_depth;
        self
    }

    /// Sets how many messages there may be.
    #[must_use]
    pub fn with_max_messages(mut self, max_messages: usize) -> Self {
        self.max_messages = max_messages;
        self
    }

    /// Sets how many parts all messages together may have.
    #[must_use]
    pub fn with_max_parts(mut self, max_parts: usize) -> Self {
        self.max_parts = max_parts;
        self
    }

    /// Sets how many nodes there may be: messages, parts, and fields that this crate does not know,
    /// counted together. The contents of an input, an output, data, metadata or an unknown field do
    /// not count.
    #[must_use]
    pub fn with_max_nodes(mut self, max_nodes: usize) -> Self {
        self.max_nodes = max_nodes;
        self
    }

    /// Sets how many bytes the `data:` URL of a file may have. Base64 makes a file a third longer.
    ///
    /// Files in assistant messages are exempt: the server may have made them.
    #[must_use]
    pub fn with_max_data_url_bytes(mut self, max_data_url_bytes: usize) -> Self {
        self.max_data_url_bytes = max_data_url_bytes;
        self
    }

    /// Sets how many bytes an id may have: of the chat, a message, a tool call or a data part. An
    /// approval id may have at least 256.
    #[must_use]
    pub fn with_max_id_bytes(mut self, max_id_bytes: usize) -> Self {
        self.max_id_bytes = max_id_bytes;
        self
    }

    /// Sets how many bytes the reason of an approval response may have.
    #[must_use]
    pub fn with_max_reason_bytes(mut self, max_reason_bytes: usize) -> Self {
        self.max_reason_bytes = max_reason_bytes;
        self
    }

    /// Sets the schemes that the URL of a file may have: `["https", "data"]`.
    ///
    /// If `http` is allowed, a URL may point into the server's own network, and a server that
    /// fetches the file sends a request there.
    #[must_use]
    pub fn with_file_schemes<S: Into<String>>(
        mut self,
        schemes: impl IntoIterator<Item = S>,
    ) -> Self {
        self.file_schemes = schemes.into_iter().map(|scheme| Cow::Owned(scheme.into())).collect();
        self
    }

    /// Sets the field of the body that holds the id of the chat, for pages that send another one than
    /// `id`: `threadId` or `conversationId`, for example. A field `id` then belongs to the
    /// application, as every field that this crate does not know.
    ///
    /// ```
    /// use ui_message_stream::ChatRequest;
    /// use ui_message_stream::request::Limits;
    ///
    /// let limits = Limits::default().with_chat_id_field("threadId");
    /// let chat = ChatRequest::parse(br#"{"threadId": "chat-1", "messages": []}"#, &limits)?;
    /// assert_eq!(chat.id().as_str(), "chat-1");
    /// # Ok::<(), ui_message_stream::request::ParseRequestError>(())
    /// ```
    #[must_use]
    pub fn with_chat_id_field(mut self, field: impl Into<Cow<'static, str>>) -> Self {
        self.chat_id_field = field.into();
        self
    }

    /// Checks the length of an id, which is named by its path in the request.
    ///
    /// # Errors
    /// [`FieldError`] if the id is longer than [`with_max_id_bytes`](Self::with_max_id_bytes)
    /// allows.
    pub fn check_id(&self, field: &'static str, id: &str) -> Result<(), FieldError> {
        check(field, id, self.max_id_bytes, "with_max_id_bytes")
    }

    /// Checks the id of a chat, which clients put into the path of a URL.
    ///
    /// # Errors
    /// [`FieldError`] under the condition of [`check_id`](Self::check_id), and if the id is empty,
    /// `.` or `..`: a browser removes these from a path, so the request would reach another route.
    pub fn check_chat_id(&self, field: &'static str, id: &str) -> Result<(), FieldError> {
        if matches!(id, "" | "." | "..") {
            return Err(FieldError::new(
                field,
                "expected another id than an empty one, `.` or `..`",
            ));
        }
        self.check_id(field, id)
    }

    /// Checks the lengths of the texts of a decision.
    pub fn check_decision(
        &self,
        approval_id: &ApprovalId,
        reason: Option<&str>,
    ) -> Result<(), FieldError> {
        self.check_approval_id("approvalId", approval_id)?;
        self.check_reason("reason", reason)
    }

    /// Checks the length of an approval id. An approval id of this crate has 143 bytes.
    pub(crate) fn check_approval_id(
        &self,
        field: &'static str,
        id: &str,
    ) -> Result<(), FieldError> {
        let limit = self.max_id_bytes.max(MAX_APPROVAL_ID_BYTES);
        check(field, id, limit, "with_max_id_bytes")
    }

    /// Checks the length of the reason of a decision.
    pub fn check_reason(
        &self,
        field: &'static str,
        reason: Option<&str>,
    ) -> Result<(), FieldError> {
        let reason = reason.unwrap_or_default();
        check(field, reason, self.max_reason_bytes, "with_max_reason_bytes")
    }

    /// Returns whether this is a `data:` URL that is too long.
    pub(super) fn is_too_long_data_url(&self, url: &str) -> bool {
        url.len() > self.max_data_url_bytes && has_scheme(url, &["data"])
    }

    pub(super) fn allows_file_at(&self, url: &str) -> bool {
        has_scheme(url, &self.file_schemes)
    }
}

fn check(
    field: &'static str,
    text: &str,
    limit: usize,
    setting: &'static str,
) -> Result<(), FieldError> {
    if text.len() > limit {
        let problem = format!("longer than {limit} bytes; `Limits::{setting}` allows more");
        return Err(FieldError::new(field, problem));
    }
    Ok(())
}

/// The bytes that an approval id may have if fewer are allowed for other ids.
const MAX_APPROVAL_ID_BYTES: usize = 256;
