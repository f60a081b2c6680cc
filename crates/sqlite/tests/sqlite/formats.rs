//! Schemas and formats: what is newer than this version is refused by name, and what is not a store
//! is left alone.

use std::error::Error;
use test_support::contention::InsertOne;

use chat_test_support::store_requests::{adas, begin};
use test_support::contention;
use ui_message_stream::approval::RecordId;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream_chat::store::{LoadLog, LogStore};
use ui_message_stream_sqlite::{SqliteError, SqliteStore};

use crate::folder::Folder;

#[tokio::test]
async fn a_newer_schema_is_refused_and_not_changed() {
    let folder = Folder::new();
    drop(folder.open().await);
    folder.connect().pragma_update(None, "user_version", 99).unwrap();
    let refused = SqliteStore::open(folder.file()).await.unwrap_err();
    assert!(matches!(refused, SqliteError::NewerSchema { schema: 99, .. }), "{refused}");
    assert!(refused.to_string().contains("upgrade the server"), "{refused}");
    let schema: i64 =
        folder.connect().pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(schema, 99);
}

#[tokio::test]
async fn a_file_with_an_older_schema_is_refused_by_name() {
    let folder = Folder::new();
    drop(folder.open().await);
    folder.connect().pragma_update(None, "user_version", 1).unwrap();
    let refused = SqliteStore::open(folder.file()).await.unwrap_err();
    assert!(matches!(refused, SqliteError::OlderSchema { schema: 1, .. }), "{refused}");
}

#[tokio::test]
async fn the_database_of_another_program_and_any_other_file_are_refused_and_not_changed() {
    let folder = Folder::new();
    folder.connect().execute_batch("CREATE TABLE customers (name TEXT)").unwrap();
    make_private(&folder.file());
    let refused = SqliteStore::open(folder.file()).await.unwrap_err();
    assert!(matches!(refused, SqliteError::OtherDatabase), "{refused}");
    assert_eq!(folder.count("sqlite_schema"), 1);

    let text = "Dear Ada, this is no database. ".repeat(100);
    std::fs::write(folder.file(), &text).unwrap();
    let refused = SqliteStore::open(folder.file()).await.unwrap_err();
    assert!(matches!(refused, SqliteError::OtherDatabase), "{refused}");
    assert_eq!(std::fs::read_to_string(folder.file()).unwrap(), text);
}

#[tokio::test]
async fn a_store_in_a_folder_that_does_not_exist_is_an_error() {
    let folder = Folder::new();
    let file = folder.file().with_file_name("missing").join("chats.db");
    assert!(matches!(SqliteStore::open(file).await, Err(SqliteError::File(_))));
}

#[tokio::test]
async fn an_approval_of_a_newer_format_is_an_error_that_names_the_format() {
    let (folder, store) = Folder::with_store().await;
    let record = contention::record(RecordId::from_bytes([1; 16]));
    store.insert(&record).await.unwrap();
    let newer = "UPDATE approvals SET record = json_set(record, '$.format', 9)";
    assert_eq!(folder.connect().execute(newer, []).unwrap(), 1);
    let error = LedgerStore::load(&store, &[record.id]).await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains("format 9 is newer"), "{cause}");
}

#[tokio::test]
async fn what_this_version_does_not_write_in_a_log_is_an_error() {
    let (folder, store) = Folder::with_store().await;
    let key = adas("chat");
    begin(&store, &key).await;
    let read = LoadLog { key: &key, has_frames: true, has_messages: true };
    for damage in ["UPDATE items SET kind = 9", "UPDATE rows SET body = x'FF'"] {
        folder.connect().execute(damage, []).unwrap();
        let error = LogStore::load(&store, read).await.unwrap_err();
        let cause = error.source().unwrap().to_string();
        assert!(cause.contains("a stored row cannot be read"), "{cause}");
    }
}

/// A store refuses a file that other users may read.
fn make_private(file: &std::path::Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
}
