//! Deleting a user deletes everything of this user and nothing of others.

use chat_test_support::deleted_users::{
    a_deleted_user_has_nothing_and_others_keep_theirs, a_deletion_is_in_steps_and_can_be_repeated,
    a_run_of_a_deleted_user_requests_no_approval,
};
use chat_test_support::store_requests::{create, key};
use ui_message_stream::approval::Principal;
use ui_message_stream_postgres::PostgresStore;

use crate::database::Database;

#[tokio::test]
async fn a_deleted_user_has_no_chats_and_approvals_and_others_keep_theirs() {
    let Some((database, store)) = Database::with_store().await else { return };
    let count = async |table: &str| database.count(table).await;
    let delete = async |user: &Principal| delete(&store, user).await;
    a_deleted_user_has_nothing_and_others_keep_theirs(&store, delete, count).await;
}

#[tokio::test]
async fn a_run_that_goes_on_while_its_user_is_deleted_requests_no_approval() {
    let Some((_database, store)) = Database::with_store().await else { return };
    a_run_of_a_deleted_user_requests_no_approval(&store, async |user| {
        store.delete_user(user).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_deletion_lets_others_write_revokes_first_and_is_completed_when_it_is_repeated() {
    let Some((database, store)) = Database::with_store().await else { return };
    let count = async |table: &str| database.count(table).await;
    let delete = async |user: &Principal| delete(&store, user).await;
    let ping = async || store.ping().await.unwrap();
    a_deletion_is_in_steps_and_can_be_repeated(&store, delete, ping, count).await;
}

#[tokio::test]
async fn two_servers_that_delete_a_user_at_the_same_time_delete_each_chat_once() {
    let Some((database, store)) = Database::with_store().await else { return };
    let ada = Principal::new("ada");
    for number in 0..30 {
        create(&store, &key(&ada, &format!("{number:02}"))).await;
    }
    let other = database.open().await;
    let deleted = tokio::join!(delete(&store, &ada), delete(&other, &ada));
    assert_eq!(deleted.0[0] + deleted.1[0], 30);
    assert_eq!((database.count("rows").await, database.count("removed_rows").await), (0, 0));
}

async fn delete(store: &PostgresStore, user: &Principal) -> [usize; 2] {
    let deleted = store.delete_user(user).await.unwrap();
    [deleted.chats, deleted.approvals]
}
