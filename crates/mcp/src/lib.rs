//! [`McpServer`]: the tools of a Model Context Protocol server, as tools of an
//! [`Agent`](ui_message_stream::agent::Agent).
//!
//! What a server says of its tools, that one only reads, that another destroys nothing, is the claim
//! of that server, and so is every description, which the model reads. By default one claim is
//! believed: what says that it only reads runs, and a person is asked about everything else
//! ([`McpTool`]). Connect to servers that you trust so far, or decide for each tool yourself.
//!
//! A server may put another tool under a name that was approved. So what a person approved is held
//! against what the server says of the tool at that moment, its title and its annotations too: it is
//! asked again, past the client's cache, just before an approved call is claimed. That costs one round
//! trip to the server that is about to be called anyway, after a wait for a person; to hear of changes
//! alone would not do, since the server need not tell. If the tool is another one, or the server does
//! not answer, the approval is revoked. A server that changes what a tool does, and nothing that it
//! says of it, is not found out by anybody here.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

mod result;
mod tool;

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, Once, PoisonError, RwLock, Weak};
use std::time::Duration;

use ::rmcp::model::{
    ClientConfig, ClientRequest, ClientResult, Cursor, ErrorData, ListToolsRequest,
    PaginatedRequestParams, ProtocolVersion, ServerNotification, ServerRequest, ServerResult,
};
use ::rmcp::service::{NotificationContext, PeerRequestOptions, RequestContext};
use ::rmcp::transport::IntoTransport;
use ::rmcp::{Peer, RoleClient, Service, ServiceError, ServiceExt};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

pub use ::rmcp;

pub use self::tool::McpTool;

use self::tool::Listed;
use ui_message_stream::stream::BoxError;

/// A Model Context Protocol server, and what it says of its tools.
///
/// Cheap to clone; all clones are one. The tools keep it connected.
///
/// ```no_run
/// use tokio::process::Command;
/// use rmcp::transport::TokioChildProcess;
/// use ui_message_stream::agent::{Agent, Model};
/// use ui_message_stream_mcp::McpServer;
///
/// # async fn make(model: impl Model) -> Result<Agent, Box<dyn std::error::Error>> {
/// let files = TokioChildProcess::new(Command::new("files-server"))?;
/// let files = McpServer::connect((), files).await?;
/// let agent = Agent::new(model)
///     .tools(files.tools().await?.into_iter().map(|tool| tool.with_prefix("files_")));
/// # Ok(agent)
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct McpServer(Arc<Connection>);

/// A connection, and what was last said over it.
pub(crate) struct Connection {
    peer: Peer<RoleClient>,
    listed: RwLock<Arc<[Arc<Listed>]>>,
    /// One at a time, or an older list might come to stand over a newer one.
    listing: tokio::sync::Mutex<()>,
    /// Open for as long as this is kept; `None` if somebody else keeps it.
    running: Mutex<Option<Box<dyn Any + Send>>>,
    listening: Option<AbortHandle>,
    /// That it is gone is said once.
    went: Once,
}

/// Why there are no tools of a server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum McpError {
    /// The server cannot be reached, or does not speak the protocol.
    #[error("the tool server cannot be reached: {0}")]
    Connect(#[source] BoxError),
    /// It does not say what tools it has.
    #[error("the tool server does not list its tools: {0}")]
    List(#[source] BoxError),
    /// It has not said so within 10 seconds.
    #[error("the tool server did not list its tools in time")]
    Timeout,
    /// It lists more than 1000 tools, or 100 pages of them.
    #[error("the tool server lists more tools than anybody can choose from")]
    TooMany,
}

impl McpServer {
    /// Connects to a server, and hears it say that its tools have changed.
    ///
    /// `handler` answers what the server asks of its client, as `rmcp` has it: `()` for nothing.
    ///
    /// The connection is not made anew when the server goes: its tools are gone then, for the model
    /// and for what was approved, until the host connects again and makes its agent again.
    ///
    /// # Errors
    /// [`McpError::Connect`]; [`McpError::Timeout`] if the server says nothing for half a minute.
    pub async fn connect<S, T, E, A>(handler: S, transport: T) -> Result<Self, McpError>
    where
        S: Service<RoleClient>,
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let changed = Arc::new(Notify::new());
        let listener = Listener { handler, changed: Arc::clone(&changed) };
        let running = timeout(TIME_TO_CONNECT, listener.serve(transport)).await;
        let running = running.map_err(|_| McpError::Timeout)?;
        let running = running.map_err(|error| McpError::Connect(error.into()))?;
        Ok(McpServer(Arc::new_cyclic(|connection| {
            let listening = tokio::spawn(listen(Weak::clone(connection), changed));
            let mut connection = Connection::of(running.peer().clone());
            connection.running = Mutex::new(Some(Box::new(running)));
            connection.listening = Some(listening.abort_handle());
            connection
        })))
    }

    /// The server at the other end of a connection that is kept elsewhere. Whoever keeps it hears
    /// what the server says: [`refresh`](Self::refresh) when that is `tools/list_changed`.
    pub fn of_peer(peer: Peer<RoleClient>) -> Self {
        McpServer(Arc::new(Connection::of(peer)))
    }

    /// Its tools, as they are now.
    ///
    /// A tool that cannot be called is left out, with a warning: one whose schema is none, or that
    /// has the name of another. What the server adds later no agent gets by itself.
    ///
    /// # Errors
    /// [`McpError`], except `Connect`.
    pub async fn tools(&self) -> Result<Vec<McpTool>, McpError> {
        self.refresh().await?;
        let mut names = HashSet::new();
        let tools = self.0.listed().iter().map(|listed| McpTool::of(&self.0, listed)).collect();
        let mut tools: Vec<McpTool> = tools;
        tools.retain(|tool| {
            let name = tool.callable_name();
            let is_new = !name.is_empty() && names.insert(name.to_owned());
            if !is_new {
                tracing::warn!(tool = name, "a tool without a name of its own is left out");
            }
            is_new
        });
        Ok(tools)
    }

    /// Asks the server what its tools are. Those that an agent has are then what they are now.
    ///
    /// # Errors
    /// [`McpError`], except `Connect`. What was known before stays.
    pub async fn refresh(&self) -> Result<(), McpError> {
        self.0.refresh().await
    }
}

