//! [`without_repeated_keys`]: a value as a browser reads it. Of several equal keys of an object, only
//! the last one is kept.

use std::borrow::Cow;
use std::collections::HashMap;

use super::string_token::{string_end, unescaped};

/// Removes from valid JSON every field that a later equal key of the same object replaces.
pub(super) fn without_repeated_keys(text: &str) -> String {
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
    kept
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
            assert_eq!(without_repeated_keys(text).replace(' ', ""), held.replace(' ', ""));
        }
    }

    #[test]
    fn deep_json_needs_no_recursion() {
        let deep = format!("{}1{}", r#"{"a":1,"a":"#.repeat(10_000), "}".repeat(10_000));
        assert_eq!(without_repeated_keys(&deep).len(), 6 * 10_000 + 1);
    }
}
