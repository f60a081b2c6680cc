//! [`Storage`]: where the demo keeps its chats, its approvals and the worlds of its users.

use std::env::{VarError, var};
use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum_extra::extract::cookie::Key;
use rusqlite::{Connection, OpenFlags};
use ui_message_stream::approval::{ApprovalLimits, Approvals, KeyRing};
use ui_message_stream_agent::Agent;
use ui_message_stream_chat::store::InMemoryLogStore;
use ui_message_stream_chat::{ChatAgent, ChatServer};
use ui_message_stream_postgres::PostgresStore;
use ui_message_stream_redis::{RedisOptions, RedisStore};
use ui_message_stream_sqlite::{SqliteError, SqliteStore};

use crate::world::Worlds;
use crate::{number, sentence, start_error};

/// The chats, the approvals, the live responses, the users' worlds, and the keys.
pub struct Storage {
    store: Store,
    worlds: Arc<Worlds>,
    cookie_key: Vec<u8>,
    description: String,
}

/// The chats, the approvals and the live responses. A store that outlives the process has the key
/// that seals its approvals.
#[derive(Debug)]
enum Store {
    Memory(Arc<InMemoryLogStore>),
    Sqlite(SqliteStore, KeyRing),
    Redis(RedisStore, KeyRing),
    Postgres(PostgresStore, KeyRing),
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Storage { store, description, .. } = self;
        f.debug_struct("Storage")
            .field("store", store)
            .field("description", description)
            .finish_non_exhaustive()
    }
}

impl Storage {
    /// Opens what the environment variables name. `CHAT_STORE` says where the chats, the approvals and
    /// the live responses are:
    ///
    /// - `sqlite` (the default): in a file.
    /// - `memory`.
    /// - `redis://…`: in Redis, or in Redis Cluster if it has the URLs of several nodes, with commas in
    ///   between. `rediss://…` with TLS needs the feature `tls`.
    /// - `postgresql://…`: in Postgres.
    ///
    /// `UIMS_REDIS_IS_DURABLE=true` says that this Redis loses nothing that it has confirmed, as
    /// [`RedisOptions::assume_durable`] does.
    ///
    /// `UIMS_DATA` is the file (`chat.db` by default). Without `memory`, it also holds the world of the
    /// tools, the key that seals the approvals, and the key of the cookies. So several demos of one
    /// machine that share their chats must share the file too, also with Redis or Postgres.
    /// `APPROVAL_SECRET` seals the approvals in place of the key in the file.
    ///
    /// With `memory`, `UIMS_MAX_USER_BYTES` and `UIMS_MAX_STORE_BYTES` set how much is kept before chats
    /// are evicted.
    ///
    /// # Errors
    /// If one of these variables has another value, or has no effect with this store, if the file cannot
    /// be opened, or if Redis or Postgres does not answer. The error is one sentence that names
    /// the variable.
    pub async fn open() -> anyhow::Result<Self> {
        Self::open_now().await.map_err(start_error)
    }

    async fn open_now() -> Result<Self, Box<dyn Error>> {
        let store = text_of("CHAT_STORE")?;
        let store = store.as_deref().unwrap_or("sqlite");
        check_used(store, text_of)?;
        match store {
            "sqlite" => Self::in_sqlite().await,
            "memory" => {
                let store = Store::Memory(Arc::new(memory_store(text_of)?));
                let description = "Chats and files are in memory.".to_owned();
                Self::with_worlds(store, Connection::open_in_memory()?, description)
            }
            urls if urls.split(',').all(is_redis) => Self::in_redis(urls).await,
            url if is_postgres(url) => Self::in_postgres(url).await,
            other => Err(unknown_store(other).into()),
        }
    }

    async fn in_sqlite() -> Result<Self, Box<dyn Error>> {
        let File { name, store, keys, worlds } = File::open().await?;
        Self::with_worlds(
            Store::Sqlite(store, keys),
            worlds,
            format!("Chats and files are in {name}."),
        )
    }

