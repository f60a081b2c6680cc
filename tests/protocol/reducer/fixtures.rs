//! The recordings of the real client in `fixtures/upstream/`.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use test_support::js_numbers::as_doubles;
use ui_message_stream::chunk::{ChunkReader, ReceivedChunk};
use ui_message_stream::message::Role;
use ui_message_stream::reducer::{
    AfterError, PartialJson, ReduceError, Reducer, ResetOn, ResponseReader,
};
use ui_message_stream::{AgentEvent, Translator, UiMessage};

#[test]
fn every_recorded_stream_gives_the_message_that_the_client_held() {
    let mut streams = files("streams");
    streams.sort();
    assert!(streams.len() >= 60);
    for path in streams {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let expected: Value = read_json(&upstream().join(format!("expected/{name}.json")));
        let (message, errors) = reduce(&path);
        assert_eq!(message, expected["message"], "{name}");
        let recorded: Vec<Value> = expected["errors"].as_array().unwrap().clone();
        assert_eq!(errors, recorded.iter().map(without_wording).collect::<Vec<_>>(), "{name}");
    }
}

#[test]
fn where_client_versions_differ_the_reducer_follows_the_newest() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("docs/client-versions.md")).unwrap();
    let mut streams = files("older-clients");
    streams.retain(|path| path.extension().is_some_and(|extension| extension == "jsonl"));
    assert!(streams.len() >= 11);
    for path in streams {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let recorded = read_json(&path.with_extension("expected.json"));
        let (shown, errors) = reduce(&path);
        let newest = &recorded["6.0.326"];
        assert_eq!(errors.len(), usize::from(!newest["refused"].is_null()), "{name}");
        assert_eq!(shown, newest["message"], "{name}");
        assert!(table.contains(&format!("`{name}`")), "{name} is not in docs/client-versions.md");
    }
}

#[test]
fn every_recorded_partial_tool_input_is_repaired_as_by_the_client() {
    let text = fs::read_to_string(upstream().join("partial-json.jsonl")).unwrap();
    assert!(text.lines().count() > 40);
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let read = PartialJson::from(case["text"].as_str().unwrap()).read();
        let read: Option<Value> = read.map(|json| as_doubles(json.decode().unwrap()));
        let value = case.get("value").map(|value| as_doubles(value.clone()));
        assert_eq!(read, value, "{}", case["text"]);
    }
}

#[test]
fn a_character_that_is_split_over_two_deltas_is_read_as_by_the_client() {
    let text = fs::read_to_string(upstream().join("split-pairs.jsonl")).unwrap();
    assert!(text.lines().count() >= 10);
    for line in text.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let chunks = || case["chunks"].as_array().unwrap().iter().map(|it| it.as_str().unwrap());
        let (mut reader, mut reducer) = (ChunkReader::default(), Reducer::new());
        for chunk in chunks() {
            reducer.push(&reader.read(chunk).unwrap()).unwrap();
        }
        let message = serde_json::to_value(reducer.message()).unwrap();
        assert_eq!(message, case["message"], "{}", case["note"]);

        // A client in Rust, whose connection is lost after each frame.
        let question = UiMessage::new("m", Role::User, Vec::new());
        let mut response = ResponseReader::continuing(question);
        for (number, chunk) in chunks().enumerate() {
            response.connect().unwrap();
            response.push(format!("id: {number}\ndata: {chunk}\n\n").as_bytes()).unwrap();
        }
        let message = serde_json::to_value(response.into_message()).unwrap();
        assert_eq!(message, case["message"], "{}", case["note"]);

        // An agent that passes on the stream.
        let (mut translator, mut stored) = (Translator::new("msg-1"), Reducer::new());
        let mut reader = ChunkReader::default();
        for chunk in chunks() {
            let ReceivedChunk::Known { chunk, .. } = reader.read(chunk).unwrap() else {
                panic!("{chunk}")
            };
            let event = AgentEvent::Chunk(Box::new(chunk.into_owned()));
            translator
                .handle_event(&event, &mut |chunk| stored.push_chunk(&chunk).unwrap())
                .unwrap();
        }
        let message = serde_json::to_value(stored.message()).unwrap().to_string();
        assert!(!message.contains('\u{FFFD}'), "{}: {message}", case["note"]);
        assert!(message.contains('😀'), "{}: {message}", case["note"]);
    }
}

/// The final message, and the errors without their texts.
fn reduce(path: &Path) -> (Value, Vec<Value>) {
    let mut reducer = Reducer::new();
    let mut errors = Vec::new();
    for line in fs::read_to_string(path).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if let Some(message) = line.get("message") {
            reducer = Reducer::continuing(UiMessage::parse(&message.to_string()).unwrap());
        }
        reducer = reducer.with_reset_on(ResetOn::OtherId).with_after_error(AfterError::Continue);
        let Some(chunk) = line.get("chunk").map(Value::to_string) else { continue };
        let received = match ReceivedChunk::parse(&chunk) {
            Ok(received) => received,
            Err(_) => {
                errors.push(json!({ "name": "AI_TypeValidationError" }));
                break;
            }
        };
        if chunk.contains(r#""type":"error""#) {
            errors.push(json!({ "name": "Error" }));
        }
        if let Err(error) = reducer.push(&received) {
            errors.push(thrown(&error));
            break;
        }
    }
    let shown = reducer.rendered().map(|message| serde_json::to_value(&message).unwrap());
    (shown.unwrap_or_default(), errors)
}

/// The error as the client reports it.
fn thrown(error: &ReduceError) -> Value {
    let kind = match error {
        ReduceError::UnknownKind { .. } => return json!({ "name": "AI_TypeValidationError" }),
        ReduceError::UnknownToolCall { .. } => Some("tool-invocation"),
        other => other.kind(),
    };
    json!({ "name": "AI_UIMessageStreamError", "chunkType": kind, "chunkId": error.id() })
}

fn without_wording(error: &Value) -> Value {
    let mut error = error.clone();
    error.as_object_mut().unwrap().remove("message");
    error
}

fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(upstream().join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn upstream() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/upstream")
}
