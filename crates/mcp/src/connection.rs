//! [`Connection`]: the connection to a server, how it begins, and how it is replaced when it is lost.

use std::borrow::Cow;
use std::fmt;
use std::future::pending;
use std::sync::{Arc, Once, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use ::rmcp::model::{
    ClientConfig, ClientRequest, ClientResult, Cursor, ErrorData, ListToolsRequest,
    PaginatedRequestParams, ProtocolVersion, ServerNotification, ServerRequest, ServerResult,
    SubscriptionFilter,
};
use ::rmcp::service::{
    ClientLifecycleMode, ClientServiceExt, DynService, NotificationContext, PeerRequestOptions,
    QuitReason, RequestContext, RunningService,
};
use ::rmcp::transport::IntoTransport;
use ::rmcp::{Peer, RoleClient, Service, ServiceError};
use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_util::task::AbortOnDropHandle;

use super::McpError;
use super::listed_tool::ListedTool;
use ui_message_stream::id::{log_causes, log_text};
use ui_message_stream::{BoxError, UserText};

/// A connection to a server, and the tools that the server listed last.
pub(super) struct Connection {
    /// The name that the server gave itself.
    pub(super) server: Box<str>,
    /// The connection, or the one that was lost last.
    peer: watch::Sender<Peer<RoleClient>>,
    /// Whether a lost connection is replaced.
    reconnects: bool,
    /// Answers what a server asks for during a call. `None` if the host keeps the connection.
    pub(super) handler: Option<Arc<dyn DynService<RoleClient>>>,
    tools: RwLock<Arc<[Arc<ListedTool>]>>,
    /// Serializes refreshes, so that an older list never replaces a newer one. Holds the time at
    /// which the request of the last list began.
    refresh_lock: tokio::sync::Mutex<Option<Instant>>,
    /// They keep the connection open and the tools up to date. Empty if the host keeps the
    /// connection.
    tasks: OnceLock<[AbortOnDropHandle<()>; 2]>,
    /// Ensures that the warning about a closed connection is logged once.
    closed_warning: Once,
}

impl Connection {
    pub(super) fn new(
        peer: Peer<RoleClient>,
        reconnects: bool,
        handler: Option<Arc<dyn DynService<RoleClient>>>,
    ) -> Self {
        Connection {
            handler,
            server: server_name(&peer),
            peer: watch::Sender::new(peer),
            reconnects,
            tools: RwLock::new(Arc::new([])),
            refresh_lock: tokio::sync::Mutex::default(),
            tasks: OnceLock::new(),
            closed_warning: Once::new(),
        }
    }

    /// Keeps the task that holds the connection, and refreshes the tools when the server reports a
    /// change, until this is dropped.
    pub(super) fn keep(self: &Arc<Self>, kept: JoinHandle<()>, changed: Arc<Notify>) {
        let refreshed = tokio::spawn(refresh_on_change(Arc::downgrade(self), changed));
        let _ = self.tasks.set([kept, refreshed].map(AbortOnDropHandle::new));
    }

    /// Returns the connection, or `None` if it is closed.
    pub(super) fn peer(&self) -> Option<Peer<RoleClient>> {
        Some(self.peer.borrow().clone()).filter(|peer| !peer.is_transport_closed())
    }

    /// Returns this text with the name of the server, for the model and the user.
    pub(super) fn named(&self, text: UserText) -> String {
        format!("{}: {text}", self.server)
    }

    /// Logs an error of the server.
    pub(super) fn warn(&self, error: &(dyn std::error::Error + 'static), what: &str) {
        let server = &*log_text(&self.server);
        tracing::warn!(server, error = log_causes(error), "{what}");
    }

    pub(super) fn tools(&self) -> Arc<[Arc<ListedTool>]> {
        Arc::clone(&self.tools.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the tool that the server listed last under this name. `None` if there is none, or if
    /// the connection is closed and is not made again.
    pub(super) fn tool(&self, name: &str) -> Option<Arc<ListedTool>> {
        if !self.reconnects && self.peer().is_none() {
            let server = &*log_text(&self.server);
            self.closed_warning.call_once(|| {
                tracing::warn!(server, "a tool server is gone, and its tools with it")
            });
            return None;
        }
        self.tools().iter().find(|listed| *listed.tool.name == *name).cloned()
    }

    /// Requests the list of tools. If another call requested it after this one had begun, that list
    /// is used, so that calls at the same time cause two lists and not one each.
    ///
    /// If the connection is lost and will be replaced, this waits for the new one.
    pub(super) async fn refresh(&self) -> Result<(), McpError> {
        let called = Instant::now();
        if self.reconnects && self.peer().is_none() {
            let mut peer = self.peer.subscribe();
            let is_back = peer.wait_for(|peer| !peer.is_transport_closed());
            timeout(LIST_TIMEOUT, is_back).await.map(drop).map_err(|_| McpError::Timeout)?;
        }
        let list = async {
            let mut last_begun = self.refresh_lock.lock().await;
            if last_begun.is_some_and(|last_begun| last_begun > called) {
                return Ok(());
            }
            let peer = self.peer.borrow().clone();
            self.update(&peer, &mut last_begun).await
        };
        // A list that began before this call may end first.
        timeout(2 * LIST_TIMEOUT, list).await.unwrap_or(Err(McpError::Timeout))
    }

    /// Lists the tools of a new connection, and replaces the lost one by it. So no call is sent to a
    /// server whose tools are not known.
    async fn replace(&self, peer: &Peer<RoleClient>) -> Result<(), McpError> {
        let mut last_begun = self.refresh_lock.lock().await;
        self.update(peer, &mut last_begun).await?;
        self.peer.send_replace(peer.clone());
        Ok(())
    }

    /// Requests the list of tools, and stores it.
    async fn update(
        &self,
        peer: &Peer<RoleClient>,
        last_begun: &mut Option<Instant>,
    ) -> Result<(), McpError> {
        let begun = Instant::now();
        let deadline = begun + LIST_TIMEOUT;
        let tools = timeout_at(deadline, list(peer, deadline)).await;
        let tools = tools.unwrap_or(Err(McpError::Timeout))?;
        *self.tools.write().unwrap_or_else(PoisonError::into_inner) = tools.into();
        *last_begun = Some(begun);
        Ok(())
    }
}

/// Requests all pages of the list of tools. It does not use `list_tools` of the peer, because
/// that method may return a cached list for as long as the server allows.
async fn list(
    peer: &Peer<RoleClient>,
    deadline: Instant,
) -> Result<Vec<Arc<ListedTool>>, McpError> {
    let mut tools = Vec::new();
    let mut cursor = None;
    for _ in 0..MAX_PAGES {
        let page = page(peer, cursor, deadline).await;
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
    peer: &Peer<RoleClient>,
    cursor: Option<Cursor>,
    deadline: Instant,
) -> Result<::rmcp::model::ListToolsResult, ServiceError> {
    let params = PaginatedRequestParams::default().with_cursor(cursor);
    let request = ListToolsRequest::with_param(params);
    let options =
        PeerRequestOptions::with_timeout(deadline.saturating_duration_since(Instant::now()));
    let request = ClientRequest::ListToolsRequest(request);
    let response = peer.send_request_with_option(request, options).await?;
    match response.await_response().await? {
        ServerResult::ListToolsResult(page) => Ok(page),
        _ => Err(ServiceError::UnexpectedResponse),
    }
}

/// Returns the name that the server gave itself, without control characters.
fn server_name(peer: &Peer<RoleClient>) -> Box<str> {
    let info = peer.peer_info();
    let name = info.as_deref().and_then(|info| Some(&*info.server_info.as_ref()?.name));
    let name: String = name.into_iter().flat_map(str::chars).filter(|c| !c.is_control()).collect();
    match name.trim() {
        "" => "unnamed".into(),
        name => name.chars().take(MAX_SERVER_NAME_CHARS).collect::<String>().into(),
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tools = self.tools();
        let names: Vec<_> = tools.iter().map(|tool| log_text(&tool.tool.name)).collect();
        f.debug_struct("McpClient")
            .field("server", &log_text(&self.server))
            .field("tools", &names)
            .finish_non_exhaustive()
    }
}

/// Refreshes the tools when the server reports a change. Reports within [`REFRESH_INTERVAL`] after a
/// refresh cause one refresh, at its end.
async fn refresh_on_change(connection: Weak<Connection>, changed: Arc<Notify>) {
    loop {
        changed.notified().await;
        let Some(connection) = connection.upgrade() else { return };
        if let Err(error) = connection.refresh().await {
            connection.warn(&error, "cannot refresh the tools of a server");
        }
        drop(connection);
        sleep(REFRESH_INTERVAL).await;
    }
}

/// Holds a connection, and replaces it when it is lost.
pub(super) async fn reconnect<F, Fut, T, E, A>(
    connection: Weak<Connection>,
    listener: ChangeListener,
    mut transport: F,
    mut running: Running,
) where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T, BoxError>>,
    T: IntoTransport<RoleClient, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    let mut delay = FIRST_DELAY;
    loop {
        let connected = Instant::now();
        let ended = listener.hold(running).await;
        // A server that ends at once again and again is started less and less often.
        if connected.elapsed() > LONGEST_DELAY {
            delay = FIRST_DELAY;
        }
        if let Some(lost) = connection.upgrade() {
            let server = &*log_text(&lost.server);
            tracing::warn!(server, ?ended, "a tool server is away, and will be connected again");
        }
        running = loop {
            sleep(delay).await;
            delay = LONGEST_DELAY.min(2 * delay);
            let Some(lost) = connection.upgrade() else { return };
            let replaced = async {
                let running = listener.connect_with(&mut transport).await?;
                lost.replace(running.peer()).await?;
                Ok::<_, McpError>(running)
            };
            match replaced.await {
                Ok(running) => {
                    let server = &*log_text(&lost.server);
                    tracing::info!(server, "a tool server is back");
                    break running;
                }
                Err(error) => lost.warn(&error, "a tool server is away, and cannot be connected"),
            }
        };
    }
}

/// A handler that reports changes of the tools, and forwards everything to the host's handler.
#[derive(Clone)]
pub(super) struct ChangeListener {
    pub(super) handler: Arc<dyn DynService<RoleClient>>,
    pub(super) changed: Arc<Notify>,
}

/// An open connection.
pub(super) type Running = RunningService<RoleClient, ChangeListener>;

impl ChangeListener {
    pub(super) fn new(handler: impl Service<RoleClient>) -> Self {
        ChangeListener { handler: Arc::new(handler), changed: Arc::default() }
    }

    /// Connects with this handler.
    pub(super) async fn connect<T, E, A>(
        &self,
        transport: T,
        lifecycle: ClientLifecycleMode,
    ) -> Result<Running, McpError>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let running = self.clone().serve_with_lifecycle(transport, lifecycle);
        let running = timeout(CONNECT_TIMEOUT, running).await;
        let running = running.map_err(|_| McpError::Timeout)?;
        running.map_err(|error| McpError::Connect(error.into()))
    }

    /// Returns how a connection begins: with `server/discover` if the handler knows a version that
    /// has it, and with `initialize` if the server does not.
    pub(super) fn lifecycle(&self) -> ClientLifecycleMode {
        let versions = self.handler.supported_protocol_versions();
        let has_discover = |version: &&ProtocolVersion| !version.has_initialize();
        // The last one is the newest.
        let preferred: Vec<_> = versions.iter().rev().filter(has_discover).cloned().collect();
        if preferred.is_empty() {
            ClientLifecycleMode::Initialize
        } else {
            ClientLifecycleMode::Auto { preferred_versions: preferred, legacy_version: None }
        }
    }

    /// Keeps a connection open until it ends, and listens to changes of the tools.
    pub(super) async fn hold(&self, running: Running) -> Result<QuitReason, JoinError> {
        let peer = running.peer().clone();
        tokio::select! {
            ended = running.waiting() => ended,
            () = self.listen(&peer) => unreachable!("it never ends"),
        }
    }

    /// Subscribes to changes of the tools. A server with `initialize` sends them to each client.
    async fn listen(&self, peer: &Peer<RoleClient>) {
        let info = peer.peer_info();
        let is_offered = info.is_some_and(|info| {
            let tools = info.capabilities.tools.as_ref();
            !info.protocol_version.has_initialize()
                && tools.is_some_and(|tools| tools.list_changed == Some(true))
        });
        let filter = || SubscriptionFilter::builder().tools_list_changed().build();
        while is_offered && let Ok(mut subscription) = peer.listen(filter()).await {
            while let Ok(Some(_)) = subscription.next().await {
                self.changed.notify_one();
            }
            sleep(REFRESH_INTERVAL).await;
            // What changed meanwhile was not reported.
            self.changed.notify_one();
        }
        pending().await
    }

    /// Makes a transport, and connects.
    pub(super) async fn connect_with<F, Fut, T, E, A>(
        &self,
        transport: &mut F,
    ) -> Result<Running, McpError>
    where
        F: FnMut() -> Fut,
        Fut: Future<Output = Result<T, BoxError>>,
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let mut transport = async || {
            let transport = timeout(CONNECT_TIMEOUT, transport()).await;
            transport.map_err(|_| McpError::Timeout)?.map_err(McpError::Connect)
        };
        let lifecycle = self.lifecycle();
        let has_fallback = lifecycle != ClientLifecycleMode::Initialize;
        match self.connect(transport().await?, lifecycle).await {
            // Some older servers end at a first request that they do not know.
            Err(McpError::Connect(_)) if has_fallback => {
                self.connect(transport().await?, ClientLifecycleMode::Initialize).await
            }
            connected => connected,
        }
    }
}

impl Service<RoleClient> for ChangeListener {
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

/// The time between the loss of a connection and the first attempt to replace it.
const FIRST_DELAY: Duration = Duration::from_secs(1);

/// The longest time between two attempts.
const LONGEST_DELAY: Duration = Duration::from_secs(30);

/// The minimum time between two refreshes because of reported changes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// The maximum number of pages that are read.
const MAX_PAGES: usize = 100;

/// The maximum length of the name of a server, as the model and the user read it.
const MAX_SERVER_NAME_CHARS: usize = 100;

/// The maximum number of tools of a server.
const MAX_TOOLS: usize = 1000;
