//! Random messages of a history, with contents that no client would send.

use serde_json::json;

use super::fields::Fields;
use super::message;
use super::values::RandomValues;
use crate::rng::Dice;

/// Returns a message as JSON. It may repeat a key, which makes it invalid.
pub fn message_text(dice: &mut Dice) -> String {
    let role = dice.pick(&["user", "user", "assistant", "assistant", "assistant", "system"]);
    let parts: Vec<_> = (0..dice.below(7)).map(|_| part(dice).to_text()).collect();
    Fields::default()
        .with_text("id", dice.pick(&["m1", "m2", ""]))
        .with_text("role", role)
        .with("parts", format!("[{}]", parts.join(",")))
        .to_text()
}

fn part(dice: &mut Dice) -> Fields {
    match dice.below(12) {
        0 => {
            let urls = ["", "data:,", "data:image/png;base64,AA==", "https://example.com/a", "é,"];
            Fields::of("file")
                .with_text("mediaType", "image/png")
                .with_text("url", dice.pick(&urls))
        }
        1 => Fields::of("source-url").with_text("sourceId", "s").with_text("url", "u"),
        2 => Fields::of("reasoning").with_text("text", "Hm").may(
            dice,
            50,
            "providerMetadata",
            Dice::provider_metadata,
        ),
        3 => odd_call(dice),
        _ => message::part(dice),
    }
}

/// Returns a tool call that the other tests do not use: with unusual ids and names, or executed by
/// the provider.
fn odd_call(dice: &mut Dice) -> Fields {
    let approval = json!({"id": dice.pick(APPROVAL_IDS)}).to_string();
    Fields::of("dynamic-tool")
        .with_text("toolName", dice.pick(&["functions.ls", "", "é", &"n".repeat(70)]))
        .with_text("toolCallId", dice.pick(&["", "call", "call_2", "c0", "c0_2"]))
        .with_text("state", "approval-requested")
        .with("approval", approval)
        .may(dice, 50, "input", Dice::json)
        .may(dice, 50, "providerExecuted", |_| "true".to_owned())
}

/// The ids of the approvals.
pub const APPROVAL_IDS: &[&str] = &["ap0", "ap1", "ap2"];