    async fn in_redis(urls: &str) -> Result<Self, Box<dyn Error>> {
        check_tls(urls)?;
        let urls = urls.split(',').collect::<Vec<_>>();
        let options = match text_of("UIMS_REDIS_IS_DURABLE")?.as_deref() {
            None | Some("false") => RedisOptions::new(),
            Some("true") => RedisOptions::new().assume_durable(),
            Some(_) => return Err("UIMS_REDIS_IS_DURABLE is neither `true` nor `false`".into()),
        };
        let connected = match urls[..] {
            [url] => options.connect(url).await,
            _ => options.connect_cluster(urls).await,
        };
        let store = connected.map_err(|error| format!("CHAT_STORE: {}", sentence(&error)))?;
        let File { name, keys, worlds, .. } = File::open().await?;
        let description = format!("Chats are in Redis, files and keys in {name}.");
        Self::with_worlds(Store::Redis(store, keys), worlds, description)
    }

    async fn in_postgres(url: &str) -> Result<Self, Box<dyn Error>> {
        let store = PostgresStore::open(url).await;
        let store = store.map_err(|error| format!("CHAT_STORE: {}", sentence(&error)))?;
        let File { name, keys, worlds, .. } = File::open().await?;
        let description = format!("Chats are in Postgres, files and keys in {name}.");
        Self::with_worlds(Store::Postgres(store, keys), worlds, description)
    }

    fn with_worlds(
        store: Store,
        connection: Connection,
        description: String,
    ) -> Result<Self, Box<dyn Error>> {
        let worlds = Arc::new(Worlds::new(connection)?);
        let cookie_key = worlds.cookie_key(|| Key::generate().master().to_vec())?;
        Ok(Storage { store, worlds, cookie_key, description })
    }

    /// Returns the users' worlds.
    pub(crate) fn worlds(&self) -> Arc<Worlds> {
        Arc::clone(&self.worlds)
    }

    /// Returns where everything is, for people.
    pub(crate) fn description(&self) -> &str {
        &self.description
    }

    /// Returns the key that signs the cookies.
    pub(crate) fn cookie_key(&self) -> Key {
        Key::from(&self.cookie_key)
    }

    /// Creates a server that keeps its chats here, with the tools of this agent. `respond` answers the turns.
    /// `lease` is the time after which a run or a tool call counts as lost with its server.
    pub(crate) fn chat_server(
        &self,
        agent: Agent,
        respond: impl ChatAgent,
        lease: Option<Duration>,
        limits: ApprovalLimits,
    ) -> ChatServer {
        let mut approvals = Approvals::new(agent).with_limits(limits);
        if let Some(lease) = lease {
            approvals = approvals.with_lease(lease);
        }
        approvals = match &self.store {
            Store::Memory(_) => approvals,
            Store::Sqlite(store, keys) => {
                approvals.with_keys(keys.clone()).with_ledger(Arc::new(store.clone()))
            }
            Store::Redis(store, keys) => {
                approvals.with_keys(keys.clone()).with_ledger(Arc::new(store.clone()))
            }
            Store::Postgres(store, keys) => {
                approvals.with_keys(keys.clone()).with_ledger(Arc::new(store.clone()))
            }
        };
        let mut chats = ChatServer::new(respond, approvals);
        if let Some(lease) = lease {
            chats = chats.with_run_lease(lease);
        }
        match &self.store {
            Store::Memory(store) => chats.with_store(store.clone()),
            Store::Sqlite(store, _) => chats.with_store(Arc::new(store.clone())),
            Store::Redis(store, _) => chats.with_store(Arc::new(store.clone())),
            Store::Postgres(store, _) => chats.with_store(Arc::new(store.clone())),
        }
    }

    /// Makes the file complete, so that it can be copied without the `-wal` beside it.
    pub(crate) async fn close(&self) {
        if let Store::Sqlite(store, _) = &self.store
            && let Err(error) = store.checkpoint().await
        {
            tracing::warn!(%error, "the file is complete only together with its -wal");
        }
    }

    /// Returns a check whether the store can be written now.
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness(match &self.store {
            Store::Memory(_) => Check::None,
            Store::Sqlite(store, _) => Check::Sqlite(store.clone()),
            Store::Redis(store, _) => Check::Redis(store.clone()),
            Store::Postgres(store, _) => Check::Postgres(store.clone()),
        })
    }
}

