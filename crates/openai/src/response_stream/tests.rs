//! Streams that are changed as providers change them: nothing panics, no answer is empty in silence, no call of a
//! response that was cut off runs, and each call has one result. How a response ended is read from the changed stream
//! here, without the readers.
//!
//! `STREAM_CASES` sets the number of cases (3 000), `STREAM_SEED` the seed.

use std::collections::HashMap;

use axum::body::Bytes;
use futures::{FutureExt, StreamExt};
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::{Value, json};
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
        let body = body(&events, &mut dice);
        let said = Said::by(name, &body);
        let answer = Answer::of(read(&endpoint, name, &body, &mut dice));
        *ends.entry(answer.end).or_insert(0) += 1;
        assert!(answer.has_content || answer.end != "finished" && !said.has_text, "{body}");
        assert!(answer.has_ended_well || answer.runs == 0, "{body}");
        assert!(!said.fragments.lack_a_piece() || answer.runs == 0, "{body}");
        assert!(name.starts_with("chat") || answer.runs <= said.calls(), "{body}");
        match said.end {
            // It may be empty, or its calls may be invalid.
            Some(Ok(true)) => assert_ne!(answer.end, "failed", "{body}"),
            Some(Ok(false)) => assert_eq!(answer.runs, 0, "{body}"),
            Some(Err(())) | None => assert_eq!((answer.end, answer.runs), ("failed", 0), "{body}"),
        }
        for (call, results) in answer.results {
            assert_eq!(results, 1, "results of {call}: {body}");
        }
    }
    println!("{cases} streams: {ends:?}");
    let is_seen = |end: &str| ends.get(end).is_some_and(|count| *count > 10);
    let all = ["finished", "failed", "empty", "ran", "not run"];
    assert!(cases < 1_000 || all.into_iter().all(is_seen), "{ends:?}");
}

/// Returns the body of a response with these events. It may end anywhere.
fn body(events: &[String], dice: &mut Dice) -> String {
    let mut body = String::new();
    for event in events {
        if dice.chance(5) {
            let others =
                [": keepalive\n\n", "event: ping\ndata: {}\n\n", "\n", "id: 7\n", "retry: 10\n\n"];
            body.push_str(dice.pick(&others));
        }
        body.push_str(&format!("data: {event}\n\n"));
    }
    if dice.chance(80) {
        body.push_str("data: [DONE]\n\n");
    }
    if dice.chance(20) {
        let end = dice.below(body.len() + 1);
        body.truncate((0..=end).rfind(|at| body.is_char_boundary(*at)).unwrap());
    }
    body
}

/// What a stream says.
#[derive(Default)]
struct Said {
    has_text: bool,
    /// The function calls of a response in each kind of event: begun, ended, and in the whole response.
    calls: [usize; 3],
    fragments: Fragments,
    /// Whether the response is complete, if it ended; or an error.
    end: Option<Result<bool, ()>>,
}

impl Said {
    fn by(name: &str, body: &str) -> Self {
        let mut said = Said::default();
        let mut ends_with_usage = false;
        let mut is_done = false;
        // An event that does not end does not count.
        let (whole, _) = body.rsplit_once("\n\n").unwrap_or_default();
        for data in whole.lines().filter_map(|line| line.strip_prefix("data: ")) {
            if data == "[DONE]" {
                is_done = true;
                break;
            }
            // Half a character is no error.
            let Ok(event) = serde_json::from_str::<Value>(&data.replace("\\ud", "\\u0")) else {
                continue;
            };
            if !event.is_object() {
                continue;
            }
            let nothing = [Value::Null, false.into(), 0.into(), "".into(), json!([])];
            if !nothing.contains(&event["error"]) {
                said.end = Some(Err(()));
                return said;
            }
            if name.starts_with("responses") {
                said.response_event(&event);
                continue;
            }
            let choices = event["choices"].as_array().into_iter().flatten();
            let choices: Vec<_> = choices.filter(|choice| choice.is_object()).collect();
            ends_with_usage = choices.is_empty() && (ends_with_usage || event["usage"].is_object());
            choices.into_iter().for_each(|choice| said.choice(choice));
        }
        if said.end.is_none() && is_done && ends_with_usage {
            said.end = Some(Ok(true));
        }
        said
    }

    /// The number of function calls, which may have other ids in each kind of event.
    fn calls(&self) -> usize {
        self.calls.into_iter().max().unwrap()
    }

