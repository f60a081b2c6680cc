//! [`Connection`]: the connection for all operations, to one Redis or to the nodes of a Redis
//! Cluster.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
#[cfg(feature = "cluster")]
use redis::cluster::ClusterClient;
#[cfg(feature = "cluster")]
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    Client, Cmd, ConnectionInfo, ErrorKind, FromRedisValue, IntoConnectionInfo, Pipeline,
    RedisFuture, RedisResult, ServerErrorKind, Value,
};
use tokio::time::timeout;

use crate::error::RedisStoreError;
use crate::scripts::Invocation;

/// A connection that is opened again when it is lost, or when an operation on it has not ended in
/// time. Many operations use it at once.
pub(crate) struct Connection {
    /// The open connection, and how many it has replaced.
    current: Mutex<(OpenConnection, u64)>,
    /// Opens another connection. The client of a Redis Cluster opens its connections itself.
    client: Option<Client>,
}

/// An open connection, to one Redis or to the nodes of a Redis Cluster. A clone is the same connection.
#[derive(Clone)]
pub(crate) enum OpenConnection {
    Single(ConnectionManager),
    #[cfg(feature = "cluster")]
    Cluster(ClusterConnection),
}

impl Connection {
    pub(crate) async fn to_redis(info: ConnectionInfo) -> Result<Self, RedisStoreError> {
        let client = Client::open(info).map_err(RedisStoreError::redis)?;
        let connecting = ConnectionManager::new_with_config(client.clone(), manager_config());
        let open = OpenConnection::Single(with_timeout(connecting).await?);
        Ok(Connection { current: Mutex::new((open, 0)), client: Some(client) })
    }

    #[cfg(feature = "cluster")]
    pub(crate) async fn to_cluster(nodes: Vec<ConnectionInfo>) -> Result<Self, RedisStoreError> {
        let client = ClusterClient::builder(nodes)
            .connection_timeout(CONNECT_TIMEOUT)
            .response_timeout(OPERATION_TIMEOUT)
            .tcp_settings(tcp_settings())
            .build()
            .map_err(RedisStoreError::redis)?;
        let open = OpenConnection::Cluster(with_timeout(client.get_async_connection()).await?);
        Ok(Connection { current: Mutex::new((open, 0)), client: None })
    }

    /// Returns the open connection, and how many it has replaced.
    pub(crate) fn current(&self) -> (OpenConnection, u64) {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the connection that has replaced so many. The next operation opens the new one, and
    /// those that are under way end on the old one.
    ///
    /// A connection whose peer is gone can stay open for ever, if a proxy in between takes all bytes.
    fn replace(&self, replaced: u64) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(client) = self.client.clone().filter(|_| current.1 == replaced) else { return };
        if let Ok(manager) = ConnectionManager::new_lazy_with_config(client, manager_config()) {
            *current = (OpenConnection::Single(manager), replaced + 1);
        }
    }

    /// Runs a script, and runs it again if the connection was lost. Every script gives the same
    /// response when it is run again, but for the counts of those that delete a user.
    pub(crate) async fn run<T: FromRedisValue + Send>(
        &self,
        script: &Invocation<'_>,
    ) -> Result<T, RedisStoreError> {
        let (mut connection, replaced) = self.current();
        let run = async {
            match connection.run_once(script).await {
                Err(error) if error.is_io_error() || error.is_connection_dropped() => {
                    connection.run_once(script).await
                }
                result => result,
            }
        };
        let result = with_timeout(run).await;
        if let Err(RedisStoreError::Timeout(_)) = result {
            self.replace(replaced);
        }
        result
    }
}

impl OpenConnection {
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
    let info = url.into_connection_info().map_err(RedisStoreError::redis)?;
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
    match timeout(OPERATION_TIMEOUT, operation).await {
        Ok(result) => result.map_err(RedisStoreError::redis),
        Err(_) => Err(RedisStoreError::Timeout(OPERATION_TIMEOUT)),
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const OPERATION_TIMEOUT: Duration = Duration::from_secs(5);
