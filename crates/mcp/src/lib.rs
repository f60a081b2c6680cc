//! [`McpClient`]: the tools of a Model Context Protocol server, as tools of an
//! [`Agent`](ui_message_stream_agent::Agent).
//!
//! The annotations of a tool, for example that it only reads or that it is not destructive, are
//! claims of the server. So are the descriptions, which the model reads. By default one claim is
//! trusted: a tool that claims to only read runs without approval, and every other tool needs a
//! user's approval ([`McpTool`]). Connect only to servers that you trust that far, or set the
//! approval policy of each tool yourself.
//!
//! A server may replace a tool by another tool of the same name after an approval was requested. So
//! the definition in the approval request is compared with the server's current definition,
//! including its title and its annotations. The server is queried again, without the client's
//! cache, immediately before an approved call is claimed. This costs one round trip to the server
//! that is about to be called anyway, after a wait for the user. Calls that are approved together
//! share it. Change notifications alone would not be enough, because a server is not required to
//! send them. If the definition differs, or if the server does not respond, the approval is
//! revoked. A server that changes what a tool does, but not its definition, cannot be detected.
//!
//! The schema of a tool is sent to the model and is not evaluated here, because a server can write a
//! schema whose evaluation takes unbounded time. The server validates the inputs of its tools. A
//! server that reports changes of its tools all the time is queried once in 5 seconds.

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
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

pub use ::rmcp;

pub use self::tool::McpTool;

use self::tool::ListedTool;
use ui_message_stream::BoxError;
use ui_message_stream::id::log_text;

/// A client of a Model Context Protocol server, with the server's list of tools.
///
/// A clone is cheap and shares the connection. The tools keep the connection open.
///
/// ```no_run
/// use tokio::process::Command;
/// use rmcp::transport::TokioChildProcess;
/// use ui_message_stream_agent::Agent;
/// use ui_message_stream::model::Model;
/// use ui_message_stream_mcp::McpClient;
///
/// # async fn make(model: impl Model) -> Result<Agent, Box<dyn std::error::Error>> {
/// let files = TokioChildProcess::new(Command::new("files-server"))?;
/// let files = McpClient::connect((), files).await?;
/// let agent = Agent::new(model)
///     .tools(files.tools().await?.into_iter().map(|tool| tool.with_prefix("files_")));
/// # Ok(agent)
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct McpClient(Arc<Connection>);

/// A connection to a server, and the tools that the server listed last.
pub(crate) struct Connection {
    peer: Peer<RoleClient>,
    tools: RwLock<Arc<[Arc<ListedTool>]>>,
    /// Serializes refreshes, so that an older list never replaces a newer one. Holds the time at
    /// which the request of the last list began.
    refresh_lock: tokio::sync::Mutex<Option<Instant>>,
    /// Keeps the connection open while it is stored here. `None` if the host keeps the connection.
    service: Mutex<Option<Box<dyn Any + Send>>>,
    refresh_task: Option<AbortOnDropHandle<()>>,
    /// Ensures that the warning about a closed connection is logged once.
    closed_warning: Once,
}

