//! [`RedisLedger`]: a ledger of approvals in Redis, which several servers share.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]
#![deny(clippy::disallowed_methods)]

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use ::redis::aio::{ConnectionManager, ConnectionManagerConfig};
use ::redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use ::redis::{Client, FromRedisValue, IntoConnectionInfo, RedisResult, Script, ScriptInvocation};
use sha2::{Digest, Sha256};
use tokio::time::timeout;

use ui_message_stream::BoxFuture;
use ui_message_stream::approval::store::{
    ApprovalUse, LedgerStore, LedgerStoreError, PendingCursor, PendingFilter, PendingQuery,
    PendingRecords, RECORD_RETENTION, ReplayGuard, Snapshot, VersionedRecord,
};
use ui_message_stream::approval::{ApprovalRecord, RecordId, UnixMillis};

/// A ledger in Redis, for all servers that share it.
///
/// It needs Redis 5 or later (it is tested with 7) with one primary. Redis Cluster is not
/// supported.
///
/// ```no_run
/// use std::sync::Arc;
/// use ui_message_stream::approval::{Approvals, KeyRing, Toolbox};
/// use ui_message_stream_redis::RedisLedger;
///
/// # async fn approvals(tools: impl Toolbox, secret: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
/// let ledger = RedisLedger::connect("redis://127.0.0.1/").await?.with_prefix("shop:approvals:");
/// // Servers that share a ledger must share the key, too.
/// let keys = KeyRing::new(1, secret)?;
/// let approvals = Approvals::new(tools).with_keys(keys).with_ledger(Arc::new(ledger));
/// # Ok(())
/// # }
/// ```
///
/// # What is lost when Redis fails
/// An approval counts once only as long as Redis keeps its record. So the guarantee is as durable
/// as the data of Redis.
///
/// | Configuration of Redis | Lost if the process is killed | Lost if the power fails |
/// |---|---|---|
/// | `appendonly yes`, `appendfsync always` | nothing | nothing |
/// | `appendonly yes`, `appendfsync everysec` | nothing, or two seconds if the disk is behind | the last second or two |
/// | snapshots only (the default) | everything since the last snapshot | everything since the last snapshot |
/// | no persistence | everything | everything |
///
/// The table holds only if the disk has written what it has confirmed. After a failover to a
/// replica, everything is lost that the replica had not received yet, in all four configurations.
///
/// - If an *approval request* is lost, its answer is rejected, and the user must be asked again.
/// - If an *answer* is lost, its approval request is pending again. The same approval, sent again,
///   executes the tool **a second time**. So a tool that must not be executed twice needs the
///   configuration of the first row, or must be
///   [idempotent](ui_message_stream::approval::ToolInfo::idempotent).
///
/// If Redis evicts keys because its memory is full, records and outcomes are lost. Answers to them
/// are rejected, and no tool is executed twice. `maxmemory-policy` should still be `noeviction`. If
/// it is not, [`connect`](Self::connect) logs a warning.
///
/// # As a guard of stateless approvals
/// The ledger is a [`ReplayGuard`], too. Then there are no records: Redis holds one key for each
/// approval that was used, and **a lost key lets its approval execute the call again** until the
/// approval expires. A key is lost as in the table above, by a failover, and also if Redis evicts
/// it or is restarted without persistence. A ledger rejects the answer to a lost record; a guard
/// cannot, because an approval without a key is one that was not used yet. So a guard needs
/// `maxmemory-policy noeviction` and the configuration of the first row, or tools that may be
/// executed twice.
///
/// # The clock
/// The time is Redis's own `TIME`. The time of the ledger is never earlier than the last change of
/// any record: if Redis's clock is set back by up to a minute, the ledger's time does not advance
/// until the clock has caught up. If the clock is set back by more than a minute, it was wrong
/// before, and the ledger follows it. Otherwise no lease would end during that time.
///
/// # When Redis is not available
/// Every operation ends within five seconds, if necessary with an error. A lost connection is
/// opened again. The operation that was under way is sent a second time, and takes effect once. For
/// TLS (`rediss://`), enable the feature `tokio-rustls-comp` of the crate `redis` in your own
/// `Cargo.toml`.
///
/// # Keys
/// Each key begins with the [prefix](Self::with_prefix). After it follows `record:` with the id of
/// the record, `chat:` or `person:` with a digest, `clock`, or `use:` with the id of an approval
/// that a guard keeps. All keys expire: a record and a use [`RECORD_RETENTION`] after the approval
/// request has expired.
#[doc(alias = "database")]
#[doc(alias = "persist")]
#[derive(Clone)]
pub struct RedisLedger {
    connection: ConnectionManager,
    prefix: Box<str>,
}

