//! [`FinishReasons`]: the finish reasons of a response, as its provider sent them.
//!
//! rig keeps the last one. Some servers end every stream with `stop`, also after `length`.

use std::sync::OnceLock;

use rig_core::observe::{Action, AdapterEvent, Observation, Witness};

use ui_message_stream::chunk::FinishReason;

/// The first of the reasons that says that the response was cut short.
#[derive(Default)]
pub(super) struct FinishReasons(OnceLock<FinishReason>);

impl FinishReasons {
    /// Returns the reason, or this one if no reason says that the response was cut short.
    pub(super) fn cut_or(&self, reason: FinishReason) -> FinishReason {
        match reason {
            FinishReason::Stop | FinishReason::ToolCalls => *self.0.get().unwrap_or(&reason),
            reason => reason,
        }
    }
}

impl Witness for FinishReasons {
    fn observe(&self, observation: Observation) {
        let Action::Adapter { observation } = observation.action else { return };
        let AdapterEvent::Provider { verdict } = observation.event else { return };
        let cut = match verdict.finish_reason.as_deref() {
            Some("length") => FinishReason::Length,
            Some("content_filter") => FinishReason::ContentFilter,
            _ => return,
        };
        let _ = self.0.set(cut);
    }
}
