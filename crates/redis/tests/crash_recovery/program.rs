//! The server that is killed: a chat with one tool that asks first, its ledger in Redis.
//!
//! The points are in what it hands to `Approvals`, around the real things; nothing else knows of
//! them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::routing::post;
use futures::Stream;
use tokio::net::TcpListener;
use tokio::time::sleep;
use ui_message_stream::approval::store::{
    BoxFuture, LedgerStore, LedgerStoreError, PendingFilter, Snapshot,
};
use ui_message_stream::approval::{
    ApprovalRecord, ApprovalState, Approvals, ApprovedCall, DefinitionDigest, KeyRing, Principal,
    RecordId, ResumePlan, ToolInfo, ToolOutcome, Toolbox,
};
use ui_message_stream::event::ToolCall;
use ui_message_stream::{AgentEvent, ChatRequest, Json, UiMessageStream};
use ui_message_stream_redis::RedisLedger;

use super::effects::EffectLog;
use super::points::{Point, Stop};
use super::trial::LEASE;

/// What it is told, in environment variables.
pub(crate) struct Settings {
    stop: Stop,
    redis: String,
    prefix: String,
    effects: EffectLog,
    idempotent: bool,
}

impl Settings {
    /// `None` if this process is not the server.
    pub(crate) fn of_environment() -> Option<Self> {
        let told = |name: &str| std::env::var(name).unwrap();
        let stop = std::env::var("KILLED_AT").ok()?;
        Some(Settings {
            stop: Stop::at(Point::named(&stop)),
            redis: told("REDIS"),
            prefix: told("PREFIX"),
            effects: EffectLog::at(told("EFFECTS")),
            idempotent: told("IDEMPOTENT") == "true",
        })
    }
}

/// Serves until it is killed, and says where.
pub(crate) async fn serve(settings: Settings) {
    let Settings { stop, redis, prefix, effects, idempotent } = settings;
    let ledger = RedisLedger::connect(&redis).await.unwrap().with_prefix(prefix);
    let ledger = Ledger { inner: ledger, stop: stop.clone(), claimed: Mutex::default() };
    let approvals = Approvals::new(Tool { stop: stop.clone(), effects, idempotent })
        .with_keys(KeyRing::new(1, &[7; 32]).unwrap())
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
    let events = answer(approvals, stop, chat.clone());
    UiMessageStream::reply(&chat, events)
}

/// Says what came of the answers; asks about a new call where the person wrote instead.
fn answer(approvals: Approvals, stop: Stop, chat: ChatRequest) -> impl Stream<Item = AgentEvent> {
    async_stream::stream! {
        let is_answer = chat.continued_message().is_some();
        if is_answer {
            stop.passes(Point::AnswerReceived).await;
        }
        let approvals = approvals.for_chat(&Principal::anonymous(), chat.id());
        let plan = ResumePlan::new(chat.messages(), chat.continued_message());
        let mut resolved = approvals.resolve(plan, &[]).await.unwrap();
        while let Some(result) = resolved.next().await {
            stop.passes(Point::BeforeEmission).await;
            if let Some(event) = AgentEvent::from_deferred(&result) {
                yield event;
            }
            stop.passes(Point::AfterEmission).await;
        }
        if !is_answer {
            let (call, input) = (format!("call_{}", chat.messages().len()), Json::string("notes.txt"));
            yield AgentEvent::tool_input(ToolCall::new(&*call, TOOL), input.clone());
            let call = call.into();
            let asked = approvals.request_approval(&"message".into(), &call, TOOL, &input, None).await.unwrap();
            yield asked.event(call);
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
            self.stop.passes(Point::PermissionAsked).await;
            true
        })
    }

    fn run(&self, call: ApprovedCall) -> BoxFuture<'static, ToolOutcome> {
        let (stop, effects, idempotent) =
            (self.stop.clone(), self.effects.clone(), self.idempotent);
        Box::pin(async move {
            let key = call.idempotency_key;
            effects.write(&format!("attempt {key}")).sync_all().unwrap();
            stop.passes(Point::ToolBegun).await;
            // Long enough for the lease to be renewed meanwhile, which it is after a third.
            sleep(LEASE / 2).await;
            let effect = format!("effect {key}");
            // What an idempotent tool does: it recognises a call that it gets twice.
            if !(idempotent && effects.count(&effect) > 0) {
                let written = effects.write(&effect);
                stop.passes(Point::EffectWritten).await;
                written.sync_all().unwrap();
            }
            stop.passes(Point::EffectDone).await;
            ToolOutcome::Output(Json::string("deleted"))
        })
    }
}

/// The ledger, with points around what it writes.
#[derive(Debug)]
struct Ledger {
    inner: RedisLedger,
    stop: Stop,
    claimed: Mutex<HashSet<RecordId>>,
}

impl Ledger {
    /// The points before and after a record is written, if there are any.
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
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        self.inner.insert(record)
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        self.inner.load(ids)
    }

    fn pending<'a>(
        &'a self,
        of: PendingFilter<'a>,
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        self.inner.pending(of)
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        let (before, after) = self.points(record);
        Box::pin(async move {
            if let Some(before) = before {
                self.stop.passes(before).await;
            }
            let replaced = self.inner.compare_and_swap(record, revision).await?;
            if let Some(after) = after {
                self.stop.passes(after).await;
            }
            Ok(replaced)
        })
    }
}

const TOOL: &str = "delete_file";
