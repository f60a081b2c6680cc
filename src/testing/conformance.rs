//! [`conformance`]: checks with the [`Checker`] whether the clients accept a stream.

use std::fmt::{self, Write as _};

use crate::checker::{Checker, ClientReader, Rule, Violation};
use crate::chunk::{Chunk, Version};
use crate::message::UiMessage;

/// Returns the rules that a stream breaks. The stream begins a message, and the clients are those
/// from `ai@6.0.0` on. Returns an empty list if the stream breaks no rule. For other settings use
/// [`Conformance`].
///
/// ```
/// use ui_message_stream::Chunk;
/// use ui_message_stream::testing::conformance;
///
/// let chunks = [
///     Chunk::Start { message_id: None, message_metadata: None },
///     Chunk::TextEnd { id: "0".into(), citations: None, provider_metadata: None },
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

/// Asserts that a stream breaks no rule, not even a warning, but for [`Rule::HiddenInput`] and
/// [`Rule::NeverResubmitted`], which depend on the page. The stream begins a message, and the
/// clients are those from `ai@6.0.0` on. For other settings use [`Conformance`].
///
/// # Panics
/// If [`conformance`] has a finding. The panic message names the rule, the number of the chunk, and
/// the remedy.
#[track_caller]
pub fn assert_conformant(chunks: &[Chunk<'_>]) {
    Conformance::new().assert(chunks);
}

/// The settings of a check.
///
/// ```
/// use ui_message_stream::chunk::Version;
/// use ui_message_stream::testing::Conformance;
/// # let chunks = [ui_message_stream::Chunk::Abort { reason: Some("enough".into()) }];
///
/// // Every browser runs ai@6.0.326 or later.
/// Conformance::new().with_oldest_client(Version::V6Patch(326)).assert(&chunks);
/// ```
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Conformance {
    oldest_client: Version,
    reader: ClientReader,
    continued: Option<UiMessage>,
}

impl Conformance {
    /// Creates the settings for a stream that begins a message and for clients from `ai@6.0.0` on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the oldest client that reads the stream. The default is [`Version::V6`], `ai@6.0.0`.
    pub fn with_oldest_client(mut self, version: Version) -> Self {
        self.oldest_client = version;
        self
    }

    /// Sets which reader of the client reads the stream. The default is `readUIMessageStream`.
    pub fn with_reader(mut self, reader: ClientReader) -> Self {
        self.reader = reader;
        self
    }

    /// Sets the message that the stream continues. By default the stream begins a message.
    pub fn continuing(mut self, message: UiMessage) -> Self {
        self.continued = Some(message);
        self
    }

    /// Returns the rules that the stream breaks, in the order of the stream.
    #[must_use]
    pub fn check(&self, chunks: &[Chunk<'_>]) -> Vec<Finding> {
        let data = chunks.iter().map(|chunk| {
            serde_json::to_string(chunk).expect("a chunk holds nothing that does not serialize")
        });
        self.check_data(data, false)
    }

    /// Asserts that the stream breaks no rule.
    ///
    /// # Panics
    /// If the stream breaks a rule. The panic message names each broken rule, the number of the
    /// chunk, and the remedy.
    #[track_caller]
    pub fn assert(&self, chunks: &[Chunk<'_>]) {
        self.assert_none(&self.check(chunks));
    }

    /// Returns the rules that a stream breaks. `data` is the data of its events;
    /// `ends_within_event` says whether its last event is incomplete.
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
        let mut at_end = if ends_within_event { checker.handle_truncated() } else { Vec::new() };
        at_end.extend(checker.finish());
        found.extend(at_end.into_iter().map(|violation| Finding { chunk: None, violation }));
        // Here it depends on the page whether anything is wrong, so a test of the route does not fail.
        let depends_on_page = [Rule::HiddenInput, Rule::NeverResubmitted];
        found.retain(|finding| !depends_on_page.contains(&finding.violation.rule));
        found
    }

    #[track_caller]
    pub(super) fn assert_none(&self, found: &[Finding]) {
        assert!(found.is_empty(), "{}", self.describe(found));
    }

    fn describe(&self, found: &[Finding]) -> String {
        let mut text = format!(
            "the stream is not what clients from {} on accept\n",
            version_name(self.oldest_client)
        );
        for Finding { chunk, violation: Violation { rule, subject, .. } } in found {
            let at = chunk.map_or_else(|| "at the end".to_owned(), |n| format!("chunk {n}"));
            let code = rule.code();
            let why = rule.why();
            let remedy = rule.remedy();
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "  {at}: {code}\n    what:   {subject}\n    why:    {why}\n    remedy: {remedy}\n"
            );
        }
        text
    }
}

/// A broken rule and its place in the stream.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The number of the chunk, counted from 1. `None` if only the end of the stream shows the
    /// mistake.
    pub chunk: Option<usize>,
    /// The rule, and the chunk or part that breaks it.
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

fn version_name(version: Version) -> String {
    match version {
        Version::V5 => "ai@5".to_owned(),
        Version::V6 => "ai@6.0.0".to_owned(),
        Version::V6Patch(patch) => format!("ai@6.0.{patch}"),
        Version::V7 => "ai@7.0.0".to_owned(),
        Version::V7Patch(patch) => format!("ai@7.0.{patch}"),
    }
}
