//! [`File`]: the file of a trial, in a folder of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use test_support::external_processes::DataFolder;
use test_support::kills::Backend;
use ui_message_stream_sqlite::SqliteStore;

pub(crate) struct File(DataFolder);

impl File {
    pub(crate) fn new() -> Self {
        File(DataFolder::new())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder().join("chats.db")
    }

    pub(crate) async fn store(&self) -> Arc<SqliteStore> {
        Self::open(&self.address()).await
    }

    /// Moves the write-ahead log into the file, which the last connection of a process does too.
    pub(crate) fn empty_log(&self) {
        let connection = Connection::open(self.path()).unwrap();
        connection.busy_timeout(test_support::patience()).unwrap();
        let empty = "PRAGMA wal_checkpoint(TRUNCATE)";
        let is_busy: bool = connection.query_row(empty, [], |row| row.get(0)).unwrap();
        assert!(!is_busy);
    }
}

impl Backend for File {
    type Store = SqliteStore;

    fn folder(&self) -> &Path {
        self.0.path()
    }

    fn address(&self) -> String {
        self.path().to_str().unwrap().to_owned()
    }

    async fn open(address: &str) -> Arc<SqliteStore> {
        Arc::new(SqliteStore::open(address).await.unwrap())
    }

    /// Checks the file as SQLite does.
    fn check(&self) {
        let connection = Connection::open(self.path()).unwrap();
        let integrity = connection.pragma_query_value(None, "integrity_check", |row| row.get(0));
        assert_eq!(integrity, Ok("ok".to_owned()));
        let mut dangling = 0;
        connection
            .pragma_query(None, "foreign_key_check", |_| {
                dangling += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(dangling, 0);
    }
}
