//! [`PartialJson`]: JSON that comes in pieces, read before it is whole as the client reads it.
//!
//! While a tool's input streams in, the client shows what can be read of it so far: the longest
//! stretch that makes sense, with everything closed that is open. What this gives stays wrong where
//! the client is wrong: a key that holds an escaped quote, for instance, ends at it.

use super::held;
use crate::json::Json;

/// JSON of which only the beginning may be there.
///
/// A piece costs what its text costs, however much is there already; reading costs the whole text.
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
#[derive(Debug, Clone, Default)]
pub struct PartialJson {
    text: String,
    /// The length of the stretch that a repair keeps.
    kept: usize,
    /// Whether the outermost value has begun.
    begun: bool,
    /// The objects and arrays that are open, the innermost last.
    open: Vec<Level>,
    token: Token,
}

/// How far an open object or array has come.
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

/// What the last character belongs to, if it is neither an object nor an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Token {
    #[default]
    None,
    String,
    /// The character behind a backslash.
    Escape,
    /// The digits behind `\u`, and how many there were.
    Unicode(u8),
    Number,
    /// `true`, `false` or `null`, and where it begins.
    Word(usize),
}

const WORDS: [&str; 3] = ["true", "false", "null"];

impl PartialJson {
    /// Adds the next piece.
    pub fn push(&mut self, piece: &str) {
        let from = self.text.len();
        self.text.push_str(piece);
        let mut at = 0;
        while let Some(next) = piece[at..].chars().next() {
            if self.token == Token::String && !matches!(next, '"' | '\\') {
                // A string's plain text, all at once.
                let plain = piece[at..].find(['"', '\\']).unwrap_or(piece.len() - at);
                at += plain;
                self.kept = from + at;
                continue;
            }
            at += next.len_utf8();
            // The client goes through UTF-16 units, of which some characters take two.
            for _ in 0..next.len_utf16() {
                self.step(next, from + at);
            }
        }
    }

    /// What came so far.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What can be read of it, if anything can.
    ///
    /// Text that is whole is read as it is. Of two equal keys the last one counts. A value that the
    /// client's JSON reader refuses for one of its keys (`__proto__`) cannot be read.
    pub fn read(&self) -> Option<Json> {
        held::parse(&self.text).or_else(|| held::parse(&self.repaired()))
    }

    /// The stretch that makes sense, with everything closed that is open.
    fn repaired(&self) -> String {
        let mut text = String::with_capacity(self.kept + self.open.len() + 4);
        text.push_str(&self.text[..self.kept]);
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

    /// Takes one more character; `end` is where it ends.
    fn step(&mut self, next: char, end: usize) {
        match self.token {
            Token::None => self.step_between(next, end),
            Token::String => match next {
                '\\' => self.token = Token::Escape,
                '"' => self.keep(end, Token::None),
                _ => self.kept = end,
            },
            Token::Escape if next == 'u' => self.token = Token::Unicode(0),
            Token::Escape => self.keep(end, Token::String),
            Token::Unicode(3) if next.is_ascii_hexdigit() => self.keep(end, Token::String),
            Token::Unicode(digits) if next.is_ascii_hexdigit() => {
                self.token = Token::Unicode(digits + 1);
            }
            Token::Unicode(_) => {}
            Token::Number => match next {
                '0'..='9' => self.kept = end,
                // Not kept until a digit follows.
                'e' | 'E' | '-' | '.' => {}
                _ => self.end_token(next, end),
            },
            Token::Word(from) => {
                let begun = &self.text[from..end];
                if WORDS.iter().any(|word| word.starts_with(begun)) {
                    self.kept = end;
                } else {
                    self.end_token(next, end);
                }
            }
        }
    }

    /// Takes a character that belongs to no string, number or word.
    fn step_between(&mut self, next: char, end: usize) {
        let Some(level) = self.open.last_mut() else {
            if !self.begun {
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
                self.kept = end;
                self.begin_value(next, end);
            }
            (Level::AfterItem, ',' | ']') | (Level::AfterValue, _) => self.end_value(next, end),
            (Level::AfterItem, _) => self.kept = end,
            (Level::ObjectStart | Level::Key | Level::AfterKey | Level::AfterComma, _) => {}
        }
    }

    /// Takes the first character of a value; anything else is passed over.
    fn begin_value(&mut self, next: char, end: usize) {
        let token = match next {
            '"' => Token::String,
            't' | 'f' | 'n' => Token::Word(end - 1),
            '-' | '0'..='9' => Token::Number,
            '{' | '[' => Token::None,
            _ => return,
        };
        match self.open.last_mut() {
            None => self.begun = true,
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
        self.kept = end;
    }

    /// Takes the character that ends a number or a word.
    fn end_token(&mut self, next: char, end: usize) {
        self.token = Token::None;
        self.end_value(next, end);
    }

    /// Takes a character behind a value, where only a comma and the closing one mean something.
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
        self.kept = end;
    }

    fn keep(&mut self, end: usize, token: Token) {
        self.kept = end;
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
    fn pieces_cut_anywhere_read_the_same() {
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
    fn what_the_client_gets_wrong_stays_wrong() {
        // A key ends at an escaped quote, a `+` ends a number, and what follows either is passed over.
        assert_eq!(read(r#"{"a\":1"#).as_deref(), None);
        assert_eq!(read(r#"{"a":1E+5"#).as_deref(), Some(r#"{"a":1}"#));
        assert_eq!(read("[1E+5").as_deref(), Some("[1E+5]"));
        assert_eq!(read("[1é").as_deref(), Some("[1]"));
        assert_eq!(read("[1😀").as_deref(), None);
    }

    #[test]
    fn a_key_given_twice_counts_the_last_time() {
        assert_eq!(
            read(r#"{"a":[1],"b":{"c":1,"c":2},"a":3"#).as_deref(),
            Some(r#"{"b":{"c":2},"a":3}"#)
        );
    }

    #[test]
    fn depth_costs_no_stack() {
        let deep = "[".repeat(100_000);
        assert!(read(&deep).is_some());
    }
}