/// Checks whether the store can be written.
#[derive(Debug, Clone)]
pub(crate) struct Readiness(Check);

#[derive(Debug, Clone)]
enum Check {
    None,
    Sqlite(SqliteStore),
    Redis(RedisStore),
    Postgres(PostgresStore),
}

impl Readiness {
    /// Writes to the store.
    pub(crate) async fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        match &self.0 {
            Check::None => {}
            Check::Sqlite(store) => store.ping().await?,
            Check::Redis(store) => store.ping().await?,
            Check::Postgres(store) => store.ping().await?,
        }
        Ok(())
    }
}

/// The file that `UIMS_DATA` names.
struct File {
    name: String,
    store: SqliteStore,
    keys: KeyRing,
    worlds: Connection,
}

impl File {
    async fn open() -> Result<Self, Box<dyn Error>> {
        let file = text_of("UIMS_DATA")?.unwrap_or_else(|| "chat.db".to_owned());
        let file = PathBuf::from(file);
        let name = file.display().to_string();
        let named = |error: SqliteError| format!("UIMS_DATA={name}: {}", sentence(&error));
        let store = SqliteStore::open(&file).await.map_err(named)?;
        let keys = match text_of("APPROVAL_SECRET")? {
            Some(secret) => KeyRing::new(1, secret.as_bytes())
                .map_err(|error| format!("APPROVAL_SECRET: {error}"))?,
            None => store.sealing_key().await.map_err(named)?,
        };
        // The store has created the file, so that no other user can read it.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let worlds = Connection::open_with_flags(&file, flags)?;
        Ok(File { name, store, keys, worlds })
    }
}

/// Fails if a variable is set that has no effect with this store.
fn check_used(
    store: &str,
    variable: impl Fn(&str) -> Result<Option<String>, Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let of_memory = MEMORY_VARIABLES.map(|(name, _)| (name, "memory"));
    let others = [
        ("UIMS_DATA", "sqlite"),
        ("APPROVAL_SECRET", "sqlite"),
        ("UIMS_REDIS_IS_DURABLE", "redis://…"),
    ];
    for (name, used_by) in of_memory.into_iter().chain(others) {
        let is_used = match used_by {
            "memory" => store == "memory",
            "sqlite" => store != "memory",
            _ => is_redis(store),
        };
        if !is_used && variable(name)?.is_some() {
            let store = match store {
                url if is_redis(url) => "redis://…",
                url if is_postgres(url) => "postgresql://…",
                name => name,
            };
            return Err(format!(
                "{name} has no effect with CHAT_STORE={store}: unset it, or set \
                 CHAT_STORE={used_by}"
            )
            .into());
        }
    }
    Ok(())
}

/// Creates the store of the chats in memory, with the limits that the variables set.
fn memory_store(
    variable: impl Fn(&str) -> Result<Option<String>, Box<dyn Error>>,
) -> Result<InMemoryLogStore, Box<dyn Error>> {
    let mut store = InMemoryLogStore::new();
    for (name, set) in MEMORY_VARIABLES {
        if let Some(value) = variable(name)? {
            store = set(store, number(name, &value)?);
        }
    }
    Ok(store)
}

type SetMemoryLimit = fn(InMemoryLogStore, usize) -> InMemoryLogStore;

/// The variables that set what a store in memory keeps.
const MEMORY_VARIABLES: [(&str, SetMemoryLimit); 2] = [
    ("UIMS_MAX_USER_BYTES", InMemoryLogStore::with_max_user_bytes),
    ("UIMS_MAX_STORE_BYTES", InMemoryLogStore::with_max_store_bytes),
];

/// Returns what is wrong with a `CHAT_STORE`, without what it holds: that may be a password.
fn unknown_store(store: &str) -> String {
    let scheme = store.split_once(':').map(|(scheme, _)| scheme);
    match scheme.filter(|scheme| SCHEMES.contains(scheme)) {
        Some(scheme) => format!(
            "CHAT_STORE begins with `{scheme}:` without `//`: write the address as \
             `{scheme}://127.0.0.1/`"
        ),
        None => "CHAT_STORE is neither `sqlite`, `memory`, `redis://…` nor `postgresql://…`".into(),
    }
}

