//! A host of the routes of `ui_message_stream`, as the attacks find it: four tools, a scripted agent,
//! persons named by a header, and logs of what ran and what the model read. What it does is written in
//! `fixtures/attacks/README.md`.

mod agent;
mod requests;
mod tools;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::approvals::Approvals;
use ui_message_stream::axum::{approval_routes, chat_routes};
use ui_message_stream::chat::Chats;
use ui_message_stream::chat_store::ChatStore;
use ui_message_stream::ledger_store::MemoryLedger;

pub use self::agent::{Line, Model, Scripted};
pub use self::requests::{Answer, Client};
pub use self::tools::{Effect, Tools};

/// The routes, and what stands behind them.
#[derive(Debug, Clone)]
pub struct Host {
    /// The routes.
    pub routes: Router,
    /// The conversations behind the routes.
    pub chats: Chats,
    /// The tools of the agent.
    pub tools: Tools,
    /// The model of the agent.
    pub model: Model,
    ledger: Arc<MemoryLedger>,
    now: Arc<Mutex<UnixMillis>>,
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Host {
    /// The model says what it knows.
    pub fn new() -> Self {
        Self::scripted(Vec::new())
    }

    /// The model says these lines before those that it knows.
    pub fn scripted(script: Vec<Line>) -> Self {
        Self::with(script, |approvals| approvals)
    }

    /// The model says these lines first, and the approvals are set up so.
    pub fn with(script: Vec<Line>, set_up: impl FnOnce(Approvals) -> Approvals) -> Self {
        let now = UnixMillis(1_000_000_000_000);
        let ledger = Arc::new(MemoryLedger::at(now));
        let (tools, model) = (Tools::default(), Model::new(script));
        let approvals = set_up(Approvals::new(tools.clone()).with_ledger(ledger.clone()));
        let agent = agent::scripted(model.clone(), tools.clone());
        let chats = Chats::new(agent, approvals);
        let routes = routes(&chats);
        Host { routes, chats, tools, model, ledger, now: Arc::new(Mutex::new(now)) }
    }

    /// The conversations are kept there.
    pub fn with_store(mut self, store: impl ChatStore) -> Self {
        self.chats = self.chats.with_store(Arc::new(store));
        self.routes = routes(&self.chats);
        self
    }

    /// Lets time pass.
    pub fn wait(&self, time: Duration) {
        let mut now = self.now.lock().unwrap();
        *now = now.after(time);
        self.ledger.set_time(*now);
    }
}

fn routes(chats: &Chats) -> Router {
    Router::new()
        .nest("/api/chat", chat_routes(chats.clone()))
        .nest("/api/approvals", approval_routes(chats.clone()))
        .layer(from_fn(authenticate))
}

/// The host's authentication: who a request comes from stands in a header.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let named = request.headers().get(PERSON).and_then(|name| name.to_str().ok());
    if let Some(principal) = named.map(Principal::new) {
        request.extensions_mut().insert(principal);
    }
    next.run(request).await
}

/// The header that names the person.
pub const PERSON: &str = "x-principal";
