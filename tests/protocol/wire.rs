//! The wire format: chunks and messages are read, rejected and written as by the real schema.

use std::fs;
use std::path::Path;

use serde_json::Value;
use test_support::fixture_files::fixture_files;
use test_support::js_numbers::as_doubles;
use ui_message_stream::chunk::{ReceivedChunk, Version};
use ui_message_stream::sse::Decoder;

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
fn a_chunk_that_the_client_accepts_is_read_and_written_back_unchanged() {
    let cases = noted("chunks.valid.jsonl", "chunk");
    assert!(cases.len() > 80);
    for (note, chunk) in cases {
        let text = chunk.to_string();
        let received = ReceivedChunk::parse(&text).unwrap_or_else(|e| panic!("{note}: {e}"));
        assert!(matches!(received, ReceivedChunk::Known { .. }), "{note}");
        assert_eq!(serde_json::to_value(&received).unwrap(), chunk, "{note}");
    }
}

/// The client that has recorded what it rejects.
const NEWEST_V6: Version = Version::V6Patch(326);

#[test]
fn a_chunk_that_the_client_rejects_is_rejected_or_of_an_unknown_kind() {
    let cases = noted("chunks.invalid.jsonl", "chunk");
    assert!(cases.len() > 100);
    for (note, chunk) in cases {
        let text = chunk.to_string();
        let received = ReceivedChunk::parse(&text);
        let is_accepted = matches!(&received, Ok(ReceivedChunk::Known { chunk, .. })
            if chunk.is_kind_known_to(NEWEST_V6) && chunk.clone().for_version(NEWEST_V6) == *chunk);
        assert!(!is_accepted, "{note}: {received:?}");
    }
}

#[test]
fn every_chunk_of_the_recorded_streams_is_read_and_written_back_unchanged() {
    let mut chunks = 0;
    for path in fixture_files("upstream/streams", ".jsonl") {
        for line in fs::read_to_string(&path).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            let Some(chunk) = line.get("chunk") else { continue };
            let name = path.file_stem().unwrap().to_str().unwrap();
            match ReceivedChunk::parse(&chunk.to_string()) {
                Ok(ReceivedChunk::Known { chunk: read, extra }) => {
                    let written = ReceivedChunk::Known { chunk: read, extra };
                    assert_eq!(serde_json::to_value(&written).unwrap(), *chunk, "{name}");
                }
                refused => {
                    let by_the_client = ["fail-null-optional-field", "fail-unknown-chunk-type"];
                    assert!(by_the_client.contains(&name), "{name}: {refused:?}");
                }
            }
            chunks += 1;
        }
    }
    assert!(chunks > 300, "{chunks}");
}

#[test]
fn a_body_is_decoded_to_the_same_chunks_as_by_the_client() {
    for path in fixture_files("upstream/sse", ".txt") {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut decoder = Decoder::default();
        decoder.push(&fs::read(&path).unwrap());
        let mut chunks = Vec::new();
        let mut failed = false;
        while let Some(event) = decoder.poll() {
            if event.data == "[DONE]" {
                continue;
            }
            match ReceivedChunk::parse(&event.data) {
                Ok(received @ ReceivedChunk::Known { .. }) => {
                    let written = serde_json::to_string(&received).unwrap();
                    chunks.push(as_doubles(
                        serde_json::from_str(&without_unpaired_surrogates(&written)).unwrap(),
                    ));
                }
                _ => {
                    failed = true;
                    break;
                }
            }
        }
        let expected = fs::read_to_string(path.with_extension("expected.json")).unwrap();
        let expected: Value =
            serde_json::from_str(&without_unpaired_surrogates(&expected)).unwrap();
        assert_eq!(failed, !expected["error"].is_null(), "{name}");
        assert_eq!(Value::Array(chunks), as_doubles(expected["chunks"].clone()), "{name}");
    }
}

/// A `Value` cannot hold an unpaired surrogate, so for comparison it is a replacement character.
fn without_unpaired_surrogates(text: &str) -> String {
    text.replace("\\ud800", "\u{FFFD}")
}
