//! Frames of several logs that are appended at the same moment are one transaction, and each append is compared and
//! fails on its own.

use std::error::Error;
use std::future::poll_fn;

use chat_test_support::store_requests::{
    EPOCH, adas, append_at, begin, control, end, frame, key, read_all,
};
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use test_support::external_processes::fault_proxy::FaultProxy;
use test_support::{eventually, within_patience};
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, Client, NoTls};
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{
    AppendResult, ChatStoreError, LogKey, LogStore, ReadLogEntries,
};
use ui_message_stream_postgres::{PostgresError, PostgresStore};

use crate::database::Database;
use crate::hints::listening;

#[tokio::test]
async fn frames_of_many_logs_at_once_are_few_transactions_with_one_notification_each() {
    let Some(database) = Database::new() else { return };
    let (store, reader) = (database.open().await, listening(&database).await);
    let keys = begun(&store, 150).await;
    let (_listener, mut notifications) = notifications(&database).await;
    let changes = async || join_all(keys.iter().map(|key| reader.changed(key, 1))).await;
    // The first wait for a log ends at once.
    changes().await;
    let appends = append_to_all(&store, &keys, 1);
    let (_, appended) = tokio::join!(within_patience(changes()), appends);
    assert!(appended.iter().all(is_appended), "{appended:?}");
    assert_eq!(database.number(TRANSACTIONS).await, 3);

    database.execute("SELECT pg_notify(current_schema(), 'end')").await;
    let mut sizes = Vec::new();
    while let Some(notification) = notifications.recv().await.filter(|it| it != "end") {
        assert!(notification.len() < 6_000, "{}", notification.len());
        sizes.push(notification.split(',').count());
    }
    sizes.sort_unstable();
    assert_eq!(sizes, [22, 64, 64]);
}

#[tokio::test]
async fn long_frames_of_several_logs_are_transactions_of_their_own() {
    let Some((database, store)) = Database::with_store().await else { return };
    let keys = begun(&store, 3).await;
    let entries = [frame(&"x".repeat(600 << 10))];
    let append = async |key| store.append(append_at(key, 1, &entries)).await;
    assert!(join_all(keys.iter().map(append)).await.iter().all(is_appended));
    assert_eq!(database.number(TRANSACTIONS).await, 3);
}

#[tokio::test]
async fn frames_that_are_refused_or_wait_for_another_transaction_keep_no_others() {
    let Some((database, store)) = Database::with_store().await else { return };
    let keys = begun(&store, 10).await;
    end(&store, &keys[0], 1).await;
    assert!(store.delete(&keys[1], EPOCH, 1).await.unwrap());
    let other = database.lock_partition(&keys[2].owner).await;
    let append = async |(number, key)| (number, append(&store, key, 1).await.unwrap());
    let mut appends: FuturesUnordered<_> = keys.iter().enumerate().map(append).collect();
    for _ in 0..9 {
        let (number, result) = within_patience(appends.next()).await.unwrap();
        match (number, &result) {
            (0 | 1, AppendResult::Conflict) => {}
            (3.., AppendResult::Appended { first: 1, head }) => assert_eq!(head.length, 2),
            _ => panic!("{number}: {result:?}"),
        }
    }
    other.batch_execute("COMMIT").await.unwrap();
    let (number, result) = within_patience(appends.next()).await.unwrap();
    assert!(number == 2 && is_appended(&Ok(result)));
    // Those of the others are one.
    assert_eq!(database.number(TRANSACTIONS).await, 2);
}

