//! Which text (or reasoning) parts are open, by the id that their deltas carry.

use std::fmt::Write as _;

/// The open parts of one kind. There is rarely more than one.
#[derive(Debug)]
pub(super) struct OpenParts {
    /// The part that deltas without an id go to.
    unnamed: Option<String>,
    /// The parts that the agent named, in the order they were opened.
    named: Vec<String>,
    prefix: &'static str,
    next: u32,
}

impl OpenParts {
    /// `prefix` begins the ids made for parts that the agent did not name.
    pub(super) fn new(prefix: &'static str) -> Self {
        OpenParts {
            unnamed: None,
            named: Vec::new(),
            prefix,
            next: 0,
        }
    }

    /// The id of the part that deltas without an id go to.
    #[inline]
    pub(super) fn unnamed(&self) -> Option<&str> {
        self.unnamed.as_deref()
    }

    /// Opens the part that deltas without an id go to, under an id that no open part has.
    pub(super) fn open_unnamed(&mut self) -> &str {
        let mut id = String::new();
        loop {
            self.next += 1;
            id.clear();
            // Writing to a `String` does not fail.
            let _ = write!(id, "{}-{}", self.prefix, self.next);
            if !self.is_open(&id) {
                return self.unnamed.insert(id);
            }
        }
    }

    pub(super) fn close_unnamed(&mut self) -> Option<String> {
        self.unnamed.take()
    }

    pub(super) fn is_open(&self, id: &str) -> bool {
        self.unnamed.as_deref() == Some(id) || self.named.iter().any(|open| open == id)
    }

    pub(super) fn open(&mut self, id: &str) {
        self.named.push(id.to_owned());
    }

    /// Whether the part was open.
    pub(super) fn close(&mut self, id: &str) -> bool {
        if self.unnamed.as_deref() == Some(id) {
            self.unnamed = None;
            return true;
        }
        match self.named.iter().position(|open| open == id) {
            Some(index) => {
                self.named.remove(index);
                true
            }
            None => false,
        }
    }

    /// Closes all of them, oldest first as far as they are named.
    pub(super) fn close_all(&mut self) -> impl Iterator<Item = String> {
        std::mem::take(&mut self.named)
            .into_iter()
            .chain(self.unnamed.take())
    }
}
