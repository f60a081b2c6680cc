//! [`Fields`]: builds an object, and can make it invalid.

use ui_message_stream::Json;

use super::values::RandomValues;
use crate::rng::Dice;

/// The fields of an object, each a name and its JSON.
#[derive(Debug, Clone, Default)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    /// Creates an object with this `type`.
    pub fn of(kind: &str) -> Self {
        Fields::default().with_text("type", kind)
    }

    /// Adds a field.
    pub fn with(mut self, name: &str, json: impl Into<String>) -> Self {
        self.0.push((name.to_owned(), json.into()));
        self
    }

    /// Adds a field that holds a string.
    pub fn with_text(self, name: &str, text: &str) -> Self {
        self.with(name, Json::string(text).as_str())
    }

    /// Adds a field with a probability of `percent`.
    pub fn may(
        self,
        dice: &mut Dice,
        percent: usize,
        name: &str,
        json: impl FnOnce(&mut Dice) -> String,
    ) -> Self {
        if !dice.chance(percent) {
            return self;
        }
        let json = json(dice);
        self.with(name, json)
    }

    /// Returns the object as JSON.
    pub fn to_text(&self) -> String {
        // Text that replaced the whole object is stored under an empty name.
        if let [(name, text)] = &self.0[..]
            && name.is_empty()
        {
            return text.clone();
        }
        let field = |(name, json): &(String, String)| format!("{}:{json}", Json::string(name));
        format!("{{{}}}", self.0.iter().map(field).collect::<Vec<_>>().join(","))
    }
}

/// Removes a field or a chunk, gives a field a wrong type, or moves or repeats a chunk.
pub fn break_something(dice: &mut Dice, chunks: &mut Vec<Fields>) {
    let at = dice.below(chunks.len());
    let count = chunks[at].0.len();
    let field = dice.below(count.max(1));
    match dice.below(10) {
        0 if count > 0 => drop(chunks[at].0.remove(field)),
        1 | 2 if count > 0 => {
            let wrong = ["null", "1", r#""x""#, "[]", "{}", "true", r#"{"a":1}"#];
            chunks[at].0[field].1 = dice.pick(&wrong).to_owned();
        }
        3 => {
            let kind = ["tool-call", "reset-step", "custom", "", "text", "tool-approval-response"];
            chunks[at] = Fields::of(dice.pick(&kind));
        }
        4 => {
            let texts =
                ["", "null", "5", "[]", "[DONE]", "[DONE] ", "{", "{\"type\":}", "\"text\""];
            let text = dice.pick(&texts).to_owned();
            // The client ignores this text, so it tests nothing.
            let text = if text == "[DONE]" { "{}".to_owned() } else { text };
            chunks[at] = Fields(vec![(String::new(), text)]);
        }
        5 if count > 0 => {
            let again = (chunks[at].0[field].0.clone(), dice.json());
            let place = dice.below(count + 1);
            chunks[at].0.insert(place, again);
        }
        6 => {
            let chunk = chunks[at].clone();
            chunks.insert(at, chunk);
        }
        7 | 8 => {
            let other = dice.below(chunks.len());
            chunks.swap(at, other);
        }
        _ => drop(chunks.remove(at)),
    }
    if chunks.is_empty() {
        chunks.push(Fields::of("start-step"));
    }
}