impl RedisLedger {
    /// Connects to the Redis at a URL such as `redis://user:password@host:6379/0`.
    ///
    /// The connection attempt fails after one second, and in any case after five seconds. Then the
    /// eviction policy of Redis is read, which takes at most five more seconds. If it cannot be
    /// read, a warning is logged, and this function succeeds.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if `url` is not the URL of a Redis, or if no Redis answers there in
    /// time.
    pub async fn connect(url: &str) -> Result<Self, LedgerStoreError> {
        let info = url.into_connection_info().map_err(LedgerStoreError::new)?;
        let info = info.set_tcp_settings(tcp_settings());
        let client = Client::open(info).map_err(LedgerStoreError::new)?;
        // One attempt: the next operation that needs the connection makes the next attempt.
        // Responses have their own time limit, in `with_timeout`.
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None);
        let connection = with_timeout(ConnectionManager::new_with_config(client, config)).await?;
        let ledger = RedisLedger { connection, prefix: DEFAULT_PREFIX.into() };
        ledger.warn_if_evicting().await;
        Ok(ledger)
    }

    /// Sets the prefix of all keys. The default is `ui-message-stream:`.
    ///
    /// Ledgers with different prefixes in one Redis are independent.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Logs a warning if Redis may evict keys, or if its eviction policy is not known.
    async fn warn_if_evicting(&self) {
        let mut connection = self.connection.clone();
        let mut info = ::redis::cmd("INFO");
        info.arg("memory");
        let memory: Result<String, _> = with_timeout(info.query_async(&mut connection)).await;
        let memory = memory.unwrap_or_default();
        let policy = memory.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"));
        match policy {
            Some("noeviction") => {}
            Some(policy) => tracing::warn!(
                policy,
                "this Redis may evict approvals, which are refused then: set maxmemory-policy to noeviction"
            ),
            None => tracing::warn!(
                "Redis does not tell its maxmemory-policy, which should be noeviction: else it may evict approvals"
            ),
        }
    }

    fn key(&self, suffix: impl fmt::Display) -> String {
        format!("{}{suffix}", self.prefix)
    }

    fn record_key(&self, id: RecordId) -> String {
        self.key(format_args!("record:{id}"))
    }

    fn use_key(&self, approval: RecordId) -> String {
        self.key(format_args!("use:{approval}"))
    }

    fn pending_key(&self, filter: PendingFilter<'_>) -> String {
        match filter {
            PendingFilter::Chat { requester, chat } => {
                let digest = digest([requester.tenant(), requester.id(), Some(chat)]);
                self.key(format_args!("chat:{digest}"))
            }
            PendingFilter::Requester(principal) => {
                let digest = digest([principal.tenant(), principal.id()]);
                self.key(format_args!("person:{digest}"))
            }
        }
    }

    /// Prepares a writing script with the keys and arguments that all of them have.
    ///
    /// The keys are the record, its two indexes and the clock. The arguments are the id of the
    /// record, its JSON, a random id of this attempt, the time at which the record expires in
    /// Redis, whether the record is pending, and the time of the approval request.
    fn prepare_write<'s>(
        &self,
        script: &'s Script,
        record: &ApprovalRecord,
    ) -> Result<ScriptInvocation<'s>, LedgerStoreError> {
        let requester = &record.requester;
        let in_chat = PendingFilter::Chat { requester, chat: &record.chat_id };
        let mut attempt = [0_u8; 16];
        getrandom::fill(&mut attempt).map_err(LedgerStoreError::new)?;
        let json = serde_json::to_string(record).map_err(LedgerStoreError::new)?;
        let delete_at = record.expires_at.after(RECORD_RETENTION).0.min(MAX_EXACT_MILLIS);
        let mut invocation = script.prepare_invoke();
        invocation
            .key(self.record_key(record.id))
            .key(self.pending_key(in_chat))
            .key(self.pending_key(PendingFilter::Requester(requester)))
            .key(self.key("clock"))
            .arg(record.id.to_string())
            .arg(json)
            .arg(&attempt)
            .arg(delete_at)
            .arg(u8::from(record.is_pending()))
            .arg(record.requested_at.0);
        Ok(invocation)
    }

    /// Runs a script, and runs it again if the connection was lost. Every script gives the same
    /// response when it is run again.
    async fn run_script<T: FromRedisValue + Send>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, LedgerStoreError> {
        let mut connection = self.connection.clone();
        with_timeout(async {
            match script.invoke_async(&mut connection).await {
                Err(error) if error.is_io_error() || error.is_connection_dropped() => {
                    script.invoke_async(&mut connection).await
                }
                result => result,
            }
        })
        .await
    }

    /// Parses the records that a script returned. Records that cannot be read are left out.
    ///
    /// A record of a format that this version does not read fails the operation. If it were left
    /// out, its approval would be rejected as lost, although a newer server can redeem it.
    fn parse_records(rows: Vec<Row>) -> Result<Vec<VersionedRecord>, LedgerStoreError> {
        let mut records = Vec::with_capacity(rows.len());
        for (key, revision, json) in rows {
            match serde_json::from_str::<ApprovalRecord>(&json) {
                Ok(record) => records.push(VersionedRecord { record, revision }),
                Err(error) => {
                    ApprovalRecord::check_format(&json).map_err(|error| {
                        tracing::error!(key, %error, "a record in the ledger cannot be read");
                        LedgerStoreError::new(error)
                    })?;
                    // The record counts as lost, and the other records are still returned. Only the
                    // position of the error is logged, because its text may hold contents of the
                    // record.
                    let column = error.column();
                    tracing::error!(key, column, "a record in the ledger cannot be read");
                }
            }
        }
        Ok(records)
    }
}