    fn choice(&mut self, choice: &Value) {
        if matches!(choice["index"].as_u64(), Some(1..)) || choice["index"] == "7" {
            return;
        }
        let is_delta = choice["delta"].is_object();
        self.fragments.push(choice);
        let text = &choice[if is_delta { "delta" } else { "message" }]["content"];
        self.has_text |= is_delta && text.as_str().is_some_and(|text| !text.trim().is_empty());
        match choice["finish_reason"].as_str() {
            None | Some("") => {}
            Some(reason) if self.end != Some(Ok(false)) => {
                self.end = Some(Ok(matches!(reason, "stop" | "tool_calls")));
            }
            Some(_) => {}
        }
    }

    fn response_event(&mut self, event: &Value) {
        if self.end.is_some() {
            return;
        }
        let is_call = |item: &&Value| item["type"] == "function_call";
        let response = &event["response"];
        match event["type"].as_str() {
            Some("response.output_item.added") if is_call(&&event["item"]) => self.calls[0] += 1,
            Some("response.output_item.done") if is_call(&&event["item"]) => self.calls[1] += 1,
            Some("response.output_text.delta") => {
                let delta = event["delta"].as_str();
                self.has_text |= delta.is_some_and(|delta| !delta.trim().is_empty());
            }
            Some("response.completed") => {
                let output = response["output"].as_array().into_iter().flatten();
                self.calls[2] = output.filter(is_call).count();
                let is_cut = response["incomplete_details"].is_object();
                let status = response["status"].as_str();
                self.end = Some(Ok(!is_cut && matches!(status, None | Some("" | "completed"))));
            }
            Some("response.incomplete") => self.end = Some(Ok(false)),
            _ => {}
        }
    }
}

/// The fragments of calls before the first finish reason of a Chat Completions stream.
#[derive(Default)]
struct Fragments {
    /// The index and the id of each, and whether it names a tool.
    calls: Vec<[Value; 3]>,
    has_string: bool,
    has_value: bool,
    is_ended: bool,
    /// There are others, which the readers may treat in another way.
    has_others: bool,
}

impl Fragments {
    fn push(&mut self, choice: &Value) {
        let fragments = choice["delta"]["tool_calls"].as_array().into_iter().flatten();
        let fragments: Vec<&Value> = fragments.filter(|it| it["function"].is_object()).collect();
        self.has_others |= self.is_ended && !fragments.is_empty() || !choice["message"].is_null();
        for fragment in fragments {
            let function = &fragment["function"];
            let has_name = function["name"].as_str().is_some_and(|name| !name.is_empty());
            self.calls.push([fragment["index"].clone(), fragment["id"].clone(), has_name.into()]);
            match &function["arguments"] {
                Value::Null => {}
                Value::String(text) => self.has_string |= !text.is_empty(),
                _ => self.has_value = true,
            }
        }
        self.is_ended |= choice["finish_reason"].as_str().is_some_and(|reason| !reason.is_empty());
    }

    /// Whether all are of one call, whose arguments are a JSON value beside strings.
    fn lack_a_piece(&self) -> bool {
        let is_one = |at: usize| self.calls.windows(2).all(|two| two[0][at] == two[1][at]);
        let named = self.calls.iter().filter(|call| call[2] == true).count();
        let ids = self.calls.iter().map(|call| &call[1]).filter(|id| !id.is_null());
        let is_one_call = is_one(0) && named == 1 && ids.count() < 2 && !self.has_others;
        is_one_call && self.has_string && self.has_value
    }
}

/// Changes one thing of a stream.
fn change(events: &mut Vec<String>, dice: &mut Dice) {
    if events.is_empty() {
        return;
    }
    let at = dice.below(events.len());
    match dice.below(12) {
        // The whole response has other ids, or another status.
        10 => change_whole(events, |response| {
            let items = response["output"].as_array_mut().into_iter().flatten();
            for item in items.filter_map(Value::as_object_mut) {
                item.insert("id".into(), "another".into());
                item.insert("call_id".into(), "another_call".into());
            }
        }),
        11 => {
            let status = dice.pick(&["incomplete", "cancelled", "failed", "completed"]);
            change_whole(events, |response| response["status"] = status.into());
        }
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
        // An item comes only when it is complete, or only with the whole response.
        5 => {
            let kind =
                |event: &String| serde_json::from_str::<Value>(event).ok()?.get("type").cloned();
            let dropped = kind(&events[at]);
            events.retain(|event| dropped.is_none() || kind(event) != dropped);
        }
        6 => events[at] = events[at].replacen("\"delta\":{", "\"message\":{", 1),
        7 => split(events, at, dice),
        _ => {
            let Ok(mut event) = serde_json::from_str(&events[at]) else { return };
            change_value(&mut event, dice);
            events[at] = event.to_string();
        }
    }
}

