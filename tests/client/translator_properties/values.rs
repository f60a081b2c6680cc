//! The basic random values.

use test_support::random_messages::values::{NUMBERS, PIECES};
use test_support::rng::Dice;
use ui_message_stream::Json;
use ui_message_stream::metadata::{ProviderMetadata, ToolMetadata};

/// Random values.
pub(crate) trait RandomValues {
    /// A number from `from` to `to`, inclusive.
    fn between(&mut self, from: usize, to: usize) -> usize;

    /// One of these, by weight.
    fn weighted<T: Copy>(&mut self, from: &[(usize, T)]) -> T;

    /// A piece of text as a model streams it, or text that could break framing and escaping.
    fn text(&mut self) -> String;

    /// An error text that differs from all generated ones.
    fn error_text(&mut self) -> String;

    /// Any JSON, at most three levels deep.
    fn json(&mut self) -> Json;

    /// A JSON object, as nearly all tool inputs and metadata are.
    fn json_object(&mut self) -> Json;

    fn provider_metadata(&mut self) -> Option<ProviderMetadata>;

    fn tool_metadata(&mut self) -> Option<ToolMetadata>;
}

impl RandomValues for Dice {
    fn between(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }

    fn weighted<T: Copy>(&mut self, from: &[(usize, T)]) -> T {
        let mut throw = self.below(from.iter().map(|(weight, _)| weight).sum());
        for (weight, value) in from {
            match throw.checked_sub(*weight) {
                Some(rest) => throw = rest,
                None => return *value,
            }
        }
        from[0].1
    }

    fn text(&mut self) -> String {
        let mut text = String::new();
        for _ in 0..self.weighted(&[(6, 1), (3, 2), (1, 5)]) {
            text.push_str(self.pick(PIECES));
        }
        text
    }

    fn error_text(&mut self) -> String {
        format!("the agent says: {}", self.text())
    }

    fn json(&mut self) -> Json {
        let text = json_text(self, 3);
        Json::parse(&text).unwrap_or_else(|_| Json::null())
    }

    fn json_object(&mut self) -> Json {
        let text = object_text(self, 3);
        Json::parse(&text).unwrap_or_else(|_| Json::null())
    }

    fn provider_metadata(&mut self) -> Option<ProviderMetadata> {
        let text = format!(
            r#"{{"{}":{}}}"#,
            self.pick(&["openai", "anthropic", "google"]),
            self.json_object()
        );
        ProviderMetadata::parse(&text).ok()
    }

    fn tool_metadata(&mut self) -> Option<ToolMetadata> {
        ToolMetadata::new(self.json_object()).ok()
    }
}

fn json_text(dice: &mut Dice, depth: usize) -> String {
    match dice.below(if depth == 0 { 6 } else { 10 }) {
        0 => "null".into(),
        1 => dice.pick(&["true", "false"]).into(),
        2 | 3 => dice.pick(NUMBERS).into(),
        4 | 5 => Json::string(&dice.text()).as_str().into(),
        6 => {
            let items: Vec<_> = (0..dice.below(4)).map(|_| json_text(dice, depth - 1)).collect();
            format!("[{}]", items.join(","))
        }
        _ => object_text(dice, depth),
    }
}

fn object_text(dice: &mut Dice, depth: usize) -> String {
    let mut keys: Vec<&str> = (0..dice.below(4)).map(|_| dice.pick(KEYS)).collect();
    keys.sort_unstable();
    keys.dedup();
    let entries: Vec<_> = keys
        .into_iter()
        .map(|key| format!("{}:{}", Json::string(key), json_text(dice, depth.saturating_sub(1))))
        .collect();
    format!("{{{}}}", entries.join(", "))
}

/// Few keys, so that metadata objects share keys. The client's merging skips `constructor`.
const KEYS: &[&str] =
    &["a", "b", "usage", "", "ключ", "constructor", "toString", "\"", "0", "length"];
