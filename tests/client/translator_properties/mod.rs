//! The translator's guarantee, tested on random runs: for any events in any order, the real client
//! accepts the output and builds the message that the events describe.
//!
//! The judge is the `ai` package itself, in the versions that `tests/client` pins. The module
//! [`expected`] derives the message from the events and shares no code with the translator. No
//! ending may leave a client, old or new, in a state in which it would send the message back
//! endlessly.
//!
//! `TRANSLATOR_CASES` sets the number of cases (500), `TRANSLATOR_SEED` selects them, and
//! `TRANSLATOR_ONLY` runs only the case of this number. Without Node the test says that it is skipped; with `CI=true`
//! it fails.

mod case;
mod compare;
mod continued;
mod expected;
mod generator;
mod invalid_events;
mod judge;
mod minimise;
mod pools;
mod raw_chunks;
mod result;
mod run;
mod tally;
mod translate;
mod values;
mod wildcard;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::sync::mpsc::sync_channel;
use std::thread;

use test_support::external_processes::node_project;
use test_support::rng::setting;

use crate::random_streams::client::{Client, ask};
use case::Case;
use judge::question;
use tally::Tally;
use translate::translated;

#[test]
fn the_client_builds_the_message_that_the_events_describe() {
    // Without the real client only answers are compared.
    let mut judge = real_client();
    let seed = setting("TRANSLATOR_SEED").unwrap_or(20_260_117);
    let count = setting("TRANSLATOR_CASES").unwrap_or(500);
    let numbers = setting("TRANSLATOR_ONLY").map_or(0..count, |only| only..only + 1);
    let cases = numbers.end - numbers.start;

    let mut tally = Tally::new();
    let mut failing = Failing::default();
    let (sender, receiver) = sync_channel(64);
    thread::scope(|scope| {
        let mut questions = judge.as_mut().map(Client::take_questions);
        scope.spawn(move || {
            for number in numbers {
                let case = generator::case(seed, number);
                let translated = translated(&case);
                if let Some(questions) = &mut questions {
                    ask(questions, &question(&case, &translated));
                }
                if sender.send((number, case, translated)).is_err() {
                    return;
                }
            }
        });
        for (number, case, translated) in receiver {
            translated.kinds.iter().for_each(|kind| tally.chunk(kind));
            translated.fields.iter().for_each(|field| tally.field(field));
            translated.answers.iter().for_each(|answer| tally.answer(answer));
            let answer = judge.as_mut().map(Client::answer);
            for fault in result::faults(&case, &translated, answer.as_ref()) {
                failing.note(number, &case, fault.what);
            }
        }
    });

    let judged = if judge.is_some() { "judged by the real client" } else { "translated" };
    print_uncaptured(&format!("{cases} cases were {judged} (TRANSLATOR_SEED={seed})"));
    tally.print();
    failing.report(seed);
    if cases >= 20_000 {
        let rare = tally.below(100);
        assert!(rare.is_empty(), "occurred less than 100 times: {rare:?}");
    }
}

/// Starts the real client, in several versions, if it is installed. With `CI=true` it has to be.
fn real_client() -> Option<Client> {
    Some(Client::start(&node_project("tests/client")?, "judge.mjs"))
}

/// The failed cases, by fault.
#[derive(Default)]
struct Failing {
    by_fault: BTreeMap<String, Vec<(u64, Case)>>,
}

impl Failing {
    fn note(&mut self, number: u64, case: &Case, fault: String) {
        let cases = self.by_fault.entry(fault).or_default();
        if cases.last().is_none_or(|(last, _)| *last != number) {
            cases.push((number, case.clone()));
        }
    }

    /// Panics with the failures, each with its smallest case.
    fn report(self, seed: u64) {
        if self.by_fault.is_empty() {
            return;
        }
        let mut shown = BTreeSet::new();
        for (fault, cases) in &self.by_fault {
            println!("\n{} cases: {fault}", cases.len());
            // The shortest case is the easiest to read.
            let Some((number, case)) = cases.iter().min_by_key(|(_, case)| case.events.len())
            else {
                continue;
            };
            println!("TRANSLATOR_SEED={seed} TRANSLATOR_ONLY={number}");
            if shown.len() < SHOWN && shown.insert(*number) {
                show(case, fault);
            }
        }
        panic!("{} kinds of faults, see above (TRANSLATOR_SEED={seed})", self.by_fault.len());
    }
}

/// The number of failing cases that are printed completely. One cause often shows in several ways.
const SHOWN: usize = 10;

/// Prints a minimised failing case.
fn show(case: &Case, fault: &str) {
    let mut judge = real_client();
    let mut faults = |case: &Case| {
        let translated = translated(case);
        let answer = judge.as_mut().map(|judge| judge.ask(&question(case, &translated)));
        result::faults(case, &translated, answer.as_ref())
    };
    let smallest =
        minimise::minimised(case, &mut |case| faults(case).iter().any(|other| other.what == fault));
    println!("{:#}", smallest.to_json());
    println!("goes out as\n{}", translated(&smallest).sse.replace("\n\n", "\n"));
    // A result that is the same for every client is printed once.
    let mut printed = BTreeSet::new();
    for fault in faults(&smallest) {
        if printed.insert(fault.what.clone()) {
            println!("{}: {}", fault.what, fault.detail);
        }
    }
}

/// Prints a line that the test harness does not capture.
fn print_uncaptured(what: &str) {
    // A failure to print cannot be reported.
    let _ = writeln!(std::io::stderr(), "translator: {what}");
}
