//! The testing module. Its conversation behaves like the real client: requests, messages and errors
//! are compared with recordings of it. A chat with approvals is tested with it.

mod assistant;
mod recorded;

use std::cell::RefCell;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response, StatusCode};
use axum::{Router, routing::post};
use futures::{FutureExt, stream};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::ServiceExt;
use ui_message_stream::chunk::Version;
use ui_message_stream::id::ChatId;
use ui_message_stream::response::ResponseOutcome;
use ui_message_stream::testing::{
    CollectError, Conversation, ScriptedAgent, assert_conformant, collect_chunks, conformance,
    snapshot,
};
use ui_message_stream::{AgentEvent, ChatRequest, Chunk, Json, Translator, UiMessageStream};

use assistant::Assistant;
use recorded::upstream;

#[tokio::test]
async fn an_approved_call_runs_once_and_the_response_continues_its_message() {
    let assistant = Assistant::default();
    let mut chat = Conversation::new(async |chat| assistant.respond(chat));
    chat.send("Delete my notes").await;
    assert_eq!(chat.tool_call("delete_file").state.as_str(), "approval-requested");
    chat.approve("delete_file").await;
    assert_eq!(
        snapshot(chat.last_chunks()),
        r#"{"type":"start","messageId":"msg-1"}
{"type":"tool-output-available","toolCallId":"call-1","output":{"deleted":"notes.txt"}}
{"type":"start-step"}
{"type":"text-start","id":"text-1"}
{"type":"text-delta","id":"text-1","delta":"notes.txt is deleted."}
{"type":"text-end","id":"text-1"}
{"type":"finish-step"}
{"type":"finish"}
"#
    );
    assert_eq!(assistant.deleted(), ["notes.txt"]);
    assert_eq!(chat.messages().len(), 2);
}

#[tokio::test]
async fn a_denied_call_never_runs_and_the_agent_receives_the_reason() {
    let assistant = Assistant::default();
    let mut chat = Conversation::new(async |chat| assistant.respond(chat));
    chat.send("Delete my notes").await;
    chat.deny("delete_file", "I need them").await;
    assert_eq!(chat.last_text(), "It stays, you said: I need them.");
    assert_eq!(
        snapshot(&chat.messages()[1..]),
        r#"{"id":"msg-1","role":"assistant","parts":[{"type":"step-start"},{"type":"tool-delete_file","toolCallId":"call-1","state":"output-denied","input":{"path":"notes.txt"},"approval":{"id":"approval-1","approved":false,"reason":"I need them"}},{"type":"step-start"},{"type":"text","text":"It stays, you said: I need them.","state":"done"}]}
"#
    );
    assert!(assistant.deleted().is_empty());
}

