//! [`Deltas`]: the deltas of a response's parts and calls, which a server may split inside a character.

use std::borrow::Cow;
use std::collections::VecDeque;

use serde_json::value::RawValue;

use ui_message_stream::event::AgentEvent;
use ui_message_stream::id::{PartId, ToolCallId};
use ui_message_stream::json::SplitText;
use ui_message_stream::model::ModelEvent;

/// The part or call that a delta belongs to.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Target {
    Text(Option<PartId>),
    Reasoning(Option<PartId>),
    ToolInput(ToolCallId),
}

impl Target {
    fn delta(self, delta: String) -> ModelEvent {
        let delta = delta.into();
        ModelEvent::Event(match self {
            Target::Text(id) => AgentEvent::TextDelta { id, delta },
            Target::Reasoning(id) => AgentEvent::ReasoningDelta { id, delta },
            Target::ToolInput(tool_call_id) => AgentEvent::ToolInputDelta { tool_call_id, delta },
        })
    }
}

/// The texts whose last delta ended with half a character.
#[derive(Debug, Default)]
pub(super) struct Deltas(Vec<(Target, SplitText)>);

impl Deltas {
    /// Emits a delta, and returns its text.
    pub(super) fn push<'d>(
        &mut self,
        target: Target,
        delta: &'d RawValue,
        events: &mut VecDeque<ModelEvent>,
    ) -> Option<Cow<'d, str>> {
        let begun = self.0.iter().position(|(other, _)| *other == target);
        let mut text = begun.map(|at| self.0.swap_remove(at).1).unwrap_or_default();
        let delta = text.push(delta).filter(|delta| !delta.is_empty());
        events.extend(delta.clone().map(|delta| target.clone().delta(delta.into_owned())));
        if text.is_pending() {
            self.0.push((target, text));
        }
        delta
    }

    /// Ends texts. Emits U+FFFD for each whose last character has no second half.
    pub(super) fn end(
        &mut self,
        is_ended: impl Fn(&Target) -> bool,
        events: &mut VecDeque<ModelEvent>,
    ) {
        for (target, mut text) in self.0.extract_if(.., |(target, _)| is_ended(target)) {
            events.extend(text.end().map(|half| target.delta(half.to_string())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_texts_with_half_a_character_are_kept() {
        let mut deltas = Deltas::default();
        let mut events = VecDeque::new();
        let mut push = |id: &str, delta: &str| {
            let delta = RawValue::from_string(delta.to_owned()).unwrap();
            deltas.push(Target::Text(Some(id.into())), &delta, &mut events);
            deltas.0.len()
        };
        assert_eq!(push("a", r#""a""#), 0);
        assert_eq!(push("b", r#""\ud83d""#), 1);
        assert_eq!(push("c", r#""c""#), 1);
        assert_eq!(push("b", r#""\ude00""#), 0);
    }
}
