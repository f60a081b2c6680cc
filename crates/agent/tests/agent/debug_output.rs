//! The `Debug` output of everything that holds conversations, inputs, outputs or keys: it holds none
//! of them, at any point of a chat.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use chat_test_support::model_double::{ModelDouble, calls_each, says};
use futures::{StreamExt, stream};
use serde_json::json;
use test_support::requests::{request, say, user_message};
use ui_message_stream::approval::store::{InMemoryLedger, LedgerStore, RecordList};
use ui_message_stream::approval::{
    ApprovalDecision, Approvals, ApprovedCall, KeyRing, NewApprovalRequest, Principal, Progress,
    ResumePlan, ToolInfo, ToolOutcome, Toolbox, UnixMillis,
};
use ui_message_stream::event::{AgentEvent, ToolCall};
use ui_message_stream::model::{Model, ModelEvent};
use ui_message_stream::reducer::{PartialJson, Reducer};
use ui_message_stream::request::Limits;
use ui_message_stream::response::{ResponseOutcome, Smooth};
use ui_message_stream::sse::Decoder;
use ui_message_stream::{BoxFuture, Chunk, Json, Translator, UiMessageStream};
use ui_message_stream_agent::tool_loop::ToolLoop;
use ui_message_stream_agent::{Agent, Tool, ToolContext, ToolError};
use ui_message_stream_chat::store::{InMemoryLogStore, LoadLog, LogKey, LogStore};
use ui_message_stream_chat::{
    AgentEventStream, ChatAgent, ChatServer, ClientAnswers, Recorder, Turn,
};

use super::inputs::What;

/// What was printed, with the name of the place.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<(&'static str, String)>>>);

impl Printed {
    fn print(&self, place: &'static str, value: &(impl Debug + ?Sized)) {
        self.0.lock().unwrap().push((place, format!("{value:?}\n{value:#?}")));
    }

    /// Requires that no output holds a secret. Returns the places.
    fn places(&self) -> Vec<&'static str> {
        let printed = self.0.lock().unwrap();
        for (place, text) in printed.iter() {
            assert!(!text.contains("secret"), "{place}: {text}");
        }
        printed.iter().map(|(place, _)| *place).collect()
    }
}

/// A model that makes three calls, and then emits a text.
fn calling(printed: Printed) -> impl Model {
    ModelDouble::new(move |request, before| {
        printed.print("model request", &request);
        match before {
            0 => calls_each(&["runs", "asks", "locates"], r#"{"what":"a secret input"}"#),
            _ => says("a secret answer"),
        }
    })
}

/// The agent, which prints each turn and each approved call.
#[derive(Clone)]
struct Prints(Agent, Printed);

impl Debug for Prints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Debug::fmt(&self.0, f)
    }
}

impl ChatAgent for Prints {
    fn respond(&self, turn: Turn) -> AgentEventStream {
        self.1.print("turn", &turn);
        self.1.print("converter", &turn.to_model_messages());
        self.0.respond(turn)
    }
}

impl Toolbox for Prints {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        Toolbox::tool(&self.0, name)
    }

    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        self.1.print("approved call", call);
        self.0.permits(call)
    }

    fn run(&self, call: ApprovedCall, progress: Progress) -> BoxFuture<'static, ToolOutcome> {
        self.0.run(call, progress)
    }
}