/// The key of a record, its revision and its JSON.
type Row = (String, u64, String);

/// For [stateless approvals](ui_message_stream::approval::Approvals::stateless_replayable): one key
/// for each approval that was used, `use:` with the id of the approval.
impl ReplayGuard for RedisLedger {
    fn set_if_absent<'a>(
        &'a self,
        approval: RecordId,
        first_use: ApprovalUse,
        keep_until: UnixMillis,
    ) -> BoxFuture<'a, Result<Option<ApprovalUse>, LedgerStoreError>> {
        Box::pin(async move {
            let mut attempt = [0_u8; 16];
            getrandom::fill(&mut attempt).map_err(LedgerStoreError::new)?;
            let mut invocation = SET_IF_ABSENT.key(self.use_key(approval));
            let keep_until = keep_until.0.min(MAX_EXACT_MILLIS);
            invocation.arg(first_use.name()).arg(&attempt).arg(keep_until);
            let earlier: Option<String> = self.run_script(&invocation).await?;
            Ok(earlier.map(|name| ApprovalUse::from_name(&name)))
        })
    }

    fn first_use(
        &self,
        approval: RecordId,
    ) -> BoxFuture<'_, Result<Option<ApprovalUse>, LedgerStoreError>> {
        Box::pin(async move {
            let invocation = FIRST_USE.key(self.use_key(approval));
            let name: Option<String> = self.run_script(&invocation).await?;
            Ok(name.map(|name| ApprovalUse::from_name(&name)))
        })
    }
}

/// Returns the name of the first use of an approval, or nothing.
static FIRST_USE: LazyLock<Script> =
    LazyLock::new(|| Script::new("return redis.call('HGET', KEYS[1], 'name')"));

/// Stores the first use of an approval. Returns the name of an earlier use, or nothing. The attempt
/// that stored its use gets nothing again, if its first response was lost.
static SET_IF_ABSENT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(
        r"
        local name = redis.call('HGET', KEYS[1], 'name')
        if name then
            if redis.call('HGET', KEYS[1], 'attempt') == ARGV[2] then return false end
            return name
        end
        redis.call('HSET', KEYS[1], 'name', ARGV[1], 'attempt', ARGV[2])
        redis.call('PEXPIREAT', KEYS[1], ARGV[3])
        return false
        ",
    )
});

