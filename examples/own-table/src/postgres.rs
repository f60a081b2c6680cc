//! [`PostgresTable`]: the messages in Postgres.

use std::sync::Arc;

use tokio::sync::Mutex;
use tokio_postgres::{Client, NoTls};
use ui_message_stream::{BoxError, UiMessage};

use crate::{ChatKey, MessageTable};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS chats (
        owner TEXT NOT NULL, chat TEXT NOT NULL, version BIGINT NOT NULL,
        PRIMARY KEY (owner, chat));
    CREATE TABLE IF NOT EXISTS messages (
        owner TEXT NOT NULL, chat TEXT NOT NULL, place BIGINT NOT NULL, message TEXT NOT NULL,
        PRIMARY KEY (owner, chat, place));";

/// The messages in Postgres, each in a row. A real server has a pool of connections.
#[derive(Debug, Clone)]
pub struct PostgresTable(Arc<Mutex<Client>>);

impl PostgresTable {
    /// Connects to the database, and creates the tables in it.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn connect(url: &str) -> Result<Self, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute(TABLES).await?;
        Ok(PostgresTable(Arc::new(Mutex::new(client))))
    }
}

impl MessageTable for PostgresTable {
    async fn load(&self, key: ChatKey) -> Result<(Vec<UiMessage>, i64), BoxError> {
        let mut client = self.0.lock().await;
        // Both statements read the same version.
        let transaction = client.build_transaction();
        let transaction =
            transaction.isolation_level(tokio_postgres::IsolationLevel::RepeatableRead);
        let transaction = transaction.start().await?;
        let (owner, chat) = (key.owner(), key.chat.as_str());
        let version = "SELECT version FROM chats WHERE owner = $1 AND chat = $2";
        let version = transaction.query_opt(version, &[&owner, &chat]).await?;
        let rows = "SELECT message FROM messages WHERE owner = $1 AND chat = $2 ORDER BY place";
        let rows = transaction.query(rows, &[&owner, &chat]).await?;
        let messages = rows.iter().map(|row| UiMessage::parse(row.get(0)));
        Ok((messages.collect::<Result<_, _>>()?, version.map_or(0, |row| row.get(0))))
    }

    async fn replace(
        &self,
        key: ChatKey,
        version: i64,
        kept: usize,
        messages: Vec<UiMessage>,
    ) -> Result<Option<i64>, BoxError> {
        let mut client = self.0.lock().await;
        let transaction = client.transaction().await?;
        let (owner, chat) = (key.owner(), key.chat.as_str());
        let insert = "INSERT INTO chats VALUES ($1, $2, 0) ON CONFLICT DO NOTHING";
        transaction.execute(insert, &[&owner, &chat]).await?;
        let update = "UPDATE chats SET version = version + 1 \
                      WHERE owner = $1 AND chat = $2 AND version = $3";
        if transaction.execute(update, &[&owner, &chat, &version]).await? == 0 {
            return Ok(None);
        }
        let delete = "DELETE FROM messages WHERE owner = $1 AND chat = $2 AND place >= $3";
        transaction.execute(delete, &[&owner, &chat, &i64::try_from(kept)?]).await?;
        let insert = "INSERT INTO messages VALUES ($1, $2, $3, $4)";
        for (place, message) in (i64::try_from(kept)?..).zip(&messages) {
            let message = serde_json::to_string(message)?;
            transaction.execute(insert, &[&owner, &chat, &place, &message]).await?;
        }
        transaction.commit().await?;
        Ok(Some(version + 1))
    }
}
