//! [`conformance`]: whether the clients accept a stream, by the [`Checker`].

use std::fmt::{self, Write as _};

use crate::checker::{Checker, Reader, Violation};
use crate::chunk::{Chunk, Version};
use crate::message::UiMessage;

/// What is wrong with a stream that begins a message, for clients from `ai@6.0.0` on; nothing, if
/// all is well. [`Conformance`] has the settings.
///
/// ```
/// use ui_message_stream::Chunk;
/// use ui_message_stream::testing::conformance;
///
/// let chunks = [
///     Chunk::Start { message_id: None, message_metadata: None },
///     Chunk::TextEnd { id: "0".into(), provider_metadata: None },
///     Chunk::Finish { finish_reason: None, message_metadata: None },
/// ];
/// let found = conformance(&chunks);
/// assert_eq!(found[0].chunk, Some(2));
/// assert_eq!(found[0].violation.rule.code(), "part-not-open");
/// ```
#[must_use]
pub fn conformance(chunks: &[Chunk<'_>]) -> Vec<Finding> {
    Conformance::new().check(chunks)
}

/// Asserts that a stream that begins a message is what clients from `ai@6.0.0` on accept, and
/// surely what was meant. [`Conformance`] has the settings.
///
/// # Panics
/// If [`conformance`] finds anything: with the rule, the number of the chunk, and the remedy.
#[track_caller]
pub fn assert_conformant(chunks: &[Chunk<'_>]) {
    Conformance::new().assert(chunks);
}

/// How a stream is judged.
///
/// ```
/// use ui_message_stream::chunk::Version;
/// use ui_message_stream::testing::Conformance;
/// # let chunks = [ui_message_stream::Chunk::Abort { reason: Some("enough".into()) }];
///
/// // Every browser runs ai@6.0.326 or later.
/// Conformance::new().with_oldest_client(Version::V6At(326)).assert(&chunks);
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Conformance {
    oldest_client: Version,
    reader: Reader,
    continued: Option<UiMessage>,
}

impl Conformance {
    /// For a stream that begins a message, and clients from `ai@6.0.0` on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the oldest client that will read. The default is [`Version::V6`], `ai@6.0.0`.
    pub fn with_oldest_client(mut self, version: Version) -> Self {
        self.oldest_client = version;
        self
    }

    /// Sets which of the client's readers will read. The default is `readUIMessageStream`.
    pub fn with_reader(mut self, reader: Reader) -> Self {
        self.reader = reader;
        self
    }

    /// The stream goes on with this message.
    pub fn continuing(mut self, message: UiMessage) -> Self {
        self.continued = Some(message);
        self
    }

    /// What is wrong with the stream, in its order.
    #[must_use]
    pub fn check(&self, chunks: &[Chunk<'_>]) -> Vec<Finding> {
        let data = chunks.iter().map(|chunk| {
            serde_json::to_string(chunk).expect("a chunk holds nothing that does not serialize")
        });
        self.check_data(data, false)
    }

    /// Asserts that nothing is wrong with the stream.
    ///
    /// # Panics
    /// With every rule that is broken, the number of the chunk, and the remedy.
    #[track_caller]
    pub fn assert(&self, chunks: &[Chunk<'_>]) {
        self.assert_none(&self.check(chunks));
    }

    /// What is wrong with a stream whose events have this data, and which ends within one or not.
    pub(super) fn check_data(
        &self,
        data: impl Iterator<Item: AsRef<str>>,
        ends_within_event: bool,
    ) -> Vec<Finding> {
        let checker = match &self.continued {
            Some(message) => Checker::continuing(message),
            None => Checker::new(),
        };
        let mut checker = checker.with_oldest_client(self.oldest_client).with_reader(self.reader);
        let mut found = Vec::new();
        for (index, data) in data.enumerate() {
            let violations = checker.handle_data(data.as_ref()).into_iter();
            found.extend(violations.map(|violation| Finding { chunk: Some(index + 1), violation }));
        }
        let mut at_end = match ends_within_event {
            true => checker.handle_unfinished(),
            false => Vec::new(),
        };
        at_end.extend(checker.finish());
        found.extend(at_end.into_iter().map(|violation| Finding { chunk: None, violation }));
        found
    }

    #[track_caller]
    pub(super) fn assert_none(&self, found: &[Finding]) {
        assert!(found.is_empty(), "{}", self.describe(found));
    }

    fn describe(&self, found: &[Finding]) -> String {
        let mut text =
            format!("the stream is not what clients from {} on accept\n", name(self.oldest_client));
        for Finding { chunk, violation: Violation { rule, subject, .. } } in found {
            let at = chunk.map_or_else(|| "at the end".to_owned(), |n| format!("chunk {n}"));
            let (code, why, remedy) = (rule.code(), rule.why(), rule.remedy());
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "  {at}: {code}\n    what:   {subject}\n    why:    {why}\n    remedy: {remedy}\n"
            );
        }
        text
    }
}

/// A rule that is broken, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The number of the chunk, counted from 1. None if only the end shows it.
    pub chunk: Option<usize>,
    /// The rule, and what breaks it.
    pub violation: Violation,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.chunk {
            Some(number) => write!(f, "chunk {number}: {}", self.violation),
            None => write!(f, "at the end: {}", self.violation),
        }
    }
}

fn name(version: Version) -> String {
    match version {
        Version::V5 => "ai@5".to_owned(),
        Version::V6 => "ai@6.0.0".to_owned(),
        Version::V6At(patch) => format!("ai@6.0.{patch}"),
    }
}
