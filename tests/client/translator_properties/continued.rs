//! Assistant messages to be continued, as clients hold them: with tool parts in every state.

use serde_json::{Map, Value, json};
use test_support::rng::Dice;

use super::pools::{APPROVAL_IDS, DATA_IDS, DATA_NAMES, HELD_CALL_IDS, TOOL_NAMES};
use super::values::RandomValues;

/// A message that a client might send for continuation.
///
/// An `orderly` message repeats no id and holds no unknown content. `approvals` says whether its
/// client supports approvals.
pub(crate) fn message(dice: &mut Dice, orderly: bool, approvals: bool) -> Value {
    let mut parts = Parts { orderly, approvals, made: Vec::new() };
    for _ in 0..dice.weighted(&[(5, 1), (4, 2), (1, 3)]) {
        if dice.chance(90) {
            parts.made.push(json!({"type": "step-start"}));
        }
        for _ in 0..dice.below(5) {
            let part = parts.any(dice);
            parts.made.push(part);
        }
    }
    let mut message = json!({
        "id": dice.pick(&["msg_1", "", "m-ключ", "__proto__", "5vXQyTqBvxAQ3xJi"]),
        "role": "assistant",
        "parts": parts.made,
    });
    if dice.chance(40) {
        // The SDK accepts any metadata, although only objects can be merged.
        let any = !orderly && dice.chance(25);
        message["metadata"] = value(&if any { dice.json() } else { dice.json_object() });
    }
    message
}

struct Parts {
    orderly: bool,
    approvals: bool,
    made: Vec<Value>,
}

impl Parts {
    fn any(&self, dice: &mut Dice) -> Value {
        match dice.below(20) {
            0..=2 => json!({"type": "text", "text": dice.text(), "state": "done"}),
            3 if !self.orderly => json!({"type": "text", "text": "cut sh", "state": "streaming"}),
            4 => json!({"type": "reasoning", "text": dice.text(), "id": "r1", "state": "done"}),
            5 => json!({"type": "source-url", "sourceId": "s", "url": "https://example.org/"}),
            6 => json!({"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,"}),
            7 | 8 => json!({
                "type": format!("data-{}", dice.pick(DATA_NAMES)),
                "id": dice.pick(DATA_IDS),
                "data": value(&dice.json()),
            }),
            9 if !self.orderly => json!({"type": "of-a-later-version", "content": [1]}),
            _ => self.tool(dice),
        }
    }

    fn tool(&self, dice: &mut Dice) -> Value {
        let mut part = Map::new();
        let name = dice.pick(TOOL_NAMES);
        if dice.chance(30) {
            part.insert("type".into(), "dynamic-tool".into());
            part.insert("toolName".into(), name.into());
        } else {
            part.insert("type".into(), format!("tool-{name}").into());
        }
        part.insert("toolCallId".into(), self.id(dice).into());
        if dice.chance(20) {
            part.insert("providerExecuted".into(), dice.chance(80).into());
        }
        if dice.chance(20) {
            part.insert("title".into(), dice.text().into());
        }
        if dice.chance(15) {
            part.insert("callProviderMetadata".into(), json!({"openai": {"itemId": "fc_1"}}));
        }
        self.state(dice, &mut part);
        Value::Object(part)
    }

    fn id(&self, dice: &mut Dice) -> String {
        if self.orderly || dice.chance(70) {
            let n = self.made.len();
            return format!("held_{n}");
        }
        dice.pick(HELD_CALL_IDS).to_owned()
    }

    fn approval_id(&self, dice: &mut Dice) -> String {
        if self.orderly || dice.chance(80) {
            let n = self.made.len();
            return format!("held_ap_{n}");
        }
        dice.pick(APPROVAL_IDS).to_owned()
    }

    fn state(&self, dice: &mut Dice, part: &mut Map<String, Value>) {
        let approval = |dice: &mut Dice| json!({"id": self.approval_id(dice)});
        let mut set = |key: &str, value: Value| part.insert(key.to_owned(), value);
        let kinds: &[(usize, &str)] = match (self.orderly, self.approvals) {
            (true, true) => &ORDERLY_STATES,
            (false, true) => &STATES,
            (_, false) => &STATES_OF_5,
        };
        let state = dice.weighted(kinds);
        set("state", state.into());
        if !matches!(state, "input-streaming" | "output-error") {
            set("input", value(&dice.json()));
        }
        match state {
            "input-streaming" if dice.chance(50) => {
                set("input", json!({"path": "no"}));
                set("rawInput", r#"{"path":"no"#.into());
            }
            "approval-requested" => {
                set("approval", approval(dice));
            }
            "approval-responded" => {
                let mut answered = approval(dice);
                answered["approved"] = dice.chance(55).into();
                if dice.chance(40) {
                    answered["reason"] = dice.text().into();
                }
                set("approval", answered);
            }
            "output-available" => {
                set("output", value(&dice.json()));
                match dice.below(10) {
                    0 | 1 => _ = set("preliminary", true.into()),
                    2 if self.approvals => {
                        let mut answered = approval(dice);
                        answered["approved"] = true.into();
                        set("approval", answered);
                    }
                    // A client that sends an output for a call awaiting approval leaves the request
                    // unanswered.
                    3 if self.approvals => _ = set("approval", approval(dice)),
                    _ => {}
                }
            }
            "output-error" => {
                let key = if dice.chance(50) { "input" } else { "rawInput" };
                set(key, value(&dice.json()));
                set("errorText", dice.error_text().into());
            }
            "output-denied" => {
                let mut answered = approval(dice);
                answered["approved"] = false.into();
                set("approval", answered);
            }
            _ => {}
        }
    }
}

const STATES: [(usize, &str); 8] = [
    (1, "input-streaming"),
    (3, "input-available"),
    (3, "approval-requested"),
    (6, "approval-responded"),
    (4, "output-available"),
    (1, "output-error"),
    (1, "output-denied"),
    (1, "output-archived"),
];

const ORDERLY_STATES: [(usize, &str); 6] = [
    (2, "input-available"),
    (2, "approval-requested"),
    (6, "approval-responded"),
    (4, "output-available"),
    (1, "output-error"),
    (1, "output-denied"),
];

const STATES_OF_5: [(usize, &str); 4] =
    [(1, "input-streaming"), (3, "input-available"), (4, "output-available"), (1, "output-error")];

pub(crate) fn value(json: &ui_message_stream::Json) -> Value {
    json.decode().unwrap_or_default()
}
