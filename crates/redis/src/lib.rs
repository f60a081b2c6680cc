//! [`RedisStore`]: the chats, with their live responses, and the approvals of several servers in Redis.

#![cfg_attr(docsrs, feature(doc_cfg))]
// Without the feature, what only the log store uses is not used.
#![cfg_attr(not(feature = "chat"), allow(dead_code))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

#[cfg(feature = "chat")]
mod batch;
#[cfg(feature = "chat")]
mod clock;
mod connection;
mod error;
#[cfg(feature = "chat")]
mod follow;
mod guard;
#[cfg(feature = "chat")]
mod hints;
mod keys;
mod ledger;
mod options;
mod places;
#[cfg(feature = "chat")]
mod rows;
mod scripts;
mod users;
mod warnings;

use std::fmt;
use std::sync::Arc;

#[cfg(feature = "chat")]
use ui_message_stream_chat::store::rows::KnownLogs;

pub use self::error::RedisStoreError;
pub use self::options::RedisOptions;
pub use self::users::DeletedUser;

#[cfg(feature = "chat")]
use self::batch::Batch;
#[cfg(feature = "chat")]
use self::clock::Clock;
use self::connection::Connection;
#[cfg(feature = "chat")]
use self::follow::Follower;
#[cfg(feature = "chat")]
use self::hints::Hints;
use self::keys::Keys;

