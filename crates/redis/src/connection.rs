//! [`Connection`]: the connection for all operations, to one Redis or to the nodes of a Redis
//! Cluster.

#[cfg(feature = "cluster")]
use std::io;
use std::pin::pin;
#[cfg(feature = "cluster")]
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
#[cfg(feature = "cluster")]
use redis::AsyncConnectionConfig;
#[cfg(feature = "cluster")]
use redis::aio::MultiplexedConnection;
use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
#[cfg(feature = "cluster")]
use redis::cluster::{ClusterClient, ClusterClientBuilder};
#[cfg(feature = "cluster")]
use redis::cluster_async::{ClusterConnection, Connect};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    Client, Cmd, ConnectionInfo, ErrorKind, FromRedisValue, IntoConnectionInfo, Pipeline,
    RedisError, RedisFuture, RedisResult, ServerErrorKind, Value,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use ui_message_stream::approval::store::FailureLog;

use crate::error::{RedisStoreError, is_unauthenticated};
use crate::scripts::Invocation;
#[cfg(feature = "cluster")]
use crate::scripts::is_repeatable;

/// A connection that is opened again when it is lost, and replaced when Redis replies only over
/// another one. Many operations use it at once.
pub(crate) struct Connection {
    client: RedisClient,
    /// The open connection, and how many it has replaced.
    current: Mutex<(OpenConnection, u64)>,
    /// Held by the operation that opens another connection. Holds from when on Redis may be asked
    /// again that has refused the password, and the pause before that.
    replacing: tokio::sync::Mutex<Option<(Instant, Duration)>>,
    /// Notified when the Redis of the old connection has become a replica.
    demoted: Arc<Notify>,
    failures: FailureLog,
}

/// Opens connections.
enum RedisClient {
    Single(Box<Client>),
    #[cfg(feature = "cluster")]
    Cluster(Box<ClusterClient>),
}

/// An open connection, to one Redis or to the nodes of a Redis Cluster. A clone is the same connection.
#[derive(Clone)]
pub(crate) enum OpenConnection {
    Single(ConnectionManager),
    #[cfg(feature = "cluster")]
    Cluster(ClusterConnection<NodeConnection>),
}

/// A connection to a node of a cluster.
///
/// If a connection is lost, a `ClusterConnection` sends again what has no reply. What must not be sent again has another
/// error here, and the next command finds that the connection is lost.
#[cfg(feature = "cluster")]
#[derive(Clone)]
pub(crate) struct NodeConnection {
    open: MultiplexedConnection,
    is_lost: Arc<AtomicBool>,
}

impl Connection {
    pub(crate) async fn to_redis(info: ConnectionInfo) -> Result<Self, RedisStoreError> {
        let client = Client::open(info).map_err(RedisStoreError::redis)?;
        Self::open(RedisClient::Single(Box::new(client))).await
    }

    #[cfg(feature = "cluster")]
    pub(crate) async fn to_cluster(nodes: Vec<ConnectionInfo>) -> Result<Self, RedisStoreError> {
        let client = cluster_client(nodes).build().map_err(RedisStoreError::redis)?;
        Self::open(RedisClient::Cluster(Box::new(client))).await
    }

    async fn open(client: RedisClient) -> Result<Self, RedisStoreError> {
        let open = with_timeout(async {
            let mut open = client.open().await?;
            match redis::cmd("PING").query_async::<()>(&mut open).await {
                // A connection without a password is opened also if Redis requires one.
                Err(error) if is_unauthenticated(&error) => Err(error),
                _ => Ok(open),
            }
        });
        let open = open.await?;
        let current = Mutex::new((open, 0));
        let demoted = Arc::default();
        let (replacing, failures) = Default::default();
        Ok(Connection { client, current, replacing, demoted, failures })
    }

    /// Whether all keys are on one node.
    pub(crate) fn is_single(&self) -> bool {
        matches!(self.client, RedisClient::Single(_))
    }

