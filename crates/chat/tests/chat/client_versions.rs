//! The version of the clients behind the chat server and its routes. A call that needs approval is not
//! executed for a client that cannot answer, and no approval of it is pending: it could be given
//! elsewhere, and the tool would run although the client was told that it did not.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_stream::stream;
use axum::http::Method;
use chat_test_support::answers::{decide, read_until};
use chat_test_support::model_double::{ModelDouble, calls, says};
use chat_test_support::test_server::{Answer, Client, Host, Tools};
use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::ledger_double::{Fault, LedgerDouble, Operation};
use test_support::requests::{ada, send, user_message};
use test_support::responses::{data_of, text_of};
use ui_message_stream::UserText;
use ui_message_stream::approval::{Approvals, RequestApprovalError};
use ui_message_stream::chunk::{FinishReason, ReceivedChunk, Version};
use ui_message_stream::event::{ApprovalRequestDetails, ToolCall};
use ui_message_stream::id::{ApprovalId, ToolCallId};
use ui_message_stream::message::{Part, ToolPart, ToolState, UiMessage};
use ui_message_stream::model::{Model, ModelMessage};
use ui_message_stream::policy::AI_SDK_VERSION;
use ui_message_stream::reducer::Reducer;
use ui_message_stream::response::ResponseOutcome;
use ui_message_stream::{AgentEvent, ChatRequest, Json};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::{ChatServer, StopReason, Turn};

/// The settings of servers whose clients cannot answer approval requests.
fn without_approvals() -> [fn(ChatServer) -> ChatServer; 2] {
    [|chats| chats.with_version(Version::V5), |chats| chats.without_approvals()]
}

fn first_message(chat: &str) -> ChatRequest {
    send(chat, &json!([user_message("m1", "Go")]))
}

fn only_call(message: &UiMessage) -> &ToolPart {
    let calls: Vec<&ToolPart> = message.tool_parts().collect();
    let [call] = calls[..] else { panic!("{calls:?}") };
    call
}

fn assert_not_executed(call: &ToolPart) {
    match &call.state {
        ToolState::OutputError { error_text, approval: None, .. } => {
            assert_eq!(error_text, UserText::NotAnswerable.text());
        }
        other => panic!("{other:?}"),
    }
}

