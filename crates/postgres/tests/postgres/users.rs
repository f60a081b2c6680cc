//! Deleting a user deletes everything of this user and nothing of others.

use chat_test_support::deleted_users::{
    self, a_deleted_user_has_nothing_and_others_keep_theirs,
    a_deletion_is_in_steps_and_can_be_repeated, a_run_of_a_deleted_user_requests_no_approval,
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
async fn a_live_run_of_a_deleted_user_stores_nothing_more() {
    let Some((database, store)) = Database::with_store().await else { return };
    let count = async |table: &str| database.count(table).await;
    let delete = async |user: &Principal| delete(&store, user).await;
    deleted_users::a_live_run_of_a_deleted_user_stores_nothing_more(&store, delete, count).await;
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
async fn a_deletion_deletes_the_rest_of_what_another_one_deletes_at_the_same_time() {
    let Some((database, store)) = Database::with_store().await else { return };
    let ada = Principal::new("ada");
    for number in 0..30 {
        create(&store, &key(&ada, &format!("{number:02}"))).await;
    }
    // Another server began to delete the first ones, and has not ended this step.
    let other = database.connect().await;
    let begun = "BEGIN; DELETE FROM logs WHERE key IN (SELECT key FROM logs ORDER BY key LIMIT 20)";
    other.batch_execute(begun).await.unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity \
        WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid))";
    let end = async {
        while other.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::task::yield_now().await;
        }
        other.batch_execute("COMMIT").await.unwrap();
    };
    let (deleted, ()) = tokio::join!(delete(&store, &ada), end);
    assert_eq!((deleted, database.count("logs").await), ([10, 0], 0));
}

async fn delete(store: &PostgresStore, user: &Principal) -> [usize; 2] {
    let deleted = store.delete_user(user).await.unwrap();
    [deleted.chats, deleted.approvals]
}
