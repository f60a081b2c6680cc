//! [`Folder`]: a folder for the files of one test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;
use ui_message_stream::approval::UnixMillis;
use ui_message_stream_sqlite::{SqliteOptions, SqliteStore};

/// A folder that is deleted at the end of its test.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ui-message-stream-sqlite-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    /// Creates a folder and opens the store in it.
    pub(crate) async fn with_store() -> (Self, SqliteStore) {
        let folder = Self::new();
        let store = folder.open().await;
        (folder, store)
    }

    /// Creates a folder and opens the store in it, with a clock that stands at this second.
    pub(crate) async fn with_store_at(second: u64) -> (Self, SqliteStore) {
        let folder = Self::new();
        let store = folder.open_at(second).await;
        (folder, store)
    }

    /// Returns the path of the store.
    pub(crate) fn file(&self) -> PathBuf {
        self.0.join("chats.db")
    }

    pub(crate) async fn open(&self) -> SqliteStore {
        SqliteStore::open(self.file()).await.unwrap()
    }

    /// Opens the store with a clock that stands at this second.
    pub(crate) async fn open_at(&self, second: u64) -> SqliteStore {
        self.open_with(SqliteOptions::new().with_test_clock(at(second))).await
    }

    pub(crate) async fn open_with(&self, options: SqliteOptions) -> SqliteStore {
        options.open(self.file()).await.unwrap()
    }

    /// Opens the file as another program would.
    pub(crate) fn connect(&self) -> Connection {
        Connection::open(self.file()).unwrap()
    }

    /// Counts the rows of a table, or of one kind of the rows of chats.
    pub(crate) fn count(&self, table: &str) -> i64 {
        let rows = match table {
            "logs" => "rows WHERE substr(name, 1, 1) = CAST('h' AS BLOB)",
            "log_entries" => "items WHERE sequence = 0",
            "log_messages" => "items WHERE sequence = 1",
            "log_snapshots" => "items WHERE sequence = 2",
            "log_ended_runs" => "rows WHERE json_array_length(CAST(body AS TEXT), '$.r') > 0",
            "removed_logs" => "removed_rows",
            table => table,
        };
        let count = format!("SELECT count(*) FROM {rows}");
        self.connect().query_row(&count, [], |row| row.get(0)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the time of this second, and a bit.
pub(crate) fn at(second: u64) -> UnixMillis {
    UnixMillis(1_700_000_000_000 + second * 1000)
}