impl Connection {
    fn of(peer: Peer<RoleClient>) -> Self {
        Connection {
            peer,
            listed: RwLock::new(Arc::new([])),
            listing: tokio::sync::Mutex::default(),
            running: Mutex::default(),
            listening: None,
            went: Once::new(),
        }
    }

    fn peer(&self) -> &Peer<RoleClient> {
        &self.peer
    }

    fn listed(&self) -> Arc<[Arc<Listed>]> {
        Arc::clone(&self.listed.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the server last said of a tool; `None` if it has none of this name, or is gone.
    fn tool(&self, name: &str) -> Option<Arc<Listed>> {
        if self.peer.is_transport_closed() {
            self.went.call_once(|| tracing::warn!("a tool server is gone, and its tools with it"));
            return None;
        }
        self.listed().iter().find(|listed| *listed.tool.name == *name).cloned()
    }

    async fn refresh(&self) -> Result<(), McpError> {
        let deadline = Instant::now() + TIME_TO_LIST;
        let list = async {
            let _alone = self.listing.lock().await;
            let listed = self.list(deadline).await?;
            *self.listed.write().unwrap_or_else(PoisonError::into_inner) = listed.into();
            Ok(())
        };
        timeout_at(deadline, list).await.unwrap_or(Err(McpError::Timeout))
    }

    /// Not by the peer's own `list_tools`: for as long as the server likes, that says what the server
    /// said before.
    async fn list(&self, deadline: Instant) -> Result<Vec<Arc<Listed>>, McpError> {
        let (mut tools, mut cursor) = (Vec::new(), None);
        for _ in 0..MOST_PAGES {
            let page = self.page(cursor, deadline).await;
            let page = page.map_err(|error| McpError::List(error.into()))?;
            tools.extend(page.tools);
            cursor = page.next_cursor;
            if tools.len() > MOST_TOOLS {
                return Err(McpError::TooMany);
            }
            if cursor.is_none() {
                return Ok(tools.into_iter().filter_map(Listed::of).map(Arc::new).collect());
            }
        }
        Err(McpError::TooMany)
    }

    async fn page(
        &self,
        cursor: Option<Cursor>,
        deadline: Instant,
    ) -> Result<::rmcp::model::ListToolsResult, ServiceError> {
        let params = PaginatedRequestParams::default().with_cursor(cursor);
        let request = ListToolsRequest::with_param(params);
        let options =
            PeerRequestOptions::with_timeout(deadline.saturating_duration_since(Instant::now()));
        let request = ClientRequest::ListToolsRequest(request);
        let answer = self.peer.send_request_with_option(request, options).await?;
        match answer.await_response().await? {
            ServerResult::ListToolsResult(page) => Ok(page),
            _ => Err(ServiceError::UnexpectedResponse),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(listening) = &self.listening {
            listening.abort();
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.listed().iter().map(|tool| tool.tool.name.clone()).collect();
        f.debug_struct("McpServer").field("tools", &names).finish_non_exhaustive()
    }
}

/// Asks anew whenever the server says that something changed.
async fn listen(connection: Weak<Connection>, changed: Arc<Notify>) {
    loop {
        changed.notified().await;
        let Some(connection) = connection.upgrade() else { return };
        if let Err(error) = connection.refresh().await {
            tracing::warn!(%error, "what the tools of a server have become is not known");
        }
    }
}

/// Hears that the tools have changed, and passes everything on.
struct Listener<S> {
    handler: S,
    changed: Arc<Notify>,
}

impl<S: Service<RoleClient>> Service<RoleClient> for Listener<S> {
    async fn handle_request(
        &self,
        request: ServerRequest,
        context: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        self.handler.handle_request(request, context).await
    }

    async fn handle_notification(
        &self,
        notification: ServerNotification,
        context: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        if matches!(notification, ServerNotification::ToolListChangedNotification(_)) {
            self.changed.notify_one();
        }
        self.handler.handle_notification(notification, context).await
    }

    fn get_info(&self) -> ClientConfig {
        self.handler.get_info()
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        self.handler.supported_protocol_versions()
    }
}

/// How long a server may take to say that it is one. Some are downloaded first.
const TIME_TO_CONNECT: Duration = Duration::from_secs(30);

/// How long a server may take to list its tools.
const TIME_TO_LIST: Duration = Duration::from_secs(10);

/// How many pages of them are read.
const MOST_PAGES: usize = 100;

/// How many tools a server may have.
const MOST_TOOLS: usize = 1000;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
