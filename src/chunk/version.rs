//! [`Version`]: which client the chunks are for, and so which kinds and keys it may be sent.

/// The AI SDK that the browser runs.
///
/// Clients before `ai@6.0.231` refuse the whole stream over one key that they do not know. So a key
/// is sent only if the oldest client named here knows it. The default, [`Version::V6`], writes
/// what `ai@6.0.0` knows, which every later client reads.
///
/// ```
/// use ui_message_stream::chunk::Version;
///
/// // Every browser runs ai@6.0.326 or later: newer keys may be sent.
/// let version = Version::V6At(326);
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
    /// `ai@6.0.n` and every later 6, where `n` is the number given.
    V6At(u16),
}

impl Version {
    /// Whether this client can be asked for an approval.
    pub fn knows_approvals(self) -> bool {
        self >= Version::V6
    }

    /// Whether this client knows what came with that version.
    pub(crate) fn knows(self, since: Version) -> bool {
        match (self, since) {
            (Version::V6, Version::V6At(patch)) => patch == 0,
            _ => self >= since,
        }
    }
}
