//! [`RedisOptions`]: how a [`RedisStore`] uses Redis.

use std::sync::Arc;

use redis::ConnectionInfo;
#[cfg(feature = "cluster")]
use ui_message_stream::approval::store::RecordList;

#[cfg(feature = "chat")]
use crate::connection::with_timeout;
use crate::connection::{Connection, parse_url};
use crate::error::RedisStoreError;
#[cfg(feature = "chat")]
use crate::follow::Follower;
#[cfg(feature = "chat")]
use crate::hints::Hints;
use crate::keys::Keys;
#[cfg(any(feature = "chat", feature = "cluster"))]
use crate::scripts;
use crate::{Inner, RedisStore, warnings};

/// How a [`RedisStore`] uses Redis.
///
/// ```no_run
/// use ui_message_stream_redis::RedisOptions;
///
/// # async fn connect() -> Result<(), ui_message_stream_redis::RedisStoreError> {
/// // This Redis is configured with `appendonly yes` and `appendfsync always`.
/// let options = RedisOptions::new().with_prefix("shop:").assume_durable();
/// let store = options.connect("redis://127.0.0.1/").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RedisOptions {
    prefix: Box<str>,
    is_durable: bool,
}

impl RedisOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        RedisOptions { prefix: DEFAULT_PREFIX.into(), is_durable: false }
    }

    /// Sets the prefix of all keys, which must not hold braces, nor be empty in Redis Cluster. The
    /// default is `ui-message-stream:`.
    ///
    /// Stores with different prefixes in one Redis are independent.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Declares that Redis never loses a write that it has confirmed: `appendonly yes`,
    /// `appendfsync always`, and no failover to a replica. An approval that was requested before a
    /// restart of Redis is then executed after it.
    ///
    /// **If this is not true, an approved call may be executed a second time** after a restart. By
    /// default, approvals of tools that are not idempotent are refused if Redis was restarted since
    /// the request. See [`RedisStore`](RedisStore#a-restart-of-redis-voids-open-approval-requests).
    #[must_use]
    pub fn assume_durable(mut self) -> Self {
        self.is_durable = true;
        self
    }

    /// Connects to the Redis at a URL such as `redis://user:password@host:6379/0`. With the feature
    /// `tls`, the URL `rediss://…` connects with TLS and verifies the certificate with the certificates
    /// of the system.
    ///
    /// The connection attempt fails after one second, and in any case after five seconds. Then the
    /// settings of Redis are read, which takes at most five more seconds. A warning is logged if
    /// Redis may evict keys or lose writes, and if the settings cannot be read.
    ///
    /// # Errors
    /// - [`RedisStoreError::Prefix`] if the prefix holds a brace, or is empty in Redis Cluster.
    /// - [`RedisStoreError::Url`] if `url` is not the URL of a Redis.
    /// - [`RedisStoreError::Unreachable`] if there is no connection in time.
    /// - [`RedisStoreError::OtherChats`] if the chats have the format of another version.
    /// - The other errors if Redis refuses the connection.
    pub async fn connect(self, url: &str) -> Result<RedisStore, RedisStoreError> {
        let info = parse_url(url)?;
        let keys = self.keys(false)?;
        let connection = Connection::to_redis(info.clone()).await;
        let nodes = vec![info];
        let connection = connection.map_err(|error| error.at(&nodes))?;
        self.store(connection, keys, nodes, false).await
    }

    /// Connects to a Redis Cluster. `urls` are those of some of its nodes, from which the others
    /// are found. All have the same user and password.
    ///
    /// ```no_run
    /// use ui_message_stream_redis::RedisOptions;
    ///
    /// # async fn connect() -> Result<(), ui_message_stream_redis::RedisStoreError> {
    /// let nodes = ["redis://10.0.0.1/", "redis://10.0.0.2/"];
    /// let store = RedisOptions::new().with_prefix("shop:").connect_cluster(nodes).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`connect`](Self::connect), and [`RedisStoreError::OlderApprovals`] if the approvals have the format of an
    /// earlier version.
    #[cfg(feature = "cluster")]
    pub async fn connect_cluster(
        self,
        urls: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<RedisStore, RedisStoreError> {
        let nodes = urls.into_iter().map(|url| parse_url(url.as_ref()));
        let nodes: Vec<ConnectionInfo> = nodes.collect::<Result<_, _>>()?;
        let keys = self.keys(true)?;
        let connection = Connection::to_cluster(nodes.clone()).await;
        let connection = connection.map_err(|error| error.at(&nodes))?;
        refuse_older_approvals(&connection, &keys).await?;
        self.store(connection, keys, nodes, true).await
    }

    fn keys(&self, is_cluster: bool) -> Result<Keys, RedisStoreError> {
        match self.prefix.contains(['{', '}']) || is_cluster && self.prefix.is_empty() {
            true => Err(RedisStoreError::Prefix),
            false => Ok(Keys::new(&self.prefix, is_cluster)),
        }
    }

    async fn store(
        self,
        connection: Connection,
        keys: Keys,
        #[cfg_attr(not(feature = "chat"), allow(unused_variables))] nodes: Vec<ConnectionInfo>,
        #[cfg_attr(not(feature = "chat"), allow(unused_variables))] is_cluster: bool,
    ) -> Result<RedisStore, RedisStoreError> {
        #[cfg(feature = "chat")]
        refuse_other_chats(&connection, &keys).await?;
        warnings::check(&connection, self.is_durable).await;
        #[cfg(feature = "chat")]
        let hints = Arc::new(Hints::default());
        #[cfg(feature = "chat")]
        let is_of_shards = is_cluster && can_publish_to_shard(&connection, &keys).await?;
        #[cfg(feature = "chat")]
        let follower =
            Follower::new(Arc::clone(&hints), nodes, is_of_shards, connection.demoted())?;
        let is_durable = self.is_durable;
        let inner = Inner {
            connection,
            keys,
            is_durable,
            #[cfg(feature = "chat")]
            hints,
            #[cfg(feature = "chat")]
            follower,
            #[cfg(feature = "chat")]
            batch: Default::default(),
            #[cfg(feature = "chat")]
            clock: Default::default(),
            #[cfg(feature = "chat")]
            known: Default::default(),
        };
        Ok(RedisStore { inner: Arc::new(inner) })
    }
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns whether the changes of logs can be published to the channels of a shard, and logs a warning if not.
#[cfg(feature = "chat")]
async fn can_publish_to_shard(
    connection: &Connection,
    keys: &Keys,
) -> Result<bool, RedisStoreError> {
    let channel = keys.partition("any").channel_of_lists();
    let error: String = connection.run(&scripts::CAN_PUBLISH_TO_SHARD.key(channel)).await?;
    if !error.is_empty() {
        tracing::warn!(
            error,
            "each change of a chat is published to all nodes of the Redis Cluster, which costs each of them: \
             use Redis 7 or later, permit its user +spublish, +ssubscribe and +sunsubscribe, and restart all servers"
        );
    }
    Ok(error.is_empty())
}

/// Fails if the chats have another format. The number of the format is stored, unless no store with it was opened before.
#[cfg(feature = "chat")]
async fn refuse_other_chats(connection: &Connection, keys: &Keys) -> Result<(), RedisStoreError> {
    let (mut open, _) = connection.current();
    let format = keys.shared("format");
    let mut stored = redis::cmd("GET");
    stored.arg(&format);
    match with_timeout(stored.query_async::<Option<u64>>(&mut open)).await? {
        Some(CHAT_FORMAT) => return Ok(()),
        Some(format) => return Err(RedisStoreError::OtherChats { format, known: CHAT_FORMAT }),
        None => {}
    }
    let mut older = redis::cmd("KEYS");
    older.arg(keys.pattern_of_older_chats());
    match with_timeout(older.query_async::<Vec<String>>(&mut open)).await {
        Ok(older) if !older.is_empty() => {
            return Err(RedisStoreError::OtherChats { format: 1, known: CHAT_FORMAT });
        }
        Ok(_) => {}
        // The next start asks again.
        Err(RedisStoreError::Refused { .. }) => return Ok(()),
        Err(error) => return Err(error),
    }
    let mut store = redis::cmd("SET");
    store.arg(&format).arg(CHAT_FORMAT);
    let _ = with_timeout(store.query_async::<()>(&mut open)).await;
    Ok(())
}

#[cfg(feature = "cluster")]
async fn refuse_older_approvals(
    connection: &Connection,
    keys: &Keys,
) -> Result<(), RedisStoreError> {
    let older = keys.older_ledger();
    let mut find = scripts::LEDGER_OLDER.key(older.clock());
    find.key(older.list(&RecordList::pending())).key(older.list(&RecordList::to_notify()));
    for kind in ["record:", "list:", "all:", "use:"] {
        find.arg(keys.shared(kind));
    }
    if connection.run(&find).await? {
        Err(RedisStoreError::OlderApprovals(keys.shared("").into()))
    } else {
        Ok(())
    }
}

/// The format in which chats are stored.
#[cfg(feature = "chat")]
const CHAT_FORMAT: u64 = 2;

const DEFAULT_PREFIX: &str = "ui-message-stream:";