/// The logs of chats and the approvals of all servers that share a Redis.
///
/// A clone is cheap and shares everything with the original. It implements
/// [`LogStore`](ui_message_stream_chat::store::LogStore),
/// [`LedgerStore`](ui_message_stream::approval::store::LedgerStore) and
/// [`ReplayGuard`](ui_message_stream::approval::store::ReplayGuard):
///
/// ```no_run
/// use std::sync::Arc;
///
/// use ui_message_stream::approval::{Approvals, KeyRing, Toolbox};
/// use ui_message_stream_chat::{ChatAgent, ChatServer};
/// use ui_message_stream_redis::RedisStore;
///
/// # async fn server(
/// #     agent: impl ChatAgent,
/// #     tools: impl Toolbox,
/// #     secret: &[u8],
/// # ) -> Result<ChatServer, Box<dyn std::error::Error>> {
/// let store = Arc::new(RedisStore::connect("redis://127.0.0.1/").await?);
/// // Servers that share a store must share the key, too.
/// let keys = KeyRing::new(1, secret)?;
/// let approvals = Approvals::new(tools).with_keys(keys).with_ledger(store.clone());
/// let server = ChatServer::new(agent, approvals).with_store(store);
/// # Ok(server)
/// # }
/// ```
///
/// It needs Redis 5 or later (it is tested with 7). For Redis Cluster, enable the feature `cluster`
/// and call `RedisOptions::connect_cluster`.
///
/// # What is lost when Redis fails
///
/// | Configuration of Redis | Lost if the process is killed | Lost if the power fails |
/// |---|---|---|
/// | `appendonly yes`, `appendfsync always` | nothing | nothing |
/// | `appendonly yes`, `appendfsync everysec` | nothing, or up to two seconds | up to two seconds |
/// | snapshots only (the default) | all since the last snapshot | all since the last snapshot |
/// | no persistence | everything | everything |
///
/// The table holds only if the disk has written what it has confirmed. After a failover to a
/// replica, everything is lost that the replica had not received yet, in all four configurations.
/// [`connect`](Self::connect) logs a warning for each row but the first.
///
/// - A *chat* lacks what was appended last, or is missing. A *live response* ends with an error.
/// - If an *approval request* is lost, its answer is rejected, and the user must be asked again.
/// - If an *answer* is lost, its approval request is pending again. The next section says why the
///   call is not executed a second time.
///
/// In Redis Cluster, the lists of approvals for
/// [audiences](ui_message_stream::approval::Approvals::with_audiences), for expiry and for notifiers may be on
/// another node than the approvals. If that node loses writes, such a list may lack approvals of the other
/// nodes: they are not in the inbox of the audience, expire without an event, or are not delivered. They can
/// still be decided in their chats.
///
/// If Redis evicts keys because its memory is full, chats, records and outcomes are lost, or parts of them. Answers
/// to lost records are rejected, and no tool is executed twice. `maxmemory-policy` should still be
/// `noeviction`. If it is not, [`connect`](Self::connect) logs a warning.
///
/// # A restart of Redis voids open approval requests
/// Each approval request stores which process of Redis it was inserted into, and which history of
/// replication. If an approval arrives when either is another one, Redis was restarted or has
/// failed over, and may have lost that the call was executed before. The call is then not executed,
/// and its outcome is [unknown](ui_message_stream::UserText::OutcomeUnknown). The user can deny
/// the call, or be asked again in a new request. This holds for every request that is open when
/// Redis restarts, also if nothing was lost. It also holds if the first replica connects, with
/// which Redis begins a new history. In Redis Cluster it holds for the requests of the users whose approvals
/// are on the node that restarts, or in a slot that moves to another node.
///
/// It does not hold for tools that are
/// [idempotent](ui_message_stream::approval::ToolInfo::idempotent), and if the host
/// [declares](RedisOptions::assume_durable) that Redis loses nothing.
///
/// # As a guard of stateless approvals
/// The store is a [`ReplayGuard`](ui_message_stream::approval::store::ReplayGuard), too. Then there
/// are no records: Redis holds one key for each approval that was used, and **a lost key lets its
/// approval execute the call again** until the approval expires. A key is lost as in the table
/// above, by a failover, and also if Redis evicts it or is restarted without persistence. So a
/// guard needs `maxmemory-policy noeviction` and the configuration of the first row, or tools that
/// may be executed twice.
///
/// # The clock
/// The time is Redis's own `TIME`. If Redis's clock is set back by up to a minute, the time of the
/// ledger does not go back behind the last write (in Redis Cluster, the last write in the same bucket), and chats that
/// are then written stand below those that were written before. Of two loads without a write
/// in between, the second may have the earlier time. If the clock is set back by more, it was wrong
/// before, and the store follows it. Otherwise no lease would end during that time. In Redis
/// Cluster, each node has a clock of its own: keep them in step, for example with NTP.
///
/// # When Redis is not available
/// Each call of Redis ends within five seconds, if necessary with an error. An append to a live run is one call,
/// which is a script. Other operations read first and then write what they have decided, and again if something has
/// changed meanwhile. A log is read in parts of 512 KiB, each of which is a call.
///
/// A lost connection is opened again, and a call of the ledger, or one that only reads, is sent a second time and
/// takes effect once. A call that writes a chat is not sent again: it fails, and the server looks at the log. If
/// a call has no reply after two seconds, and Redis replies over another connection, that one replaces the first.
/// If a single Redis refuses a write because it has become a replica, the store opens another connection, which
/// may lead to the new primary, and sends the call again over that one. Until then it reads what the replica has.
///
/// If Redis refuses the password when a connection is opened again, the store tries again with pauses
/// of up to two seconds. Each cause of failures is logged at most once in 30 seconds.
///
/// [`ping`](Self::ping) is a check for a load balancer. For TLS (`rediss://`), enable the feature
/// `tls`.
///
/// # Connections
/// One connection (in Redis Cluster, one to each node) serves all operations. A second one (with shard channels, again
/// one to each node) is opened when a reader waits for a log: it receives a message for each change of the logs that
/// readers of this process wait for. No command waits inside Redis. While the second connection is away (with shard
/// channels, also that to one node), readers look twice a second. So they do if the user of Redis may not use the
/// channels: its ACL needs `&ui-message-stream:*`, with the prefix of the keys.
///
/// The message of an append has its entries, if they have no more than 4 KiB. So **who may subscribe these channels
/// reads chats, and who may publish to them can show text to readers**: permit them only to the servers. A reader that
/// gets no message, or misses one, reads the log.
///
/// In Redis Cluster, the channels are shard channels, of the node that has the chat. Before Redis 7, and for a user
/// without the permission for `SPUBLISH` when the store connects, they are ordinary channels, whose messages go to
/// all nodes. Then [`connect_cluster`](RedisOptions::connect_cluster) logs a warning. All servers must do the same.
///
/// # Keys
/// Each key begins with the [prefix](RedisOptions::with_prefix). All keys of the chats of a user follow a digest
/// of the tenant and the id in braces, so that Redis Cluster keeps them on one node and a script
/// can change them together: a chat with the list of the user's chats, and a live run with the others
/// of the user. A crash leaves nothing in between. The users are spread over the nodes. The approvals of
/// a user are in one of 4096 buckets, which is the beginning of their ids. In Redis Cluster, the keys
/// of a bucket have its three digits in braces. A list of an audience is in a bucket, too, and a list of
/// all users has 16 parts, with one digit and `-all` in braces. These lists get an approval before it is
/// written, and lose it after, so a crash leaves a list that names too many approvals and never too few. A
/// reader of the list leaves them out, and removes them after a minute.
///
/// - `{…}:row:h` with the id of a chat: what is known of its log. `{…}:0:h`, `{…}:1:h`, `{…}:2:h` and `{…}:3:h`: the
///   entries of the log, the messages and the rest of the snapshot, and when a client has read the live run.
/// - `{…}:row:u` and `{…}:list:chats`: the live runs and the chats of a user.
/// - `{…}:row:x` with the id of a chat: what a [sink](ui_message_stream_chat::MessageSink) has to get of it, until the
///   chat is deleted and the sink has got that, or until no server has asked for that in 30 days.
/// - `{due0}:list:due` and `{undelivered0}:list:undelivered`: the chats of all users to sweep, and those of which a sink
///   has to get something, each with its tenant, its user and its id. Redis Cluster has 16 of each.
/// - `format`: the number of the format of the chats.
///
/// No key of chats expires: what is not needed any more, and a chat whose time has passed, is removed within about
/// a minute, if a server runs.
/// - `record:` with the id of an approval, `list:` with the name of a list of approvals, `all:` with a digest,
///   `clock`, and `use:` with the id of an approval that a guard keeps. All expire: a record and a use
///   [`RECORD_RETENTION`](ui_message_stream::approval::store::RECORD_RETENTION) after the approval
///   request has expired.
/// - `deleted:` with a digest, for a day after a user was deleted.
/// - `ping`, for a minute.
///
/// # Formats
/// Each chat and each approval holds the number of its format, and one of a newer format is an error. Chats of
/// an earlier version are [refused](RedisStoreError::OtherChats) when the store is opened, and so are
/// [approvals](RedisStoreError::OlderApprovals) in a Redis Cluster that kept them in one slot.
#[doc(alias = "database")]
#[doc(alias = "persist")]
#[doc(alias = "RedisLedger")]
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

