//! [`Text`]: text that an agent can pass on without a copy.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::UserText;

/// Text that is static, owned, or a slice of a shared buffer.
///
/// A model client that holds a whole network buffer hands out slices of it, and no delta is copied
/// before it is written to the response.
///
/// ```
/// use std::sync::Arc;
/// use ui_message_stream::event::Text;
///
/// let buffer: Arc<str> = "Hello, world".into();
/// assert_eq!(&*Text::slice(&buffer, 0..5).unwrap(), "Hello");
/// assert_eq!(&*Text::from("static"), "static");
/// ```
#[derive(Clone)]
pub struct Text(Repr);

#[derive(Clone)]
enum Repr {
    Static(&'static str),
    Owned(Box<str>),
    /// Invariant: `start..end` is on character boundaries of `buffer`.
    Slice {
        buffer: Arc<str>,
        start: u32,
        end: u32,
    },
}

impl Text {
    /// Creates a slice of a shared buffer. Returns `None` if the range is not on character
    /// boundaries within the buffer, or lies beyond 4 GiB.
    pub fn slice(buffer: &Arc<str>, range: Range<usize>) -> Option<Self> {
        buffer.get(range.clone())?;
        let start = range.start.try_into().ok()?;
        let end = range.end.try_into().ok()?;
        Some(Text(Repr::Slice { buffer: Arc::clone(buffer), start, end }))
    }
}

impl Deref for Text {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        match &self.0 {
            Repr::Static(text) => text,
            Repr::Owned(text) => text,
            Repr::Slice { buffer, start, end } => {
                buffer.get(*start as usize..*end as usize).unwrap_or_default()
            }
        }
    }
}

impl From<&'static str> for Text {
    fn from(text: &'static str) -> Self {
        Text(Repr::Static(text))
    }
}

impl From<UserText> for Text {
    fn from(text: UserText) -> Self {
        Text::from(text.text())
    }
}

impl From<String> for Text {
    fn from(text: String) -> Self {
        Text(Repr::Owned(text.into_boxed_str()))
    }
}

impl From<Box<str>> for Text {
    fn from(text: Box<str>) -> Self {
        Text(Repr::Owned(text))
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Text {}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }
}

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Text::from)
    }
}
