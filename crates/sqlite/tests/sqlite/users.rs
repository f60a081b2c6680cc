//! Deleting a user deletes everything of this user and nothing of others.

use std::time::Duration;

use chat_test_support::deleted_users::{
    a_deleted_user_has_nothing_and_others_keep_theirs, a_deletion_is_in_steps_and_can_be_repeated,
    a_run_of_a_deleted_user_requests_no_approval,
};
use chat_test_support::store_requests::{append_at, appended, begin, frame, key};
use ui_message_stream::approval::Principal;
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::Folder;

#[tokio::test]
async fn a_deleted_user_has_no_chats_and_approvals_and_others_keep_theirs() {
    let (folder, store) = Folder::with_store().await;
    let count = async |table: &str| folder.count(table);
    let delete = async |user: &Principal| delete(&store, user).await;
    a_deleted_user_has_nothing_and_others_keep_theirs(&store, delete, count).await;
}

#[tokio::test]
async fn what_was_appended_in_the_transaction_that_deletes_the_user_is_not_stored() {
    let (folder, store) = Folder::with_store().await;
    let ada = Principal::new("ada");
    let keys = ["small", "large"].map(|chat| key(&ada, chat));
    for key in &keys {
        begin(&store, key).await;
    }

    // The first operation waits for the lock of another process, and the next transaction holds the others.
    let other = folder.connect();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let unlock = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        other.execute_batch("COMMIT").unwrap();
    };
    let (small, large) = ([frame("a")], [frame(&"b".repeat(20_000))]);
    let (pinged, .., deleted, ()) = tokio::join!(
        store.ping(),
        appended(&store, append_at(&keys[0], 1, &small)),
        appended(&store, append_at(&keys[1], 1, &large)),
        store.delete_user(&ada),
        unlock,
    );
    pinged.unwrap();
    assert_eq!(deleted.unwrap().chats, 2);
    for table in ["logs", "log_entries", "removed_logs"] {
        assert_eq!(folder.count(table), 0, "{table}");
    }
}

#[tokio::test]
async fn a_run_that_goes_on_while_its_user_is_deleted_requests_no_approval() {
    let (_folder, store) = Folder::with_store().await;
    a_run_of_a_deleted_user_requests_no_approval(&store, async |user| {
        store.delete_user(user).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_deletion_lets_others_write_revokes_first_and_is_completed_when_it_is_repeated() {
    let (folder, store) = Folder::with_store().await;
    let count = async |table: &str| folder.count(table);
    let delete = async |user: &Principal| delete(&store, user).await;
    let ping = async || store.ping().await.unwrap();
    a_deletion_is_in_steps_and_can_be_repeated(&store, delete, ping, count).await;
}

async fn delete(store: &SqliteStore, user: &Principal) -> [usize; 2] {
    let deleted = store.delete_user(user).await.unwrap();
    [deleted.chats, deleted.approvals]
}
