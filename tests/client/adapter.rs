//! The real client drives `examples/adapter.rs`, and the same attacks are measured on hosts with a
//! ledger, without records, and with a record of their own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_stream::stream;
use axum::extract::State;
use axum::routing::{Router, get, post};
use test_support::adapter_server;
use test_support::external_processes::{built_example, node_project, run_node};
use tokio::net::TcpListener;
use tokio::time::sleep;
use ui_message_stream::approval::store::InMemoryReplayGuard;
use ui_message_stream::approval::{
    Approvals, ApprovedCall, DeferredOutcome, DeferredToolResult, KeyRing, PendingToolCall,
    Principal, ResumePlan, ToolList, ToolOutcome,
};
use ui_message_stream::axum::ChatRejection;
use ui_message_stream::event::ToolCall;
use ui_message_stream::id::ChatId;
use ui_message_stream::{AgentEvent, ChatRequest, Json, UiMessageStream};

#[test]
fn every_client_approves_denies_and_answers_with_the_adapter_example() {
    let program = built_example("adapter", &["--features", "approvals,axum"]);
    adapter_server::every_client_approves_denies_and_answers(program);
}

#[test]
fn the_adapter_example_rejects_bodies_that_are_no_chat_requests() {
    let program = built_example("adapter", &["--features", "approvals,axum"]);
    adapter_server::bodies_that_are_no_chat_requests_are_rejected(program);
}

#[test]
fn a_page_of_the_adapter_example_that_is_opened_again_finds_no_answer_to_rejoin() {
    let program = built_example("adapter", &["--features", "approvals,axum"]);
    adapter_server::a_page_that_is_opened_again_finds_no_answer_to_rejoin(program);
}

#[test]
fn the_attacks_on_adapters_have_the_documented_results() {
    let Some(client) = node_project("tests/client") else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let hosts = runtime.block_on(async {
        let keys = || KeyRing::new(1, &test_support::secret(7)).unwrap();
        let tools = || ToolList::new().tool("delete_file", "Deletes a file.", &Json::null());
        let stateless = || Approvals::stateless_replayable(tools(), keys()).unwrap();
        let guard = Arc::new(InMemoryReplayGuard::new());
        [
            serve(approvals_routes(Approvals::new(tools()))).await,
            serve(approvals_routes(stateless())).await,
            serve(approvals_routes(stateless().with_replay_guard(guard))).await,
            serve(own_record_routes()).await,
        ]
    });
    let mut arguments = vec!["adapter-attacks.mjs", "--check"];
    arguments.extend(hosts.iter().map(String::as_str));
    let printed = run_node(&client, &arguments);
    println!("{printed}");
    assert!(printed.ends_with(" 0 differ\n"), "{printed}");
}

/// How often the tool of a host ran.
type Effects = Arc<AtomicUsize>;

async fn serve(app: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async { axum::serve(listener, app).await });
    format!("http://{address}")
}

async fn delete_file(effects: Effects, chat: ChatId) -> Json {
    effects.fetch_add(1, Ordering::SeqCst);
    // Long enough to lose a connection meanwhile.
    let is_slow = chat.as_str().starts_with("slow-");
    sleep(Duration::from_millis(if is_slow { 3_000 } else { 400 })).await;
    Json::string("deleted")
}

