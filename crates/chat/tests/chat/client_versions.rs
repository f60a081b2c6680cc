//! The version of the clients behind the chat server and its routes. A call that needs approval is not
//! executed for a client that cannot answer, and no approval of it is pending: it could be given
//! elsewhere, and the tool would run although the client was told that it did not.

use std::future::ready;
use std::sync::{Arc, Mutex};

use async_stream::stream;
use chat_test_support::test_server::{Answer, Client, Host, Tools};
use futures::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use ui_message_stream::UserText;
use ui_message_stream::approval::store::{
    InMemoryLedger, Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords,
    PendingLimits, Snapshot,
};
use ui_message_stream::approval::{
    ApprovalDecision, ApprovalRecord, Approvals, Principal, RecordId, RequestApprovalError,
};
use ui_message_stream::chunk::{FinishReason, Version};
use ui_message_stream::event::{ApprovalRequestDetails, ToolCall};
use ui_message_stream::id::{ApprovalId, ToolCallId};
use ui_message_stream::message::{ToolPart, ToolState, UiMessage};
use ui_message_stream::model::{Model, ModelEvent, ModelMessage, ModelRequest, ModelStream};
use ui_message_stream::request::Limits;
use ui_message_stream::response::ResponseOutcome;
use ui_message_stream::{AgentEvent, BoxFuture, ChatRequest, Json};
use ui_message_stream_agent::{Agent, Tool, ToolError};
use ui_message_stream_chat::{ChatServer, StopReason, Turn};

/// The settings of servers whose clients cannot answer approval requests.
fn without_approvals() -> [fn(ChatServer) -> ChatServer; 2] {
    [|chats| chats.with_version(Version::V5), |chats| chats.without_approvals()]
}

fn first_message(chat: &str) -> ChatRequest {
    let message = json!({"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Go"}]});
    let body = json!({"id": chat, "messages": [message]}).to_string();
    ChatRequest::parse(body.as_bytes(), &Limits::default()).unwrap()
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

/// A model that calls `note` once and then reports what it read.
#[derive(Debug)]
struct Notes;

