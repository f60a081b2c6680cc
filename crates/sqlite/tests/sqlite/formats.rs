//! Schemas and formats: what is newer than this version is refused by name, and what is not a store
//! is left alone.

use std::error::Error;
use test_support::contention::InsertOne;

use test_support::contention;
use test_support::store_requests::{append, begin, chat_of, frame, page, run_key, saved};
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{Principal, RecordId};
use ui_message_stream::chat::log::ReadLog;
use ui_message_stream::chat::store::{ChatStore, RunStore, SaveChat};
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
async fn records_of_a_newer_format_are_errors_that_name_the_format() {
    let folder = Folder::new();
    let store = folder.open().await;
    let ada = Principal::new("ada");
    let chat = chat_of(&ada, "chat", 1);
    saved(&store, SaveChat::new(&chat)).await;
    let record = contention::record(RecordId::from_bytes([1; 16]));
    store.insert(&record).await.unwrap();
    let key = run_key(&ada, "run");
    let _ = begin(&store, &key, 1).await;
    folder
        .connect()
        .execute_batch(
            "UPDATE chats SET head = json_set(head, '$.format', 9);
             UPDATE approvals SET record = json_set(record, '$.format', 9);
             UPDATE runs SET format = 9;",
        )
        .unwrap();
    let read = ReadLog { key: &key, after: 0, max_bytes: 1, is_reader: true };
    let errors: [Box<dyn Error>; 3] = [
        ChatStore::load(&store, &ada, &chat.id).await.unwrap_err().into(),
        LedgerStore::load(&store, &[record.id]).await.unwrap_err().into(),
        store.read(read).await.unwrap_err().into(),
    ];
    for error in errors {
        let cause = error.source().unwrap().to_string();
        assert!(cause.contains("format 9 is newer"), "{cause}");
    }
    // A run is not written either.
    let append = ui_message_stream::chat::log::AppendEntries {
        key: &key,
        fence: ui_message_stream::chat::log::Fence(1),
        position: 0,
        entries: &[frame("a")],
        end: false,
    };
    assert!(store.append(append).await.is_err());
}

#[tokio::test]
async fn each_run_carries_its_format() {
    let folder = Folder::new();
    let store = folder.open().await;
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    let _ = append(&store, &key, 0, &[frame("a")], false).await;
    let format: i64 =
        folder.connect().query_row("SELECT format FROM runs", [], |row| row.get(0)).unwrap();
    assert_eq!(format, 1);
    assert_eq!(page(&store, &key).await.unwrap().length, 1);
}

/// A store refuses a file that other users may read.
fn make_private(file: &std::path::Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).unwrap();
    }
}
