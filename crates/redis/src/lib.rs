//! [`RedisLedger`]: a ledger that several servers share, in Redis.

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

use ui_message_stream::approval::{ApprovalRecord, RecordId, UnixMillis};
use ui_message_stream::ledger_store::{
    Asked, BoxFuture, KEPT_FOR, Kept, LedgerStore, LedgerStoreError, Loaded,
};

/// A ledger in Redis, for all servers that share it. Redis 5 or later (tested with 7), one primary;
/// not Redis Cluster.
///
/// ```no_run
/// use std::sync::Arc;
/// use ui_message_stream::approval::KeyRing;
/// use ui_message_stream::approvals::{Approvals, Toolbox};
/// use ui_message_stream_redis::RedisLedger;
///
/// # async fn approvals(tools: impl Toolbox, secret: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
/// let ledger = RedisLedger::connect("redis://127.0.0.1/").await?.with_prefix("shop:approvals:");
/// // Servers that share a ledger share the key too.
/// let keys = KeyRing::new(1, secret)?;
/// let approvals = Approvals::new(tools).with_keys(keys).with_ledger(Arc::new(ledger));
/// # Ok(())
/// # }
/// ```
///
/// # What is lost when Redis dies
/// That an approval is used once is as lasting as what Redis wrote down.
///
/// | Redis is set to | killed, it loses | without power, it loses |
/// |---|---|---|
/// | `appendonly yes`, `appendfsync always` | nothing | nothing |
/// | `appendonly yes`, `appendfsync everysec` | nothing, or two seconds where the disk is behind | the last second or two |
/// | snapshots only, as it is installed | all since the last one | all since the last one |
/// | no persistence | everything | everything |
///
/// A replica that takes over has lost what did not reach it yet, whatever the table says; and a disk
/// that says that it wrote has to have written.
///
/// A *question* that is lost is refused when it is answered, and the person is asked again. An
/// *answer* that is lost leaves its question pending once more: the same yes, sent again, runs the
/// tool **a second time**. So a tool that must not run twice needs the first line, or has to be
/// [idempotent](ui_message_stream::approvals::ToolFacts::idempotent).
///
/// A Redis that evicts what it has no room for forgets questions and outcomes; that is refused, and
/// nothing runs twice. `maxmemory-policy` should be `noeviction` all the same; if it is not, a
/// warning says so when the ledger connects.
///
/// # The clock
/// Redis's own `TIME`. If that is set back by up to a minute, the ledger's time stands still until it
/// is made up for: it is never earlier than the last change of any record. A clock that is set back
/// further was wrong before, and is followed: else no lease would end in all that time.
///
/// # When Redis is away
/// Every operation ends within five seconds, with an error if it must. A connection that is lost is
/// made again, and what was under way is asked for once more; it takes place once. For TLS
/// (`rediss://`) enable the feature `tokio-rustls-comp` of the crate `redis` in your own `Cargo.toml`.
///
/// # Keys
/// Each begins with the [prefix](Self::with_prefix): `record:` and the record's id, `chat:` and
/// `person:` with a digest, `clock`. All expire by themselves, records [`KEPT_FOR`] after they have.
#[derive(Clone)]
pub struct RedisLedger {
    connection: ConnectionManager,
    prefix: Box<str>,
}

impl RedisLedger {
    /// Connects, with a URL such as `redis://user:password@host:6379/0`.
    ///
    /// # Errors
    /// [`LedgerStoreError`] if that is no URL of a Redis, or none answers there within five seconds.
    pub async fn connect(url: &str) -> Result<Self, LedgerStoreError> {
        let info = url.into_connection_info().map_err(LedgerStoreError::new)?;
        let info = info.set_tcp_settings(tcp_settings());
        let client = Client::open(info).map_err(LedgerStoreError::new)?;
        // One attempt: whoever needs the connection then makes the next one. Answers have a time
        // limit of their own.
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(0)
            .set_connection_timeout(Some(CONNECT_WITHIN))
            .set_response_timeout(None);
        let connection = in_time(ConnectionManager::new_with_config(client, config)).await?;
        let ledger = RedisLedger { connection, prefix: PREFIX.into() };
        ledger.warn_of_eviction().await;
        Ok(ledger)
    }