    /// Returns what is notified when the Redis of the old connection has become a replica.
    pub(crate) fn demoted(&self) -> Arc<Notify> {
        Arc::clone(&self.demoted)
    }

    /// Returns the open connection, and how many it has replaced.
    pub(crate) fn current(&self) -> (OpenConnection, u64) {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, (OpenConnection, u64)> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a script, and runs it again if the connection was lost or is replaced, unless it writes rows. Every script
    /// of the ledger gives the same response when it is run again, but for the counts of those that delete.
    ///
    /// The first copy may also arrive late, after what was run since. It changes nothing then, with these
    /// exceptions: it may insert an approval request of a deleted user who had no chats, or leave a place in a
    /// list that names too many approvals.
    pub(crate) async fn run<T: FromRedisValue + Send>(
        &self,
        script: &Invocation<'_>,
    ) -> Result<T, RedisStoreError> {
        let result = self.run_unlogged(script).await;
        result.inspect_err(|error| self.failures.log(error))
    }

    async fn run_unlogged<T: FromRedisValue + Send>(
        &self,
        script: &Invocation<'_>,
    ) -> Result<T, RedisStoreError> {
        let (connection, replaced) = self.current();
        let mut first: BoxFuture<'_, RedisResult<T>> = Box::pin(connection.run(script));
        if let Ok(result) = timeout(REPLY_PATIENCE, &mut first).await {
            return match result {
                Err(error) if self.needs_another(&error) => {
                    let second = Box::pin(self.run_at_another(replaced, script, error));
                    within(OPERATION_TIMEOUT.saturating_sub(REPLY_PATIENCE), second).await
                }
                result => result.map_err(RedisStoreError::redis),
            };
        }
        let second = async {
            let other = self.replace(replaced, script).await;
            if script.is_repeatable() {
                other.run(script).await
            } else {
                // Redis has replied over the other one: the reply is lost, unless it is on its way.
                sleep(REOPEN_INTERVAL).await;
                Err(not_repeated())
            }
        };
        // The first reply counts: the old connection may be slow and not lost.
        let operation = async {
            let mut second = pin!(second);
            tokio::select! {
                result = &mut first => match script.is_repeatable() {
                    true => if_lost(result, second).await,
                    false => result,
                },
                result = &mut second => if_lost(result, first).await,
            }
        };
        within(OPERATION_TIMEOUT.saturating_sub(REPLY_PATIENCE), operation).await
    }

    /// Opens another connection. When the node of the script replies over it, replaces the one that
    /// has replaced so many, and returns the new one.
    ///
    /// A connection whose peer is gone can stay open for ever, if a proxy in between takes all
    /// bytes. A `ClusterConnection` opens its connections again when they are closed, but not
    /// then. If the node hangs instead, the old connection is kept: a new `ClusterConnection` tries
    /// to reach the node again and again, and the operations on the other nodes wait for that. For
    /// the same reason, a connection to another node is not replaced while a node hangs.
    async fn replace(&self, replaced: u64, script: &Invocation<'_>) -> OpenConnection {
        loop {
            let replacing = self.replacing.lock().await;
            let (current, count) = self.current();
            if count != replaced {
                return current;
            }
            if let Ok(mut open) = Box::pin(self.client.open()).await
                && open.run_once::<Value>(&script.probe()).await.is_ok()
            {
                *self.lock() = (open.clone(), replaced + 1);
                return open;
            }
            drop(replacing);
            sleep(REOPEN_INTERVAL).await;
        }
    }

    /// Returns whether another connection to a single Redis may do what this one cannot: its Redis has
    /// become a replica, or has refused the password when the connection was opened again. A
    /// `ConnectionManager` returns that refusal for ever.
    ///
    /// Redis has changed nothing then. A `ClusterConnection` does the same itself.
    fn needs_another(&self, error: &RedisError) -> bool {
        self.is_single() && (is_of_replica(error) || is_unauthenticated(error))
    }

    /// Runs a script over another connection, because the one that has replaced so many has refused it
    /// with this error, which [asks for another](Self::needs_another). Unless the other one does the
    /// same, it replaces the first.
    ///
    /// The address may lead to the new primary, but a Redis that becomes a replica does not close
    /// its connections.
    async fn run_at_another<T: FromRedisValue>(
        &self,
        replaced: u64,
        script: &Invocation<'_>,
        error: RedisError,
    ) -> RedisResult<T> {
        let (mut replacing, is_first) = match self.replacing.try_lock() {
            Ok(replacing) => (replacing, true),
            Err(_) => (self.replacing.lock().await, false),
        };
        let (mut current, count) = self.current();
        if count != replaced {
            drop(replacing);
            return current.run_once(script).await;
        }
        // One of the operations that wait has tried for all of them.
        if !is_first || replacing.is_some_and(|(at, _)| Instant::now() < at) {
            return Err(error);
        }
        let (result, open) = match self.client.open().await {
            Ok(mut open) => (open.run_once(script).await, Some(open)),
            Err(error) => (Err(error), None),
        };
        let refused = result.as_ref().err();
        if refused.is_some_and(is_unauthenticated) {
            let pause = replacing.map_or(REOPEN_INTERVAL, |(_, pause)| MAX_PAUSE.min(pause * 2));
            *replacing = Some((Instant::now() + pause, pause));
        }
        let is_usable = refused.is_none_or(|error| !self.needs_another(error) && !is_lost(error));
        if let Some(open) = open.filter(|_| is_usable) {
            *self.lock() = (open, replaced + 1);
            *replacing = None;
            self.demoted.notify_one();
        }
        result
    }
}

/// Returns whether Redis has refused an operation because it is a replica.
fn is_of_replica(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => true,
        // The reply to a script before Redis 7.
        ErrorKind::Server(ServerErrorKind::ResponseError) => {
            error.detail().is_some_and(|detail| detail.contains("-READONLY "))
        }
        _ => false,
    }
}

