//! The agent loop: every call gets a result even if the model or a tool fails, other calls are not
//! affected, and the stream ends correctly.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chat_test_support::answers::{self, answer, stored};
use chat_test_support::calling_model::requests_approval;
use chat_test_support::model_double::{ModelDouble, calls, calls_all, results_in, says};
use futures::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::requests::{ada, request, respond_to_all, say, user_message};
use test_support::responses::chunks_of;
use ui_message_stream::event::AgentEvent;
use ui_message_stream::model::{Model, ModelEvent, ModelRequest, ModelStream, Usage};
use ui_message_stream::{BoxError, Json, UserText};
use ui_message_stream_agent::{Agent, IntoTool, Tool, ToolContext, ToolError};
use ui_message_stream_chat::ChatServer;

use super::inputs::{Number, double};

/// A model that makes these calls first, and then emits the number of results that it read.
fn calling(calls: &'static [(&'static str, &'static str)]) -> impl Model {
    ModelDouble::new(move |request, _| calls_first(calls, &request)).with_name("calls")
}

fn calls_first(calls: &[(&str, &str)], request: &ModelRequest) -> Vec<ModelEvent> {
    match results_in(request) {
        0 => calls_all(calls.iter().copied()),
        results => says(format!("{results} results")),
    }
}

async fn post(chats: &ChatServer, body: &Value) -> Vec<Value> {
    chunks_of(&answer(chats, request(body)).await.unwrap())
}

async fn first_turn(agent: Agent) -> Vec<Value> {
    chunks_of(&answer(&agent.into_chat_server(), say("chat", "m1", "Go")).await.unwrap())
}

/// The outcome of each call, by id: taken from the chunk that settled it.
fn outcomes(chunks: &[Value]) -> Vec<(String, Value)> {
    let settled = chunks.iter().filter(|chunk| {
        let kind = chunk["type"].as_str().unwrap();
        let is_result = kind.starts_with("tool-output") || kind == "tool-input-error";
        is_result && chunk["preliminary"] != true
    });
    let mut outcomes: Vec<(String, Value)> = settled
        .map(|chunk| {
            let result = [&chunk["output"], &chunk["errorText"]];
            let result = result.into_iter().find(|result| !result.is_null()).unwrap();
            (chunk["toolCallId"].as_str().unwrap().to_owned(), result.clone())
        })
        .collect();
    outcomes.sort_by(|a, b| a.0.cmp(&b.0));
    outcomes
}

fn text_of(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["delta"].as_str()).collect()
}

fn finish_reason(chunks: &[Value]) -> &Value {
    &chunks.last().unwrap()["finishReason"]
}

