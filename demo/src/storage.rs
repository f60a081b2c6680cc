//! [`Storage`]: where the demo keeps its chats, its approvals and the world of its tools.

use std::env::{VarError, var};
use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum_extra::extract::cookie::Key;
use rusqlite::{Connection, OpenFlags};
use ui_message_stream::agent::Agent;
use ui_message_stream::approval::{Approvals, KeyRing};
use ui_message_stream::chat::ChatServer;
use ui_message_stream_redis::{RedisOptions, RedisStore, RedisStoreError};
use ui_message_stream_sqlite::SqliteStore;

use crate::world::SharedWorld;

/// The chats, the approvals, the live responses, the world of the tools, and the keys.
pub struct Storage {
    store: Store,
    world: Arc<SharedWorld>,
    cookie_key: Vec<u8>,
    description: String,
}

/// The chats, the approvals and the live responses. A store that outlives the process has the key
/// that seals its approvals.
#[derive(Debug)]
enum Store {
    Memory,
    Sqlite(SqliteStore, KeyRing),
    Redis(RedisStore, KeyRing),
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
    ///
    /// `UIMS_REDIS_IS_DURABLE=true` says that this Redis loses nothing that it has confirmed, as
    /// [`RedisOptions::assume_durable`] does.
    ///
    /// `UIMS_DATA` is the file (`chat.db` by default). Without `memory`, it also holds the world of the
    /// tools, the key that seals the approvals, and the key of the cookies. So several demos of one
    /// machine that share their chats must share the file too, also with Redis.
    ///
    /// # Errors
    /// If one of these variables has another value, if the file cannot be opened, or if Redis does not
    /// answer.
    pub async fn open() -> Result<Self, Box<dyn Error>> {
        match text_of("CHAT_STORE")?.as_deref() {
            None | Some("sqlite") => Self::in_sqlite().await,
            Some("memory") => {
                let connection = Connection::open_in_memory()?;
                Self::with_world(
                    Store::Memory,
                    connection,
                    "Chats and files are in memory.".to_owned(),
                )
            }
            Some(urls) if urls.split(',').all(is_redis) => Self::in_redis(urls).await,
            Some(_) => Err("CHAT_STORE is neither `sqlite`, `memory` nor `redis://…`".into()),
        }
    }

    async fn in_sqlite() -> Result<Self, Box<dyn Error>> {
        let File { name, store, keys, world } = File::open().await?;
        Self::with_world(
            Store::Sqlite(store, keys),
            world,
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
        let store = connected.map_err(|error| format!("CHAT_STORE: {}", with_source(&error)))?;
        let File { name, keys, world, .. } = File::open().await?;
        let description = format!("Chats are in Redis, files and keys in {name}.");
        Self::with_world(Store::Redis(store, keys), world, description)
    }

    fn with_world(
        store: Store,
        connection: Connection,
        description: String,
    ) -> Result<Self, Box<dyn Error>> {
        let world = Arc::new(SharedWorld::new(connection)?);
        let cookie_key = world.cookie_key(|| Key::generate().master().to_vec())?;
        Ok(Storage { store, world, cookie_key, description })
    }

    /// Returns the world of the tools.
    pub fn world(&self) -> Arc<SharedWorld> {
        Arc::clone(&self.world)
    }

    /// Returns where everything is, for people.
    pub(crate) fn description(&self) -> &str {
        &self.description
    }

    /// Returns the key that signs the cookies.
    pub(crate) fn cookie_key(&self) -> Key {
        Key::from(&self.cookie_key)
    }

    /// Creates a server that keeps its chats here. `lease` is the time after which a run or a tool call
    /// counts as lost with its server.
    pub(crate) fn chat_server(&self, agent: Agent, lease: Option<Duration>) -> ChatServer {
        let mut approvals = Approvals::new(agent.clone());
        if let Some(lease) = lease {
            approvals = approvals.with_lease(lease);
        }
        approvals = match &self.store {
            Store::Memory => approvals,
            Store::Sqlite(store, keys) => {
                approvals.with_keys(keys.clone()).with_ledger(Arc::new(store.clone()))
            }
            Store::Redis(store, keys) => {
                approvals.with_keys(keys.clone()).with_ledger(Arc::new(store.clone()))
            }
        };
        let mut chats = ChatServer::new(agent, approvals);
        if let Some(lease) = lease {
            chats = chats.with_run_lease(lease);
        }
        match &self.store {
            Store::Memory => chats,
            Store::Sqlite(store, _) => {
                let store = Arc::new(store.clone());
                chats.with_store(store.clone()).with_run_store(store)
            }
            Store::Redis(store, _) => {
                let store = Arc::new(store.clone());
                chats.with_store(store.clone()).with_run_store(store)
            }
        }
    }

    /// Returns a check whether the store can be written now.
    pub(crate) fn readiness(&self) -> Readiness {
        Readiness(match &self.store {
            Store::Memory => Check::None,
            Store::Sqlite(store, _) => Check::Sqlite(store.clone()),
            Store::Redis(store, _) => Check::Redis(store.clone()),
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
}

impl Readiness {
    /// Writes to the store.
    pub(crate) async fn check(&self) -> Result<(), Box<dyn Error + Send + Sync>> {
        match &self.0 {
            Check::None => {}
            Check::Sqlite(store) => store.ping().await?,
            Check::Redis(store) => store.ping().await?,
        }
        Ok(())
    }
}

/// The file that `UIMS_DATA` names.
struct File {
    name: String,
    store: SqliteStore,
    keys: KeyRing,
    world: Connection,
}

impl File {
    async fn open() -> Result<Self, Box<dyn Error>> {
        let file = text_of("UIMS_DATA")?.unwrap_or_else(|| "chat.db".to_owned());
        let file = PathBuf::from(file);
        let name = file.display().to_string();
        let store = SqliteStore::open(&file).await.map_err(|error| format!("{name}: {error}"))?;
        let keys = store.sealing_key().await?;
        // The store has created the file, so that no other user can read it.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let world = Connection::open_with_flags(&file, flags)?;
        Ok(File { name, store, keys, world })
    }
}

/// Returns an error if a URL needs TLS and this build has none.
fn check_tls(urls: &str) -> Result<(), &'static str> {
    match urls.contains("rediss://") && !cfg!(feature = "tls") {
        true => Err(WITHOUT_TLS),
        false => Ok(()),
    }
}

/// The cryptography of TLS takes long to compile.
const WITHOUT_TLS: &str = "CHAT_STORE: this demo was built without TLS; \
                           `cargo run -p demo --features tls --example chat` builds it with TLS";

fn is_redis(url: &str) -> bool {
    url.starts_with("redis://") || url.starts_with("rediss://")
}

/// Returns the texts of an error and of its source.
fn with_source(error: &RedisStoreError) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
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
    fn a_demo_that_was_built_without_tls_says_how_to_build_it_with_tls() {
        let url = "redis://127.0.0.1/,rediss://127.0.0.1/";
        assert_eq!(check_tls(url).is_ok(), cfg!(feature = "tls"));
        assert!(WITHOUT_TLS.contains("cargo run -p demo --features tls --example chat"));
        assert_eq!(check_tls("redis://127.0.0.1/"), Ok(()));
    }
}
