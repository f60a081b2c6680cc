//! The values that everything else is made of.

use ui_message_stream::Json;

use crate::dice::Dice;

impl Dice {
    /// A piece of text, of the kind that a model streams, and what breaks framing and escaping.
    pub(crate) fn text(&mut self) -> String {
        (0..self.below(4)).map(|_| self.pick(PIECES)).collect()
    }

    /// A JSON string.
    pub(crate) fn string(&mut self) -> String {
        let text = self.text();
        Json::string(&text).as_str().to_owned()
    }

    /// A JSON string with all kinds of escapes in it.
    pub(crate) fn escaped(&mut self, count: usize) -> String {
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

    /// Any JSON.
    pub(crate) fn json(&mut self) -> String {
        let depth = self.below(4);
        self.value(depth, KEYS)
    }

    /// A JSON object.
    pub(crate) fn object(&mut self) -> String {
        self.fields(2, KEYS)
    }

    /// An object of objects, one for each provider.
    pub(crate) fn provider_metadata(&mut self) -> String {
        let provider = self.pick(&["openai", "p"]);
        let metadata = self.fields(1, PLAIN_KEYS);
        format!(r#"{{"{provider}":{metadata}}}"#)
    }

    /// An object without the keys that the client refuses in metadata of a tool.
    pub(crate) fn plain_object(&mut self) -> String {
        self.fields(2, PLAIN_KEYS)
    }

    fn value(&mut self, depth: usize, keys: &[&str]) -> String {
        match self.below(if depth == 0 { 6 } else { 10 }) {
            0 => "null".into(),
            1 => self.pick(&["true", "false"]).into(),
            2 | 3 => self.pick(NUMBERS).into(),
            4 | 5 => self.string(),
            6 | 7 => {
                let count = self.below(4);
                let items: Vec<_> = (0..count).map(|_| self.value(depth - 1, keys)).collect();
                format!("[{}]", items.join(self.pick(&[",", " , "])))
            }
            _ => self.fields(depth - 1, keys),
        }
    }

    fn fields(&mut self, depth: usize, keys: &[&str]) -> String {
        let mut fields: Vec<String> = Vec::new();
        for _ in 0..self.below(4) {
            let key = self.pick(keys);
            let mut value = self.value(depth, keys);
            // Here this crate is stricter than the newest client: the oldest dies of a `constructor`
            // that is null, and what a later key replaces is looked at like anything else.
            if key == "constructor" {
                value = value.replace("null", "0");
            }
            let name = Json::string(key);
            fields.retain(|field| {
                !field.starts_with(name.as_str()) || !field.contains(r#""constructor""#)
            });
            fields.push(format!("{name}:{value}"));
        }
        format!("{{{}}}", fields.join(self.pick(&[",", ", "])))
    }
}

const PIECES: &[&str] = &[
    "Hello",
    " ",
    "I will look.",
    "\n",
    "\"quoted\"",
    "back\\slash",
    "привет",
    "🙂",
    "\u{2028}",
    "\u{1f}",
    "e\u{301}",
    "[DONE]",
    "{\"a\":",
    "\u{10ffff}",
    "0",
    "\r\n\ndata: x\n\n",
];

const NUMBERS: &[&str] = &[
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
    "12345678901234567890",
    "5e-324",
];

/// Few, so that metadata has something to merge and a key comes twice.
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

/// Metadata of a message, nearly always an object.
pub(crate) fn metadata(dice: &mut Dice) -> String {
    if dice.chance(90) { dice.object() } else { dice.json() }
}

pub(crate) const CALL_IDS: &[&str] =
    &["c1", "c2", "c3", "", "c1", "c2", "c3", "", "c1", "c2", "c3", "", "c1", "c2", "constructor"];

pub(crate) const INPUT_PIECES: &[&str] = &[
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
