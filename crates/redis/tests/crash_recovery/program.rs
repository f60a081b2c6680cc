//! The server that is killed: a chat with one tool that needs approval, and a ledger in Redis.
//!
//! The points are in wrappers around the real tool and the real ledger that are passed to
//! `Approvals`.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use futures::Stream;
use tokio::net::TcpListener;
use tokio::time::sleep;
use ui_message_stream::approval::store::{
    Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords, PendingLimits, Snapshot,
};
use ui_message_stream::approval::{
    ApprovalRecord, ApprovalState, Approvals, ApprovedCall, DefinitionDigest, KeyRing, Principal,
    Progress, RecordId, ResumePlan, ToolInfo, ToolOutcome, Toolbox,
};
use ui_message_stream::event::ToolCall;
use ui_message_stream::{AgentEvent, BoxFuture, ChatRequest, Json, UiMessageStream};
use ui_message_stream_redis::{RedisOptions, RedisStore};

use super::effects::EffectLog;
use super::points::{Point, Stop};
use super::trial::LEASE;

/// The settings of the server, from environment variables.
pub(crate) struct Settings {
    stop: Stop,
    redis: String,
    prefix: String,
    effects: EffectLog,
    idempotent: bool,
}

impl Settings {
    /// `None` if this process is not the server.
    pub(crate) fn from_environment() -> Option<Self> {
        let variable = |name: &str| std::env::var(name).unwrap();
        let stop = std::env::var("KILLED_AT").ok()?;
        Some(Settings {
            stop: Stop::at(Point::named(&stop)),
            redis: variable("REDIS"),
            prefix: variable("PREFIX"),
            effects: EffectLog::at(variable("EFFECTS")),
            idempotent: variable("IDEMPOTENT") == "true",
        })
    }
}

/// Prints the address, and serves until the process is killed.
pub(crate) async fn serve(settings: Settings) {
    let Settings { stop, redis, prefix, effects, idempotent } = settings;
    let ledger = RedisOptions::new().with_prefix(prefix).connect(&redis).await.unwrap();
    let ledger = Ledger { inner: ledger, stop: stop.clone(), claimed: Mutex::default() };
    let approvals = Approvals::new(Tool { stop: stop.clone(), effects, idempotent })
        .with_keys(KeyRing::new(1, &test_support::secret(7)).unwrap())
        .with_ledger(Arc::new(ledger))
        .with_lease(LEASE);
    let app = Router::new().route("/", post(chat)).with_state((approvals, stop));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("http://{}/", listener.local_addr().unwrap());
    axum::serve(listener, app).await.unwrap();
}

async fn chat(
    State((approvals, stop)): State<(Approvals, Stop)>,
    chat: ChatRequest,
) -> UiMessageStream {
    let events = events(approvals, stop, chat.clone());
    UiMessageStream::reply(&chat, events)
}

/// Emits the results of the approval responses. After a user message, requests approval of a new
/// call.
fn events(approvals: Approvals, stop: Stop, chat: ChatRequest) -> impl Stream<Item = AgentEvent> {
    async_stream::stream! {
        let is_approval_response = chat.continued_message().is_some();
        if is_approval_response {
            stop.pass(Point::AnswerReceived).await;
        }
        let approvals = approvals.for_chat(&Principal::anonymous(), chat.id());
        let plan = ResumePlan::new(chat.messages(), chat.continued_message());
        let mut resolved = approvals.resolve(plan, &[]).await.unwrap();
        while let Some(result) = resolved.next().await {
            stop.pass(Point::BeforeEmission).await;
            if let Some(event) = AgentEvent::from_deferred(&result) {
                yield event;
            }
            stop.pass(Point::AfterEmission).await;
        }
        if !is_approval_response {
            let call = format!("call_{}", chat.messages().len());
            let input = Json::string("notes.txt");
            yield AgentEvent::tool_input(ToolCall::new(&*call, TOOL), input.clone());
            let (message, call) = ("message".into(), call.into());
            let request =
                approvals.request_approval(&message, &call, TOOL, &input, None).await.unwrap();
            yield request.event(call);
        }
    }
}

/// Has one effect for each idempotency key: a line in the log.
#[derive(Debug)]
struct Tool {
    stop: Stop,
    effects: EffectLog,
    idempotent: bool,
}

impl Toolbox for Tool {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        let facts = ToolInfo::new(DefinitionDigest::new(name, "deletes a file", &Json::null()));
        let facts = if self.idempotent { facts.idempotent() } else { facts };
        (name == TOOL).then_some(facts)
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(async {
            self.stop.pass(Point::PermissionAsked).await;
            true
        })
    }

    fn run(&self, call: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        let (stop, effects, idempotent) =
            (self.stop.clone(), self.effects.clone(), self.idempotent);
        Box::pin(async move {
            let key = call.idempotency_key;
            effects.write(&format!("attempt {key}")).sync_all().unwrap();
            stop.pass(Point::ToolBegun).await;
            // The lease is renewed meanwhile, because that happens after a third of it.
            sleep(LEASE / 2).await;
            let effect = format!("effect {key}");
            // An idempotent tool recognizes a call that it receives twice.
            if !(idempotent && effects.count(&effect) > 0) {
                let written = effects.write(&effect);
                stop.pass(Point::EffectWritten).await;
                written.sync_all().unwrap();
            }
            stop.pass(Point::EffectDone).await;
            ToolOutcome::Output(Json::string("deleted"))
        })
    }
}

/// The ledger, with points before and after its writes.
#[derive(Debug)]
struct Ledger {
    inner: RedisStore,
    stop: Stop,
    claimed: Mutex<HashSet<RecordId>>,
}

impl Ledger {
    /// Returns the points before and after this record is written, if there are any.
    fn points(&self, record: &ApprovalRecord) -> (Option<Point>, Option<Point>) {
        match record.state {
            ApprovalState::Claimed { .. } if self.claimed.lock().unwrap().insert(record.id) => {
                (Some(Point::BeforeClaim), Some(Point::AfterClaim))
            }
            ApprovalState::Claimed { .. } => (Some(Point::BeforeRenewal), None),
            ApprovalState::Completed { .. } => {
                (Some(Point::BeforeOutcome), Some(Point::AfterOutcome))
            }
            _ => (None, None),
        }
    }
}

impl LedgerStore for Ledger {
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> BoxFuture<'a, Result<Inserted, LedgerStoreError>> {
        self.inner.insert_all(records, limits)
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        self.inner.load(ids)
    }

    fn read_list<'a>(
        &'a self,
        filter: ListRecords<'a>,
    ) -> BoxFuture<'a, Result<ListedRecords, LedgerStoreError>> {
        self.inner.read_list(filter)
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        let (before, after) = self.points(record);
        Box::pin(async move {
            if let Some(before) = before {
                self.stop.pass(before).await;
            }
            let replaced = self.inner.compare_and_swap(record, revision).await?;
            if let Some(after) = after {
                self.stop.pass(after).await;
            }
            Ok(replaced)
        })
    }
}

const TOOL: &str = "delete_file";
