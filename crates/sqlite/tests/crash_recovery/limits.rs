//! A disk that takes no more, and a file that may not be written.

use std::error::Error;
use std::time::Duration;

use chat_test_support::kill_trials::block_on;
use chat_test_support::store_requests::{appended, control, creation, key, load};
use test_support::contention::{self, InsertOne};
use test_support::kills::{Backend, Process, Role};
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{ApprovalState, Principal, RecordId, Stepped};
use ui_message_stream_chat::store::{AppendResult, LogKey, LogStore, StoredEntry};
use ui_message_stream_sqlite::{SqliteError, SqliteStore};

use crate::file::File;

pub(crate) fn a_file_that_cannot_grow_or_be_written_is_an_error_and_loses_nothing() -> String {
    let full = the_disk_takes_no_more();
    let read_only = the_file_may_not_be_written();
    format!("{full}; {read_only}")
}

/// The system refuses to let the files of the process grow beyond a limit, as a full disk does.
fn the_disk_takes_no_more() -> String {
    let file = File::new();
    block_on(async {
        let store = file.store().await;
        for id in approvals() {
            assert!(store.insert(&contention::record(id)).await.unwrap());
        }
    });
    file.empty_log();
    // In units of 512 or 1024 bytes, depending on the shell. Without the signal, writing is an error.
    let limited = Process::in_shell("trap '' XFSZ; ulimit -f 1500");
    Process::start_command(limited, "fill", 0, &file).finish();
    let journal = file.journal();
    let [saved, failed, granted] = ["saved", "failed", "granted"].map(|what| journal.after(what));
    assert!(!saved.is_empty() && !failed.is_empty(), "{:?}", journal.lines());
    file.check();
    block_on(async {
        let store = file.store().await;
        for number in 0..CHATS {
            let id = number.to_string();
            let stored = load(&*store, &chat(&id)).await;
            assert_eq!(stored.is_some(), saved.contains(&id), "chat {id}");
            if let Some(stored) = stored {
                assert_eq!(stored.entries, [(0, large_entry(&id))]);
            }
        }
        for id in approvals() {
            let stored = LedgerStore::load(&*store, &[id]).await.unwrap().records.remove(0);
            let is_claimed = matches!(stored.record.state, ApprovalState::Claimed { .. });
            assert_eq!(is_claimed, granted.contains(&id.to_string()), "approval {id}");
        }
        // There is room again.
        appended(&*store, creation(&chat("later"), &[large_entry("later")])).await;
    });
    format!("{} chats saved and {} refused by a full disk", saved.len(), failed.len())
}

/// In the process: saves one chat.
pub(crate) async fn save(store: &SqliteStore) {
    appended(store, creation(&chat("kept"), &[large_entry("kept")])).await;
}

/// In the process: saves chats and claims approvals, and writes what succeeds and what fails.
pub(crate) async fn fill(role: &Role, store: &SqliteStore) {
    let write = |line: String| drop(role.journal.write(line));
    let mut approvals = approvals();
    for number in 0..CHATS {
        let id = number.to_string();
        match store.append(creation(&chat(&id), &[large_entry(&id)])).await {
            Ok(AppendResult::Appended { .. }) => write(format!("saved {id}")),
            Ok(result) => panic!("{result:?}"),
            Err(error) => {
                expect_full(error.source().unwrap());
                write(format!("failed {id}"));
            }
        }
        let Some(id) = approvals.next() else { continue };
        let claimed = contention::claim_for(store, id, 1, Duration::from_secs(3_600)).await;
        match claimed.map(|claimed| claimed.unwrap().1) {
            Ok(Stepped::Granted(_)) => write(format!("granted {id}")),
            Ok(other) => panic!("{other:?}"),
            Err(error) => expect_full(error.source().unwrap()),
        }
    }
}

/// In the process: opens a file that may not be written.
pub(crate) async fn open(role: &Role) {
    let error = SqliteStore::open(&role.store).await.unwrap_err();
    assert!(matches!(error, SqliteError::ReadOnly), "{error:?}");
}

fn expect_full(error: &(dyn Error + 'static)) {
    let error = error.downcast_ref::<SqliteError>().unwrap();
    assert!(matches!(error, SqliteError::Full | SqliteError::Io { .. }), "{error:?}");
}

/// A file that its owner may only read.
#[cfg(unix)]
fn the_file_may_not_be_written() -> String {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    let data = File::new();
    let file = data.path();
    Process::start("save", 0, &data).finish();
    let change = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    // A copy that any user may run, because root may write every file.
    let program = file.with_file_name("program");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(&program);
    let is_root = file.metadata().unwrap().uid() == 0;
    let change_owner = |user| {
        let folder = file.parent().unwrap();
        chown(folder, Some(user), Some(user)).unwrap();
        for file in std::fs::read_dir(folder).unwrap() {
            chown(file.unwrap().path(), Some(user), Some(user)).unwrap();
        }
    };
    if is_root {
        change_owner(NOBODY);
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    }
    change(&program, 0o755);
    change(&file, 0o400);
    Process::start_command(command, "open", 0, &data).finish();
    change(&file, 0o600);
    if is_root {
        // This process opens no file of another user.
        change_owner(0);
    }
    block_on(async {
        let stored = load(&*data.store().await, &chat("kept")).await.unwrap();
        assert_eq!(stored.entries, [(0, large_entry("kept"))]);
    });
    "a file that may not be written is refused".to_owned()
}

#[cfg(not(unix))]
fn the_file_may_not_be_written() -> String {
    "read-only files are not tested on this system".to_owned()
}

fn chat(id: &str) -> LogKey {
    key(&Principal::new("ada"), id)
}

fn large_entry(id: &str) -> StoredEntry {
    control(&format!("{id} {}", "long ".repeat(10_000)))
}

fn approvals() -> impl Iterator<Item = RecordId> {
    (1..=40).map(|number: u8| RecordId::from_bytes([number; 16]))
}

/// The chats need 4 MB.
const CHATS: usize = 80;

#[cfg(unix)]
const NOBODY: u32 = 65_534;
