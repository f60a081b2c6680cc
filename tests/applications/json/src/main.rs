//! What core does with JSON, in the state of `serde_json` that the features of this program select. `.ci/json-states`
//! compares the states.
//!
//! An input is a file of `fixtures/` and `fuzz/corpus/`, with each line, event, value and string of JSON in it, or a
//! random value in many places. One line is written for each input: its name and a digest of all results. `--only NAME`
//! writes the results of one input.

mod places;
mod random;
mod results;

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

use random::Dice;
use results::Results;

const RANDOM_INPUTS: u64 = 3_000;

fn main() -> ExitCode {
    check_state();
    let mut arguments = std::env::args().skip_while(|argument| argument != "--only").skip(1);
    let only = arguments.next();
    let is_asked = |name: &str| only.as_deref().is_none_or(|only| only == name);
    let mut is_failed = false;
    let mut report = |name: &str, results: Results| {
        match only {
            Some(_) => println!("{}", results.text),
            None => println!("{name} {:016x}", digest(&results.text)),
        }
        for fault in &results.faults {
            eprintln!("{name}: {fault}");
            is_failed = true;
        }
    };

    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let mut files = Vec::new();
    for folder in ["fixtures", "fuzz/corpus"] {
        let before = files.len();
        add_files(&root.join(folder), &mut files);
        assert!(files.len() > before + 500, "{folder} has its files");
    }
    files.sort();
    for path in files {
        let name = path.strip_prefix(&root).expect("a file below the root").display().to_string();
        if is_asked(&name) {
            report(&name, Results::of_file(&fs::read(&path).expect("a file")));
        }
    }
    for number in 0..RANDOM_INPUTS {
        let name = format!("random-{number}");
        if is_asked(&name) {
            report(&name, Results::of_value(&Dice::new(number).value(4)));
        }
    }
    if is_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Checks that `serde_json` is in the state that the features name: another dependency could turn one of them on.
fn check_state() {
    let value: Value = serde_json::from_str(r#"{"b":1.00,"a":1}"#).expect("JSON");
    let (one, keys) = (value["b"].to_string(), value.as_object().expect("an object").keys());
    assert_eq!(one == "1.00", cfg!(feature = "arbitrary-precision"), "{one}");
    assert_eq!(keys.eq(["b", "a"]), cfg!(feature = "preserve-order"));
}

fn add_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() { add_files(&path, files) } else { files.push(path) }
    }
}

fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}
