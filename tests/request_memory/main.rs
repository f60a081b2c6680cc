//! Parsing a request takes at most eight times its length in memory, including the body, for any
//! body. A response that waits for its agent holds no buffer. The allocations of the measuring thread are
//! counted.

use futures::{FutureExt, StreamExt, stream};
use http_body_util::BodyExt;
use ui_message_stream::request::Limits;
use ui_message_stream::{AgentEvent, ChatRequest, UiMessageStream};

/// The limit for the parser's allocations, as a multiple of the body's length. The body itself is
/// the eighth.
const MOST: f64 = 7.0;

/// `head`, then `item` repeated up to the size, with `#` replaced by a counter, then `tail`.
fn repeated(size: usize, head: &str, item: &str, tail: &str) -> String {
    let mut body = String::with_capacity(size);
    body.push_str(head);
    let mut n = 0_usize;
    loop {
        let item = item.replace('#', &base36(n));
        if body.len() + 1 + item.len() + tail.len() > size {
            break;
        }
        if n > 0 {
            body.push(',');
        }
        body.push_str(&item);
        n += 1;
    }
    body.push_str(tail);
    body
}

/// A short unique name for a number.
fn base36(mut n: usize) -> String {
    let mut name = String::new();
    loop {
        name.push(char::from(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[n % 36]));
        n /= 36;
        if n == 0 {
            return name;
        }
    }
}

