//! The context of tools and their predicates, growing outputs, and that neither a tool nor a
//! failing model prevents a response from ending.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::Request;
use chat_test_support::answers::complete_response;
use chat_test_support::browser::{app, say};
use chat_test_support::model_double::{ModelDouble, says, tool_call};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use test_support::requests::{ada, request, user_message};
use test_support::responses::text_of;
use tower::ServiceExt;
use ui_message_stream::approval::{Approvals, EmptyToolbox, Principal};
use ui_message_stream::chunk::{Chunk, FinishReason};
use ui_message_stream::event::{AgentEvent, File, Source, ToolCall};
use ui_message_stream::id::ApprovalId;
use ui_message_stream::message::{ToolPart, ToolState, UiMessage};
use ui_message_stream::model::{Model, ModelEvent, ModelRequest, ModelStream};
use ui_message_stream::request::Limits;
use ui_message_stream::response::Smooth;
use ui_message_stream::testing::Conversation;
use ui_message_stream::{BoxError, ChatRequest, Json, UserText};
use ui_message_stream_agent::tool_loop::RunEnd;
use ui_message_stream_agent::{Agent, EmitError, Tool, ToolContext, ToolError};
use ui_message_stream_chat::{ChatServer, ClientAnswers, Turn};

use super::inputs::Number;

