//! A Redis that restarts, with or without what it held: an approved call is executed at most once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use test_support::contention::InsertOne;

use futures::Stream;
use test_support::contention;
use test_support::external_processes::redis_server::RedisServer;
use ui_message_stream::UserText;
use ui_message_stream::approval::store::{LedgerStore, RecordList};
use ui_message_stream::approval::{
    ApprovalRecord, ApprovalState, Approvals, ApprovedCall, DefinitionDigest, KeyRing,
    LeaseHolderId, Principal, Progress, RecordId, RecordedDecision, ResumePlan, ToolInfo,
    ToolOutcome, Toolbox,
};
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::{ToolState, UiMessage};
use ui_message_stream::testing::Conversation;
use ui_message_stream::{AgentEvent, BoxFuture, ChatRequest, Json, UiMessageStream};
use ui_message_stream_redis::{RedisOptions, RedisStore};

use crate::backend::redis_and_store;

#[tokio::test]
async fn without_persistence_the_same_approval_after_a_restart_has_no_second_effect() {
    let Some(mut redis) = RedisServer::start_with(&[]) else { return };
    let (server, asked) = Server::asked(&redis, RedisOptions::new(), false).await;
    server.approve(&asked, Shown::Output).await;
    redis.restart();
    // The record is lost.
    let refused = UserText::Refused.text();
    server.approve(&asked, Shown::Error(refused)).await;
    server.connect_again(&redis).await.approve(&asked, Shown::Error(refused)).await;
    assert_eq!(server.effects(), 1);
}

#[tokio::test]
async fn a_claim_that_a_snapshot_does_not_hold_has_no_second_effect() {
    let Some(mut redis) = RedisServer::start_with(&[]) else { return };
    let (server, asked) = Server::asked(&redis, RedisOptions::new(), false).await;
    assert_eq!(redis.command("SAVE"), "+OK");
    server.approve(&asked, Shown::Output).await;
    redis.restart();
    // Redis holds the request as if it had no answer.
    let unknown = UserText::OutcomeUnknown.text();
    server.approve(&asked, Shown::Error(unknown)).await;
    server.approve(&asked, Shown::Error(unknown)).await;
    server.connect_again(&redis).await.approve(&asked, Shown::Error(unknown)).await;
    assert_eq!(server.effects(), 1);
}

#[tokio::test]
async fn a_restart_voids_open_requests_and_the_next_request_is_as_any_other() {
    let Some(mut redis) = RedisServer::start() else { return };
    let (server, asked) = Server::asked(&redis, RedisOptions::new(), false).await;
    redis.restart();
    server.approve(&asked, Shown::Error(UserText::OutcomeUnknown.text())).await;
    assert_eq!(server.effects(), 0);
    let asked = server.ask().await;
    server.approve(&asked, Shown::Output).await;
    assert_eq!(server.effects(), 1);
}

#[tokio::test]
async fn an_outcome_that_redis_kept_is_shown_after_a_restart() {
    let Some(mut redis) = RedisServer::start() else { return };
    let (server, asked) = Server::asked(&redis, RedisOptions::new(), false).await;
    server.approve(&asked, Shown::Output).await;
    redis.restart();
    server.approve(&asked, Shown::Output).await;
    assert_eq!(server.effects(), 1);
}

#[tokio::test]
async fn a_request_can_be_denied_after_a_restart() {
    let Some(mut redis) = RedisServer::start() else { return };
    let (server, asked) = Server::asked(&redis, RedisOptions::new(), false).await;
    redis.restart();
    let mut chat = server.chat().with_messages(asked);
    chat.deny(TOOL, None).await;
    let shown = &chat.tool_call(TOOL).state;
    assert!(matches!(shown, ToolState::OutputDenied { .. }), "{shown:?}");
    assert_eq!(server.effects(), 0);
}

#[tokio::test]
async fn with_a_redis_that_is_declared_durable_open_requests_outlive_a_restart() {
    let Some(mut redis) = RedisServer::start() else { return };
    let (server, asked) = Server::asked(&redis, RedisOptions::new().assume_durable(), false).await;
    redis.restart();
    server.approve(&asked, Shown::Output).await;
    server.approve(&asked, Shown::Output).await;
    assert_eq!(server.effects(), 1);
}

