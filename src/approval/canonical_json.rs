//! [`CanonicalJson`]: a tool input as a browser reads it, if a browser shows what the server holds.
//!
//! A person approves what the page shows, and the tool runs with the text that the server keeps.
//! Both are the same thing only for an input that JavaScript reads without losing anything. So one
//! walk does two jobs: it refuses every other input ([`InputNotShownAsIs`]), and writes what is
//! left in the one form of RFC 8785, keys sorted by UTF-16 units and numbers as JavaScript prints
//! them. The AI SDK writes the same form for all of them before it signs.
//!
//! # What is refused
//!
//! | input | what a browser makes of it |
//! |---|---|
//! | what [`Json::parse`] refuses | a repeated key: the last one; half a surrogate pair: shown as `�`; `1e400`: `Infinity`, sent back as `null`; prototype keys and great depth: no answer comes back |
//! | an integer beyond ±(2^53−1) | the nearest double, as `9007199254740993` turns into `…992` |
//! | a number that it prints with another value | `0.1000000000000000055` is shown as `0.1`, `1e-400` as `0` |
//! | `-0` | `0` |
//! | a key `$serde_json::private::…` | what stands there; but the tool may read something else |
//!
//! Only the value of a number counts, not how it is written: `1.0`, `1e2`, `0.10` and `1E+2` are
//! admitted, since a browser shows `1`, `100` and `0.1`, the same decimals exactly.
//!
//! *Integer* means: printed with digits alone. Some of those beyond ±(2^53−1) a browser would show
//! right, every second one at first; but a tool that takes large ids as numbers is to fail in its
//! first test, and not with every second id. From 10^21 on a browser prints an exponent, and there
//! the value alone decides: `1e21` is admitted.
//!
//! `-0` is equal to `0`, but a tool that computes with doubles can tell them apart, and nobody who
//! approved a `0` has seen the sign.
//!
//! `serde_json::Value` reads `{"$serde_json::private::RawValue":"1"}` as `1`, since its feature
//! `raw_value` is on here, and so does `$serde_json::private::Number` with `arbitrary_precision`,
//! which any dependency may turn on. A tool that takes a `Value` would run with what nobody saw.
//!
//! For the same reason the walk goes over the text, and not over a tree: no feature changes it.

use serde_json::value::RawValue;

use crate::json::{Json, JsonError, unescaped};
use crate::record::Object;

/// A JSON value that a browser shows as it is, in the one form that all its spellings share.
///
/// Two inputs have equal forms exactly if they are the same value, so this is how an input that a
/// client sent back is compared with the one that the server kept.
///
/// ```
/// use ui_message_stream::Json;
/// use ui_message_stream::approval::{CanonicalJson, InputNotShownAsIs};
///
/// let kept = Json::parse(r#"{ "path": "caf\u00e9", "copies": 1.0 }"#)?;
/// let form = CanonicalJson::of(&kept)?;
/// assert_eq!(form.as_str(), r#"{"copies":1,"path":"café"}"#);
///
/// let sent_back = Json::parse(r#"{"path":"café","copies":1}"#)?;
/// assert_eq!(CanonicalJson::of(&sent_back)?, form);
///
/// let order = Json::parse(r#"{"order":9007199254740993}"#)?;
/// assert!(matches!(CanonicalJson::of(&order), Err(InputNotShownAsIs::LargeInteger)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Form: [RFC 8785](https://www.rfc-editor.org/rfc/rfc8785)
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanonicalJson(String);

impl CanonicalJson {
    /// Writes the canonical form of an input that a browser shows as it is.
    ///
    /// # Errors
    /// [`InputNotShownAsIs`] names the rule that the input breaks.
    pub fn of(input: &Json) -> Result<Self, InputNotShownAsIs> {
        // What came from a peer was held to fewer rules. This bounds the depth of the walk, too.
        let input = Json::parse(input.as_str())?;
        let mut form = String::with_capacity(input.as_str().len());
        write_value(input.as_str(), &mut form)?;
        Ok(CanonicalJson(form))
    }

