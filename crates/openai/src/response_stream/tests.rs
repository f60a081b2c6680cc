//! Streams that are changed as providers change them: nothing panics, no answer is empty in silence, no call of a
//! response that was cut off runs, and each call has one result.
//!
//! `STREAM_CASES` sets the number of cases (3 000), `STREAM_SEED` the seed.

use std::collections::HashMap;

use axum::body::Bytes;
use futures::{FutureExt, StreamExt};
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::json;
use test_support::recorded_streams::lines_of;
use test_support::rng::{Dice, Shown, setting};
use ui_message_stream::Json;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream_agent::tool_loop::{
    Action, CallDecision, Effect, Input, RunEnd, ToolEvent, ToolLoop,
};

use super::*;
use crate::{ChatCompletions, Responses};

#[test]
fn of_any_stream_no_cut_off_call_runs_and_no_empty_answer_is_silent() {
    let seed = setting("STREAM_SEED").unwrap_or(20_261_130);
    let cases = setting("STREAM_CASES").unwrap_or(3_000);
    let endpoint = Endpoint::new("http://localhost/v1").unwrap();
    let recordings = FIXTURES.map(|name| (name, lines_of(name)));
    let mut ends = HashMap::new();
    for case in 0..cases {
        let _shown = Shown { seed, case };
        let mut dice = Dice::new(seed, case);
        let (name, recording) = &recordings[dice.below(recordings.len())];
        let mut events: Vec<String> = recording.lines().map(str::to_owned).collect();
        for _ in 0..dice.below(4) {
            change(&mut events, &mut dice);
        }
        let mut body: Vec<u8> =
            events.iter().flat_map(|event| format!("data: {event}\n\n").into_bytes()).collect();
        if dice.chance(80) {
            body.extend(b"data: [DONE]\n\n");
        }
        if dice.chance(20) {
            body.truncate(dice.below(body.len() + 1));
        }
        let answer = Answer::of(read(&endpoint, name, &body, &mut dice));
        *ends.entry(answer.end.clone()).or_insert(0) += 1;
        assert!(
            answer.end != "finished" || answer.has_content,
            "an empty answer in silence: {events:?}"
        );
        assert!(answer.has_ended_well || answer.runs == 0, "{events:?}");
        for (call, results) in answer.results {
            assert_eq!(results, 1, "results of {call}: {events:?}");
        }
    }
    println!("{cases} streams: {ends:?}");
    let is_seen = |end: &str| ends.get(end).is_some_and(|count| *count > 10);
    assert!(cases < 1_000 || ["finished", "failed", "ran"].into_iter().all(is_seen), "{ends:?}");
}

/// Changes one thing of a stream.
fn change(events: &mut Vec<String>, dice: &mut Dice) {
    if events.is_empty() {
        return;
    }
    let at = dice.below(events.len());
    match dice.below(7) {
        0 => drop(events.remove(at)),
        1 => events.insert(at, events[at].clone()),
        2 => events.truncate(at),
        3 => {
            let kept =
                [": keepalive", "", "null", "[]", "\"ping\"", "{", "{}", "{\"error\": null}"];
            events.insert(at, dice.pick(&kept).to_owned());
        }
        4 => {
            let other = dice.below(events.len());
            events.swap(at, other);
        }
        _ => {
            let Ok(mut event) = serde_json::from_str(&events[at]) else { return };
            change_value(&mut event, dice);
            events[at] = event.to_string();
        }
    }
}

/// Changes a field somewhere in a value: it is missing, `null`, or of another type.
fn change_value(value: &mut Value, dice: &mut Dice) {
    let place = dice.below(64);
    let inner = match value {
        Value::Object(object) if !object.is_empty() => {
            let name = object.keys().nth(place % object.len()).cloned().unwrap();
            if dice.chance(15) {
                object.remove(&name);
                return;
            }
            object.get_mut(&name)
        }
        Value::Array(list) if !list.is_empty() => {
            let at = place % list.len();
            list.get_mut(at)
        }
        _ => None,
    };
    match inner {
        Some(inner) if dice.chance(80) => change_value(inner, dice),
        _ => {
            *value = match (dice.below(4), &*value) {
                (0, _) => Value::Null,
                (1, Value::Number(number)) => number.to_string().into(),
                (1, _) => json!(7),
                (2, _) => json!({}),
                _ => json!(""),
            }
        }
    }
}

