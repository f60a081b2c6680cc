//! A Postgres that crashes or hangs, and replies that are lost: chats, logs and approvals are as the
//! callers were told.

use std::error::Error;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use test_support::contention::InsertOne;

use chat_test_support::faulted_operations::{OPERATIONS, operate, operate_during_faults};
use chat_test_support::store_requests::{
    EPOCH, adas, append_at, appended, begin, control, create, end, frame, load, put, read_all,
};
use futures::future::join_all;
use test_support::contention;
use test_support::external_processes::fault_proxy::FaultProxy;
use test_support::external_processes::number;
use test_support::external_processes::postgres_server::PostgresServer;
use test_support::{eventually, within_patience};
use tokio_postgres::NoTls;
use ui_message_stream::approval::store::{ApprovalUse, LedgerStore, ReplayGuard};
use ui_message_stream::approval::{RecordId, UnixMillis};
use ui_message_stream_chat::store::{AppendResult, LogStore};
use ui_message_stream_postgres::{PostgresError, PostgresOptions};

use crate::database::{Database, WAITING};

#[tokio::test]
async fn an_operation_whose_reply_is_lost_is_an_error_and_its_repetition_takes_effect_once() {
    let Some(database) = Database::new() else { return };
    let proxy = FaultProxy::before_postgres(database.server);
    let store = database.options().with_max_connections(1).open(&proxy.url).await.unwrap();
    for round in 0..number("LOST_REPLIES", 10) {
        let before = || proxy.lose_replies(1);
        assert_eq!(operate(&store, round, &before).await, OPERATIONS);

        let key = adas(&format!("chat {round}"));
        create(&store, &key).await;
        // The reply to the read is not lost, but that to the step which deletes, and waits.
        let other = database.lock_partition(&key.owner).await;
        let lose = async {
            eventually(async || database.number(WAITING).await >= 1).await;
            proxy.lose_replies(1);
            other.batch_execute("COMMIT").await.unwrap();
        };
        assert!(tokio::join!(store.delete(&key, EPOCH, 1), lose).0.is_err() && proxy.has_lost());
        assert!(load(&store, &key).await.is_none());

        let (id, end) = (RecordId::from_bytes([round as u8; 16]), UnixMillis(u64::MAX));
        proxy.lose_replies(1);
        assert!(store.set_if_absent(id, ApprovalUse::Denied, end).await.is_err());
        let first = store.set_if_absent(id, ApprovalUse::Claimed, end).await.unwrap();
        assert_eq!((first, proxy.has_lost()), (Some(ApprovalUse::Denied), true));
    }
}

#[tokio::test]
async fn with_faults_at_random_moments_each_operation_takes_effect_once() {
    let Some(database) = Database::new() else { return };
    let proxy = FaultProxy::before_postgres(database.server);
    let open = async || database.options().open(&proxy.url).await.unwrap();
    let stores = [&open().await, &open().await];
    operate_during_faults(&proxy, stores, number("FAULTED_USERS", 10)).await;
}

#[tokio::test]
async fn after_a_crash_postgres_has_all_confirmed_writes_and_the_store_connects_again() {
    // The others share theirs.
    let Some(server) = PostgresServer::start() else { return };
    let options = PostgresOptions::new().with_max_connections(1);
    let store = options.open(&server.url()).await.unwrap();
    let key = adas("chat");
    begin(&store, &key).await;
    appended(&store, append_at(&key, 1, &[frame("a")])).await;
    assert!(put(&store, &key, 1, &["one", "two"]).await);
    let stored = load(&store, &key).await.unwrap();
    let record = contention::record(RecordId::from_bytes([1; 16]));
    assert!(store.insert(&record).await.unwrap());

    // Frames are appended to several logs until an append fails.
    let frames_of = ["a", "b", "c", "d", "e", "f"].map(adas);
    for key in &frames_of {
        begin(&store, key).await;
    }
    let appended_frames = AtomicUsize::new(0);
    let appends = join_all(frames_of.iter().map(async |key| {
        for position in 1.. {
            let entries = [frame(&position.to_string())];
            match store.append(append_at(key, position, &entries)).await {
                Ok(AppendResult::Appended { .. }) => {
                    appended_frames.fetch_add(1, Ordering::Relaxed);
                }
                _ => return position,
            }
        }
        unreachable!("Postgres is killed")
    }));

    // If one of its processes is killed, Postgres ends all others and recovers from its log.
    let checkpointer = checkpointer(&server).await.unwrap();
    let kill = async {
        eventually(async || appended_frames.load(Ordering::Relaxed) > 100).await;
        let kill = format!("kill -9 {checkpointer}");
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    };
    let (confirmed, ()) = tokio::join!(appends, kill);
    let recovered = async {
        eventually(async || {
            self::checkpointer(&server).await.is_some_and(|pid| pid != checkpointer)
        })
        .await;
        while store.ping().await.is_err() {}
    };
    within_patience(recovered).await;

    for (key, confirmed) in frames_of.iter().zip(confirmed) {
        let entries = read_all(&store, key).await;
        // The last append may have taken effect.
        let length = entries.len() as u64;
        assert!((confirmed..=confirmed + 1).contains(&length), "{confirmed}: {length}");
        assert!((1..length).all(|at| entries[at as usize] == frame(&at.to_string())));
    }
    let loaded = load(&store, &key).await.unwrap();
    assert_eq!((loaded.snapshot, loaded.entries), (stored.snapshot, stored.entries));
    assert_eq!(LedgerStore::load(&store, &[record.id]).await.unwrap().records.len(), 1);
    end(&store, &key, 2).await;
    assert_eq!(read_all(&store, &key).await, [control("begin"), frame("a"), control("end")]);
}

