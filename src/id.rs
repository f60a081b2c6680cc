//! The ids of the protocol, one type each, so that one is never passed for another.
//!
//! All of them are opaque strings, cheap to clone. This crate never parses them. A client may choose
//! any string as an id, including the empty string. The AI SDK generates 16 random letters and
//! digits by default.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Creates an id from any string, without a check.
            pub fn new(id: impl Into<Arc<str>>) -> Self {
                $name(id.into())
            }

            /// Returns the id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;
            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(id: &str) -> Self {
                $name(id.into())
            }
        }

        impl From<String> for $name {
            fn from(id: String) -> Self {
                $name(id.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

macro_rules! debug_in_full {
    ($($name:ident)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    )*};
}

debug_in_full! { ChatId MessageId PartId ToolCallId }

/// Shows only the first 24 characters of a longer id: who knows the whole id, and is authenticated
/// as the user, can approve.
impl fmt::Debug for ApprovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(MAX_DEBUG_CHARS) {
            Some((end, _)) => write!(f, "{:?}", format_args!("{}[redacted]", &self.0[..end])),
            None => fmt::Debug::fmt(&self.0, f),
        }
    }
}

/// How many characters of an approval id its `Debug` output shows.
///
/// They are enough to recognise an id that an agent made itself. In a sealed id they end before the
/// first random byte.
const MAX_DEBUG_CHARS: usize = 24;

ids! {
    /// The id of an approval request. The approval response carries the same id.
    ApprovalId
    /// The id of a conversation: the `id` in the body of a request.
    ChatId
    /// The id of a UI message.
    MessageId
    /// The id of a text or reasoning part while it is open.
    PartId
    /// The id of a tool call within a message.
    ToolCallId
}
