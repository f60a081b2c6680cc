//! Random messages for a stream to continue.

use ui_message_stream::UiMessage;

use super::fields::Fields;
use super::values::{CALL_IDS, INPUT_PIECES, RandomValues, metadata};
use crate::rng::Dice;

/// Returns a message to continue, or `None` if `ui_message_stream` cannot read it.
pub fn message(dice: &mut Dice) -> Option<String> {
    let parts: Vec<_> = (0..dice.below(6)).map(|_| part(dice).to_text()).collect();
    let message = Fields::default()
        .with_text("id", dice.pick(&["m1", "m1", ""]))
        .with_text("role", "assistant")
        .may(dice, 40, "metadata", metadata)
        .with("parts", format!("[{}]", parts.join(",")))
        .may(dice, 10, "later", Dice::json)
        .to_text();
    UiMessage::parse(&message).ok().map(|_| message)
}

/// Returns a part of an assistant message.
pub fn part(dice: &mut Dice) -> Fields {
    let part = match dice.below(12) {
        0 | 1 => Fields::of("step-start"),
        2 => Fields::of("text")
            .with("text", dice.string())
            .may(dice, 50, "state", |dice| dice.pick(&[r#""done""#, r#""streaming""#]).to_owned()),
        3 => Fields::of("reasoning").with("text", dice.string()).may(dice, 50, "id", Dice::string),
        4 => Fields::of(dice.pick(&["data-a", "data-b-c"])).with("data", dice.json()).may(
            dice,
            70,
            "id",
            |dice| dice.pick(&[r#""1""#, r#""2""#]).to_owned(),
        ),
        5 => Fields::of(dice.pick(&["new-kind", "data"])).with("id", r#""1""#),
        _ => tool_part(dice),
    };
    part.may(dice, 10, "later", Dice::json)
}

fn tool_part(dice: &mut Dice) -> Fields {
    let part = match dice.below(5) {
        0 | 1 => Fields::of("dynamic-tool").with_text("toolName", dice.pick(&["ls", "x"])).may(
            dice,
            20,
            "dynamic",
            |_| "false".to_owned(),
        ),
        _ => Fields::of(dice.pick(&["tool-ls", "tool-rm-rf", "tool-"])),
    };
    let states = [
        "input-streaming",
        "input-available",
        "approval-requested",
        "approval-responded",
        "output-available",
        "output-error",
        "output-denied",
        "later-state",
    ];
    let state = dice.pick(&states);
    let part = part
        .with_text("toolCallId", dice.pick(CALL_IDS))
        .with_text("state", state)
        .may(dice, 80, "input", Dice::json)
        .may(dice, 20, "title", Dice::json)
        .may(dice, 20, "providerExecuted", |_| "true".to_owned())
        .may(dice, 20, "toolMetadata", Dice::plain_object)
        .may(dice, 20, "callProviderMetadata", Dice::provider_metadata)
        .may(dice, 20, "resultProviderMetadata", Dice::provider_metadata);
    let approval = |dice: &mut Dice, is_answered: bool| {
        let mut approval = Fields::default().with_text("id", "ap0");
        if is_answered {
            approval = approval.with("approved", dice.pick(&["true", "false"]));
            approval = approval.may(dice, 30, "reason", Dice::string);
        }
        approval
            .may(dice, 30, "signature", Dice::string)
            .may(dice, 10, "later", Dice::json)
            .to_text()
    };
    // The fields that a state needs, and occasionally fields that it does not have.
    let has = |dice: &mut Dice, states: &[&str], usually: usize| {
        if states.contains(&state) { dice.chance(usually) } else { dice.chance(5) }
    };
    let mut part = part;
    if has(dice, &["input-streaming"], 70) {
        let text = format!("{}{}", dice.pick(INPUT_PIECES), dice.pick(INPUT_PIECES));
        part = part.with_text("rawInput", &text);
    }
    if has(dice, &["input-streaming"], 30) {
        part = part.with("inputEncoding", dice.pick(&[r#""json""#, r#""text""#]));
    }
    if has(dice, &["output-available"], 90) {
        part = part.with("output", dice.json());
    }
    if has(dice, &["output-available"], 30) {
        part = part.with("preliminary", dice.pick(&["true", "false"]));
    }
    if has(dice, &["output-error"], 100) {
        part = part.with("errorText", dice.string());
    }
    let approval_states = ["approval-requested", "approval-responded"];
    if approval_states.contains(&state) || dice.chance(15) {
        let is_answered =
            state != "approval-requested" && (state == approval_states[1] || dice.chance(60));
        let approval = approval(dice, is_answered);
        part = part.with("approval", approval);
    }
    part
}
