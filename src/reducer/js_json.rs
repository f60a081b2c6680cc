//! JSON as a browser holds it. It can differ from the JSON that was sent: of two equal keys in an
//! object, only the last is kept.
//!
//! Every value of a chunk passes through this module on its way into the message. A reduced message
//! can therefore be stored, sent, and read back as a request, where a duplicate key is an error.

use std::borrow::Cow;
use std::collections::HashMap;

use serde_json::value::RawValue;

use crate::json::{ExtraFields, Object, each_field};
use crate::json::{Json, string_end, unescaped};
use crate::metadata::{ProviderMetadata, ToolMetadata};

/// Parses a text. Returns `None` if it is not JSON or if the client's reader refuses it.
pub(super) fn parse(text: &str) -> Option<Json> {
    let raw: &RawValue = serde_json::from_str(text).ok()?;
    // A key that the client refuses is allowed inside a field that a later key replaces.
    Json::received_unambiguous(raw).ok().or_else(|| without_duplicate_keys(raw.get()))
}

/// Returns the value without the fields that a later equal key replaces.
pub(super) fn json(json: &Json) -> Json {
    if !json.repeats_a_key() {
        return json.clone();
    }
    without_duplicate_keys(json.as_str()).unwrap_or_else(|| json.clone())
}

/// Applies [`json`] to an optional field.
pub(super) fn json_if_any(field: &Option<Cow<'_, Json>>) -> Option<Json> {
    field.as_deref().map(json)
}

/// Applies [`json`] to an optional field of provider metadata.
pub(super) fn provider_metadata(
    field: &Option<Cow<'_, ProviderMetadata>>,
) -> Option<ProviderMetadata> {
    let given = field.as_deref()?;
    let held = json(given.as_json());
    if held == *given.as_json() {
        return Some(given.clone());
    }
    Some(ProviderMetadata::new(held).unwrap_or_else(|_| given.clone()))
}

/// Applies [`json`] to an optional field of tool metadata.
pub(super) fn tool_metadata(field: &Option<Cow<'_, ToolMetadata>>) -> Option<ToolMetadata> {
    let given = field.as_deref()?;
    let held = json(given.as_json());
    if held == *given.as_json() {
        return Some(given.clone());
    }
    Some(ToolMetadata::new(held).unwrap_or_else(|_| given.clone()))
}

/// Returns the extra fields, followed by `more`.
pub(super) fn extra_with<'a>(
    extra: ExtraFields,
    more: impl ExactSizeIterator<Item = (&'a str, &'a Json)>,
) -> ExtraFields {
    if more.len() == 0 {
        return extra;
    }
    let mut object = Object::default();
    let held = extra.as_json().map(Json::as_str).unwrap_or("{}");
    // No field names are declared as known, so no duplicate is an error.
    let mut add = |name: &str, value| object.add(name, value, &[]).is_ok();
    let all_added = each_field(held, |name, value| {
        add(name, value);
    });
    for (name, value) in more {
        if let Ok(raw) = serde_json::from_str(value.as_str()) {
            add(name, raw);
        }
    }
    match all_added {
        Ok(()) => object.into_extra().unwrap_or(extra),
        Err(_) => extra,
    }
}

/// Removes from valid JSON every field that a later equal key of the same object replaces.
fn without_duplicate_keys(text: &str) -> Option<Json> {
    let mut kept = String::with_capacity(text.len());
    let mut from = 0;
    for (start, end) in replaced_fields(text) {
        // This field is inside a field that was already removed.
        if start < from {
            continue;
        }
        kept.push_str(&text[from..start]);
        from = end;
    }
    kept.push_str(&text[from..]);
    Json::received_unambiguous(serde_json::from_str(&kept).ok()?).ok()
}

/// Returns the byte ranges of the fields that a later equal key replaces, in order. Each range
/// includes the comma after the field.
fn replaced_fields(text: &str) -> Vec<(usize, usize)> {
    struct OpenObject<'a> {
        fields: HashMap<Cow<'a, str>, (usize, usize)>,
        /// The key of the field that is being read. The field begins at `start`.
        key: Option<Cow<'a, str>>,
        start: usize,
    }
    let bytes = text.as_bytes();
    // `None` is an array, which has no fields.
    let mut open: Vec<Option<OpenObject<'_>>> = Vec::new();
    let mut replaced = Vec::new();
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        let mut next = i + 1;
        match byte {
            b'{' => {
                let fields = HashMap::new();
                open.push(Some(OpenObject { fields, key: None, start: next }));
            }
            b'[' => open.push(None),
            b'"' => {
                next = string_end(bytes, i);
                if let Some(Some(object)) = open.last_mut() {
                    object.key.get_or_insert_with(|| unescaped(&text[i..next]));
                }
            }
            b',' | b'}' | b']' => {
                if let Some(Some(object)) = open.last_mut() {
                    // A replaced field is followed by the field that replaces it, so a comma stands
                    // after it.
                    let field = object.key.take().map(|key| (key, (object.start, next)));
                    replaced.extend(field.and_then(|(key, at)| object.fields.insert(key, at)));
                    object.start = next;
                }
                if byte != b',' {
                    open.pop();
                }
            }
            _ => {}
        }
        i = next;
    }
    replaced.sort_unstable();
    replaced
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_equal_keys_the_last_one_counts() {
        for (text, held) in [
            (r#"{"a":1,"b":2}"#, r#"{"a":1,"b":2}"#),
            (r#"{"a":1,"a":2}"#, r#"{"a":2}"#),
            (r#"{"a":1,"b":[{}],"\u0061":2,"a":"a"}"#, r#"{"b":[{}],"a":"a"}"#),
            (
                r#"[{"a":{"x":1,"x":2},"a":{"y":1,"y":[2,{"z":1,"z":","}]}}]"#,
                r#"[{"a":{"y":[2,{"z":","}]}}]"#,
            ),
            (r#"{ "a" : "}" , "a" : [ "{" , "a" ] }"#, r#"{ "a" : [ "{" , "a" ] }"#),
        ] {
            assert_eq!(parse(text).unwrap().as_str().replace(' ', ""), held.replace(' ', ""));
        }
    }

    #[test]
    fn deep_json_needs_no_recursion() {
        let deep = format!("{}1{}", r#"{"a":1,"a":"#.repeat(10_000), "}".repeat(10_000));
        assert_eq!(parse(&deep).unwrap().as_str().len(), 6 * 10_000 + 1);
    }
}