/// Returns a model that makes these calls, one list for each step, and then emits a text.
fn steps(steps: &'static [&'static [&'static str]]) -> impl Model {
    ModelDouble::new(move |_, step| {
        let Some(calls) = steps.get(step) else { return says("That is all.") };
        let calls =
            calls.iter().map(|tool| tool_call(&format!("{tool}_{step}"), tool, r#"{"n":1}"#));
        calls.chain([ModelEvent::Finished(FinishReason::ToolCalls)]).collect()
    })
}

/// Returns the conversation of an agent that has received "Go".
async fn started(agent: Agent) -> Conversation<'static> {
    let routes = app(agent);
    let service = async move |request: Request<String>| routes.clone().oneshot(request).await;
    let mut browser = Conversation::with_service("/api/chat", service);
    browser.send("Go").await;
    browser
}

/// The first request of the user.
fn first_request() -> Value {
    json!({"id": "chat", "messages": [user_message("m1", "Go")]})
}

/// The request that approves a call.
async fn approval_of(
    chats: &ChatServer,
    principal: &Principal,
    approval_id: &ApprovalId,
) -> ChatRequest {
    let decision = json!({"decisions": [{"approvalId": approval_id, "approved": true}]});
    let answers =
        ClientAnswers::parse(decision.to_string().as_bytes(), &Limits::default()).unwrap();
    chats.request_from_answers(principal, &"chat".into(), &answers).await.unwrap()
}

/// The JSON response of an agent.
async fn json_response(agent: Agent) -> Value {
    complete_response(&app(agent), "/api/chat", &first_request()).await
}

fn error(part: &ToolPart) -> &str {
    match &part.state {
        ToolState::OutputError { error_text, .. } => error_text,
        other => panic!("{other:?}"),
    }
}

fn awaits_approval(browser: &Conversation<'_>, call: &str) -> bool {
    matches!(browser.tool_call(call).state, ToolState::ApprovalRequested { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_blocks_its_thread_is_ended_by_its_timeout() {
    for (needs_approval, emits) in [(false, false), (true, false), (false, true)] {
        let unblock = Arc::new(AtomicBool::new(false));
        let blocked = Arc::clone(&unblock);
        let tool = Tool::new("blocks", move |_: Number, context: ToolContext| {
            let blocked = Arc::clone(&blocked);
            async move {
                if emits {
                    context.emit_preliminary("so far").await?;
                }
                while !blocked.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok::<_, BoxError>(0)
            }
        });
        let tool = if needs_approval { tool.needs_approval() } else { tool };
        let tool = tool.with_timeout(Duration::from_millis(50));
        let mut browser = started(Agent::new(steps(&[&["blocks"]])).tool(tool)).await;
        if needs_approval {
            browser.approve("blocks_0").await;
        }
        unblock.store(true, Ordering::SeqCst);
        assert!(error(browser.tool_call("blocks_0")).starts_with("The tool took too long"));
        assert!(browser.last_text().ends_with("That is all."));
    }
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_emits_without_end_is_ended_by_its_limits() {
    let endless =
        Tool::streaming("tool", |_: Number, _| stream::repeat_with(|| Ok::<_, ToolError>(1)));
    let emits_data = Tool::new("tool", async |_: Number, context: ToolContext| {
        loop {
            if let Err(error) = context.emit_data("seen", "a ship").await {
                break Err::<u64, _>(ToolError(error.to_string()));
            }
        }
    });
    let too_long =
        Tool::streaming("tool", |_: Number, _| stream::repeat_with(|| Ok::<_, ToolError>(1)));
    let ignores_errors =
        Tool::new("tool", async |_: Number, context: ToolContext| -> Result<u64, ToolError> {
            loop {
                let _ = context.emit_data("seen", "a ship").await;
            }
        });
    let second = Duration::from_secs(1);
    for (tool, end) in [
        (endless.with_timeout(second), "The tool took too long"),
        (too_long.with_timeout(second).with_max_output_bytes(0), "The tool took too long"),
        (ignores_errors.with_timeout(second), "The tool took too long"),
        (emits_data, "the call has added 32 parts to the message already, and no more fit"),
    ] {
        // Paused time only advances when every task waits.
        let clock = tokio::spawn(async {
            loop {
                tokio::time::advance(Duration::from_millis(1)).await;
                tokio::task::yield_now().await;
            }
        });
        let mut browser = started(Agent::new(steps(&[&["tool"]])).tool(tool)).await;
        clock.abort();
        let error_text = error(browser.tool_call("tool_0"));
        assert!(error_text.starts_with(end), "{error_text}");
        assert!(browser.last_text().ends_with("That is all."));
        // The chat can continue.
        say(&mut browser, "And now?").await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_approval_predicate_that_never_returns_requests_approval() {
    let tool = Tool::new("tool", async |input: Number| Ok::<_, ToolError>(input.n))
        .with_timeout(Duration::from_secs(5))
        .needs_approval_when_async(async |_, _| std::future::pending().await);
    let browser = started(Agent::new(steps(&[&["tool"]])).tool(tool)).await;
    assert!(awaits_approval(&browser, "tool_0"));
}

#[tokio::test]
async fn an_approval_predicate_reads_the_earlier_calls_of_its_turn() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sees = Arc::clone(&seen);
    let fetch = Tool::new("fetch", async |_: Number| Ok::<_, ToolError>("a page of strangers"));
    let send = Tool::new("send", async |_: Number| Ok::<_, ToolError>("sent"));
    let send = send.needs_approval_when(move |_, context| {
        let parts: Vec<_> =
            context.chat().messages.iter().flat_map(UiMessage::tool_parts).collect();
        let read = parts.iter().any(|part| {
            &*part.tool_call_id == "fetch_0"
                && matches!(part.state, ToolState::OutputAvailable { .. })
        });
        sees.lock().unwrap().push((context.tool_call_id.to_string(), parts.len()));
        read
    });
    let agent = Agent::new(steps(&[&["fetch"], &["send"]])).tool(fetch).tool(send);
    let browser = started(agent).await;
    assert!(awaits_approval(&browser, "send_1"), "the turn has read untrusted content");
    assert_eq!(*seen.lock().unwrap(), [("send_1".to_owned(), 1)], "without the call itself");
}

#[tokio::test]
async fn an_approval_predicate_does_not_read_its_own_call() {
    let send = Tool::new("send", async |_: Number| Ok::<_, ToolError>("sent"));
    let send = send.needs_approval_when(|_, context| {
        let mut calls = context.chat().messages.iter().flat_map(UiMessage::tool_parts);
        !calls.any(|call| &*call.tool_name == "send")
    });
    let browser = started(Agent::new(steps(&[&["send"]])).tool(send)).await;
    assert!(awaits_approval(&browser, "send_0"));
}

#[tokio::test]
async fn a_streaming_tool_sends_each_output_as_preliminary_and_the_last_as_final() {
    let count = Tool::streaming("count", |input: Number, _| {
        stream::iter((input.n..=3).map(Ok::<_, ToolError>))
    });
    let breaks = Tool::streaming("breaks", |_: Number, _| {
        stream::iter([Ok(1), Err(ToolError("no more".to_owned()))])
    });
    let says_nothing = Tool::streaming("says_nothing", |_: Number, _| {
        stream::iter(Vec::<Result<u64, ToolError>>::new())
    });
    let agent = Agent::new(steps(&[&["count"], &["breaks"], &["says_nothing"]]));
    let browser = started(agent.tool(count).tool(breaks).tool(says_nothing)).await;
    let shown = browser.last_chunks().iter().filter_map(|chunk| match chunk {
        Chunk::ToolOutputAvailable { tool_call_id, output, preliminary, .. } => {
            let output = output.as_ref()?.as_str().to_owned();
            Some((tool_call_id.to_string(), output, *preliminary))
        }
        _ => None,
    });
    let count = |output: &str, preliminary| ("count_0".to_owned(), output.to_owned(), preliminary);
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            count("1", Some(true)),
            count("2", Some(true)),
            count("3", Some(true)),
            count("3", None),
            ("breaks_1".to_owned(), "1".to_owned(), Some(true)),
        ]
    );
    assert_eq!(error(browser.tool_call("breaks_1")), "no more");
    assert_eq!(error(browser.tool_call("says_nothing_2")), "The tool failed.");
}

#[tokio::test]
async fn a_tool_adds_data_sources_and_files_to_the_message() {
    let look = Tool::new("look", async |_: Number, context: ToolContext| {
        context.emit_data("looking-at", "the harbour").await.unwrap();
        let deepest = (0..Json::MAX_DEPTH).fold(json!(1), |value, _| json!([value]));
        context.emit_data_with_id("deep", "1", &deepest).await.unwrap();
        for ships in 1..=200 {
            context.emit_data_with_id("ships", "count", &(ships % 3)).await.unwrap();
        }
        assert!(context.emit_data_with_id("ships", "x".repeat(400), &1).await.is_err());
        let too_long = context.emit_data("looking-at", &"x".repeat(400)).await.unwrap_err();
        assert!(matches!(too_long, EmitError::TooLong { max_bytes } if max_bytes < 400));
        let (source_id, url) = ("s1".into(), "https://harbour.example".into());
        context.emit_source(Source::Url { source_id, url, title: None }).await.unwrap();
        let url = "https://harbour.example/ships.png".into();
        context.emit_file(File { url, media_type: "image/png".into() }).await.unwrap();
        Ok::<_, ToolError>("ships")
    });
    let agent = Agent::new(steps(&[&["look"]])).tool(look.with_max_output_bytes(400));
    let browser = started(agent).await;
    let message = serde_json::to_value(browser.messages().last().unwrap()).unwrap();
    let parts = message["parts"].as_array().unwrap().iter();
    let kinds: Vec<&str> = parts.map(|part| part["type"].as_str().unwrap()).collect();
    let shown = ["data-looking-at", "data-deep", "data-ships", "source-url", "file"];
    assert_eq!(kinds, [&["step-start", "tool-look"], &shown[..], &["step-start", "text"]].concat());
    assert_eq!(message["parts"][2]["data"], "the harbour");
    assert_eq!(message["parts"][4]["data"], 2, "it replaces the data with the same id");
}

#[tokio::test]
async fn the_last_output_of_a_streaming_tool_is_its_result() {
    let grows = async |last: usize| {
        let outputs = ["x".repeat(100), "y".repeat(last)].map(Ok::<_, ToolError>);
        let tool = Tool::streaming("tool", move |_: Number, _| stream::iter(outputs.clone()));
        started(Agent::new(steps(&[&["tool"]])).tool(tool.with_max_output_bytes(50))).await
    };
    let (short, long) = (grows(2).await, grows(100).await);
    let state = &short.tool_call("tool_0").state;
    assert!(
        matches!(state, ToolState::OutputAvailable { output: Some(output), .. } if output.as_str() == "\"yy\"")
    );
    assert_eq!(error(long.tool_call("tool_0")), "The tool returned more than can be shown.");
}

#[tokio::test]
async fn preliminary_outputs_and_tool_errors_have_size_limits() {
    let tool = Tool::new("tool", async |_: Number, context: ToolContext| {
        assert!(context.emit_preliminary(&"x".repeat(100)).await.is_err());
        context.emit_preliminary("short").await.unwrap();
        Err::<u64, _>(ToolError("é".repeat(20_000)))
    });
    let agent = Agent::new(steps(&[&["tool"]])).tool(tool.with_max_output_bytes(50));
    let browser = started(agent).await;
    let shown = browser.last_chunks().iter().filter_map(|chunk| match chunk {
        Chunk::ToolOutputAvailable { output, .. } => Some(output.as_ref()?.as_str()),
        _ => None,
    });
    assert_eq!(shown.collect::<Vec<_>>(), [r#""short""#]);
    assert_eq!(error(browser.tool_call("tool_0")).chars().count(), 10_000);
}

#[tokio::test]
async fn the_tool_context_and_the_approval_record_describe_the_call() {
    let contexts = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&contexts);
    let run = move |_: Number, context: ToolContext| {
        let has_key = context.idempotency_key.is_some();
        let (call, chat) = (context.tool_call_id.to_string(), context.chat_id.to_string());
        recorder.lock().unwrap().push((call, chat, context.principal, has_key));
        async { Ok::<_, ToolError>("done") }
    };
    let free = Tool::new("free", run.clone()).with_title("At once");
    let asks = Tool::new("asks", run)
        .with_title("First ask")
        .needs_approval()
        .with_approval_description(|input| format!("Do it {} times", input.n))
        .with_approval_ttl(Duration::from_secs(90))
        .idempotent();
    let chats = Agent::new(steps(&[&["free", "asks"]])).tool(free).tool(asks).into_chat_server();
    let ada = ada();
    let request = request(&first_request());
    let answer = chats.complete_response(&ada, request).await.unwrap();
    let [pending] = &answer.approvals[..] else { panic!("{answer:?}") };
    assert_eq!(&*pending.record.description, "Do it 1 times");
    assert_eq!(pending.record.expires_at.0 - pending.record.requested_at.0, 90_000);
    let message = answer.message.unwrap();
    let titles: Vec<_> =
        message.tool_parts().map(|part| part.title.as_ref().map(Json::as_str)).collect();
    assert_eq!(titles, [Some(r#""At once""#), Some(r#""First ask""#)]);
    let request = approval_of(&chats, &ada, &pending.approval_id).await;
    chats.complete_response(&ada, request).await.unwrap();
    let call = |id: &str, has_key| (id.to_owned(), "chat".to_owned(), ada.clone(), has_key);
    assert_eq!(*contexts.lock().unwrap(), [call("free_0", false), call("asks_0", true)]);
}

#[tokio::test(start_paused = true)]
async fn agent_events_pass_through_the_transform() {
    let agent =
        Agent::new(ModelDouble::new(|_, _| says("one two three"))).with_transform(|events| {
            Box::pin(Smooth::by_words(Duration::from_millis(1)).apply(events))
        });
    let browser = started(agent).await;
    let deltas = browser.last_chunks().iter().filter_map(|chunk| match chunk {
        Chunk::TextDelta { delta, .. } => Some(&**delta),
        _ => None,
    });
    assert_eq!(deltas.collect::<Vec<_>>(), ["one ", "two ", "three"]);
}

/// A model that calls a tool and then panics, immediately or in its stream.
#[derive(Debug)]
struct Panics {
    at_once: bool,
}

impl Model for Panics {
    fn call(&self, _: ModelRequest) -> ModelStream {
        assert!(!self.at_once, "a model of the host's");
        let call =
            ModelEvent::ToolCall(Box::new(ToolCall::new("call", "slow")), r#"{"n":1}"#.to_owned());
        let panics = stream::once(async { panic!("a model of the host's") });
        Box::pin(stream::iter([Ok(call)]).chain(panics))
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_model_is_an_error_and_its_calls_do_not_run() {
    for at_once in [false, true] {
        let slow =
            Tool::new("slow", async |_: Number| -> Result<u8, ToolError> { panic!("it ran") });
        let browser = started(Agent::new(Panics { at_once }).tool(slow)).await;
        assert_eq!(browser.error(), Some("An error occurred."));
        if !at_once {
            let state = &browser.tool_call("call").state;
            let not_started = UserText::NotStarted.in_english();
            let is_refused = matches!(state, ToolState::OutputError { error_text, .. } if error_text == not_started);
            assert!(is_refused, "{state:?}");
        }
    }
}

#[tokio::test]
async fn a_model_may_end_its_response_as_an_agent_does_and_the_next_call_is_separate() {
    // A model that ends each response with the event of an agent, and with `rest` after it. No tool
    // runs, so that the next call follows at once.
    let ends_as_agent = |rest: &'static [ModelEvent]| {
        ModelDouble::new(move |_, calls_before| {
            let (event, reason) = match calls_before {
                0 => (tool_call("call", "tool", "{"), FinishReason::ToolCalls),
                _ => (ModelEvent::Event(AgentEvent::text("Done.")), FinishReason::Stop),
            };
            let finish = ModelEvent::Event(AgentEvent::finish(reason));
            [&[event, finish], rest].concat()
        })
    };
    for rest in [&[][..], &[ModelEvent::Finished(FinishReason::ToolCalls)]] {
        let tool = Tool::new("tool", async |input: Number| Ok::<_, ToolError>(input.n));
        let agent = Agent::new(ends_as_agent(rest)).tool(tool);
        let browser = started(agent).await;
        assert_eq!(browser.error(), None, "{rest:?}");
        let chunks = format!("{:?}", browser.last_chunks());
        assert!(chunks.contains("Done."), "{rest:?}: {chunks}");
    }
}

#[tokio::test]
async fn the_stop_reason_of_a_json_response_follows_the_end_of_the_run() {
    let ends = |reason| {
        let text = ModelEvent::Event(AgentEvent::text("Once upon"));
        ModelDouble::new(move |_, _| vec![text.clone(), ModelEvent::Finished(reason)])
    };
    for (reason, stop_reason) in [
        (FinishReason::Stop, "stop"),
        (FinishReason::Other, "stop"),
        (FinishReason::Length, "length"),
        (FinishReason::ContentFilter, "content_filter"),
    ] {
        assert_eq!(json_response(Agent::new(ends(reason))).await["stopReason"], stop_reason);
    }
    let tool = || Tool::new("tool", async |input: Number| Ok::<_, ToolError>(input.n));
    let agent = Agent::new(steps(&[&["tool"], &["tool"]])).tool(tool()).with_max_steps(1);
    assert_eq!(json_response(agent).await["stopReason"], "tool_calls");
    let agent = Agent::new(steps(&[&["tool"]])).tool(tool().needs_approval()).with_max_steps(1);
    assert_eq!(json_response(agent).await["stopReason"], "requires_approval");
}

/// The server and the unread response of the turn that approved the agent's call.
async fn approved(agent: Agent) -> (ChatServer, ui_message_stream_chat::ChatStream) {
    let chats = agent.into_chat_server();
    let ada = ada();
    let request = request(&first_request());
    let answer = chats.complete_response(&ada, request).await.unwrap();
    let request = approval_of(&chats, &ada, &answer.approvals[0].approval_id).await;
    let response = chats.stream_response(&ada, request).await.unwrap();
    (chats, response)
}

#[tokio::test(start_paused = true)]
async fn the_start_chunk_is_sent_while_an_approved_tool_runs() {
    let ran = Arc::new(AtomicUsize::new(0));
    let agent = || {
        let ran = Arc::clone(&ran);
        let tool = Tool::new("tool", move |_: Number| {
            let ran = ran.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::time::sleep(Duration::from_millis(400)).await;
                Ok::<_, ToolError>(ran)
            }
        });
        Agent::new(steps(&[&["tool"]])).tool(tool.needs_approval())
    };
    let (_chats, mut response) = approved(agent()).await;
    let first = response.next().await.unwrap().unwrap();
    let first = String::from_utf8(first.to_vec()).unwrap();
    let data = first.lines().find(|line| line.starts_with("data: ")).unwrap();
    assert!(data.starts_with(r#"data: {"type":"start""#), "{first}");
    assert!(!first.contains("tool-output-available"), "{first}");
    let rest = text_of(response).await;
    assert!(rest.contains("tool-output-available"), "{rest}");
    assert_eq!(ran.load(Ordering::SeqCst), 1);

    // An approved call runs whether or not the response is read.
    let (_chats, response) = approved(agent()).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(ran.load(Ordering::SeqCst), 2);
    drop(response);
    let (_chats, response) = approved(agent()).await;
    drop(response);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(ran.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_stopped_before_its_first_event_stores_no_message() {
    let silent = |_: Turn| stream::pending::<AgentEvent>();
    let chats = ChatServer::new(silent, Approvals::new(EmptyToolbox));
    let ada = ada();
    let request = request(&first_request());
    let response = chats.stream_response(&ada, request).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    chats.stop(&ada, &"chat".into()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(text_of(response).await.contains(r#""type":"abort""#));
    assert_eq!(chats.chat(&ada, &"chat".into()).await.unwrap().messages.len(), 1);
}

#[test]
fn a_run_end_with_pending_calls_can_be_serialized() {
    let end = json!({"awaitingApproval": {"waiting": [
        {"toolCallId": "call_1", "toolName": "tool", "input": {"n": 1}, "approvalId": "ap"},
    ]}});
    let read: RunEnd = serde_json::from_value(end).unwrap();
    let RunEnd::AwaitingApproval { waiting } = &read else { panic!("{read:?}") };
    assert_eq!(waiting[0].tool_name.as_ref(), "tool");
    let again: RunEnd = serde_json::from_str(&serde_json::to_string(&read).unwrap()).unwrap();
    assert_eq!(again, read);
}