impl LedgerStore for RedisLedger {
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move { self.run_script(&self.prepare_write(&INSERT, record)?).await })
    }

    fn load<'a>(
        &'a self,
        ids: &'a [RecordId],
    ) -> BoxFuture<'a, Result<Snapshot, LedgerStoreError>> {
        Box::pin(async move {
            let mut invocation = LOAD.key(self.key("clock"));
            for id in ids {
                invocation.key(self.record_key(*id));
            }
            let (now, rows): (u64, Vec<Row>) = self.run_script(&invocation).await?;
            Ok(Snapshot { now: UnixMillis(now), records: Self::parse_records(rows)? })
        })
    }

    fn pending<'a>(
        &'a self,
        query: PendingQuery<'a>,
    ) -> BoxFuture<'a, Result<PendingRecords, LedgerStoreError>> {
        Box::pin(async move {
            let mut invocation = PENDING.key(self.key("clock"));
            invocation
                .key(self.pending_key(query.filter))
                .arg(self.key("record:"))
                .arg(query.after.map_or(-1, |after| after.requested_at.0 as i64))
                .arg(query.after.map(|after| after.id.to_string()).unwrap_or_default())
                .arg(query.limit.min(MAX_PAGE))
                .arg(RECORD_RETENTION.as_millis() as u64);
            let (now, rows, next, unexpired): (u64, Vec<Row>, Vec<(u64, String)>, usize) =
                self.run_script(&invocation).await?;
            let next = next.into_iter().next().map(|(requested_at, id)| {
                let id = id.parse().map_err(LedgerStoreError::new)?;
                Ok::<_, LedgerStoreError>(PendingCursor {
                    requested_at: UnixMillis(requested_at),
                    id,
                })
            });
            Ok(PendingRecords {
                now: UnixMillis(now),
                records: Self::parse_records(rows)?,
                next: next.transpose()?,
                unexpired,
            })
        })
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move {
            let mut invocation = self.prepare_write(&COMPARE_AND_SWAP, record)?;
            invocation.arg(revision).arg(revision.wrapping_add(1));
            self.run_script(&invocation).await
        })
    }
}

impl fmt::Debug for RedisLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLedger").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Returns the SHA-256 digest of optional texts, in hex.
///
/// Each text is hashed with its presence and its length, so that different texts never hash the
/// same bytes.
fn digest<const N: usize>(texts: [Option<&str>; N]) -> String {
    let mut digest = Sha256::new();
    for text in texts {
        match text {
            Some(text) => {
                digest.update([1]);
                digest.update((text.len() as u64).to_be_bytes());
                digest.update(text);
            }
            None => digest.update([0]),
        }
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
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
async fn with_timeout<T>(
    operation: impl Future<Output = RedisResult<T>> + Send,
) -> Result<T, LedgerStoreError> {
    match timeout(OPERATION_TIMEOUT, operation).await {
        Ok(result) => result.map_err(LedgerStoreError::new),
        Err(elapsed) => Err(LedgerStoreError::new(elapsed)),
    }
}

const DEFAULT_PREFIX: &str = "ui-message-stream:";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const OPERATION_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of records of a page. A Lua table of so many fits into the memory of Redis.
const MAX_PAGE: usize = 1 << 20;

/// The latest time, in milliseconds, that a Lua number represents exactly.
const MAX_EXACT_MILLIS: u64 = (1 << 53) - 1;

// A record is a Redis hash. `record` is its JSON. `revision` counts the replacements. `requested` is
// the time of the approval request, by which the records are listed. `inserted`
// and `replaced` are the ids of the attempts that wrote the record, by which a repeated script
// recognises its own write. An index is a sorted set of record ids, scored by the time at which the
// record expires in Redis. Redis stores and replicates the writes of one script as one transaction.

static LOAD: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[CLOCK_PREAMBLE, LOAD_BODY].concat()));

static PENDING: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[CLOCK_PREAMBLE, PENDING_BODY].concat()));

