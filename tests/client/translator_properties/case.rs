//! One case: the events for the translator, as printed on a failure.

use serde_json::{Value, json};
use ui_message_stream::AgentEvent;
use ui_message_stream::chunk::Version;

/// The kind of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    /// A run as an agent should emit it.
    WellBehaved,
    /// Such a run, cut at a random point.
    Cut,
    /// Any event at any time.
    Invalid,
    /// Raw chunks between the events.
    Chunks,
}

/// The id of the message before the first event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Origin {
    /// A new message of this id.
    New(String),
    /// A new message whose id the client makes, unless a `start` chunk gives one.
    Unnamed,
    /// The message that is continued.
    Continued(Value),
}

/// A sequence of events and the circumstances in which it is translated.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) flavour: Flavour,
    pub(crate) origin: Origin,
    pub(crate) version: Version,
    /// Whether approvals may be requested.
    pub(crate) approvals: bool,
    /// Whether the `start` chunk is written before the first event.
    pub(crate) starts_early: bool,
    /// Metadata that the translator starts with.
    pub(crate) metadata: Option<Value>,
    pub(crate) events: Vec<AgentEvent>,
}

impl Case {
    pub(crate) fn continued(&self) -> Option<&Value> {
        match &self.origin {
            Origin::Continued(message) => Some(message),
            Origin::New(_) | Origin::Unnamed => None,
        }
    }

    /// The client versions that must accept the output: output for the oldest version is valid for
    /// all.
    pub(crate) fn clients(&self) -> &'static [&'static str] {
        match self.version {
            Version::V5 => &["5.0.0"],
            Version::V6 => {
                &["6.0.0", "6.0.197", "6.0.230", "6.0.235", "6.0.326", "7.0.0", "7.0.173"]
            }
            Version::V6Patch(197) => &["6.0.197", "6.0.230", "6.0.235", "6.0.326"],
            Version::V6Patch(230) => &["6.0.230", "6.0.235", "6.0.326"],
            Version::V7 => &["7.0.0", "7.0.15", "7.0.31", "7.0.77", "7.0.120", "7.0.173"],
            Version::V7Patch(77) => &["7.0.77", "7.0.120", "7.0.173"],
            Version::V7Patch(120) => &["7.0.120", "7.0.173"],
            Version::V7Patch(_) => &["7.0.173"],
            _ => &["6.0.326"],
        }
    }

    /// Whether the client knows what this patch of `ai@7` has introduced.
    pub(crate) fn knows(&self, patch: u16) -> bool {
        match self.version {
            Version::V7 => patch == 0,
            Version::V7Patch(known) => patch <= known,
            _ => false,
        }
    }

    /// The case as JSON.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "flavour": format!("{:?}", self.flavour),
            "version": format!("{:?}", self.version),
            "approvals": self.approvals,
            "message": match &self.origin {
                Origin::New(id) => json!({ "new": id }),
                Origin::Unnamed => json!("unnamed"),
                Origin::Continued(message) => message.clone(),
            },
            "starts early": self.starts_early,
            "metadata": self.metadata,
            "events": self.events,
        })
    }
}
