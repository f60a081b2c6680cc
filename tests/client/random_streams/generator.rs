//! Random cases: most chunks fit the chunks before them, some do not, and some are broken.

use test_support::random_messages::fields::{Fields, break_something};
use test_support::random_messages::message::message;
use test_support::random_messages::values::{INPUT_PIECES, RandomValues};
use test_support::rng::Dice;
use ui_message_stream::chunk::Version;

use super::case::{Case, NEWEST_V6, NEWEST_V7};
use super::stream::Stream;

/// The case of this number, for the newest `ai@6`.
pub(crate) fn case(seed: u64, number: u64) -> Case {
    case_for(NEWEST_V6.1, seed, number)
}

/// The case of this number for a client. For one of `ai@7`, it has the kinds that no `ai@6` knows.
pub(crate) fn case_for(client: Version, seed: u64, number: u64) -> Case {
    let mut dice = Dice::new(seed, number);
    let message = dice.chance(35).then(|| message(&mut dice)).flatten();
    let mut stream = Stream::new(dice, message.as_deref(), client == NEWEST_V7.1);
    let most = if stream.dice.chance(20) { 60 } else { 20 };
    let length = 1 + stream.dice.below(most);
    let mut chunks: Vec<Fields> = (0..length).map(|_| stream.chunk()).collect();
    let mut dice = stream.dice;
    if dice.chance(25) {
        for _ in 0..=dice.below(2) {
            break_something(&mut dice, &mut chunks);
        }
    }
    let reads_on = dice.chance(50);
    Case { message, chunks: chunks.iter().map(Fields::to_text).collect(), reads_on, client }
}

/// The JSON document of this number, with any white space, and sometimes invalid.
pub(crate) fn document(seed: u64, number: u64) -> String {
    let mut dice = Dice::new(seed, number);
    let mut text = String::new();
    for word in 0..=dice.below(3) {
        if word > 0 {
            text.push_str(if dice.chance(90) { "," } else { dice.pick(INPUT_PIECES) });
        }
        let length = dice.below(3);
        let key = dice.escaped(length);
        let value = match dice.below(5) {
            0 => dice.escaped(3),
            1 => dice.object(),
            _ => dice.json(),
        };
        let space = dice.pick(&["", "", " ", "\n\t", "  "]);
        text.push_str(&format!("{space}{key}{space}:{space}{value}{space}"));
    }
    match dice.below(10) {
        0 => format!("[{}]", dice.json()),
        1 => dice.json(),
        3 => (0..12).map(|_| dice.pick(INPUT_PIECES)).collect(),
        2 => format!("[{{{text}}},{{{text}}}]"),
        _ => format!("{{{text}}}"),
    }
}