    /// Begins each key with this instead of `ui-message-stream:`. Ledgers of different prefixes in
    /// one Redis know nothing of each other.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<Box<str>>) -> Self {
        self.prefix = prefix.into();
        self
    }

    async fn warn_of_eviction(&self) {
        let mut connection = self.connection.clone();
        let mut info = ::redis::cmd("INFO");
        info.arg("memory");
        let said: Result<String, _> = in_time(info.query_async(&mut connection)).await;
        let said = said.unwrap_or_default();
        let policy = said.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"));
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

    fn key(&self, rest: impl fmt::Display) -> String {
        format!("{}{rest}", self.prefix)
    }

    fn record_key(&self, id: RecordId) -> String {
        self.key(format_args!("record:{id}"))
    }

    fn pending_key(&self, of: Asked<'_>) -> String {
        match of {
            Asked::InChat { tenant, chat } => {
                self.key(format_args!("chat:{}", digest([tenant, Some(chat)])))
            }
            Asked::By(principal) => {
                let digest = digest([principal.tenant(), principal.id()]);
                self.key(format_args!("person:{digest}"))
            }
        }
    }

    /// Names the record, its two indexes, and the clock; then what all writing scripts take.
    fn writing<'s>(
        &self,
        script: &'s Script,
        record: &ApprovalRecord,
    ) -> Result<ScriptInvocation<'s>, LedgerStoreError> {
        let requester = &record.requester;
        let in_chat = Asked::InChat { tenant: requester.tenant(), chat: &record.chat_id };
        let mut attempt = [0_u8; 16];
        getrandom::fill(&mut attempt).map_err(LedgerStoreError::new)?;
        let json = serde_json::to_string(record).map_err(LedgerStoreError::new)?;
        let forget_at = record.expires_at.after(KEPT_FOR).0.min(LATEST);
        let mut invocation = script.prepare_invoke();
        invocation
            .key(self.record_key(record.id))
            .key(self.pending_key(in_chat))
            .key(self.pending_key(Asked::By(requester)))
            .key(self.key("clock"))
            .arg(record.id.to_string())
            .arg(json)
            .arg(&attempt)
            .arg(forget_at)
            .arg(u8::from(record.is_pending()));
        Ok(invocation)
    }

    /// Runs a script, a second time where the connection was lost on the way: each of them gives
    /// the same answer then.
    async fn run<T: FromRedisValue + Send>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, LedgerStoreError> {
        let mut connection = self.connection.clone();
        in_time(async {
            match script.invoke_async(&mut connection).await {
                Err(error) if error.is_io_error() || error.is_connection_dropped() => {
                    script.invoke_async(&mut connection).await
                }
                answered => answered,
            }
        })
        .await
    }

    async fn read(&self, script: &ScriptInvocation<'_>) -> Result<Loaded, LedgerStoreError> {
        let (now, found): (u64, Vec<(String, u64, String)>) = self.run(script).await?;
        let records = found.into_iter().filter_map(|(key, revision, json)| {
            match serde_json::from_str::<ApprovalRecord>(&json) {
                Ok(record) => Some(Kept { record, revision }),
                // A newer version of this crate may have written it. It is as good as lost; the
                // others are not.
                // What the error says may hold what the record holds.
                Err(error) => {
                    let column = error.column();
                    tracing::error!(key, column, "a record in the ledger cannot be read");
                    None
                }
            }
        });
        Ok(Loaded { now: UnixMillis(now), records: records.collect() })
    }
}

impl LedgerStore for RedisLedger {
    fn insert<'a>(
        &'a self,
        record: &'a ApprovalRecord,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move { self.run(&self.writing(&INSERT, record)?).await })
    }

    fn load<'a>(&'a self, ids: &'a [RecordId]) -> BoxFuture<'a, Result<Loaded, LedgerStoreError>> {
        Box::pin(async move {
            let mut invocation = LOAD.key(self.key("clock"));
            for id in ids {
                invocation.key(self.record_key(*id));
            }
            self.read(&invocation).await
        })
    }

    fn pending<'a>(&'a self, of: Asked<'a>) -> BoxFuture<'a, Result<Loaded, LedgerStoreError>> {
        Box::pin(async move {
            let mut invocation = PENDING.key(self.key("clock"));
            invocation.key(self.pending_key(of)).arg(self.key("record:"));
            let mut loaded = self.read(&invocation).await?;
            loaded.records.sort_by_key(|kept| (kept.record.requested_at, kept.record.id));
            Ok(loaded)
        })
    }

    fn replace<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> BoxFuture<'a, Result<bool, LedgerStoreError>> {
        Box::pin(async move {
            let mut invocation = self.writing(&REPLACE, record)?;
            invocation.arg(revision).arg(revision.wrapping_add(1));
            self.run(&invocation).await
        })
    }
}

