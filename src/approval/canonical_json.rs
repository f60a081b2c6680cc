//! [`CanonicalJson`]: the canonical form of a tool input that browsers read without loss.
//!
//! A user approves the input that the browser shows, and the tool runs with the text that the
//! server stores. Both are the same only for an input that JavaScript reads without loss. One pass
//! over the text therefore does two things. It rejects every other input ([`InexactInputError`]),
//! and it writes the remaining inputs in the canonical form of RFC 8785: keys sorted by UTF-16 code
//! units, and numbers as JavaScript prints them.
//!
//! # Rejected inputs
//!
//! | input | result in a browser |
//! |---|---|
//! | an input that [`Json::parse`] rejects | another value, or none |
//! | an integer beyond ±(2^53−1) | the nearest double: `9007199254740993` becomes `…992` |
//! | a number that is printed with another value | `0.1000000000000000055` is shown as `0.1`, `1e-400` as `0` |
//! | `-0` | `0` |
//! | a key `$serde_json::private::…` | shown unchanged, but the tool may read another value |
//!
//! Only the value of a number counts, not its notation: `1.0`, `1e2`, `0.10` and `1E+2` are
//! accepted, because a browser shows `1`, `100`, `0.1` and `100`, which are exactly the same
//! decimals.
//!
//! An *integer* here is a number that JavaScript prints with digits alone. A browser would show
//! some integers beyond ±(2^53−1) correctly; just beyond that limit, every second one. A tool that
//! takes large ids as numbers should fail in its first test, and not with every second id. From
//! 10^21 on, a browser prints an exponent, and there only the value decides: `1e21` is accepted.
//!
//! `-0` is equal to `0`, but a tool that computes with doubles can distinguish them. A user who
//! approved `0` did not see the sign.
//!
//! `serde_json::Value` reads `{"$serde_json::private::RawValue":"1"}` as `1`, because this crate
//! enables its feature `raw_value`. `$serde_json::private::Number` has the same effect with the
//! feature `arbitrary_precision`, which any dependency may enable. A tool that takes a `Value`
//! would then run with an input that the user did not see.
//!
//! For the same reason, this module reads the text and not a tree of values: no feature changes the
//! text.

use serde_json::value::RawValue;

use crate::json::Object;
use crate::json::{Json, JsonError, unescaped};

/// The canonical form of a JSON value that a browser shows without loss.
///
/// Two inputs have equal canonical forms if and only if they are the same value. The server
/// compares an input that a client sent back with the stored input in this form.
///
/// ```
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::{CanonicalJson, InexactInputError};
///
/// let kept = Json::parse(r#"{ "path": "caf\u00e9", "copies": 1.0 }"#)?;
/// let form = CanonicalJson::new(&kept)?;
/// assert_eq!(form.as_str(), r#"{"copies":1,"path":"café"}"#);
///
/// let sent_back = Json::parse(r#"{"path":"café","copies":1}"#)?;
/// assert_eq!(CanonicalJson::new(&sent_back)?, form);
///
/// let order = Json::parse(r#"{"order":9007199254740993}"#)?;
/// assert!(matches!(CanonicalJson::new(&order), Err(InexactInputError::LargeInteger)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Canonical form: [RFC 8785](https://www.rfc-editor.org/rfc/rfc8785)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanonicalJson(String);

impl CanonicalJson {
    /// Creates the canonical form of an input that a browser shows without loss.
    ///
    /// # Errors
    /// [`InexactInputError`] if a browser would show the input differently. The variant names the
    /// rule that the input breaks. This function never returns [`InexactInputError::TooLong`].
    pub fn new(input: &Json) -> Result<Self, InexactInputError> {
        // Fewer rules apply to a value from a peer. Parsing it again also limits the depth of the
        // recursion.
        let input = Json::parse(input.as_str())?;
        let mut form = String::with_capacity(input.as_str().len());
        write_value(input.as_str(), &mut form)?;
        Ok(CanonicalJson(form))
    }