static INSERT: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[CLOCK_PREAMBLE, WRITE_PREAMBLE, INSERT_BODY].concat()));

static COMPARE_AND_SWAP: LazyLock<Script> = LazyLock::new(|| {
    Script::new(&[CLOCK_PREAMBLE, WRITE_PREAMBLE, COMPARE_AND_SWAP_BODY].concat())
});

/// Reads the clock, in milliseconds: `time` is the time of Redis, `now` is the time of the ledger.
const CLOCK_PREAMBLE: &str = r"
local clock = redis.call('TIME')
local time = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now = time
local function tell_time(key)
    local last = tonumber(redis.call('GET', key) or '0')
    if last > time and last <= time + 60000 then now = last end
end
";

/// Returns the time and the records with the given keys.
const LOAD_BODY: &str = r"
tell_time(KEYS[1])
local found = {}
for at = 2, #KEYS do
    local kept = redis.call('HMGET', KEYS[at], 'revision', 'record')
    if kept[1] then found[#found + 1] = {KEYS[at], kept[1], kept[2]} end
end
return {now, found}
";

/// Returns the time, a page of the records of an index, the place after which the next page begins,
/// and the number of all records of the index that have not expired.
///
/// A record that an earlier version inserted has no field `requested` and comes first.
const PENDING_BODY: &str = r"
tell_time(KEYS[1])
local after, after_id, limit = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local rest = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    local kept = redis.call('HMGET', ARGV[1] .. id, 'revision', 'requested')
    local requested = tonumber(kept[2] or '0')
    if kept[1] and (requested > after or requested == after and id > after_id) then
        rest[#rest + 1] = {requested, id}
    end
end
table.sort(rest, function(one, other)
    return one[1] < other[1] or one[1] == other[1] and one[2] < other[2]
end)
local found = {}
for at = 1, math.min(limit, #rest) do
    local key = ARGV[1] .. rest[at][2]
    local kept = redis.call('HMGET', key, 'revision', 'record')
    found[at] = {key, kept[1], kept[2]}
end
local next_page = {}
if #rest > #found and #found > 0 then next_page[1] = rest[#found] end
local expired = string.format('(%.0f', now + tonumber(ARGV[5]))
return {now, found, next_page, redis.call('ZCOUNT', KEYS[2], expired, '+inf')}
";

/// Defines `wrote`, which updates the indexes after a write, and stores the time that the ledger's
/// clock must not fall below.
const WRITE_PREAMBLE: &str = r"
local id, json, attempt, forget_at = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local is_pending = ARGV[5] == '1'
local requested = ARGV[6]
local function wrote()
    for at = 2, 3 do
        local index = KEYS[at]
        if is_pending then
            redis.call('ZREMRANGEBYSCORE', index, '-inf', time)
            redis.call('ZADD', index, forget_at, id)
            local left = redis.call('PTTL', index)
            if left < 0 or time + left < tonumber(forget_at) then
                redis.call('PEXPIREAT', index, forget_at)
            end
        else
            redis.call('ZREM', index, id)
        end
    end
    tell_time(KEYS[4])
    redis.call('SET', KEYS[4], now, 'PX', 60000)
    return 1
end
";

/// Inserts a record. Returns 1 if this attempt inserted it, else 0.
const INSERT_BODY: &str = r"
local by = redis.call('HGET', KEYS[1], 'inserted')
if by then return by == attempt and 1 or 0 end
redis.call('HSET', KEYS[1], 'record', json, 'revision', '0', 'inserted', attempt,
    'requested', requested)
redis.call('PEXPIREAT', KEYS[1], forget_at)
return wrote()
";

/// Replaces a record that has the expected revision. Returns 1 if this attempt replaced it, else 0.
const COMPARE_AND_SWAP_BODY: &str = r"
local kept = redis.call('HMGET', KEYS[1], 'revision', 'replaced')
if kept[1] == ARGV[8] and kept[2] == attempt then return 1 end
if kept[1] ~= ARGV[7] then return 0 end
redis.call('HSET', KEYS[1], 'record', json, 'revision', ARGV[8], 'replaced', attempt)
return wrote()
";

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