/// An error of connecting to a server or of listing its tools.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum McpError {
    /// The server cannot be reached, or does not speak the protocol.
    #[error("the tool server cannot be reached: {0}")]
    Connect(#[source] BoxError),
    /// The server does not list its tools.
    #[error("the tool server does not list its tools: {0}")]
    List(#[source] BoxError),
    /// The server did not respond in time: 30 seconds to connect, 10 seconds to list its tools.
    #[error("the tool server did not respond in time")]
    Timeout,
    /// The server lists more than 1000 tools, or more than 100 pages of tools.
    #[error("the tool server lists more than 1000 tools")]
    TooMany,
}

impl McpClient {
    /// Connects to a server, and refreshes the tools when the server reports that they have
    /// changed, at most once in 5 seconds.
    ///
    /// `handler` handles the requests of the server to its client, as in `rmcp`; use `()` for none.
    ///
    /// A lost connection is not established again. The tools of the server are then not available,
    /// for the model and for approved calls, until the host connects again and builds a new agent.
    ///
    /// # Errors
    /// - [`McpError::Connect`] if the server cannot be reached or does not speak the protocol.
    /// - [`McpError::Timeout`] if the connection is not established within 30 seconds.
    pub async fn connect<S, T, E, A>(handler: S, transport: T) -> Result<Self, McpError>
    where
        S: Service<RoleClient>,
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let changed = Arc::new(Notify::new());
        let listener = ChangeListener { handler, changed: Arc::clone(&changed) };
        let running = timeout(CONNECT_TIMEOUT, listener.serve(transport)).await;
        let running = running.map_err(|_| McpError::Timeout)?;
        let running = running.map_err(|error| McpError::Connect(error.into()))?;
        Ok(McpClient(Arc::new_cyclic(|connection| {
            let refresh_task = tokio::spawn(refresh_on_change(Weak::clone(connection), changed));
            let mut connection = Connection::new(running.peer().clone());
            connection.service = Mutex::new(Some(Box::new(running)));
            connection.refresh_task = Some(AbortOnDropHandle::new(refresh_task));
            connection
        })))
    }

    /// Creates a client for a connection that the host keeps. The host must call
    /// [`refresh`](Self::refresh) when the server sends `tools/list_changed`.
    pub fn from_peer(peer: Peer<RoleClient>) -> Self {
        McpClient(Arc::new(Connection::new(peer)))
    }

    /// Returns the current tools of the server.
    ///
    /// Tools that cannot be called are skipped with a warning: a tool whose schema cannot be sent to
    /// a model, or with the name of another tool. An existing agent does not receive tools that the server adds
    /// later.
    ///
    /// # Errors
    /// [`McpError::List`], [`McpError::Timeout`] or [`McpError::TooMany`].
    pub async fn tools(&self) -> Result<Vec<McpTool>, McpError> {
        self.refresh().await?;
        let mut names = HashSet::new();
        let tools = self.0.tools().iter().map(|listed| McpTool::new(&self.0, listed)).collect();
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

    /// Requests the list of tools from the server, and updates the definitions of the tools that
    /// agents already have.
    ///
    /// # Errors
    /// [`McpError::List`], [`McpError::Timeout`] or [`McpError::TooMany`]. The previous list is
    /// kept.
    pub async fn refresh(&self) -> Result<(), McpError> {
        self.0.refresh().await
    }
}

impl Connection {
    fn new(peer: Peer<RoleClient>) -> Self {
        Connection {
            peer,
            tools: RwLock::new(Arc::new([])),
            refresh_lock: tokio::sync::Mutex::default(),
            service: Mutex::default(),
            refresh_task: None,
            closed_warning: Once::new(),
        }
    }

    fn peer(&self) -> &Peer<RoleClient> {
        &self.peer
    }

    fn tools(&self) -> Arc<[Arc<ListedTool>]> {
        Arc::clone(&self.tools.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the tool that the server listed last under this name. `None` if there is none, or if
    /// the connection is closed.
    fn tool(&self, name: &str) -> Option<Arc<ListedTool>> {
        if self.peer.is_transport_closed() {
            self.closed_warning
                .call_once(|| tracing::warn!("a tool server is gone, and its tools with it"));
            return None;
        }
        self.tools().iter().find(|listed| *listed.tool.name == *name).cloned()
    }

    /// Requests the list of tools. If another call requested it after this one had begun, that list
    /// is used, so that calls at the same time cause two lists and not one each.
    async fn refresh(&self) -> Result<(), McpError> {
        let called = Instant::now();
        let list = async {
            let mut last_begun = self.refresh_lock.lock().await;
            if last_begun.is_some_and(|last_begun| last_begun > called) {
                return Ok(());
            }
            let begun = Instant::now();
            let deadline = begun + LIST_TIMEOUT;
            let tools = timeout_at(deadline, self.list(deadline)).await;
            let tools = tools.unwrap_or(Err(McpError::Timeout))?;
            *self.tools.write().unwrap_or_else(PoisonError::into_inner) = tools.into();
            *last_begun = Some(begun);
            Ok(())
        };
        // A list that began before this call may end first.
        timeout(2 * LIST_TIMEOUT, list).await.unwrap_or(Err(McpError::Timeout))
    }

    /// Requests all pages of the list of tools. It does not use `list_tools` of the peer, because
    /// that method may return a cached list for as long as the server allows.
    async fn list(&self, deadline: Instant) -> Result<Vec<Arc<ListedTool>>, McpError> {
        let (mut tools, mut cursor) = (Vec::new(), None);
        for _ in 0..MAX_PAGES {
            let page = self.page(cursor, deadline).await;
            let page = page.map_err(|error| McpError::List(error.into()))?;
            tools.extend(page.tools);
            cursor = page.next_cursor;
            if tools.len() > MAX_TOOLS {
                return Err(McpError::TooMany);
            }
            if cursor.is_none() {
                return Ok(tools.into_iter().filter_map(ListedTool::new).map(Arc::new).collect());
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
        let response = self.peer.send_request_with_option(request, options).await?;
        match response.await_response().await? {
            ServerResult::ListToolsResult(page) => Ok(page),
            _ => Err(ServiceError::UnexpectedResponse),
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools = self.tools();
        let names: Vec<_> = tools.iter().map(|tool| log_text(&tool.tool.name)).collect();
        f.debug_struct("McpClient").field("tools", &names).finish_non_exhaustive()
    }
}

/// Refreshes the tools when the server reports a change. Reports within [`REFRESH_INTERVAL`] after a
/// refresh cause one refresh, at its end.
async fn refresh_on_change(connection: Weak<Connection>, changed: Arc<Notify>) {
    loop {
        changed.notified().await;
        let Some(connection) = connection.upgrade() else { return };
        if let Err(error) = connection.refresh().await {
            let error = error.to_string();
            let error = &*log_text(&error);
            tracing::warn!(error, "cannot refresh the tools of a server");
        }
        drop(connection);
        sleep(REFRESH_INTERVAL).await;
    }
}

/// A handler that reports changes of the tools, and forwards everything to the host's handler.
struct ChangeListener<S> {
    handler: S,
    changed: Arc<Notify>,
}

impl<S: Service<RoleClient>> Service<RoleClient> for ChangeListener<S> {
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

/// The maximum time to connect to a server. Some servers are downloaded first.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum time for a server to list its tools.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// The minimum time between two refreshes because of reported changes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The maximum number of pages that are read.
const MAX_PAGES: usize = 100;

/// The maximum number of tools of a server.
const MAX_TOOLS: usize = 1000;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
