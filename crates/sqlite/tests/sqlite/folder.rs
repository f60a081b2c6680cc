//! [`Folder`]: a folder for the files of one test.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rusqlite::Connection;
use ui_message_stream::approval::{LeaseHolderId, Principal, UnixMillis};
use ui_message_stream::chat::Chat;
use ui_message_stream::chat::log::{
    AppendEntries, AppendResult, BeginResult, BeginRun, Fence, LogEntry, LogPage, ReadLog, RunKey,
};
use ui_message_stream::chat::store::{ChatStore, RunStore, SaveChat, SaveResult};
use ui_message_stream::message::{Part, Role, UiMessage};
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

    pub(crate) fn count(&self, table: &str) -> i64 {
        let count = format!("SELECT count(*) FROM {table}");
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

pub(crate) fn chat_of(owner: &Principal, id: &str, messages: usize) -> Chat {
    let mut chat = Chat::new(id, owner.clone());
    for at in 0..messages {
        let part = Part::text(format!("text {at}"));
        chat.messages.push(UiMessage::new(format!("m{at}"), Role::User, vec![part]));
    }
    chat
}

pub(crate) async fn saved(store: &SqliteStore, save: SaveChat<'_>) -> u64 {
    match store.save(save).await.unwrap() {
        SaveResult::Saved(revision) => revision,
        SaveResult::Conflict => panic!("a conflict"),
    }
}

pub(crate) fn run_key(owner: &Principal, run: &str) -> RunKey {
    RunKey { owner: owner.clone(), chat: "chat".into(), run: run.into() }
}

pub(crate) async fn begin(store: &SqliteStore, key: &RunKey, max_user_runs: usize) -> BeginResult {
    let lease = Duration::from_secs(10);
    store.begin(BeginRun { key, holder: holder(1), lease, max_user_runs }).await.unwrap()
}

pub(crate) fn holder(number: u8) -> LeaseHolderId {
    LeaseHolderId::from_bytes([number; 16])
}

pub(crate) fn frame(text: &str) -> LogEntry {
    LogEntry::Frame(Bytes::copy_from_slice(text.as_bytes()))
}

/// Appends with the fence of the holder that began the run.
pub(crate) async fn append(
    store: &SqliteStore,
    key: &RunKey,
    position: u64,
    entries: &[LogEntry],
    end: bool,
) -> AppendResult {
    let append = AppendEntries { key, fence: Fence(1), position, entries, end };
    store.append(append).await.unwrap()
}

/// Appends, which must not be refused.
pub(crate) async fn appended(
    store: &SqliteStore,
    key: &RunKey,
    position: u64,
    entries: &[LogEntry],
    end: bool,
) {
    let result = append(store, key, position, entries, end).await;
    assert!(matches!(result, AppendResult::Appended(_)), "{result:?}");
}

pub(crate) async fn page(store: &SqliteStore, key: &RunKey) -> Option<LogPage> {
    let read = ReadLog { key, after: 0, max_bytes: usize::MAX, is_reader: false };
    store.read(read).await.unwrap()
}