#[tokio::test]
async fn a_client_executed_call_waits_for_its_output_or_error() {
    let assistant = Assistant::default();
    let mut chat = Conversation::new(async |chat| assistant.respond(chat));
    chat.send("What is my location?").await;
    assert_eq!(chat.tool_call("get_location").state.as_str(), "input-available");
    chat.tool_output("get_location", &json!({ "city": "Lisbon" })).await;
    assert_eq!(chat.last_text(), r#"You are at {"city":"Lisbon"}."#);

    chat.send("And what is my location now?").await;
    chat.tool_error("get_location", "permission denied").await;
    assert_eq!(chat.last_text(), "I cannot know: permission denied.");
}

#[tokio::test]
async fn a_new_message_supersedes_a_pending_approval_and_the_call_never_runs() {
    let assistant = Assistant::default();
    let mut chat = Conversation::new(async |chat| assistant.respond(chat));
    chat.send("Delete my notes").await;
    chat.send("Never mind").await;
    assert_eq!(chat.last_text(), "You said: Never mind");
    // A later approval is rejected: the call is superseded.
    chat.approve("delete_file").await;
    chat.submit().await;
    assert_eq!(chat.tool_call("delete_file").state.as_str(), "output-error");
    assert!(assistant.deleted().is_empty());
}

#[tokio::test]
async fn decisions_are_sent_when_the_last_pending_approval_is_decided() {
    let assistant = Assistant::default();
    let mut chat = Conversation::new(async |chat| assistant.respond(chat));
    chat.send("Delete everything").await;
    let call_ids: Vec<String> =
        chat.messages()[1].tool_parts().map(|part| part.tool_call_id.to_string()).collect();
    chat.approve(&call_ids[0]).await;
    assert_eq!(chat.requests().len(), 1);
    chat.deny(&call_ids[1], None).await;
    assert_eq!(chat.requests().len(), 2);
    assert_eq!(assistant.deleted(), ["notes.txt"]);
}

#[tokio::test]
async fn a_client_without_automatic_sending_submits_explicitly() {
    let assistant = Assistant::default();
    let mut chat =
        Conversation::new(async |chat| assistant.respond(chat)).send_automatically_when(|_| false);
    chat.send("Delete my notes").await;
    chat.approve("delete_file").await;
    assert_eq!(chat.requests().len(), 1);
    chat.submit().await;
    assert_eq!(chat.last_text(), "notes.txt is deleted.");
}

#[tokio::test]
async fn a_response_can_be_regenerated_and_a_message_edited() {
    let assistant = Assistant::default();
    let mut chat = Conversation::new(async |chat| assistant.respond(chat));
    chat.send("Hi").await;
    chat.regenerate().await;
    let answer = chat.messages()[1].id.clone();
    chat.regenerate_message(&answer).await;
    let question = chat.messages()[0].id.clone();
    chat.edit(&question, "Good evening").await;
    assert_eq!(chat.last_text(), "You said: Good evening");
    assert_eq!(chat.messages().len(), 2);
}

#[tokio::test]
async fn a_conversation_with_a_router_reports_its_rejections() {
    let app: Router = Router::new().route("/api/chat", post(hello));
    let service = async |request| app.clone().oneshot(request).await;
    let mut chat = Conversation::with_service("/api/chat", service);
    chat.send("Hi").await;
    assert_eq!((chat.last_text(), chat.error()), ("Hello!", None));

    let mut lost = Conversation::with_service("/api/elsewhere", service);
    lost.send("Hi").await;
    assert_eq!(lost.error(), Some(""), "a 404 without a body");

    let mut long = Conversation::with_service("/api/chat", service);
    long.send("x".repeat(3 << 20)).await;
    assert!(long.error().unwrap().contains("Limits::with_max_bytes"));
    assert_eq!(long.messages().len(), 1);
}

async fn hello(chat: ChatRequest) -> UiMessageStream {
    UiMessageStream::reply(&chat, stream::iter([AgentEvent::text("Hello!")]))
}

#[tokio::test]
async fn reconnect_requests_the_same_url_as_the_client() {
    let requests = RefCell::new(Vec::new());
    let service = async |request: Request<String>| {
        requests.borrow_mut().push(format!("{} {}", request.method(), request.uri()));
        let mut answer = Response::new(Body::empty());
        *answer.status_mut() = StatusCode::NO_CONTENT;
        Ok::<_, ()>(answer)
    };
    let recorded: Value = serde_json::from_str(&upstream("requests/19-resume-get.json")).unwrap();
    for (api, id) in
        [("/api/agent?v=2", "chat-1"), ("/api/chat/?a=/b", "chat 1/ü"), ("/", "x!*'()~._-")]
    {
        let mut chat = Conversation::with_service(api, service).with_id(id);
        chat.reconnect().await;
        assert_eq!((chat.error(), chat.messages().len()), (None, 0));
    }
    assert_eq!(
        *requests.borrow(),
        [
            format!("GET {}", recorded["url"].as_str().unwrap()),
            "GET /api/chat/chat%201%2F%C3%BC/stream?a=/b".to_owned(),
            "GET /x!*'()~._-/stream".to_owned(),
        ]
    );
}

#[tokio::test]
async fn a_reloaded_client_reconnects_to_the_active_response() {
    let reply = |chat: &ChatRequest| {
        let agent = ScriptedAgent::new([AgentEvent::text("Slow")]).say([AgentEvent::text("ly.")]);
        UiMessageStream::reply(chat, agent)
    };
    let live = RefCell::new(None);
    let route = async |chat: ChatRequest| {
        *live.borrow_mut() = Some(collect_chunks(reply(&chat)).await.unwrap());
        reply(&chat)
    };
    let mut page = Conversation::new(route);
    page.stop_after(4);
    page.send("Hi").await;
    assert_eq!((page.last_text(), page.error()), ("Slow", None));
    assert_eq!(page.last_chunks().len(), 4);

    let rejoin = async |id: ChatId| {
        assert_eq!(&*id, "chat-1");
        let chunks = live.borrow_mut().take()?;
        let body = chunks.iter().map(|chunk| format!("data: {}\n\n", json!(chunk)));
        Some(body.collect::<String>())
    };
    let stored = page.messages()[..1].to_vec();
    let mut page = Conversation::new(route).with_messages(stored).with_reconnect(rejoin);
    page.reconnect().await;
    assert_eq!((page.last_text(), page.messages().len()), ("Slowly.", 2));
    page.reconnect().await;
    assert_eq!((page.last_text(), page.messages().len()), ("Slowly.", 2));
}

#[tokio::test]
async fn stopping_a_response_disconnects_from_the_agent() {
    let (ended, outcome) = std::sync::mpsc::channel();
    let mut page = Conversation::new(async |chat: ChatRequest| {
        let agent = ScriptedAgent::new([AgentEvent::text("For ever")]).hang();
        let ended = ended.clone();
        UiMessageStream::reply(&chat, agent).on_finish(move |end| ended.send(end.outcome).unwrap())
    });
    page.stop_after(4);
    page.send("Hi").await;
    assert_eq!(outcome.recv().unwrap(), ResponseOutcome::Disconnected);
    assert_eq!(page.last_text(), "For ever");
}

#[tokio::test]
async fn a_client_tool_runs_automatically_with_on_tool_call() {
    let assistant = Assistant::default();
    let mut chat =
        Conversation::new(async |chat| assistant.respond(chat)).on_tool_call(|name, input| {
            assert_eq!(input.as_str(), "{}");
            (name == "get_location").then(|| Ok(Json::string("Lisbon")))
        });
    chat.send("What is my location?").await;
    assert_eq!(chat.last_text(), "You are at \"Lisbon\".");
    assert_eq!(chat.requests().len(), 2);
}

#[tokio::test]
#[should_panic(expected = "`with_reconnect` says how")]
async fn reconnect_without_a_reconnect_handler_panics() {
    Conversation::new(hello).reconnect().await;
}

#[tokio::test]
#[should_panic(expected = "more than one question about \"delete_file\"")]
async fn an_ambiguous_tool_name_panics() {
    let assistant = Assistant::default();
    let mut chat = Conversation::new(async |chat| assistant.respond(chat));
    chat.send("Delete everything").await;
    chat.approve("delete_file").await;
}

#[tokio::test]
#[should_panic(expected = "  chunk 2: unknown-tool-call\n    what:   tool-output-denied")]
async fn a_response_on_which_the_client_throws_fails_the_test() {
    let mut chat = Conversation::new(async |_| {
        "data: {\"type\":\"start\"}\n\ndata: {\"type\":\"tool-output-denied\",\"toolCallId\":\"c\"}\n\n"
            .to_owned()
    });
    chat.send("Hi").await;
}

#[tokio::test]
async fn a_key_unknown_to_old_clients_is_accepted_only_with_an_oldest_client() {
    let newer = async |chat: ChatRequest| {
        let aborted = AgentEvent::Abort { reason: Some("enough".into()) };
        UiMessageStream::reply(&chat, stream::iter([aborted])).with_version(Version::V6Patch(15))
    };
    let mut chat = Conversation::new(newer).with_oldest_client(Version::V6Patch(15));
    chat.send("Hi").await;
    let found = conformance(chat.last_chunks());
    let [finding] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        finding.to_string(),
        "chunk 2: unknown-key: key `reason` of abort: clients before 6.0.231 refuse the whole \
         stream over a key that they do not know; leave it out, or send it as a `data-<name>` part"
    );
}

