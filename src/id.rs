//! The ids of the protocol, one type each, so that one is never passed for another.
//!
//! All of them are opaque strings, cheap to clone. Ids that a client makes are whatever the client
//! likes (16 random letters by default, even empty); this crate never parses them.

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
            /// Takes the id as it is.
            pub fn new(id: impl Into<Arc<str>>) -> Self {
                $name(id.into())
            }

            /// The id as it stands on the wire.
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

macro_rules! shown_in_debug {
    ($($name:ident)*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    )*};
}

shown_in_debug! { ChatId MessageId PartId ToolCallId }

/// Shows no more than the beginning: whoever has it whole, and is taken for the person, can approve.
impl fmt::Debug for ApprovalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(SHOWN_OF_APPROVAL_ID) {
            Some((end, _)) => write!(f, "{:?}", format_args!("{}[redacted]", &self.0[..end])),
            None => fmt::Debug::fmt(&self.0, f),
        }
    }
}

/// Enough of an id of one's own, and less than the first random byte of a sealed one.
const SHOWN_OF_APPROVAL_ID: usize = 24;

ids! {
    /// Names a request for approval; the answer comes back under it.
    ApprovalId
    /// Names a conversation; the `id` of a request's body.
    ChatId
    /// Names a UI message.
    MessageId
    /// Names a text or reasoning part while it is open.
    PartId
    /// Names a tool call within a message.
    ToolCallId
}