    /// Returns the canonical form. To hash it, use its UTF-8 bytes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns whether two inputs are the same value, as a browser reads them.
pub(super) fn is_same_value(sent: &Json, stored: &Json) -> bool {
    let forms = (CanonicalJson::new(sent), CanonicalJson::new(stored));
    matches!(forms, (Ok(sent), Ok(stored)) if sent == stored)
}

/// The reason why a browser would show a tool input differently from the input of the tool.
///
/// A user must not be asked to approve such an input. The model gets the error instead, and its
/// text states what the model can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InexactInputError {
    /// The input breaks a rule of [`Json::parse`]: half a surrogate pair, a prototype key, great
    /// depth, or a number beyond the range of a double.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// The input is longer than 256 KiB.
    ///
    /// No user reads an input of that length, and the client would send it back with every request.
    #[error("longer than 256 KiB; send less at once")]
    TooLong,
    /// An integer beyond ±(2^53−1), which a double cannot hold or holds only by chance.
    #[error("an integer beyond ±9007199254740991; send large numbers as strings")]
    LargeInteger,
    /// A `-0`.
    #[error("a negative zero, which a browser shows as 0; send 0")]
    NegativeZero,
    /// A key that begins with `$serde_json::private::`, which `serde_json` reserves for its own
    /// values.
    #[error("a key that begins with `$serde_json::private::`; give it another name")]
    ReservedKey,
    /// A number that has more digits, or is nearer to zero, than a double can represent.
    #[error("a number that a browser shows rounded; send it as a string or with fewer digits")]
    RoundedNumber,
}

/// Writes one value of a text that [`Json::parse`] accepts, which limits the depth of the
/// recursion.
fn write_value(text: &str, form: &mut String) -> Result<(), InexactInputError> {
    match text.as_bytes().first() {
        Some(b'{') => write_object(text, form),
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(JsonError::Syntax)?;
            write_list('[', items, ']', form, |item, form| write_value(item.get(), form))
        }
        Some(b'"') => write_string(&unescaped(text), form),
        Some(b'-' | b'0'..=b'9') => write_number(text, form),
        // `true`, `false` or `null`.
        _ => {
            form.push_str(text);
            Ok(())
        }
    }
}

fn write_object(text: &str, form: &mut String) -> Result<(), InexactInputError> {
    let object = Object::parse(text).map_err(JsonError::Syntax)?;
    let mut fields: Vec<_> = object.rest().collect();
    fields.sort_unstable_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    write_list('{', fields, '}', form, |(key, value), form| {
        if key.starts_with(RESERVED) {
            return Err(InexactInputError::ReservedKey);
        }
        write_string(key, form)?;
        form.push(':');
        write_value(value.get(), form)
    })
}

fn write_list<T>(
    open: char,
    items: Vec<T>,
    close: char,
    form: &mut String,
    write: impl Fn(T, &mut String) -> Result<(), InexactInputError>,
) -> Result<(), InexactInputError> {
    form.push(open);
    for (index, item) in items.into_iter().enumerate() {
        if index > 0 {
            form.push(',');
        }
        write(item, form)?;
    }
    form.push(close);
    Ok(())
}

/// The prefix of the keys that `serde_json` reserves for its own values.
const RESERVED: &str = "$serde_json::private::";

/// Writes a string. `serde_json` escapes exactly the characters that JavaScript escapes.
fn write_string(text: &str, form: &mut String) -> Result<(), InexactInputError> {
    form.push_str(&serde_json::to_string(text).map_err(JsonError::Syntax)?);
    Ok(())
}

fn write_number(literal: &str, form: &mut String) -> Result<(), InexactInputError> {
    // Rust parses every JSON number as a float and rounds it as JavaScript does.
    let value: f64 = literal.parse().map_err(|_| InexactInputError::RoundedNumber)?;
    let mut buffer = ryu_js::Buffer::new();
    let shown = buffer.format(value);
    let sent = Decimal::parse(literal);
    if sent.is_negative && sent.digits.is_empty() {
        return Err(InexactInputError::NegativeZero);
    }
    if value.abs() > MAX_SAFE_INTEGER && !shown.contains('e') {
        return Err(InexactInputError::LargeInteger);
    }
    if sent != Decimal::parse(shown) {
        return Err(InexactInputError::RoundedNumber);
    }
    form.push_str(shown);
    Ok(())
}

/// JavaScript's `Number.MAX_SAFE_INTEGER`, 2^53 − 1.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

/// The exact value of a decimal literal: 0.*digits* · 10^*exponent*.
#[derive(PartialEq)]
struct Decimal {
    is_negative: bool,
    /// The digits without zeros at either end. Empty for zero.
    digits: String,
    /// The exponent, or `None` if it is too large for any double.
    exponent: Option<i64>,
}

