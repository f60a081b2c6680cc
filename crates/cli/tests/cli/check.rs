use std::fs;
use std::process::Command;

use serde_json::Value;
use test_support::external_processes::missing;
use test_support::fixture_files::fixture_files;

use crate::program::{PROGRAM, RunResult, run, run_with, scratch, text};
use crate::streams::{responses, streams};

#[test]
fn a_stream_that_the_client_accepts_has_no_findings() {
    for stream in streams("check") {
        let name = &stream.name;
        let arguments = stream.command("check");
        let reduced = run(&["reduce", text(&stream.path)]);
        let from_file = run(&["check", text(&stream.path)]);
        let results = [
            run_with(&arguments, &stream.as_lines()),
            run_with(&arguments, &stream.as_events("\n")),
            // A `\r` ends a line only if another byte follows it.
            run_with(&arguments, &(stream.as_events("\r") + ": the end")),
        ];
        for result in results.iter().chain([&from_file]) {
            assert_eq!(result.err, "", "{name}");
            if stream.thrown.is_none() {
                assert_eq!((result.code, result.out.as_str()), (0, ""), "{name}");
            } else {
                assert_eq!(result.code, 1, "{name}");
                assert!(result.out.lines().all(is_finding), "{name}: {}", result.out);
            }
        }
        if stream.thrown.is_some() {
            // The first finding is the chunk at which the client throws.
            let line = |text: &str| text.split_once(':').unwrap().0.to_owned();
            assert_eq!(line(&from_file.out), line(&reduced.err), "{name}");
        }
    }
}

