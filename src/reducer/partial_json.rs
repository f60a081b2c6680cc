//! [`PartialJson`]: JSON that arrives in pieces and is read before it is complete, as the client
//! reads it.
//!
//! While a tool's input is streamed, the client shows what can be read of it so far: the longest
//! prefix that can be completed, with everything closed that is open. Where the client's repair is
//! wrong, this one is wrong in the same way: for example, a key that contains an escaped quote ends
//! at that quote.

use crate::chunk::Version;
use crate::json::Json;

/// JSON of which only the beginning may be present.
///
/// Adding a piece costs the size of the piece, independent of the text before it. Reading costs the
/// size of the whole text.
///
/// ```
/// use ui_message_stream::reducer::PartialJson;
///
/// let mut input = PartialJson::default();
/// input.push(r#"{"path":"note"#);
/// assert_eq!(input.read().unwrap().as_str(), r#"{"path":"note"}"#);
/// input.push(r#"s.txt","force":tr"#);
/// assert_eq!(input.read().unwrap().as_str(), r#"{"path":"notes.txt","force":true}"#);
/// ```
#[derive(Clone, Default)]
pub struct PartialJson {
    text: String,
    /// The length of the prefix that a repair keeps, in bytes.
    kept_len: usize,
    /// Whether the outermost value has begun.
    has_begun: bool,
    /// The open objects and arrays, the innermost last.
    open: Vec<Level>,
    token: Token,
    /// A first character of an array that begins no item is not kept: from `ai@7.0.158` on.
    ignores_invalid_first_item: bool,
}

debug_without_content!(PartialJson { kept_len, has_begun; text, open });

/// The position within an open object or array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    ObjectStart,
    Key,
    AfterKey,
    BeforeValue,
    AfterValue,
    AfterComma,
    ArrayStart,
    AfterItem,
    AfterItemComma,
}

/// The string, number or word that the last character belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Token {
    #[default]
    None,
    String,
    /// The character after a backslash.
    Escape,
    /// The digits after `\u`, with how many there were.
    Unicode(u8),
    Number,
    /// `true`, `false` or `null`, with the byte index at which it begins.
    Word(usize),
}

const WORDS: [&str; 3] = ["true", "false", "null"];

impl PartialJson {
    /// Creates the text so far of an input that this client reads.
    pub(super) fn for_client(client: Version, text: &str) -> Self {
        let ignores_invalid_first_item = client.ignores_invalid_first_item();
        let mut partial = PartialJson { ignores_invalid_first_item, ..PartialJson::default() };
        partial.push(text);
        partial
    }

    /// Appends the next piece.
    pub fn push(&mut self, piece: &str) {
        let from = self.text.len();
        self.text.push_str(piece);
        let mut at = 0;
        while let Some(next) = piece[at..].chars().next() {
            if self.token == Token::String && !matches!(next, '"' | '\\') {
                // The plain text of a string is processed all at once.
                let plain = piece[at..].find(['"', '\\']).unwrap_or(piece.len() - at);
                at += plain;
                self.kept_len = from + at;
                continue;
            }
            at += next.len_utf8();
            // The client processes UTF-16 units, and some characters take two.
            for _ in 0..next.len_utf16() {
                self.push_char(next, from + at);
            }
        }
    }

    /// Returns the text so far.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the value that can be read from the text so far, or `None` if there is none.
    ///
    /// Complete JSON is read as it is. Of two equal keys the last one counts. A value that the
    /// client's JSON reader refuses because of a key (`__proto__`) cannot be read.
    pub fn read(&self) -> Option<Json> {
        Json::parse_received(&self.text).or_else(|_| Json::parse_received(&self.repaired())).ok()
    }

    /// Returns the longest prefix that can be completed, with everything closed that is open.
    fn repaired(&self) -> String {
        let mut text = String::with_capacity(self.kept_len + self.open.len() + 4);
        text.push_str(&self.text[..self.kept_len]);
        match self.token {
            Token::String | Token::Escape | Token::Unicode(_) => text.push('"'),
            Token::Word(from) => {
                let begun = &self.text[from..];
                text.push_str(WORDS.iter().find_map(|word| word.strip_prefix(begun)).unwrap_or(""));
            }
            Token::None | Token::Number => {}
        }
        text.extend(self.open.iter().rev().map(|level| level.closing()));
        text
    }

    /// Processes one more character. `end` is the byte index after it.
    fn push_char(&mut self, next: char, end: usize) {
        match self.token {
            Token::None => self.push_between_tokens(next, end),
            Token::String => match next {
                '\\' => self.token = Token::Escape,
                '"' => self.keep_to(end, Token::None),
                _ => self.kept_len = end,
            },
            Token::Escape if next == 'u' => self.token = Token::Unicode(0),
            Token::Escape => self.keep_to(end, Token::String),
            Token::Unicode(3) if next.is_ascii_hexdigit() => self.keep_to(end, Token::String),
            Token::Unicode(digits) if next.is_ascii_hexdigit() => {
                self.token = Token::Unicode(digits + 1);
            }
            Token::Unicode(_) => {}
            Token::Number => match next {
                '0'..='9' => self.kept_len = end,
                // Not kept until a digit follows.
                'e' | 'E' | '-' | '.' => {}
                _ => self.end_token(next, end),
            },
            Token::Word(from) => {
                let word_start = &self.text[from..end];
                if WORDS.iter().any(|word| word.starts_with(word_start)) {
                    self.kept_len = end;
                } else {
                    self.end_token(next, end);
                }
            }
        }
    }

