//! The translator, case by case: the chunks of each event.
//!
//! A fixture in `fixtures/chunks/` holds, line by line, an event and then its chunks (or its
//! error). `RECORD=1 cargo test --test protocol translator` writes the chunk lines again; review
//! the difference before you commit it. `tests/client/recordings.rs` tests that the real client
//! accepts them all.

use std::fmt::Write as _;
use std::fs;

use serde_json::{Value, json};
use test_support::fixture_files::fixture_files;
use ui_message_stream::chunk::Version;
use ui_message_stream::{AgentEvent, Chunk, Translator, UiMessage};

#[test]
fn every_event_gives_the_chunks_of_its_fixture() {
    let record = std::env::var_os("RECORD").is_some();
    let mut wrong = Vec::new();
    let fixtures = fixture_files("chunks", ".jsonl");
    assert!(fixtures.len() > 30);
    for path in fixtures {
        let recorded = fs::read_to_string(&path).unwrap();
        let translated = translate_fixture(&recorded);
        if record {
            fs::write(&path, translated).unwrap();
        } else if recorded != translated {
            wrong.push(format!("{}:\n{translated}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// The events of the fixture, with their current chunks.
fn translate_fixture(recorded: &str) -> String {
    let lines: Vec<&str> = recorded.lines().collect();
    let mut translated = String::new();
    let mut version = Version::V6;
    let mut approvals = true;
    let mut continues = None;
    let mut events = Vec::new();
    let mut ends = false;
    for line in lines {
        let parsed: Value = serde_json::from_str(line).unwrap();
        if let Some(options) = parsed.get("options") {
            version = match options["version"].as_str() {
                Some("v5") => Version::V5,
                Some("v6.0.326") => Version::V6Patch(326),
                None => Version::V6,
                Some(other) => panic!("no such version: {other}"),
            };
            approvals = options["approvals"].as_bool().unwrap_or(true);
        } else if let Some(message) = parsed.get("continues") {
            continues = Some(UiMessage::parse(&message.to_string()).unwrap());
        } else if let Some(event) = parsed.get("event") {
            let event: AgentEvent = serde_json::from_str(&event.to_string()).unwrap();
            events.push((line, event));
            continue;
        } else if parsed.get("end").is_some() {
            ends = true;
            continue;
        } else {
            continue;
        }
        writeln!(translated, "{line}").unwrap();
    }
    let mut translator = match &continues {
        Some(message) => Translator::continuing(message),
        None => Translator::new("msg_1"),
    }
    .with_version(version);
    if !approvals {
        translator = translator.without_approvals();
    }
    for (line, event) in &events {
        writeln!(translated, "{line}").unwrap();
        let result =
            translator.handle_event(event, &mut |chunk| write_chunk(&mut translated, &chunk));
        if let Err(error) = result {
            writeln!(translated, "{}", json!({ "error": error.to_string() })).unwrap();
        }
    }
    if ends {
        writeln!(translated, "{}", json!({ "end": true })).unwrap();
    }
    let before = translated.len();
    translator.finish(&mut |chunk| write_chunk(&mut translated, &chunk));
    assert!(
        ends || translated.len() == before,
        "the fixture's events do not end it:\n{translated}"
    );
    translated
}

fn write_chunk(lines: &mut String, chunk: &Chunk<'_>) {
    writeln!(lines, r#"{{"chunk":{}}}"#, serde_json::to_string(chunk).unwrap()).unwrap();
}
