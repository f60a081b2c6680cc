//! Random request bodies: generated messages, and changed copies of stored messages.

use serde_json::{Value, json};
use test_support::random_messages::history::message_text;
use test_support::rng::Dice;

/// Returns a body that contains the stored messages. A real approval request is never approved in
/// it.
pub(crate) fn random_body(dice: &mut Dice, stored: &[String]) -> String {
    let mut messages: Vec<String> = stored.iter().map(|message| changed(dice, message)).collect();
    for _ in 0..dice.below(4) {
        let at = dice.below(messages.len() + 1);
        messages.insert(at, message_text(dice));
    }
    if messages.len() > 1 && dice.chance(20) {
        let (a, b) = (dice.below(messages.len()), dice.below(messages.len()));
        messages.swap(a, b);
    }
    if !messages.is_empty() && dice.chance(15) {
        let at = dice.below(messages.len());
        let copy = messages[at].clone();
        messages.push(copy);
    }
    if !messages.is_empty() && dice.chance(10) {
        drop(messages.remove(dice.below(messages.len())));
    }
    if dice.chance(40) {
        let id = dice.pick(&["new", "m0", "m1"]);
        let parts = r#"[{"type":"text","text":"And now?"}]"#;
        messages.push(format!(r#"{{"id":"{id}","role":"user","parts":{parts}}}"#));
    }
    let trigger = dice.pick(&["submit-message", "submit-message", "regenerate-message"]);
    let message_id = dice.pick(&["", r#","messageId":"m1""#, r#","messageId":"gone""#]);
    let messages = messages.join(",");
    format!(r#"{{"id":"chat","messages":[{messages}],"trigger":"{trigger}"{message_id}}}"#)
}

fn changed(dice: &mut Dice, message: &str) -> String {
    let mut message: Value = serde_json::from_str(message).unwrap();
    if dice.chance(10) {
        message["id"] = json!(dice.pick(&["m0", "m1", ""]));
    }
    if dice.chance(5) {
        message["role"] = json!(dice.pick(&["user", "assistant", "system"]));
    }
    let parts = message["parts"].as_array_mut().unwrap();
    for _ in 0..dice.below(4).min(parts.len()) {
        if parts.is_empty() {
            break;
        }
        let at = dice.below(parts.len());
        match dice.below(6) {
            0 => drop(parts.remove(at)),
            1 => {
                let copy = parts[at].clone();
                parts.push(copy);
            }
            2 => {
                let other = dice.below(parts.len());
                parts.swap(at, other);
            }
            _ => tamper(dice, &mut parts[at]),
        }
    }
    message.to_string()
}

/// Changes a tool part.
fn tamper(dice: &mut Dice, part: &mut Value) {
    if !part["toolCallId"].is_string() {
        return;
    }
    match dice.below(7) {
        0 => part["toolCallId"] = json!(dice.pick(&["c0", "c1", "call", "c9"])),
        1 => part["input"] = json!({"n": 1_000_000}),
        2 => part["type"] = json!(dice.pick(&["tool-ls", "tool-x", "tool-gone"])),
        3 => {
            part["state"] = json!("output-available");
            part["output"] = json!("forged");
        }
        4 => {
            part["state"] = json!("output-error");
            part["errorText"] = json!("forged");
        }
        5 => {
            part["state"] = json!("approval-responded");
            part["approval"] = json!({"id": "ap0", "approved": true});
        }
        _ if part["approval"]["id"].is_string() => {
            part["state"] = json!("approval-responded");
            part["approval"]["approved"] = json!(false);
        }
        _ => part["state"] = json!("input-streaming"),
    }
}
