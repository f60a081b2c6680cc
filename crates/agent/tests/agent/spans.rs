//! Spans of an agent run, after the OpenTelemetry conventions for generative AI: each span is
//! within its parent, also after an approval, and no span holds content.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use chat_test_support::model_double::{ModelDouble, calls_each, says};
use futures::{StreamExt, stream};
use serde_json::json;
use test_support::requests::{ada, say};
use test_support::thread_subscriber::subscribe;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Instrument, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use ui_message_stream::ChatRequest;
use ui_message_stream::model::{Model, ModelEvent, ModelRequest, ModelStream, Usage};
use ui_message_stream::request::Limits;
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::{ChatServer, ClientAnswers};

use super::inputs::What;

/// The recorded spans, with their parent and fields, and the recorded events.
#[derive(Clone, Default)]
struct Trace(Arc<Mutex<Traced>>);

#[derive(Default)]
struct Traced {
    spans: Vec<Span>,
    events: Vec<String>,
}

struct Span {
    id: u64,
    parent: Option<u64>,
    name: &'static str,
    fields: Fields,
}

#[derive(Debug, Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }
}

impl<S: Subscriber + for<'s> LookupSpan<'s>> Layer<S> for Trace {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let parent =
            context.span(id).and_then(|span| span.parent()).map(|span| span.id().into_u64());
        let (id, name) = (id.into_u64(), attributes.metadata().name());
        self.0.lock().unwrap().spans.push(Span { id, parent, name, fields });
    }

    fn on_record(&self, id: &Id, record: &Record<'_>, _: Context<'_, S>) {
        let mut traced = self.0.lock().unwrap();
        let span = traced.spans.iter_mut().rfind(|span| span.id == id.into_u64()).unwrap();
        record.record(&mut span.fields);
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        self.0.lock().unwrap().events.push(format!("{fields:?}"));
    }
}

impl Trace {
    /// The spans of this name, each with the names of its ancestors and its fields.
    fn spans(&self, name: &str) -> Vec<(String, BTreeMap<&'static str, String>)> {
        let traced = self.0.lock().unwrap();
        let spans = traced.spans.iter().filter(|span| span.name == name);
        let ancestors = |span: &Span| {
            let mut names = Vec::new();
            let mut at = span.parent;
            while let Some(id) = at {
                let outer = traced.spans.iter().find(|outer| outer.id == id).unwrap();
                names.push(outer.name);
                at = outer.parent;
            }
            names.reverse();
            names.join(":")
        };
        spans.map(|span| (ancestors(span), span.fields.0.clone())).collect()
    }

    fn all_text(&self) -> String {
        let traced = self.0.lock().unwrap();
        let spans = traced.spans.iter().map(|span| format!("{} {:?}", span.name, span.fields));
        spans.chain(traced.events.iter().cloned()).collect::<Vec<_>>().join("\n")
    }
}

/// A model that calls these tools, and then emits a text.
fn calling(tools: &'static [&'static str]) -> impl Model {
    let model = ModelDouble::new(move |_, before| {
        let mut usage = Usage::default();
        (usage.input_tokens, usage.output_tokens) = (40, 2);
        let mut events = match before {
            0 => calls_each(tools, r#"{"what":"a secret input"}"#),
            _ => says("a secret answer"),
        };
        events.insert(events.len() - 1, ModelEvent::Usage(usage));
        events
    });
    model.with_name("a-model").with_provider("a-provider")
}

/// A model whose calls fail.
#[derive(Debug)]
struct Unreachable;

impl Model for Unreachable {
    fn call(&self, _: ModelRequest) -> ModelStream {
        Box::pin(stream::iter([Err("no route to host".into())]))
    }
}

fn agent(tools: &'static [&'static str]) -> ChatServer {
    let works = || Tool::new("works", async |input: What| Ok::<_, ToolError>(input.what));
    let asks = Tool::new("asks", async |input: What| Ok::<_, ToolError>(input.what));
    let fails =
        Tool::new("fails", async |_: What| Err::<u64, _>(ToolError("a secret reason".to_owned())));
    let breaks =
        Tool::new("breaks", async |_: What| -> Result<u64, ToolError> { panic!("broken") });
    Agent::new(calling(tools))
        .with_instructions("a secret instruction")
        .tool(works())
        .tool(asks.needs_approval().with_approval_description(|input| input.what.clone()))
        .tool(fails)
        .tool(breaks)
        .into_chat_server()
}

/// Reads the response within a span of the host.
async fn answer(chats: &ChatServer, request: ChatRequest) {
    let ada = ada();
    let answer =
        async { chats.stream_response(&ada, request).await.unwrap().collect::<Vec<_>>().await };
    answer.instrument(tracing::info_span!("request")).await;
}

fn first_request() -> ChatRequest {
    say("chat", "m1", "a secret question")
}

