use std::fs;

use serde_json::{Value, json};
use test_support::js_numbers::as_doubles;

use crate::program::{Ran, run, run_with, text};
use crate::streams::{Stream, responses, streams};

#[test]
fn every_recorded_stream_is_printed_as_the_client_held_it() {
    let streams = streams("reduce");
    assert!(streams.iter().any(|stream| stream.thrown.is_some()));
    for stream in &streams {
        let lines = run(&["reduce", text(&stream.path)]);
        // The message that is continued has a line of its own before the chunks.
        let before = usize::from(stream.command("reduce").len() > 1);
        let thrown_at = mirrors(stream, &lines, &stream.name, |line| line - 1 - before);
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
        for (form, input, place) in forms {
            let other = run_with(&arguments, &input);
            let case = format!("{} as {form}", stream.name);
            assert_eq!(mirrors(stream, &other, &case, place), thrown_at, "{case}");
            assert_eq!(message(&other), message(&lines), "{case}");
        }
    }
}

/// The message is the one that the client held, and what it threw at is named. Returns the place
/// of that chunk, which this gives for its line.
fn mirrors(
    stream: &Stream,
    ran: &Ran,
    case: &str,
    place: impl Fn(usize) -> usize,
) -> Option<usize> {
    assert_eq!(as_doubles(message(ran)), as_doubles(stream.held.clone()), "{case}");
    let Some(thrown) = &stream.thrown else {
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{case}");
        return None;
    };
    assert_eq!(ran.code, 1, "{case}");
    assert_eq!(ran.err.lines().count(), 1, "{case}: {}", ran.err);
    let start = ran.err.find(r#"{"#).unwrap_or_else(|| panic!("{case}: {}", ran.err));
    let chunk: Value = serde_json::from_str(ran.err[start..].trim()).unwrap();
    let place = place(line_of(&ran.err));
    assert_eq!(stream.chunks[place], chunk.to_string(), "{case}");
    if let Some(kind) = thrown.get("chunkType") {
        // So the client calls whatever refers to a call that it does not know.
        if kind != "tool-invocation" {
            assert_eq!(chunk["type"], *kind, "{case}");
        }
        let id = chunk.get("id").or(chunk.get("toolCallId")).unwrap();
        assert_eq!(*id, thrown["chunkId"], "{case}");
    }
    Some(place)
}

#[test]
fn the_line_that_the_client_throws_at_is_counted_from_one() {
    let stream = "{\"type\":\"start\"}\n\n{\"type\":\"text-delta\",\"id\":\"0\",\"delta\":\"x\"}\n";
    let ran = run_with(&["reduce", "-"], stream);
    assert_eq!(ran.code, 1);
    assert_eq!(
        ran.err,
        "line 3: `text-delta` names part \"0\", which is not open: \
         {\"type\":\"text-delta\",\"id\":\"0\",\"delta\":\"x\"}\n"
    );
}

#[test]
fn every_recorded_response_is_read_as_the_client_reads_it() {
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
fn readers_differ_in_what_a_second_start_and_an_error_do() {
    let stream = [
        json!({"type": "start", "messageId": "a"}),
        json!({"type": "data-x", "data": 1}),
        json!({"type": "start", "messageId": "b"}),
        json!({"type": "error", "errorText": "no"}),
        json!({"type": "data-y", "data": 2}),
    ];
    let stream: String = stream.iter().map(|chunk| format!("{chunk}\n")).collect();
    let parts = |reader: &[&str]| {
        let ran = run_with(&[&["reduce"], reader].concat(), &stream);
        let message = message(&ran);
        assert_eq!((ran.code, &message["id"]), (0, &json!("b")), "{reader:?}");
        let types = message["parts"].as_array().unwrap().iter().map(|part| part["type"].clone());
        types.collect::<Value>()
    };
    assert_eq!(parts(&[]), json!(["data-y"]));
    assert_eq!(parts(&["--reader", "read-ui-message-stream"]), json!(["data-y"]));
    assert_eq!(parts(&["--reader", "chat"]), json!(["data-x"]));
}

#[test]
fn a_chat_that_resumes_goes_on_only_with_an_input_that_was_cut_off() {
    let part =
        |state: &str| json!({"type": "tool-t", "toolCallId": "c", "state": state, "input": {}});
    for (state, shown) in [("input-streaming", 2), ("input-available", 1)] {
        let message = json!({"id": "m", "role": "assistant", "parts": [part(state)]});
        let tail = json!({"type": "data-x", "data": 1});
        let stream = format!("{}\n{tail}\n", json!({ "message": message }));
        let parts = |reader: &str| {
            let ran = run_with(&["reduce", "--reader", reader], &stream);
            assert_eq!(ran.code, 0, "{}", ran.err);
            self::message(&ran)["parts"].as_array().unwrap().len()
        };
        assert_eq!((parts("chat-resume"), parts("chat")), (shown, 2), "{state}");
    }
}

#[test]
fn what_one_response_is_thrown_at_for_does_not_hide_the_next() {
    let asked = json!({"request": {"id": "chat", "trigger": "submit-message", "messages": []}});
    let start = |id: &str| json!({"chunk": {"type": "start", "messageId": id}});
    let bad = json!({"chunk": {"type": "text-end", "id": "0"}});
    for bad in [bad.to_string(), "not json".to_owned()] {
        let first = format!("{asked}\n{}\n{bad}\n", start("a"));
        let ran = run_with(&["reduce"], &format!("{first}{asked}\n{}\n", start("b")));
        assert_eq!((ran.code, &message(&ran)["id"]), (1, &json!("b")));
        assert!(ran.err.starts_with("line 3: "), "{}", ran.err);
        let again = run_with(&["reduce"], &first.repeat(2));
        assert_eq!((again.code, again.err.lines().count()), (1, 2), "{}", again.err);
    }
}

#[test]
fn a_stream_that_shows_nothing_gives_null() {
    assert_eq!(run(&["reduce"]), Ran { code: 0, out: "null\n".into(), err: String::new() });
}

/// The one line that was printed.
fn message(ran: &Ran) -> Value {
    assert_eq!(ran.out.lines().count(), 1, "{}", ran.out);
    // Half of a surrogate pair is printed as it came, which this reader of JSON does not take.
    serde_json::from_str(&ran.out.replace("\\ud800", "\\ufffd")).unwrap()
}

/// The number in `line N: …`.
fn line_of(text: &str) -> usize {
    let number = text.strip_prefix("line ").and_then(|rest| rest.split(':').next());
    number.unwrap_or_else(|| panic!("{text}")).parse().unwrap()
}

#[test]
fn a_chat_reads_nothing_behind_an_error() {
    let stream = "data: {\"type\":\"error\",\"errorText\":\"x\"}\n\ndata: not json\n\n";
    assert_eq!(run_with(&["reduce", "--reader", "chat"], stream).code, 0);
    assert_eq!(run_with(&["reduce"], stream).code, 1);
}
