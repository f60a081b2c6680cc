//! Random JSON: numbers and keys in every notation, equal keys, and keys that `serde_json` and the client treat apart.

/// A random source that is determined by a number.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Dice(seed.wrapping_mul(0xD134_2543_DE82_EF95))
    }

    /// SplitMix64.
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % end as u64) as usize
    }

    fn pick(&mut self, from: &[&'static str]) -> &'static str {
        from[self.below(from.len())]
    }

    /// A value that nests up to `depth` levels.
    pub fn value(&mut self, depth: usize) -> String {
        match self.below(if depth == 0 { 5 } else { 10 }) {
            0..=2 => self.number(),
            3 => self.string(),
            4 => self.pick(&["true", "false", "null"]).to_owned(),
            5 | 6 => self.list(['[', ']'], |dice| dice.value(depth - 1)),
            _ => self.list(['{', '}'], |dice| {
                format!("{}{}:{}{}", dice.key(), dice.space(), dice.space(), dice.value(depth - 1))
            }),
        }
    }

    fn list(&mut self, [open, close]: [char; 2], item: impl Fn(&mut Self) -> String) -> String {
        let items: Vec<String> = (0..self.below(5)).map(|_| item(self)).collect();
        let (before, after) = (self.space(), self.space());
        format!("{open}{before}{}{after}{close}", items.join(&format!("{before},{after}")))
    }

    fn space(&mut self) -> &'static str {
        self.pick(&["", "", "", "", "", "", " ", "\t", "\r\n"])
    }

    fn number(&mut self) -> String {
        let sign = self.pick(&["", "", "-"]);
        match self.below(5) {
            0 => format!("{sign}{}", self.pick(NUMBERS)),
            1 => format!("{sign}{}", self.digits(40)),
            2 => format!("{sign}{}.{}", self.digits(20), self.digits(30)),
            3 => {
                let (e, e_sign) = (self.pick(&["e", "E", ".50e"]), self.pick(&["", "+", "-"]));
                format!("{sign}{}{e}{e_sign}{}", self.digits(20), self.digits(3))
            }
            _ => {
                let power = [53, 63, 64][self.below(3)];
                format!("{sign}{}", (1_u128 << power) + self.below(5) as u128 - 2)
            }
        }
    }

    /// At most `most` digits without a zero at the front.
    fn digits(&mut self, most: usize) -> String {
        let more = self.below(most);
        let digits = (0..more).map(|_| self.below(10).to_string());
        let digits: String = digits.collect();
        format!("{}{digits}", 1 + self.below(9))
    }

    fn key(&mut self) -> String {
        if self.below(5) == 0 { self.string() } else { format!("\"{}\"", self.pick(KEYS)) }
    }

    fn string(&mut self) -> String {
        let pieces: String = (0..self.below(4)).map(|_| self.pick(PIECES)).collect();
        format!("\"{pieces}\"")
    }
}

const NUMBERS: &[&str] = &[
    "0",
    "0.0",
    "0e5",
    "1.0",
    "1e2",
    "1E+2",
    "0.10",
    "1e21",
    "1e-7",
    "1e400",
    "1e-400",
    "5e-324",
    "1.7976931348623157e308",
    "0.1000000000000000055511151231257827",
    "1e99999999999999999999",
];

const KEYS: &[&str] = &[
    "b",
    "a",
    "\\u0061",
    "",
    "10",
    "9",
    "é",
    "😀",
    "\u{e000}",
    "type",
    "format",
    "id",
    "constructor",
    "prototype",
    "toString",
    "$serde_json::private::Number",
    "$serde_json::private::RawValue",
    "\\u0024serde_json::private::Number",
    "__proto__",
];

const PIECES: &[&str] = &[
    "a",
    "é",
    "😀",
    "\\n",
    "\\\"",
    "\\\\",
    "\\/",
    "\\u0041",
    "\\u0000",
    "\\ud83d\\ude00",
    "\\ud83d",
    "\u{2028}",
    "{",
    "1e400",
    "-0",
    "12345678901234567890",
];