#[tokio::test(start_paused = true)]
async fn a_misbehaving_tool_does_not_affect_the_other_calls() {
    let agent = Agent::new(calling(&[
        ("double", r#"{"n":1}"#),
        ("panics", r#"{"n":1}"#),
        ("hangs", r#"{"n":1}"#),
        ("returns_ten_megabytes", r#"{"n":1}"#),
        ("floods", r#"{"n":1}"#),
        ("tells_a_secret", r#"{"n":1}"#),
        ("tells_what_is_wrong", r#"{"n":1}"#),
        ("double", r#"{"n":4}"#),
    ]))
    .tool(Tool::new("double", double))
    .tool(Tool::new("panics", async |input: Number| -> Result<u64, ToolError> {
        panic!("a secret {}", input.n)
    }))
    .tool(
        Tool::new("hangs", async |_: Number| -> Result<u64, ToolError> {
            std::future::pending().await
        })
        .with_timeout(Duration::from_secs(5)),
    )
    .tool(Tool::new("returns_ten_megabytes", async |_: Number| {
        Ok::<_, ToolError>("x".repeat(10 * 1024 * 1024))
    }))
    .tool(Tool::new("floods", async |_: Number, context: ToolContext| {
        for n in 0..10_000 {
            context.emit_preliminary(&n).await.unwrap();
        }
        Ok::<_, ToolError>("done")
    }))
    .tool(Tool::new("tells_a_secret", async |_: Number| {
        Err::<u64, _>(std::io::Error::other("postgres://user:secret@host"))
    }))
    .tool(Tool::new("tells_what_is_wrong", async |_: Number| {
        Err::<u64, _>(ToolError("the account is closed".to_owned()))
    }));
    let chunks = first_turn(agent).await;
    let outcomes: Vec<Value> = outcomes(&chunks).into_iter().map(|(_, outcome)| outcome).collect();
    assert_eq!(
        outcomes,
        [
            json!(2),
            json!("The tool failed."),
            json!("The tool took too long and was stopped. What it did until then is not known."),
            json!("The tool returned more than can be shown."),
            json!("done"),
            json!("The tool failed."),
            json!("the account is closed"),
            json!(8),
        ]
    );
    assert_eq!(text_of(&chunks), "8 results");
    assert_eq!(finish_reason(&chunks), "stop");
    assert!(!chunks.iter().any(|chunk| chunk.to_string().contains("secret@")));
}

#[tokio::test]
async fn an_invalid_tool_input_never_reaches_the_tool() {
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&ran);
    let counted = Tool::new("counted", move |input: Number| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, ToolError>(input.n) }
    });
    let agent = Agent::new(calling(&[
        ("counted", r#"{"n":"#),
        ("counted", r#"{"n":-1}"#),
        ("counted", r#"{"n":"1"}"#),
        ("counted", r#"{}"#),
        ("counted", ""),
        ("counted", r#"{"n":1,"n":2}"#),
        ("counted", r#"{"n":1,"__proto__":{}}"#),
        ("counted", r#"[1]"#),
        ("gone", r#"{"n":1}"#),
        ("counted", r#"{"n":7}"#),
    ]))
    .tool(counted);
    let chunks = first_turn(agent).await;
    let outcomes = outcomes(&chunks);
    assert_eq!(outcomes.len(), 10, "{outcomes:?}");
    for (id, outcome) in &outcomes[..9] {
        assert!(outcome.as_str().is_some_and(|why| !why.is_empty()), "{id}: {outcome}");
    }
    assert_eq!(outcomes[9].1, json!(7));
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    assert_eq!(text_of(&chunks), "10 results");
}

#[tokio::test]
async fn an_input_that_only_the_schema_rejects_never_reaches_the_tool() {
    #[derive(Deserialize, JsonSchema)]
    struct Narrow {
        #[schemars(range(min = 1, max = 10))]
        n: i64,
        #[schemars(regex(pattern = "^[a-z]+$"), length(max = 3))]
        name: String,
    }
    let narrow = Tool::new("narrow", async |input: Narrow| {
        Ok::<_, ToolError>(format!("{} {}", input.n, input.name))
    });
    let agent = Agent::new(calling(&[
        ("narrow", r#"{"n":0,"name":"a"}"#),
        ("narrow", r#"{"n":11,"name":"a"}"#),
        ("narrow", r#"{"n":1,"name":"A"}"#),
        ("narrow", r#"{"n":1,"name":"abcd"}"#),
        ("narrow", r#"{"n":10,"name":"abc"}"#),
    ]));
    let chunks = first_turn(agent.tool(narrow)).await;
    let kind = |id: &str, kind: &str| {
        chunks.iter().any(|chunk| chunk["toolCallId"] == id && chunk["type"] == kind)
    };
    for id in ["call_0", "call_1", "call_2", "call_3"] {
        assert!(kind(id, "tool-input-error"), "{id}");
        assert!(
            !kind(id, "tool-input-available"),
            "{id}: a client would take it for a valid input"
        );
    }
    assert_eq!(outcomes(&chunks)[4].1, json!("10 abc"));
}

#[tokio::test]
async fn preliminary_outputs_are_sent_in_order_before_the_final_output() {
    let counts = Tool::new("counts", async |input: Number, context: ToolContext| {
        for n in 0..input.n {
            context.emit_preliminary(&n).await?;
        }
        Ok::<_, BoxError>("done")
    });
    let agent = Agent::new(calling(&[("counts", r#"{"n":50}"#)])).tool(counts);
    let chunks = first_turn(agent).await;
    let outputs = chunks.iter().filter(|chunk| chunk["type"] == "tool-output-available");
    let shown: Vec<(Value, bool)> =
        outputs.map(|chunk| (chunk["output"].clone(), chunk["preliminary"] == true)).collect();
    let expected = (0..50).map(|n| (json!(n), true)).chain([(json!("done"), false)]);
    assert_eq!(shown, expected.collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_tool_context_that_outlives_its_tool_does_not_delay_the_step() {
    let detaches = Tool::new("leaves", async |_: Number, context: ToolContext| {
        tokio::spawn(async move {
            for n in 0.. {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let _ = context.emit_preliminary(&n).await;
            }
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok::<_, ToolError>("done")
    });
    let waits = Tool::new("waits", async |_: Number| {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok::<_, ToolError>("waited")
    });
    let agent = Agent::new(calling(&[("leaves", r#"{"n":1}"#), ("waits", r#"{"n":1}"#)]));
    let chunks = first_turn(agent.tool(detaches).tool(waits)).await;
    let of_leaves: Vec<&Value> =
        chunks.iter().filter(|chunk| chunk["toolCallId"] == "call_0").collect();
    assert_eq!(of_leaves.last().unwrap()["output"], "done", "no output follows the final output");
    assert!(of_leaves.len() > 5, "the preliminary outputs before the end were sent");
    assert_eq!(text_of(&chunks), "2 results");
}

/// Counts its drops.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// An agent whose tool waits for ten seconds, the number of its completed runs, and the number of
/// its dropped futures.
fn waiting_agent() -> (Agent, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (returned, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counter, guard) = (Arc::clone(&returned), Arc::clone(&dropped));
    let waits = Tool::new("waits", move |_: Number| {
        let (counter, guard) = (Arc::clone(&counter), Dropped(Arc::clone(&guard)));
        async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            counter.fetch_add(1, Ordering::SeqCst);
            drop(guard);
            Ok::<_, ToolError>("waited")
        }
    });
    let agent = Agent::new(calling(&[("waits", r#"{"n":1}"#)])).tool(waits);
    (agent, returned, dropped)
}

/// The messages of the chat after this number of seconds.
async fn messages_after(chats: &ChatServer, seconds: u64) -> Value {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    serde_json::to_value(stored(chats).await.messages).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_response_is_not_read_completes_its_tools_and_stores_its_message() {
    let (agent, returned, _) = waiting_agent();
    let chats = agent.into_chat_server();
    drop(answers::post(&chats, "m1", "Go").await);
    let messages = messages_after(&chats, 30).await;
    assert_eq!(returned.load(Ordering::SeqCst), 1);
    let parts = messages[1]["parts"].as_array().unwrap();
    assert!(parts.iter().any(|part| part["output"] == "waited"), "{parts:?}");
    assert_eq!(parts.last().unwrap()["text"], "1 results");
}

#[tokio::test(start_paused = true)]
async fn stopping_a_run_stops_its_tools() {
    let (agent, returned, dropped) = waiting_agent();
    let chats = agent.into_chat_server();
    drop(answers::post(&chats, "m1", "Go").await);
    messages_after(&chats, 5).await;
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    chats.stop(&ada(), &"chat".into()).await.unwrap();
    let messages = messages_after(&chats, 1).await;
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    let parts = messages[1]["parts"].as_array().unwrap();
    assert!(parts.iter().any(|part| part["state"] == "output-error"), "{parts:?}");
    messages_after(&chats, 30).await;
    assert_eq!(returned.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn client_outputs_for_calls_of_one_id_reach_the_latest_call() {
    // It calls the client's tool in each step, always under the same id.
    let model = ModelDouble::new(|request, calls_before| {
        assert_eq!(results_in(&request), calls_before, "the model reads every output");
        calls("call_0", "location", "{}")
    });
    let schema = Json::parse(r#"{"type":"object"}"#).unwrap();
    let chats = Agent::new(model)
        .tool(Tool::client_executed("location", "Where.", schema))
        .into_chat_server();
    let mut parts: Vec<Value> = Vec::new();
    let mut id = Value::Null;
    for n in 0..3 {
        let mut messages = vec![user_message("m1", "Go")];
        if n > 0 {
            messages.push(json!({"id": id, "role": "assistant", "parts": parts}));
        }
        let chunks = post(&chats, &json!({"id": "chat", "messages": messages})).await;
        id = chunks[0]["messageId"].clone();
        let call = chunks.iter().find(|chunk| chunk["type"] == "tool-input-available");
        let call = call.unwrap_or_else(|| panic!("{n}: {chunks:?}"));
        parts.push(json!({"type": "step-start"}));
        parts.push(json!({
            "type": "tool-location", "toolCallId": call["toolCallId"], "input": {},
            "state": "output-available", "output": n,
        }));
    }
    let history = serde_json::to_value(&stored(&chats).await.messages).unwrap();
    let outputs = history[1]["parts"].as_array().unwrap().iter();
    let outputs: Vec<&Value> = outputs.filter_map(|part| part.get("output")).collect();
    assert_eq!(outputs, [&json!(0), &json!(1)], "the third call is pending");
}

#[tokio::test]
async fn an_approval_predicate_reads_the_input_and_its_failure_requests_approval() {
    let tool = || Tool::new("tool", double);
    let of_input = |least| tool().needs_approval_when(move |input, _| input.n >= least);
    let panics = tool().needs_approval_when(|_, _| panic!("in the predicate"));
    let of_input_async = tool().needs_approval_when_async(async |input, _| Ok(input.n > 4));
    let of_user = tool().needs_approval_when_async(async |_, it| Ok(it.principal != ada()));
    let fails = tool().needs_approval_when_async(async |_, _| Err("unreachable".into()));
    let panics_async = tool().needs_approval_when_async(async |_, _| panic!("in the predicate"));
    for (name, tool, is_requested) in [
        ("no predicate", tool(), false),
        ("always", tool().needs_approval(), true),
        ("of the input", of_input(5), true),
        ("of another input", of_input(6), false),
        ("panics", panics, true),
        ("of the input, async", of_input_async, true),
        ("of the user, async", of_user, false),
        ("fails, async", fails, true),
        ("panics, async", panics_async, true),
    ] {
        let agent = Agent::new(calling(&[("tool", r#"{"n":5}"#)])).tool(tool);
        assert_eq!(requests_approval(&first_turn(agent).await), is_requested, "{name}");
    }
}

#[tokio::test]
async fn server_tools_of_a_step_run_while_other_calls_are_pending() {
    let location =
        Tool::client_executed("location", "Where.", Json::parse(r#"{"type":"object"}"#).unwrap());
    let agent =
        Agent::new(calling(&[("ask", r#"{"n":1}"#), ("location", "{}"), ("double", r#"{"n":3}"#)]))
            .tool(Tool::new("ask", double).needs_approval())
            .tool(Tool::new("double", double))
            .tool(location);
    let chunks = first_turn(agent).await;
    assert_eq!(outcomes(&chunks), [("call_2".to_owned(), json!(6))]);
    assert!(chunks.iter().any(|chunk| chunk["type"] == "tool-approval-request"));
    assert_eq!(finish_reason(&chunks), "tool-calls");
    assert_eq!(text_of(&chunks), "", "the model is not called while a call is pending");
}

#[tokio::test]
async fn the_model_is_called_at_most_max_steps_times() {
    let model = ModelDouble::new(|_, n| calls(&format!("call_{n}"), "double", r#"{"n":1}"#));
    let agent = Agent::new(model).with_max_steps(3);
    let chunks = first_turn(agent.tool(Tool::new("double", double))).await;
    assert_eq!(outcomes(&chunks).len(), 3);
    assert_eq!(finish_reason(&chunks), "tool-calls");
}

#[tokio::test]
async fn a_model_error_or_an_unfinished_stream_gives_a_masked_error() {
    #[derive(Debug)]
    struct Fails(bool);
    impl Model for Fails {
        fn call(&self, _: ModelRequest) -> ModelStream {
            let text = Ok(ModelEvent::Event(AgentEvent::text("Well")));
            match self.0 {
                true => Box::pin(stream::iter([text, Err("key sk-secret is wrong".into())])),
                false => Box::pin(stream::iter([text])),
            }
        }
    }
    for (fails, text) in [(true, UserText::AnswerFailed), (false, UserText::AnswerCutOff)] {
        let chunks = first_turn(Agent::new(Fails(fails))).await;
        let error = chunks.iter().find(|chunk| chunk["type"] == "error").unwrap();
        assert_eq!(error["errorText"], text.text());
    }
}

#[test]
#[should_panic(expected = "there are two tools named \"double\"")]
fn two_tools_with_the_same_name_panic_when_the_agent_is_built() {
    let _ = Agent::new(calling(&[]))
        .tool(Tool::new("double", double))
        .tool(Tool::new("double", double));
}

#[tokio::test]
async fn token_usage_is_in_the_message_metadata_if_enabled() {
    let agent = || {
        let used = ModelEvent::Usage(Usage { input_tokens: 7, output_tokens: 3 });
        Agent::new(ModelDouble::new(move |_, _| [vec![used.clone()], says("Hi")].concat()))
    };
    let metadata = |chunks: Vec<Value>| chunks.last().unwrap()["messageMetadata"].clone();
    assert_eq!(metadata(first_turn(agent()).await), Value::Null);
    let metadata_of_turn = metadata(first_turn(agent().with_usage_metadata()).await);
    assert_eq!(metadata_of_turn, json!({"usage": {"inputTokens": 7, "outputTokens": 3}}));
}

#[tokio::test]
async fn token_usage_includes_the_steps_before_an_approval() {
    let model = ModelDouble::new(|request, _| {
        let (events, input_tokens) = match results_in(&request) {
            0 => (calls("call", "double", r#"{"n":1}"#), 5_000),
            _ => (says("Done"), 300),
        };
        [vec![ModelEvent::Usage(Usage { input_tokens, output_tokens: 1 })], events].concat()
    });
    let agent = Agent::new(model).tool(Tool::new("double", double).needs_approval());
    let chats = agent.with_usage_metadata().into_chat_server();
    post(&chats, &json!({"id": "chat", "messages": [user_message("m1", "Go")]})).await;
    let mut message = serde_json::to_value(stored(&chats).await.messages.last()).unwrap();
    respond_to_all(&mut message, true);
    let chunks = post(&chats, &json!({"id": "chat", "messages": [message]})).await;
    let metadata = &chunks.last().unwrap()["messageMetadata"];
    assert_eq!(*metadata, json!({"usage": {"inputTokens": 5_300, "outputTokens": 2}}));
}

#[tokio::test]
async fn a_tool_sets_its_output_limit_and_the_output_that_the_model_reads() {
    let long = |name: &'static str| {
        Tool::new(name, async |input: Number| {
            Ok::<_, ToolError>("x".repeat(usize::try_from(input.n).unwrap()))
        })
    };
    let calls = [
        ("long", r#"{"n":262142}"#),
        ("long", r#"{"n":262143}"#),
        ("longer", r#"{"n":262143}"#),
        ("panics", r#"{"n":1}"#),
    ];
    let messages_read: Arc<Mutex<String>> = Arc::default();
    let stored = Arc::clone(&messages_read);
    let model = ModelDouble::new(move |request, _| {
        *stored.lock().unwrap() = serde_json::to_string(&request.messages).unwrap();
        calls_first(&calls, &request)
    });
    let length = |output: &Json| Json::string(&format!("{} bytes", output.as_str().len()));
    let agent = Agent::new(model)
        .tool(long("long"))
        .tool(long("longer").with_max_output_bytes(1 << 20).with_model_output(length))
        .tool(long("panics").with_model_output(|_| panic!("the host is wrong")));
    let outcomes = outcomes(&first_turn(agent).await);
    let lengths: Vec<usize> =
        outcomes.iter().map(|(_, outcome)| outcome.as_str().unwrap().len()).collect();
    assert_eq!(lengths, [262_142, "The tool returned more than can be shown.".len(), 262_143, 1]);
    let messages_read = messages_read.lock().unwrap();
    assert!(messages_read.contains(r#""262145 bytes""#), "the model reads the shortened output");
    assert!(
        messages_read.contains(r#""output":"x""#),
        "if the conversion panics, the model reads the output itself"
    );
}

#[tokio::test]
async fn an_input_error_does_not_repeat_the_whole_input() {
    #[derive(PartialEq, Deserialize, JsonSchema)]
    #[serde(untagged)]
    enum Either {
        Number { n: u64 },
        Flag { flag: bool },
    }
    let input: &'static str = format!(r#"{{"n":"{}"}}"#, "secret ".repeat(50_000)).leak();
    let calls: &'static [(&str, &str)] = vec![("either", input)].leak();
    let either = Tool::new("either", async |_: Either| Ok::<_, ToolError>(1));
    let chunks = first_turn(Agent::new(calling(calls)).tool(either)).await;
    let (_, why) = &outcomes(&chunks)[0];
    assert!(why.as_str().unwrap().len() < 3_000, "{}", why.as_str().unwrap().len());
}

#[test]
fn an_invalid_tool_name_panics_when_the_agent_is_built() {
    for name in ["", "files.read", "rm -rf", "größe", &"a".repeat(65)] {
        let make = || Agent::new(calling(&[])).tool(Tool::new(name, double));
        let made = std::panic::catch_unwind(make);
        assert!(made.is_err(), "{name}");
    }
    // One list may hold tools of several types.
    let tools = [
        Tool::new("double", double).into_tool(),
        Tool::client_executed("where", "Says where.", Json::parse("{}").unwrap()).into_tool(),
    ];
    let _ = Agent::new(calling(&[])).tools(tools);
}

#[test]
#[should_panic(expected = "the schema of tool \"look\" is not a valid JSON Schema")]
fn an_invalid_schema_pattern_panics_when_the_agent_is_built() {
    #[derive(Deserialize, JsonSchema)]
    struct Look {
        #[schemars(regex(pattern = "^(/"))]
        path: String,
    }
    let _ = Agent::new(calling(&[]))
        .tool(Tool::new("look", async |look: Look| Ok::<_, ToolError>(look.path)));
}
