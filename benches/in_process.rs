//! What the core costs, beside what anybody would write without it:
//!   cargo bench --bench in_process
//!
//! Prints Markdown tables. Each time is the median of the rounds. In each round the arms of a table run one after the
//! other, so that a change of the clock, or another process, reaches all of them. The ratios of one run count, not
//! the times.

use std::hint::black_box;
use std::time::Instant;

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
    find_calls();
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

/// Prints what these events cost as frames, per chunk: copied, written with `serde_json`, and by this crate.
fn compare_writers<T: Serialize>(title: &str, events: &[AgentEvent], chunks: &[T]) {
    let mut frames = Vec::new();
    frames_of(events, &mut frames);
    let count = chunks.len();
    let room = || Vec::with_capacity(2 * frames.len());
    let (mut copied, mut serde, mut ours) = (room(), room(), room());
    table(
        title,
        "ns a chunk",
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
                    frames_with_serde(black_box(chunks), &mut serde);
                    black_box(&serde);
                }),
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
enum HandWritten<'a> {
    TextDelta { id: &'a str, delta: &'a str },
    ToolOutputAvailable { tool_call_id: String, output: &'a RawValue },
}

fn write_texts() {
    let texts = || (0..10_000).map(|number| WORDS[number % WORDS.len()]);
    let events: Vec<AgentEvent> = texts().map(AgentEvent::text).collect();
    let chunks: Vec<_> =
        texts().map(|delta| HandWritten::TextDelta { id: "text-1", delta }).collect();
    compare_writers("Deltas of a text", &events, &chunks);
}

fn write_outputs() {
    let rows: Vec<Value> = (0..1_500)
        .map(|id| json!({"id": id, "name": "a name of some length", "ok": true, "share": 0.25}))
        .collect();
    let output = Json::from_serialize(&rows).expect("rows are JSON");
    let raw: &RawValue = serde_json::from_str(output.as_str()).expect("it is JSON");
    let id = |number: usize| format!("call_{number}");
    let mut events = Vec::new();
    let mut chunks = Vec::new();
    for number in 0..50 {
        events.push(AgentEvent::tool_input(ToolCall::new(id(number), "rows"), Json::null()));
        events.push(AgentEvent::tool_output(id(number), output.clone()));
        chunks.push(HandWritten::ToolOutputAvailable { tool_call_id: id(number), output: raw });
    }
    compare_writers("Outputs of 100 KB", &events, &chunks);
}

/// The body of a request with a long history, in bytes about this many.
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

/// Handles a thousand events at the beginning of a message and behind 100 000, and prints the ratio of the times.
fn grow() {
    let text = |number: usize| AgentEvent::text(WORDS[number % WORDS.len()]);
    let call = |number: usize| {
        let id = format!("call_{}", number / 2);
        match number % 2 {
            0 => AgentEvent::tool_input(ToolCall::new(id, "rows"), Json::null()),
            _ => AgentEvent::tool_output(id, Json::null()),
        }
    };
    println!("\nA thousand events behind 100 000 ÷ the first thousand\n");
    println!("| | `Translator` | `Translator` and `Reducer` |\n|---|---|---|");
    let kinds: [(&str, &dyn Fn(usize) -> AgentEvent); 2] =
        [("texts", &text), ("tool calls", &call)];
    for (kind, event) in kinds {
        println!("| {kind} | {:.2} | {:.2} |", growth(event, false), growth(event, true));
    }
}

fn growth(event: &dyn Fn(usize) -> AgentEvent, reduces: bool) -> f64 {
    let ratio = |_| {
        let (mut translator, mut reducer) = (Translator::new("msg_1"), Reducer::new());
        let mut handle = |events: &[AgentEvent]| {
            let begun = Instant::now();
            for event in events {
                let take = &mut |chunk: Chunk<'_>| match reduces {
                    true => reducer.push_chunk(&chunk).expect("the chunks are valid"),
                    false => drop(black_box(chunk)),
                };
                translator.handle_event(event, take).expect("the events are valid");
            }
            begun.elapsed().as_secs_f64()
        };
        let blocks: Vec<Vec<AgentEvent>> = (0..101)
            .map(|block| (block * 1_000..(block + 1) * 1_000).map(event).collect())
            .collect();
        let times: Vec<f64> = blocks.iter().map(|events| handle(events)).collect();
        // The second block: the first one warms up.
        times[100] / times[1]
    };
    median((0..ROUNDS).map(ratio).collect())
}

/// Makes a call behind 10 and behind 20 000 calls of the message, and prints the ratio of the times.
fn find_calls() {
    let one = |number: usize, translator: &mut Translator| {
        let id = format!("call_{number}");
        let take = &mut |chunk: Chunk<'_>| drop(black_box(chunk));
        let input = AgentEvent::tool_input(ToolCall::new(id.clone(), "rows"), Json::null());
        translator.handle_event(&input, take).expect("the events are valid");
        let output = AgentEvent::tool_output(id, Json::null());
        translator.handle_event(&output, take).expect("the events are valid");
    };
    let behind = |count: usize| {
        let mut translator = Translator::new("msg_1");
        (0..count).for_each(|number| one(number, &mut translator));
        let begun = Instant::now();
        (count..count + 20).for_each(|number| one(number, &mut translator));
        begun.elapsed().as_secs_f64()
    };
    let ratio = |_| behind(20_000) / behind(10);
    println!(
        "\nA call behind 20 000 calls ÷ behind 10: {:.2}",
        median((0..ROUNDS).map(ratio).collect())
    );
}
