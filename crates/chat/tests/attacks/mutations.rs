//! Random changes of a valid request: of its values, its structure and its bytes.

use serde_json::{Map, Value, json};
use test_support::rng::Dice;

/// The values that a mutation may insert: ids, tokens, parts and messages of other chats and users.
#[derive(Default)]
pub(crate) struct Pool {
    pub(crate) texts: Vec<String>,
    pub(crate) tokens: Vec<String>,
    pub(crate) parts: Vec<Value>,
    pub(crate) messages: Vec<Value>,
}

/// Changes a body in a few ways, and serializes it.
pub(crate) fn mutated(dice: &mut Dice, body: &Value, pool: &Pool) -> Vec<u8> {
    let mut body = body.clone();
    for _ in 0..dice.below(4) {
        change(dice, &mut body, pool);
    }
    let mut text = body.to_string();
    if dice.chance(20) {
        repeat_key(dice, &mut text);
    }
    let mut bytes = text.into_bytes();
    if dice.chance(8) {
        change_bytes(dice, &mut bytes);
    }
    bytes
}

fn change(dice: &mut Dice, body: &mut Value, pool: &Pool) {
    match dice.below(12) {
        0..=2 => change_token(dice, body, pool),
        3 => {
            let text = any_text(dice, pool);
            change_text(dice, body, text);
        }
        4 => swap_two(dice, body),
        5 => copy_item(dice, body),
        6 => remove_item(dice, body),
        7 => set_field(dice, body, pool),
        8 => {
            let value = any_value(dice, pool);
            if let Some(place) = any_place(dice, body) {
                *place = value;
            }
        }
        9 => insert_from_pool(dice, body, pool),
        10 => set_envelope_field(dice, body, pool),
        _ => change_tool_part(dice, body, pool),
    }
}

/// Changes the approval id of a part, partly or completely.
fn change_token(dice: &mut Dice, body: &mut Value, pool: &Pool) {
    let other = pool.tokens[dice.below(pool.tokens.len())].clone();
    let Some(part) = any_call(dice, body) else { return };
    let Some(Value::String(id)) = part["approval"].get_mut("id") else { return };
    *id = match dice.below(7) {
        0 => other,
        1 => changed_text(dice, id),
        2 => random_token(dice, id.len()),
        3 => id.chars().rev().collect(),
        4 if id.len() > 3 => format!("a1.{}", random_token(dice, id.len() - 3)),
        5 if id.is_ascii() && other.is_ascii() => {
            // The beginning of one id, and the end of another.
            let at = dice.below(id.len().min(other.len()) + 1);
            format!("{}{}", &id[..at], &other[at..])
        }
        _ => format!("{id}="),
    };
}

/// Changes the fields of a tool part.
fn change_tool_part(dice: &mut Dice, body: &mut Value, pool: &Pool) {
    let (text, value) = (any_text(dice, pool), any_value(dice, pool));
    let roll = dice.below(9);
    let state = dice.pick(STATES).to_owned();
    let Some(part) = any_call(dice, body) else { return };
    match roll {
        0 => part["state"] = state.into(),
        1 => part["toolCallId"] = text.into(),
        2 => part["type"] = format!("tool-{text}").into(),
        3 => part["input"] = value,
        4 => part["input"] = json!({"path": text}),
        5 => part["input"] = json!({"to": "Harbour Bakery", "amount": value}),
        6 => part["approval"]["approved"] = value,
        7 => {
            part["type"] = "dynamic-tool".into();
            part["toolName"] = text.into();
        }
        _ => part["output"] = value,
    }
}

fn set_envelope_field(dice: &mut Dice, body: &mut Value, pool: &Pool) {
    let field = dice.pick(&["id", "messageId", "trigger", "message", "decisions", "chatId"]);
    let value = match dice.chance(80) {
        true => any_text(dice, pool).into(),
        false => any_value(dice, pool),
    };
    if let Value::Object(body) = body {
        body.insert((*field).to_owned(), value);
    }
}

/// Inserts a part or a message of another chat or user.
fn insert_from_pool(dice: &mut Dice, body: &mut Value, pool: &Pool) {
    let Some(Value::Array(messages)) = body.get_mut("messages") else { return };
    if dice.chance(30) {
        let at = dice.below(messages.len() + 1);
        messages.insert(at, pool.messages[dice.below(pool.messages.len())].clone());
        return;
    }
    if messages.is_empty() {
        return;
    }
    let at = dice.below(messages.len());
    let Some(Value::Array(parts)) = messages[at].get_mut("parts") else { return };
    let at = dice.below(parts.len() + 1);
    parts.insert(at, pool.parts[dice.below(pool.parts.len())].clone());
}

