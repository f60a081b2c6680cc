//! [`Verdict`]: the result of a case, for comparison.

use serde_json::Value;

/// The result of a case, from the reducer or from the client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Verdict {
    /// The chunk that was rejected, and what rejected it.
    pub(crate) refused: Option<(usize, &'static str)>,
    pub(crate) error_text: Option<String>,
    pub(crate) message: Value,
    pub(crate) shown: Value,
}

impl Verdict {
    /// The judge's answer for one version.
    pub(crate) fn of(result: &Value) -> Self {
        let message = numbers_as_doubles(result["message"].clone());
        let shown = result.get("shown").cloned().map_or(message.clone(), numbers_as_doubles);
        Verdict {
            refused: refused(result),
            error_text: result["errorText"].as_str().map(str::to_owned),
            message,
            shown,
        }
    }

    /// The differences.
    pub(crate) fn differences(&self, client: &Verdict) -> Vec<String> {
        let mut found = Vec::new();
        if self.refused != client.refused {
            found.push(format!("refused: here {:?}, client {:?}", self.refused, client.refused));
        }
        if self.error_text != client.error_text {
            found
                .push(format!("error: here {:?}, client {:?}", self.error_text, client.error_text));
        }
        if self.message != client.message {
            found.push(format!("message:\n  here   {}\n  client {}", self.message, client.message));
        }
        if self.shown != client.shown {
            found.push(format!("shown:\n  here   {}\n  client {}", self.shown, client.shown));
        }
        found
    }
}

/// The chunk that the client rejected, and whether its schema or its reducer did.
pub(crate) fn refused(result: &Value) -> Option<(usize, &'static str)> {
    let rejected = &result["rejected"];
    let at = rejected["index"].as_u64()? as usize;
    let by_schema =
        ["AI_TypeValidationError", "AI_JSONParseError"].contains(&rejected["name"].as_str()?);
    Some((at, if by_schema { "schema" } else { "reducer" }))
}

/// Parses JSON so that two notations of one value are equal.
pub(crate) fn canonical(text: &str) -> Value {
    let value = serde_json::from_str(&with_halves_spelt_out(text));
    numbers_as_doubles(value.unwrap_or_else(|error| panic!("{error}: {text}")))
}

/// Replaces an unpaired surrogate by the letters of its escape, because no Rust string can hold it.
pub(crate) fn with_halves_spelt_out(text: &str) -> String {
    let unit = |at: usize| {
        let hex = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(hex, 16).ok().filter(|unit| (0xD800..0xE000).contains(unit))
    };
    let mut spelt = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(found) = text[at..].find('\\') {
        spelt.push_str(&text[at..at + found]);
        at += found;
        let length = match (unit(at), unit(at + 6)) {
            (Some(0xD800..0xDC00), Some(0xDC00..0xE000)) => 12,
            (Some(_), _) => {
                spelt.push('\\');
                6
            }
            (None, _) => 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
        };
        spelt.push_str(&text[at..at + length]);
        at += length;
    }
    spelt + &text[at..]
}

fn numbers_as_doubles(value: Value) -> Value {
    match value {
        // The client's answers never hold a negative zero.
        Value::Number(number) => number.as_f64().map(|number| number + 0.0).into(),
        Value::Array(items) => items.into_iter().map(numbers_as_doubles).collect(),
        Value::Object(fields) => {
            fields.into_iter().map(|(key, value)| (key, numbers_as_doubles(value))).collect()
        }
        other => other,
    }
}
