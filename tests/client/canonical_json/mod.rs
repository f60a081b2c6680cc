//! The canonical form of tool inputs against JavaScript, on random inputs: the same text, and the
//! same decision whether a browser shows an input as it is.
//!
//! `CANONICAL_CASES` sets the number of inputs (1 000), `CANONICAL_SEED` selects them, and
//! `CANONICAL_ONLY` runs only the input of this number. Without Node the test says that it is
//! skipped; with `CI=true` it fails. No feature of `serde_json` may change a result: `.ci/json-states`
//! compares the canonical forms with and without the features that change how numbers and keys are
//! stored.

mod inputs;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::json;
use test_support::external_processes::{node_project, say};
use test_support::rng::setting;
use ui_message_stream::Json;
use ui_message_stream::approval::{CanonicalJson, InexactInputError};

use inputs::random_input;

#[test]
fn the_canonical_form_equals_the_one_that_javascript_writes() {
    let Some(folder) = node_project("tests/client") else { return };
    let seed = setting("CANONICAL_SEED").unwrap_or(20_260_201);
    let count = setting("CANONICAL_CASES").unwrap_or(1_000);
    let numbers = setting("CANONICAL_ONLY").map_or(0..count, |only| only..only + 1);

    let mut tally = Tally::default();
    let mut faults = Vec::new();
    ask_javascript(&folder, seed, numbers, |number, input, answer| {
        if let Err(fault) = tally.compare(input, answer) {
            faults.push(format!("CANONICAL_ONLY={number}: {fault}\n{input:?}\n{answer:#?}"));
        }
    });
    say(&format!("canonical form: {} (CANONICAL_SEED={seed})", tally.summary()));
    if let Some(smallest) = faults.iter().min_by_key(|fault| fault.len()) {
        panic!("{} faults, CANONICAL_SEED={seed} {smallest}", faults.len());
    }
    // Both sides could reject every input of a bad generator.
    assert!(tally.inputs < 100 || tally.shown > tally.inputs / 2);
}

/// The answer of JavaScript.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    /// `None` if a browser does not show the input as it is.
    canonical_input: Option<String>,
}

fn ask_javascript(
    folder: &Path,
    seed: u64,
    numbers: std::ops::Range<u64>,
    mut compare: impl FnMut(u64, &str, &Answer),
) {
    let mut node = Command::new("node")
        .arg("canonicalize.mjs")
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut questions = node.stdin.take().unwrap();
    let mut answers = BufReader::new(node.stdout.take().unwrap()).lines();
    std::thread::scope(|scope| {
        let question_numbers = numbers.clone();
        scope.spawn(move || {
            for number in question_numbers {
                let question = json!({"inputText": random_input(seed, number)});
                // If Node has stopped, the reader below reports it.
                let _ = writeln!(questions, "{question}");
            }
        });
        for number in numbers {
            let line = answers.next().expect("Node has stopped").unwrap();
            compare(number, &random_input(seed, number), &serde_json::from_str(&line).unwrap());
        }
    });
    assert!(node.wait().unwrap().success());
}

/// The number of inputs of each kind.
#[derive(Default)]
struct Tally {
    inputs: u64,
    shown: u64,
    /// By the error.
    rejected: BTreeMap<String, u64>,
}

impl Tally {
    fn compare(&mut self, input: &str, answer: &Answer) -> Result<(), String> {
        self.inputs += 1;
        let parsed = Json::parse(input).map_err(InexactInputError::from);
        match parsed.and_then(|input| CanonicalJson::new(&input)) {
            Ok(form) => {
                self.shown += 1;
                match answer.canonical_input.as_deref() {
                    None => Err("accepted, but a browser shows something else".to_owned()),
                    Some(expected) if expected == form.as_str() => Ok(()),
                    Some(_) => Err(format!("another canonical form: {form:?}")),
                }
            }
            Err(error) => {
                *self.rejected.entry(error.to_string()).or_default() += 1;
                match answer.canonical_input.is_some() {
                    true => Err(format!("rejected, but a browser shows it as it is: {error}")),
                    false => Ok(()),
                }
            }
        }
    }

    fn summary(&self) -> String {
        let Tally { inputs, shown, rejected } = self;
        let rejected: Vec<_> = rejected.iter().map(|(why, n)| format!("{n} × {why}")).collect();
        format!("{inputs} inputs, {shown} shown as they are, rejected: {}", rejected.join(", "))
    }
}