#[tokio::test]
async fn requests_of_idempotent_tools_outlive_a_restart() {
    let Some(mut redis) = RedisServer::start() else { return };
    let (server, asked) = Server::asked(&redis, RedisOptions::new(), true).await;
    redis.restart();
    server.approve(&asked, Shown::Output).await;
    assert_eq!(server.effects(), 1);
}

#[tokio::test]
async fn a_failover_voids_open_requests_also_if_the_process_of_redis_goes_on() {
    let Some(redis) = RedisServer::start() else { return };
    let (server, asked) = Server::asked(&redis, RedisOptions::new(), false).await;
    // It becomes a replica, of a Redis that it does not reach here, and then the primary again.
    redis.command("REPLICAOF 127.0.0.1 1");
    redis.command("REPLICAOF NO ONE");
    server.approve(&asked, Shown::Error(UserText::OutcomeUnknown.text())).await;
    assert_eq!(server.effects(), 0);
}

#[tokio::test]
async fn a_redis_that_refuses_info_executes_nothing_that_is_not_idempotent() {
    let Some(redis) = RedisServer::start() else { return };
    redis.command("ACL SETUSER default -info");
    let (server, asked) = Server::asked(&redis, RedisOptions::new(), false).await;
    server.approve(&asked, Shown::Error(UserText::OutcomeUnknown.text())).await;
    assert_eq!(server.effects(), 0);
    let (server, asked) = Server::asked(&redis, RedisOptions::new().assume_durable(), false).await;
    server.approve(&asked, Shown::Output).await;
    assert_eq!(server.effects(), 1);
}

#[tokio::test]
async fn an_approval_that_was_not_sent_to_its_provider_is_not_sent_after_a_restart() {
    let Some((mut redis, store)) = redis_and_store().await else { return };
    let mut record = contention::record(RecordId::from_bytes([1; 16]));
    assert!(store.insert(&record).await.unwrap());
    record.state = ApprovalState::Granted { decision: decision(&record) };
    assert!(store.compare_and_swap(&record, 0).await.unwrap());
    redis.restart();
    // It may have been sent before, which a Redis that loses writes does not know.
    let mut sent = record.clone();
    sent.state = claimed(&record);
    assert!(!store.compare_and_swap(&sent, 1).await.unwrap());
    let stored = store.load(&[record.id]).await.unwrap().records.remove(0);
    let decision = record.decision().unwrap().clone();
    assert_eq!(stored.record.state, ApprovalState::OutcomeUnknown { decision });
    assert_eq!(stored.revision, 2);
    let filter = RecordList::of_requester(&record.requester);
    assert_eq!(store.read_list((&filter).into()).await.unwrap().records.len(), 0);
}

#[tokio::test]
async fn a_call_that_runs_while_redis_restarts_keeps_its_lease_and_its_outcome() {
    let Some((mut redis, store)) = redis_and_store().await else { return };
    let mut record = contention::record(RecordId::from_bytes([1; 16]));
    assert!(store.insert(&record).await.unwrap());
    record.state = claimed(&record);
    assert!(store.compare_and_swap(&record, 0).await.unwrap());
    redis.restart();
    assert!(store.compare_and_swap(&record, 1).await.unwrap());
    let (decision, at) = (record.decision().unwrap().clone(), record.requested_at);
    let outcome = ToolOutcome::Output(Json::null());
    record.state = ApprovalState::Completed { decision, fence: 1, outcome, at };
    assert!(store.compare_and_swap(&record, 2).await.unwrap());
    let stored = store.load(&[record.id]).await.unwrap().records.remove(0);
    assert_eq!((stored.record, stored.revision), (record, 3));
}

/// Returns the state of a record that its requester has approved.
fn decision(record: &ApprovalRecord) -> RecordedDecision {
    RecordedDecision::new(record.requester.clone(), record.requested_at)
}

