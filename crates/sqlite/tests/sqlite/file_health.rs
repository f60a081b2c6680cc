//! The file itself: complete when the store is idle, checked while the store runs, and refused if other
//! users of the machine can read it.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::PathBuf;
use std::time::Duration;

use chat_test_support::store_requests::{adas, control, create, creation, key, load};
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::LogStore;
use ui_message_stream_sqlite::{SqliteError, SqliteStore};

use crate::folder::Folder;

fn wal(folder: &Folder) -> PathBuf {
    folder.file().with_extension("db-wal")
}

async fn save_chat(store: &SqliteStore, id: &str) {
    create(store, &key(&Principal::new("ada"), id)).await;
}

/// Opens a copy of the file without its `-wal`, and returns whether it holds the chat.
async fn copy_holds(folder: &Folder, id: &str) -> bool {
    let copy = Folder::new();
    fs::copy(folder.file(), copy.file()).unwrap();
    let store = copy.open().await;
    load(&store, &key(&Principal::new("ada"), id)).await.is_some()
}

#[tokio::test]
async fn after_a_checkpoint_a_copy_of_the_file_alone_holds_everything() {
    let (folder, store) = Folder::with_store().await;
    save_chat(&store, "chat").await;
    assert!(!copy_holds(&folder, "chat").await);
    store.checkpoint().await.unwrap();
    assert_eq!(fs::metadata(wal(&folder)).unwrap().len(), 0);
    assert!(copy_holds(&folder, "chat").await);
}

#[tokio::test]
async fn an_idle_store_moves_its_log_into_the_file() {
    let (folder, store) = Folder::with_store().await;
    save_chat(&store, "chat").await;
    test_support::eventually(async || fs::metadata(wal(&folder)).unwrap().len() == 0).await;
    assert!(copy_holds(&folder, "chat").await);
}

#[tokio::test]
async fn a_checkpoint_fails_while_another_process_writes() {
    let folder = Folder::new();
    let options = ui_message_stream_sqlite::SqliteOptions::new();
    let store = folder.open_with(options.with_busy_timeout(Duration::from_millis(20))).await;
    save_chat(&store, "chat").await;
    let other = folder.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(matches!(store.checkpoint().await, Err(SqliteError::Busy)));
    other.execute_batch("COMMIT").unwrap();
    store.checkpoint().await.unwrap();
}

#[tokio::test]
async fn a_file_that_was_removed_or_replaced_while_it_was_open_is_not_written() {
    for suffix in ["db", "db-wal"] {
        for is_replaced in [false, true] {
            let (folder, store) = Folder::with_store().await;
            save_chat(&store, "chat").await;
            store.ping().await.unwrap();
            let file = folder.file().with_extension(suffix);
            let aside = folder.file().with_extension("aside");
            fs::rename(&file, &aside).unwrap();
            if is_replaced {
                fs::copy(&aside, &file).unwrap();
            }
            let error = store.ping().await.unwrap_err();
            assert!(matches!(&error, SqliteError::Removed { path } if *path == file), "{error}");
            assert!(error.to_string().contains("docs/operations.md"), "{error}");
            // What is written now would be lost.
            let lost = adas("lost");
            let error = store.append(creation(&lost, &[control("lost")])).await.unwrap_err();
            let cause = std::error::Error::source(&error).unwrap().downcast_ref();
            assert!(matches!(cause, Some(SqliteError::Removed { .. })), "{cause:?}");
            // It is at its place again.
            fs::rename(&aside, &file).unwrap();
            store.ping().await.unwrap();
            assert!(load(&store, &lost).await.is_none());
            create(&store, &lost).await;
        }
    }
}

#[tokio::test]
async fn a_file_that_was_damaged_while_it_was_open_is_not_ready() {
    let open = |folder: &Folder| OpenOptions::new().write(true).open(folder.file()).unwrap();
    let garbage = |folder: &Folder, from: u64| {
        let mut file = open(folder);
        file.seek(SeekFrom::Start(from)).unwrap();
        file.write_all(&[0xA5; 80 << 10]).unwrap();
    };
    // `None` empties the file. The first page names the tables.
    for garbage_from in [Some(0), Some(4096), None] {
        let (folder, store) = Folder::with_store().await;
        save_chat(&store, "chat").await;
        store.checkpoint().await.unwrap();
        store.ping().await.unwrap();
        match garbage_from {
            Some(from) => garbage(&folder, from),
            None => open(&folder).set_len(0).unwrap(),
        }
        let error = store.ping().await.unwrap_err();
        assert!(matches!(error, SqliteError::Corrupt), "{garbage_from:?}: {error}");
        // It stays so, also if the write itself fails with an error of the disk.
        assert!(store.ping().await.is_err());
    }
}

#[tokio::test]
async fn a_file_of_another_owner_is_refused() {
    for suffix in ["db", "db-wal"] {
        let folder = Folder::new();
        let file = folder.file().with_extension(suffix);
        for file in [&folder.file(), &file] {
            fs::write(file, "").unwrap();
            fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
        }
        // Only root may give a file away.
        if chown(&file, Some(65534), None).is_err() {
            return;
        }
        let error = SqliteStore::open(folder.file()).await.unwrap_err();
        let SqliteError::FileOwner { path, owner: 65534, .. } = &error else { panic!("{error}") };
        assert_eq!(*path, file);
    }
}

#[tokio::test]
async fn a_link_into_a_folder_of_others_is_refused() {
    for (mode, is_refused) in [(0o777, true), (0o1777, true), (0o770, true), (0o755, false)] {
        let (folder, target) = (Folder::new(), Folder::new());
        drop(target.open().await);
        let shared = target.file().parent().unwrap().to_owned();
        fs::set_permissions(&shared, Permissions::from_mode(mode)).unwrap();
        symlink(target.file(), folder.file()).unwrap();
        match SqliteStore::open(folder.file()).await {
            Err(SqliteError::SharedFolder { path, mode: found, .. }) => {
                assert_eq!((path, found, is_refused), (folder.file(), mode, true));
            }
            opened => assert!(opened.is_ok() && !is_refused, "{mode:o}: {opened:?}"),
        }
    }
}