/// Inserts a copy of an item into the same array, at another position.
fn copy_item(dice: &mut Dice, body: &mut Value) {
    let mut arrays = Vec::new();
    for_each_value(body, &mut |value| {
        if matches!(value, Value::Array(items) if !items.is_empty()) {
            arrays.push(());
        }
    });
    if arrays.is_empty() {
        return;
    }
    let mut chosen = dice.below(arrays.len());
    let (from, to) = (dice.below(1000), dice.below(1000));
    for_each_value(body, &mut |value| {
        let Value::Array(items) = value else { return };
        if items.is_empty() {
            return;
        }
        if chosen == 0 {
            let copy = items[from % items.len()].clone();
            items.insert(to % (items.len() + 1), copy);
        }
        chosen = chosen.wrapping_sub(1);
    });
}

fn remove_item(dice: &mut Dice, body: &mut Value) {
    let roll = dice.below(1000);
    match any_place(dice, body) {
        Some(Value::Object(fields)) if !fields.is_empty() => {
            let key = fields.keys().nth(roll % fields.len()).cloned();
            fields.remove(&key.unwrap_or_default());
        }
        Some(Value::Array(items)) if !items.is_empty() => {
            items.remove(roll % items.len());
        }
        _ => {}
    }
}

fn set_field(dice: &mut Dice, body: &mut Value, pool: &Pool) {
    let key = (*dice.pick(KEYS)).to_owned();
    let value = any_value(dice, pool);
    if let Some(Value::Object(fields)) = any_place(dice, body) {
        fields.insert(key, value);
    }
}

fn swap_two(dice: &mut Dice, body: &mut Value) {
    let Some(first) = any_place(dice, body).map(|value| value.clone()) else { return };
    let Some(place) = any_place(dice, body) else { return };
    *place = first;
}

fn change_text(dice: &mut Dice, body: &mut Value, other: String) {
    for _ in 0..8 {
        let changed = match any_place(dice, body) {
            Some(Value::String(text)) => text.clone(),
            _ => continue,
        };
        let changed = if dice.chance(50) { other.clone() } else { changed_text(dice, &changed) };
        if let Some(place @ Value::String(_)) = any_place(dice, body) {
            *place = changed.into();
        }
        return;
    }
}

/// A text with a character changed, cut off, doubled or added.
fn changed_text(dice: &mut Dice, text: &str) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    if chars.is_empty() {
        return "a".to_owned();
    }
    let at = dice.below(chars.len());
    let odd =
        ['A', 'b', '0', '-', '_', '=', '.', ' ', '\n', '\0', '\u{fffd}', '\u{202e}', '"', '😀'];
    match dice.below(5) {
        0 => chars[at] = odd[dice.below(odd.len())],
        1 => chars.truncate(at),
        2 => drop(chars.remove(at)),
        3 => chars.insert(at, odd[dice.below(odd.len())]),
        _ => {
            let other = dice.below(chars.len());
            chars.swap(at, other);
        }
    }
    chars.into_iter().collect()
}

fn random_token(dice: &mut Dice, length: usize) -> String {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    (0..length).map(|_| alphabet[dice.below(alphabet.len())] as char).collect()
}

fn any_text(dice: &mut Dice, pool: &Pool) -> String {
    let lists: [&[&str]; 3] = [STATES, KEYS, WORDS];
    match dice.below(5) {
        0 => {
            let list = lists[dice.below(lists.len())];
            (*dice.pick(list)).to_owned()
        }
        1 => pool.tokens[dice.below(pool.tokens.len())].clone(),
        _ => pool.texts[dice.below(pool.texts.len())].clone(),
    }
}

fn any_value(dice: &mut Dice, pool: &Pool) -> Value {
    match dice.below(13) {
        0 => Value::Null,
        1 => true.into(),
        2 => false.into(),
        3 => any_text(dice, pool).into(),
        4 => json!([]),
        5 => json!({}),
        6 => [json!(0), json!(5000), json!(5000.5), json!(9_007_199_254_740_993_u64), json!(-1)]
            [dice.below(5)]
        .clone(),
        7 => json!({"path": any_text(dice, pool)}),
        8 => json!({"to": "Mallory", "amount": 9000}),
        9 => pool.parts[dice.below(pool.parts.len())].clone(),
        10 => json!({"id": any_text(dice, pool), "approved": true}),
        11 => json!([[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]),
        _ => Map::from_iter([(any_text(dice, pool), any_text(dice, pool).into())]).into(),
    }
}

/// A random tool part with an approval.
fn any_call<'v>(dice: &mut Dice, body: &'v mut Value) -> Option<&'v mut Value> {
    let messages = body.get_mut("messages")?.as_array_mut()?.iter_mut();
    let parts = messages.filter_map(|message| message.get_mut("parts")?.as_array_mut()).flatten();
    let mut calls: Vec<&mut Value> = parts.filter(|part| part["approval"].is_object()).collect();
    (!calls.is_empty()).then(|| calls.swap_remove(dice.below(calls.len())))
}

