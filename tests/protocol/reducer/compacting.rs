//! A message is rebuilt from the chunks that it is compacted to.

use std::collections::HashSet;

use proptest::prelude::*;
use serde_json::Value;
use ui_message_stream::chunk::{Chunk, Citations, FinishReason, InputEncoding};
use ui_message_stream::message::{Part, ToolState};
use ui_message_stream::metadata::{ProviderMetadata, ToolMetadata};
use ui_message_stream::reducer::{CompactError, Reducer, compact};
use ui_message_stream::{Json, UiMessage};

/// The number in `REDUCE_CASES`, or 500.
fn cases() -> u32 {
    std::env::var("REDUCE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(500)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn a_message_is_rebuilt_by_its_chunks(chunks in stream()) {
        let message = reduce(Reducer::new(), &chunks).into_message();
        let compacted = match compact(&message) {
            Ok(compacted) => compacted,
            Err(CompactError::Part { at, .. }) => {
                prop_assert!(lost_its_text(&message.parts[at]), "{at} of {message:?}");
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(format!("{error}: {message:?}"))),
        };
        let rebuilt = reduce_all(Reducer::new(), &compacted).into_message();
        prop_assert_eq!(&rebuilt, &message);

        // The stored message is read back, and compacts to the same chunks.
        let stored = UiMessage::parse(&serde_json::to_string(&message).unwrap()).unwrap();
        prop_assert_eq!(&stored, &message);
        prop_assert_eq!(compact(&stored), Ok(compacted));
    }

    #[test]
    fn a_stream_can_continue_after_its_compacted_beginning(chunks in stream(), cut in 0usize..40) {
        let chunks: Vec<Chunk<'_>> = chunks.into_iter().map(of_a_static_tool).collect();
        let (before, after) = chunks.split_at(cut.min(chunks.len()));
        let mut reducer = reduce(Reducer::new(), before);
        let mut late = reduce_all(Reducer::new(), &reducer.compact().unwrap());
        let mut going_on = still_streaming(&mut reducer);
        for chunk in after {
            // Deltas for an input that was complete, or of another step, are not supported.
            match chunk {
                Chunk::StartStep {} => going_on.clear(),
                Chunk::ToolInputStart { tool_call_id, .. } => {
                    going_on.insert(tool_call_id.to_string());
                }
                Chunk::ToolInputAvailable { tool_call_id, .. }
                | Chunk::ToolInputError { tool_call_id, .. }
                | Chunk::ToolOutputAvailable { tool_call_id, .. }
                | Chunk::ToolOutputError { tool_call_id, .. } => {
                    going_on.remove(&**tool_call_id);
                }
                Chunk::ToolInputDelta { tool_call_id, .. } if !going_on.contains(&**tool_call_id) => {
                    continue;
                }
                _ => {}
            }
            if let Some(reduced) = accepted(&reducer, chunk) {
                reducer = reduced;
                prop_assert_eq!(late.push_chunk(chunk), Ok(()));
            } else {
                prop_assert!(accepted(&late, chunk).is_none(), "{:?}", chunk);
            }
        }
        prop_assert_eq!(late.message(), reducer.message());
    }
}

