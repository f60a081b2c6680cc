//! Random JSON values.

use ui_message_stream::Json;

use crate::rng::Dice;

/// Generates random values.
pub trait RandomValues {
    /// Returns a piece of text as a model streams it, or text that needs escaping or looks like
    /// framing.
    fn text(&mut self) -> String;

    /// Returns a JSON string.
    fn string(&mut self) -> String;

    /// Returns a JSON string with all kinds of escapes.
    fn escaped(&mut self, count: usize) -> String;

    /// Returns a JSON value.
    fn json(&mut self) -> String;

    /// Returns a JSON object.
    fn object(&mut self) -> String;

    /// Returns an object that holds an object for each provider.
    fn provider_metadata(&mut self) -> String;

    /// Returns an object without the keys that the client rejects in tool metadata.
    fn plain_object(&mut self) -> String;
}

impl RandomValues for Dice {
    fn text(&mut self) -> String {
        (0..self.below(4)).map(|_| self.pick(PIECES)).collect()
    }

    fn string(&mut self) -> String {
        let text = self.text();
        Json::string(&text).as_str().to_owned()
    }

    fn escaped(&mut self, count: usize) -> String {
        let escapes = [
            "\\n",
            "\\\"",
            "\\\\",
            "\\/",
            "\\u00e9",
            "\\ud83d\\ude00",
            "\\ud83d",
            "\\u005F",
            "x",
            "é",
            "😀",
            ":",
            "}",
        ];
        let text: String = (0..count).map(|_| self.pick(&escapes)).collect();
        format!("\"{text}\"")
    }

    fn json(&mut self) -> String {
        let depth = self.below(4);
        value(self, depth, KEYS)
    }

    fn object(&mut self) -> String {
        fields(self, 2, KEYS)
    }

    fn provider_metadata(&mut self) -> String {
        let provider = self.pick(&["openai", "p"]);
        let metadata = fields(self, 1, PLAIN_KEYS);
        format!(r#"{{"{provider}":{metadata}}}"#)
    }

    fn plain_object(&mut self) -> String {
        fields(self, 2, PLAIN_KEYS)
    }
}

fn value(dice: &mut Dice, depth: usize, keys: &[&str]) -> String {
    match dice.below(if depth == 0 { 6 } else { 10 }) {
        0 => "null".into(),
        1 => dice.pick(&["true", "false"]).into(),
        2 | 3 => dice.pick(NUMBERS).into(),
        4 | 5 => dice.string(),
        6 | 7 => {
            let count = dice.below(4);
            let items: Vec<_> = (0..count).map(|_| value(dice, depth - 1, keys)).collect();
            format!("[{}]", items.join(dice.pick(&[",", " , "])))
        }
        _ => fields(dice, depth - 1, keys),
    }
}

fn fields(dice: &mut Dice, depth: usize, keys: &[&str]) -> String {
    let mut fields: Vec<String> = Vec::new();
    for _ in 0..dice.below(4) {
        let key = dice.pick(keys);
        let mut value = value(dice, depth, keys);
        // The oldest client fails on a `constructor` that is null.
        if key == "constructor" {
            value = value.replace("null", "0");
        }
        let name = Json::string(key);
        fields.push(format!("{name}:{value}"));
    }
    format!("{{{}}}", fields.join(dice.pick(&[",", ", "])))
}

/// Pieces of text.
pub const PIECES: &[&str] = &[
    "Hello",
    " ",
    ", world",
    "I will look.",
    "\n",
    "\r\n",
    "\t",
    "\r\n\ndata: x\n\n",
    "\n\ndata: [DONE]\n\n",
    "[DONE]",
    "\"quoted\"",
    "back\\slash",
    "</script>",
    "{\"a\":",
    "{\"a\":1}",
    "0",
    "привет",
    "e\u{301}",
    "🙂",
    "👩‍👩‍👧",
    "\u{0}",
    "\u{1f}",
    "\u{2028}",
    "\u{feff}",
    "\u{10ffff}",
];

/// Numbers as JSON text.
pub const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "42",
    "1.0",
    "0.1",
    "-0",
    "1e21",
    "1E-7",
    "1E+5",
    "1e308",
    "5e-324",
    "9007199254740993",
    "12345678901234567890",
];

/// Few keys, so that metadata objects share keys and keys repeat.
const KEYS: &[&str] = &[
    "a",
    "b",
    "usage",
    "",
    "ключ",
    "constructor",
    "prototype",
    "toString",
    "\"",
    "0",
    "1",
    "length",
];

const PLAIN_KEYS: &[&str] = &["a", "b", "usage", "", "ключ", "toString", "\"", "0"];

/// Returns the metadata of a message: an object in nine of ten cases.
pub fn metadata(dice: &mut Dice) -> String {
    if dice.chance(90) { dice.object() } else { dice.json() }
}

/// The ids of the calls.
pub const CALL_IDS: &[&str] =
    &["c1", "c2", "c3", "", "c1", "c2", "c3", "", "c1", "c2", "c3", "", "c1", "c2", "constructor"];

/// Pieces of the inputs of calls. Together they may or may not be valid JSON.
pub const INPUT_PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\"a\":",
    "\"b\" : ",
    "\"x\"",
    "{\"path\":\"no",
    "tes.txt\"",
    "1",
    "-",
    ".5",
    "e",
    "E+",
    "tr",
    "ue",
    "false",
    "nul",
    "l",
    " ",
    "\\",
    "\\\"",
    "\\u",
    "00e9",
    "\\ud83d",
    "\\ude00",
    "é",
    "😀",
    "{\"a\":{\"b\":[1,2",
    "]}",
    "\"__proto__\":",
    "\n",
    "x",
];