fn claimed(record: &ApprovalRecord) -> ApprovalState {
    let (decision, lease_until) = (decision(record), record.expires_at);
    let lease_holder = LeaseHolderId::from_bytes([1; 16]);
    ApprovalState::Claimed { decision, lease_holder, fence: 1, lease_until }
}

/// A server with one tool that needs approval.
struct Server {
    approvals: Approvals,
    tool: Tool,
}

/// What the client shows of a call.
enum Shown {
    Output,
    Error(&'static str),
}

impl Server {
    /// Starts a server that has asked for an approval. Returns the messages, too.
    async fn asked(
        redis: &RedisServer,
        options: RedisOptions,
        idempotent: bool,
    ) -> (Self, Vec<UiMessage>) {
        let tool = Tool { effects: Arc::default(), idempotent };
        let server = Self::with_tool(options.connect(&redis.url()).await.unwrap(), tool);
        let asked = server.ask().await;
        (server, asked)
    }

    /// Starts another server with the same tool.
    async fn connect_again(&self, redis: &RedisServer) -> Self {
        Self::with_tool(RedisStore::connect(&redis.url()).await.unwrap(), self.tool.clone())
    }

    fn with_tool(store: RedisStore, tool: Tool) -> Self {
        let approvals = Approvals::new(tool.clone())
            .with_keys(KeyRing::new(1, &test_support::secret(7)).unwrap())
            .with_ledger(Arc::new(store));
        Server { approvals, tool }
    }

    fn chat(&self) -> Conversation<'static> {
        let approvals = self.approvals.clone();
        Conversation::new(async move |chat: ChatRequest| {
            UiMessageStream::reply(&chat, events(approvals.clone(), chat.clone()))
        })
    }

    /// Begins a chat, in which the tool needs approval. Returns the messages.
    async fn ask(&self) -> Vec<UiMessage> {
        let mut chat = self.chat();
        chat.send("Delete my notes").await;
        assert_eq!(chat.error(), None);
        chat.messages().to_vec()
    }

    /// Approves the call in these messages, as a page that was opened again.
    async fn approve(&self, asked: &[UiMessage], expected: Shown) {
        let mut chat = self.chat().with_messages(asked);
        chat.approve(TOOL).await;
        assert_eq!(chat.error(), None);
        match (&chat.tool_call(TOOL).state, expected) {
            (ToolState::OutputAvailable { .. }, Shown::Output) => {}
            (ToolState::OutputError { error_text, .. }, Shown::Error(expected)) => {
                assert_eq!(error_text, expected);
            }
            (shown, _) => panic!("{shown:?}"),
        }
    }

    fn effects(&self) -> usize {
        self.tool.effects.load(Ordering::SeqCst)
    }
}

/// Emits the results of the approval responses. After a user message, requests approval of a call.
fn events(approvals: Approvals, chat: ChatRequest) -> impl Stream<Item = AgentEvent> {
    async_stream::stream! {
        let approvals = approvals.for_chat(&Principal::anonymous(), chat.id());
        let plan = ResumePlan::new(chat.messages(), chat.continued_message());
        let mut resolved = approvals.resolve(plan, &[]).await.unwrap();
        while let Some(result) = resolved.next().await {
            if let Some(event) = AgentEvent::from_deferred(&result) {
                yield event;
            }
        }
        if chat.continued_message().is_none() {
            let (call, input) = ("call", Json::string("notes.txt"));
            yield AgentEvent::tool_input(ToolCall::new(call, TOOL), input.clone());
            let message = "message".into();
            let request =
                approvals.request_approval(&message, &call.into(), TOOL, &input, None).await;
            yield request.unwrap().event(call.into());
        }
    }
}

/// Counts its effects.
#[derive(Debug, Clone)]
struct Tool {
    effects: Arc<AtomicUsize>,
    idempotent: bool,
}

impl Toolbox for Tool {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        let info = ToolInfo::new(DefinitionDigest::new(name, "deletes a file", &Json::null()));
        (name == TOOL).then_some(if self.idempotent { info.idempotent() } else { info })
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(async { true })
    }

    fn run(&self, _: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        self.effects.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { ToolOutcome::Output(Json::string("deleted")) })
    }
}

const TOOL: &str = "delete_file";