    /// The form, to be hashed as UTF-8.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a browser would show a tool input differently from what the tool runs with.
///
/// Such an input is no question for a person. It goes back to the model as an error; the text says
/// what the model can do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputNotShownAsIs {
    /// It breaks a rule of [`Json::parse`]: a repeated key, half a surrogate pair, a prototype key,
    /// great depth, or a number beyond a double.
    #[error(transparent)]
    Json(#[from] JsonError),
    /// It is longer than 256 KiB: nobody reads that, and it would come back with every request.
    #[error("longer than 256 KiB; send less at once")]
    TooLong,
    /// An integer that a double holds only in part, or only by luck.
    #[error("an integer beyond ±9007199254740991; send large numbers as strings")]
    LargeInteger,
    /// A `-0`.
    #[error("a negative zero, which a browser shows as 0; send 0")]
    NegativeZero,
    /// A key that begins with `$serde_json::private::`, by which `serde_json` marks values of its own.
    #[error("a key that begins with `$serde_json::private::`; give it another name")]
    ReservedKey,
    /// A number with more digits, or nearer to zero, than a double holds.
    #[error("a number that a browser shows rounded; send it as a string or with fewer digits")]
    RoundedNumber,
}

/// Writes one value of a text that [`Json::parse`] has let through, so no deeper than it allows.
fn write_value(text: &str, form: &mut String) -> Result<(), InputNotShownAsIs> {
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

fn write_object(text: &str, form: &mut String) -> Result<(), InputNotShownAsIs> {
    let object = Object::parse(text).map_err(JsonError::Syntax)?;
    let mut fields: Vec<_> = object.rest().collect();
    fields.sort_unstable_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
    write_list('{', fields, '}', form, |(key, value), form| {
        if key.starts_with(RESERVED) {
            return Err(InputNotShownAsIs::ReservedKey);
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
    write: impl Fn(T, &mut String) -> Result<(), InputNotShownAsIs>,
) -> Result<(), InputNotShownAsIs> {
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

/// How the keys begin by which `serde_json` marks values of its own.
const RESERVED: &str = "$serde_json::private::";

/// `serde_json` escapes what JavaScript escapes, and nothing else.
fn write_string(text: &str, form: &mut String) -> Result<(), InputNotShownAsIs> {
    form.push_str(&serde_json::to_string(text).map_err(JsonError::Syntax)?);
    Ok(())
}

fn write_number(literal: &str, form: &mut String) -> Result<(), InputNotShownAsIs> {
    // Every JSON number is a float to Rust, which rounds as JavaScript does.
    let value: f64 = literal.parse().map_err(|_| InputNotShownAsIs::RoundedNumber)?;
    let mut buffer = ryu_js::Buffer::new();
    let shown = buffer.format(value);
    let sent = Decimal::of(literal);
    if sent.is_negative && sent.digits.is_empty() {
        return Err(InputNotShownAsIs::NegativeZero);
    }
    if value.abs() > MAX_SAFE_INTEGER && !shown.contains('e') {
        return Err(InputNotShownAsIs::LargeInteger);
    }
    if sent != Decimal::of(shown) {
        return Err(InputNotShownAsIs::RoundedNumber);
    }
    form.push_str(shown);
    Ok(())
}

/// JavaScript's `Number.MAX_SAFE_INTEGER`, 2^53 − 1.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;

/// The value of a decimal literal, exactly: 0.*digits* · 10^*exponent*.
#[derive(PartialEq)]
struct Decimal {
    is_negative: bool,
    /// Without zeros at either end; none for zero.
    digits: String,
    /// None if it is so large that no double comes near it.
    exponent: Option<i64>,
}

impl Decimal {
    fn of(literal: &str) -> Self {
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

    use super::*;

    fn form(text: &str) -> Result<String, InputNotShownAsIs> {
        let raw = RawValue::from_string(text.to_owned()).unwrap();
        CanonicalJson::of(&Json::received(&raw).unwrap()).map(|form| form.as_str().to_owned())
    }

    #[test]
    fn how_a_number_is_written_does_not_matter() {
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
    fn a_number_that_a_browser_shows_differently_is_refused() {
        use InputNotShownAsIs::{LargeInteger, NegativeZero, RoundedNumber};
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
            Err(InputNotShownAsIs::Json(JsonError::NumberTooLarge))
        ));
    }

    #[test]
    fn what_a_peer_may_send_but_readers_see_differently_is_refused() {
        let refused = |text: &str| match form(text) {
            Err(InputNotShownAsIs::Json(error)) => error,
            other => panic!("{text}: {other:?}"),
        };
        assert!(matches!(refused(r#"{"a":1,"\u0061":1}"#), JsonError::DuplicateKey));
        assert!(matches!(refused(r#"["\ud83d"]"#), JsonError::LoneSurrogate));
        assert!(matches!(refused(r#"{"\udc00":1}"#), JsonError::LoneSurrogate));
        assert!(matches!(refused(r#"{"constructor":null}"#), JsonError::PrototypeKey));
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert!(matches!(refused(&deep), JsonError::TooDeep));
    }

    #[test]
    fn a_key_that_a_tool_would_read_as_something_else_is_refused() {
        let text = r#"{"a":[{"$serde_json::private::RawValue":"1"}]}"#;
        assert_eq!(serde_json::from_str::<serde_json::Value>(text).unwrap()["a"][0], 1);
        for text in [
            text,
            r#"{"$serde_json::private::Number":"1"}"#,
            r#"{"\u0024serde_json::private::RawValue":"1"}"#,
        ] {
            assert!(matches!(form(text), Err(InputNotShownAsIs::ReservedKey)), "{text}");
        }
        assert!(form(r#"{"a":"$serde_json::private::Number","$serde_json":1}"#).is_ok());
    }

    #[test]
    fn keys_stand_in_the_order_of_their_utf_16_units() {
        assert_eq!(
            form(r#" {"｡":1, "😀":2, "b":[ true , null ], "10":{}, "9":[], "":"\/\u001F\b"} "#)
                .unwrap(),
            "{\"\":\"/\\u001f\\b\",\"10\":{},\"9\":[],\"b\":[true,null],\"😀\":2,\"｡\":1}"
        );
    }

    /// A value, as any reader of its text has to see it.
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
        fn the_form_holds_the_value_and_is_its_own_form(tree in Tree::any()) {
            match form(&tree.print()) {
                Ok(once) => {
                    prop_assert_eq!(&Tree::read(&once), &tree);
                    prop_assert_eq!(form(&once).unwrap(), once);
                }
                // Which inputs are refused, and no others, is judged by the real client.
                Err(_) => prop_assume!(false),
            }
        }

        #[test]
        fn a_number_is_shown_with_its_own_value_or_refused(
            literal in r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,22})?"
        ) {
            if let Ok(shown) = form(&literal) {
                prop_assert!(Decimal::of(&shown) == Decimal::of(&literal));
                prop_assert_eq!(form(&shown).unwrap(), shown);
            }
        }
    }
}
