//! The server that the attack tests use. It has the routes of `ui_message_stream`, four tools, a
//! scripted agent, users named by a header, and logs of the tools that ran and of the prompts that
//! the model read. `fixtures/attacks/README.md` describes its behaviour.

mod agent;
mod losable_store;
mod requests;
mod tools;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{Approvals, Principal, UnixMillis};
use ui_message_stream_chat::ChatLimits;
use ui_message_stream_chat::axum::{approval_routes, chat_routes};
use ui_message_stream_chat::store::{LoadLog, LoadedLog, LogKey, LogStore};
use ui_message_stream_chat::{ChatServer, PostedHistory};

pub use self::agent::{Line, Model, Scripted};
use self::losable_store::LosableStore;
pub use self::requests::{Answer, Client};
pub use self::tools::{Effect, Tools};
use crate::log_double::LogDouble;

/// The routes of the server and what they use.
#[derive(Debug, Clone)]
pub struct Host {
    /// The routes.
    pub routes: Router,
    /// The chat server behind the routes.
    pub chats: ChatServer,
    /// The tools of the agent.
    pub tools: Tools,
    /// The model of the agent.
    pub model: Model,
    store: Arc<LogDouble<LosableStore>>,
    ledger: Arc<InMemoryLedger>,
    now: Arc<Mutex<UnixMillis>>,
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Host {
    /// Loads the log of a chat.
    pub async fn log(&self, user: &str, chat: &str) -> LoadedLog {
        let key = LogKey { owner: Principal::new(user), chat: chat.into() };
        let load = LoadLog { key: &key, has_frames: true, has_messages: true };
        self.store.load(load).await.unwrap().unwrap()
    }

    /// Creates a server whose model uses only its own words.
    pub fn new() -> Self {
        Self::scripted(Vec::new())
    }

    /// Creates a server, and a client of the user `alice` that has sent this text in the chat `chat`.
    pub async fn with_alice(says: &str) -> (Self, Client) {
        let host = Self::new();
        let client = host.alice_says(says).await;
        (host, client)
    }

    /// Returns a client of the user `alice` that has sent this text in the chat `chat`.
    pub async fn alice_says(&self, text: &str) -> Client {
        let mut client = Client::new("alice", "chat");
        client.say(self, text).await;
        client
    }

    /// Creates a server whose model looks for the words of `script` first.
    pub fn scripted(script: Vec<Line>) -> Self {
        Self::with(script, |approvals| approvals)
    }

    /// Creates a server whose model looks for the words of `script` first. `set_up` configures the
    /// approvals.
    pub fn with(script: Vec<Line>, set_up: impl FnOnce(Approvals) -> Approvals) -> Self {
        let now = UnixMillis(1_000_000_000_000);
        let ledger = Arc::new(InMemoryLedger::with_test_clock(now));
        let (tools, model) = (Tools::default(), Model::new(script));
        let approvals = set_up(Approvals::new(tools.clone()).with_ledger(ledger.clone()));
        let agent = agent::scripted(model.clone(), tools.clone());
        let store = Arc::new(LogDouble::<LosableStore>::default());
        let chats = ChatServer::new(agent, approvals).with_store(store.clone());
        let routes = routes(&chats);
        Host { routes, chats, tools, model, store, ledger, now: Arc::new(Mutex::new(now)) }
    }

    /// Sets the store of the conversations.
    pub fn with_store(mut self, store: impl LogStore) -> Self {
        self.chats = self.chats.with_store(Arc::new(store));
        self.routes = routes(&self.chats);
        self
    }

    /// Loses all chats, as a server does that restarts and keeps its chats in memory.
    pub fn lose_chats(&self) {
        self.store.lose_chats();
    }

    /// Sets whether a new message keeps the stored messages that the posted history lacks.
    pub fn with_posted_history(mut self, posted_history: PostedHistory) -> Self {
        self.chats = self.chats.with_posted_history(posted_history);
        self.routes = routes(&self.chats);
        self
    }

    /// Configures the chat server.
    pub fn with_chats(mut self, set_up: impl FnOnce(ChatServer) -> ChatServer) -> Self {
        self.chats = set_up(self.chats);
        self.routes = routes(&self.chats);
        self
    }

    /// Sets the limits of the chats.
    pub fn with_limits(mut self, limits: ChatLimits) -> Self {
        self.chats = self.chats.with_limits(limits);
        self.routes = routes(&self.chats);
        self
    }

    /// Advances the clock.
    pub fn wait(&self, time: Duration) {
        let mut now = self.now.lock().unwrap();
        *now = now.after(time);
        self.ledger.set_test_time(*now);
    }
}

fn routes(chats: &ChatServer) -> Router {
    Router::new()
        .nest("/api/chat", chat_routes(chats.clone()))
        .nest("/api/approvals", approval_routes(chats.clone()))
        .layer(from_fn(authenticate))
}

/// The server's authentication: a header names the user.
async fn authenticate(mut request: Request, next: Next) -> Response {
    let named = request.headers().get(PRINCIPAL_HEADER).and_then(|name| name.to_str().ok());
    if let Some(principal) = named.map(Principal::new) {
        request.extensions_mut().insert(principal);
    }
    next.run(request).await
}

/// The header that names the user.
pub const PRINCIPAL_HEADER: &str = "x-principal";