/// What the clones of a store share.
struct Inner {
    connection: Connection,
    keys: Keys,
    is_durable: bool,
    #[cfg(feature = "chat")]
    hints: Arc<Hints>,
    #[cfg(feature = "chat")]
    follower: Follower,
    #[cfg(feature = "chat")]
    batch: Batch,
    #[cfg(feature = "chat")]
    clock: Clock,
    #[cfg(feature = "chat")]
    known: KnownLogs,
}

impl RedisStore {
    /// Connects to the Redis at a URL such as `redis://user:password@host:6379/0`, with the default
    /// [`RedisOptions`].
    ///
    /// # Errors
    /// As [`RedisOptions::connect`].
    pub async fn connect(url: &str) -> Result<Self, RedisStoreError> {
        RedisOptions::new().connect(url).await
    }

    /// Checks that Redis can be written: writes a key that expires. In Redis Cluster, the key is on
    /// one of the nodes.
    ///
    /// ```no_run
    /// # async fn is_ready(store: ui_message_stream_redis::RedisStore) -> bool {
    /// // For the readiness check of a load balancer.
    /// store.ping().await.is_ok()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`RedisStoreError`] if Redis cannot be written now.
    pub async fn ping(&self) -> Result<(), RedisStoreError> {
        let key = self.inner.keys.shared("ping");
        self.inner.connection.run(&scripts::PING.key(key)).await
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = self.inner.keys.prefix();
        f.debug_struct("RedisStore").field("prefix", &prefix).finish_non_exhaustive()
    }
}

/// Returns random bytes of the system.
fn random_bytes<const N: usize>() -> Result<[u8; N], RedisStoreError> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(_) => Err(RedisStoreError::Random),
    }
}

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