fn agent(printed: &Printed) -> Agent {
    let prints = || printed.clone();
    let (runs, predicate) = (prints(), prints());
    let run = move |input: What, context: ToolContext| {
        runs.print("tool context", &context);
        async move { Ok::<_, ToolError>(input.what) }
    };
    let locates = Tool::client_executed(
        "locates",
        "Where the user is.",
        Json::parse(r#"{"type": "object"}"#).unwrap(),
    );
    let asks = Tool::new("asks", run.clone()).needs_approval_when(move |_, context| {
        predicate.print("approval context", context);
        true
    });
    Agent::new(calling(prints()))
        .with_instructions("a secret instruction")
        .tool(Tool::new("runs", run))
        .tool(asks.with_approval_description(|input| input.what.clone()))
        .tool(locates)
}

#[tokio::test]
async fn nothing_that_holds_a_conversation_or_a_key_prints_it() {
    let printed = Printed::default();
    let agent = agent(&printed);
    let ledger = Arc::new(InMemoryLedger::new());
    let store = Arc::new(InMemoryLogStore::new());
    let keys = KeyRing::new(1, b"a secret of more than thirty-two bytes").unwrap();
    printed.print("key ring", &keys);
    let prints = Prints(agent.clone(), printed.clone());
    let decides = printed.clone();
    let approvals = Approvals::new(prints.clone())
        .with_keys(keys)
        .with_ledger(ledger.clone())
        .authorize_decision(move |_, record| {
            decides.print("record", record);
            true
        });
    let chats = ChatServer::new(prints, approvals.clone()).with_store(store.clone());
    let services = |place| {
        printed.print(place, &chats);
        printed.print(place, &approvals);
        printed.print(place, &agent);
        printed.print(place, &*ledger);
        printed.print(place, &*store);
    };
    services("empty services");

    let ada = Principal::new("ada");
    let first = request(&json!({
        "id": "chat", "password": "a secret field",
        "messages": [user_message("m1", "a secret question")],
    }));
    printed.print("request", &first);
    let response = chats.complete_response(&ada, first).await.unwrap();
    assert_eq!((response.approvals.len(), response.client_executed.len()), (1, 1));
    printed.print("response", &response);
    printed.print("pending approval", &response.approvals[0]);
    services("services that hold a pending approval");
    let chat = chats.chat(&ada, &"chat".into()).await.unwrap();
    printed.print("chat", &chat);
    let key = LogKey { owner: ada.clone(), chat: "chat".into() };
    let load = LoadLog { key: &key, has_frames: true, has_messages: true };
    printed.print("stored chat", &store.load(load).await.unwrap());
    printed.print(
        "pending",
        &ledger.read_list((&RecordList::of_requester(&ada)).into()).await.unwrap(),
    );

    let approval_id = response.approvals[0].approval_id.clone();
    let answers = json!({
        "toolOutputs": [{"toolCallId": "call_locates", "output": "a secret place"}],
        "decisions": [
            {"approvalId": approval_id, "approved": true, "reason": "a secret reason"},
        ],
        "password": "a secret field",
    });
    let answers = ClientAnswers::parse(answers.to_string().as_bytes(), &Limits::default()).unwrap();
    printed.print("answers", &answers);
    let second = chats.request_from_answers(&ada, &"chat".into(), &answers).await.unwrap();
    printed.print("answering request", &second);
    let plan = ResumePlan::new(second.messages(), second.continued_message());
    printed.print("plan", &plan);
    let decision = ApprovalDecision {
        approval_id,
        approved: false,
        reason: Some("a secret reason".to_owned()),
        input: None,
    };
    printed.print("decision", &decision);
    let boss = Principal::new("boss");
    let by_message = approvals.group_by_message(&boss, vec![decision]).await.unwrap();
    printed.print("decisions", &by_message);
    let mut stream = chats.stream_response(&ada, second).await.unwrap();
    while let Some(chunk) = stream.next().await {
        printed.print("response stream", &stream);
        drop(chunk);
    }
    services("services that hold an outcome");
    let ids = [response.approvals[0].record.id];
    printed.print("records", &ledger.load(&ids).await.unwrap());
    let again = chats.chat(&ada, &"chat".into()).await.unwrap();
    let text = serde_json::to_string(&again).unwrap();
    for secret in ["question", "input", "place", "answer"] {
        assert!(text.contains(&format!("a secret {secret}")), "{secret} is in the chat: {text}");
    }
    printed.print("answered chat", &again);
    printed.print("turn of the host", &Turn::new(again, "m9", &approvals));

    let chat = approvals.for_chat(&ada, &"chat".into());
    let input = Json::parse(r#"{"what":"a secret input"}"#).unwrap();
    let (message, call) = ("m2".into(), "call_9".into());
    let issued = chat.request_approval(&message, &call, "asks", &input, Some("a secret")).await;
    printed.print("issued approval", &issued.unwrap());
    printed.print("chat approvals", &chat);
    let resolved = chat.resolve(plan, &[]).await.unwrap();
    printed.print("resolved approvals", &resolved);
    printed.print("results", resolved.results());

    let places = printed.places();
    for place in
        ["turn", "approved call", "record", "tool context", "approval context", "model request"]
    {
        assert!(places.contains(&place), "{place} was not printed: {places:?}");
    }
}

#[test]
fn a_state_machine_does_not_print_what_it_has_read() {
    let printed = Printed::default();
    let input = Json::parse(r#"{"what":"a secret input"}"#).unwrap();
    let events = [
        AgentEvent::text("a secret answer"),
        AgentEvent::tool_input(ToolCall::new("call_1", "runs"), input.clone()),
        AgentEvent::tool_output("call_1", input.clone()),
    ];
    let mut recorder = Recorder::new("m1");
    let mut translator = Translator::new("m1");
    for event in &events {
        recorder.handle_event(event);
        translator.handle_event(event, &mut |_| {}).unwrap();
    }
    printed.print("recorder", &recorder);
    printed.print("translator", &translator);
    printed.print("recorded message", &recorder.finish());

    let mut reducer = Reducer::default();
    for chunk in [
        Chunk::TextStart { id: "t".into(), provider_metadata: None },
        Chunk::TextDelta { id: "t".into(), delta: "a secret".into(), provider_metadata: None },
    ] {
        reducer.push_chunk(&chunk).unwrap();
    }
    printed.print("reducer", &reducer);
    let mut partial = PartialJson::default();
    partial.push(r#"{"what":"a secret inp"#);
    printed.print("partial input", &partial);
    let mut decoder = Decoder::default();
    decoder.push(b"data: a secret frame\n\ndata: a secret");
    printed.print("decoder", &decoder);

    let mut tool_loop = ToolLoop::new(2);
    let call = ModelEvent::ToolCall(
        Box::new(ToolCall::new("call_1", "runs")),
        r#"{"what":"a secret input"}"#.to_owned(),
    );
    while !matches!(tool_loop.poll(), ui_message_stream_agent::tool_loop::Action::Wait) {}
    tool_loop.handle(ui_message_stream_agent::tool_loop::Input::Model(call));
    printed.print("tool loop", &tool_loop);

    let new_request = NewApprovalRequest {
        requester: Principal::new("ada"),
        chat_id: "chat".into(),
        message_id: "m1".into(),
        tool_call_id: "call_1".into(),
        tool_name: "asks".into(),
        definition: ui_message_stream::approval::DefinitionDigest::new("asks", "", &Json::null()),
        input,
        provider_executed: false,
        idempotent: false,
        on_new_message: Default::default(),
        decided_by_others: false,
        description: Some("a secret description".into()),
        approval_ttl: std::time::Duration::from_secs(60),
        editable: Default::default(),
    };
    printed.print("new request", &new_request);
    let keys = KeyRing::new(1, &test_support::secret(7)).unwrap();
    let id = ui_message_stream::approval::RecordId::from_bytes([1; 16]);
    printed.print("new record", &new_request.into_record(&keys, id, UnixMillis(1)).unwrap());
    printed.places();
}

#[tokio::test]
async fn a_response_does_not_print_its_events() {
    let printed = Printed::default();
    let events = stream::iter([AgentEvent::text("a secret answer that is long")]);
    let events = events
        .map(Ok::<_, std::io::Error>)
        .map(|event| event.map_err(ui_message_stream::BoxError::from));
    let smooth = Smooth::by_words(std::time::Duration::ZERO);
    let mut smoothed = Box::pin(smooth.apply(events));
    let first = smoothed.next().await;
    printed.print("smoothed events", &smoothed);
    drop(first);
    let summaries = printed.clone();
    let events = stream::iter([AgentEvent::text("a secret answer")]);
    let response = UiMessageStream::reply(&say("chat", "m1", "Go"), events);
    let mut response = response.on_finish(move |summary| {
        assert_eq!(summary.outcome, ResponseOutcome::Finished);
        summaries.print("summary", &summary);
    });
    while response.next().await.is_some() {
        printed.print("response", &response);
    }
    assert!(printed.places().contains(&"summary"));
}
