//! Whether an input holds characters that a reader does not see as they are.

use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::json::Json;

/// Returns whether an input holds invisible characters, or characters that change how others look.
///
/// A prompt injection may use such characters to hide the real input from the user.
pub(super) fn has_hidden_characters(input: &Json) -> bool {
    input.decode().is_ok_and(|HasHiddenCharacters(hides)| hides)
}

/// Whether any string or key of a value holds such characters.
struct HasHiddenCharacters(bool);

impl<'de> Deserialize<'de> for HasHiddenCharacters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self(false))
    }
}

impl<'de> Visitor<'de> for HasHiddenCharacters {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Self, E> {
        Ok(HasHiddenCharacters(text.chars().any(is_hidden)))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<Self, A::Error> {
        while let Some(HasHiddenCharacters(hides)) = items.next_element()? {
            self.0 |= hides;
        }
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<Self, A::Error> {
        while let Some((HasHiddenCharacters(key), HasHiddenCharacters(value))) =
            entries.next_entry()?
        {
            self.0 |= key | value;
        }
        Ok(self)
    }
}

/// Returns whether a reader does not see a character as it is.
///
/// Variation selectors are among them: a sequence of them can carry a hidden text. Blanks of other
/// widths are not: they look like a blank.
fn is_hidden(c: char) -> bool {
    matches!(c,
        // Control characters (`Cc`) other than tab, line feed and carriage return.
        '\0'..='\u{8}' | '\u{b}' | '\u{c}' | '\u{e}'..='\u{1f}' | '\u{7f}'..='\u{9f}'
        // Separators of lines and paragraphs (`Zl`, `Zp`).
        | '\u{2028}' | '\u{2029}'
        // `Default_Ignorable_Code_Point` of Unicode 17: a program that does not know one of them
        // shows nothing for it.
        | '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}'
        | '\u{ffa0}' | '\u{fff0}'..='\u{fff8}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
        // Format characters (`Cf`) that are not among the ones above. Those with the property
        // `Prepended_Concatenation_Mark` are visible.
        | '\u{fff9}'..='\u{fffb}' | '\u{13430}'..='\u{1343f}'
        // No property says that these letters, marks and symbols look like nothing:
        | '\u{2800}' // the braille pattern without a dot
        | '\u{13441}' | '\u{13442}' // blanks between Egyptian hieroglyphs
        | '\u{16fe4}' // the filler of the Khitan small script
        | '\u{1d159}' // the note head that is not drawn
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_with_hidden_characters_is_detected() {
        for (text, hides) in [
            (r#"{"path":"notes.txt"}"#, false),
            (r#"{"path":"a\nb\tc \\u202e"}"#, false),
            ("{\"path\":\"a\u{202e}txt.exe\"}", true),
            (r#"{"path":"a\u202etxt.exe"}"#, true),
            (r#"{"path":"\\\u200b"}"#, true),
            (r#"{"pa\u200dth":"x"}"#, true),
            (r#"{"path":"\u0007"}"#, true),
            (r#"{"path":"\ud83d\ude00 naïve 日本"}"#, false),
            ("{\"path\":\"\u{e0041}\"}", true),
            (r#"{"path":"\udb40\udc41"}"#, true),
            ("{\"path\":\"a\u{e0100}\"}", true),
            ("{\"path\":\"a\u{e01ef}\"}", true),
            (r#"{"path":"a\ufe00"}"#, true),
            (r#"{"path":"a\u034f"}"#, true),
            (r#"{"path":"a\u2800"}"#, true),
            ("{\"path\":\"a\u{16fe4}\"}", true),
            ("{\"path\":\"a\u{13430}\"}", true),
            ("{\"path\":\"a\u{13441}\"}", true),
            ("{\"path\":\"a\u{1d159}\"}", true),
            (r#"{"path":"\u2801 \u0600 \u3000 \ud80d\udc40"}"#, false),
        ] {
            assert_eq!(has_hidden_characters(&Json::parse(text).unwrap()), hides, "{text}");
        }
    }
}
