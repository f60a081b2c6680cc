//! [`Version`]: the client that reads the chunks, which decides what kinds and keys may be sent.

use std::str::FromStr;

/// The version of the AI SDK that the browser runs.
///
/// Kinds and keys that this version does not know are not sent. Every client refuses the whole stream over a chunk
/// kind or a finish reason that it does not know. A client before `ai@6.0.231`, and one of `ai@7.0.0` to `7.0.31`,
/// also refuses it over an unknown key. The default is [`Version::V6`]: every client from `ai@6.0.0` on reads its
/// output, also those of `ai@7`.
///
/// The two lines have no order: `ai@7.0.0` does not know the keys that `ai@6.0.274` and later versions have, and no
/// `ai@6` knows the kinds of `ai@7`.
///
/// ```
/// use ui_message_stream::chunk::{Chunk, Version};
///
/// let chunk = Chunk::ToolOutputDenied { tool_call_id: "call-1".into() };
/// assert!(!chunk.is_kind_known_to(Version::V5));
/// assert!(chunk.is_kind_known_to(Version::V6) && chunk.is_kind_known_to(Version::V7));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Version {
    /// `ai@5`: no approvals, no `tool-input-error`, no preliminary outputs.
    V5,
    /// `ai@6.0.0` and every later 6, and every 7.
    #[default]
    V6,
    /// `ai@6.0.n` and every later 6, where `n` is the value; also `ai@7.0.32` and later. `ai@7.0.0` to `7.0.31` only
    /// if `n` is less than 274.
    V6Patch(u16),
    /// `ai@7.0.0` and every later 7. Not for `ai@6`.
    V7,
    /// `ai@7.0.n` and every later 7, where `n` is the value. Not for `ai@6`.
    V7Patch(u16),
}

/// The first versions of `ai@6` and of `ai@7` that know a key or a kind. `ai@5` knows neither.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Since {
    /// The patch of 6.0, or `None` if no 6 knows it.
    pub(super) v6: Option<u16>,
    /// The patch of 7.0.
    pub(super) v7: u16,
}

/// The newest patch of `ai@6` with which this crate is tested.
pub(crate) const NEWEST_V6: u16 = 326;

impl Version {
    /// A client that knows everything that this crate knows.
    pub const NEWEST: Version = Version::V7Patch(u16::MAX);

    /// Returns whether this client can show an approval request.
    pub fn knows_approvals(self) -> bool {
        self != Version::V5
    }

    /// Returns whether this is a client of `ai@7`.
    pub fn is_v7(self) -> bool {
        matches!(self, Version::V7 | Version::V7Patch(_))
    }

    /// Returns whether this client reads a chunk that has a key which it does not know.
    pub(crate) fn accepts_unknown_keys(self) -> bool {
        match self {
            Version::V5 | Version::V6 | Version::V7 => false,
            Version::V6Patch(patch) => patch >= 231,
            Version::V7Patch(patch) => patch >= 32,
        }
    }

    /// Returns whether this client leaves texts open at the end of a step.
    pub(crate) fn keeps_texts_open(self) -> bool {
        self.knows(Since { v6: None, v7: 79 })
    }

    /// Returns whether this client keeps an invalid input of a static tool as `input`, and not as `rawInput`.
    pub(crate) fn keeps_invalid_input(self) -> bool {
        self.knows(Since { v6: None, v7: 119 })
    }

    /// Returns whether this client ignores the first character of an array that begins no item, when it repairs
    /// an incomplete input.
    pub(crate) fn ignores_invalid_first_item(self) -> bool {
        self.knows(Since { v6: None, v7: 158 })
    }

    /// Returns whether this client knows what these versions have introduced.
    pub(super) fn knows(self, since: Since) -> bool {
        match self {
            Version::V5 => false,
            Version::V6 => since.v6 == Some(0),
            Version::V6Patch(patch) => since.v6.is_some_and(|since| since <= patch),
            Version::V7 => since.v7 == 0,
            Version::V7Patch(patch) => since.v7 <= patch,
        }
    }
}