impl Decimal {
    fn parse(literal: &str) -> Self {
        let (mantissa, exponent) = literal.split_once(['e', 'E']).unwrap_or((literal, "0"));
        let unsigned = mantissa.strip_prefix('-');
        let is_negative = unsigned.is_some();
        let unsigned = unsigned.unwrap_or(mantissa);
        let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
        let all = [whole, fraction].concat();
        let from_first = all.trim_start_matches('0');
        let digits = from_first.trim_end_matches('0').to_owned();
        let exponent = if digits.is_empty() {
            Some(0)
        } else {
            let before_point = whole.len() as i64 - (all.len() - from_first.len()) as i64;
            exponent.parse().ok().and_then(|exponent: i64| exponent.checked_add(before_point))
        };
        Decimal { is_negative, digits, exponent }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    /// A tool input, and its form as JavaScript writes it. `None` if a browser does not show the
    /// input as it is.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Upstream {
        note: String,
        input_text: String,
        canonical_input: Option<String>,
    }

    const UPSTREAM: &str = include_str!("../../fixtures/upstream/canonical-inputs.jsonl");

    fn form(text: &str) -> Result<String, InexactInputError> {
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        CanonicalJson::new(&Json::received(&raw).unwrap()).map(|form| form.as_str().to_owned())
    }

    #[test]
    fn the_canonical_form_equals_that_of_javascript_if_a_browser_shows_the_input_as_it_is() {
        for line in UPSTREAM.lines() {
            let upstream: Upstream = serde_json::from_str(line).unwrap();
            match Json::parse(&upstream.input_text) {
                // A received input has the last of equal keys only.
                Err(JsonError::DuplicateKey) => assert_eq!(upstream.canonical_input, None),
                _ => assert_eq!(
                    form(&upstream.input_text).ok(),
                    upstream.canonical_input,
                    "{}",
                    upstream.note
                ),
            }
        }
    }

