//! The wire: chunks and messages are read, refused and written as the real schema does.

use std::fs;
use std::path::Path;

use serde_json::Value;
use ui_message_stream::chunk::Received;

/// The lines of a fixture as `(note, the value under key)`.
fn noted(name: &str, key: &str) -> Vec<(String, Value)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/upstream").join(name);
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    text.lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| {
            let mut line: Value = serde_json::from_str(line).unwrap();
            (line["note"].as_str().unwrap_or_default().to_owned(), line[key].take())
        })
        .collect()
}

#[test]
fn a_chunk_that_the_client_accepts_is_read_and_written_back_whole() {
    let cases = noted("chunks.valid.jsonl", "chunk");
    assert!(cases.len() > 80);
    for (note, chunk) in cases {
        let text = chunk.to_string();
        let received = Received::parse(&text).unwrap_or_else(|e| panic!("{note}: {e}"));
        assert!(matches!(received, Received::Known { .. }), "{note}");
        assert_eq!(serde_json::to_value(&received).unwrap(), chunk, "{note}");
    }
}

#[test]
fn a_chunk_that_the_client_refuses_is_refused_or_of_an_unknown_kind() {
    let cases = noted("chunks.invalid.jsonl", "chunk");
    assert!(cases.len() > 100);
    for (note, chunk) in cases {
        let text = chunk.to_string();
        let received = Received::parse(&text);
        assert!(!matches!(received, Ok(Received::Known { .. })), "{note}: {received:?}");
    }
}