#[tokio::test]
async fn a_log_that_cannot_be_read_is_an_error_of_its_own_and_not_of_those_in_its_call() {
    let Some((database, store)) = Database::with_store().await else { return };
    let keys = begun(&store, 6).await;
    database.execute(r"UPDATE rows SET body = '\xFF' WHERE name = 'h2'").await;
    let appended = append_to_all(&store, &keys, 1).await;
    assert_eq!(database.number(TRANSACTIONS).await, 1);
    let damage = "UPDATE items SET kind = 9 FROM rows WHERE row_id = id AND name = 'h4'";
    database.execute(damage).await;
    let reads = join_all(keys.iter().map(async |key| {
        let (max_bytes, is_reader) = (10, false);
        store.read(ReadLogEntries { key, epoch: EPOCH, position: 1, max_bytes, is_reader }).await
    }));
    for (number, (appended, read)) in appended.iter().zip(reads.await).enumerate() {
        // An append to a live run of this server compares the version of the row, and does not read it.
        assert!(is_appended(appended), "{number}: {appended:?}");
        match read {
            Err(error) if number == 2 || number == 4 => assert!(is_unreadable(&error), "{error:?}"),
            read => assert_eq!(read.unwrap().unwrap().entries, [frame("1")], "{number}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_stores_that_append_to_the_same_logs_in_opposite_orders_do_not_wait_for_each_other() {
    let Some(database) = Database::new() else { return };
    let stores = [database.open().await, database.open().await];
    let mut keys = begun(&stores[0], 60).await;
    for position in 1..=20 {
        let forward = append_to_all(&stores[0], &keys, position);
        let reversed: Vec<_> = keys.iter().rev().cloned().collect();
        let (first, second) = tokio::join!(forward, append_to_all(&stores[1], &reversed, position));
        for (key, (one, other)) in keys.iter().zip(first.iter().zip(second.iter().rev())) {
            let conflict = [one, other].map(|it| matches!(it, Ok(AppendResult::Conflict)));
            let appended = [one, other].map(is_appended);
            assert!(appended[0] != appended[1] && conflict[0] != conflict[1], "{key:?}");
        }
        keys.rotate_left(7);
    }
    assert!(!database.server.log().contains("deadlock detected"));
}

#[tokio::test]
async fn frames_that_break_a_constraint_are_an_error_and_those_in_their_call_are_appended() {
    let Some((database, store)) = Database::with_store().await else { return };
    let keys = begun(&store, 8).await;
    let refused = database.number("SELECT id FROM rows WHERE name = 'h3'").await;
    let constraint = format!("ADD CHECK (row_id <> {refused} OR kind <> 0)");
    database.execute(&format!("ALTER TABLE items {constraint}")).await;
    let results = append_to_all(&store, &keys, 1).await;
    for (number, result) in results.iter().enumerate() {
        match result {
            Err(error) if number == 3 => assert_eq!(sqlstate(error), "23514"),
            _ => assert!(number != 3 && is_appended(result), "{number}: {result:?}"),
        }
    }
    // One by one.
    assert_eq!(database.number(TRANSACTIONS).await, 7);
}

#[tokio::test]
async fn frames_that_the_state_of_postgres_refuses_are_errors_and_not_tried_one_by_one() {
    let Some((database, store)) = Database::with_store().await else { return };
    let keys = begun(&store, 8).await;
    // What a sequence has counted is not rolled back.
    database.execute("CREATE SEQUENCE calls").await;
    let schema = &database.schema;
    for (code, calls) in [("53100", 1), ("57P03", 2)] {
        database
            .execute(&format!(
                "CREATE OR REPLACE FUNCTION refuse() RETURNS TRIGGER LANGUAGE plpgsql AS
                     $$BEGIN PERFORM nextval('{schema}.calls'); RAISE SQLSTATE '{code}'; END$$;
                 CREATE OR REPLACE TRIGGER refuse BEFORE INSERT ON items EXECUTE FUNCTION refuse()"
            ))
            .await;
        let results = append_to_all(&store, &keys, 1).await;
        let codes: Vec<_> = results.iter().map(|it| sqlstate(it.as_ref().unwrap_err())).collect();
        assert_eq!(codes, [code; 8]);
        assert_eq!(database.number("SELECT last_value FROM calls").await, calls);
    }
    database.execute("DROP TRIGGER refuse ON items").await;
    assert!(append_to_all(&store, &keys, 1).await.iter().all(is_appended));
}

#[tokio::test]
async fn frames_whose_connection_postgres_has_ended_are_errors_and_not_appended() {
    let Some((database, store)) = Database::with_store().await else { return };
    let keys = begun(&store, 8).await;
    let other = database.connect().await;
    other.batch_execute("BEGIN; LOCK TABLE items IN SHARE MODE").await.unwrap();
    let waiting = "FROM pg_locks WHERE NOT granted AND relation = 'items'::REGCLASS";
    let end = async {
        let count = format!("SELECT count(*) {waiting}");
        eventually(async || database.number(&count).await == 1).await;
        let process = database.number(&format!("SELECT pid::BIGINT {waiting}")).await;
        database.execute(&format!("SELECT pg_terminate_backend({process})")).await;
        let alive = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {process}");
        eventually(async || database.number(&alive).await == 0).await;
        other.batch_execute("COMMIT").await.unwrap();
    };
    let (results, ()) = tokio::join!(append_to_all(&store, &keys, 1), end);
    assert!(results.iter().all(Result::is_err), "{results:?}");
    assert_eq!(database.number(TRANSACTIONS).await, 0);
    // The ended connection may be used again before it is seen to be closed.
    for key in &keys {
        eventually(async || append(&store, key, 1).await.is_ok_and(|it| is_appended(&Ok(it))))
            .await;
        assert_eq!(read_all(&store, key).await, [control("begin"), frame("1")]);
    }
}

#[tokio::test]
async fn frames_that_are_appended_together_and_whose_reply_is_lost_are_errors_and_appended_once() {
    let Some(database) = Database::new() else { return };
    let proxy = FaultProxy::before_postgres(database.server);
    let store = database.options().open(&proxy.url).await.unwrap();
    let keys = begun(&store, 10).await;
    proxy.lose_replies(1);
    let lost = append_to_all(&store, &keys, 1).await;
    assert!(lost.iter().all(Result::is_err) && proxy.has_lost(), "{lost:?}");
    let again = append_to_all(&store, &keys, 1).await;
    assert!(again.iter().all(|it| matches!(it, Ok(AppendResult::Conflict))), "{again:?}");
    for key in &keys {
        assert_eq!(read_all(&store, key).await, [control("begin"), frame("1")]);
    }
}

#[tokio::test]
async fn reads_of_many_logs_at_once_are_one_statement_and_wait_for_no_other_transaction() {
    let Some((database, store)) = Database::with_store_at(0).await else { return };
    let mut keys = begun(&store, 50).await;
    assert!(append_to_all(&store, &keys, 1).await.iter().all(is_appended));
    let other = database.lock_partition(&keys[2].owner).await;
    keys.push(adas("unknown"));
    let read_all = async |position: u64, is_reader| {
        let reads = keys.iter().map(async |key| {
            let read = ReadLogEntries { key, epoch: EPOCH, position, max_bytes: 10, is_reader };
            store.read(read).await.unwrap()
        });
        within_patience(join_all(reads)).await
    };
    database.set_time(9).await;
    let pages = read_all(1, true).await;
    for page in &pages[..50] {
        let page = page.as_ref().unwrap();
        assert_eq!((page.head.length, &*page.entries), (2, &[frame("1")][..]));
    }
    assert!(pages[50].is_none());
    // The readers were noted in one transaction, but for the one of the log that was locked, which is noted later.
    let noted = "FROM items WHERE sequence = 3";
    assert_eq!(database.number(&format!("SELECT count(*) {noted}")).await, 49);
    assert_eq!(database.number(&format!("SELECT count(DISTINCT xmin::TEXT) {noted}")).await, 1);
    other.batch_execute("COMMIT").await.unwrap();
    let count = format!("SELECT count(*) {noted}");
    eventually(async || database.number(&count).await == 50).await;
    assert!(read_all(3, false).await.iter().all(Option::is_none));
    let writes = format!("SELECT count(DISTINCT xmin::TEXT) {noted}");
    assert_eq!(database.number(&writes).await, 2);
    // They are not noted again.
    read_all(2, true).await;
    assert_eq!(database.number(&writes).await, 2);
    assert_eq!(database.number(&format!("SELECT count(DISTINCT body) {noted}")).await, 1);
}

/// Begins runs in logs of so many users, one after the other: each is a transaction of its own, and has to end in five
/// seconds.
async fn begun(store: &PostgresStore, count: usize) -> Vec<LogKey> {
    let numbers = (0..count).map(|number| number.to_string());
    let keys: Vec<_> = numbers.map(|it| key(&Principal::new(&*it), &it)).collect();
    for key in &keys {
        begin(store, key).await;
    }
    keys
}

type Appended = Result<AppendResult, ChatStoreError>;

/// Appends a frame to each log at the same moment.
async fn append_to_all(store: &PostgresStore, keys: &[LogKey], position: u64) -> Vec<Appended> {
    join_all(keys.iter().map(|key| append(store, key, position))).await
}

/// Appends a frame that tells its position.
async fn append(store: &PostgresStore, key: &LogKey, position: u64) -> Appended {
    store.append(append_at(key, position, &[frame(&position.to_string())])).await
}

fn is_appended(result: &Appended) -> bool {
    matches!(result, Ok(AppendResult::Appended { .. }))
}

fn is_unreadable(error: &ChatStoreError) -> bool {
    error.source().unwrap().to_string().starts_with("a stored row cannot be read")
}

fn sqlstate(error: &ChatStoreError) -> &str {
    match cause(error) {
        PostgresError::Refused { sqlstate } => sqlstate,
        other => panic!("{other:?}"),
    }
}

fn cause(error: &ChatStoreError) -> &PostgresError {
    error.source().unwrap().downcast_ref().unwrap()
}

/// Returns the notifications of all stores from now on, as long as the client is kept.
async fn notifications(database: &Database) -> (Client, mpsc::UnboundedReceiver<String>) {
    let (client, mut connection) =
        tokio_postgres::connect(&database.server.url(), NoTls).await.unwrap();
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let Ok(AsyncMessage::Notification(notification)) = message {
                let _ = sender.send(notification.payload().to_owned());
            }
        }
    });
    client.batch_execute(&format!("LISTEN {}", database.schema)).await.unwrap();
    (client, receiver)
}

/// The transactions that have appended frames.
const TRANSACTIONS: &str =
    "SELECT count(DISTINCT xmin::TEXT) FROM items WHERE kind = 0 AND sequence = 0";