    #[test]
    fn of_equal_keys_a_received_input_has_the_last_one_only() {
        assert_eq!(form(r#"{"path":"a","\u0070ath":"b"}"#).unwrap(), r#"{"path":"b"}"#);
    }

    #[test]
    fn the_notation_of_a_number_does_not_matter() {
        for (text, shown) in [
            ("1.0", "1"),
            ("1e2", "100"),
            ("1E+2", "100"),
            ("0.10", "0.1"),
            ("-1.50e-7", "-1.5e-7"),
            ("0.000001", "0.000001"),
            ("0.0000001", "1e-7"),
            ("0.0", "0"),
            ("0e999999999999999999999", "0"),
            ("9007199254740991", "9007199254740991"),
            ("-9007199254740991.0", "-9007199254740991"),
            ("1e21", "1e+21"),
            ("1000000000000000000000", "1e+21"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            // Halfway between two decimals of 16 digits, of which JavaScript prints the even one.
            ("-756164788344554.2", "-756164788344554.2"),
        ] {
            assert_eq!(form(text).unwrap(), shown, "{text}");
        }
    }

    #[test]
    fn a_number_that_a_browser_shows_differently_is_rejected() {
        use InexactInputError::{LargeInteger, NegativeZero, RoundedNumber};
        for text in ["9007199254740992", "-9007199254740993", "1e20", "9007199254740991.5"] {
            assert!(matches!(form(text), Err(LargeInteger)), "{text}");
        }
        for text in ["-0", "-0.0", "-0e5", "-0.00E-99999999999999999999"] {
            assert!(matches!(form(text), Err(NegativeZero)), "{text}");
        }
        for text in [
            "0.1000000000000000055511151231257827",
            "9007199254740991.2",
            "1e-400",
            "-1e-400",
            "1e-99999999999999999999",
            "3e-324",
            "12345678901234567890123",
            "-756164788344554.25",
            "-756164788344554.3",
        ] {
            assert!(matches!(form(text), Err(RoundedNumber)), "{text}");
        }
        assert!(matches!(
            form("1e99999999999999999999"),
            Err(InexactInputError::Json(JsonError::NumberTooLarge))
        ));
    }

    #[test]
    fn a_value_from_a_peer_that_readers_read_differently_is_rejected() {
        let refused = |text: &str| match form(text) {
            Err(InexactInputError::Json(error)) => error,
            other => panic!("{text}: {other:?}"),
        };
        assert!(matches!(refused(r#"["\ud83d"]"#), JsonError::LoneSurrogate));
        assert!(matches!(refused(r#"{"\udc00":1}"#), JsonError::LoneSurrogate));
        assert!(matches!(refused(r#"{"constructor":null}"#), JsonError::PrototypeKey));
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert!(matches!(refused(&deep), JsonError::TooDeep));
    }

    #[test]
    fn a_key_that_serde_json_reserves_is_rejected() {
        let text = r#"{"a":[{"$serde_json::private::RawValue":"1"}]}"#;
        assert_eq!(serde_json::from_str::<serde_json::Value>(text).unwrap()["a"][0], 1);
        for text in [
            text,
            r#"{"$serde_json::private::Number":"1"}"#,
            r#"{"\u0024serde_json::private::RawValue":"1"}"#,
        ] {
            assert!(matches!(form(text), Err(InexactInputError::ReservedKey)), "{text}");
        }
        assert!(form(r#"{"a":"$serde_json::private::Number","$serde_json":1}"#).is_ok());
    }

    #[test]
    fn keys_are_sorted_by_their_utf_16_units() {
        assert_eq!(
            form(r#" {"｡":1, "😀":2, "b":[ true , null ], "10":{}, "9":[], "":"\/\u001F\b"} "#)
                .unwrap(),
            "{\"\":\"/\\u001f\\b\",\"10\":{},\"9\":[],\"b\":[true,null],\"😀\":2,\"｡\":1}"
        );
    }

    /// A value, as every reader of its text must read it.
    #[derive(Debug, Clone, PartialEq)]
    enum Tree {
        Literal(&'static str),
        Number(f64),
        Text(String),
        List(Vec<Tree>),
        Fields(BTreeMap<String, Tree>),
    }

    impl Tree {
        fn any() -> impl Strategy<Value = Tree> {
            let leaf = prop_oneof![
                prop_oneof![Just("null"), Just("true"), Just("false")].prop_map(Tree::Literal),
                any::<i32>().prop_map(|number| Tree::Number(number.into())),
                any::<f64>().prop_map(Tree::Number),
                any::<String>().prop_map(Tree::Text),
            ];
            leaf.prop_recursive(5, 40, 6, |inner| {
                prop_oneof![
                    prop::collection::vec(inner.clone(), 0..6).prop_map(Tree::List),
                    prop::collection::btree_map(any::<String>(), inner, 0..6)
                        .prop_map(Tree::Fields),
                ]
            })
        }

        fn print(&self) -> String {
            let text = |text: &String| Json::string(text).as_str().to_owned();
            match self {
                Tree::Literal(literal) => (*literal).to_owned(),
                Tree::Number(number) => format!("{number:E}"),
                Tree::Text(string) => text(string),
                Tree::List(items) => {
                    let items: Vec<_> = items.iter().map(Tree::print).collect();
                    format!("[ {} ]", items.join(" , "))
                }
                Tree::Fields(fields) => {
                    let fields = fields.iter().rev();
                    let fields: Vec<_> =
                        fields.map(|(key, value)| text(key) + " : " + &value.print()).collect();
                    format!("{{ {} }}", fields.join(" , "))
                }
            }
        }

        fn read(text: &str) -> Tree {
            match text.as_bytes()[0] {
                b'n' => Tree::Literal("null"),
                b't' => Tree::Literal("true"),
                b'f' => Tree::Literal("false"),
                b'"' => Tree::Text(serde_json::from_str(text).unwrap()),
                b'[' => {
                    let items: Vec<&RawValue> = serde_json::from_str(text).unwrap();
                    Tree::List(items.into_iter().map(|item| Tree::read(item.get())).collect())
                }
                b'{' => {
                    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(text).unwrap();
                    let fields = fields.into_iter();
                    Tree::Fields(fields.map(|(key, raw)| (key, Tree::read(raw.get()))).collect())
                }
                _ => Tree::Number(text.parse().unwrap()),
            }
        }
    }

    proptest! {
        #[test]
        fn the_canonical_form_keeps_the_value_and_is_its_own_canonical_form(tree in Tree::any()) {
            match form(&tree.print()) {
                Ok(once) => {
                    prop_assert_eq!(&Tree::read(&once), &tree);
                    prop_assert_eq!(form(&once).unwrap(), once);
                }
                // The tests with the real client verify that exactly the right inputs are rejected.
                Err(_) => prop_assume!(false),
            }
        }

        #[test]
        fn a_number_is_shown_with_its_own_value_or_rejected(
            literal in r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,22})?"
        ) {
            if let Ok(shown) = form(&literal) {
                prop_assert!(Decimal::parse(&shown) == Decimal::parse(&literal));
                prop_assert_eq!(form(&shown).unwrap(), shown);
            }
        }
    }
}
