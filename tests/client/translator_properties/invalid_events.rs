//! Events that no agent should emit, or not at that time: of unknown calls, repeated, after the
//! end.

use serde_json::Value;
use test_support::rng::Dice;
use ui_message_stream::AgentEvent;

use super::generator::HeldCalls;
use super::pools::{APPROVAL_IDS, PART_IDS, TOOL_CALL_IDS};
use super::run;
use super::values::RandomValues;

/// The few calls, approval requests and parts that the events of one case refer to, so that the
/// events affect each other.
#[derive(Debug, Default)]
pub(crate) struct Cast {
    calls: Vec<String>,
    approvals: Vec<String>,
    parts: Vec<String>,
}

impl Cast {
    /// Some ids of the continued message, some of the events, and some unknown ones.
    pub(crate) fn of(dice: &mut Dice, held: &HeldCalls, events: &[AgentEvent]) -> Self {
        let mut cast = Cast::default();
        // Few calls have a decision, and many rules depend on it.
        cast.calls.extend(held.answered.iter().map(|(id, _)| id.clone()));
        for event in events {
            cast.take(&serde_json::to_value(event).unwrap_or_default());
        }
        let (calls, approvals, parts) = (&mut cast.calls, &mut cast.approvals, &mut cast.parts);
        for (names, held, strangers) in [
            (calls, &held.ids, TOOL_CALL_IDS),
            (approvals, &held.approval_ids, APPROVAL_IDS),
            (parts, &Vec::new(), PART_IDS),
        ] {
            keep_some(dice, names, 3);
            let mut held = held.clone();
            keep_some(dice, &mut held, 2);
            names.append(&mut held);
            for _ in 0..dice.between(usize::from(names.is_empty()), 2) {
                names.push(dice.pick(strangers).to_owned());
            }
        }
        cast
    }

    /// Collects all ids in an event, or in a chunk of an event.
    fn take(&mut self, fields_of: &Value) {
        let Value::Object(fields) = fields_of else { return };
        for (key, value) in fields {
            match (key.as_str(), value.as_str()) {
                ("toolCallId", Some(id)) => self.calls.push(id.to_owned()),
                ("approvalId", Some(id)) => self.approvals.push(id.to_owned()),
                ("id", Some(id)) if fields.contains_key("toolName") => {
                    self.calls.push(id.to_owned());
                }
                ("id", Some(id)) => self.parts.push(id.to_owned()),
                _ => self.take(value),
            }
        }
    }

    fn call(&self, dice: &mut Dice) -> &str {
        one_of(dice, &self.calls)
    }

    pub(crate) fn approval(&self, dice: &mut Dice) -> String {
        match dice.chance(50) {
            true => one_of(dice, &self.approvals).to_owned(),
            // Most approval requests have new ids, because few rules apply to repeated ones.
            false => format!("ap_new_{}", dice.below(1_000_000)),
        }
    }

    pub(crate) fn part(&self, dice: &mut Dice) -> &str {
        one_of(dice, &self.parts)
    }
}

fn one_of<'a>(dice: &mut Dice, names: &'a [String]) -> &'a str {
    &names[dice.below(names.len())]
}

fn keep_some(dice: &mut Dice, names: &mut Vec<String>, most: usize) {
    names.sort();
    names.dedup();
    while names.len() > most {
        let which = dice.below(names.len());
        names.remove(which);
    }
}

/// Damages a run: swaps, repeats and removes events, and inserts foreign ones.
pub(crate) fn mangle(dice: &mut Dice, held: &HeldCalls, events: &mut Vec<AgentEvent>) {
    let cast = Cast::of(dice, held, events);
    for _ in 0..dice.between(1, 8) {
        let (one, other) = match events.len() {
            0 => (0, 0),
            length => (dice.below(length), dice.below(length)),
        };
        match dice.below(8) {
            0 | 1 if !events.is_empty() => events.swap(one, other),
            2 | 3 if !events.is_empty() => events.insert(other, events[one].clone()),
            4 if !events.is_empty() => _ = events.remove(one),
            _ => events.insert(one, any(dice, &cast)),
        }
    }
    add_output_of_denied_call(dice, held, events);
}

