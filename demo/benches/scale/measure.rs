//! [`measure`]: what a filled store costs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_stream::stream;
use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode};
use futures::StreamExt;
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;
use ui_message_stream::AgentEvent;
use ui_message_stream::approval::store::update;
use ui_message_stream::approval::{InboxQuery, LeaseHolderId, Principal, RecordedDecision};
use ui_message_stream_chat::axum::{approval_routes, chat_routes};
use ui_message_stream_chat::store::LogStore;
use ui_message_stream_chat::{ChatServer, Turn};

use super::fill::{self, Filled, Size, user};
use super::store::{StartedStore, Stores, Used};

/// What was measured of one store.
pub(crate) struct Measured {
    pub(crate) chat_bytes: u64,
    pub(crate) question_bytes: u64,
    /// Turns that create a chat, one after the other.
    pub(crate) turn: Cost,
    /// The same, 16 at once.
    pub(crate) busy_turn: Cost,
    pub(crate) delta: Cost,
    pub(crate) list: Cost,
    pub(crate) inbox: Cost,
    /// Claims of questions for execution, 16 at once.
    pub(crate) claim: Cost,
    pub(crate) sweep: Duration,
    pub(crate) start: Duration,
}

/// What operations of one kind took and used.
pub(crate) struct Cost {
    times: Vec<Duration>,
    used: Used,
    count: usize,
    took: Duration,
}

impl Cost {
    /// Returns the median and the 99th percentile, in milliseconds.
    pub(crate) fn waits(&self) -> String {
        let at = |share: usize| super::millis(self.times[self.times.len() * share / 100]);
        format!("{}, {}", at(50), at(99))
    }

    pub(crate) fn a_second(&self) -> String {
        format!("{:.0}", self.count as f64 / self.took.as_secs_f64())
    }

    pub(crate) fn server_cpu(&self) -> String {
        self.micros(self.used.server_cpu)
    }

    pub(crate) fn store_cpu(&self) -> String {
        let nodes: Vec<_> =
            self.used.store_cpu.into_iter().flatten().map(|node| self.micros(node)).collect();
        if nodes.is_empty() { "–".to_owned() } else { nodes.join(" + ") }
    }

    pub(crate) fn bytes(&self) -> String {
        match self.used.bytes {
            0 => "–".to_owned(),
            bytes => (bytes / self.count as u64).to_string(),
        }
    }

    pub(crate) fn operations(&self) -> String {
        match self.used.operations {
            0 => "–".to_owned(),
            operations => format!("{:.1}", operations as f64 / self.count as f64),
        }
    }

    fn micros(&self, time: Duration) -> String {
        format!("{:.0}", time.as_secs_f64() * 1e6 / self.count as f64)
    }
}

/// Measures a store that was filled.
pub(crate) async fn measure(store: &StartedStore, size: Size, filled: Filled) -> Measured {
    let started = Instant::now();
    let chats = Chats::open(store.open().await);
    chats.get(&user(0), "/api/chat").await;
    let start = started.elapsed();
    let chats = &chats;
    let of = |number: usize| user(number % size.users());
    let turn = repeat(store, 1, TURNS, async |number| {
        chats.turn(&of(number), &format!("alone-{number}")).await;
    })
    .await;
    let busy_turn = repeat(store, 16, BUSY_TURNS, async |number| {
        chats.turn(&of(number), &format!("busy-{number}")).await;
    })
    .await;
    let streams = repeat(store, STREAMS, STREAMS, async |number| {
        // A user may have 16 runs.
        chats.answer(&user(number), &format!("slow-{number}"), &DELTAS.to_string()).await;
    })
    .await;
    let delta = Cost { count: STREAMS * DELTAS, ..streams };
    let list = repeat(store, 1, READS, async |number| {
        chats.get(&of(number), "/api/chat").await;
    })
    .await;
    let team = &fill::team();
    let inbox = repeat(store, 1, READS, async |_| chats.get(team, "/api/approvals").await).await;
    let claim = measure_claims(store).await;
    fill::sweep_all(&*chats.logs).await;
    let begun = Instant::now();
    let _ = chats.logs.sweep().await.expect("a sweep");
    let sweep = begun.elapsed();
    let Filled { chat_bytes, question_bytes } = filled;
    Measured {
        chat_bytes,
        question_bytes,
        turn,
        busy_turn,
        delta,
        list,
        inbox,
        claim,
        sweep,
        start,
    }
}

