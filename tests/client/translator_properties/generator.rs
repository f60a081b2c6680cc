//! Random cases: runs as an agent should emit them, runs cut short, runs with
//! invalid events, and raw chunks.

use serde_json::Value;
use test_support::rng::Dice;
use ui_message_stream::AgentEvent;
use ui_message_stream::chunk::Version;

use super::case::{Case, Flavour, Origin};
use super::continued::{self, value};
use super::values::RandomValues;
use super::{invalid_events, raw_chunks, run};

/// The case of this seed and number.
pub(crate) fn case(seed: u64, number: u64) -> Case {
    let dice = &mut Dice::new(seed, number);
    let version = dice.weighted(&[
        (30, Version::V6),
        (4, Version::V6Patch(197)),
        (4, Version::V6Patch(230)),
        (8, Version::V6Patch(326)),
        (16, Version::V7),
        (6, Version::V7Patch(77)),
        (6, Version::V7Patch(120)),
        (30, Version::V7Patch(173)),
        (8, Version::V5),
    ]);
    // Only as chunks does an agent emit what is new in `ai@7`.
    let is_v7 = matches!(version, Version::V7 | Version::V7Patch(_));
    let flavour = dice.weighted(&[
        (35, Flavour::WellBehaved),
        (15, Flavour::Cut),
        (30, Flavour::Invalid),
        (if is_v7 { 50 } else { 20 }, Flavour::Chunks),
    ]);
    let approvals = version != Version::V5 && dice.chance(92);
    let origin = origin(dice, flavour, version.knows_approvals());
    let metadata = dice
        .chance(10)
        .then(|| value(&if dice.chance(90) { dice.json_object() } else { dice.json() }));
    let mut case = Case {
        flavour,
        origin,
        version,
        approvals,
        starts_early: dice.chance(20),
        metadata,
        events: Vec::new(),
    };
    case.events = events(dice, &case);
    case
}

fn origin(dice: &mut Dice, flavour: Flavour, approvals: bool) -> Origin {
    if dice.chance(50) {
        let orderly = matches!(flavour, Flavour::WellBehaved | Flavour::Cut);
        Origin::Continued(continued::message(dice, orderly, approvals))
    } else if dice.chance(15) {
        Origin::Unnamed
    } else {
        Origin::New(dice.pick(&["msg_1", "msg_2", "__proto__", "m-ключ"]).to_owned())
    }
}

fn events(dice: &mut Dice, case: &Case) -> Vec<AgentEvent> {
    let held = HeldCalls::of(case.continued());
    let mut events = run::well_behaved(dice, &held);
    match case.flavour {
        Flavour::WellBehaved => {}
        Flavour::Cut => {
            let end = dice.below(events.len() + 1);
            events.truncate(end);
        }
        Flavour::Invalid if dice.chance(50) => invalid_events::mangle(dice, &held, &mut events),
        Flavour::Invalid => events = invalid_events::noise(dice, &held),
        Flavour::Chunks => {
            if dice.chance(40) {
                invalid_events::mangle(dice, &held, &mut events);
            }
            raw_chunks::mix_in(dice, &held, case.knows(0), &mut events);
        }
    }
    events
}

/// The tool calls and approvals of the message that is continued.
#[derive(Debug, Default)]
pub(crate) struct HeldCalls {
    /// Decided calls with a unique id, and whether they are approved.
    pub(crate) answered: Vec<(String, bool)>,
    /// Every tool call id in the message.
    pub(crate) ids: Vec<String>,
    /// Every approval id in the message.
    pub(crate) approval_ids: Vec<String>,
}

impl HeldCalls {
    fn of(message: Option<&Value>) -> Self {
        let mut held = HeldCalls::default();
        let parts = message.and_then(|message| message["parts"].as_array());
        for part in parts.into_iter().flatten() {
            if let Some(id) = part["toolCallId"].as_str() {
                held.ids.push(id.to_owned());
            }
            if let Some(id) = part["approval"]["id"].as_str() {
                held.approval_ids.push(id.to_owned());
            }
        }
        for part in parts.into_iter().flatten() {
            if let (Some(id), "approval-responded", Some(approved)) = (
                part["toolCallId"].as_str(),
                part["state"].as_str().unwrap_or_default(),
                part["approval"]["approved"].as_bool(),
            ) && held.ids.iter().filter(|other| *other == id).count() == 1
            {
                held.answered.push((id.to_owned(), approved));
            }
        }
        held
    }
}