    /// Processes a character outside of strings, numbers and words.
    fn push_between_tokens(&mut self, next: char, end: usize) {
        let Some(level) = self.open.last_mut() else {
            if !self.has_begun {
                self.begin_value(next, end);
            }
            return;
        };
        match (*level, next) {
            (Level::ObjectStart | Level::AfterComma, '"') => *level = Level::Key,
            // The client does not look for escapes in a key.
            (Level::Key, '"') => *level = Level::AfterKey,
            (Level::AfterKey, ':') => *level = Level::BeforeValue,
            (Level::BeforeValue | Level::AfterItemComma, _) => self.begin_value(next, end),
            (Level::ArrayStart, ']') | (Level::ObjectStart, '}') => self.close(end),
            (Level::ArrayStart, _) => {
                if !self.ignores_invalid_first_item {
                    self.kept_len = end;
                }
                self.begin_value(next, end);
            }
            (Level::AfterItem, ',' | ']') | (Level::AfterValue, _) => self.end_value(next, end),
            (Level::AfterItem, _) => self.kept_len = end,
            (Level::ObjectStart | Level::Key | Level::AfterKey | Level::AfterComma, _) => {}
        }
    }

    /// Processes the first character of a value. All other characters are ignored.
    fn begin_value(&mut self, next: char, end: usize) {
        let token = match next {
            '"' => Token::String,
            't' | 'f' | 'n' => Token::Word(end - 1),
            '-' | '0'..='9' => Token::Number,
            '{' | '[' => Token::None,
            _ => return,
        };
        match self.open.last_mut() {
            None => self.has_begun = true,
            Some(level @ Level::BeforeValue) => *level = Level::AfterValue,
            Some(level) => *level = Level::AfterItem,
        }
        self.token = token;
        match next {
            '{' => self.open.push(Level::ObjectStart),
            '[' => self.open.push(Level::ArrayStart),
            // Not kept until a digit follows.
            '-' => return,
            _ => {}
        }
        self.kept_len = end;
    }

    /// Processes the character after a number or a word.
    fn end_token(&mut self, next: char, end: usize) {
        self.token = Token::None;
        self.end_value(next, end);
    }

    /// Processes a character after a value. Only a comma and the closing character of the object or
    /// array have a meaning there.
    fn end_value(&mut self, next: char, end: usize) {
        match (self.open.last_mut(), next) {
            (Some(level @ Level::AfterValue), ',') => *level = Level::AfterComma,
            (Some(level @ Level::AfterItem), ',') => *level = Level::AfterItemComma,
            (Some(Level::AfterValue), '}') | (Some(Level::AfterItem), ']') => self.close(end),
            _ => {}
        }
    }

    fn close(&mut self, end: usize) {
        self.open.pop();
        self.kept_len = end;
    }

    fn keep_to(&mut self, end: usize, token: Token) {
        self.kept_len = end;
        self.token = token;
    }
}

impl From<&str> for PartialJson {
    fn from(text: &str) -> Self {
        let mut partial = PartialJson::default();
        partial.push(text);
        partial
    }
}

impl Level {
    fn closing(self) -> char {
        match self {
            Level::ArrayStart | Level::AfterItem | Level::AfterItemComma => ']',
            _ => '}',
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<String> {
        PartialJson::from(text).read().map(|json| json.as_str().to_owned())
    }

    #[test]
    fn text_in_pieces_reads_like_the_whole_text() {
        let text =
            r#" {"a\"b":[1, -2.5e3, true ,null], "é😀":"\u00e9\\\"😀x", "c":{"d":[[],{}]}} "#;
        for (cut, _) in text.char_indices() {
            let mut pieces = PartialJson::default();
            pieces.push(&text[..cut]);
            assert_eq!(pieces.read(), PartialJson::from(&text[..cut]).read(), "cut at {cut}");
            pieces.push(&text[cut..]);
            assert_eq!(pieces.read().unwrap().as_str(), text.trim());
        }
    }

    #[test]
    fn parsing_errors_of_the_client_are_reproduced() {
        // A key ends at an escaped quote, and a `+` ends a number. What follows either of them is
        // ignored.
        assert_eq!(read(r#"{"a\":1"#).as_deref(), None);
        assert_eq!(read(r#"{"a":1E+5"#).as_deref(), Some(r#"{"a":1}"#));
        assert_eq!(read("[1E+5").as_deref(), Some("[1E+5]"));
        assert_eq!(read("[1é").as_deref(), Some("[1]"));
        assert_eq!(read("[1😀").as_deref(), None);
    }

    #[test]
    fn of_a_repeated_key_the_last_value_counts() {
        assert_eq!(
            read(r#"{"a":[1],"b":{"c":1,"c":2},"a":3"#).as_deref(),
            Some(r#"{"b":{"c":2},"a":3}"#)
        );
    }

    #[test]
    fn deep_json_needs_no_recursion() {
        let deep = "[".repeat(100_000);
        assert!(read(&deep).is_some());
    }
}
