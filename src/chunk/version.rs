//! [`Version`]: the client that reads the chunks, which decides what kinds and keys may be sent.

/// The version of the AI SDK that the browser runs.
///
/// Set this to the version of your oldest client. Keys that this version does not know are not
/// sent: a client before `ai@6.0.231` rejects the whole stream if it contains an unknown key. The
/// default is [`Version::V6`]. Every client from `ai@6.0.0` on reads its output, also those of
/// `ai@7`.
///
/// # Clients of `ai@7`
///
/// `ai@7` has no version here: its clients read what `ai@6` reads, with one trap. `ai@7.0.0` to
/// `7.0.31` reject the whole stream if it contains an unknown key, and they know fewer keys than the
/// newest `ai@6`. So [`Version::V6Patch`] of 274 and more, which sends `approvalDescriptor` (from
/// 290 on also `inputSchemaInput`, from 308 on `inputEncoding`), breaks the pages of these versions.
/// Use at most `V6Patch(273)` while such pages may exist. `ai@7.0.32` and later ignore unknown keys.
///
/// ```
/// use ui_message_stream::chunk::Version;
///
/// // Every browser runs ai@6.0.326 or a later 6, or ai@7.0.32 or later: newer keys may be sent.
/// let version = Version::V6Patch(326);
/// assert!(version > Version::V6);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[non_exhaustive]
pub enum Version {
    /// `ai@5`: no approvals, no `tool-input-error`, no preliminary outputs.
    V5,
    /// `ai@6.0.0` and every later 6.
    #[default]
    V6,
    /// `ai@6.0.n` and every later 6, where `n` is the value. From 274 on not `ai@7.0.0` to `7.0.31`.
    V6Patch(u16),
}

impl Version {
    /// Returns whether this client can show an approval request.
    pub fn knows_approvals(self) -> bool {
        self >= Version::V6
    }

    /// Returns whether this client knows a key that version `since` introduced.
    pub(crate) fn knows(self, since: Version) -> bool {
        match (self, since) {
            (Version::V6, Version::V6Patch(patch)) => patch == 0,
            _ => self >= since,
        }
    }
}