/// Waits for the other copy of a script if the connection of this one was lost.
async fn if_lost<T>(
    result: RedisResult<T>,
    other: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    match result {
        Err(error) if is_lost(&error) => other.await,
        result => result,
    }
}

/// Returns whether Redis has not replied, because the connection was lost.
fn is_lost(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped()
}

impl RedisClient {
    async fn open(&self) -> RedisResult<OpenConnection> {
        match self {
            RedisClient::Single(client) => {
                let manager =
                    ConnectionManager::new_with_config(Client::clone(client), manager_config());
                manager.await.map(OpenConnection::Single)
            }
            #[cfg(feature = "cluster")]
            RedisClient::Cluster(client) => {
                client.get_async_generic_connection().await.map(OpenConnection::Cluster)
            }
        }
    }
}

/// The reply to what must not be sent again is lost.
fn not_repeated() -> RedisError {
    (ErrorKind::Client, "the connection was lost, and it is not known what has taken place").into()
}

#[cfg(feature = "cluster")]
impl Connect for NodeConnection {
    fn connect_with_config<'a, T>(info: T, config: AsyncConnectionConfig) -> RedisFuture<'a, Self>
    where
        T: IntoConnectionInfo + Send + 'a,
    {
        Box::pin(async move {
            let open = MultiplexedConnection::connect_with_config(info, config).await?;
            Ok(NodeConnection { open, is_lost: Arc::default() })
        })
    }
}

#[cfg(feature = "cluster")]
impl ConnectionLike for NodeConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            if self.is_lost.load(Ordering::Relaxed) {
                return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
            }
            let result = self.open.req_packed_command(command).await;
            let lost = result.as_ref().is_err_and(is_lost);
            if lost && !is_repeatable(command) {
                self.is_lost.store(true, Ordering::Relaxed);
                return Err(not_repeated());
            }
            result
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.open.req_packed_commands(pipeline, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.open.get_db()
    }
}

