//! What is kept for how long, by a clock that the tests set.

use std::time::Duration;

use chat_test_support::kept_records;
use chat_test_support::store_requests::{adas, appended, begin, control, creation, end, key, put};
use ui_message_stream::approval::store::{ApprovalUse, ReplayGuard};
use ui_message_stream::approval::{Principal, RecordId, UnixMillis};
use ui_message_stream_chat::store::{AppendLog, LogKey};
use ui_message_stream_postgres::PostgresStore;

use crate::database::{Database, at};

#[tokio::test]
async fn a_record_is_deleted_a_day_after_it_has_expired_and_not_before() {
    let Some((database, store)) = Database::with_store_at(0).await else { return };
    let sweep = async |second| sweep_at(&database, &store, second).await;
    kept_records::a_record_is_deleted_a_day_after_it_has_expired_and_not_before(
        &store,
        |second| UnixMillis(at(second)),
        sweep,
    )
    .await;
}

#[tokio::test]
async fn the_use_of_a_stateless_approval_is_kept_until_its_end() {
    let Some((database, store)) = Database::with_store_at(0).await else { return };
    let id = RecordId::from_bytes([1; 16]);
    store.set_if_absent(id, ApprovalUse::Denied, UnixMillis(at(100))).await.unwrap();
    sweep_at(&database, &store, 100).await;
    assert_eq!(store.first_use(id).await.unwrap(), Some(ApprovalUse::Denied));
    sweep_at(&database, &store, 101).await;
    assert_eq!(store.first_use(id).await.unwrap(), None);
}

#[tokio::test]
async fn fewer_items_are_deleted_at_once_if_postgres_cancels_the_statement() {
    let Some((database, store)) = Database::with_store_at(0).await else { return };
    let ada = Principal::new("ada");
    // As if the deletion of three items took too long.
    database
        .execute(
            "CREATE FUNCTION cancel() RETURNS TRIGGER LANGUAGE plpgsql AS
                 'BEGIN
                     IF (SELECT count(*) FROM deleted) > 2 THEN
                         RAISE EXCEPTION USING ERRCODE = ''query_canceled'';
                     END IF;
                     RETURN NULL;
                 END';
             CREATE TRIGGER slow AFTER DELETE ON items REFERENCING OLD TABLE AS deleted
                 FOR EACH STATEMENT EXECUTE FUNCTION cancel()",
        )
        .await;
    for is_sweep in [true, false] {
        for chat in 0..12 {
            create_for_a_minute(&store, &key(&ada, &chat.to_string())).await;
        }
        match is_sweep {
            true => sweep_at(&database, &store, 60).await,
            false => assert_eq!(store.delete_user(&ada).await.unwrap().chats, 12),
        }
        assert_eq!((database.count("logs").await, database.count("log_entries").await), (0, 0));
    }
}

#[tokio::test]
async fn what_a_sweep_cannot_delete_does_not_keep_it_from_the_rest() {
    let Some((database, store)) = Database::with_store_at(0).await else { return };
    create_for_a_minute(&store, &adas("chat")).await;
    let ended = adas("ended");
    begin(&store, &ended).await;
    end(&store, &ended, 1).await;
    assert!(put(&store, &ended, 2, &["message"]).await);
    database
        .execute(
            "CREATE FUNCTION refuse() RETURNS TRIGGER LANGUAGE plpgsql AS
                 'BEGIN RAISE EXCEPTION USING ERRCODE = ''query_canceled''; END';
             CREATE TRIGGER refuse BEFORE DELETE ON rows FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    database.set_time(600).await;
    let error = PostgresStore::sweep(&store).await.unwrap_err();
    assert!(error.to_string().ends_with(" (SQLSTATE 57014)"), "{error}");
    let ended = "SELECT count(*) FROM rows WHERE body LIKE '%\"r\":[[%'";
    assert_eq!((database.count("logs").await, database.number(ended).await), (2, 0));
}

async fn create_for_a_minute(store: &PostgresStore, key: &LogKey) {
    let (entries, keep_for) = ([control("request")], Some(Duration::from_secs(60)));
    appended(store, AppendLog { keep_for, ..creation(key, &entries) }).await;
}

async fn sweep_at(database: &Database, store: &PostgresStore, second: u64) {
    database.set_time(second).await;
    PostgresStore::sweep(store).await.unwrap();
}
