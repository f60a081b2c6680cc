//! Counts chunks and answers, so that a rule that never applied is not considered tested.

use std::collections::BTreeMap;

/// Every kind of chunk, and the fields that only `ai@7` knows.
const KINDS: &[&str] = &[
    "start",
    "start-step",
    "text-start",
    "text-delta",
    "text-end",
    "reasoning-start",
    "reasoning-delta",
    "reasoning-end",
    "tool-input-start",
    "tool-input-delta",
    "tool-input-available",
    "tool-input-error",
    "tool-approval-request",
    "tool-output-available",
    "tool-output-error",
    "tool-output-denied",
    "source-url",
    "source-document",
    "file",
    "data-*",
    "message-metadata",
    "finish-step",
    "error",
    "abort",
    "finish",
    "tool-approval-response",
    "reasoning-file",
    "custom",
    "reset-step",
    "citations",
    "reason",
    "isAutomatic",
    "interrupted",
];

/// Every possible answer to an event.
const ANSWERS: &[&str] = &[
    "Ok",
    "UnknownCall",
    "CallOpen",
    "CallSettled",
    "InputOpen",
    "InputComplete",
    "ApprovalOpen",
    "ApprovalIdUsed",
    "AlreadyRunning",
    "Denied",
    "UnknownApproval",
    "UnknownPart",
    "SourceUrl",
    "FileUrl",
    "Ended",
];

/// The number of chunks of each kind, and of each answer.
#[derive(Debug)]
pub(crate) struct Tally {
    counts: BTreeMap<String, usize>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let names = KINDS.iter().chain(ANSWERS).map(|name| ((*name).to_owned(), 0));
        Tally { counts: names.collect() }
    }

    pub(crate) fn chunk(&mut self, kind: &str) {
        self.count(if kind.starts_with("data-") { "data-*" } else { kind });
    }

    pub(crate) fn field(&mut self, name: &str) {
        self.count(name);
    }

    pub(crate) fn answer(&mut self, answer: &str) {
        self.count(answer);
    }

    fn count(&mut self, name: &str) {
        *self.counts.entry(name.to_owned()).or_default() += 1;
    }

    /// The kinds and answers that occurred too rarely.
    pub(crate) fn below(&self, enough: usize) -> Vec<&str> {
        let rare = self.counts.iter().filter(|(_, count)| **count < enough);
        rare.map(|(name, _)| name.as_str()).collect()
    }

    pub(crate) fn print(&self) {
        println!("chunks that went out:");
        for kind in KINDS {
            println!("  {:>9} {kind}", self.counts[*kind]);
        }
        println!("answers that events got:");
        for (name, count) in &self.counts {
            if !KINDS.contains(&name.as_str()) {
                println!("  {count:>9} {name}");
            }
        }
    }
}
