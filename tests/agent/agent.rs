//! The agent loop: whatever the model and the tools do, every call has its result, the others go on,
//! and the stream ends well.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use ui_message_stream::agent::{Agent, IntoTool, Tool, ToolContext, ToolError};
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::ChatServer;
use ui_message_stream::chunk::FinishReason;
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest, ModelStream, Usage};
use ui_message_stream::request::Limits;
use ui_message_stream::response::BoxError;
use ui_message_stream::{ChatRequest, Json};

/// A model that makes these calls at first, and says how many results it read then.
#[derive(Debug)]
struct Calls(&'static [(&'static str, &'static str)]);

impl Model for Calls {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let results = request.messages.iter().map(|message| match message {
            ModelMessage::Tool { content } => content.len(),
            _ => 0,
        });
        let results: usize = results.sum();
        let finished = |reason| Ok(ModelEvent::Finished(reason));
        if results > 0 {
            let said = ModelEvent::Event(AgentEvent::text(format!("{results} results")));
            return Box::pin(stream::iter([Ok(said), finished(FinishReason::Stop)]));
        }
        let calls = self.0.iter().enumerate().map(|(at, (tool, input))| {
            let call = ToolCall::new(format!("call_{at}"), *tool);
            Ok(ModelEvent::ToolCall(Box::new(call), (*input).to_owned()))
        });
        let calls: Vec<_> = calls.chain([finished(FinishReason::ToolCalls)]).collect();
        Box::pin(stream::iter(calls))
    }

    fn name(&self) -> Option<&str> {
        Some("calls")
    }
}

#[derive(Deserialize, JsonSchema)]
struct Input {
    n: u64,
}

async fn double(input: Input) -> Result<u64, ToolError> {
    Ok(2 * input.n)
}