/// Any events in any order, about few calls and parts.
pub(crate) fn noise(dice: &mut Dice, held: &HeldCalls) -> Vec<AgentEvent> {
    let cast = Cast::of(dice, held, &[]);
    let mut events: Vec<_> = (0..dice.between(1, 40)).map(|_| any(dice, &cast)).collect();
    add_output_of_denied_call(dice, held, &mut events);
    events
}

/// Adds an output for a call that the user denied, if there is one, because chance alone rarely
/// does.
fn add_output_of_denied_call(dice: &mut Dice, held: &HeldCalls, events: &mut Vec<AgentEvent>) {
    let refused = held.answered.iter().find(|(_, approved)| !approved);
    if let Some((id, _)) = refused.filter(|_| dice.chance(50)) {
        let at = dice.below(events.len() + 1);
        events.insert(at, AgentEvent::tool_output(id.as_str(), dice.json()));
    }
}

/// Any event, about a call or a part that may or may not exist.
pub(crate) fn any(dice: &mut Dice, cast: &Cast) -> AgentEvent {
    let call = cast.call(dice);
    let part = cast.part(dice);
    match dice.below(100) {
        0..=2 => AgentEvent::StepStart,
        3 | 4 => AgentEvent::StepFinish,
        5..=9 => AgentEvent::text(maybe_empty(dice)),
        10..=12 => AgentEvent::reasoning(maybe_empty(dice)),
        13 | 14 => AgentEvent::TextStart { id: part.into() },
        15..=18 => AgentEvent::TextDelta { id: Some(part.into()), delta: maybe_empty(dice).into() },
        19 | 20 => AgentEvent::TextEnd { id: part.into() },
        21 | 22 => AgentEvent::ReasoningStart { id: part.into() },
        23..=25 => {
            AgentEvent::ReasoningDelta { id: Some(part.into()), delta: maybe_empty(dice).into() }
        }
        26..=28 => AgentEvent::ReasoningEnd {
            id: dice.chance(60).then(|| part.into()),
            provider_metadata: dice.provider_metadata().filter(|_| dice.chance(50)),
        },
        29..=35 => AgentEvent::tool_input_start(run::call(dice, call)),
        36..=41 => AgentEvent::tool_input_delta(call, input_piece(dice)),
        42..=51 => AgentEvent::tool_input(run::call(dice, call), dice.json()),
        52..=54 => {
            let error = dice.error_text();
            AgentEvent::tool_input_invalid(run::call(dice, call), dice.json(), error)
        }
        55..=65 => AgentEvent::approval_requested(call, cast.approval(dice)),
        66 | 67 => AgentEvent::tool_denied(call),
        68 | 69 => AgentEvent::tool_refused(call, dice.error_text()),
        70..=75 => AgentEvent::tool_output(call, dice.json()),
        76..=81 => AgentEvent::preliminary_output(call, dice.json()),
        82..=85 => AgentEvent::tool_failed(call, dice.error_text()),
        86 => run::source(dice),
        87 | 88 => run::file(dice),
        89..=92 => run::data(dice),
        93 | 94 => AgentEvent::Metadata(match dice.chance(40) {
            true => dice.json(),
            false => dice.json_object(),
        }),
        95 if dice.chance(50) => run::finish(dice),
        95 if dice.chance(50) => AgentEvent::error(dice.error_text()),
        95 => AgentEvent::Abort { reason: None },
        _ => AgentEvent::text(dice.text()),
    }
}

fn maybe_empty(dice: &mut Dice) -> String {
    if dice.chance(15) { String::new() } else { dice.text() }
}

/// A delta that may be the whole input, or no JSON at all.
fn input_piece(dice: &mut Dice) -> &'static str {
    dice.pick(&["{}", "{\"a\":", "1}", "", " 1 ", "{\"__proto__\":1}"])
}
