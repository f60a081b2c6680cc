//! Random tool inputs, in every notation that JSON allows.

use test_support::rng::Dice;

/// Returns the text of a random tool input: valid JSON. A browser shows about three of five inputs
/// unchanged.
pub(crate) fn random_input(seed: u64, number: u64) -> String {
    Dice::new(seed, number).input()
}

/// The parts of an input, in all notations.
trait RandomJson {
    fn input(&mut self) -> String;

    fn value(&mut self, depth: usize, risk: bool) -> String;

    fn between(&mut self, open: char, items: &[String], close: char) -> String;

    fn space(&mut self) -> &'static str;

    fn key(&mut self, risk: bool) -> String;

    fn string(&mut self, risk: bool) -> String;

    /// Any character that needs no escape.
    fn character(&mut self) -> char;

    fn number(&mut self, risk: bool) -> String;

    /// Any double, in its shortest notation.
    fn double(&mut self) -> String;

    /// digits · 10^exponent, with the point anywhere and zeros at the ends.
    fn spelling(&mut self, digits: usize, exponent: i64) -> String;
}

impl RandomJson for Dice {
    fn input(&mut self) -> String {
        if self.chance(1) {
            // `Json::MAX_DEPTH`, and one level more.
            let depth = 56 + self.below(2);
            return format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        }
        // A value is shown unchanged only if all its parts are.
        let risk = self.pick(&["none", "none", "some"]) == "some";
        let depth = self.below(5);
        self.value(depth, risk)
    }

    fn value(&mut self, depth: usize, risk: bool) -> String {
        match self.below(if depth == 0 { 6 } else { 12 }) {
            0 => self.pick(&["null", "true", "false"]).to_owned(),
            1..=3 => self.number(risk),
            4 | 5 => self.string(risk),
            6..=8 => {
                let items: Vec<_> =
                    (0..self.below(5)).map(|_| self.value(depth - 1, risk)).collect();
                self.between('[', &items, ']')
            }
            _ => {
                let mut keys = Vec::new();
                for _ in 0..self.below(6) {
                    let key = self.key(risk);
                    // The real client decides whether a key is repeated in another notation.
                    if risk || !keys.contains(&key) {
                        keys.push(key);
                    }
                }
                let mut fields = Vec::new();
                for key in keys {
                    let value = self.value(depth - 1, risk);
                    fields.push(format!("{key}{}:{}{value}", self.space(), self.space()));
                }
                self.between('{', &fields, '}')
            }
        }
    }

    fn between(&mut self, open: char, items: &[String], close: char) -> String {
        let comma = format!("{},{}", self.space(), self.space());
        let (before, after) = (self.space(), self.space());
        format!("{open}{before}{}{after}{close}", items.join(&comma))
    }

