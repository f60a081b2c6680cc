//! The checker: its findings, in words that a person can read, and no findings in streams that the
//! client accepts.
//!
//! `RECORD=1 cargo test --test protocol checker` writes the findings again; review the difference.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use test_support::fixture_files::fixture_files;
use ui_message_stream::UiMessage;
use ui_message_stream::checker::{Checker, ClientReader, Rule, Severity, Violation};
use ui_message_stream::chunk::{Chunk, Version};
use ui_message_stream::testing::conformance;

#[test]
fn every_violation_is_reported_at_its_chunk_with_its_remedy() {
    let record = std::env::var_os("RECORD").is_some();
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for path in fixture_files("violations", ".jsonl") {
        let lines = fs::read_to_string(&path).unwrap();
        let checker = Checker::new().with_oldest_client(Version::V6);
        let findings = findings(checker, lines.lines());
        seen.extend(findings.iter().map(|(_, violation)| violation.rule));
        let printed: String = findings
            .iter()
            .map(|(line, violation)| format!("line {line}: {violation}\n"))
            .collect();
        let expected = path.with_extension("txt");
        if record {
            fs::write(&expected, printed).unwrap();
        } else if fs::read_to_string(&expected).unwrap_or_default() != printed {
            wrong.push(format!("{}:\n{printed}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let unseen: Vec<_> = Rule::ALL.iter().filter(|rule| !seen.contains(rule)).collect();
    // One rule needs a continued message, the others server-sent events.
    let expected = [
        Rule::MissingBlankLine,
        Rule::UnfinishedEvent,
        Rule::MissingDataPrefix,
        Rule::OtherMessageId,
    ];
    assert!(unseen.into_iter().eq(&expected), "{expected:?}");
}

#[test]
fn the_checker_reports_an_error_if_and_only_if_the_client_throws() {
    for path in fixture_files("upstream/streams", ".jsonl") {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let (checker, chunks) = stream(&text);
        let errors: Vec<_> = findings(checker, chunks.iter().map(String::as_str))
            .into_iter()
            .filter(|(_, violation)| violation.rule.severity() == Severity::Error)
            .collect();
        let expected = path.with_file_name("../expected").join(format!("{name}.json"));
        let expected: Value = serde_json::from_str(&fs::read_to_string(expected).unwrap()).unwrap();
        let thrown = expected["errors"].as_array().unwrap();
        // An `error` chunk is not a fault of the stream.
        let throws = thrown.iter().any(|error| error["name"] != "Error");
        assert_eq!(!errors.is_empty(), throws, "{name}: {errors:?}");
    }
}

#[test]
fn the_translators_output_has_no_findings() {
    for path in fixture_files("chunks", ".jsonl") {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let (_, chunks) = stream(&text);
        let oldest = match text.split_once(r#""version":"v"#) {
            Some((_, version)) if version.starts_with("5\"") => Version::V5,
            Some((_, version)) => version.split('"').next().unwrap().parse().unwrap(),
            None => Version::V6,
        };
        for reader in [ClientReader::ReadUiMessageStream, ClientReader::Chat] {
            let (checker, _) = stream(&text);
            let checker = checker.with_oldest_client(oldest).with_reader(reader);
            let found = findings(checker, chunks.iter().map(String::as_str));
            // `error` is followed by the end that readers of the whole stream need, and an approval
            // that the server rejects leaves nothing to warn of.
            assert!(found.is_empty(), "{name}, {reader:?}: {found:?}");
        }
    }
}

#[test]
fn the_executor_of_a_call_may_be_given_with_its_output() {
    // For a server-executed call, a server must not send a result that the client would send back.
    for (announced, settled, resubmits) in
        [("", "true", false), ("true", "false", true), ("true", "", false), ("", "", true)]
    {
        let executed = |flag: &str| match flag {
            "" => String::new(),
            flag => format!(r#","providerExecuted":{flag}"#),
        };
        let (announced, settled) = (executed(announced), executed(settled));
        let lines = [
            r#"{"type":"start"}"#.to_owned(),
            r#"{"type":"start-step"}"#.to_owned(),
            format!(
                r#"{{"type":"tool-input-available","toolCallId":"c","toolName":"t","input":1{announced}}}"#
            ),
            format!(r#"{{"type":"tool-output-available","toolCallId":"c","output":1{settled}}}"#),
            r#"{"type":"finish"}"#.to_owned(),
        ];
        let found = findings(Checker::new(), lines.iter().map(String::as_str));
        let rules: Vec<_> = found.iter().map(|(_, violation)| violation.rule).collect();
        let expected = if resubmits { &[Rule::EndlessResubmission][..] } else { &[] };
        assert_eq!(rules, expected, "{announced}{settled}");
    }
}

/// The client that executes an approved call reads its input then. The input of a call that the server has executed
/// would make the client execute it.
#[test]
fn an_approved_call_whose_input_comes_again_has_an_output_in_its_step_or_waits_for_the_client() {
    let call = r#"{"type":"tool-input-available","toolCallId":"c","toolName":"t","input":1}"#;
    for (rest, is_found) in [
        (&[r#"{"type":"finish"}"#][..], false),
        (&[r#"{"type":"tool-output-available","toolCallId":"c","output":1}"#], false),
        (&[r#"{"type":"start-step"}"#], true),
        // A server's call, whose input was available before.
        (&[call, r#"{"type":"start-step"}"#], true),
    ] {
        let request = r#"{"type":"tool-approval-request","approvalId":"a","toolCallId":"c"}"#;
        let streamed = [
            r#"{"type":"tool-input-start","toolCallId":"c","toolName":"t"}"#,
            r#"{"type":"tool-input-delta","toolCallId":"c","inputTextDelta":"1"}"#,
            request,
            call,
        ];
        let asked = if rest[0] == call { &[call, request][..] } else { &streamed[..] };
        let step = r#"{"type":"start-step"}"#;
        let lines = std::iter::once(step).chain(asked.iter().chain(rest).copied());
        let found = findings(Checker::new(), lines);
        let is_repeated = |found: &(usize, Violation)| found.1.rule == Rule::RepeatedToolCall;
        assert_eq!(found.iter().any(is_repeated), is_found, "{rest:?}: {found:?}");
    }
}

#[test]
fn a_stream_that_some_pages_do_not_show_is_conformant() {
    for name in
        ["a_question_about_an_input_that_is_no_object", "a_denial_beside_a_call_of_the_page"]
    {
        let path = fixture_files("violations", &format!("{name}.jsonl")).remove(0);
        let text = fs::read_to_string(path).unwrap();
        let chunks: Vec<Chunk<'_>> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(conformance(&chunks), [], "{name}");
    }
}

/// The helpers of the SDK look at the last step: for one of them a denied call is never done, and the other one needs
/// an approval that the user has answered.
#[test]
fn a_call_of_the_page_beside_a_denied_one_is_reported() {
    let called = |id: &str, rest: &str| {
        format!(
            r#"{{"type":"tool-input-available","toolCallId":"{id}","toolName":"t","input":{{}}{rest}}}"#
        )
    };
    let asked = |id: &str, rest: &str| {
        format!(
            r#"{{"type":"tool-approval-request","approvalId":"a-{id}","toolCallId":"{id}"{rest}}}"#
        )
    };
    let refused = [
        asked("c1", r#","isAutomatic":true"#),
        r#"{"type":"tool-approval-response","approvalId":"a-c1","approved":false}"#.to_owned(),
    ];
    let denied = r#"{"type":"tool-output-denied","toolCallId":"c1"}"#.to_owned();
    let failed = r#"{"type":"tool-output-error","toolCallId":"c1","errorText":"x"}"#.to_owned();
    let step = r#"{"type":"start-step"}"#.to_owned();
    let denial = [&refused[..], std::slice::from_ref(&denied)].concat();
    for (rest, is_found) in [
        ([&denial[..], &[called("c2", "")]].concat(), true),
        ([&[called("c2", "")], &denial[..]].concat(), true),
        // A user has denied it elsewhere.
        (vec![asked("c1", ""), called("c2", ""), denied.clone()], true),
        (vec![called("c2", ""), failed], false),
        ([&denial[..], &[called("c2", r#","providerExecuted":true"#)]].concat(), false),
        ([&denial[..], &[called("c2", ""), called("c3", ""), asked("c3", "")]].concat(), false),
        ([&denial[..], &[step.clone(), called("c2", "")]].concat(), false),
    ] {
        let end = [r#"{"type":"finish-step"}"#, r#"{"type":"finish"}"#].map(str::to_owned);
        let lines: Vec<String> = [&[step.clone(), called("c1", "")], &rest[..], &end[..]].concat();
        let checker = Checker::new().with_oldest_client(Version::V7Patch(173));
        let found = findings(checker, lines.iter().map(String::as_str));
        let is_never_sent = |found: &(usize, Violation)| found.1.rule == Rule::NeverResubmitted;
        assert_eq!(found.iter().any(is_never_sent), is_found, "{rest:?}: {found:?}");
    }
}

/// The answer does not count: the page shows the question again.
#[test]
fn a_question_may_be_asked_again_until_its_call_has_a_result() {
    let settled = r#"{"type":"tool-output-available","toolCallId":"c1","output":1}"#;
    let asked = |id: &str| {
        format!(r#"{{"type":"tool-approval-request","approvalId":"{id}","toolCallId":"c1"}}"#)
    };
    for (state, rest) in [
        ("approval-requested", ""),
        ("approval-responded", r#", "approved": true"#),
        ("output-available", r#", "approved": true}, "output": {"#),
    ] {
        let message = format!(
            r#"{{"id": "m", "role": "assistant", "parts": [{{"type": "tool-t", "toolCallId": "c1",
                "input": {{}}, "state": "{state}", "approval": {{"id": "a1"{rest}}}}}]}}"#
        );
        let message = UiMessage::parse(&message).unwrap();
        for (again, is_found) in [
            (vec![asked("a1")], state == "output-available"),
            (vec![asked("a1"), settled.to_owned(), asked("a1")], true),
            (vec![asked("a2"), asked("a1")], true),
        ] {
            let start = r#"{"type":"start","messageId":"m"}"#.to_owned();
            let finish = r#"{"type":"finish"}"#.to_owned();
            let lines = [vec![start], again, vec![finish]].concat();
            let found = findings(Checker::continuing(&message), lines.iter().map(String::as_str));
            let is_it = |found: &(usize, Violation)| found.1.rule == Rule::UnanswerableApproval;
            assert_eq!(found.iter().any(is_it), is_found, "{state} {lines:?}: {found:?}");
        }
    }
}

#[test]
fn an_input_that_a_step_leaves_open_is_reported_once() {
    let lines = [
        r#"{"type":"start-step"}"#,
        r#"{"type":"tool-input-start","toolCallId":"c","toolName":"t"}"#,
        r#"{"type":"finish-step"}"#,
        r#"{"type":"finish-step"}"#,
        r#"{"type":"tool-input-available","toolCallId":"c","toolName":"t","input":1}"#,
    ];
    let found = findings(Checker::new(), lines.into_iter());
    let at: Vec<_> = found.iter().filter(|(_, v)| v.rule == Rule::InputLeftOpen).collect();
    assert_eq!(at.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_kind_that_ai_5_lacks_is_an_error_for_ai_5_only() {
    for chunk in [
        r#"{"type":"tool-input-error","toolCallId":"c2","toolName":"t","input":1,"errorText":"e"}"#,
        r#"{"type":"tool-approval-request","approvalId":"a","toolCallId":"c"}"#,
        r#"{"type":"tool-output-denied","toolCallId":"c"}"#,
    ] {
        for (version, is_known) in [(Version::V5, false), (Version::V6, true)] {
            let mut checker = Checker::new().with_oldest_client(version);
            let call =
                r#"{"type":"tool-input-available","toolCallId":"c","toolName":"t","input":1}"#;
            assert_eq!(checker.handle_data(call), []);
            let mut rules = checker.handle_data(chunk).into_iter().map(|found| found.rule);
            assert_eq!(rules.any(|rule| rule == Rule::UnknownKind), !is_known, "{chunk}");
        }
    }
}

#[test]
fn each_newer_key_is_named_beside_a_number_that_no_double_holds() {
    let mut checker = Checker::new().with_oldest_client(Version::V6);
    checker.handle_data(
        r#"{"type":"tool-input-available","toolCallId":"c","toolName":"t","input":1}"#,
    );
    let found = checker.handle_data(
        r#"{"type":"tool-output-available","toolCallId":"c","output":1e400,"providerMetadata":{},"toolMetadata":{}}"#,
    );
    let named: Vec<_> = found.iter().filter(|found| found.rule == Rule::UnknownKey).collect();
    let keys = "key `providerMetadata`, `toolMetadata` of tool-output-available";
    assert_eq!(named.iter().map(|found| &*found.subject).collect::<Vec<_>>(), [keys]);
}

/// `useChat` looks for an incomplete input in all steps, and continues only those of the last step.
#[test]
fn a_resumed_message_is_continued_if_an_earlier_step_holds_an_open_input() {
    let text = include_str!(
        "../../fixtures/upstream/streams/fail-continuation-delta-of-earlier-step.jsonl"
    );
    let delta = r#"{"type":"tool-input-delta","toolCallId":"c1","inputTextDelta":"x"}"#;
    let output = r#"{"type":"tool-output-available","toolCallId":"c1","output":2}"#;
    for reader in [ClientReader::ReadUiMessageStream, ClientReader::Chat, ClientReader::ChatResume]
    {
        for (chunk, expected) in [(delta, Some(Rule::InputNotStarted)), (output, None)] {
            let mut checker = stream(text).0.with_reader(reader);
            let found = checker.handle_data(chunk);
            assert_eq!(found.first().map(|found| found.rule), expected, "{reader:?}: {chunk}");
        }
    }
}

/// The chunks of a fixture as lines, and a checker for the message that they continue.
fn stream(text: &str) -> (Checker, Vec<String>) {
    let mut checker = Checker::new();
    let mut chunks = Vec::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        if let Some(message) = line.get("message").or(line.get("continues")) {
            checker = Checker::continuing(&UiMessage::parse(&message.to_string()).unwrap());
        } else if let Some(chunk) = line.get("chunk") {
            chunks.push(chunk.to_string());
        }
    }
    (checker, chunks)
}

/// The findings with their lines. A finding at the end of the stream has the last line.
fn findings<'a>(
    mut checker: Checker,
    lines: impl Iterator<Item = &'a str>,
) -> Vec<(usize, Violation)> {
    let mut found = Vec::new();
    let mut last = 0;
    for (index, line) in lines.enumerate() {
        last = index + 1;
        found.extend(checker.handle_data(line).into_iter().map(|violation| (last, violation)));
    }
    found.extend(checker.finish().into_iter().map(|violation| (last, violation)));
    found
}