/// Returns a model that calls `note` once and then reports what it read.
fn notes() -> impl Model {
    ModelDouble::new(|request, _| {
        let results = request.messages.iter().filter(|it| matches!(it, ModelMessage::Tool { .. }));
        let results: Vec<String> =
            results.map(|message| serde_json::to_string(message).unwrap()).collect();
        match results.is_empty() {
            false => says(format!("I read {results:?}")),
            true => calls("call_1", "note", r#"{"text":"milk"}"#),
        }
    })
}

#[derive(Deserialize, JsonSchema)]
struct Note {
    text: String,
}

#[tokio::test]
async fn an_agent_requests_no_approval_from_a_client_that_cannot_answer_and_continues() {
    for set_up in without_approvals() {
        let note = Tool::new("note", async |note: Note| Ok::<_, ToolError>(note.text));
        let chats = Agent::new(notes()).tool(note.needs_approval()).into_chat_server();
        let chats = set_up(chats);
        let ada = ada();
        let response = chats.complete_response(&ada, first_message("c")).await.unwrap();
        let message = response.message.unwrap();
        assert_not_executed(only_call(&message));
        let text = message.text();
        assert!(text.contains("I read") && text.contains(UserText::NotAnswerable.text()), "{text}");
        assert!(response.approvals.is_empty());
        assert!(chats.approvals().pending(&ada).await.unwrap().is_empty());
    }
}

/// How an agent emits an approval request.
#[derive(Debug, Clone, Copy)]
enum Emits {
    /// `request_approval`, for the message of the turn.
    Issued,
    /// `request_approval_of`, which names no message.
    Event,
    /// A chunk.
    Chunk,
}

fn deletion() -> (ToolCall, Json) {
    (ToolCall::new("call_1", "delete_file"), Json::parse(r#"{"path":"a"}"#).unwrap())
}

type Requested = Arc<Mutex<Vec<ApprovalId>>>;

/// An agent that requests the approval with approvals of its own, and not with those of the turn.
fn asks_by_itself(
    approvals: &Approvals,
    requested: &Requested,
    emits: Emits,
) -> impl ui_message_stream_chat::ChatAgent {
    let (approvals, requested) = (approvals.clone(), Arc::clone(requested));
    move |turn: Turn| {
        let (approvals, requested) = (approvals.clone(), Arc::clone(&requested));
        stream! {
            let (call, input) = deletion();
            let id = call.id.clone();
            yield AgentEvent::tool_input(call.clone(), input.clone());
            let approvals = approvals.for_chat(&turn.principal, &turn.chat.id);
            let issued = match emits {
                Emits::Event => approvals.request_approval_of(&call, &input).await,
                Emits::Issued | Emits::Chunk => {
                    let message = &turn.message_id;
                    let issued = approvals.request_approval(message, &id, "delete_file", &input, None);
                    issued.await.unwrap().event(id)
                }
            };
            let AgentEvent::ApprovalRequested { approval_id, .. } = &issued else { panic!() };
            requested.lock().unwrap().push(approval_id.clone());
            yield match emits {
                Emits::Issued | Emits::Event => issued,
                Emits::Chunk => {
                    let chunk = json!({
                        "type": "tool-approval-request",
                        "approvalId": approval_id,
                        "toolCallId": "call_1",
                    });
                    AgentEvent::Chunk(Box::new(serde_json::from_str(&chunk.to_string()).unwrap()))
                }
            };
            // The client is told that the call was not executed, so that must hold now.
            assert!(approvals.pending().await.unwrap().is_empty());
        }
    }
}

#[tokio::test]
async fn an_approval_that_the_client_cannot_show_is_revoked_and_cannot_be_given_elsewhere() {
    for (set_up, emits) in without_approvals()
        .into_iter()
        .flat_map(|set_up| [Emits::Issued, Emits::Event, Emits::Chunk].map(|emits| (set_up, emits)))
    {
        let (tools, requested) = (Tools::default(), Arc::default());
        let approvals = Approvals::new(tools.clone());
        let agent = asks_by_itself(&approvals, &requested, emits);
        let chats = set_up(ChatServer::new(agent, approvals));
        let ada = ada();
        let response = chats.complete_response(&ada, first_message("c")).await.unwrap();
        assert_eq!(response.outcome, ResponseOutcome::Finished, "{emits:?}");
        assert_not_executed(only_call(&response.message.unwrap()));
        assert!(chats.approvals().pending(&ada).await.unwrap().is_empty(), "{emits:?}");

        let approval_id = requested.lock().unwrap()[0].clone();
        assert!(!decide(&chats, &approval_id, true).await, "{emits:?}");
        assert!(tools.effects().is_empty(), "{emits:?}");
    }
}

#[tokio::test]
async fn no_message_says_that_a_call_was_not_executed_if_its_approval_cannot_be_revoked() {
    let requested = Arc::default();
    let ledger = LedgerDouble::new(|operation| match operation {
        Operation::Replace(_) => Some(Fault::NotDone("read-only")),
        _ => None,
    });
    let approvals = Approvals::new(Tools::default()).with_ledger(Arc::new(ledger));
    let agent = asks_by_itself(&approvals, &requested, Emits::Issued);
    let chats = ChatServer::new(agent, approvals).with_version(Version::V5);
    let ada = ada();
    let response = chats.complete_response(&ada, first_message("c")).await.unwrap();
    assert_eq!(response.outcome, ResponseOutcome::Failed);
    // The message keeps what the agent emitted before.
    let message = serde_json::to_string(&response.message).unwrap();
    assert!(
        message.contains("delete_file") && !message.contains(UserText::NotAnswerable.text()),
        "{message}"
    );
    // The request can still be answered elsewhere.
    assert_eq!(chats.approvals().pending(&ada).await.unwrap().len(), 1);
}

#[tokio::test]
async fn without_requests_no_function_requests_an_approval() {
    let approvals = Approvals::new(Tools::default());
    let ada = ada();
    let chat = approvals.for_chat(&ada, &"c".into()).without_requests();
    let (message, id, input) = ("m".into(), ToolCallId::new("call_1"), Json::null());
    let call = ToolCall::new("call_1", "delete_file");
    for refused in [
        chat.request_approval(&message, &id, "delete_file", &input, None).await.err(),
        chat.request_provider_approval(&message, &id, "delete_file", &input, None).await.err(),
    ] {
        assert!(matches!(refused, Some(RequestApprovalError::NotAnswerable)), "{refused:?}");
        assert_eq!(refused.unwrap().error_text(), UserText::NotAnswerable.text());
    }
    let event = chat.request_approval_of(&call, &input).await;
    assert_eq!(event, AgentEvent::tool_failed("call_1", UserText::NotAnswerable));
    assert!(approvals.pending(&ada).await.unwrap().is_empty());
}

/// A server whose pages say their version, but for those of `ai@5`.
fn host_of_both_versions() -> Host {
    Host::new()
        .with_chats(|chats| chats.with_version(Version::V5).with_version_from(AI_SDK_VERSION))
}

/// Posts to the chat as a page that says its version.
async fn post_as(host: &Host, sdk: &str, body: &Value) -> Answer {
    let headers = [(AI_SDK_VERSION, sdk)];
    host.send_with(&headers, "alice", Method::POST, "/api/chat", body.to_string()).await
}

/// Sends a GET request as a page that says its version.
async fn get_as(host: &Host, sdk: &str, path: &str) -> Answer {
    host.send_with(&[(AI_SDK_VERSION, sdk)], "alice", Method::GET, path, "").await
}

/// Returns the message that a client of this version holds after a response.
fn shown_by(version: &str, answer: &Answer) -> UiMessage {
    let mut reducer = Reducer::new().with_client(version.parse().unwrap());
    for data in data_of(&answer.text) {
        reducer.push(&ReceivedChunk::parse(data).unwrap()).unwrap();
    }
    reducer.into_message()
}

/// Posts the history of a page of `ai@6`, and applies the response.
async fn send_as_v6(host: &Host, client: &mut Client, body: Value) -> Answer {
    let answer = post_as(host, "6.0.326", &body).await;
    client.apply_response(&answer);
    answer
}

#[tokio::test]
async fn a_header_says_the_version_of_each_client() {
    let host = host_of_both_versions();
    let (mut old, mut new) = (Client::new("alice", "old"), Client::new("alice", "new"));
    let answer = old.say(&host, "delete notes.txt").await;
    assert!(answer.of_type("tool-approval-request").is_empty(), "{}", answer.text);
    assert_eq!(old.states(), ["output-error"]);
    assert!(host.pending("alice").await.is_empty());

    new.messages.push(user_message("u", "delete notes.txt"));
    let body = new.body();
    send_as_v6(&host, &mut new, body).await;
    assert_eq!(new.states(), ["approval-requested"]);
    assert_eq!(host.pending("alice").await.len(), 1);
    assert!(host.tools.effects().is_empty());
}

#[tokio::test]
async fn a_client_that_cannot_answer_reads_no_result_of_a_call_that_another_page_may_approve() {
    let host = host_of_both_versions();
    let mut new = Client::new("alice", "c");
    new.messages.push(user_message("u", "delete notes.txt"));
    let (mut old, body) = (new.clone(), new.body());
    send_as_v6(&host, &mut new, body).await;

    // The stored message is the response to the same request. A client executes a call of its own when it reads
    // the whole input.
    let answer = old.send(&host).await;
    assert!(answer.of_type("tool-input-available").is_empty(), "{}", answer.text);
    assert!(!answer.text.contains(UserText::NotAnswerable.text()), "{}", answer.text);
    assert_eq!(old.states(), ["input-streaming"]);
    assert_eq!(host.pending("alice").await.len(), 1);

    let body = new.answered(true);
    send_as_v6(&host, &mut new, body).await;
    assert_eq!(host.tools.effects().len(), 1);
}

/// An agent that requests an approval and attaches everything that newer clients know.
fn attaches_a_signature(turn: Turn) -> impl futures::Stream<Item = AgentEvent> {
    stream! {
        let (call, input) = deletion();
        let id = call.id.clone();
        yield AgentEvent::tool_input(call, input.clone());
        let issued = turn.approvals.request_approval(&turn.message_id, &id, "delete_file", &input, None);
        let issued = issued.await.unwrap();
        let mut details: Box<ApprovalRequestDetails> = issued.details();
        details.signature = Some("signed".into());
        yield AgentEvent::ApprovalRequested {
            tool_call_id: id,
            approval_id: issued.approval_id,
            details: Some(details),
        };
    }
}

#[tokio::test]
async fn the_routes_send_the_keys_that_the_version_of_the_server_knows() {
    for (version, has_signature, has_descriptor) in [
        (Version::V6, false, false),
        (Version::V6Patch(202), true, false),
        (Version::V6Patch(274), true, true),
    ] {
        let chats = ChatServer::new(attaches_a_signature, Approvals::new(Tools::default()));
        let host = Host::new().with_chats(|_| chats.with_version(version));
        let answer = Client::new("alice", "c").say(&host, "Go").await;
        let request = answer.of_type("tool-approval-request").remove(0);
        assert_eq!(!request["signature"].is_null(), has_signature, "{request}");
        assert_eq!(!request["approvalDescriptor"].is_null(), has_descriptor, "{request}");
    }
}

/// The state of a call that the server has refused.
fn refused(is_v7: bool) -> &'static str {
    if is_v7 { "output-denied" } else { "output-error" }
}

/// An agent that emits what only `ai@7` knows, and is cut off.
fn speaks_v7(_: Turn) -> impl futures::Stream<Item = AgentEvent> {
    let source = r#"{"type":"source","sourceType":"url","id":"s1","url":"https://a.example"}"#;
    let chunks = [
        r#"{"type":"text-start","id":"0"}"#.to_owned(),
        r#"{"type":"text-delta","id":"0","delta":"wrong"}"#.to_owned(),
        r#"{"type":"reset-step"}"#.to_owned(),
        r#"{"type":"custom","kind":"openai.compaction"}"#.to_owned(),
        r#"{"type":"reasoning-file","url":"https://a.example/1.png","mediaType":"image/png"}"#
            .to_owned(),
        r#"{"type":"text-start","id":"1"}"#.to_owned(),
        r#"{"type":"text-delta","id":"1","delta":"Bern"}"#.to_owned(),
        format!(r#"{{"type":"text-end","id":"1","citations":[{{"source":{source}}}]}}"#),
        r#"{"type":"finish","finishReason":"interrupted"}"#.to_owned(),
    ];
    let chunks = chunks.map(|chunk| AgentEvent::Chunk(serde_json::from_str(&chunk).unwrap()));
    let refused = [
        AgentEvent::tool_input(ToolCall::new("c1", "transfer"), Json::null()),
        AgentEvent::tool_refused("c1", UserText::NotPermitted),
    ];
    let mut events = chunks.to_vec();
    events.splice(3..3, refused);
    stream::iter(events)
}

#[tokio::test(start_paused = true)]
async fn each_reader_of_a_run_gets_what_its_version_knows() {
    let agent = |turn: Turn| {
        // The readers join before the first chunk.
        let begin = stream::once(tokio::time::sleep(Duration::from_millis(50)));
        begin.flat_map(move |()| speaks_v7(turn.clone()))
    };
    let chats = ChatServer::new(agent, Approvals::new(Tools::default()));
    let chats = chats.with_version_from(AI_SDK_VERSION);
    let host = Host::new().with_chats(|_| chats.clone());
    let body = json!({"id": "c", "message": user_message("m1", "Where?")});
    for (begins, joins) in [("6.0.326", "7.0.173"), ("7.0.173", "6.0.326"), ("7.0.173", "7.0.15")] {
        let mut body = body.clone();
        body["id"] = format!("{begins} {joins}").into();
        let path = format!("/api/chat/{begins}%20{joins}/stream");
        let joining = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            get_as(&host, joins, &path).await
        };
        let (begun, joined) = tokio::join!(post_as(&host, begins, &body), joining);
        for (version, answer) in [(begins, &begun), (joins, &joined)] {
            assert_eq!(answer.status, 200, "{answer:?}");
            let knows = |patch: u16| match version.parse().unwrap() {
                Version::V7Patch(known) => known >= patch,
                _ => false,
            };
            let text = &answer.text;
            for (word, patch) in [
                ("\"custom\"", 0),
                ("\"reasoning-file\"", 0),
                ("\"tool-output-denied\"", 0),
                ("\"isAutomatic\"", 0),
                ("\"reset-step\"", 70),
                ("\"citations\"", 138),
                ("\"interrupted\"", 149),
            ] {
                assert_eq!(text.contains(word), knows(patch), "{word} for {version}: {text}");
            }
            let is_error = !answer.of_type("error").is_empty();
            assert_eq!(is_error, !knows(149), "{version}: {text}");
            // Also a client that keeps what is repeated shows nothing as unfinished.
            let message = shown_by(version, answer);
            let shown = serde_json::to_string(&message).unwrap();
            assert!(!shown.contains("streaming"), "{shown}");
            assert_eq!(only_call(&message).state.as_str(), refused(knows(0)), "{shown}");
        }
        // A page shows the same after it is loaded again.
        for (version, added) in
            [("6.0.326", &[][..]), ("7.0.173", &["custom", "reasoning-file"][..])]
        {
            let history = get_as(&host, version, &path.replace("/stream", "")).await.json();
            let parts = history["messages"][1]["parts"].as_array().unwrap();
            let kinds: Vec<&str> = parts.iter().map(|it| it["type"].as_str().unwrap()).collect();
            let begin = ["step-start", "tool-transfer", "step-start"];
            assert_eq!(kinds, [&begin[..], added, &["text"][..]].concat(), "{history}");
            assert_eq!(parts[1]["state"], refused(!added.is_empty()), "{history}");
            let reason = [&parts[1]["errorText"], &parts[1]["approval"]["reason"]];
            assert!(reason.contains(&&json!(UserText::NotPermitted.text())), "{history}");
            let text = parts.last().unwrap();
            assert_eq!(text["text"], "Bern");
            assert_eq!(text["citations"][0]["source"]["id"], "s1");
            assert_eq!(history["ended"], "failed", "{history}");
        }
    }
}

/// An agent whose answer ends on a call that it has refused.
fn ends_on_a_refusal(_: Turn) -> impl futures::Stream<Item = AgentEvent> {
    stream::iter([
        AgentEvent::tool_input(ToolCall::new("c1", "transfer"), Json::null()),
        AgentEvent::tool_refused("c1", UserText::NotPermitted),
        AgentEvent::finish(FinishReason::ToolCalls),
    ])
}

/// An agent that repeats a model call which has made a call, and then ends.
fn repeats_a_model_call(_: Turn) -> impl futures::Stream<Item = AgentEvent> {
    let reset = serde_json::from_str(r#"{"type":"reset-step"}"#).unwrap();
    stream::iter([
        AgentEvent::tool_input(ToolCall::new("c1", "transfer"), Json::null()),
        AgentEvent::Chunk(reset),
        AgentEvent::text("No."),
        AgentEvent::finish(FinishReason::Stop),
    ])
}

/// Whether the last step of the message has a call. If all calls of the last step are done, the client sends the
/// same request again.
fn ends_on_a_call(message: &UiMessage) -> bool {
    let last = message.parts.rsplit(|part| matches!(part, Part::StepStart { .. })).next();
    last.is_some_and(|parts| parts.iter().any(|part| matches!(part, Part::Tool(_))))
}

#[tokio::test]
async fn no_version_sends_a_request_again_after_a_refused_or_a_repeated_call() {
    for (name, chats) in [
        ("refused", ChatServer::new(ends_on_a_refusal, Approvals::new(Tools::default()))),
        ("repeated", ChatServer::new(repeats_a_model_call, Approvals::new(Tools::default()))),
    ] {
        let host = Host::new().with_chats(|_| chats.with_version_from(AI_SDK_VERSION));
        for version in ["6.0.326", "7.0.15", "7.0.173"] {
            let chat = format!("{name}-{version}");
            let message = user_message("m1", "Go");
            let answer = post_as(&host, version, &json!({"id": chat, "message": message})).await;
            let shown = shown_by(version, &answer);
            assert!(!ends_on_a_call(&shown), "{version}: {}", answer.text);
            let history = get_as(&host, version, &format!("/api/chat/{chat}")).await.json();
            let stored = UiMessage::parse(&history["messages"][1].to_string()).unwrap();
            assert!(!ends_on_a_call(&stored), "{version}: {history}");
        }
    }
}

/// What an agent does that refuses a call beside one that the client executes.
fn refuses_beside_a_call_of_the_client() -> Vec<AgentEvent> {
    let of_client = ToolCall::new("c2", "locate").client_executed();
    vec![
        AgentEvent::tool_input(ToolCall::new("c1", "transfer"), Json::null()),
        AgentEvent::tool_input(of_client, Json::parse("{}").unwrap()),
        AgentEvent::tool_refused("c1", UserText::NotPermitted),
    ]
}

/// The same of an inner agent, which makes the call of the client later.
fn refuses_before_a_call_of_the_client() -> Vec<AgentEvent> {
    let inner = |call: ToolCall| call.inside(&ToolCallId::from("c0"));
    let of_client = ToolCall::new("c2", "locate").client_executed();
    vec![
        AgentEvent::tool_input(inner(ToolCall::new("c1", "transfer")), Json::null()),
        AgentEvent::tool_refused("c1", UserText::NotPermitted),
        AgentEvent::tool_input(inner(of_client), Json::parse("{}").unwrap()),
    ]
}

/// A client of any version sends the output of its call only if the other call has one too.
#[tokio::test]
async fn beside_a_call_of_the_client_a_refused_call_has_failed() {
    let states = |message: &UiMessage| -> Vec<String> {
        message.tool_parts().map(|part| part.state.as_str().to_owned()).collect()
    };
    for events in [refuses_beside_a_call_of_the_client, refuses_before_a_call_of_the_client] {
        let agent = move |_: Turn| {
            stream::iter(events())
                .chain(stream::iter([AgentEvent::finish(FinishReason::ToolCalls)]))
        };
        let chats = ChatServer::new(agent, Approvals::new(Tools::default()));
        let host = Host::new().with_chats(|_| chats.with_version_from(AI_SDK_VERSION));
        for version in ["6.0.326", "7.0.15", "7.0.173"] {
            let message = user_message("m1", "Go");
            let answer = post_as(&host, version, &json!({"id": version, "message": message})).await;
            let shown = shown_by(version, &answer);
            let history = get_as(&host, version, &format!("/api/chat/{version}")).await.json();
            let stored = UiMessage::parse(&history["messages"][1].to_string()).unwrap();
            for message in [&shown, &stored] {
                assert_eq!(states(message), ["output-error", "input-available"], "{version}");
            }
        }
    }
}

/// An agent that requests an approval, and takes a moment to go on after it.
fn asks_and_goes_on(turn: Turn) -> impl futures::Stream<Item = AgentEvent> {
    stream! {
        let is_asked = turn.chat.messages.iter().any(|message| message.tool_parts().next().is_some());
        if is_asked {
            tokio::time::sleep(Duration::from_millis(50)).await;
            yield AgentEvent::text("Done.");
            return;
        }
        let (call, input) = deletion();
        let id = call.id.clone();
        yield AgentEvent::tool_input(call, input.clone());
        let why = Some("The disk is full.");
        let issued = turn.approvals.request_approval(&turn.message_id, &id, "delete_file", &input, why);
        yield issued.await.unwrap().event(id);
    }
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_was_made_elsewhere_is_announced_to_clients_that_know_it() {
    for (version, is_known) in [("6.0.326", false), ("7.0.173", true)] {
        for approved in [true, false] {
            let tools = Tools::default();
            tools.hold(true);
            let chats = ChatServer::new(asks_and_goes_on, Approvals::new(tools.clone()));
            let host = Host::new().with_chats(|_| chats.with_version_from(AI_SDK_VERSION));
            let mut page = Client::new("alice", "c");
            page.messages.push(user_message("u", "Free space"));
            let asked = post_as(&host, version, &page.body()).await;
            let request = asked.of_type("tool-approval-request").remove(0);
            assert_eq!(request["reason"] == "The disk is full.", is_known, "{request}");
            let approval = request["approvalId"].as_str().unwrap();
            let decisions = json!({"decisions": [
                {"approvalId": approval, "approved": approved, "reason": "keep it"},
            ]});
            let (decided, read, ()) = tokio::join!(
                host.decide("alice", &decisions),
                async {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    get_as(&host, version, "/api/chat/c/stream").await
                },
                async {
                    // The call is shown as approved, and gets its result later.
                    tokio::time::sleep(Duration::from_millis(1_000)).await;
                    tools.hold(false);
                }
            );
            assert_eq!(decided.json()["decisions"][0]["accepted"], true);
            let announced = read.of_type("tool-approval-response");
            assert_eq!(announced.len(), usize::from(is_known), "{}", read.text);
            for response in announced {
                assert_eq!(response["approvalId"], approval);
                assert_eq!(response["approved"], approved);
                let reason = (!approved).then_some("keep it");
                assert_eq!(response["reason"].as_str(), reason);
            }
            let kind = if approved { "tool-output-available" } else { "tool-output-denied" };
            assert_eq!(read.of_type(kind).len(), 1, "{}", read.text);
        }
    }
}

#[tokio::test]
async fn a_complete_response_says_that_the_model_was_cut_off_also_to_an_old_client() {
    let agent = |_: Turn| {
        let events = [AgentEvent::text("Half of"), AgentEvent::finish(FinishReason::Length)];
        stream::iter(events)
    };
    for version in [Version::V5, Version::V6] {
        let chats = ChatServer::new(agent, Approvals::new(Tools::default())).with_version(version);
        let ada = ada();
        let response = chats.complete_response(&ada, first_message("c")).await.unwrap();
        assert_eq!(response.outcome, ResponseOutcome::Finished, "{version:?}");
        assert_eq!(response.stop_reason, StopReason::Length, "{version:?}");
    }
}

#[tokio::test]
async fn a_stop_writes_no_chunk_that_an_old_client_does_not_know() {
    let agent = |_: Turn| {
        let call = ToolCall::new("call_1", "delete_file");
        let events =
            [AgentEvent::tool_input_start(call), AgentEvent::tool_input_delta("call_1", "{\"p")];
        stream::iter(events).chain(stream::pending())
    };
    let chats = ChatServer::new(agent, Approvals::new(Tools::default()));
    let (chats, ada) = (chats.with_version(Version::V5), ada());
    let mut response = chats.stream_response(&ada, first_message("c")).await.unwrap();
    let begun = read_until(&mut response, "tool-input-delta").await;
    chats.stop(&ada, &"c".into()).await.unwrap();
    let read = begun + &text_of(response).await;
    assert!(read.contains("tool-output-error"), "{read}");
    assert!(!read.contains("tool-input-error"), "{read}");
}
