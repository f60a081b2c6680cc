//! [`without_repeated_keys`]: a value as a browser reads it. Of several equal keys of an object, only
//! the last one is kept.

use std::borrow::Cow;

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
    struct Container<'a> {
        is_object: bool,
        /// The index of its first field among all collected fields.
        fields_from: usize,
        /// The key of the field that is being read. The field begins at `start`.
        key: Option<Cow<'a, str>>,
        start: usize,
    }
    let bytes = text.as_bytes();
    let mut open: Vec<Container<'_>> = Vec::new();
    let mut fields: Vec<(Cow<'_, str>, usize, usize)> = Vec::new();
    let mut replaced = Vec::new();
    let mut i = 0;
    while let Some(&byte) = bytes.get(i) {
        let mut next = i + 1;
        match byte {
            b'{' | b'[' => open.push(Container {
                is_object: byte == b'{',
                fields_from: fields.len(),
                key: None,
                start: next,
            }),
            b'"' => {
                next = string_end(bytes, i);
                if let Some(object) = open.last_mut().filter(|container| container.is_object) {
                    object.key.get_or_insert_with(|| unescaped(&text[i..next]));
                }
            }
            b',' | b'}' | b']' => {
                if let Some(container) = open.last_mut() {
                    let key = container.key.take();
                    fields.extend(key.map(|key| (key, container.start, next)));
                    container.start = next;
                }
                if byte != b','
                    && let Some(closed) = open.pop()
                {
                    let own = &mut fields[closed.fields_from..];
                    own.sort_unstable();
                    // A replaced field is followed by the field that replaces it, so a comma stands
                    // after it.
                    let pairs = own.windows(2).filter(|pair| pair[0].0 == pair[1].0);
                    replaced.extend(pairs.map(|pair| (pair[0].1, pair[0].2)));
                    fields.truncate(closed.fields_from);
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