impl Model for Notes {
    fn call(&self, request: ModelRequest) -> ModelStream {
        let results = request.messages.iter().filter(|it| matches!(it, ModelMessage::Tool { .. }));
        let results: Vec<String> =
            results.map(|message| serde_json::to_string(message).unwrap()).collect();
        let event = match results.is_empty() {
            false => ModelEvent::Event(AgentEvent::text(format!("I read {results:?}"))),
            true => {
                let call = ToolCall::new("call_1", "note");
                ModelEvent::ToolCall(Box::new(call), r#"{"text":"milk"}"#.to_owned())
            }
        };
        Box::pin(stream::iter([Ok(event), Ok(ModelEvent::Finished(FinishReason::Stop))]))
    }
}

#[derive(Deserialize, JsonSchema)]
struct Note {
    text: String,
}

#[tokio::test]
async fn an_agent_requests_no_approval_from_a_client_that_cannot_answer_and_continues() {
    for set_up in without_approvals() {
        let note = Tool::new("note", async |note: Note| Ok::<_, ToolError>(note.text));
        let chats = Agent::new(Notes).tool(note.needs_approval()).into_chat_server();
        let chats = set_up(chats);
        let ada = Principal::new("ada");
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
            let (call, input) = (ToolCall::new("call_1", "delete_file"), Json::parse(r#"{"path":"a"}"#).unwrap());
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
        let ada = Principal::new("ada");
        let response = chats.complete_response(&ada, first_message("c")).await.unwrap();
        assert_eq!(response.outcome, ResponseOutcome::Finished, "{emits:?}");
        assert_not_executed(only_call(&response.message.unwrap()));
        assert!(chats.approvals().pending(&ada).await.unwrap().is_empty(), "{emits:?}");

        let approval_id = requested.lock().unwrap()[0].clone();
        let yes = ApprovalDecision::new(approval_id, true);
        let receipts = chats.decide(&ada, vec![yes]).await.unwrap();
        assert!(!receipts[0].accepted, "{emits:?}");
        assert!(tools.effects().is_empty(), "{emits:?}");
    }
}

/// A ledger that stores no change of a record.
#[derive(Debug, Default)]
struct Unchangeable(InMemoryLedger);

type FromLedger<'a, T> = BoxFuture<'a, Result<T, LedgerStoreError>>;

impl LedgerStore for Unchangeable {
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> FromLedger<'a, Inserted> {
        self.0.insert_all(records, limits)
    }

    fn load<'a>(&'a self, ids: &'a [RecordId]) -> FromLedger<'a, Snapshot> {
        self.0.load(ids)
    }

    fn read_list<'a>(&'a self, query: ListRecords<'a>) -> FromLedger<'a, ListedRecords> {
        self.0.read_list(query)
    }

    fn compare_and_swap<'a>(&'a self, _: &'a ApprovalRecord, _: u64) -> FromLedger<'a, bool> {
        Box::pin(ready(Err(LedgerStoreError::new("read-only"))))
    }
}

#[tokio::test]
async fn no_message_says_that_a_call_was_not_executed_if_its_approval_cannot_be_revoked() {
    let requested = Arc::default();
    let approvals = Approvals::new(Tools::default()).with_ledger(Arc::new(Unchangeable::default()));
    let agent = asks_by_itself(&approvals, &requested, Emits::Issued);
    let chats = ChatServer::new(agent, approvals).with_version(Version::V5);
    let ada = Principal::new("ada");
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
    let ada = Principal::new("ada");
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

/// A server whose pages of `ai@6` send `sdk`.
fn host_of_both_versions() -> Host {
    Host::new().with_chats(|chats| {
        chats.with_version_from(|request| match request.custom("sdk") {
            Some(_) => Version::V6,
            None => Version::V5,
        })
    })
}

/// Posts the history of a page of `ai@6`, and applies the response.
async fn send_as_v6(host: &Host, client: &mut Client, mut body: Value) -> Answer {
    body["sdk"] = 6.into();
    let answer = host.chat("alice", body.to_string()).await;
    client.apply_response(&answer);
    answer
}

#[tokio::test]
async fn a_function_tells_the_version_of_each_client_from_its_request() {
    let host = host_of_both_versions();
    let (mut old, mut new) = (Client::new("alice", "old"), Client::new("alice", "new"));
    let answer = old.say(&host, "delete notes.txt").await;
    assert!(answer.of_type("tool-approval-request").is_empty(), "{}", answer.text);
    assert_eq!(old.states(), ["output-error"]);
    assert!(host.pending("alice").await.is_empty());

    let parts = json!([{"type": "text", "text": "delete notes.txt"}]);
    new.messages.push(json!({"id": "u", "role": "user", "parts": parts}));
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
    let parts = json!([{"type": "text", "text": "delete notes.txt"}]);
    new.messages.push(json!({"id": "u", "role": "user", "parts": parts}));
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
        let (call, input) = (ToolCall::new("call_1", "delete_file"), Json::parse(r#"{"path":"a"}"#).unwrap());
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

#[tokio::test]
async fn a_complete_response_says_that_the_model_was_cut_off_also_to_an_old_client() {
    let agent = |_: Turn| {
        let events = [AgentEvent::text("Half of"), AgentEvent::finish(FinishReason::Length)];
        stream::iter(events)
    };
    for version in [Version::V5, Version::V6] {
        let chats = ChatServer::new(agent, Approvals::new(Tools::default())).with_version(version);
        let ada = Principal::new("ada");
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
    let (chats, ada) = (chats.with_version(Version::V5), Principal::new("ada"));
    let mut response = chats.stream_response(&ada, first_message("c")).await.unwrap();
    let mut read = String::new();
    while let Some(frames) = response.next().await {
        read += std::str::from_utf8(&frames.unwrap()).unwrap();
        if read.contains("tool-input-delta") && !read.contains("[DONE]") {
            chats.stop(&ada, &"c".into()).await.unwrap();
        }
    }
    assert!(read.contains("tool-output-error"), "{read}");
    assert!(!read.contains("tool-input-error"), "{read}");
}
