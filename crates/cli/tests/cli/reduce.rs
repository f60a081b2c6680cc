use std::fs;

use serde_json::{Value, json};
use test_support::js_numbers::as_doubles;

use crate::program::{RunResult, run, run_with, scratch, text};
use crate::streams::{Stream, responses, streams};

#[test]
fn every_recorded_stream_is_reduced_to_the_message_of_the_client() {
    let streams = streams("reduce");
    assert!(streams.iter().any(|stream| stream.thrown.is_some()));
    for stream in &streams {
        let lines = run(&["reduce", text(&stream.path)]);
        // The message that is continued is on a separate line before the chunks.
        let before = usize::from(stream.has_message());
        let thrown_at =
            check_against_client(stream, &lines, &stream.name, |line| line - 1 - before);
        let arguments = stream.command("reduce");
        // A comment and a blank line come before the first event; an event takes two lines.
        let of_event = |line| {
            assert_eq!(line % 2, 1, "{}", stream.name);
            (line - 3) / 2
        };
        let forms: [(_, _, &dyn Fn(usize) -> usize); 3] = [
            ("lines", stream.as_lines(), &|line| line - 1),
            ("events", stream.as_events("\n"), &of_event),
            ("events, CRLF", stream.as_events("\r\n"), &of_event),
        ];
        for (form, input, index_of) in forms {
            let other_form = run_with(&arguments, &input);
            let case = format!("{} as {form}", stream.name);
            assert_eq!(
                check_against_client(stream, &other_form, &case, index_of),
                thrown_at,
                "{case}"
            );
            assert_eq!(message(&other_form), message(&lines), "{case}");
        }
    }
}