const SCHEMES: [&str; 4] = ["redis", "rediss", "postgresql", "postgres"];

/// Returns an error if a URL needs TLS and this build has none.
fn check_tls(urls: &str) -> Result<(), &'static str> {
    if urls.contains("rediss://") && !cfg!(feature = "tls") { Err(WITHOUT_TLS) } else { Ok(()) }
}

/// The cryptography of TLS takes long to compile.
const WITHOUT_TLS: &str = "CHAT_STORE: this demo was built without TLS; \
                           `cargo run -p demo --features tls --example chat` builds it with TLS";

fn is_redis(url: &str) -> bool {
    url.starts_with("redis://") || url.starts_with("rediss://")
}

fn is_postgres(url: &str) -> bool {
    url.starts_with("postgresql://") || url.starts_with("postgres://")
}

/// Returns the value of an environment variable if it is set and not empty.
pub(crate) fn text_of(name: &str) -> Result<Option<String>, Box<dyn Error>> {
    match var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(format!("{name} is not UTF-8").into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_has_no_effect_with_the_store_is_refused_with_its_name() {
        let only = |set: &'static str| move |name: &str| Ok((name == set).then(|| "7".to_owned()));
        let error = |store, name| check_used(store, only(name)).unwrap_err().to_string();
        assert_eq!(
            error("sqlite", "UIMS_MAX_STORE_BYTES"),
            "UIMS_MAX_STORE_BYTES has no effect with CHAT_STORE=sqlite: unset it, or set \
             CHAT_STORE=memory"
        );
        assert!(error("redis://user:secret@host/", "UIMS_MAX_USER_BYTES").contains("redis://…:"));
        let error_of_postgres = error("postgresql://user:secret@host/", "UIMS_MAX_USER_BYTES");
        assert!(error_of_postgres.contains("CHAT_STORE=postgresql://…:"), "{error_of_postgres}");
        assert!(error("memory", "UIMS_DATA").ends_with("CHAT_STORE=sqlite"));
        assert!(error("memory", "APPROVAL_SECRET").ends_with("CHAT_STORE=sqlite"));
        assert!(error("sqlite", "UIMS_REDIS_IS_DURABLE").contains("CHAT_STORE=redis://…"));
        let used = [
            ("memory", "UIMS_MAX_USER_BYTES"),
            ("sqlite", "UIMS_DATA"),
            ("redis://host/", "UIMS_DATA"),
            ("postgresql://host/", "UIMS_DATA"),
            ("redis://host/", "UIMS_REDIS_IS_DURABLE"),
            ("sqlite", "UIMS_MAX_USER_CHATS"),
        ];
        for (store, name) in used {
            check_used(store, only(name)).unwrap();
        }
    }

    #[test]
    fn each_variable_of_the_store_in_memory_sets_its_own_limit() {
        let default = format!("{:?}", memory_store(|_| Ok(None)).unwrap());
        let limits = MEMORY_VARIABLES.map(|(set, _)| {
            let store = memory_store(|name| Ok((name == set).then(|| "7".to_owned()))).unwrap();
            format!("{store:?}")
        });
        for (at, (name, field)) in MEMORY_VARIABLES
            .map(|variable| variable.0)
            .into_iter()
            .zip(["user", "store"])
            .enumerate()
        {
            assert!(limits[at].contains(&format!("{field}: 7")) && limits[at] != default, "{name}");
        }
        let error = memory_store(|_| Ok(Some("many".to_owned()))).unwrap_err().to_string();
        assert!(error.starts_with("UIMS_MAX_USER_BYTES is `many`: set a number"), "{error}");
    }

    #[test]
    fn a_demo_that_was_built_without_tls_says_how_to_build_it_with_tls() {
        let url = "redis://127.0.0.1/,rediss://127.0.0.1/";
        assert_eq!(check_tls(url).is_ok(), cfg!(feature = "tls"));
        assert!(WITHOUT_TLS.contains("cargo run -p demo --features tls --example chat"));
        assert_eq!(check_tls("redis://127.0.0.1/"), Ok(()));
    }
}
