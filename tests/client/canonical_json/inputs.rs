//! Random tool inputs, in every notation that JSON allows.

use test_support::rng::Dice;

/// Returns the text of a random tool input: valid JSON. A browser shows about three of five inputs
/// unchanged.
pub(crate) fn random_input(seed: u64, number: u64) -> String {
    input(&mut Dice::new(seed, number))
}

fn input(dice: &mut Dice) -> String {
    if dice.chance(1) {
        // `Json::MAX_DEPTH`, and one level more.
        let depth = 56 + dice.below(2);
        return format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    }
    // A value is shown unchanged only if all its parts are.
    let risk = dice.pick(&["none", "none", "some"]) == "some";
    let depth = dice.below(5);
    value(dice, depth, risk)
}

fn value(dice: &mut Dice, depth: usize, risk: bool) -> String {
    match dice.below(if depth == 0 { 6 } else { 12 }) {
        0 => dice.pick(&["null", "true", "false"]).to_owned(),
        1..=3 => number(dice, risk),
        4 | 5 => string(dice, risk),
        6..=8 => {
            let items: Vec<_> = (0..dice.below(5)).map(|_| value(dice, depth - 1, risk)).collect();
            between(dice, '[', &items, ']')
        }
        _ => {
            let mut keys = Vec::new();
            for _ in 0..dice.below(6) {
                let key = key(dice, risk);
                // The real client decides whether a key is repeated in another notation.
                if risk || !keys.contains(&key) {
                    keys.push(key);
                }
            }
            let mut fields = Vec::new();
            for key in keys {
                let value = value(dice, depth - 1, risk);
                fields.push(format!("{key}{}:{}{value}", space(dice), space(dice)));
            }
            between(dice, '{', &fields, '}')
        }
    }
}

fn between(dice: &mut Dice, open: char, items: &[String], close: char) -> String {
    let comma = format!("{},{}", space(dice), space(dice));
    let (before, after) = (space(dice), space(dice));
    format!("{open}{before}{}{after}{close}", items.join(&comma))
}

fn space(dice: &mut Dice) -> &'static str {
    if dice.chance(80) { "" } else { dice.pick(&[" ", "\t", "\n", "\r\n  "]) }
}

fn key(dice: &mut Dice, risk: bool) -> String {
    if risk && dice.chance(5) {
        return dice.pick(RISKY_KEYS).to_owned();
    }
    if dice.chance(30) { string(dice, risk) } else { format!("\"{}\"", dice.pick(KEYS)) }
}

fn string(dice: &mut Dice, risk: bool) -> String {
    let mut string = String::from("\"");
    for _ in 0..dice.below(5) {
        match dice.below(8) {
            0..=3 => string.push_str(dice.pick(PIECES)),
            4 | 5 => string.push(character(dice)),
            6 => {
                for unit in character(dice).encode_utf16(&mut [0; 2]) {
                    let hex = format!("{unit:04x}");
                    let hex = if dice.chance(50) { hex.to_uppercase() } else { hex };
                    string.push_str(&format!("\\u{hex}"));
                }
            }
            _ if risk => string.push_str(dice.pick(&["\\ud83d", "\\uDE00", "\\udbff"])),
            _ => {}
        }
    }
    string + "\""
}

/// Any character that needs no escape.
fn character(dice: &mut Dice) -> char {
    let end = [0x80, 0x800, 0x11_0000][dice.below(3)];
    let code = u32::try_from(dice.below(end)).unwrap();
    match char::from_u32(code) {
        Some(character) if code >= 0x20 && !matches!(character, '"' | '\\') => character,
        _ => 'x',
    }
}

fn number(dice: &mut Dice, risk: bool) -> String {
    match dice.below(if risk { 12 } else { 8 }) {
        0 => dice.pick(NUMBERS).to_owned(),
        1 => dice.below(1000).to_string(),
        2 => format!("-{}", 1 + dice.below(1 << 53) / 2),
        3 => (dice.below(1 << 53)).to_string(),
        // A double holds 15 digits exactly. Numbers that print at most 20 of them are shown.
        4..=6 => {
            let digits = 1 + dice.below(10_usize.pow(15));
            let exponent = i64::try_from(dice.below(600)).unwrap() - 300;
            let exponent = if (0..=7).contains(&exponent) { -exponent } else { exponent };
            spelling(dice, digits, exponent)
        }
        7 => double(dice),
        8 => dice.pick(RISKY_NUMBERS).to_owned(),
        9 => dice.below(usize::MAX).to_string(),
        10 => format!("{}.{}", dice.below(1 << 60), dice.below(usize::MAX)),
        _ => {
            let exponent = i64::try_from(dice.below(720)).unwrap() - 360;
            let digits = dice.below(usize::MAX);
            spelling(dice, digits, exponent)
        }
    }
}

/// Any double, in its shortest notation.
fn double(dice: &mut Dice) -> String {
    let bits = (dice.below(1 << 32) as u64) << 32 | dice.below(1 << 32) as u64;
    let double = f64::from_bits(bits);
    if double.is_finite() { format!("{double:e}") } else { "0.5".to_owned() }
}

/// digits · 10^exponent, with the point anywhere and zeros at the ends.
fn spelling(dice: &mut Dice, digits: usize, exponent: i64) -> String {
    let sign = if digits > 0 && dice.chance(30) { "-" } else { "" };
    let mut digits = digits.to_string();
    let point = dice.below(digits.len() + 1);
    let decimals = i64::try_from(digits.len() - point).unwrap();
    let fraction = digits.split_off(point);
    let whole = if digits.is_empty() { "0" } else { &digits };
    let zeros = "0".repeat(dice.below(4));
    let fraction = match fraction.as_str() {
        "" if zeros.is_empty() => String::new(),
        fraction => format!(".{fraction}{zeros}"),
    };
    let exponent = exponent + decimals;
    let e = dice.pick(&["e", "E"]);
    let plus = if exponent >= 0 { dice.pick(&["", "+"]) } else { "" };
    format!("{sign}{whole}{fraction}{e}{plus}{exponent}")
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
