//! What is kept for how long, by a clock that the tests set.

use std::time::Duration;
use test_support::contention::InsertOne;

use test_support::contention;
use test_support::store_requests::{append, appended, begin, chat_of, frame, page, run_key, saved};
use ui_message_stream::approval::store::{ApprovalUse, LedgerStore, RECORD_RETENTION, ReplayGuard};
use ui_message_stream::approval::{Principal, RecordId, UnixMillis};
use ui_message_stream::chat::log::{AppendResult, BeginResult, Fence, ReadLog, RunState};
use ui_message_stream::chat::store::{ChatStore, RunStore, SaveChat, VersionedChat};
use ui_message_stream_postgres::PostgresStore;

use crate::database::{Database, at};

#[tokio::test]
async fn an_ended_log_is_deleted_after_ten_minutes_and_not_before() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(0).await;
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    appended(&store, &key, 0, &[frame("a")], true).await;
    sweep_at(&database, &store, 599).await;
    assert_eq!(page(&store, &key).await.unwrap().state, RunState::Ended);
    sweep_at(&database, &store, 600).await;
    assert!(page(&store, &key).await.is_none());
    assert_eq!(database.count("run_entries").await, 0);
}

#[tokio::test]
async fn a_live_run_is_not_deleted_and_a_lost_one_is_after_seven_days() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(0).await;
    let ada = Principal::new("ada");
    let (live, lapsed) = (run_key(&ada, "live"), run_key(&ada, "lapsed"));
    for key in [&live, &lapsed] {
        assert_eq!(begin(&store, key, 9).await, BeginResult::Begun(Fence(1)));
    }
    // The lease is 10 seconds.
    let end = 10 + 7 * 24 * 60 * 60;
    for second in [300, end - 1] {
        sweep_at(&database, &store, second).await;
        appended(&store, &live, 0, &[], false).await;
    }
    assert_eq!(page(&store, &lapsed).await.unwrap().state, RunState::LeasePassed);
    sweep_at(&database, &store, end).await;
    assert!(page(&store, &lapsed).await.is_none());
    assert_eq!(page(&store, &live).await.unwrap().state, RunState::Leased);
}

#[tokio::test]
async fn a_read_before_the_clock_was_set_back_by_an_hour_does_not_count() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(3600).await;
    let ada = Principal::new("ada");
    let (read, unread) = (run_key(&ada, "read"), run_key(&ada, "unread"));
    for key in [&read, &unread] {
        assert_eq!(begin(&store, key, 2).await, BeginResult::Begun(Fence(1)));
    }
    database.set_time(0).await;
    for key in [&read, &unread] {
        appended(&store, key, 0, &[], false).await;
    }
    let reads = ReadLog { key: &read, after: 0, max_bytes: 1, is_reader: true };
    store.read(reads).await.unwrap();
    for (third, expected) in [
        ("third", BeginResult::Begun(Fence(1))),
        // The one that was read is the only other one.
        ("fourth", BeginResult::TooManyRuns),
    ] {
        assert_eq!(begin(&store, &run_key(&ada, third), 2).await, expected);
    }
    for (key, has_to_end) in [(&read, false), (&unread, true)] {
        let AppendResult::Appended(status) = append(&store, key, 0, &[], false).await else {
            panic!("refused")
        };
        assert_eq!(status.has_to_end, has_to_end);
    }
}

#[tokio::test]
async fn a_run_that_no_reader_has_read_for_30_seconds_has_to_end_if_there_are_too_many() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(0).await;
    let ada = Principal::new("ada");
    let (read, unread) = (run_key(&ada, "read"), run_key(&ada, "unread"));
    for key in [&read, &unread] {
        assert_eq!(begin(&store, key, 2).await, BeginResult::Begun(Fence(1)));
    }
    for second in [9, 18, 27, 29] {
        database.set_time(second).await;
        for key in [&read, &unread] {
            appended(&store, key, 0, &[], false).await;
        }
    }
    let reads = ReadLog { key: &read, after: 0, max_bytes: 1, is_reader: true };
    store.read(reads).await.unwrap();
    let third = run_key(&ada, "third");
    assert_eq!(begin(&store, &third, 2).await, BeginResult::TooManyRuns);
    database.set_time(30).await;
    assert_eq!(begin(&store, &third, 2).await, BeginResult::Begun(Fence(1)));
    for (key, has_to_end, seconds) in [(&read, false, 1), (&unread, true, 30), (&third, false, 0)] {
        let AppendResult::Appended(status) = append(&store, key, 0, &[], false).await else {
            panic!("refused")
        };
        assert_eq!((status.has_to_end, status.unread), (has_to_end, Duration::from_secs(seconds)));
    }
}

#[tokio::test]
async fn a_record_is_deleted_a_day_after_it_has_expired_and_not_before() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(0).await;
    let mut record = contention::record(RecordId::from_bytes([1; 16]));
    record.expires_at = UnixMillis(at(100));
    let mut kept = contention::record(RecordId::from_bytes([2; 16]));
    kept.expires_at = UnixMillis(u64::MAX);
    for record in [&record, &kept] {
        assert!(store.insert(record).await.unwrap());
    }
    let end = 100 + RECORD_RETENTION.as_secs();
    let ids = [record.id, kept.id];
    sweep_at(&database, &store, end).await;
    assert_eq!(LedgerStore::load(&store, &ids).await.unwrap().records.len(), 2);
    sweep_at(&database, &store, end + 1).await;
    let left = LedgerStore::load(&store, &ids).await.unwrap().records;
    assert_eq!(left.iter().map(|left| &left.record).collect::<Vec<_>>(), [&kept]);
}

