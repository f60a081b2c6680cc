//! [`SqliteTable`]: the messages in SQLite.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, params};
use tokio::task::spawn_blocking;
use ui_message_stream::{BoxError, UiMessage};

use crate::{ChatKey, MessageTable};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS chats (
        owner TEXT NOT NULL, chat TEXT NOT NULL, version INTEGER NOT NULL,
        PRIMARY KEY (owner, chat));
    CREATE TABLE IF NOT EXISTS messages (
        owner TEXT NOT NULL, chat TEXT NOT NULL, place INTEGER NOT NULL, message TEXT NOT NULL,
        PRIMARY KEY (owner, chat, place));";

/// The messages in SQLite, each in a row.
#[derive(Debug, Clone)]
pub struct SqliteTable(Arc<Mutex<Connection>>);

impl SqliteTable {
    /// Opens the file, and creates the tables in it.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn open(path: &Path) -> Result<Self, rusqlite::Error> {
        let connection = Connection::open(path)?;
        connection.execute_batch(TABLES)?;
        Ok(SqliteTable(Arc::new(Mutex::new(connection))))
    }

    async fn with<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Connection) -> Result<T, BoxError> + Send + 'static,
    ) -> Result<T, BoxError> {
        let connection = self.0.clone();
        let call = move || call(&mut connection.lock().unwrap_or_else(PoisonError::into_inner));
        spawn_blocking(call).await?
    }
}

impl MessageTable for SqliteTable {
    async fn load(&self, key: ChatKey) -> Result<(Vec<UiMessage>, i64), BoxError> {
        let load = move |connection: &mut Connection| {
            let key = (key.owner(), key.chat.as_str());
            let transaction = connection.transaction()?;
            let mut versions =
                transaction.prepare("SELECT version FROM chats WHERE owner = ?1 AND chat = ?2")?;
            let version = versions.query(key)?.next()?.map_or(Ok(0), |row| row.get(0))?;
            let mut rows = transaction.prepare(
                "SELECT message FROM messages WHERE owner = ?1 AND chat = ?2 ORDER BY place",
            )?;
            let mut messages = Vec::new();
            let mut rows = rows.query(key)?;
            while let Some(row) = rows.next()? {
                messages.push(UiMessage::parse(&row.get::<_, String>(0)?)?);
            }
            Ok((messages, version))
        };
        self.with(load).await
    }

    async fn replace(
        &self,
        key: ChatKey,
        version: i64,
        kept: usize,
        messages: Vec<UiMessage>,
    ) -> Result<Option<i64>, BoxError> {
        let replace = move |connection: &mut Connection| {
            let (owner, chat) = (key.owner(), key.chat.as_str());
            let transaction = connection.transaction()?;
            transaction.execute(
                "INSERT INTO chats VALUES (?1, ?2, 0) ON CONFLICT DO NOTHING",
                params![owner, chat],
            )?;
            let changed = transaction.execute(
                "UPDATE chats SET version = version + 1 WHERE owner = ?1 AND chat = ?2 AND version = ?3",
                params![owner, chat, version],
            )?;
            if changed == 0 {
                return Ok(None);
            }
            transaction.execute(
                "DELETE FROM messages WHERE owner = ?1 AND chat = ?2 AND place >= ?3",
                params![owner, chat, i64::try_from(kept)?],
            )?;
            for (place, message) in (i64::try_from(kept)?..).zip(&messages) {
                transaction.execute(
                    "INSERT INTO messages VALUES (?1, ?2, ?3, ?4)",
                    params![owner, chat, place, serde_json::to_string(message)?],
                )?;
            }
            transaction.commit()?;
            Ok(Some(version + 1))
        };
        self.with(replace).await
    }
}