fn bodies(size: usize) -> Vec<(&'static str, String)> {
    // Values that are not parsed, with different texts before and after them.
    let leaf = |before: &str, behind: &str, head: &str, item: &str, tail: &str| {
        repeated(size, &format!("{before}{head}"), item, &format!("{tail}{behind}"))
    };
    let custom = |head: &str, item: &str, tail: &str| {
        leaf(r#"{"id":"c","messages":[],"x":"#, "}", head, item, tail)
    };
    let output = |head: &str, item: &str, tail: &str| {
        let before = r#"{"id":"c","messages":[{"id":"m","role":"assistant","parts":[{"type":"tool-t","toolCallId":"c","state":"output-available","output":"#;
        leaf(before, "}]}]}", head, item, tail)
    };
    let pm = |head: &str, item: &str, tail: &str| {
        let before = r#"{"id":"c","messages":[{"id":"m","role":"user","parts":[{"type":"text","text":"","providerMetadata":"#;
        leaf(before, "}]}]}", head, item, tail)
    };
    let messages = |item: &str| repeated(size, r#"{"id":"c","messages":["#, item, "]}");
    let parts = |item: &str| {
        let head = r#"{"id":"c","messages":[{"id":"m","role":"assistant","parts":["#;
        repeated(size, head, item, "]}]}")
    };
    let fields = |before: &str, behind: &str| repeated(size, before, r##""#":0"##, behind);
    let text = |before: &str, escape: &str, behind: &str| {
        format!("{before}{}{behind}", escape.repeat((size - 200) / escape.len()))
    };
    let custom_nesting = |open: &str, close: &str| {
        let n = (size - 200) / (open.len() + close.len());
        format!(r#"{{"id":"c","messages":[],"x":{}1{}}}"#, open.repeat(n), close.repeat(n))
    };
    vec![
        ("a body of arrays", repeated(size, "[", "0", "]")),
        ("a body of objects", repeated(size, "[", r#"{"":{}}"#, "]")),
        ("custom zeros", custom("[", "0", "]")),
        ("custom zeros, one a line", custom("[", "\n0", "]")),
        ("custom objects", custom("[", r#"{"":{}}"#, "]")),
        ("custom keys, all the same", custom("{", r#""":0"#, "}")),
        ("custom keys, all different", custom("{", r##""#":0"##, "}")),
        ("custom keys, escaped", custom("{", r##""\u00e9#":0"##, "}")),
        ("output zeros", output("[", "0", "]")),
        ("output zeros, one a line", output("[", "\n0", "]")),
        ("output objects", output("[", r#"{"":{}}"#, "]")),
        ("output keys, all the same", output("{", r#""":0"#, "}")),
        ("output keys, all different", output("{", r##""#":0"##, "}")),
        ("custom nesting", custom_nesting("[", "]")),
        ("custom nesting of objects", custom_nesting(r#"{"":"#, "}")),
        ("an open list in an open list", "[".repeat(size)),
        ("provider metadata of empty objects", pm("{", r##""#":{}"##, "}")),
        ("messages without parts", messages(r#"{"id":"","role":"assistant","parts":[]}"#)),
        ("system messages", messages(r#"{"id":"","role":"system","parts":[{"type":""}]}"#)),
        ("user messages", messages(r#"{"id":"","role":"user","parts":[{"type":""}]}"#)),
        ("parts of an empty kind", parts(r#"{"type":""}"#)),
        ("step-starts", parts(r#"{"type":"step-start"}"#)),
        ("step-starts with a field", parts(r#"{"type":"step-start","":0}"#)),
        ("empty texts", parts(r#"{"type":"text","text":""}"#)),
        ("texts for a provider", parts(r#"{"type":"text","text":"","providerMetadata":{}}"#)),
        ("data", parts(r#"{"type":"data-"}"#)),
        ("files", parts(r#"{"type":"file","mediaType":"","url":""}"#)),
        ("sources", parts(r#"{"type":"source-url","sourceId":"","url":""}"#)),
        (
            "documents",
            parts(r#"{"type":"source-document","sourceId":"","mediaType":"","title":""}"#),
        ),
        (
            "the same call again and again",
            parts(r#"{"type":"tool-","toolCallId":"","state":"input-available"}"#),
        ),
        ("calls", parts(r##"{"type":"tool-","toolCallId":"#","state":"input-available"}"##)),
        (
            "calls in a state of tomorrow",
            parts(r##"{"type":"tool-","toolCallId":"#","state":""}"##),
        ),
        (
            "calls for a provider",
            parts(r##"{"type":"tool-","toolCallId":"#","state":"","callProviderMetadata":{}}"##),
        ),
        (
            "failed calls for a provider",
            parts(
                r##"{"type":"tool-","toolCallId":"#","state":"output-error","errorText":"","resultProviderMetadata":{}}"##,
            ),
        ),
        (
            "questions",
            parts(
                r##"{"type":"tool-","toolCallId":"#","state":"approval-requested","approval":{"id":""}}"##,
            ),
        ),
        (
            "answers",
            parts(
                r##"{"type":"tool-","toolCallId":"#","state":"approval-responded","approval":{"id":"","approved":true}}"##,
            ),
        ),
        (
            "answers of before",
            parts(
                r##"{"type":"tool-","toolCallId":"#","state":"output-denied","approval":{"id":""}}"##,
            ),
        ),
        ("fields of the body", fields(r#"{"id":"c","messages":[],"#, "}")),
        (
            "fields of a message",
            fields(r#"{"id":"c","messages":[{"id":"","role":"assistant","parts":[],"#, "}]}"),
        ),
        (
            "fields of a part",
            fields(
                r#"{"id":"c","messages":[{"id":"","role":"assistant","parts":[{"type":"text","text":"","#,
                "}]}]}",
            ),
        ),
        (
            "fields for a provider among those of a part",
            fields(
                r#"{"id":"c","messages":[{"id":"","role":"assistant","parts":[{"type":"step-start","providerMetadata":{},"#,
                "}]}]}",
            ),
        ),
        (
            "fields of an unknown part",
            fields(
                r#"{"id":"c","messages":[{"id":"","role":"assistant","parts":[{"type":"?","providerMetadata":{},"#,
                "}]}]}",
            ),
        ),
        (
            "fields of an approval",
            fields(
                r#"{"id":"c","messages":[{"id":"","role":"assistant","parts":[{"type":"tool-","toolCallId":"","state":"approval-requested","approval":{"id":"","#,
                "}}]}]}",
            ),
        ),
        (
            "a text",
            text(
                r#"{"id":"c","message":{"id":"","role":"user","parts":[{"type":"text","text":""#,
                "a",
                r#""}]}}"#,
            ),
        ),
        (
            "a text of escapes",
            text(
                r#"{"id":"c","message":{"id":"","role":"user","parts":[{"type":"text","text":""#,
                r"\n",
                r#""}]}}"#,
            ),
        ),
        (
            "a text of half surrogates",
            text(
                r#"{"id":"c","message":{"id":"","role":"user","parts":[{"type":"text","text":""#,
                r"\ud800",
                r#""}]}}"#,
            ),
        ),
        ("an id of half surrogates", text(r#"{"messages":[],"id":""#, r"\ud800", r#""}"#)),
        ("a key of escapes", text(r#"{"messages":[],"id":"",""#, r"\n", r#"":0}"#)),
        ("a key of half surrogates", text(r#"{"messages":[],"id":"",""#, r"\ud800", r#"":0}"#)),
        ("a number", text(r#"{"messages":[],"id":"","x":"#, "1", "}")),
        ("a custom text of escapes", text(r#"{"messages":[],"id":"","x":""#, r"\n", r#""}"#)),
        ("spaces", text(r#"{"messages":[],"id":"","x":["#, "\n", "]}")),
    ]
}

/// The peak of the allocated memory as a multiple of the body, and the result of parsing.
fn measure(body: &[u8], limits: &Limits) -> (f64, &'static str) {
    let mut how = "";
    let allocations = allocation_counter::measure(|| {
        how = match ChatRequest::parse(body, limits) {
            Ok(_) => "read",
            Err(error) if error.is_limit() => "over a limit",
            Err(_) => "refused",
        };
    });
    (allocations.bytes_max as f64 / body.len() as f64, how)
}

#[test]
fn parsing_a_request_takes_at_most_eight_times_its_length_in_memory() {
    let none = Limits::default()
        .with_max_bytes(usize::MAX)
        .with_max_messages(usize::MAX)
        .with_max_parts(usize::MAX)
        .with_max_nodes(usize::MAX);
    println!("multiples of the body    2 MiB           512 KiB, no limits 64 KiB, no limits");
    let mut worst: f64 = 0.0;
    let sizes = bodies(2 << 20).into_iter().zip(bodies(512 << 10)).zip(bodies(64 << 10));
    for (((name, large), (_, medium)), (_, small)) in sizes {
        assert!(large.len() <= 2 << 20, "{name}");
        assert!(large.len() > 2_000_000, "{name}");
        let limited = measure(large.as_bytes(), &Limits::default());
        let unlimited = measure(medium.as_bytes(), &none);
        let small = measure(small.as_bytes(), &none);
        println!(
            "{name:45} {:5.2} {:13} {:5.2} {:8} {:5.2} {}",
            limited.0, limited.1, unlimited.0, unlimited.1, small.0, small.1
        );
        worst = [worst, limited.0, unlimited.0, small.0].into_iter().fold(0.0, f64::max);
    }
    println!("most: {worst:.2} times the body, beyond the body itself");
    assert!(worst <= MOST, "{worst}");
}

#[tokio::test]
async fn a_response_that_waits_holds_no_more_memory_after_a_burst_than_after_one_event() {
    let request = ChatRequest::parse(br#"{"id":"c","messages":[]}"#, &Limits::default()).unwrap();
    let held = |events: usize| {
        let texts = stream::iter(0..events).map(|_| AgentEvent::text("word "));
        let mut waiting = None;
        let allocations = allocation_counter::measure(|| {
            let agent = texts.chain(stream::pending());
            let body = waiting.insert(Box::pin(UiMessageStream::reply(&request, agent)));
            let mut bytes = 0;
            // The response is also pending once before the first event.
            for _ in 0..2 {
                while let Some(frame) = body.frame().now_or_never() {
                    bytes += frame.unwrap().unwrap().into_data().unwrap().len();
                }
            }
            assert!(bytes > events * 50, "{bytes} bytes");
        });
        allocations.bytes_current
    };
    // The first response of a process initializes what all of them share.
    held(1);
    let (before, after) = (held(1), held(10_000));
    assert!(before > 0, "{before} bytes");
    assert_eq!(after, before);
}