/// Reads a body that arrives in pieces.
fn read(endpoint: &Endpoint, name: &str, body: &[u8], dice: &mut Dice) -> Vec<Input> {
    let endpoint = endpoint.clone();
    let size = 1 + dice.below(200);
    let frame = |piece: &[u8]| Ok::<_, BoxError>(Frame::data(Bytes::copy_from_slice(piece)));
    let frames: Vec<_> = body.chunks(size).map(frame).collect();
    let body = Body::wrap(StreamBody::new(futures::stream::iter(frames)));
    match name.starts_with("chat") {
        true => inputs(endpoint.clone(), body, ChatCompletions::new(endpoint, "m").reader()),
        false => inputs(endpoint.clone(), body, Responses::new(endpoint, "m").reader(&[])),
    }
}

fn inputs(endpoint: Endpoint, body: Body, reader: impl ReadEvent) -> Vec<Input> {
    let state = State::Streaming(body, Box::default(), Some(Vec::new()));
    let (left_out, events) = (LeftOut::default(), VecDeque::new());
    let stream = ResponseStream { endpoint, state, reader, left_out, has_read: false, events };
    let events: Vec<_> = stream.collect().now_or_never().unwrap();
    let input = |event: Result<ModelEvent, BoxError>| match event {
        Ok(event) => Input::Model(event),
        Err(error) => Input::ModelFailed(error.to_string().into()),
    };
    events.into_iter().map(input).collect()
}

/// What an agent whose tools all run makes of the events of one response.
#[derive(Default)]
struct Answer {
    end: String,
    has_content: bool,
    has_ended_well: bool,
    runs: usize,
    results: HashMap<String, usize>,
}

impl Answer {
    fn of(inputs: Vec<Input>) -> Self {
        let mut answer = Answer {
            has_ended_well: matches!(
                inputs.last(),
                Some(Input::Model(ModelEvent::Finished(
                    FinishReason::Stop | FinishReason::ToolCalls
                )))
            ),
            ..Answer::default()
        };
        let mut run = ToolLoop::new(1);
        let mut inputs: VecDeque<Input> = inputs.into();
        loop {
            match run.poll() {
                Action::Emit(event) => answer.see(event),
                Action::Start(effect) => inputs.extend(answer.replies(effect)),
                Action::Wait => run.handle(inputs.pop_front().unwrap()),
                Action::End(end) => {
                    answer.end = match end {
                        RunEnd::Finished => "finished",
                        RunEnd::Failed | RunEnd::Empty => "failed",
                        RunEnd::StepLimit if answer.runs > 0 => "ran",
                        _ => "not run",
                    }
                    .to_owned();
                    return answer;
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn see(&mut self, event: AgentEvent) {
        match event {
            AgentEvent::TextDelta { delta, .. } | AgentEvent::ReasoningDelta { delta, .. } => {
                self.has_content |= !delta.trim().is_empty();
            }
            AgentEvent::ToolOutput { tool_call_id: id, .. }
            | AgentEvent::ToolFailed { tool_call_id: id, .. } => {
                *self.results.entry(id.to_string()).or_default() += 1;
            }
            // A call that does not end is shown with an error.
            AgentEvent::ToolInputStart { .. }
            | AgentEvent::ToolInput { .. }
            | AgentEvent::ToolInputInvalid { .. }
            | AgentEvent::File(_)
            | AgentEvent::Source(_) => self.has_content = true,
            _ => {}
        }
    }

    fn replies(&mut self, effect: Effect) -> Vec<Input> {
        match effect {
            Effect::ValidateInput(call) => {
                vec![Input::InputValidated { tool_call_id: call.tool_call_id, result: Ok(()) }]
            }
            Effect::DecideApproval(call) => {
                let (tool_call_id, decision) = (call.tool_call_id, CallDecision::Run);
                vec![Input::ApprovalDecided { tool_call_id, decision }]
            }
            Effect::RunTool(call) => {
                self.runs += 1;
                let event = ToolEvent::Output(Json::null());
                vec![Input::Tool { tool_call_id: call.tool_call_id, event }]
            }
            Effect::RequestApprovals(calls) => {
                let failed = |id| Input::Tool {
                    tool_call_id: id,
                    event: ToolEvent::Failed("not asked".to_owned()),
                };
                calls.into_iter().map(|call| failed(call.tool_call_id)).collect()
            }
            _ => Vec::new(),
        }
    }
}

const FIXTURES: [&str; 12] = [
    "chat/text_is_joined",
    "chat/reasoning_then_arguments_in_pieces",
    "chat/two_calls_whose_pieces_alternate",
    "chat/a_call_without_arguments",
    "chat/usage_behind_the_finish_reason",
    "chat/text_with_citations",
    "responses/text",
    "responses/reasoning_and_a_function_call",
    "responses/a_call_cut_off_in_progress",
    "responses/output_only_in_the_last_event",
    "responses/web_search_with_sources",
    "responses/mcp_calls",
];