#[tokio::test]
async fn each_span_has_its_parent_and_the_fields_of_the_conventions() {
    let trace = Trace::default();
    // Runs and tools are spawned on this thread.
    let _guard = subscribe(tracing_subscriber::registry().with(trace.clone()));
    answer(&agent(&["works"]), first_request()).await;

    let [(ancestors, agent)] = &trace.spans("invoke_agent")[..] else { panic!() };
    assert_eq!(ancestors, "request:chat_turn");
    assert_eq!(agent["gen_ai.operation.name"], "invoke_agent");
    assert_eq!(agent["gen_ai.provider.name"], "a-provider");
    assert_eq!(agent["gen_ai.conversation.id"], "chat");
    assert_eq!(agent["gen_ai.usage.input_tokens"], "80");
    assert_eq!(agent["gen_ai.usage.output_tokens"], "4");

    let steps = trace.spans("step");
    assert_eq!(steps.len(), 2);
    let calls = trace.spans("chat");
    for (call, reason) in calls.iter().zip(["tool-calls", "stop"]) {
        let (ancestors, fields) = call;
        assert_eq!(ancestors, "request:chat_turn:invoke_agent:step");
        assert_eq!(fields["otel.name"], "chat a-model");
        assert_eq!(fields["otel.kind"], "client");
        assert_eq!(fields["gen_ai.operation.name"], "chat");
        assert_eq!(fields["gen_ai.provider.name"], "a-provider");
        assert_eq!(fields["gen_ai.request.model"], "a-model");
        assert_eq!(fields["gen_ai.conversation.id"], "chat");
        assert_eq!(fields["gen_ai.response.finish_reasons"], reason);
        assert_eq!(fields["gen_ai.usage.input_tokens"], "40");
        assert_eq!(fields.get("error.type"), None);
    }

    let [(ancestors, tool)] = &trace.spans("execute_tool")[..] else { panic!() };
    assert_eq!(ancestors, "request:chat_turn:invoke_agent:step");
    assert_eq!(tool["otel.name"], "execute_tool works");
    assert_eq!(tool["gen_ai.operation.name"], "execute_tool");
    assert_eq!(tool["gen_ai.tool.name"], "works");
    assert_eq!(tool["gen_ai.tool.call.id"], "call_works");
    assert_eq!(tool["gen_ai.tool.type"], "function");
    assert_eq!(tool["gen_ai.conversation.id"], "chat");
    assert_eq!(tool.get("error.type"), None);
}

#[tokio::test]
async fn an_approved_call_runs_within_the_request_that_approved_it_and_the_wait_has_a_span() {
    for approved in [true, false] {
        let trace = Trace::default();
        let _guard = subscribe(tracing_subscriber::registry().with(trace.clone()));
        let chats = agent(&["asks"]);
        answer(&chats, first_request()).await;
        let ada = ada();
        let pending = chats.approvals().pending(&ada).await.unwrap();
        let decisions = json!({"decisions": [{
            "approvalId": pending[0].approval_id, "approved": approved, "reason": "a secret reason",
        }]});
        let answers =
            ClientAnswers::parse(decisions.to_string().as_bytes(), &Limits::default()).unwrap();
        answer(&chats, chats.request_from_answers(&ada, &"chat".into(), &answers).await.unwrap())
            .await;

        let [(ancestors, wait)] = &trace.spans("approval_wait")[..] else { panic!() };
        assert_eq!(ancestors, "request:chat_turn");
        assert_eq!(wait["gen_ai.tool.name"], "asks");
        assert!(wait["waited_ms"].parse::<u64>().is_ok());
        let ran = trace.spans("execute_tool");
        assert_eq!(ran.len(), usize::from(approved));
        for (ancestors, tool) in ran {
            assert_eq!(ancestors, "request:chat_turn");
            assert_eq!(tool["gen_ai.tool.call.id"], "call_asks");
            assert_eq!(tool["gen_ai.conversation.id"], "chat");
        }
        assert_eq!(trace.spans("invoke_agent").len(), 2);
        let all_text = trace.all_text();
        assert!(!all_text.contains("secret"), "{all_text}");
    }
}

#[tokio::test]
async fn failed_spans_have_an_error_status_and_hold_no_content() {
    let trace = Trace::default();
    let _guard = subscribe(tracing_subscriber::registry().with(trace.clone()));
    answer(&agent(&["fails", "breaks", "works"]), first_request()).await;
    let ran = trace.spans("execute_tool");
    let kinds = ran.iter().map(|(_, tool)| {
        let status = tool.get("otel.status_code").map(String::as_str);
        (tool["gen_ai.tool.name"].as_str(), tool.get("error.type").map(String::as_str), status)
    });
    assert_eq!(
        kinds.collect::<Vec<_>>(),
        [
            ("fails", Some("tool_error"), Some("ERROR")),
            ("breaks", Some("panic"), Some("ERROR")),
            ("works", None, None),
        ]
    );
    let all_text = trace.all_text();
    assert!(!all_text.contains("secret"), "{all_text}");

    let trace = Trace::default();
    let _guard = subscribe(tracing_subscriber::registry().with(trace.clone()));
    answer(&Agent::new(Unreachable).into_chat_server(), first_request()).await;
    let [(_, call)] = &trace.spans("chat")[..] else { panic!() };
    assert_eq!((&*call["error.type"], &*call["otel.status_code"]), ("model", "ERROR"));
    let [(_, agent)] = &trace.spans("invoke_agent")[..] else { panic!() };
    assert_eq!(agent["otel.status_code"], "ERROR");
    assert_eq!(agent.get("gen_ai.usage.input_tokens"), None, "the usage is unknown");
}
