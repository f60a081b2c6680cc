//! Reads one response of an arm and compares it with the answer, before anything is measured.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bench_work::Answer;
use serde_json::Value;

use crate::Outcome;
use crate::arm::Arm;

/// The size of a response.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    /// The frames, `[DONE]` included.
    pub(crate) frames: usize,
    /// The bytes of the frames.
    pub(crate) bytes: usize,
}

/// Requires that a response holds the text of the answer, in as many deltas, and as many outputs of tools.
///
/// # Errors
/// If it does not. The error names the arm.
pub(crate) fn check(arm: &Arm, address: SocketAddr, path: &str, answer: &Answer) -> Outcome<Size> {
    let body = body(address, path).map_err(|error| format!("{}{path}: {error}", arm.name))?;
    let frames: Vec<&str> = body.split("\n\n").filter(|frame| !frame.is_empty()).collect();
    let (mut text, mut deltas, mut outputs) = (String::new(), 0, 0);
    for data in frames.iter().filter_map(|frame| data_of(frame)) {
        let chunk: Value = serde_json::from_str(data).unwrap_or_default();
        match chunk["type"].as_str() {
            Some("text-delta") => {
                text += chunk["delta"].as_str().unwrap_or_default();
                deltas += 1;
            }
            Some("tool-output-available") => outputs += 1,
            _ => {}
        }
    }
    let expected: String = answer.iter().flat_map(|step| &step.texts).copied().collect();
    let steps = || answer.iter();
    let expected_deltas: usize = steps().map(|step| step.texts.len()).sum();
    let calls: usize = steps().map(|step| step.calls.len()).sum();
    let expected_outputs = if arm.sends_outputs { calls } else { 0 };
    if text != expected {
        return Err(format!("{}{path}: the response holds another text", arm.name).into());
    }
    if (deltas, outputs) != (expected_deltas, expected_outputs) {
        let message = format!(
            "{}{path}: {deltas} text deltas and {outputs} tool outputs in place of {expected_deltas} and {expected_outputs}",
            arm.name
        );
        return Err(message.into());
    }
    Ok(Size { frames: frames.len(), bytes: body.len() })
}

/// Returns the data of a frame. A comment has none.
fn data_of(frame: &str) -> Option<&str> {
    frame.lines().find_map(|line| line.strip_prefix("data: ").or(line.strip_prefix("data:")))
}

/// Returns the body of a response.
fn body(address: SocketAddr, path: &str) -> Outcome<String> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_read_timeout(Some(Duration::from_secs(30)))?;
    let request = r#"{"id":"check","trigger":"submit-message","messages":[{"id":"m1","role":"user","parts":[{"type":"text","text":"Go on"}]}]}"#;
    let length = request.len();
    write!(
        connection,
        "POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{request}"
    )?;
    let mut response = Vec::new();
    connection.read_to_end(&mut response)?;
    let response = String::from_utf8(response)?;
    let (head, body) = response.split_once("\r\n\r\n").ok_or("the response has no end")?;
    if !head.starts_with("HTTP/1.1 200") {
        return Err(format!("{}: {body}", head.lines().next().unwrap_or_default()).into());
    }
    if !head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return Err("the body is not chunked".into());
    }
    joined(body).ok_or_else(|| "the body ends too early".into())
}

/// Joins the pieces of a chunked body.
fn joined(mut body: &str) -> Option<String> {
    let mut joined = String::new();
    loop {
        let (length, rest) = body.split_once("\r\n")?;
        let length = usize::from_str_radix(length, 16).ok()?;
        if length == 0 {
            return Some(joined);
        }
        joined += rest.get(..length)?;
        body = rest.get(length..)?.strip_prefix("\r\n")?;
    }
}