/// Checks that the message is the one of the client, and that the chunk at which the client threw
/// is named. Returns the index of that chunk. `index_of` converts its line to the index.
fn check_against_client(
    stream: &Stream,
    result: &RunResult,
    case: &str,
    index_of: impl Fn(usize) -> usize,
) -> Option<usize> {
    assert_eq!(as_doubles(message(result)), as_doubles(stream.final_message.clone()), "{case}");
    let Some(thrown) = &stream.thrown else {
        assert_eq!((result.code, result.err.as_str()), (0, ""), "{case}");
        return None;
    };
    assert_eq!(result.code, 1, "{case}");
    assert_eq!(result.err.lines().count(), 1, "{case}: {}", result.err);
    let start = result.err.find(r#"{"#).unwrap_or_else(|| panic!("{case}: {}", result.err));
    let chunk: Value = serde_json::from_str(result.err[start..].trim()).unwrap();
    let index = index_of(line_of(&result.err));
    assert_eq!(stream.chunks[index], chunk.to_string(), "{case}");
    if let Some(kind) = thrown.get("chunkType") {
        // The client uses this type for every chunk that refers to an unknown call.
        if kind != "tool-invocation" {
            assert_eq!(chunk["type"], *kind, "{case}");
        }
        let id = chunk.get("id").or(chunk.get("toolCallId")).unwrap();
        assert_eq!(*id, thrown["chunkId"], "{case}");
    }
    Some(index)
}

#[test]
fn the_line_number_of_an_error_starts_at_one() {
    let stream = "{\"type\":\"start\"}\n\n{\"type\":\"text-delta\",\"id\":\"0\",\"delta\":\"x\"}\n";
    let result = run_with(&["reduce", "-"], stream);
    assert_eq!(result.code, 1);
    assert_eq!(
        result.err,
        "line 3: `text-delta` names part \"0\", which is not open: \
         {\"type\":\"text-delta\",\"id\":\"0\",\"delta\":\"x\"}\n"
    );
}

#[test]
fn every_recorded_response_is_reduced_like_the_chunks_that_the_client_read() {
    for response in responses() {
        let name = &response.name;
        let body = fs::read_to_string(&response.path).unwrap();
        let from_file = run(&["reduce", text(&response.path)]);
        assert_eq!(run_with(&["reduce"], &body), from_file, "{name}");
        assert_eq!(from_file.code, i32::from(response.fails), "{name}: {}", from_file.err);
        assert_eq!(from_file.err.is_empty(), !response.fails, "{name}");
        let chunks = run_with(&["reduce"], &response.chunks);
        assert_eq!(chunks.code, 0, "{name}: {}", chunks.err);
        assert_eq!(as_doubles(message(&from_file)), as_doubles(message(&chunks)), "{name}");
    }
}

#[test]
fn the_reader_decides_the_effect_of_a_second_start_and_of_an_error() {
    let stream = [
        json!({"type": "start", "messageId": "a"}),
        json!({"type": "data-x", "data": 1}),
        json!({"type": "start", "messageId": "b"}),
        json!({"type": "error", "errorText": "no"}),
        json!({"type": "data-y", "data": 2}),
    ];
    let stream: String = stream.iter().map(|chunk| format!("{chunk}\n")).collect();
    let parts = |reader: &[&str]| {
        let result = run_with(&[&["reduce"], reader].concat(), &stream);
        let message = message(&result);
        assert_eq!((result.code, &message["id"]), (0, &json!("b")), "{reader:?}");
        let types = message["parts"].as_array().unwrap().iter().map(|part| part["type"].clone());
        types.collect::<Value>()
    };
    assert_eq!(parts(&[]), json!(["data-y"]));
    assert_eq!(parts(&["--reader", "read-ui-message-stream"]), json!(["data-y"]));
    assert_eq!(parts(&["--reader", "chat"]), json!(["data-x"]));
}

#[test]
fn a_resumed_chat_continues_a_message_only_if_its_tool_input_is_incomplete() {
    let part =
        |state: &str| json!({"type": "tool-t", "toolCallId": "c", "state": state, "input": {}});
    for (state, parts_after_resume) in [("input-streaming", 2), ("input-available", 1)] {
        let message = json!({"id": "m", "role": "assistant", "parts": [part(state)]});
        let chunk = json!({"type": "data-x", "data": 1});
        let stream = format!("{}\n{chunk}\n", json!({ "message": message }));
        let parts = |reader: &str| {
            let result = run_with(&["reduce", "--reader", reader], &stream);
            assert_eq!(result.code, 0, "{}", result.err);
            self::message(&result)["parts"].as_array().unwrap().len()
        };
        assert_eq!((parts("chat-resume"), parts("chat")), (parts_after_resume, 2), "{state}");
    }
}

#[test]
fn an_error_in_one_response_does_not_hide_the_next_response() {
    let request = json!({"request": {"id": "chat", "trigger": "submit-message", "messages": []}});
    let start = |id: &str| json!({"chunk": {"type": "start", "messageId": id}});
    let bad = json!({"chunk": {"type": "text-end", "id": "0"}});
    for bad in [bad.to_string(), "not json".to_owned()] {
        let first = format!("{request}\n{}\n{bad}\n", start("a"));
        let result = run_with(&["reduce"], &format!("{first}{request}\n{}\n", start("b")));
        assert_eq!((result.code, &message(&result)["id"]), (1, &json!("b")));
        assert!(result.err.starts_with("line 3: "), "{}", result.err);
        let twice = run_with(&["reduce"], &first.repeat(2));
        assert_eq!((twice.code, twice.err.lines().count()), (1, 2), "{}", twice.err);
    }
}

#[test]
fn a_stream_that_changes_nothing_is_reduced_to_the_message_that_the_client_holds() {
    let message =
        json!({"id": "m", "role": "assistant", "parts": [{"type": "text", "text": "Hi"}]});
    let path = scratch("reduce_unchanged").join("message.json");
    fs::write(&path, message.to_string()).unwrap();
    let request = json!({"request": {"id": "chat", "messages": [
        {"id": "u", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}, message,
    ]}});
    for (arguments, stream) in [
        (&["reduce", "--message", text(&path)][..], String::new()),
        (&["reduce", "--message", text(&path)], "data: [DONE]\n\n".to_owned()),
        (&["reduce", "--message", text(&path), "--reader", "chat-resume"], String::new()),
        (&["reduce"], format!("{}\n", json!({ "message": message }))),
        (&["reduce"], format!("{request}\n")),
    ] {
        let result = run_with(arguments, &stream);
        assert_eq!((result.code, self::message(&result)), (0, message.clone()), "{stream:?}");
    }
}

#[test]
fn the_response_to_a_post_is_read_as_use_chat_reads_it() {
    let chunk = r#"{"type":"error","errorText":"x"}"#;
    let request = r#"{"request":{"id":"chat","trigger":"submit-message","messages":[]}}"#;
    for (reads_as_chat, stream) in [
        (true, format!("data: {chunk}\n\ndata: not json\n\n")),
        (true, format!("{request}\n{chunk}\nnot json\n")),
        (false, format!("{chunk}\nnot json\n")),
        (false, format!("{{\"event\":\"x\"}}\n{chunk}\nnot json\n")),
    ] {
        for command in ["check", "reduce"] {
            let code =
                |arguments: &[&str]| run_with(&[&[command], arguments].concat(), &stream).code;
            // `useChat` reads nothing after an error.
            assert_eq!(code(&[]), i32::from(!reads_as_chat), "{command}: {stream}");
            assert_eq!(code(&["--reader", "chat"]), 0, "{command}: {stream}");
            assert_eq!(code(&["--reader", "read-ui-message-stream"]), 1, "{command}: {stream}");
        }
    }
}

#[test]
fn a_stream_without_a_message_is_reduced_to_null() {
    assert_eq!(run(&["reduce"]), RunResult { code: 0, out: "null\n".into(), err: String::new() });
}

#[test]
fn a_character_that_is_split_over_two_deltas_is_joined() {
    let stream = [
        r#"{"type":"text-start","id":"0"}"#,
        r#"{"type":"text-delta","id":"0","delta":"Hi \ud83d"}"#,
        r#"{"type":"text-delta","id":"0","delta":"\ude00!"}"#,
    ];
    let result = run_with(&["reduce"], &stream.map(|chunk| format!("data: {chunk}\n\n")).concat());
    assert_eq!(message(&result)["parts"][0]["text"], "Hi 😀!");
}

/// Returns the only printed line.
fn message(result: &RunResult) -> Value {
    assert_eq!(result.out.lines().count(), 1, "{}", result.out);
    // Half of a surrogate pair is printed unchanged, which this JSON parser rejects.
    serde_json::from_str(&result.out.replace("\\ud800", "\\ufffd")).unwrap()
}

/// Returns the number in `line N: …`.
fn line_of(text: &str) -> usize {
    let number = text.strip_prefix("line ").and_then(|rest| rest.split(':').next());
    number.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}