/// Claims some of the questions.
async fn measure_claims(store: &StartedStore) -> Cost {
    let ledger = store.open().await.ledger;
    let team = &fill::team();
    let mut ids = Vec::new();
    let mut query = InboxQuery::default();
    let approvals = fill::approvals(ledger.clone());
    loop {
        let page = approvals.inbox(team, query).await.expect("a page");
        ids.extend(page.approvals.iter().map(|pending| pending.record.id));
        query.after = page.next;
        if query.after.is_none() || ids.len() >= CLAIMS {
            break;
        }
    }
    ids.truncate(CLAIMS);
    let ids = &ids;
    let ledger = &*ledger;
    let claims = repeat(store, 16, ids.len(), async |number| {
        let claimed = update(ledger, ids[number], |record, now| {
            let decision = RecordedDecision::new(team.clone(), now);
            record.claim(&decision, LeaseHolderId::from_bytes([1; 16]), Duration::from_secs(60))
        });
        assert!(claimed.await.expect("a claim").is_some());
    });
    claims.await
}

/// Runs an operation so many times, `at_once` of them at the same time.
async fn repeat(
    store: &StartedStore,
    at_once: usize,
    count: usize,
    operation: impl AsyncFn(usize),
) -> Cost {
    let before = store.used().await;
    let runs = (0..count).map(|number| {
        let operation = &operation;
        async move {
            let begun = Instant::now();
            operation(number).await;
            begun.elapsed()
        }
    });
    let begun = Instant::now();
    let mut times: Vec<_> = futures::stream::iter(runs).buffer_unordered(at_once).collect().await;
    let took = begun.elapsed();
    times.sort_unstable();
    Cost { times, used: store.used().await.since(before), count, took }
}

/// A chat server, and its routes without a socket.
pub(crate) struct Chats {
    app: Router,
    logs: Arc<dyn LogStore>,
}

impl Chats {
    /// Its agent answers a number with so many deltas at a pace, and other texts at once.
    pub(crate) fn open(stores: Stores) -> Self {
        let agent = |turn: Turn| {
            let words = turn.chat.messages.last().map(|message| message.text());
            let words = words.and_then(|words| words.parse::<usize>().ok());
            stream! {
                for _ in 0..words.unwrap_or_default() {
                    tokio::time::sleep(PACE).await;
                    yield AgentEvent::text("word ");
                }
                yield AgentEvent::text("The agent reads the file, and answers briefly.");
            }
        };
        let chats =
            ChatServer::new(agent, fill::approvals(stores.ledger)).with_store(stores.logs.clone());
        let app = Router::new()
            .nest("/api/chat", chat_routes(chats.clone()))
            .nest("/api/approvals", approval_routes(chats));
        Chats { app, logs: stores.logs }
    }

    /// Sends a short message, and reads the answer.
    pub(crate) async fn turn(&self, user: &Principal, chat: &str) {
        self.answer(user, chat, "What does the agent say?").await;
    }

    async fn answer(&self, user: &Principal, chat: &str, text: &str) {
        let id = uuid::Uuid::new_v4().to_string();
        let message = json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]});
        let body = json!({"id": chat, "message": message}).to_string();
        let answer = self.send(Method::POST, user, "/api/chat", body).await;
        assert!(answer.ends_with("data: [DONE]\n\n"), "{answer}");
    }

    async fn get(&self, user: &Principal, path: &str) {
        let answer = self.send(Method::GET, user, path, String::new()).await;
        assert!(answer.len() > 100, "{path} is not empty: {answer}");
    }

    async fn send(&self, method: Method, user: &Principal, path: &str, body: String) -> String {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .extension(user.clone())
            .body(Body::from(body));
        let response = self.app.clone().oneshot(request.expect("a request")).await;
        let response = response.expect("a response");
        let status = response.status();
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        assert_eq!(status, StatusCode::OK, "{text}");
        text
    }
}

const TURNS: usize = 300;
const BUSY_TURNS: usize = 3_000;
const STREAMS: usize = 50;
const DELTAS: usize = 200;
const READS: usize = 200;
const CLAIMS: usize = 2_000;
const PACE: Duration = Duration::from_millis(20);