/// Returns the id of a process of Postgres, unless Postgres accepts no connections.
async fn checkpointer(server: &PostgresServer) -> Option<i32> {
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.ok()?;
    tokio::spawn(connection);
    let select = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'";
    client.query_one(select, &[]).await.ok()?.try_get(0).ok()
}

#[tokio::test]
async fn while_postgres_hangs_an_operation_ends_with_an_error_and_its_repetition_takes_effect_once()
{
    let Some(database) = Database::new() else { return };
    let proxy = FaultProxy::before_postgres(database.server);
    // The repetition follows on the same connection.
    let store = database.options().with_max_connections(1).open(&proxy.url).await.unwrap();
    let key = adas("chat");
    begin(&store, &key).await;
    appended(&store, append_at(&key, 1, &[frame("a")])).await;
    let entries = [frame("b")];
    let append = append_at(&key, 2, &entries);
    proxy.stall(true);
    let error = store.append(append).await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(cause.starts_with("Postgres has not answered within 5s"), "{cause}");
    let error = store.ping().await.unwrap_err();
    assert!(matches!(error, PostgresError::Timeout(_)), "{error}");
    proxy.stall(false);
    // The first one may have been executed meanwhile.
    let _ = store.append(append).await.unwrap();
    assert_eq!(read_all(&store, &key).await, [control("begin"), frame("a"), frame("b")]);
}

#[tokio::test]
async fn a_partition_that_another_transaction_locks_makes_the_operation_an_error_in_time() {
    let Some((database, store)) = Database::with_store().await else { return };
    let key = adas("chat");
    begin(&store, &key).await;
    let other = database.lock_partition(&key.owner).await;
    let entries = [frame("a")];
    let append = append_at(&key, 1, &entries);
    assert!(store.append(append).await.is_err());
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(appended(&store, append).await.length, 2);
}

#[tokio::test]
async fn sessions_that_began_read_only_are_not_used_later() {
    let Some(database) = Database::new() else { return };
    let role = format!("role_{}", database.schema);
    let url = database.server.url().replace("tests@", &format!("{role}@"));
    database.execute(&format!("CREATE ROLE {role} LOGIN SUPERUSER")).await;
    let store = database.options().with_max_connections(2).open(&url).await.unwrap();
    // As if the next connections led to a standby.
    let read_only = format!("ALTER ROLE {role} SET default_transaction_read_only = on");
    database.execute(&read_only).await;
    let end =
        format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'");
    database.execute(&end).await;
    let failed = async { while store.ping().await.is_ok() {} };
    within_patience(failed).await;
    let error = database.options().open(&url).await.unwrap_err();
    assert!(matches!(error, PostgresError::Unreachable { .. }), "{error}");
    database.execute(&format!("ALTER ROLE {role} RESET default_transaction_read_only")).await;
    // The pool may have one that was ended.
    within_patience(async { while store.ping().await.is_err() {} }).await;
    for _ in 0..3 {
        store.ping().await.unwrap();
    }
}

#[tokio::test]
async fn sessions_that_have_become_read_only_are_replaced() {
    let Some(database) = Database::new() else { return };
    let store = database.options().with_max_connections(1).open(&database.server.url()).await;
    let store = store.unwrap();
    let key = adas("chat");
    begin(&store, &key).await;
    // The clock makes the session that reads it read-only.
    database
        .execute(&format!(
            "ALTER FUNCTION now_ms() RENAME TO now_ms_of_store; \
            CREATE FUNCTION now_ms() RETURNS BIGINT LANGUAGE SQL AS \
                'SELECT set_config(''default_transaction_read_only'', ''on'', false); \
                SELECT {}.now_ms_of_store()'",
            database.schema
        ))
        .await;
    appended(&store, append_at(&key, 1, &[frame("a")])).await;
    database
        .execute("DROP FUNCTION now_ms(); ALTER FUNCTION now_ms_of_store() RENAME TO now_ms")
        .await;
    let error = store.ping().await.unwrap_err();
    assert!(error.to_string().ends_with(": connect to the primary (SQLSTATE 25006)"), "{error}");
    store.ping().await.unwrap();
    end(&store, &key, 2).await;
}