/// Reads the version of the npm package `ai`, for example `7.0.173`. A later minor or major version knows everything
/// that this crate knows of its line.
///
/// ```
/// use ui_message_stream::chunk::Version;
///
/// assert_eq!("6.0.326".parse(), Ok(Version::V6Patch(326)));
/// assert_eq!("7.0.15".parse(), Ok(Version::V7Patch(15)));
/// assert!("7.0.0-beta.2".parse::<Version>().is_err());
/// ```
impl FromStr for Version {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers: Option<Vec<u16>> = text.split('.').map(|part| part.parse().ok()).collect();
        let [major, minor, patch] = numbers.unwrap_or_default()[..] else {
            return Err(ParseVersionError(()));
        };
        let patch = if minor == 0 { patch } else { u16::MAX };
        match major {
            5 => Ok(Version::V5),
            6 => Ok(Version::V6Patch(patch)),
            7 => Ok(Version::V7Patch(patch)),
            8.. => Ok(Version::NEWEST),
            _ => Err(ParseVersionError(())),
        }
    }
}

/// A text is no released version of `ai` from 5 on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a released version of the npm package `ai`, from 5.0.0 on: expected for example `7.0.173`"
)]
pub struct ParseVersionError(());

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;
    use crate::chunk::Chunk;
    use crate::json::Json;

    /// The keys of an approval request that a client of this version gets.
    fn keys_for(version: Version) -> Vec<&'static str> {
        let request = Chunk::ToolApprovalRequest {
            approval_id: "a".into(),
            tool_call_id: "c".into(),
            approval_descriptor: Some(Cow::Owned(Json::null())),
            input_schema_input: Some(Cow::Owned(Json::null())),
            reason: Some("r".into()),
            is_automatic: Some(true),
            signature: Some("s".into()),
        };
        let sent = serde_json::to_value(request.for_version(version)).unwrap();
        let newer =
            ["approvalDescriptor", "inputSchemaInput", "reason", "isAutomatic", "signature"];
        newer.into_iter().filter(|key| sent.get(*key).is_some()).collect()
    }

    #[test]
    fn a_version_is_read_as_npm_writes_it() {
        for (text, version) in [
            ("5.0.99", Ok(Version::V5)),
            ("6.0.0", Ok(Version::V6Patch(0))),
            ("6.1.2", Ok(Version::V6Patch(u16::MAX))),
            ("7.1.0", Ok(Version::NEWEST)),
            ("8.0.0", Ok(Version::NEWEST)),
        ] {
            assert_eq!(text.parse(), version, "{text}");
        }
        for text in
            ["", "7", "7.0", "7.0.x", "4.3.19", "7.0.0.1", "v7.0.0", "7.0.0-canary.1", "7.0.99999"]
        {
            assert_eq!(text.parse::<Version>(), Err(ParseVersionError(())), "{text}");
        }
    }

    #[test]
    fn each_line_knows_the_keys_of_its_own_versions() {
        let newer_than_v6 =
            ["approvalDescriptor", "inputSchemaInput", "reason", "isAutomatic", "signature"];
        for (version, keys) in [
            (Version::V6, &[][..]),
            (Version::V6Patch(201), &[]),
            (Version::V6Patch(202), &["signature"]),
            (Version::V6Patch(274), &["approvalDescriptor", "signature"]),
            (Version::V6Patch(326), &["approvalDescriptor", "inputSchemaInput", "signature"]),
            (Version::V7, &["isAutomatic", "signature"]),
            (Version::V7Patch(82), &["reason", "isAutomatic", "signature"]),
            (Version::V7Patch(87), &["approvalDescriptor", "reason", "isAutomatic", "signature"]),
            (Version::V7Patch(113), &newer_than_v6),
        ] {
            assert_eq!(keys_for(version), keys, "{version:?}");
        }
    }
}
