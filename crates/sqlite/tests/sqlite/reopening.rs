//! What was stored is there after the store was closed and opened again, and in another store on the
//! same file.

use chat_test_support::store_requests::{
    adas, append_at, appended, begin, create, frame, key, load, note, put,
};
use test_support::contention;
use test_support::contention::InsertOne;
use test_support::external_processes::number;
use tokio::task::JoinSet;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{Principal, RecordId};
use ui_message_stream_chat::store::{AppendLog, ListChats, ListedChat, LogStore};
use ui_message_stream_sqlite::{SqliteError, SqliteStore};

use crate::folder::Folder;

#[tokio::test]
async fn everything_is_there_after_the_file_was_closed_and_opened_again() {
    let folder = Folder::new();
    let ada = Principal::new("ada").with_tenant("engines");
    let record = contention::record(RecordId::from_bytes([1; 16]));
    let key = key(&ada, "chat");
    let entries = [frame("a"), note("b\n\0")];

    let store = folder.open().await;
    assert!(store.insert(&record).await.unwrap());
    begin(&store, &key).await;
    let listed = Some(ListedChat { title: "Title", has_questions: true });
    appended(&store, AppendLog { listed, ..append_at(&key, 1, &entries) }).await;
    assert!(put(&store, &key, 1, &["one", "two", "three"]).await);
    let before = load(&store, &key).await.unwrap();
    drop(store);

    let store = folder.open().await;
    let mut after = load(&store, &key).await.unwrap();
    after.head.unread = before.head.unread;
    assert_eq!(after, before);
    assert_eq!((after.entries.len(), after.head.length), (2, 3));
    let list = ListChats { limit: 2, after: None, search: None };
    let listed = store.list(&ada, list).await.unwrap().chats;
    assert_eq!(
        (&*listed[0].title, listed[0].is_live, listed[0].has_questions),
        ("Title", true, true)
    );
    let stored = LedgerStore::load(&store, &[record.id]).await.unwrap().records.remove(0);
    assert_eq!(stored.record, record);
    // The run goes on.
    appended(&store, append_at(&key, 3, &[frame("c")])).await;
}

#[tokio::test]
async fn a_new_file_can_be_opened_by_many_at_once() {
    for _ in 0..number("NEW_FILES", 30) {
        let folder = Folder::new();
        let opening: JoinSet<_> = (0..4).map(|_| SqliteStore::open(folder.file())).collect();
        for store in opening.join_all().await {
            store.unwrap().ping().await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_path_that_cannot_be_the_file_is_an_error_that_says_why() {
    let folder = Folder::new();
    let inside = folder.file();
    for (path, why) in [
        (inside.parent().unwrap().to_owned(), "it is a folder; name a file in it"),
        (inside.join("chats.db"), "its folder does not exist; create it"),
    ] {
        let error = SqliteStore::open(path).await.unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(matches!(error, SqliteError::File(_)) && source.starts_with(why), "{source}");
    }
}

#[tokio::test]
async fn a_backup_that_is_opened_uses_wal() {
    let (folder, restored) = (Folder::new(), Folder::new());
    let key = adas("chat");
    let store = folder.open().await;
    create(&store, &key).await;
    let backup = restored.file();
    std::fs::File::create(&backup).unwrap();
    #[cfg(unix)]
    set_mode(&restored, "", 0o600);
    folder.connect().execute("VACUUM INTO ?1", [backup.to_str().unwrap()]).unwrap();
    let mode = || -> String {
        restored.connect().pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap()
    };
    assert_eq!(mode(), "delete");
    let store = restored.open().await;
    assert_eq!(mode(), "wal");
    assert!(load(&store, &key).await.is_some());
}

#[tokio::test]
async fn a_new_file_has_pages_of_2_kib_and_another_one_keeps_its_own() {
    for (before, after) in [(None, 2_048), (Some(4_096), 4_096)] {
        let folder = Folder::new();
        if let Some(bytes) = before {
            let earlier = folder.connect();
            earlier.pragma_update(None, "page_size", bytes).unwrap();
            earlier.execute_batch("CREATE TABLE t (a); DROP TABLE t;").unwrap();
            #[cfg(unix)]
            set_mode(&folder, "", 0o600);
        }
        let _store = folder.open().await;
        let bytes: i64 =
            folder.connect().pragma_query_value(None, "page_size", |row| row.get(0)).unwrap();
        assert_eq!(bytes, after);
    }
}

#[tokio::test]
async fn the_sealing_key_is_created_once_and_stays_the_same() {
    let (folder, store) = Folder::with_store().await;
    assert_eq!(folder.count("sealing_key"), 0);
    let record = contention::record(RecordId::from_bytes([1; 16]));
    let other = folder.open().await;
    let (first, second) = tokio::join!(store.sealing_key(), other.sealing_key());
    drop((store, other));
    let third = folder.open().await.sealing_key().await;
    let keys = [first, second, third].map(Result::unwrap);
    let active = format!("{:?}", keys[0]);
    for key in &keys {
        assert_eq!(format!("{key:?}"), active);
    }
    let mut sealed = record;
    sealed.key_id = keys[0].active_key_id();
    let ids = keys.map(|keys| sealed.approval_id(&keys, sealed.requested_at).unwrap());
    assert!(ids.iter().all(|id| *id == ids[0]));
}

#[cfg(unix)]
#[tokio::test]
async fn the_file_and_its_log_give_other_users_no_access() {
    let (folder, store) = Folder::with_store().await;
    store.ping().await.unwrap();
    for suffix in ["", "-wal", "-shm"] {
        assert_eq!(mode(&folder, suffix), 0o600, "{suffix}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_gives_other_users_access_is_refused_and_not_changed() {
    use ui_message_stream_sqlite::{SqliteError, SqliteStore};

    let folder = Folder::new();
    for (suffix, wide) in [("", 0o644), ("", 0o640), ("", 0o602), ("-wal", 0o604), ("-shm", 0o660)]
    {
        // While a store is open, the log is there.
        let store = folder.open().await;
        store.ping().await.unwrap();
        set_mode(&folder, suffix, wide);
        let refused = SqliteStore::open(folder.file()).await.unwrap_err();
        let SqliteError::FileMode { mode: named, path, .. } = &refused else { panic!("{refused}") };
        assert_eq!(*named, wide);
        assert!(path.to_str().unwrap().ends_with(&format!("chats.db{suffix}")));
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
        assert_eq!(mode(&folder, suffix), wide);
        set_mode(&folder, suffix, 0o600);
        // The store that was open has not lost its locks, and goes on.
        store.ping().await.unwrap();
    }
}

#[cfg(unix)]
fn mode(folder: &Folder, suffix: &str) -> u32 {
    use std::os::unix::fs::PermissionsExt;

    std::fs::metadata(beside(folder, suffix)).unwrap().permissions().mode() & 0o7777
}

#[cfg(unix)]
fn set_mode(folder: &Folder, suffix: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;

    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(beside(folder, suffix), permissions).unwrap();
}

#[cfg(unix)]
fn beside(folder: &Folder, suffix: &str) -> String {
    format!("{}{suffix}", folder.file().to_str().unwrap())
}
