//! Rules of the client that no recorded stream covers.

use proptest::prelude::*;
use serde_json::{Value, json};
use ui_message_stream::UiMessage;
use ui_message_stream::chunk::{FinishReason, ReceivedChunk};
use ui_message_stream::reducer::{AfterError, PartialJson, ReduceError, Reducer, ResetOn};

fn push(reducer: &mut Reducer, chunks: &[&str]) -> Result<(), ReduceError> {
    chunks.iter().try_for_each(|chunk| reducer.push(&ReceivedChunk::parse(chunk).unwrap()))
}

fn message(reducer: &mut Reducer) -> Value {
    serde_json::to_value(reducer.message()).unwrap()
}

fn reduced(chunks: &[&str]) -> Value {
    let mut reducer = Reducer::new();
    push(&mut reducer, chunks).unwrap();
    message(&mut reducer)
}

/// The metadata after all of these chunks.
fn merged(metadata: &[&str]) -> Result<Value, ReduceError> {
    let mut reducer = Reducer::new();
    for metadata in metadata {
        let chunk = format!(r#"{{"type":"message-metadata","messageMetadata":{metadata}}}"#);
        push(&mut reducer, &[&chunk])?;
    }
    Ok(message(&mut reducer)["metadata"].take())
}

#[test]
fn metadata_is_merged_exactly_as_by_the_client() {
    for (brought, held) in [
        (
            &[r#"{"a":{"b":1,"c":[1]}}"#, r#"{"a":{"c":{"d":1}}}"#][..],
            r#"{"a":{"b":1,"c":{"d":1}}}"#,
        ),
        (&[r#"{"a":{"b":1}}"#, r#"{"a":null,"d":0}"#], r#"{"a":null,"d":0}"#),
        (&["null", r#"{"a":1}"#, "null"], r#"{"a":1}"#),
        // A key keeps its first position, and a reserved key is skipped when it is merged.
        (
            &[r#"{"constructor":1}"#, r#"{"constructor":2,"a":{"prototype":1}}"#],
            r#"{"constructor":1,"a":{"prototype":1}}"#,
        ),
        (&[r#"{"a":{}}"#, r#"{"a":{"prototype":1,"b":2}}"#], r#"{"a":{"b":2}}"#),
        (&[r#"[1,{"a":1}]"#, r#"{"1":{"b":2},"x":3}"#], r#"{"0":1,"1":{"a":1,"b":2},"x":3}"#),
        (&[r#"{"a":1}"#, "[5]"], r#"{"a":1,"0":5}"#),
        (&[r#"{"a":1}"#, r#""hi""#, "7", "true"], r#"{"a":1,"0":"h","1":"i"}"#),
        (&[r#""aé""#, "{}"], r#"{"0":"a","1":"é"}"#),
        (&["7", "8"], "{}"),
        (&["7", r#"{"constructor":1}"#], "{}"),
    ] {
        let held: Value = serde_json::from_str(held).unwrap();
        assert_eq!(merged(brought).unwrap(), held, "{brought:?}");
    }
}

#[test]
fn merging_into_metadata_that_is_not_an_object_is_an_error_after_the_id_is_set() {
    for base in ["7", "true", r#""text""#] {
        let mut reducer = Reducer::new();
        let first = format!(r#"{{"type":"start","messageId":"m1","messageMetadata":{base}}}"#);
        push(&mut reducer, &[&first]).unwrap();
        let mut held = message(&mut reducer);
        let second = r#"{"type":"start","messageId":"m2","messageMetadata":{"a":1}}"#;
        let error = push(&mut reducer, &[second]).unwrap_err();
        assert_eq!(error, ReduceError::MetadataNotMergeable { kind: "start" });
        // The user interface is not notified of the new id.
        assert_eq!(serde_json::to_value(reducer.rendered()).unwrap(), held);
        held["id"] = "m2".into();
        assert_eq!(message(&mut reducer), held);
        let later = push(&mut reducer, &[r#"{"type":"start-step"}"#]);
        assert_eq!(later.unwrap_err(), ReduceError::AlreadyFailed);
    }
}

#[test]
fn a_finish_chunk_sets_its_reason_even_if_its_metadata_fails() {
    let mut reducer = Reducer::new();
    push(&mut reducer, &[r#"{"type":"start","messageMetadata":1}"#]).unwrap();
    let finish = r#"{"type":"finish","finishReason":"stop","messageMetadata":{"a":1}}"#;
    push(&mut reducer, &[finish]).unwrap_err();
    assert_eq!(reducer.finish_reason(), Some(FinishReason::Stop));
}

#[test]
fn metadata_fields_keep_their_order_for_any_number_of_fields() {
    let mut reducer = Reducer::new();
    for n in 0..30 {
        let merged = format!(r#"{{"in":{{"k{n}":{n},"k3":{n}}}}}"#);
        let chunk = format!(r#"{{"type":"message-metadata","messageMetadata":{merged}}}"#);
        push(&mut reducer, &[&chunk]).unwrap();
    }
    let keys = [0, 3, 1, 2].into_iter().chain(4..30);
    let fields = keys.map(|key| format!(r#""k{key}":{}"#, if key == 3 { 29 } else { key }));
    let expected = format!(r#"{{"in":{{{}}}}}"#, fields.collect::<Vec<_>>().join(","));
    assert_eq!(reducer.message().metadata.as_ref().unwrap().as_str(), expected);
}

#[test]
fn metadata_may_nest_as_deep_as_a_browser_supports() {
    let nested = |depth: usize| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
    let deep = nested(1000);
    let chunk = |json: &str| format!(r#"{{"type":"finish","messageMetadata":{json}}}"#);
    let mut reducer = Reducer::new();
    push(&mut reducer, &[&chunk(&deep), &chunk(&deep.replace('1', "2"))]).unwrap();
    let held = reducer.message().metadata.clone().unwrap();
    assert_eq!(held.as_str(), deep.replace('1', "2"));
    let error = push(&mut reducer, &[&chunk(&nested(1001))]).unwrap_err();
    assert_eq!(error, ReduceError::MetadataTooDeep { kind: "finish" });
    drop(reducer);
    let mut reducer = Reducer::new();
    push(&mut reducer, &[&chunk(&nested(100_000))]).unwrap();
}

#[test]
fn an_error_chunk_stops_the_reducer_or_not_as_configured() {
    let chunks = [
        r#"{"type":"text-start","id":"0"}"#,
        r#"{"type":"error","errorText":"rate limited"}"#,
        r#"{"type":"text-delta","id":"0","delta":"Hi"}"#,
        r#"{"type":"error","errorText":"again"}"#,
    ];
    for (after_error, text) in [(AfterError::Stop, ""), (AfterError::Continue, "Hi")] {
        let mut reducer = Reducer::new().with_after_error(after_error);
        push(&mut reducer, &chunks).unwrap();
        assert_eq!(message(&mut reducer)["parts"][0]["text"], text);
        assert_eq!(reducer.error_text(), Some("rate limited"));
        assert_eq!(reducer.has_stopped(), after_error == AfterError::Stop);
    }
}

#[test]
fn a_start_chunk_resets_the_message_as_configured() {
    let held =
        r#"{"id":"m1","role":"assistant","metadata":{"a":1},"parts":[{"type":"step-start"}]}"#;
    let chunk = |id: Option<&str>| match id {
        Some(id) => json!({ "type": "start", "messageId": id }).to_string(),
        None => json!({ "type": "start" }).to_string(),
    };
    for (reset_on, id, is_reset) in [
        (ResetOn::Never, Some("m2"), false),
        (ResetOn::Never, None, false),
        (ResetOn::OtherId, Some("m2"), true),
        (ResetOn::OtherId, Some("m1"), false),
        (ResetOn::OtherId, None, false),
        (ResetOn::FirstStart, Some("m1"), true),
        (ResetOn::FirstStart, None, true),
    ] {
        let mut reducer =
            Reducer::continuing(UiMessage::parse(held).unwrap()).with_reset_on(reset_on);
        push(&mut reducer, &[&chunk(id)]).unwrap();
        let mut expected: Value = serde_json::from_str(held).unwrap();
        if is_reset {
            expected = json!({ "role": "assistant", "parts": [] });
        }
        expected["id"] = id.unwrap_or("m1").into();
        assert_eq!(message(&mut reducer), expected, "{reset_on:?} {id:?}");
        // A second `start` is a reset only if it names another message.
        push(&mut reducer, &[r#"{"type":"start-step"}"#, &chunk(None)]).unwrap();
        assert!(!reducer.message().parts.is_empty());
    }
}

#[test]
fn a_message_that_is_not_the_assistants_is_not_continued() {
    let user = r#"{"id":"u1","role":"user","metadata":1,"parts":[{"type":"text","text":"Hi"}]}"#;
    let mut reducer = Reducer::continuing(UiMessage::parse(user).unwrap());
    assert_eq!(message(&mut reducer), json!({ "id": "u1", "role": "assistant", "parts": [] }));
}

#[test]
fn a_step_is_rendered_when_the_next_part_arrives() {
    let mut reducer = Reducer::new();
    assert!(reducer.rendered().is_none());
    push(&mut reducer, &[r#"{"type":"start-step"}"#]).unwrap();
    assert!(reducer.rendered().is_none());
    push(&mut reducer, &[r#"{"type":"start","messageId":"m1"}"#, r#"{"type":"start-step"}"#])
        .unwrap();
    assert_eq!(reducer.rendered().unwrap().parts.len(), 1);
    assert_eq!(reducer.message().parts.len(), 2);
    assert_eq!(reducer.rendered().unwrap().parts.len(), 1);
    push(&mut reducer, &[r#"{"type":"text-start","id":"0"}"#]).unwrap();
    let parts = serde_json::to_value(&reducer.rendered().unwrap().parts).unwrap();
    let kinds = [&parts[0]["type"], &parts[1]["type"], &parts[2]["type"]];
    assert_eq!(kinds, ["step-start", "step-start", "text"]);
}

#[test]
fn a_denied_call_keeps_the_fields_of_its_part() {
    let part = &reduced(&[
        r#"{"type":"tool-input-start","toolCallId":"c1","toolName":"x","inputEncoding":"text"}"#,
        r#"{"type":"tool-input-delta","toolCallId":"c1","inputTextDelta":"ab"}"#,
        r#"{"type":"tool-output-denied","toolCallId":"c1"}"#,
    ])["parts"][0];
    let denied = json!({
        "type": "tool-x", "toolCallId": "c1", "state": "output-denied",
        "input": "ab", "rawInput": "ab", "inputEncoding": "text",
    });
    assert_eq!(*part, denied);
}

#[test]
fn an_input_can_continue_after_its_end() {
    let whole = json!({ "type": "tool-input-available", "toolCallId": "c", "toolName": "x", "input": { "a": 1 } });
    let delta = |piece: &str| {
        json!({ "type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": piece })
            .to_string()
    };
    // In the notation of the complete input, and in another one.
    for text in [r#"{"a":1}"#, r#"{"a": 1}"#] {
        let mut reducer = Reducer::new();
        push(&mut reducer, &[r#"{"type":"tool-input-start","toolCallId":"c","toolName":"x"}"#])
            .unwrap();
        let mut raw = String::new();
        for piece in [text, " ", " "] {
            raw.push_str(piece);
            push(&mut reducer, &[&delta(piece)]).unwrap();
            let part = &message(&mut reducer)["parts"][0];
            assert_eq!(part["rawInput"], raw);
            assert_eq!(part["input"], json!({ "a": 1 }));
            push(&mut reducer, &[&whole.to_string()]).unwrap();
            assert_eq!(message(&mut reducer)["parts"][0]["rawInput"], Value::Null);
        }
    }
}

#[test]
fn an_input_that_starts_again_leaves_earlier_steps_unchanged() {
    let begin = r#"{"type":"tool-input-start","toolCallId":"c1","toolName":"x"}"#;
    let parts = &reduced(&[
        begin,
        r#"{"type":"tool-input-delta","toolCallId":"c1","inputTextDelta":"[1,"}"#,
        r#"{"type":"start-step"}"#,
        r#"{"type":"tool-input-delta","toolCallId":"c1","inputTextDelta":"2"}"#,
        r#"{"type":"start-step"}"#,
        begin,
        r#"{"type":"tool-input-delta","toolCallId":"c1","inputTextDelta":"{"}"#,
    ])["parts"];
    assert_eq!(parts[0]["rawInput"], "[1,");
    assert_eq!(parts[0]["input"], json!([1]));
    assert_eq!(parts[2]["rawInput"], "[1,2");
    assert_eq!(parts[2]["input"], json!([1, 2]));
    assert_eq!(parts[4]["input"], json!({}));
}

proptest! {
    #[test]
    fn a_text_in_pieces_is_read_like_the_whole_text(
        pieces in prop::collection::vec("[{}\\[\\]:,\"\\\\ue0-2trufalsn +.é😀\n -]{0,6}|\\PC{0,3}", 0..8)
    ) {
        let mut partial = PartialJson::default();
        pieces.iter().for_each(|piece| partial.push(piece));
        prop_assert_eq!(partial.read(), PartialJson::from(&*pieces.concat()).read());
    }
}

#[test]
fn reading_the_message_does_not_change_the_reducer() {
    let chunks = [
        r#"{"type":"tool-input-start","toolCallId":"c1","toolName":"x"}"#,
        r#"{"type":"tool-input-delta","toolCallId":"c1","inputTextDelta":"[1,"}"#,
        r#"{"type":"tool-approval-request","toolCallId":"c1","approvalId":"a1"}"#,
        r#"{"type":"tool-input-delta","toolCallId":"c1","inputTextDelta":"2]"}"#,
        r#"{"type":"tool-output-error","toolCallId":"c1","errorText":"no"}"#,
        r#"{"type":"tool-output-denied","toolCallId":"c1"}"#,
        r#"{"type":"message-metadata","messageMetadata":{"a":{"b":1}}}"#,
        r#"{"type":"message-metadata","messageMetadata":{"a":{"c":1}}}"#,
        r#"{"type":"tool-input-available","toolCallId":"c1","toolName":"x","input":{}}"#,
    ];
    let mut looked_at = Reducer::new();
    for (at, chunk) in chunks.iter().enumerate() {
        push(&mut looked_at, &[chunk]).unwrap();
        assert_eq!(message(&mut looked_at), reduced(&chunks[..=at]), "{chunk}");
    }
}

#[test]
fn the_cost_of_a_chunk_does_not_grow_with_the_message() {
    let mut reducer = Reducer::new();
    let count = 20_000;
    let each = |reducer: &mut Reducer, of: &dyn Fn(usize) -> String| {
        for n in 0..count {
            push(reducer, &[&of(n)]).unwrap();
        }
    };
    each(&mut reducer, &|n| {
        json!({ "type": "tool-input-available", "toolCallId": n.to_string(), "toolName": "x", "input": n }).to_string()
    });
    each(&mut reducer, &|n| {
        json!({ "type": "data-x", "id": n.to_string(), "data": 1 }).to_string()
    });
    push(&mut reducer, &[r#"{"type":"start-step"}"#]).unwrap();
    each(&mut reducer, &|n| {
        json!({ "type": "tool-output-available", "toolCallId": n.to_string(), "output": n })
            .to_string()
    });
    each(&mut reducer, &|n| {
        json!({ "type": "data-x", "id": n.to_string(), "data": n }).to_string()
    });
    each(&mut reducer, &|n| {
        json!({ "type": "message-metadata", "messageMetadata": { n.to_string(): n } }).to_string()
    });
    let nested = |depth: usize, inner: &str| {
        format!("{}{inner}{}", r#"{"a":"#.repeat(depth), "}".repeat(depth))
    };
    let deep = nested(990, &format!("\"{}\"", "x".repeat(1_000_000)));
    for metadata in (1..990).map(|depth| nested(depth, r#"{"b":1}"#)).chain([deep.clone(), deep]) {
        let chunk = format!(r#"{{"type":"message-metadata","messageMetadata":{metadata}}}"#);
        push(&mut reducer, &[&chunk]).unwrap();
    }
    push(&mut reducer, &[r#"{"type":"tool-input-start","toolCallId":"c","toolName":"x"}"#])
        .unwrap();
    each(&mut reducer, &|_| {
        json!({ "type": "tool-input-delta", "toolCallId": "c", "inputTextDelta": "[\"" })
            .to_string()
    });
    let message = reducer.message();
    assert_eq!(message.parts.len(), 2 * count + 2);
    assert_eq!(message.tool_parts().filter(|part| part.is_settled()).count(), count);
}
