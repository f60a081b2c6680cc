//! [`Limits`]: how much a request may hold, and which URLs its files may have.

use std::borrow::Cow;

use crate::message::has_scheme;

/// How much a request may hold, and which URLs its files may have.
///
/// A client sends its whole history every time, files included as `data:` URLs. So a conversation
/// that outgrows a limit cannot continue. The error of every limit names the setting that raises
/// it.
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
    pub(super) file_schemes: Cow<'static, [Cow<'static, str>]>,
}

impl Default for Limits {
    /// 2 MiB, 64 levels, 500 messages, 2 000 parts, 20 000 nodes; files at `https:` and `data:`
    /// URLs, a `data:` URL of at most 1 MiB.
    fn default() -> Self {
        Limits {
            max_bytes: 2 << 20,
            max_depth: 64,
            max_messages: 500,
            max_parts: 2_000,
            max_nodes: 20_000,
            max_data_url_bytes: 1 << 20,
            file_schemes: Cow::Borrowed(&[Cow::Borrowed("https"), Cow::Borrowed("data")]),
        }
    }
}

impl Limits {
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

    /// Returns whether this is a `data:` URL that is too long.
    pub(super) fn is_too_long_data_url(&self, url: &str) -> bool {
        url.len() > self.max_data_url_bytes && has_scheme(url, &["data"])
    }

    pub(super) fn allows_file_at(&self, url: &str) -> bool {
        has_scheme(url, &self.file_schemes)
    }
}