/// A random value within a body.
fn any_place<'v>(dice: &mut Dice, body: &'v mut Value) -> Option<&'v mut Value> {
    let mut place = body;
    for _ in 0..dice.below(7) {
        let is_leaf = match &*place {
            Value::Object(fields) => fields.is_empty(),
            Value::Array(items) => items.is_empty(),
            _ => true,
        };
        if is_leaf {
            break;
        }
        place = match place {
            Value::Object(fields) => {
                let at = dice.below(fields.len());
                fields.values_mut().nth(at)?
            }
            Value::Array(items) => {
                let at = dice.below(items.len());
                &mut items[at]
            }
            _ => return None,
        };
    }
    Some(place)
}

fn for_each_value(value: &mut Value, see: &mut impl FnMut(&mut Value)) {
    see(value);
    match value {
        Value::Object(fields) => fields.values_mut().for_each(|value| for_each_value(value, see)),
        Value::Array(items) => items.iter_mut().for_each(|value| for_each_value(value, see)),
        _ => {}
    }
}

/// Inserts a second copy of a key, before or after the existing one.
fn repeat_key(dice: &mut Dice, text: &mut String) {
    let doubles = [
        (r#""approved":true"#, r#""approved":false,"approved":true"#),
        (r#""approved":true"#, r#""approved":true,"approved":false"#),
        (r#""path":""#, r#""path":"budget.xlsx","path":""#),
        (r#""path":""#, r#""p\u0061th":"budget.xlsx","path":""#),
        (r#""amount":5000"#, r#""amount":5000,"amount":1"#),
        (r#""amount":5000"#, r#""amount":5e3"#),
        (r#""amount":5000"#, r#""amount":1e400"#),
        (r#""amount":5000"#, r#""amount":5000.0"#),
        (r#""state":"approval-responded""#, r#""state":"x","state":"approval-responded""#),
        (r#""id":""#, r#""id":"x","id":""#),
        (r#""text":""#, r#""text":"\ud800"#),
        (r#""path":""#, r#""path":"\ud800"#),
        (r#"{"approval""#, r#"{"__proto__":{"approved":true},"approval""#),
        (r#""role":"assistant""#, r#""role":"user","role":"assistant""#),
    ];
    let (from, to) = doubles[dice.below(doubles.len())];
    *text = text.replacen(from, to, 1);
}

fn change_bytes(dice: &mut Dice, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = dice.below(bytes.len());
    match dice.below(5) {
        0 => bytes[at] ^= 1 << dice.below(8),
        1 => bytes.truncate(at),
        2 => bytes.insert(at, [0, b'"', b'{', b'}', b'[', b',', 0xff, b'\\'][dice.below(8)]),
        3 => drop(bytes.drain(at..bytes.len().min(at + 1 + dice.below(20)))),
        _ => {
            let piece: Vec<u8> = bytes[at..bytes.len().min(at + 40)].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}

const STATES: &[&str] = &[
    "approval-responded",
    "approval-requested",
    "input-available",
    "input-streaming",
    "output-available",
    "output-error",
    "output-denied",
    "approval-automatic",
];

const KEYS: &[&str] = &[
    "state",
    "approval",
    "approved",
    "input",
    "output",
    "errorText",
    "toolCallId",
    "toolName",
    "type",
    "role",
    "id",
    "parts",
    "providerExecuted",
    "preliminary",
    "rawInput",
    "trigger",
    "messageId",
    "reason",
    "signature",
    "metadata",
    "callProviderMetadata",
    "__proto__",
    "constructor",
];

const WORDS: &[&str] = &[
    "user",
    "assistant",
    "system",
    "submit-message",
    "regenerate-message",
    "tool-delete_file",
    "tool-transfer",
    "dynamic-tool",
    "delete_file",
    "transfer",
    "delete budget.xlsx",
    "budget.xlsx",
    "text",
    "step-start",
    "data-approval",
    "",
];