    fn space(&mut self) -> &'static str {
        if self.chance(80) { "" } else { self.pick(&[" ", "\t", "\n", "\r\n  "]) }
    }

    fn key(&mut self, risk: bool) -> String {
        if risk && self.chance(5) {
            return self.pick(RISKY_KEYS).to_owned();
        }
        if self.chance(30) { self.string(risk) } else { format!("\"{}\"", self.pick(KEYS)) }
    }

    fn string(&mut self, risk: bool) -> String {
        let mut string = String::from("\"");
        for _ in 0..self.below(5) {
            match self.below(8) {
                0..=3 => string.push_str(self.pick(PIECES)),
                4 | 5 => string.push(self.character()),
                6 => {
                    for unit in self.character().encode_utf16(&mut [0; 2]) {
                        let hex = format!("{unit:04x}");
                        let hex = if self.chance(50) { hex.to_uppercase() } else { hex };
                        string.push_str(&format!("\\u{hex}"));
                    }
                }
                _ if risk => string.push_str(self.pick(&["\\ud83d", "\\uDE00", "\\udbff"])),
                _ => {}
            }
        }
        string + "\""
    }

    fn character(&mut self) -> char {
        let end = [0x80, 0x800, 0x11_0000][self.below(3)];
        let code = u32::try_from(self.below(end)).unwrap();
        match char::from_u32(code) {
            Some(character) if code >= 0x20 && !matches!(character, '"' | '\\') => character,
            _ => 'x',
        }
    }

    fn number(&mut self, risk: bool) -> String {
        match self.below(if risk { 12 } else { 8 }) {
            0 => self.pick(NUMBERS).to_owned(),
            1 => self.below(1000).to_string(),
            2 => format!("-{}", 1 + self.below(1 << 53) / 2),
            3 => (self.below(1 << 53)).to_string(),
            // A double holds 15 digits exactly. Numbers that print at most 20 of them are shown.
            4..=6 => {
                let digits = 1 + self.below(10_usize.pow(15));
                let exponent = i64::try_from(self.below(600)).unwrap() - 300;
                let exponent = if (0..=7).contains(&exponent) { -exponent } else { exponent };
                self.spelling(digits, exponent)
            }
            7 => self.double(),
            8 => self.pick(RISKY_NUMBERS).to_owned(),
            9 => self.below(usize::MAX).to_string(),
            10 => format!("{}.{}", self.below(1 << 60), self.below(usize::MAX)),
            _ => {
                let exponent = i64::try_from(self.below(720)).unwrap() - 360;
                let digits = self.below(usize::MAX);
                self.spelling(digits, exponent)
            }
        }
    }

    fn double(&mut self) -> String {
        let bits = (self.below(1 << 32) as u64) << 32 | self.below(1 << 32) as u64;
        let double = f64::from_bits(bits);
        if double.is_finite() { format!("{double:e}") } else { "0.5".to_owned() }
    }

    fn spelling(&mut self, digits: usize, exponent: i64) -> String {
        let sign = if digits > 0 && self.chance(30) { "-" } else { "" };
        let mut digits = digits.to_string();
        let point = self.below(digits.len() + 1);
        let decimals = i64::try_from(digits.len() - point).unwrap();
        let fraction = digits.split_off(point);
        let whole = if digits.is_empty() { "0" } else { &digits };
        let zeros = "0".repeat(self.below(4));
        let fraction = match fraction.as_str() {
            "" if zeros.is_empty() => String::new(),
            fraction => format!(".{fraction}{zeros}"),
        };
        let exponent = exponent + decimals;
        let e = self.pick(&["e", "E"]);
        let plus = if exponent >= 0 { self.pick(&["", "+"]) } else { "" };
        format!("{sign}{whole}{fraction}{e}{plus}{exponent}")
    }
}

const KEYS: &[&str] = &[
    "a",
    "b",
    "B",
    "",
    "é",
    "10",
    "9",
    "01",
    "-1",
    "｡",
    "😀",
    "\u{e000}",
    "\u{fffd}",
    "toString",
    "length",
    "prototype",
    "$serde_json",
];

const RISKY_KEYS: &[&str] = &[
    "\"__proto__\"",
    "\"constructor\"",
    "\"prototype\"",
    "\"\\u005f_proto__\"",
    "\"a\"",
    "\"$serde_json::private::RawValue\"",
    "\"$serde_json::private::Number\"",
    "\"\\u0024serde_json::private::\"",
];

const PIECES: &[&str] = &[
    "Hello",
    "\\n",
    "\\\"",
    "\\\\",
    "\\/",
    "\\b\\f\\r\\t",
    "\\u0000",
    "\\u001F",
    "\\u007f",
    "\u{7f}",
    "\u{2028}",
    "\u{feff}",
    "😀",
    "\\ud83d\\ude00",
    ":",
    "}",
    "1e400",
    "-0",
];

const NUMBERS: &[&str] = &[
    "0",
    "0.0",
    "0e5",
    "1.0",
    "1e2",
    "1E+2",
    "0.1",
    "0.10",
    "1e21",
    "1000000000000000000000",
    "1e-6",
    "1e-7",
    "5e-324",
    "2.2250738585072014e-308",
    "1.7976931348623157e308",
    "9007199254740991",
    "-9007199254740991",
    "9007199254740991.0",
    "4.35",
    "0.000001",
    "123456789.125",
];

const RISKY_NUMBERS: &[&str] = &[
    "-0",
    "-0.0",
    "-0e3",
    "9007199254740992",
    "9007199254740993",
    "-9007199254740992",
    "9007199254740991.5",
    "1e16",
    "1e20",
    "123456789012345678901234567890",
    "0.1000000000000000055511151231257827",
    "1e400",
    "-1e400",
    "1e-400",
    "3e-324",
    "756164788344554.25",
    "756164788344554.3",
    "2.2250738585072011e-308",
];