async fn post(chats: &ChatServer, body: &Value) -> Vec<Value> {
    let body = body.to_string();
    let request = ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap();
    let response = chats.stream_response(&Principal::new("ada"), request).await.unwrap();
    let bytes: Vec<u8> =
        response.map(|bytes| bytes.unwrap().to_vec()).collect::<Vec<_>>().await.concat();
    let text = String::from_utf8(bytes).unwrap();
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

async fn first_turn(agent: Agent) -> Vec<Value> {
    let body = json!({"id": "chat", "messages": [
        {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Go"}]},
    ]});
    post(&agent.into_chat_server(), &body).await
}

/// What became of the calls, by id: the chunk that settled each.
fn outcomes(chunks: &[Value]) -> Vec<(String, Value)> {
    let settled = chunks.iter().filter(|chunk| {
        let kind = chunk["type"].as_str().unwrap();
        let is_result = kind.starts_with("tool-output") || kind == "tool-input-error";
        is_result && chunk["preliminary"] != true
    });
    let mut outcomes: Vec<(String, Value)> = settled
        .map(|chunk| {
            let said = [&chunk["output"], &chunk["errorText"]];
            let said = said.into_iter().find(|said| !said.is_null()).unwrap();
            (chunk["toolCallId"].as_str().unwrap().to_owned(), said.clone())
        })
        .collect();
    outcomes.sort_by(|a, b| a.0.cmp(&b.0));
    outcomes
}

fn said(chunks: &[Value]) -> String {
    chunks.iter().filter_map(|chunk| chunk["delta"].as_str()).collect()
}

fn ends(chunks: &[Value]) -> &Value {
    &chunks.last().unwrap()["finishReason"]
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_misbehaves_leaves_the_others_alone() {
    let agent = Agent::new(Calls(&[
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
    .tool(Tool::new("panics", async |input: Input| -> Result<u64, ToolError> {
        panic!("a secret {}", input.n)
    }))
    .tool(
        Tool::new("hangs", async |_: Input| -> Result<u64, ToolError> {
            std::future::pending().await
        })
        .with_timeout(Duration::from_secs(5)),
    )
    .tool(Tool::new("returns_ten_megabytes", async |_: Input| {
        Ok::<_, ToolError>("x".repeat(10 * 1024 * 1024))
    }))
    .tool(Tool::new("floods", async |_: Input, context: ToolContext| {
        for n in 0..10_000 {
            context.emit_preliminary(&n).await.unwrap();
        }
        Ok::<_, ToolError>("done")
    }))
    .tool(Tool::new("tells_a_secret", async |_: Input| {
        Err::<u64, _>(std::io::Error::other("postgres://user:secret@host"))
    }))
    .tool(Tool::new("tells_what_is_wrong", async |_: Input| {
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
    assert_eq!(said(&chunks), "8 results");
    assert_eq!(ends(&chunks), "stop");
    assert!(!chunks.iter().any(|chunk| chunk.to_string().contains("secret@")));
}

#[tokio::test]
async fn an_input_that_a_tool_does_not_take_never_reaches_it() {
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&ran);
    let counted = Tool::new("counted", move |input: Input| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<_, ToolError>(input.n) }
    });
    let agent = Agent::new(Calls(&[
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
    assert_eq!(said(&chunks), "10 results");
}

#[tokio::test]
async fn an_input_that_only_the_schema_refuses_never_reaches_the_tool() {
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
    let agent = Agent::new(Calls(&[
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
        assert!(!kind(id, "tool-input-available"), "{id}: a page would take it for what fits");
    }
    assert_eq!(outcomes(&chunks)[4].1, json!("10 abc"));
}

#[tokio::test]
async fn preliminary_outputs_come_in_order_and_the_final_one_last() {
    let counts = Tool::new("counts", async |input: Input, context: ToolContext| {
        for n in 0..input.n {
            context.emit_preliminary(&n).await?;
        }
        Ok::<_, BoxError>("done")
    });
    let agent = Agent::new(Calls(&[("counts", r#"{"n":50}"#)])).tool(counts);
    let chunks = first_turn(agent).await;
    let outputs = chunks.iter().filter(|chunk| chunk["type"] == "tool-output-available");
    let shown: Vec<(Value, bool)> =
        outputs.map(|chunk| (chunk["output"].clone(), chunk["preliminary"] == true)).collect();
    let expected = (0..50).map(|n| (json!(n), true)).chain([(json!("done"), false)]);
    assert_eq!(shown, expected.collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_context_that_outlives_its_tool_keeps_nobody_waiting() {
    let leaves = Tool::new("leaves", async |_: Input, context: ToolContext| {
        tokio::spawn(async move {
            for n in 0.. {
                tokio::time::sleep(Duration::from_millis(1)).await;
                let _ = context.emit_preliminary(&n).await;
            }
        });
        tokio::time::sleep(Duration::from_millis(10)).await;
        Ok::<_, ToolError>("done")
    });
    let waits = Tool::new("waits", async |_: Input| {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok::<_, ToolError>("waited")
    });
    let agent = Agent::new(Calls(&[("leaves", r#"{"n":1}"#), ("waits", r#"{"n":1}"#)]));
    let chunks = first_turn(agent.tool(leaves).tool(waits)).await;
    let of_leaves: Vec<&Value> =
        chunks.iter().filter(|chunk| chunk["toolCallId"] == "call_0").collect();
    assert_eq!(of_leaves.last().unwrap()["output"], "done", "nothing comes behind the end");
    assert!(of_leaves.len() > 5, "it was shown what came before");
    assert_eq!(said(&chunks), "2 results");
}

/// Tells when it is dropped.
struct Dropped(Arc<AtomicUsize>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// An agent whose tool waits for ten seconds, and how often that came to its end, one way or another.
fn waiting_agent() -> (Agent, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (returned, dropped) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (counter, guard) = (Arc::clone(&returned), Arc::clone(&dropped));
    let waits = Tool::new("waits", move |_: Input| {
        let (counter, guard) = (Arc::clone(&counter), Dropped(Arc::clone(&guard)));
        async move {
            tokio::time::sleep(Duration::from_secs(10)).await;
            counter.fetch_add(1, Ordering::SeqCst);
            drop(guard);
            Ok::<_, ToolError>("waited")
        }
    });
    let agent = Agent::new(Calls(&[("waits", r#"{"n":1}"#)])).tool(waits);
    (agent, returned, dropped)
}

/// Asks, and does not read the answer.
async fn ask_and_leave(chats: &ChatServer) {
    let body = json!({"id": "chat", "messages": [
        {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Go"}]},
    ]});
    let request = ChatRequest::parse(body.to_string().as_bytes(), &Limits::default()).unwrap();
    drop(chats.stream_response(&Principal::new("ada"), request).await.unwrap());
}

/// The chat, some seconds later.
async fn later(chats: &ChatServer, seconds: u64) -> Value {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let chat = chats.chat(&Principal::new("ada"), &"chat".into()).await.unwrap();
    serde_json::to_value(chat.messages).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_response_that_nobody_reads_leaves_the_tool_its_end_and_the_history_its_message() {
    let (agent, returned, _) = waiting_agent();
    let chats = agent.into_chat_server();
    ask_and_leave(&chats).await;
    let messages = later(&chats, 30).await;
    assert_eq!(returned.load(Ordering::SeqCst), 1);
    let parts = messages[1]["parts"].as_array().unwrap();
    assert!(parts.iter().any(|part| part["output"] == "waited"), "{parts:?}");
    assert_eq!(parts.last().unwrap()["text"], "1 results");
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_stops_its_tools() {
    let (agent, returned, dropped) = waiting_agent();
    let chats = agent.into_chat_server();
    ask_and_leave(&chats).await;
    later(&chats, 5).await;
    assert_eq!(dropped.load(Ordering::SeqCst), 0);
    chats.stop(&Principal::new("ada"), &"chat".into()).await.unwrap();
    let messages = later(&chats, 1).await;
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    let parts = messages[1]["parts"].as_array().unwrap();
    assert!(parts.iter().any(|part| part["state"] == "output-error"), "{parts:?}");
    later(&chats, 30).await;
    assert_eq!(returned.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_client_answers_the_second_of_two_calls_of_one_id() {
    /// Asks the client with each answer, under the same id.
    #[derive(Debug)]
    struct Insists(AtomicUsize);
    impl Model for Insists {
        fn call(&self, request: ModelRequest) -> ModelStream {
            let results = request.messages.iter().map(|message| match message {
                ModelMessage::Tool { content } => content.len(),
                _ => 0,
            });
            let results: usize = results.sum();
            assert_eq!(results, self.0.fetch_add(1, Ordering::SeqCst), "it reads every output");
            let call = ToolCall::new("call_0", "location");
            Box::pin(stream::iter([
                Ok(ModelEvent::ToolCall(Box::new(call), "{}".to_owned())),
                Ok(ModelEvent::Finished(FinishReason::ToolCalls)),
            ]))
        }
    }
    let schema = Json::parse(r#"{"type":"object"}"#).unwrap();
    let chats = Agent::new(Insists(AtomicUsize::new(0)))
        .tool(Tool::client_executed("location", "Where.", schema))
        .into_chat_server();
    let asked = json!({"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Go"}]});
    let mut parts: Vec<Value> = Vec::new();
    let mut id = Value::Null;
    for n in 0..3 {
        let mut messages = vec![asked.clone()];
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
    let chat = chats.chat(&Principal::new("ada"), &"chat".into()).await.unwrap();
    let history = serde_json::to_value(&chat.messages).unwrap();
    let outputs = history[1]["parts"].as_array().unwrap().iter();
    let outputs: Vec<&Value> = outputs.filter_map(|part| part.get("output")).collect();
    assert_eq!(outputs, [&json!(0), &json!(1)], "the third waits");
}

#[tokio::test]
async fn a_predicate_sees_the_input_and_a_failing_one_means_ask() {
    let asked = |tool: Tool<Input>| async {
        let agent = Agent::new(Calls(&[("tool", r#"{"n":5}"#)])).tool(tool);
        let chunks = first_turn(agent).await;
        chunks.iter().any(|chunk| chunk["type"] == "tool-approval-request")
    };
    let tool = || Tool::new("tool", double);
    assert!(!asked(tool()).await);
    assert!(asked(tool().needs_approval()).await);
    assert!(asked(tool().needs_approval_when(|input, _| input.n > 4)).await);
    assert!(!asked(tool().needs_approval_when(|input, _| input.n > 5)).await);
    assert!(asked(tool().needs_approval_when(|_, _| panic!("in the predicate"))).await);
    assert!(asked(tool().needs_approval_when_async(async |input, _| Ok(input.n > 4))).await);
    assert!(
        !asked(tool().needs_approval_when_async(async |_, context| {
            Ok(context.principal != Principal::new("ada"))
        }))
        .await
    );
    assert!(asked(tool().needs_approval_when_async(async |_, _| Err("unreachable".into()))).await);
    assert!(asked(tool().needs_approval_when_async(async |_, _| panic!("in the predicate"))).await);
}

#[tokio::test]
async fn server_tools_of_a_step_run_while_others_wait() {
    let location =
        Tool::client_executed("location", "Where.", Json::parse(r#"{"type":"object"}"#).unwrap());
    let agent =
        Agent::new(Calls(&[("ask", r#"{"n":1}"#), ("location", "{}"), ("double", r#"{"n":3}"#)]))
            .tool(Tool::new("ask", double).needs_approval())
            .tool(Tool::new("double", double))
            .tool(location);
    let chunks = first_turn(agent).await;
    assert_eq!(outcomes(&chunks), [("call_2".to_owned(), json!(6))]);
    assert!(chunks.iter().any(|chunk| chunk["type"] == "tool-approval-request"));
    assert_eq!(ends(&chunks), "tool-calls");
    assert_eq!(said(&chunks), "", "the model is not called while somebody is waited for");
}

#[tokio::test]
async fn the_model_is_called_so_often_and_no_more() {
    /// Calls a tool for ever.
    #[derive(Debug)]
    struct Insists(AtomicUsize);
    impl Model for Insists {
        fn call(&self, _: ModelRequest) -> ModelStream {
            let n = self.0.fetch_add(1, Ordering::SeqCst);
            let call = ToolCall::new(format!("call_{n}"), "double");
            Box::pin(stream::iter([
                Ok(ModelEvent::ToolCall(Box::new(call), r#"{"n":1}"#.to_owned())),
                Ok(ModelEvent::Finished(FinishReason::ToolCalls)),
            ]))
        }
    }
    let agent = Agent::new(Insists(AtomicUsize::new(0))).with_max_steps(3);
    let chunks = first_turn(agent.tool(Tool::new("double", double))).await;
    assert_eq!(outcomes(&chunks).len(), 3);
    assert_eq!(ends(&chunks), "tool-calls");
}

#[tokio::test]
async fn a_model_that_fails_or_ends_without_a_word_is_an_error_that_says_nothing() {
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
    for fails in [true, false] {
        let chunks = first_turn(Agent::new(Fails(fails))).await;
        let error = chunks.iter().find(|chunk| chunk["type"] == "error").unwrap();
        assert_eq!(error["errorText"], "An error occurred.");
    }
}

#[test]
#[should_panic(expected = "there are two tools named \"double\"")]
fn two_tools_of_one_name_are_refused_when_the_server_starts() {
    let _ =
        Agent::new(Calls(&[])).tool(Tool::new("double", double)).tool(Tool::new("double", double));
}

#[tokio::test]
async fn what_it_cost_stands_in_the_metadata_where_that_is_asked_for() {
    #[derive(Debug)]
    struct Costs;
    impl Model for Costs {
        fn call(&self, _: ModelRequest) -> ModelStream {
            let used = Usage { input_tokens: 7, output_tokens: 3 };
            Box::pin(stream::iter([
                Ok(ModelEvent::Event(AgentEvent::text("Hi"))),
                Ok(ModelEvent::Usage(used)),
                Ok(ModelEvent::Finished(FinishReason::Stop)),
            ]))
        }
    }
    let metadata = |chunks: Vec<Value>| chunks.last().unwrap()["messageMetadata"].clone();
    assert_eq!(metadata(first_turn(Agent::new(Costs)).await), Value::Null);
    let told = metadata(first_turn(Agent::new(Costs).with_usage_in_metadata()).await);
    assert_eq!(told, json!({"usage": {"inputTokens": 7, "outputTokens": 3}}));
}

#[tokio::test]
async fn what_a_message_cost_before_the_person_answered_is_in_what_it_cost() {
    #[derive(Debug)]
    struct Costs;
    impl Model for Costs {
        fn call(&self, request: ModelRequest) -> ModelStream {
            let was_called =
                request.messages.iter().any(|message| matches!(message, ModelMessage::Tool { .. }));
            let (said, input_tokens) = match was_called {
                true => (ModelEvent::Event(AgentEvent::text("Done")), 300),
                false => {
                    let call = ToolCall::new("call", "double");
                    (ModelEvent::ToolCall(Box::new(call), r#"{"n":1}"#.to_owned()), 5_000)
                }
            };
            let used = Usage { input_tokens, output_tokens: 1 };
            let finished = ModelEvent::Finished(FinishReason::Stop);
            Box::pin(stream::iter([Ok(said), Ok(ModelEvent::Usage(used)), Ok(finished)]))
        }
    }
    let agent = Agent::new(Costs).tool(Tool::new("double", double).needs_approval());
    let chats = agent.with_usage_in_metadata().into_chat_server();
    let user = json!({"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Go"}]});
    post(&chats, &json!({"id": "chat", "messages": [user]})).await;
    let chat = chats.chat(&Principal::new("ada"), &"chat".into()).await.unwrap();
    let mut message = serde_json::to_value(chat.messages.last()).unwrap();
    for part in message["parts"].as_array_mut().unwrap() {
        if part["state"] == "approval-requested" {
            part["state"] = json!("approval-responded");
            part["approval"]["approved"] = json!(true);
        }
    }
    let chunks = post(&chats, &json!({"id": "chat", "messages": [message]})).await;
    let told = &chunks.last().unwrap()["messageMetadata"];
    assert_eq!(*told, json!({"usage": {"inputTokens": 5_300, "outputTokens": 2}}));
}

#[tokio::test]
async fn an_output_is_as_long_as_its_tool_says_and_the_model_reads_what_it_says() {
    let long = |name: &'static str| {
        Tool::new(name, async |input: Input| {
            Ok::<_, ToolError>("x".repeat(usize::try_from(input.n).unwrap()))
        })
    };
    let model = Calls(&[
        ("long", r#"{"n":262142}"#),
        ("long", r#"{"n":262143}"#),
        ("longer", r#"{"n":262143}"#),
        ("panics", r#"{"n":1}"#),
    ]);
    let read: Arc<Mutex<String>> = Arc::default();
    let agent =
        Agent::new(Reads(model, Arc::clone(&read)))
            .tool(long("long"))
            .tool(long("longer").with_max_output_bytes(1 << 20).with_model_output(|output| {
                Json::string(&format!("{} bytes", output.as_str().len()))
            }))
            .tool(long("panics").with_model_output(|_| panic!("the host is wrong")));
    let outcomes = outcomes(&first_turn(agent).await);
    let lengths: Vec<usize> =
        outcomes.iter().map(|(_, said)| said.as_str().unwrap().len()).collect();
    assert_eq!(lengths, [262_142, "The tool returned more than can be shown.".len(), 262_143, 1]);
    let read = read.lock().unwrap();
    assert!(read.contains(r#""262145 bytes""#), "the model reads less");
    assert!(read.contains(r#""output":"x""#), "of a word that fails it reads the output");
}

/// Keeps what the model reads.
#[derive(Debug)]
struct Reads(Calls, Arc<Mutex<String>>);

impl Model for Reads {
    fn call(&self, request: ModelRequest) -> ModelStream {
        *self.1.lock().unwrap() = serde_json::to_string(&request.messages).unwrap();
        self.0.call(request)
    }
}

#[tokio::test]
async fn an_error_of_an_input_does_not_repeat_all_of_it() {
    #[derive(PartialEq, Deserialize, JsonSchema)]
    #[serde(untagged)]
    enum Either {
        Number { n: u64 },
        Flag { flag: bool },
    }
    let input: &'static str = format!(r#"{{"n":"{}"}}"#, "secret ".repeat(50_000)).leak();
    let calls: &'static [(&str, &str)] = vec![("either", input)].leak();
    let either = Tool::new("either", async |_: Either| Ok::<_, ToolError>(1));
    let chunks = first_turn(Agent::new(Calls(calls)).tool(either)).await;
    let (_, why) = &outcomes(&chunks)[0];
    assert!(why.as_str().unwrap().len() < 3_000, "{}", why.as_str().unwrap().len());
}

#[test]
fn a_name_that_no_model_could_call_is_found_out_when_the_agent_is_made() {
    for name in ["", "files.read", "rm -rf", "größe", &"a".repeat(65)] {
        let make = || Agent::new(Calls(&[])).tool(Tool::new(name, double));
        let made = std::panic::catch_unwind(make);
        assert!(made.is_err(), "{name}");
    }
    // Tools of several types in one list.
    let tools = [
        Tool::new("double", double).into_tool(),
        Tool::client_executed("where", "Says where.", Json::parse("{}").unwrap()).into_tool(),
    ];
    let _ = Agent::new(Calls(&[])).tools(tools);
}

#[test]
#[should_panic(expected = "the schema of tool \"look\" is none")]
fn a_pattern_that_is_none_is_found_out_when_the_agent_is_made() {
    #[derive(Deserialize, JsonSchema)]
    struct Look {
        #[schemars(regex(pattern = "^(/"))]
        path: String,
    }
    let _ = Agent::new(Calls(&[]))
        .tool(Tool::new("look", async |look: Look| Ok::<_, ToolError>(look.path)));
}
