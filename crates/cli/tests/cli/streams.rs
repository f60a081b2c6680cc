//! The recordings of the real client, as files for the program.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use test_support::fixture_files::fixture_files;

use crate::program::{scratch, text};

/// A recorded stream, and the result of the client.
pub(crate) struct Stream {
    pub(crate) name: String,
    /// A file of JSON lines, with the message that the stream continues.
    pub(crate) path: PathBuf,
    pub(crate) chunks: Vec<String>,
    /// A file with the message that the stream continues.
    message: Option<PathBuf>,
    /// The final message of the client, or null.
    pub(crate) final_message: Value,
    /// The error that the client threw.
    pub(crate) thrown: Option<Value>,
}

impl Stream {
    /// Returns the stream as the body of a response with these line ends.
    pub(crate) fn as_events(&self, end: &str) -> String {
        let chunks = self.chunks.iter().map(String::as_str).chain(["[DONE]"]);
        format!(": a comment{end}{end}")
            + &chunks.map(|chunk| format!("data: {chunk}{end}{end}")).collect::<String>()
    }

    /// Returns the chunks, one per line.
    pub(crate) fn as_lines(&self) -> String {
        self.chunks.iter().map(|chunk| format!("{chunk}\n")).collect()
    }

    /// Returns the arguments of a command that reads the stream from standard input.
    pub(crate) fn command<'a>(&'a self, command: &'a str) -> Vec<&'a str> {
        let message = self.message.iter().flat_map(|path| ["--message", text(path)]);
        [command, "--reader", "read-ui-message-stream"].into_iter().chain(message).collect()
    }

    /// Whether the stream continues a message.
    pub(crate) fn has_message(&self) -> bool {
        self.message.is_some()
    }
}

pub(crate) fn streams(scratch_name: &str) -> Vec<Stream> {
    let folder = scratch(scratch_name);
    let streams: Vec<_> = fixture_files("upstream/streams", ".jsonl")
        .into_iter()
        .map(|path| stream(path, &folder))
        .collect();
    assert!(streams.len() >= 60);
    streams
}

fn stream(path: PathBuf, folder: &Path) -> Stream {
    let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
    let mut chunks = Vec::new();
    let (mut message, mut held) = (None, Value::Null);
    for line in fs::read_to_string(&path).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if let Some(continued) = line.get("message") {
            let file = folder.join(format!("{name}.json"));
            fs::write(&file, continued.to_string()).unwrap();
            message = Some(file);
            held = continued.clone();
        }
        chunks.extend(line.get("chunk").map(Value::to_string));
    }
    let expected = path.with_file_name("../expected").join(format!("{name}.json"));
    let mut expected: Value = serde_json::from_str(&fs::read_to_string(expected).unwrap()).unwrap();
    let errors = expected["errors"].as_array().unwrap();
    // The client reports an `error` chunk to the application, and throws nothing.
    let thrown = errors.iter().find(|error| error["name"] != "Error").cloned();
    let rendered = expected["message"].take();
    // If the stream changes nothing, the client still holds the message.
    let final_message = if rendered.is_null() { held } else { rendered };
    Stream { name, path, chunks, message, final_message, thrown }
}

/// A recorded response, and the chunks that the client read from it.
pub(crate) struct Response {
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The chunks that were read, one per line.
    pub(crate) chunks: String,
    /// Whether the client ended with an error.
    pub(crate) fails: bool,
}

pub(crate) fn responses() -> Vec<Response> {
    fixture_files("upstream/sse", ".txt").into_iter().map(response).collect()
}

fn response(path: PathBuf) -> Response {
    let expected = fs::read_to_string(path.with_extension("expected.json")).unwrap();
    // The program reads half of a surrogate pair as U+FFFD.
    let expected = expected.replace("\\ud800", "\\ufffd");
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let chunks = expected["chunks"].as_array().unwrap();
    Response {
        name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
        chunks: chunks.iter().map(|chunk| format!("{chunk}\n")).collect(),
        fails: !expected["error"].is_null(),
        path,
    }
}