#[test]
fn a_message_that_no_stream_produces_is_an_error_with_its_reason() {
    for (fields, reason) in [
        (r#""role":"user","parts":[{"type":"text","text":"Hi"}]"#, "this `role`"),
        (r#""role":"assistant","metadata":null,"parts":[]"#, "this `metadata`"),
        (r#""role":"assistant","parts":[],"x":1"#, "this `extra`"),
        (r#""role":"assistant","parts":[{"type":"text","text":"Hi"}]"#, "part 0 (`text`) as it is"),
        (
            r#""role":"assistant","parts":[{"type":"data-x","id":"1","data":1},{"type":"data-x","id":"1","data":2}]"#,
            "part 0 (`data-x`) as it is",
        ),
        (
            r#""role":"assistant","parts":[{"type":"tool-x","toolCallId":"c","state":"input-available","input":1},{"type":"dynamic-tool","toolName":"x","toolCallId":"c","state":"output-available","input":1,"output":1}]"#,
            "part 1 (`dynamic-tool`) as it is",
        ),
        (r#""role":"assistant","parts":[{"type":"new-kind"}]"#, "part 0 (`new-kind`) as it is"),
    ] {
        let message = UiMessage::parse(&format!(r#"{{"id":"1",{fields}}}"#)).unwrap();
        let found: CompactError = compact(&message).unwrap_err();
        assert_eq!(found.to_string(), format!("no stream gives a message {reason}"));
    }
}

/// Whether this is the input of a dynamic tool that continued in another step and did not end.
fn lost_its_text(part: &Part) -> bool {
    let Part::Tool(part) = part else { return false };
    let keeps_streaming = match &part.state {
        ToolState::InputStreaming { raw_input, .. } => raw_input.is_none(),
        _ => part.extra.get("inputEncoding").is_some() && part.extra.get("rawInput").is_none(),
    };
    part.is_dynamic() && part.input().is_some() && keeps_streaming
}

/// The calls whose input is still streaming.
fn still_streaming(reducer: &mut Reducer) -> HashSet<String> {
    let message = reducer.message();
    let parts = message.parts.iter().rev();
    let of_step = parts.take_while(|part| !matches!(part, Part::StepStart { .. }));
    let mut seen = HashSet::new();
    let mut streaming = HashSet::new();
    for part in of_step.filter_map(|part| part.as_tool()) {
        let is_last = seen.insert(part.tool_call_id.clone());
        if is_last && matches!(part.state, ToolState::InputStreaming { .. }) {
            streaming.insert(part.tool_call_id.to_string());
        }
    }
    streaming
}

/// Two parts of one call, one static and one dynamic, would share an input, which is not supported.
fn of_a_static_tool(mut chunk: Chunk<'_>) -> Chunk<'_> {
    if let Chunk::ToolInputStart { dynamic, .. }
    | Chunk::ToolInputAvailable { dynamic, .. }
    | Chunk::ToolInputError { dynamic, .. } = &mut chunk
    {
        *dynamic = None;
    }
    chunk
}

fn accepted(reducer: &Reducer, chunk: &Chunk<'_>) -> Option<Reducer> {
    let mut reducer = reducer.clone();
    reducer.push_chunk(chunk).ok().map(|()| reducer)
}

/// Reduces those of the chunks that the client accepts.
fn reduce(reducer: Reducer, chunks: &[Chunk<'_>]) -> Reducer {
    chunks.iter().fold(reducer, |reducer, chunk| accepted(&reducer, chunk).unwrap_or(reducer))
}

fn reduce_all(mut reducer: Reducer, chunks: &[Chunk<'_>]) -> Reducer {
    for chunk in chunks {
        reducer.push_chunk(chunk).unwrap_or_else(|error| panic!("{error} in {chunks:?}"));
    }
    reducer
}

/// Chunks in any order, with few ids, so that most of them refer to each other.
fn stream() -> impl Strategy<Value = Vec<Chunk<'static>>> {
    proptest::collection::vec(chunk(), 0..40)
}

fn chunk() -> impl Strategy<Value = Chunk<'static>> {
    prop_oneof![
        4 => texts(),
        6 => inputs(),
        5 => outputs(),
        3 => others(),
    ]
}

fn texts() -> impl Strategy<Value = Chunk<'static>> {
    let id = || prop_oneof![Just("0"), Just("1")];
    prop_oneof![
        (id(), metadata())
            .prop_map(|(id, m)| Chunk::TextStart { id: id.into(), provider_metadata: m }),
        (id(), text(), metadata()).prop_map(|(id, delta, m)| Chunk::TextDelta {
            id: id.into(),
            delta: delta.into(),
            provider_metadata: m
        }),
        (id(), citations(), metadata()).prop_map(|(id, citations, m)| {
            Chunk::TextEnd { id: id.into(), citations, provider_metadata: m }
        }),
        (id(), metadata())
            .prop_map(|(id, m)| Chunk::ReasoningStart { id: id.into(), provider_metadata: m }),
        (id(), text(), metadata()).prop_map(|(id, delta, m)| Chunk::ReasoningDelta {
            id: id.into(),
            delta: delta.into(),
            provider_metadata: m
        }),
        (id(), metadata())
            .prop_map(|(id, m)| Chunk::ReasoningEnd { id: id.into(), provider_metadata: m }),
    ]
}

fn inputs() -> impl Strategy<Value = Chunk<'static>> {
    let encoding =
        prop::option::of(prop_oneof![Just(InputEncoding::Json), Just(InputEncoding::Text)]);
    prop_oneof![
        1 => (call(), encoding, base()).prop_map(|(id, input_encoding, base)| Chunk::ToolInputStart {
            tool_call_id: id.into(),
            tool_name: base.0.into(),
            input_encoding,
            provider_executed: base.1,
            provider_metadata: base.2,
            tool_metadata: base.3,
            dynamic: base.4,
            title: base.5.map(Into::into),
        }),
        2 => (call(), prop_oneof![Just("{\"a\":"), Just("1"), Just("}"), Just("tr"), Just("x\""), Just("")])
            .prop_map(|(id, text)| Chunk::ToolInputDelta { tool_call_id: id.into(), input_text_delta: text.into() }),
        1 => (call(), json(), base()).prop_map(|(id, input, base)| Chunk::ToolInputAvailable {
            tool_call_id: id.into(),
            tool_name: base.0.into(),
            input,
            provider_executed: base.1,
            provider_metadata: base.2,
            tool_metadata: base.3,
            dynamic: base.4,
            title: base.5.map(Into::into),
        }),
        1 => (call(), json(), base(), text()).prop_map(|(id, input, base, text)| Chunk::ToolInputError {
            tool_call_id: id.into(),
            tool_name: base.0.into(),
            input,
            error_text: text.into(),
            provider_executed: base.1,
            provider_metadata: base.2,
            tool_metadata: base.3,
            dynamic: base.4,
            title: base.5.map(Into::into),
        }),
    ]
}

fn outputs() -> impl Strategy<Value = Chunk<'static>> {
    prop_oneof![
        (call(), json(), json(), prop::option::of(text())).prop_map(
            |(id, descriptor, input, signature)| Chunk::ToolApprovalRequest {
                // No two calls of a message have one approval id.
                approval_id: id.into(),
                tool_call_id: id.into(),
                approval_descriptor: descriptor,
                input_schema_input: input,
                reason: signature.map(Into::into),
                is_automatic: signature.map(str::is_empty),
                signature: signature.map(Into::into),
            }
        ),
        (call(), json(), base(), prop::option::of(any::<bool>())).prop_map(
            |(id, output, base, preliminary)| Chunk::ToolOutputAvailable {
                tool_call_id: id.into(),
                output,
                provider_executed: base.1,
                provider_metadata: base.2,
                tool_metadata: base.3,
                dynamic: base.4,
                preliminary,
            }
        ),
        (call(), text(), base()).prop_map(|(id, text, base)| {
            Chunk::ToolOutputError {
                tool_call_id: id.into(),
                error_text: text.into(),
                provider_executed: base.1,
                provider_metadata: base.2,
                tool_metadata: base.3,
                dynamic: base.4,
            }
        }),
        (call(), any::<bool>(), prop::option::of(text())).prop_map(|(id, approved, reason)| {
            Chunk::ToolApprovalResponse {
                approval_id: id.into(),
                approved,
                reason: reason.map(Into::into),
                provider_executed: None,
                provider_metadata: None,
            }
        }),
        call().prop_map(|id| Chunk::ToolOutputDenied { tool_call_id: id.into() }),
    ]
}

fn others() -> impl Strategy<Value = Chunk<'static>> {
    prop_oneof![
        3 => Just(Chunk::StartStep {}),
        1 => Just(Chunk::FinishStep {}),
        1 => (prop::option::of(text()), json()).prop_map(|(id, m)| Chunk::Start {
            message_id: id.map(Into::into),
            message_metadata: m
        }),
        1 => json().prop_map(|m| Chunk::MessageMetadata { message_metadata: m }),
        1 => json().prop_map(|m| Chunk::Finish { finish_reason: Some(FinishReason::Stop), message_metadata: m }),
        1 => (text(), text(), metadata()).prop_map(|(id, url, m)| Chunk::SourceUrl {
            source_id: id.into(),
            url: url.into(),
            title: None,
            provider_metadata: m
        }),
        1 => (text(), prop::option::of(text()), metadata()).prop_map(|(text, name, m)| Chunk::SourceDocument {
            source_id: text.into(),
            media_type: text.into(),
            title: text.into(),
            filename: name.map(Into::into),
            provider_metadata: m
        }),
        1 => (text(), metadata()).prop_map(|(text, m)| Chunk::File {
            url: text.into(),
            media_type: text.into(),
            provider_metadata: m
        }),
        1 => (text(), metadata()).prop_map(|(text, m)| Chunk::ReasoningFile {
            url: text.into(),
            media_type: text.into(),
            provider_metadata: m
        }),
        1 => (text(), metadata()).prop_map(|(text, m)| Chunk::Custom {
            content_kind: text.into(),
            provider_metadata: m
        }),
        2 => (call(), prop::option::of(call()), json(), prop::option::of(any::<bool>())).prop_map(
            |(name, id, data, transient)| Chunk::Data {
                name: name.into(),
                id: id.map(Into::into),
                data,
                transient
            }
        ),
        1 => Just(Chunk::Abort { reason: None }),
    ]
}

type Base = (
    &'static str,
    Option<bool>,
    Option<std::borrow::Cow<'static, ProviderMetadata>>,
    Option<std::borrow::Cow<'static, ToolMetadata>>,
    Option<bool>,
    Option<&'static str>,
);

/// The fields that many chunks of a tool call share.
fn base() -> impl Strategy<Value = Base> {
    let flag = || prop::option::weighted(0.2, any::<bool>());
    let tool_metadata = prop::option::weighted(0.2, prop_oneof![Just(r#"{"m":1}"#), Just("{}")]);
    let tool_metadata = tool_metadata.prop_map(|text| {
        text.map(|text| std::borrow::Cow::Owned(ToolMetadata::parse(text).unwrap()))
    });
    let title = prop::option::weighted(0.2, text());
    (prop_oneof![Just("x"), Just("y-z")], flag(), metadata(), tool_metadata, flag(), title)
}

fn call() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just("c1"), Just("c2")]
}

fn text() -> impl Strategy<Value = &'static str> {
    prop_oneof![Just(""), Just("a"), Just("é \"😀\\\n")]
}

fn metadata() -> impl Strategy<Value = Option<std::borrow::Cow<'static, ProviderMetadata>>> {
    prop::option::weighted(0.2, prop_oneof![Just(r#"{"p":{"a":1}}"#), Just(r#"{"p":{}}"#)])
        .prop_map(|text| {
            text.map(|text| std::borrow::Cow::Owned(ProviderMetadata::parse(text).unwrap()))
        })
}

fn citations() -> impl Strategy<Value = Option<std::borrow::Cow<'static, Citations>>> {
    let source = r#"{"type":"source","sourceType":"url","id":"s","url":"u"}"#;
    let cited = format!(r#"[{{"source":{source},"startIndex":0,"citedText":"é"}}]"#);
    prop::option::weighted(0.3, prop::sample::select(vec!["[]".to_owned(), cited]))
        .prop_map(|text| text.map(|text| std::borrow::Cow::Owned(Citations::parse(&text).unwrap())))
}

fn json() -> impl Strategy<Value = Option<std::borrow::Cow<'static, Json>>> {
    let values = [
        "null",
        "1",
        "true",
        "\"{\\\"a\\\":\"",
        "\"t\"",
        "[1,{}]",
        "{}",
        r#"{"a":{"b":1}}"#,
        r#"{"a":{"c":[]},"constructor":2}"#,
    ];
    prop::option::weighted(0.9, prop::sample::select(values.to_vec()))
        .prop_map(|text| text.map(|text| std::borrow::Cow::Owned(Json::parse(text).unwrap())))
}

#[test]
fn a_message_compacts_to_the_fewest_chunks() {
    let kinds = |text: &str| -> Vec<String> {
        let message = UiMessage::parse(text).unwrap();
        compact(&message).unwrap().iter().map(|chunk| chunk.kind().into_owned()).collect()
    };
    let part = |part: &str| format!(r#"{{"id":"1","role":"assistant","parts":[{part}]}}"#);
    for (text, expected) in [
        (r#"{"type":"text","text":"","state":"streaming"}"#, &["text-start"][..]),
        (r#"{"type":"tool-x","toolCallId":"c","state":"input-streaming"}"#, &["tool-input-start"]),
        (
            r#"{"type":"tool-x","toolCallId":"c","state":"approval-requested","input":1,"approval":{"id":"a"}}"#,
            &["tool-input-available", "tool-approval-request"],
        ),
        (
            r#"{"type":"tool-x","toolCallId":"c","state":"approval-responded","input":1,"approval":{"id":"a","approved":true}}"#,
            &["tool-input-available", "tool-approval-request", "tool-approval-response"],
        ),
        (
            r#"{"type":"tool-x","toolCallId":"c","state":"output-denied","input":1,"approval":{"id":"a","approved":false,"reason":"no"}}"#,
            &[
                "tool-input-available",
                "tool-approval-request",
                "tool-approval-response",
                "tool-output-denied",
            ],
        ),
        (
            r#"{"type":"tool-x","toolCallId":"c","state":"output-error","rawInput":"{","errorText":"no"}"#,
            &["tool-input-error"],
        ),
        (
            r#"{"type":"tool-x","toolCallId":"c","state":"output-denied","input":1,"approval":{"id":"a"}}"#,
            &["tool-input-available", "tool-approval-request", "tool-output-denied"],
        ),
    ] {
        assert_eq!(kinds(&part(text))[1..], *expected, "{text}");
    }
}

#[test]
fn a_large_stream_compacts_to_its_message() {
    let mut reducer = Reducer::new();
    let chunk = |text: &str| serde_json::from_str::<Chunk<'static>>(text).unwrap();
    reducer.push_chunk(&chunk(r#"{"type":"text-start","id":"t7"}"#)).unwrap();
    for _ in 0..1000 {
        reducer.push_chunk(&chunk(r#"{"type":"text-delta","id":"t7","delta":"more "}"#)).unwrap();
    }
    let compacted = reducer.compact().unwrap();
    let written: Value = serde_json::to_value(&compacted).unwrap();
    assert_eq!(written.as_array().unwrap().len(), 3);
    assert_eq!(written[2]["id"], "t7");
    assert_eq!(written[2]["delta"].as_str().unwrap().len(), 5000);
}
