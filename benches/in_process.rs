//! What the core costs, beside what anybody would write without it:
//!   cargo bench --bench in_process
//!
//! Prints Markdown tables. Each time is the median of the rounds. In each round the arms of a table run one after the
//! other, so that a change of the clock, or another process, reaches all of them. The ratios of one run count, not
//! the times.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use futures::executor::block_on;
use futures::stream::{self, StreamExt};
use http_body_util::BodyExt;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use ui_message_stream::event::ToolCall;
use ui_message_stream::reducer::Reducer;
use ui_message_stream::request::Limits;
use ui_message_stream::sse::Encoder;
use ui_message_stream::{AgentEvent, ChatRequest, Chunk, Json, Translator};

const ROUNDS: usize = 15;
const WORDS: [&str; 8] =
    ["The ", "agent ", "reads ", "a \"quoted\" ", "file,\n", "and ", "answers ", "briefly. "];

fn main() {
    write_texts();
    write_outputs();
    read_requests();
    grow();
}

/// An arm of a table: its name, and what it does.
type Arm<'a> = (&'static str, Box<dyn FnMut() + 'a>);

/// Prints the time of each arm, divided by `count`, and its ratio to the first arm.
fn table(title: &str, unit: &str, count: usize, mut arms: Vec<Arm<'_>>) {
    let mut times = vec![Vec::with_capacity(ROUNDS); arms.len()];
    // The first round warms up.
    for round in 0..=ROUNDS {
        for ((_, run), times) in arms.iter_mut().zip(&mut times) {
            let begun = Instant::now();
            run();
            if round > 0 {
                times.push(begun.elapsed().as_secs_f64());
            }
        }
    }
    let times: Vec<f64> = times.into_iter().map(median).collect();
    println!("\n{title}\n\n| | {unit} | ÷ {} |\n|---|---|---|", arms[0].0);
    for ((name, _), time) in arms.iter().zip(&times) {
        let scaled = time * 1e9 / count as f64;
        println!("| {name} | {scaled:.1} | {:.2} |", time / times[0]);
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Writes the frames of these events, as a response does.
fn frames_of(events: &[AgentEvent], out: &mut Vec<u8>) {
    let (mut translator, mut encoder) = (Translator::new("msg_1"), Encoder::default());
    for event in events {
        let write = &mut |chunk: Chunk<'_>| encoder.encode(&chunk, out);
        translator.handle_event(event, write).expect("the events are valid");
    }
}

/// Writes each chunk with `serde_json`.
fn frames_with_serde<T: Serialize>(chunks: &[T], out: &mut Vec<u8>) {
    for chunk in chunks {
        out.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut *out, chunk).expect("a chunk is JSON");
        out.extend_from_slice(b"\n\n");
    }
}

/// Responds with these chunks as axum does without this crate.
fn respond_with_axum(chunks: Arc<[HandWritten]>) -> Response {
    let events = stream::iter(0..chunks.len());
    Sse::new(events.map(move |at| Event::default().json_data(&chunks[at]))).into_response()
}

fn drain(response: Response) {
    let mut body = response.into_body();
    block_on(async {
        while let Some(frame) = body.frame().await {
            let _ = black_box(frame.expect("a chunk is JSON"));
        }
    });
}

/// Prints what these events cost as frames, per `unit`: copied, written with `serde_json`, by axum, and by this crate.
fn compare_writers(title: &str, unit: &str, events: &[AgentEvent], chunks: &Arc<[HandWritten]>) {
    let mut frames = Vec::new();
    frames_of(events, &mut frames);
    let count = chunks.len();
    let room = || Vec::with_capacity(2 * frames.len());
    let (mut copied, mut serde, mut ours) = (room(), room(), room());
    table(
        title,
        unit,
        count,
        vec![
            (
                "`memcpy` of ready frames",
                Box::new(|| {
                    copied.clear();
                    let mut rest = black_box(&*frames);
                    while !rest.is_empty() {
                        let (frame, next) = rest.split_at(rest.len().min(frames.len() / count + 1));
                        copied.extend_from_slice(frame);
                        rest = next;
                    }
                    black_box(&copied);
                }),
            ),
            (
                "`serde_json`, without a translator",
                Box::new(|| {
                    serde.clear();
                    frames_with_serde(black_box(&**chunks), &mut serde);
                    black_box(&serde);
                }),
            ),
            (
                "axum's `Sse` with `json_data`, a whole body",
                Box::new(|| drain(respond_with_axum(black_box(chunks).clone()))),
            ),
            (
                "`Translator` and `Encoder`",
                Box::new(|| {
                    ours.clear();
                    frames_of(black_box(events), &mut ours);
                    black_box(&ours);
                }),
            ),
        ],
    );
}

/// A chunk, as a server without this crate would write it.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "camelCase")]
enum HandWritten {
    TextDelta { id: &'static str, delta: &'static str },
    ToolOutputAvailable { tool_call_id: String, output: Box<RawValue> },
}

fn write_texts() {
    let texts = || (0..10_000).map(|number| WORDS[number % WORDS.len()]);
    let events: Vec<AgentEvent> = texts().map(AgentEvent::text).collect();
    let chunks = texts().map(|delta| HandWritten::TextDelta { id: "text-1", delta }).collect();
    compare_writers("Deltas of a text", "ns a chunk", &events, &chunks);
}

fn write_outputs() {
    let rows: Vec<Value> = (0..1_500)
        .map(|id| json!({"id": id, "name": "a name of some length", "ok": true, "share": 0.25}))
        .collect();
    let output = serde_json::to_string(&rows).expect("rows are JSON");
    let id = |number: usize| format!("call_{number}");
    // Each output has a copy of its own, as those of an agent.
    let events: Vec<_> = (0..50)
        .flat_map(|number| {
            let output = Json::parse(&output).expect("it is JSON");
            let input = AgentEvent::tool_input(ToolCall::new(id(number), "rows"), Json::null());
            [input, AgentEvent::tool_output(id(number), output)]
        })
        .collect();
    let chunks = (0..50)
        .map(|number| HandWritten::ToolOutputAvailable {
            tool_call_id: id(number),
            output: RawValue::from_string(output.clone()).expect("it is JSON"),
        })
        .collect();
    compare_writers("Outputs of 100 KB that are JSON text", "ns an output", &events, &chunks);
}

/// Returns the body of a request with a long history, about `bytes` long.
fn request(bytes: usize) -> Vec<u8> {
    let text = WORDS.concat().repeat(6);
    let row = json!({"id": 17, "name": "a name of some length", "ok": true, "share": 1.5});
    let output = vec![row; 34];
    let mut messages = Vec::new();
    let mut size = 0;
    for turn in 0.. {
        let call = |number: usize| {
            json!({"type": "tool-rows", "toolCallId": format!("call_{turn}_{number}"), "state": "output-available",
                "input": {"path": "/srv/notes", "lines": [1, 2, 3]}, "output": output})
        };
        let parts = json!([
            {"type": "step-start"},
            {"type": "reasoning", "text": text.repeat(2), "state": "done"},
            call(1),
            call(2),
            {"type": "text", "text": text.repeat(3), "state": "done"},
        ]);
        let said = json!([{"type": "text", "text": text}]);
        let two = [
            json!({"id": format!("u{turn}"), "role": "user", "parts": said}),
            json!({"id": format!("a{turn}"), "role": "assistant", "parts": parts}),
        ];
        size += two.iter().map(|message| message.to_string().len()).sum::<usize>();
        if size > bytes {
            break;
        }
        messages.extend(two);
    }
    messages
        .push(json!({"id": "last", "role": "user", "parts": [{"type": "text", "text": "Go on"}]}));
    serde_json::to_vec(&json!({"id": "chat", "messages": messages})).expect("it is JSON")
}

fn read_requests() {
    let body = &request(1_000_000);
    let limits = Limits::default();
    table(
        "A request of 1 MB",
        "ns a byte",
        body.len(),
        vec![
            (
                "`serde_json` reads and builds nothing",
                Box::new(|| {
                    let ignored: serde::de::IgnoredAny =
                        serde_json::from_slice(black_box(body)).expect("it is JSON");
                    black_box(ignored);
                }),
            ),
            (
                "`serde_json::Value`",
                Box::new(|| {
                    let value: Value = serde_json::from_slice(black_box(body)).expect("it is JSON");
                    drop(black_box(value));
                }),
            ),
            (
                "`ChatRequest::parse`",
                Box::new(|| {
                    let request =
                        ChatRequest::parse(black_box(body), &limits).expect("it is valid");
                    drop(black_box(request));
                }),
            ),
        ],
    );
}

/// A message that gets longer.
struct Growing {
    translator: Translator,
    /// Makes the chunks for the reducer. Its own time does not count.
    source: Translator,
    reducer: Reducer,
}

impl Growing {
    fn new() -> Self {
        let translator = || Translator::new("msg_1");
        Growing { translator: translator(), source: translator(), reducer: Reducer::new() }
    }

    /// Handles these events. Returns the seconds of the translator, of the reducer, and of both.
    fn handle(&mut self, events: &[AgentEvent]) -> [f64; 3] {
        let mut chunks = Vec::new();
        let take = &mut |chunk: Chunk<'_>| chunks.push(chunk.into_owned());
        for event in events {
            self.source.handle_event(event, take).expect("the events are valid");
        }
        let begun = Instant::now();
        for event in events {
            let take = &mut |chunk: Chunk<'_>| drop(black_box(chunk));
            self.translator.handle_event(event, take).expect("the events are valid");
        }
        let translated = begun.elapsed().as_secs_f64();
        let begun = Instant::now();
        for chunk in &chunks {
            self.reducer.push_chunk(chunk).expect("the chunks are valid");
        }
        let reduced = begun.elapsed().as_secs_f64();
        [translated, reduced, translated + reduced]
    }
}

/// Prints the time of an event late in a message, divided by that of one early in it.
fn grow() {
    let text = |number: usize| vec![AgentEvent::text(WORDS[number % WORDS.len()])];
    let call = |number: usize| {
        let id = format!("call_{number}");
        let input = AgentEvent::tool_input(ToolCall::new(id.clone(), "rows"), Json::null());
        vec![input, AgentEvent::tool_output(id, Json::null())]
    };
    let step = |number: usize| [call(number), vec![AgentEvent::StepFinish]].concat();
    println!("\nThe time of events late in a message, divided by their time early in it\n");
    println!("| | `Translator` | `Reducer` | both |\n|---|---|---|---|");
    print_growth("1 000 text deltas, after 100 000 ÷ after 1 000", text, [1_000, 100_000], 1_000);
    print_growth("500 calls, after 50 000 ÷ after 500", call, [500, 50_000], 500);
    print_growth("20 steps with a call each, after 20 000 ÷ after 10", step, [10, 20_000], 20);
}

/// Prints the time of `count` times what `events` makes, after `earlier[1]` of the same, divided by its time after
/// `earlier[0]`.
fn print_growth(
    name: &str,
    events: impl Fn(usize) -> Vec<AgentEvent>,
    earlier: [usize; 2],
    count: usize,
) {
    let ratios = |_| {
        let [early, late] = earlier.map(|before| {
            let mut message = Growing::new();
            let mut handle = |from: usize, to: usize| {
                message.handle(&(from..to).flat_map(&events).collect::<Vec<_>>())
            };
            // In blocks: after one long one, the caches would hold nothing of the message.
            for from in (0..before).step_by(count) {
                handle(from, before.min(from + count));
            }
            handle(before, before + count)
        });
        [0, 1, 2].map(|part: usize| late[part] / early[part])
    };
    let rounds: Vec<[f64; 3]> = (0..ROUNDS).map(ratios).collect();
    let [translator, reducer, both] =
        [0, 1, 2].map(|part: usize| median(rounds.iter().map(|ratios| ratios[part]).collect()));
    println!("| {name} | {translator:.2} | {reducer:.2} | {both:.2} |");
}
