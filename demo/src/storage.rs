//! [`Storage`]: where the demo keeps its chats, its approvals and the world of its tools.

use std::env::{VarError, var};
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum_extra::extract::cookie::Key;
use rusqlite::{Connection, OpenFlags};
use ui_message_stream::agent::Agent;
use ui_message_stream::approval::Approvals;
use ui_message_stream::chat::ChatServer;
use ui_message_stream_sqlite::SqliteStore;

use crate::world::SharedWorld;

/// The chats, the approvals, the live responses, the world of the tools, and the key of the cookies.
/// They are in one file, or in memory.
#[derive(Debug)]
pub struct Storage {
    store: Option<SqliteStore>,
    world: Arc<SharedWorld>,
    cookie_key: Vec<u8>,
    description: String,
}

impl Storage {
    /// Opens what the environment variables name. `CHAT_STORE` is `sqlite` (the default) or `memory`;
    /// `UIMS_DATA` is the file of `sqlite` (`chat.db` by default).
    ///
    /// # Errors
    /// If `CHAT_STORE` has another value, or if the file cannot be opened.
    pub async fn open() -> Result<Self, Box<dyn Error>> {
        match text_of("CHAT_STORE")?.as_deref() {
            None | Some("sqlite") => {
                let file = text_of("UIMS_DATA")?.unwrap_or_else(|| "chat.db".to_owned());
                Self::in_file(file.into()).await
            }
            Some("memory") => Self::in_memory(),
            Some(_) => Err("CHAT_STORE is neither `sqlite` nor `memory`".into()),
        }
    }

    async fn in_file(file: PathBuf) -> Result<Self, Box<dyn Error>> {
        let name = file.display().to_string();
        let store = SqliteStore::open(&file).await.map_err(|error| format!("{name}: {error}"))?;
        // The store has created the file, so that no other user can read it.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&file, flags)?;
        Self::with_world(Some(store), connection, format!("in {name}"))
    }

    fn in_memory() -> Result<Self, Box<dyn Error>> {
        Self::with_world(None, Connection::open_in_memory()?, "in memory".to_owned())
    }

    fn with_world(
        store: Option<SqliteStore>,
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
    pub(crate) async fn chat_server(
        &self,
        agent: Agent,
        lease: Option<Duration>,
    ) -> Result<ChatServer, Box<dyn Error>> {
        let mut approvals = Approvals::new(agent.clone());
        if let Some(lease) = lease {
            approvals = approvals.with_lease(lease);
        }
        if let Some(store) = &self.store {
            let keys = store.sealing_key().await?;
            approvals = approvals.with_keys(keys).with_ledger(Arc::new(store.clone()));
        }
        let mut chats = ChatServer::new(agent, approvals);
        if let Some(lease) = lease {
            chats = chats.with_run_lease(lease);
        }
        Ok(match &self.store {
            Some(store) => {
                let store = Arc::new(store.clone());
                chats.with_store(store.clone()).with_run_store(store)
            }
            None => chats,
        })
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