impl OpenConnection {
    /// Runs a script, and runs it again if the connection was lost meanwhile.
    async fn run<T: FromRedisValue>(mut self, script: &Invocation<'_>) -> RedisResult<T> {
        match self.run_once(script).await {
            Err(error) if is_lost(&error) && script.is_repeatable() => self.run_once(script).await,
            result => result,
        }
    }

    async fn run_once<T: FromRedisValue>(&mut self, script: &Invocation<'_>) -> RedisResult<T> {
        match script.by_digest().query_async(self).await {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                script.by_text().query_async(self).await
            }
            result => result,
        }
    }
}

impl ConnectionLike for OpenConnection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            OpenConnection::Single(connection) => connection.req_packed_command(command),
            #[cfg(feature = "cluster")]
            OpenConnection::Cluster(connection) => connection.req_packed_command(command),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            OpenConnection::Single(connection) => {
                connection.req_packed_commands(pipeline, offset, count)
            }
            #[cfg(feature = "cluster")]
            OpenConnection::Cluster(connection) => {
                connection.req_packed_commands(pipeline, offset, count)
            }
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            OpenConnection::Single(connection) => connection.get_db(),
            #[cfg(feature = "cluster")]
            OpenConnection::Cluster(connection) => connection.get_db(),
        }
    }
}

/// Returns the settings of connections to a Redis Cluster.
#[cfg(feature = "cluster")]
pub(crate) fn cluster_client(nodes: Vec<ConnectionInfo>) -> ClusterClientBuilder {
    ClusterClient::builder(nodes)
        .connection_timeout(CONNECT_TIMEOUT)
        .response_timeout(OPERATION_TIMEOUT)
        .tcp_settings(tcp_settings())
}

fn manager_config() -> ConnectionManagerConfig {
    // One attempt: the next operation that needs the connection makes the next attempt.
    // Responses have their own time limit, in `with_timeout`.
    ConnectionManagerConfig::new()
        .set_number_of_retries(0)
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
}

/// Parses the URL of a Redis.
pub(crate) fn parse_url(url: &str) -> Result<ConnectionInfo, RedisStoreError> {
    #[cfg(feature = "tls")]
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Without a default, a TLS connection panics if the application enables another one too. An
        // error means that the application has set its own meanwhile.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
    let info = url.into_connection_info().map_err(|error| RedisStoreError::Url(error.into()))?;
    Ok(info.set_tcp_settings(tcp_settings()))
}

/// Returns TCP settings that detect a lost peer within seconds. The defaults of the system take
/// hours.
fn tcp_settings() -> TcpSettings {
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE_INTERVAL).with_interval(KEEPALIVE_INTERVAL);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(OPERATION_TIMEOUT);
    settings
}

/// Waits for an operation for at most [`OPERATION_TIMEOUT`].
pub(crate) async fn with_timeout<T>(
    operation: impl Future<Output = RedisResult<T>> + Send,
) -> Result<T, RedisStoreError> {
    within(OPERATION_TIMEOUT, operation).await
}

/// Waits for an operation for what is left of [`OPERATION_TIMEOUT`].
async fn within<T>(
    left: Duration,
    operation: impl Future<Output = RedisResult<T>> + Send,
) -> Result<T, RedisStoreError> {
    match timeout(left, operation).await {
        Ok(result) => result.map_err(RedisStoreError::redis),
        Err(_) => Err(RedisStoreError::Timeout(OPERATION_TIMEOUT)),
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

/// How long an operation waits for its reply before it tries another connection. The rest of its
/// time must suffice to open one to a Redis Cluster of which some nodes do not reply.
const REPLY_PATIENCE: Duration = Duration::from_secs(2);

/// The pause before an operation tries again to open another connection.
const REOPEN_INTERVAL: Duration = Duration::from_millis(200);

/// The longest pause before Redis is asked again that has refused the password.
const MAX_PAUSE: Duration = Duration::from_secs(2);