impl fmt::Debug for RedisLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisLedger").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// Names two texts, either of which may be missing, so that no two pairs have one name.
fn digest(texts: [Option<&str>; 2]) -> String {
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

/// A peer that is gone without a word is noticed within seconds, not within hours.
fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(PROBE_EVERY).with_interval(PROBE_EVERY);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(GIVE_UP_AFTER);
    settings
}

async fn in_time<T>(
    asked: impl Future<Output = RedisResult<T>> + Send,
) -> Result<T, LedgerStoreError> {
    match timeout(GIVE_UP_AFTER, asked).await {
        Ok(answered) => answered.map_err(LedgerStoreError::new),
        Err(elapsed) => Err(LedgerStoreError::new(elapsed)),
    }
}

const PREFIX: &str = "ui-message-stream:";
const CONNECT_WITHIN: Duration = Duration::from_secs(1);
const PROBE_EVERY: Duration = Duration::from_secs(2);
const GIVE_UP_AFTER: Duration = Duration::from_secs(5);

/// The largest time that Lua's numbers hold exactly.
const LATEST: u64 = (1 << 53) - 1;

// A record is a hash: `record` is its JSON, `revision` counts the replacements, `inserted` and
// `replaced` are the attempts that wrote it. An index is a sorted set of record ids, by when they
// may be forgotten. What a script writes, Redis keeps and replays as one.

static LOAD: LazyLock<Script> = LazyLock::new(|| Script::new(&[NOW, READ_RECORDS].concat()));

static PENDING: LazyLock<Script> = LazyLock::new(|| Script::new(&[NOW, READ_INDEX].concat()));

static INSERT: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[NOW, AFTER_A_WRITE, WRITE_NEW].concat()));

static REPLACE: LazyLock<Script> =
    LazyLock::new(|| Script::new(&[NOW, AFTER_A_WRITE, WRITE_IF_CURRENT].concat()));

/// `time` as Redis has it, and `now` as the ledger tells it, in milliseconds.
const NOW: &str = r"
local clock = redis.call('TIME')
local time = clock[1] * 1000 + math.floor(clock[2] / 1000)
local now = time
local function tell_time(key)
    local last = tonumber(redis.call('GET', key) or '0')
    if last > time and last <= time + 60000 then now = last end
end
";

const READ_RECORDS: &str = r"
tell_time(KEYS[1])
local found = {}
for at = 2, #KEYS do
    local kept = redis.call('HMGET', KEYS[at], 'revision', 'record')
    if kept[1] then found[#found + 1] = {KEYS[at], kept[1], kept[2]} end
end
return {now, found}
";

const READ_INDEX: &str = r"
tell_time(KEYS[1])
local found = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
    local key = ARGV[1] .. id
    local kept = redis.call('HMGET', key, 'revision', 'record')
    if kept[1] then found[#found + 1] = {key, kept[1], kept[2]} end
end
return {now, found}
";

/// What follows a write: the indexes, and the time below which the clock does not fall.
const AFTER_A_WRITE: &str = r"
local id, json, attempt, forget_at = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local is_pending = ARGV[5] == '1'
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

const WRITE_NEW: &str = r"
local by = redis.call('HGET', KEYS[1], 'inserted')
if by then return by == attempt and 1 or 0 end
redis.call('HSET', KEYS[1], 'record', json, 'revision', '0', 'inserted', attempt)
redis.call('PEXPIREAT', KEYS[1], forget_at)
return wrote()
";

const WRITE_IF_CURRENT: &str = r"
local kept = redis.call('HMGET', KEYS[1], 'revision', 'replaced')
if kept[1] == ARGV[7] and kept[2] == attempt then return 1 end
if kept[1] ~= ARGV[6] then return 0 end
redis.call('HSET', KEYS[1], 'record', json, 'revision', ARGV[7], 'replaced', attempt)
return wrote()
";

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