#[tokio::test]
async fn the_use_of_a_stateless_approval_is_kept_until_its_end() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(0).await;
    let id = RecordId::from_bytes([1; 16]);
    store.set_if_absent(id, ApprovalUse::Denied, UnixMillis(at(100))).await.unwrap();
    sweep_at(&database, &store, 100).await;
    assert_eq!(store.first_use(id).await.unwrap(), Some(ApprovalUse::Denied));
    sweep_at(&database, &store, 101).await;
    assert_eq!(store.first_use(id).await.unwrap(), None);
}

#[tokio::test]
async fn the_rows_of_a_chat_are_deleted_when_its_time_has_passed() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(0).await;
    let ada = Principal::new("ada");
    let first = chat_of(&ada, "chat 0", 2);
    let keep_for = Some(Duration::from_secs(60));
    saved(&store, SaveChat::new(&first).with_keep_for(keep_for)).await;
    // More than one statement deletes.
    database
        .execute(
            "INSERT INTO chats (owner, id, revision, head, title, length, updated_at, expires_at)
             SELECT owner, convert_to('chat ' || number, 'UTF8'), nextval('revisions'), head, title,
                 0, updated_at, expires_at
             FROM chats, generate_series(1, 450) AS number",
        )
        .await;
    let kept = chat_of(&ada, "kept", 3);
    saved(&store, SaveChat::new(&kept)).await;
    sweep_at(&database, &store, 59).await;
    assert_eq!(database.count("chats").await, 452);
    assert!(ChatStore::load(&store, &ada, &first.id).await.unwrap().is_some());
    database.set_time(60).await;
    assert!(ChatStore::load(&store, &ada, &first.id).await.unwrap().is_none());
    store.sweep().await.unwrap();
    assert_eq!((database.count("chats").await, database.count("chat_messages").await), (1, 3));
}

#[tokio::test]
async fn a_sweep_deletes_fewer_rows_at_once_if_postgres_cancels_the_statement() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(0).await;
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    appended(&store, &key, 0, &[frame("a")], true).await;
    // As if the deletion of two logs took too long.
    database
        .execute(
            "INSERT INTO runs (owner, chat, run, format, holder, fence, lease, renewed_at,
                 read_at, ended_at)
             SELECT owner, chat, convert_to('run ' || number, 'UTF8'), format, holder, fence, lease,
                 renewed_at, read_at, ended_at
             FROM runs, generate_series(1, 11) AS number;
             CREATE FUNCTION cancel() RETURNS TRIGGER LANGUAGE plpgsql AS
                 'BEGIN
                     IF (SELECT count(*) FROM deleted) > 1 THEN
                         RAISE EXCEPTION USING ERRCODE = ''query_canceled'';
                     END IF;
                     RETURN NULL;
                 END';
             CREATE TRIGGER slow AFTER DELETE ON runs REFERENCING OLD TABLE AS deleted
                 FOR EACH STATEMENT EXECUTE FUNCTION cancel()",
        )
        .await;
    assert_eq!(database.count("runs").await, 12);
    sweep_at(&database, &store, 600).await;
    assert_eq!((database.count("runs").await, database.count("run_entries").await), (0, 0));
}

#[tokio::test]
async fn what_a_sweep_cannot_delete_does_not_keep_it_from_the_rest() {
    let Some(database) = Database::new() else { return };
    let store = database.open_at(0).await;
    let ada = Principal::new("ada");
    let chat = chat_of(&ada, "chat", 1);
    saved(&store, SaveChat::new(&chat).with_keep_for(Some(Duration::from_secs(60)))).await;
    let key = run_key(&ada, "run");
    let _ = begin(&store, &key, 1).await;
    appended(&store, &key, 0, &[frame("a")], true).await;
    database
        .execute(
            "CREATE FUNCTION refuse() RETURNS TRIGGER LANGUAGE plpgsql AS
                 'BEGIN RAISE EXCEPTION USING ERRCODE = ''query_canceled''; END';
             CREATE TRIGGER refuse BEFORE DELETE ON chats FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    database.set_time(600).await;
    let error = store.sweep().await.unwrap_err();
    assert!(error.to_string().ends_with(" (SQLSTATE 57014)"), "{error}");
    assert_eq!((database.count("chats").await, database.count("runs").await), (1, 0));
}

#[tokio::test]
async fn a_chat_that_gets_shorter_leaves_no_messages_behind() {
    let Some(database) = Database::new() else { return };
    let store = database.open().await;
    let mut chat = chat_of(&Principal::new("ada"), "chat", 5);
    let revision = saved(&store, SaveChat::new(&chat)).await;
    let stored = VersionedChat { chat: chat.clone(), revision };
    chat.messages.truncate(2);
    saved(&store, SaveChat::replacing(&stored, &chat)).await;
    assert_eq!(database.count("chat_messages").await, 2);
}

async fn sweep_at(database: &Database, store: &PostgresStore, second: u64) {
    database.set_time(second).await;
    store.sweep().await.unwrap();
}