fn input() -> Json {
    Json::parse(r#"{"path": "notes.txt"}"#).unwrap()
}

/// The text that ends the turn.
fn end_of_turn() -> AgentEvent {
    AgentEvent::text("That is all.")
}

/// A host that redeems with `Approvals`: with a ledger, or without records.
fn approvals_routes(approvals: Approvals) -> Router {
    Router::new()
        .route("/api/chat", post(approvals_chat))
        .route("/effects", get(count))
        .with_state((approvals, Effects::default()))
}

async fn count(State((_, effects)): State<(Approvals, Effects)>) -> String {
    effects.load(Ordering::SeqCst).to_string()
}

async fn approvals_chat(
    State((approvals, effects)): State<(Approvals, Effects)>,
    chat: ChatRequest,
) -> Result<UiMessageStream, ChatRejection> {
    let user = Principal::anonymous();
    let approvals = approvals.with_approval_ttl(ttl(chat.id()));
    let id = chat.id().clone();
    let run = move |_: ApprovedCall, _| delete_file(effects.clone(), id.clone());
    let mut running = approvals.run(&user, &chat, run).await?;
    let (is_first, own) = (chat.messages().len() == 1, approvals.for_chat(&user, chat.id()));
    Ok(UiMessageStream::reply(
        &chat,
        stream! {
            while let Some(event) = running.next_event().await {
                yield event;
            }
            if is_first {
                let call = ToolCall::new("call_1", "delete_file");
                yield AgentEvent::tool_input(call.clone(), input());
                yield own.request_approval_of(&call, &input()).await;
            } else {
                yield end_of_turn();
            }
        },
    ))
}

/// The calls of each chat, and when they were requested.
type Calls = HashMap<ChatId, (Instant, Vec<PendingToolCall>)>;

/// A host with a record of its own.
#[derive(Clone, Default)]
struct OwnRecord {
    calls: Arc<Mutex<Calls>>,
    effects: Effects,
}

fn own_record_routes() -> Router {
    let count =
        async |State(host): State<OwnRecord>| host.effects.load(Ordering::SeqCst).to_string();
    Router::new()
        .route("/api/chat", post(own_record_chat))
        .route("/effects", get(count))
        .with_state(OwnRecord::default())
}

async fn own_record_chat(State(host): State<OwnRecord>, chat: ChatRequest) -> UiMessageStream {
    let id = chat.id().clone();
    let plan = ResumePlan::new(chat.messages(), chat.continued_message());
    let deferred = {
        // Settled and stored under one lock.
        let mut records = host.lock();
        let record = records.get_mut(&id).map(|(asked, calls)| {
            // An expired request cannot be answered. What was executed is remembered.
            calls.retain(|call| asked.elapsed() < ttl(&id) || !call.progress.is_open());
            calls
        });
        let calls = record.map_or(&mut [][..], |calls| calls);
        let deferred = plan.settle(calls);
        deferred.record_in(calls);
        deferred
    };
    let is_first = chat.messages().len() == 1;
    UiMessageStream::reply(
        &chat,
        stream! {
            for result in deferred.results() {
                let mut result = result.clone();
                if let DeferredOutcome::Approved { .. } = result.outcome {
                    // On its own task, because the client may disconnect.
                    let running = tokio::spawn(host.clone().run(id.clone(), result.clone()));
                    let executed = |outcome| DeferredOutcome::Executed { outcome };
                    result.outcome =
                        running.await.map_or(DeferredOutcome::OutcomeUnknown, executed);
                }
                if result.outcome.matches_decision(true) {
                    // The client may hold a denial that arrived after the approval.
                    let tool_call_id = result.tool_call_id.clone();
                    yield AgentEvent::DenialOverruled { tool_call_id };
                }
                if let Some(event) = AgentEvent::from_deferred(&result) {
                    yield event;
                }
            }
            if is_first {
                let approval = format!("approval of {id}");
                let call = PendingToolCall::awaiting_approval(
                    approval.clone(), "call_1", "delete_file", input(),
                );
                host.lock().insert(id.clone(), (Instant::now(), vec![call]));
                yield AgentEvent::tool_input(ToolCall::new("call_1", "delete_file"), input());
                yield AgentEvent::approval_requested("call_1", approval);
            } else {
                yield end_of_turn();
            }
        },
    )
}

impl OwnRecord {
    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self, chat: ChatId, result: DeferredToolResult) -> ToolOutcome {
        let outcome = ToolOutcome::Output(delete_file(self.effects.clone(), chat.clone()).await);
        if let Some((_, calls)) = self.lock().get_mut(&chat) {
            for call in calls.iter_mut().filter(|call| call.approval_id == result.approval_id) {
                call.complete(outcome.clone());
            }
        }
        outcome
    }
}

/// How long the approvals of a chat can be used.
fn ttl(chat: &ChatId) -> Duration {
    Duration::from_secs(if chat.as_str().starts_with("expires-") { 5 } else { 60 * 60 })
}