#[tokio::test(start_paused = true)]
async fn a_scripted_agent_pauses_fails_panics_and_hangs_as_configured() {
    let say = || ScriptedAgent::new([AgentEvent::text("Half a sen")]);
    let respond = |agent| UiMessageStream::with_translator(Translator::new("msg_1"), agent);
    let last = |chunks: &[Chunk<'static>]| serde_json::to_string(chunks.last().unwrap()).unwrap();
    let error_text = |chunks: &[Chunk<'static>]| {
        chunks.iter().find_map(|chunk| match chunk {
            Chunk::Error { error_text } => Some(error_text.to_string()),
            _ => None,
        })
    };

    let began = Instant::now();
    let paused = say().pause(Duration::from_secs(40)).say([AgentEvent::text("tence.")]);
    let chunks = collect_chunks(respond(paused)).await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 40);
    assert_eq!(last(&chunks), r#"{"type":"finish"}"#);
    assert_conformant(&chunks);

    let failing = respond(say().fail("the model went away"))
        .on_error(|error| std::error::Error::source(error).map(ToString::to_string));
    let chunks = collect_chunks(failing).await.unwrap();
    assert_eq!(error_text(&chunks).unwrap(), "the model went away");

    let chunks = collect_chunks(respond(say().panic("index out of bounds"))).await.unwrap();
    assert_eq!(error_text(&chunks).unwrap(), "An error occurred.");

    let hanging = respond(say().hang()).abort_when(tokio::time::sleep(Duration::from_secs(5)));
    let (ended, outcome) = std::sync::mpsc::channel();
    let hanging = hanging.on_finish(move |end| ended.send(end.outcome).unwrap());
    let chunks = collect_chunks(hanging).await.unwrap();
    assert_eq!(last(&chunks), r#"{"type":"abort"}"#);
    assert_eq!(outcome.recv().unwrap(), ResponseOutcome::Aborted);
}

#[tokio::test]
async fn an_invalid_body_gives_an_error_with_its_line() {
    let error =
        |body: &str| collect_chunks(body.to_owned()).map(|got| got.unwrap_err().to_string());
    assert_eq!(error("Not found").await, r#"the body holds no chunk, but "Not found""#);
    assert_eq!(error("data: {\"type\":7}\n\n").await, "line 1: type: expected a string");
    assert_eq!(
        error(": hi\n\ndata: {\"type\":\"later\"}\n\n").await,
        r#"line 3: no client knows a chunk of type "later""#
    );
    assert_eq!(
        error("data: {\"type\":\"finish\",\"cost\":1}\n\n").await,
        r#"line 1: finish has no key "cost", and clients before 6.0.231 refuse it"#
    );
    assert_eq!(
        error("data: {\"type\":\"finish\"}\n").await,
        "line 1: the body ends within this event"
    );
    let broken = Body::from_stream(stream::iter([
        Ok("data: {\"type\":\"start\"}\n\n"),
        Err("the connection broke"),
    ]));
    let broken = collect_chunks(broken).await.unwrap_err();
    assert!(matches!(broken, CollectError::BodyError { chunks: 1, .. }), "{broken}");
}

#[test]
fn a_snapshot_replaces_only_ids_and_times() {
    let lines = [
        r#"{"type":"start","messageId":"m_9f","messageMetadata":{"createdAt":1767225600123,"tokens":1767225600}}"#,
        r#"{"type":"text-start","id":"0"}"#,
        r#"{"type":"reasoning-start","id":"0"}"#,
        r#"{"type":"text-delta","id":"0","delta":"m_9f"}"#,
        r#"{"type":"text-delta","id":"0","delta":"see m_9f"}"#,
        r#"{"type":"tool-input-available","toolCallId":"0","toolName":"0","input":["0","2026-01-01T00:00:00Z"]}"#,
        r#"{"type":"tool-approval-request","approvalId":"a","toolCallId":"0","signature":"c2ln"}"#,
        r#"{"type":"data-job","id":"job_7","data":{"call":"0","at":"2026-01-01T00:00:00Z"}}"#,
        r#"{"id":"m_9f","role":"assistant","parts":[{"type":"tool-t","toolCallId":"0","state":"x","approval":{"id":"a","signature":"c2ln"}}]}"#,
    ];
    let lines = lines.map(|line| RawValue::from_string(line.to_owned()).unwrap());
    assert_eq!(
        snapshot(&lines),
        r#"{"type":"start","messageId":"msg-1","messageMetadata":{"createdAt":"time-1","tokens":1767225600}}
{"type":"text-start","id":"text-1"}
{"type":"reasoning-start","id":"reasoning-1"}
{"type":"text-delta","id":"text-1","delta":"msg-1"}
{"type":"text-delta","id":"text-1","delta":"see m_9f"}
{"type":"tool-input-available","toolCallId":"call-1","toolName":"0","input":["call-1","time-2"]}
{"type":"tool-approval-request","approvalId":"approval-1","toolCallId":"call-1","signature":"signature-1"}
{"type":"data-job","id":"job_7","data":{"call":"call-1","at":"time-2"}}
{"id":"msg-1","role":"assistant","parts":[{"type":"tool-t","toolCallId":"call-1","state":"x","approval":{"id":"approval-1","signature":"signature-1"}}]}
"#
    );
}
