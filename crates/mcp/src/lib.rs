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
//! send them. If the definition differs, the approval is revoked. If the server does not respond, the
//! call fails with a text that names the server, and never runs. A server that changes what a tool does,
//! but not its definition, cannot be detected.
//!
//! The schema of a tool is sent to the model and is not evaluated here, because a server can write a
//! schema whose evaluation takes unbounded time. The server validates the inputs of its tools. A
//! server that reports changes of its tools all the time is queried once in 5 seconds.
//!
//! A server that goes away takes its tools with it, unless the client is made with
//! [`McpClient::reconnecting`]: it connects again until the server is back, and a call of a tool fails
//! meanwhile with a text that names the server. No call is sent twice: a call that was running when the
//! connection was lost fails, and what it did is not known. [`McpClient::is_connected`] is for the
//! readiness check of a host.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

mod connection;
mod input;
mod listed_tool;
mod result;
mod tool;

use std::collections::HashSet;
use std::sync::Arc;

use ::rmcp::service::Service;
use ::rmcp::transport::IntoTransport;
use ::rmcp::{Peer, RoleClient};

pub use ::rmcp;

pub use self::tool::McpTool;

use self::connection::{ChangeListener, Connection, reconnect};
use ui_message_stream::BoxError;

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
    /// `handler` handles the requests of the server to its client, as in `rmcp`, and answers what a
    /// tool asks for during a call; use `()` for none, which declines.
    ///
    /// The newest version of the protocol that both sides know is used: the first request is
    /// `server/discover`, and a server that refuses it gets `initialize`. Some older servers end at a
    /// first request that they do not know. For them, use [`reconnecting`](Self::reconnecting), which
    /// then begins a new connection with `initialize`, or a handler that
    /// [supports](Service::supported_protocol_versions) no version after 2025-11-25.
    ///
    /// A transport connects once, so a lost connection is not established again. The tools of the
    /// server are then not available, and an approved call fails, until the host connects
    /// again and builds a new agent. [`reconnecting`](Self::reconnecting) makes a new transport.
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
        let listener = ChangeListener::new(handler);
        let changed = Arc::clone(&listener.changed);
        let running = listener.connect(transport, listener.lifecycle()).await?;
        let handler = Some(Arc::clone(&listener.handler));
        let connection = Arc::new(Connection::new(running.peer().clone(), false, handler));
        // The task keeps the connection open.
        let kept = tokio::spawn(async move { drop(listener.hold(running).await) });
        connection.keep(kept, changed);
        Ok(McpClient(connection))
    }

    /// Connects to a server as [`connect`](Self::connect), and connects again when the connection is
    /// lost. `transport` is called for each connection.
    ///
    /// The first attempt begins a second after the connection was lost. The time between two attempts
    /// doubles up to 30 seconds; it is a second again after a connection that lasted longer than that.
    /// The tools of the new connection are listed before it is used. The log names the server, at
    /// warning level when it goes away and when an attempt fails, and at info level when it is back.
    ///
    /// While the server is away, the model is offered the tools that it listed last. Their calls are
    /// not sent, nor is an approval requested: the model and the user read which server is away. An
    /// approved call waits for up to 10 seconds, and then fails with the same text, because the
    /// definition of its tool cannot be [compared](crate). A call that was running fails, and is not
    /// sent again, because what it did is not known.
    ///
    /// Over HTTP there is no connection that could be lost: each request is sent, and it is the call
    /// that fails.
    ///
    /// ```no_run
    /// use tokio::process::Command;
    /// use rmcp::transport::TokioChildProcess;
    /// use ui_message_stream_mcp::McpClient;
    ///
    /// # async fn start() -> Result<(), Box<dyn std::error::Error>> {
    /// let start = || async { Ok(TokioChildProcess::new(Command::new("files-server"))?) };
    /// let files = McpClient::reconnecting((), start).await?;
    ///
    /// // For the readiness check of the host.
    /// if !files.is_connected() {
    ///     println!("the tool server {} is away", files.server_name());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`connect`](Self::connect), for the first connection. An error of `transport` is
    /// [`McpError::Connect`].
    pub async fn reconnecting<S, F, Fut, T, E, A>(
        handler: S,
        mut transport: F,
    ) -> Result<Self, McpError>
    where
        S: Service<RoleClient>,
        F: FnMut() -> Fut + Send + 'static,
        Fut: Future<Output = Result<T, BoxError>> + Send + 'static,
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
        A: 'static,
    {
        let listener = ChangeListener::new(handler);
        let changed = Arc::clone(&listener.changed);
        let running = listener.connect_with(&mut transport).await?;
        let handler = Some(Arc::clone(&listener.handler));
        let connection = Arc::new(Connection::new(running.peer().clone(), true, handler));
        let weak = Arc::downgrade(&connection);
        connection.keep(tokio::spawn(reconnect(weak, listener, transport, running)), changed);
        Ok(McpClient(connection))
    }

    /// Creates a client for a connection that the host keeps. The host must call
    /// [`refresh`](Self::refresh) when the server sends `tools/list_changed`.
    pub fn from_peer(peer: Peer<RoleClient>) -> Self {
        McpClient(Arc::new(Connection::new(peer, false, None)))
    }

    /// Returns the name that the server gave itself when it was connected first, by which the log and
    /// the texts of failed calls name it.
    pub fn server_name(&self) -> &str {
        &self.0.server
    }

    /// Returns whether the connection to the server is open, for the readiness check of a host.
    ///
    /// A connection over HTTP stays open while the server does not answer:
    /// [`refresh`](Self::refresh) asks the server.
    pub fn is_connected(&self) -> bool {
        self.0.peer().is_some()
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

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
