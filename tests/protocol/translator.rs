//! The translator, case by case: the chunks of each event.
//!
//! A fixture in `fixtures/chunks/` holds, line by line, an event and then its chunks (or its
//! error). `RECORD=1 cargo test --test protocol translator` writes the chunk lines again; review
//! the difference before you commit it. `tests/client/recordings.rs` tests that the real client
//! accepts them all.

use std::fmt::Write as _;
use std::fs;

use proptest::prelude::*;
use serde_json::{Value, json};
use test_support::fixture_files::fixture_files;
use ui_message_stream::chunk::Version;
use ui_message_stream::event::{File, Source, ToolCall};
use ui_message_stream::{AgentEvent, Chunk, Json, Translator, UiMessage};

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
                Some(version) => version.trim_start_matches('v').parse().unwrap(),
                None => Version::V6,
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

proptest! {
    #[test]
    fn a_url_goes_out_only_if_a_browser_reads_an_allowed_scheme_in_it(
        url in concat!(
            "[ \\x00\\t]{0,2}(java\n?script|JavaScript|data|https?|HTTP|file|blob|x)?",
            "[ \t\r]?:{0,2}//?[a-z:]{0,9}",
        ),
    ) {
        let source = Source::Url { source_id: "s".into(), url: url.clone().into(), title: None };
        let file = File { url: url.clone().into(), media_type: "image/png".into() };
        let (source, file) =
            (AgentEvent::Source(Box::new(source)), AgentEvent::File(Box::new(file)));
        let source_goes_out = goes_out(&source)?;
        let file_goes_out = goes_out(&file)?;
        let scheme = scheme_in_a_browser(&url);
        let is_web = matches!(scheme.as_deref(), Some("https" | "http"));
        prop_assert!(!source_goes_out || is_web, "{url:?}");
        prop_assert!(!file_goes_out || is_web || scheme.as_deref() == Some("data"), "{url:?}");
        // A URL that needs no repair by a browser is not refused.
        let is_plain = url.chars().all(|c| c.is_ascii_graphic());
        prop_assert!(source_goes_out || !(is_plain && is_web), "{url:?}");
    }
}

/// Whether an event becomes a chunk with a URL: the event itself, and the same as a chunk.
fn goes_out(event: &AgentEvent) -> Result<bool, TestCaseError> {
    let translate = |event: &AgentEvent| {
        let mut with_url = Vec::new();
        let mut other = 0;
        let result = Translator::new("msg_1").handle_event(event, &mut |chunk| match chunk {
            Chunk::SourceUrl { .. } | Chunk::File { .. } => with_url.push(chunk.into_owned()),
            _ => other += 1,
        });
        (result, with_url, other)
    };
    let (result, with_url, other) = translate(event);
    // A refused event leaves no trace, not even a step.
    prop_assert_eq!(result.is_ok(), with_url.len() == 1);
    prop_assert!(result.is_ok() || other == 0);
    let chunk = match event {
        AgentEvent::Source(source) => match &**source {
            Source::Url { source_id, url, .. } => Chunk::SourceUrl {
                source_id: source_id.to_string().into(),
                url: url.to_string().into(),
                title: None,
                provider_metadata: None,
            },
            other => panic!("{other:?}"),
        },
        AgentEvent::File(file) => Chunk::File {
            url: file.url.to_string().into(),
            media_type: file.media_type.to_string().into(),
            provider_metadata: None,
        },
        other => panic!("{other:?}"),
    };
    let (as_chunk, same, _) = translate(&AgentEvent::Chunk(Box::new(chunk)));
    prop_assert_eq!(&as_chunk, &result);
    prop_assert_eq!(same, with_url);
    Ok(result.is_ok())
}

/// The scheme that a browser reads (<https://url.spec.whatwg.org/#concept-basic-url-parser>): it
/// skips control characters and spaces before the URL, and tabs and line ends everywhere.
fn scheme_in_a_browser(url: &str) -> Option<String> {
    let url = url.trim_start_matches(|c: char| c <= ' ');
    let url: String = url.chars().filter(|c| !matches!(c, '\t' | '\r' | '\n')).collect();
    let (scheme, _) = url.split_once(':')?;
    let mut letters = scheme.chars();
    let begins = letters.next().is_some_and(|c| c.is_ascii_alphabetic());
    let is_scheme = begins && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    is_scheme.then(|| scheme.to_ascii_lowercase())
}

#[test]
fn a_long_title_of_a_tool_call_is_cut_after_1_kib() {
    for (title, expected) in [
        ("x".repeat(1024), "x".repeat(1024)),
        ("x".repeat(1025), "x".repeat(1024) + "…"),
        // Two bytes each, and none is cut in half.
        (format!("x{}", "é".repeat(1_000_000)), format!("x{}…", "é".repeat(511))),
    ] {
        let mut translator = Translator::new("m");
        let call = ToolCall::new("call", "tool").with_title(title);
        let mut titles = Vec::new();
        translator
            .handle_event(&AgentEvent::tool_input(call, Json::null()), &mut |chunk| {
                if let Chunk::ToolInputAvailable { title, .. } = chunk {
                    titles.push(title.unwrap().into_owned());
                }
            })
            .unwrap();
        assert_eq!(titles, [expected]);
    }
}