#[test]
fn a_response_has_findings_if_the_client_fails_or_shows_nothing() {
    for response in responses() {
        let name = &response.name;
        let result = run(&["check", text(&response.path)]);
        let shows_nothing = response.chunks.is_empty() && !response.fails;
        let body = fs::read_to_string(&response.path).unwrap();
        let has_end = body.contains("[DONE]") || response.chunks.contains(r#""type":"finish""#);
        let is_reported = response.fails || shows_nothing || !has_end;
        assert_eq!(result.code, i32::from(is_reported), "{name}: {}", result.out);
        assert_eq!(result.out.is_empty(), !is_reported, "{name}: {}", result.out);
        assert_eq!(result.out.contains(": no-chunks: "), shows_nothing, "{name}: {}", result.out);
        assert!(result.out.lines().all(is_finding), "{name}: {}", result.out);
    }
}

#[test]
fn input_without_a_chunk_is_reported() {
    let request = r#"{"request":{"id":"chat","trigger":"submit-message","messages":[]}}"#;
    let chunk = r#"{"chunk":{"type":"start"}}"#;
    let end = r#"{"chunk":{"type":"finish"}}"#;
    for (line, input) in [
        (1, String::new()),
        (1, "\u{FEFF}".to_owned()),
        (1, ": keep-alive\n\n".to_owned()),
        (1, "data: [DONE]\n\n".to_owned()),
        (1, "<!doctype html>\n<p>502 Bad Gateway</p>\n".to_owned()),
        (1, "{\"error\":\"unauthorized\"}\n".to_owned()),
        (1, "{\n  \"error\": {\n    \"message\": \"unauthorized\"\n  }\n}\n".to_owned()),
        (1, request.to_owned()),
        (1, format!("{request}\n{request}\n{chunk}\n{end}\n")),
        (4, format!("{request}\n{chunk}\n{end}\n{request}\n")),
    ] {
        let result = run_with(&["check"], &input);
        let finding = format!("line {line}: no-chunks: the stream: the client shows nothing");
        assert!(result.out.starts_with(&finding), "{input:?}: {}", result.out);
        assert_eq!((result.code, result.out.lines().count()), (1, 1), "{input:?}: {}", result.out);
    }
}

#[test]
fn with_warnings_what_some_pages_do_not_show_or_send_is_named() {
    for (name, rule) in [
        ("a_question_about_an_input_that_is_no_object", "hidden-input"),
        ("a_denial_beside_a_call_of_the_page", "never-resubmitted"),
    ] {
        let path = fixture_files("violations", &format!("{name}.jsonl")).remove(0);
        let expected = fs::read_to_string(path.with_extension("txt")).unwrap();
        assert!(expected.contains(&format!(": {rule}: ")), "{expected}");
        assert_eq!(run(&["check", "--warnings", text(&path)]).out, expected, "{name}");
        assert_eq!(run(&["check", text(&path)]).out, "", "{name}");
    }
}

#[test]
fn a_response_that_was_cut_off_is_reported_and_one_with_an_end_is_not() {
    let event = |chunk: &str| format!("data: {chunk}\n\n");
    let text = [
        r#"{"type":"start"}"#,
        r#"{"type":"text-start","id":"0"}"#,
        r#"{"type":"text-delta","id":"0","delta":"Hi"}"#,
        r#"{"type":"text-end","id":"0"}"#,
    ];
    let events: String = text.iter().map(|chunk| event(chunk)).collect();
    let recorded: String = text.iter().map(|chunk| format!("{{\"chunk\":{chunk}}}\n")).collect();
    let request = r#"{"request":{"id":"chat","messages":[]}}"#;
    for (stream, line) in [
        (events.clone(), Some(7)),
        (format!("{events}data: {{\"type\":\"fin"), Some(9)),
        (format!("{request}\n{recorded}"), Some(5)),
        (
            format!("{request}\n{recorded}{request}\n{{\"chunk\":{{\"type\":\"finish\"}}}}\n"),
            Some(5),
        ),
        (format!("{events}data: [DONE]\n\n"), None),
        (events.clone() + &event(r#"{"type":"finish"}"#), None),
        (events.clone() + &event(r#"{"type":"abort"}"#), None),
        (events.clone() + &event(r#"{"type":"error","errorText":"x"}"#), None),
        // Lines without a request may be a part of a stream.
        (recorded, None),
    ] {
        let result = run_with(&["check"], &stream);
        let expected = line.map(|line| format!("line {line}: no-finish: the stream: "));
        assert_eq!(result.code, i32::from(expected.is_some()), "{stream}: {}", result.out);
        assert_eq!(result.out.lines().count(), expected.iter().count(), "{stream}: {}", result.out);
        assert!(result.out.starts_with(&expected.unwrap_or_default()), "{stream}: {}", result.out);
    }
}

#[test]
fn common_mistakes_of_backends_are_named() {
    let chunks = [r#"{"type":"start"}"#, r#"{"type":"finish"}"#];
    let response = |chunk: &str| {
        let chunks = [chunks[0], chunk, chunks[1], "[DONE]"];
        chunks.map(|chunk| format!("data: {chunk}\n\n")).concat()
    };
    for (stream, finding) in [
        (
            "0:\"Hello\"\nd:{\"finishReason\":\"stop\"}\n".to_owned(),
            "line 1: ai-4-stream: the stream: ",
        ),
        ("f:{\"messageId\":\"m\"}\n0:\"Hello\"\n".to_owned(), "line 1: ai-4-stream: the stream: "),
        (response("0:\"Hello\""), "line 3: ai-4-stream: the stream: "),
        (
            format!("data: {}\ndata: {}\ndata: [DONE]\n\ndata: [DONE]\n\n", chunks[0], chunks[1]),
            "line 1: missing-blank-line: 3 `data` lines in one event: ",
        ),
        (
            response(r#"{"type":"text-delta","id":"0","text":"Hi"}"#),
            "line 3: invalid-field: delta: missing, and text-delta has no key `text`: ",
        ),
        (
            response(r#"{"type":"tool-output-available","id":"c","result":1}"#),
            "line 3: invalid-field: toolCallId: missing, and tool-output-available has no key \
             `id`, `result`: ",
        ),
        (response(r#"{"type":"data-x"} and more"#), "line 3: not-json: "),
    ] {
        let result = run_with(&["check"], &stream);
        assert!(result.out.starts_with(finding), "{stream}: {}", result.out);
        assert_eq!((result.code, result.out.lines().count()), (1, 1), "{stream}: {}", result.out);
    }
}

/// Whether the line has the form `line N: CODE: message`.
fn is_finding(line: &str) -> bool {
    let mut fields = line.splitn(3, ": ");
    let number = fields.next().and_then(|field| field.strip_prefix("line "));
    let is_code = |code: &str| code.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    number.is_some_and(|number| number.parse::<usize>().is_ok())
        && fields.next().is_some_and(is_code)
        && fields.next().is_some_and(|message| message.contains("; "))
}

#[test]
fn findings_are_printed_one_per_line_as_text_or_as_json() {
    for path in fixture_files("violations", ".jsonl") {
        let expected = fs::read_to_string(path.with_extension("txt")).unwrap();
        let arguments = ["check", "--client", "6.0.0", "--warnings", text(&path)];
        let result = run(&arguments);
        assert_eq!(
            result,
            RunResult { code: 1, out: expected, err: String::new() },
            "{}",
            path.display()
        );
        let objects = run(&[&arguments[..], &["--json"]].concat());
        assert_eq!((objects.code, objects.err.as_str()), (1, ""));
        let objects: Vec<Value> =
            objects.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let lines = objects.iter().map(|finding| {
            let field = |key: &str| finding[key].as_str().unwrap().to_owned();
            let (code, subject) = (field("code"), field("subject"));
            assert!(["error", "warning"].contains(&field("severity").as_str()));
            let line = &finding["line"];
            format!("line {line}: {code}: {subject}: {}; {}\n", field("why"), field("remedy"))
        });
        assert_eq!(lines.collect::<String>(), result.out, "{}", path.display());
    }
}

#[test]
fn older_clients_and_warnings_are_checked_only_with_their_options() {
    let stream = "{\"type\":\"start\",\"new\":1}\n{\"type\":\"text-start\",\"id\":\"0\"}\n";
    let code = |arguments: &[&str]| run_with(&[&["check"], arguments].concat(), stream).code;
    assert_eq!(code(&[]), 0);
    assert_eq!(code(&["--client", "6.0.231"]), 0);
    assert_eq!(code(&["--client", "6.0.230"]), 1);
    assert_eq!(code(&["--client", "7.0.32"]), 0);
    for strict in ["7", "7.0.0", "7.0.31"] {
        assert_eq!(code(&["--client", strict]), 1, "{strict}");
    }
    assert_eq!(code(&["--warnings"]), 1);
    let question = concat!(
        r#"{"type":"tool-input-available","toolCallId":"c","toolName":"t","input":1}"#,
        "\n",
        r#"{"type":"tool-approval-request","approvalId":"a","toolCallId":"c"}"#,
    );
    assert_eq!(run_with(&["check", "--client", "6.0.0"], question).code, 0);
    assert_eq!(run_with(&["check", "--client", "5"], question).code, 1);
}

#[test]
fn the_first_character_decides_the_format_of_a_file() {
    let chunk = r#"{"type":"text-end","id":"0"}"#;
    let done = "data: [DONE]\n\n";
    for (line, stream) in [
        (1, chunk.to_owned()),
        (3, format!("\n \n{chunk}\n")),
        (1, format!("\u{FEFF}{chunk}\n")),
        (1, format!("{{\"chunk\":{chunk}}}\n")),
        (
            2,
            format!(
                "{{\"request\":{{}}}}\n{{\"at\":7,\"chunk\":{chunk}}}\n\
                 {{\"chunk\":{{\"type\":\"finish\"}}}}\n"
            ),
        ),
        (1, format!("data: {chunk}\n\n{done}")),
        (3, format!("\n\ndata:{chunk}\n\n{done}")),
        (2, format!("\u{FEFF}: hi\ndata: {chunk}\n\n{done}")),
        (2, format!("event: message\r\ndata: {chunk}\r\n\r\n{done}")),
    ] {
        let result = run_with(&["check"], &stream);
        assert!(result.out.starts_with(&format!("line {line}: ")), "{stream:?}: {}", result.out);
        assert_eq!((result.code, result.out.lines().count()), (1, 1), "{stream:?}: {}", result.out);
    }
}

#[test]
fn findings_are_coloured_only_on_a_terminal() {
    let path = fixture_files("violations", "an_end_without_its_start.jsonl").remove(0);
    let plain = run(&["check", text(&path)]);
    assert!(!plain.out.contains('\x1b'));
    let command = format!("'{PROGRAM}' check '{}'", path.display());
    let Ok(output) = Command::new("script").args(["-qec", &command, "/dev/null"]).output() else {
        return missing("`script`, which provides a terminal, is not installed");
    };
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("\x1b[31m"), "{printed:?}");
    assert_eq!(output.status.code(), Some(1));
    let mut stripped = printed.replace("\r\n", "\n");
    while let Some(start) = stripped.find('\x1b') {
        let end = start + stripped[start..].find('m').unwrap();
        stripped.replace_range(start..=end, "");
    }
    assert_eq!(stripped, plain.out);
}

#[test]
fn a_json_line_without_a_type_is_reported_as_an_invalid_chunk() {
    for line in [r#"{"error":"boom"}"#, r#"{"message":"boom"}"#, r#"{"event":"x"}"#, r#"{"x":1}"#] {
        let stream = format!("{{\"type\":\"start\"}}\n{line}\n{{\"type\":\"finish\"}}\n");
        let result = run_with(&["check"], &stream);
        assert_eq!(result.code, 1, "{line}");
        assert!(
            result.out.starts_with("line 2: invalid-field: type: missing"),
            "{line}: {}",
            result.out
        );
    }
}

#[test]
fn each_request_in_a_file_starts_another_stream() {
    let image = "A".repeat(3 << 20);
    let part = r#"{"type":"tool-t","toolCallId":"c","state":"input-available","input":{}}"#;
    let request = format!(
        r#"{{"request":{{"id":"chat","trigger":"submit-message","messages":[{{"id":"u","role":"user","parts":[{{"type":"file","mediaType":"image/png","url":"data:image/png;base64,{image}"}}]}},{{"id":"m","role":"assistant","parts":[{part}]}}]}}}}"#
    );
    let output = r#"{"chunk":{"type":"tool-output-available","toolCallId":"c","output":1}}"#;
    let output = format!("{output}\n{{\"chunk\":{{\"type\":\"finish\"}}}}");
    let other_request = r#"{"request":{"id":"chat","trigger":"submit-message","messages":[]}}"#;
    let continued = format!("{request}\n{output}\n");
    assert_eq!(run_with(&["check"], &continued).out, "");
    let result = run_with(&["check"], &format!("{continued}{other_request}\n{output}\n"));
    assert_eq!(result.code, 1);
    assert!(result.out.starts_with("line 5: unknown-tool-call"), "{}", result.out);
}

#[test]
fn a_request_that_is_no_chat_request_starts_another_stream_too() {
    let chunk = |json: &str| format!("{{\"at\":1,\"chunk\":{json}}}\n");
    let request = "{\"request\":{\"id\":\"chat\",\"message\":\"hi\"}}\n";
    let response = chunk(r#"{"type":"start"}"#) + &chunk(r#"{"type":"finish"}"#);
    let twice = format!("{request}{response}{request}{response}");
    let result = run_with(&["check", "--warnings"], &twice);
    assert_eq!((result.code, result.out.as_str()), (0, ""));
    assert_eq!(result.err.lines().count(), 2, "{}", result.err);
    // Only the first response continues the given message.
    let message = scratch("no_chat_request").join("message.json");
    let part = r#"{"type":"tool-t","toolCallId":"c","state":"input-available","input":{}}"#;
    fs::write(&message, format!(r#"{{"id":"m","role":"assistant","parts":[{part}]}}"#)).unwrap();
    let output = chunk(r#"{"type":"tool-output-available","toolCallId":"c","output":1}"#)
        + &chunk(r#"{"type":"finish"}"#);
    let continued = format!("{request}{output}{request}{output}");
    let result = run_with(&["check", "--message", text(&message)], &continued);
    assert_eq!((result.code, result.out.lines().count()), (1, 1), "{}", result.out);
    assert!(result.out.starts_with("line 5: unknown-tool-call"), "{}", result.out);
}

#[test]
fn the_reader_decides_what_is_an_error_after_a_second_start_or_an_error_chunk() {
    let part = r#"{"type":"tool-t","toolCallId":"c","state":"input-available","input":{}}"#;
    let message = format!(r#"{{"message":{{"id":"m","role":"assistant","parts":[{part}]}}}}"#);
    let output = r#"{"type":"tool-output-available","toolCallId":"c","output":1}"#;
    let renamed = format!("{message}\n{{\"type\":\"start\",\"messageId\":\"n\"}}\n{output}\n");
    let failed = "{\"type\":\"error\",\"errorText\":\"x\"}\nnot json\n".to_owned();
    let unnamed = format!("{message}\n{{\"type\":\"start\"}}\n{{\"type\":\"finish\"}}\n");
    // The first code without and with `--warnings`.
    for (reader, stream, errors, all) in [
        ("read-ui-message-stream", &renamed, "unknown-tool-call", "other-message-id"),
        ("chat", &renamed, "", "other-message-id"),
        ("chat-resume", &renamed, "unknown-tool-call", "other-message-id"),
        ("read-ui-message-stream", &failed, "not-json", "not-json"),
        ("chat", &failed, "", "after-error"),
        ("chat-resume", &failed, "", "after-error"),
        ("chat", &unnamed, "", ""),
        ("chat-resume", &unnamed, "", "other-message-id"),
    ] {
        let first = |arguments: &[&str]| {
            let result = run_with(&[&["check", "--reader", reader], arguments].concat(), stream);
            assert_eq!(result.code, i32::from(!result.out.is_empty()), "{reader}: {stream}");
            result.out.split(": ").nth(1).unwrap_or_default().to_owned()
        };
        assert_eq!(first(&[]), errors, "{reader}: {stream}");
        assert_eq!(first(&["--warnings"]), all, "{reader}: {stream}");
    }
    assert_eq!(
        run_with(&["check"], &renamed),
        run_with(&["check", "--reader", "read-ui-message-stream"], &renamed)
    );
}
