//! [`ApprovalLimits`]: how many approval requests may be pending.

/// How many approval requests of a chat and of a user may be pending, and how long the description of one
/// may be.
///
/// A tool call that would exceed a limit is not executed: the model and the user read why. The log names
/// the setting.
///
/// | setting | default | where it is reached |
/// |---|---|---|
/// | [`with_max_chat_approvals`](Self::with_max_chat_approvals) | 64 | too many questions wait in the chat |
/// | [`with_max_user_approvals`](Self::with_max_user_approvals) | 4 096 | too many questions wait for the user |
/// | [`with_max_description_bytes`](Self::with_max_description_bytes) | 16 KiB | the description is too long |
///
/// ```
/// use ui_message_stream::approval::{ApprovalLimits, Approvals, EmptyToolbox};
///
/// let limits = ApprovalLimits::default().with_max_chat_approvals(8);
/// let approvals = Approvals::new(EmptyToolbox).with_limits(limits);
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalLimits {
    max_chat_approvals: usize,
    max_user_approvals: usize,
    max_description_bytes: usize,
}

impl Default for ApprovalLimits {
    /// The defaults of the table above.
    fn default() -> Self {
        ApprovalLimits {
            max_chat_approvals: 64,
            max_user_approvals: 4_096,
            max_description_bytes: 16 << 10,
        }
    }
}

impl ApprovalLimits {
    /// Returns the maximum number of pending approval requests of a chat.
    pub fn max_chat_approvals(&self) -> usize {
        self.max_chat_approvals
    }

    /// Sets the maximum number of pending approval requests of a chat.
    #[must_use]
    pub fn with_max_chat_approvals(mut self, approvals: usize) -> Self {
        self.max_chat_approvals = approvals;
        self
    }

    /// Returns the maximum number of pending approval requests of a user.
    pub fn max_user_approvals(&self) -> usize {
        self.max_user_approvals
    }

    /// Sets the maximum number of pending approval requests of a user, in all chats together.
    #[must_use]
    pub fn with_max_user_approvals(mut self, approvals: usize) -> Self {
        self.max_user_approvals = approvals;
        self
    }

    /// Returns the maximum number of bytes of the description of an approval request.
    pub fn max_description_bytes(&self) -> usize {
        self.max_description_bytes
    }

    /// Sets the maximum number of bytes of the description of an approval request, which the user
    /// reads. A longer one is refused and not shortened, because the user might approve what the end
    /// of it says.
    #[must_use]
    pub fn with_max_description_bytes(mut self, bytes: usize) -> Self {
        self.max_description_bytes = bytes;
        self
    }
}