/// Changes the whole response in the last event.
fn change_whole(events: &mut [String], change: impl FnOnce(&mut Value)) {
    for event in events.iter_mut().rev() {
        if let Ok(mut whole) = serde_json::from_str::<Value>(event)
            && whole["type"] == "response.completed"
            && whole["response"].is_object()
        {
            change(&mut whole["response"]);
            *event = whole.to_string();
            return;
        }
    }
}

/// Splits the delta of an event in two, at any place of its UTF-16.
fn split(events: &mut Vec<String>, at: usize, dice: &mut Dice) {
    let Ok(mut event) = serde_json::from_str::<Value>(&events[at]) else { return };
    let places =
        ["/delta", "/choices/0/delta/content", "/choices/0/delta/tool_calls/0/function/arguments"];
    let Some(place) =
        places.into_iter().find(|place| event.pointer(place).is_some_and(Value::is_string))
    else {
        return;
    };
    let delta = std::mem::replace(event.pointer_mut(place).unwrap(), MARK.into());
    let units: Vec<u16> = delta.as_str().unwrap().encode_utf16().collect();
    let (first, second) = units.split_at(dice.below(units.len() + 1));
    let event = event.to_string();
    let with = |units: &[u16]| {
        let escaped: String = units.iter().map(|unit| format!("\\u{unit:04x}")).collect();
        event.replace(MARK, &escaped)
    };
    events.splice(at..=at, [with(first), with(second)]);
}

const MARK: &str = "<delta>";

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
fn read(endpoint: &Endpoint, name: &str, body: &str, dice: &mut Dice) -> Vec<Input> {
    let endpoint = endpoint.clone();
    let body = if dice.chance(10) { body.replace('\n', "\r\n") } else { body.to_owned() };
    let size = 1 + dice.below(200);
    let frame = |piece: &[u8]| Ok::<_, BoxError>(Frame::data(Bytes::copy_from_slice(piece)));
    let frames: Vec<_> = body.as_bytes().chunks(size).map(frame).collect();
    let body = Body::wrap(StreamBody::new(futures::stream::iter(frames)));
    if name.starts_with("chat") {
        inputs(endpoint.clone(), body, ChatCompletions::new(endpoint, "m").reader())
    } else {
        let model = Responses::new(endpoint.clone(), "m");
        let model = if dice.chance(50) { model.with_stored_responses() } else { model };
        let model = if dice.chance(50) { model.with_reasoning("low") } else { model };
        inputs(endpoint, body, model.reader(&[]))
    }
}

fn inputs(endpoint: Endpoint, body: Body, reader: impl ReadEvent) -> Vec<Input> {
    let state = State::Streaming(body, Box::default(), Some(Vec::new()));
    let left_out = LeftOut::default();
    let events = VecDeque::new();
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
    end: &'static str,
    has_content: bool,
    has_ended_well: bool,
    runs: usize,
    /// The number of results of each call.
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
                        RunEnd::Failed => "failed",
                        RunEnd::Empty => "empty",
                        RunEnd::StepLimit if answer.runs > 0 => "ran",
                        _ => "not run",
                    };
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
            AgentEvent::ToolInput { call, .. } => {
                self.has_content = true;
                self.results.entry(call.id.to_string()).or_default();
            }
            // A call that does not end is shown with an error.
            AgentEvent::ToolInputStart { .. }
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
                let tool_call_id = call.tool_call_id;
                let decision = CallDecision::Run;
                vec![Input::ApprovalDecided { tool_call_id, decision }]
            }
            Effect::RunTool(call) => {
                // No agent has a tool without a name.
                self.runs += usize::from(!call.tool_name.is_empty());
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

const FIXTURES: [&str; 24] = [
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
    "chat/a_call_cut_off_before_its_arguments",
    "chat/a_call_without_a_finish_reason",
    "chat/keep_alives_as_data",
    "responses/a_call_cut_off_before_its_arguments",
    "responses/arguments_without_the_end_of_the_item",
    "responses/keep_alives_as_data",
    "responses/mcp_approval_asked",
    "responses/a_call_with_another_id_in_each_event",
    "responses/items_that_are_numbered_in_two_ways",
    "responses/encrypted_reasoning_only_in_the_last_event",
    "responses/a_number_between_deltas_of_arguments",
    "chat/a_value_between_pieces_of_arguments",
];
