//! A Postgres that crashes or hangs, and replies that are lost: chats, logs and approvals are as the
//! callers were told.

use std::error::Error;
use std::process::Command;
use std::time::Duration;

use test_support::contention;
use test_support::external_processes::number;
use test_support::external_processes::postgres_server::PostgresServer;
use test_support::store_requests::{appended, begin, chat_of, frame, holder, page, run_key, saved};
use tokio_postgres::NoTls;
use ui_message_stream::approval::store::{ApprovalUse, LedgerStore, ReplayGuard};
use ui_message_stream::approval::{ApprovalState, Principal, RecordId, UnixMillis};
use ui_message_stream::chat::log::{
    AppendEntries, AppendResult, BeginResult, BeginRun, Fence, RunState, TakeCondition, TakeResult,
    TakeRun,
};
use ui_message_stream::chat::store::{
    ChatStore, ReloadedChat, RunStore, SaveChat, SaveResult, VersionedChat,
};
use ui_message_stream_postgres::{PostgresError, PostgresOptions};

use crate::database::Database;
use crate::proxy::Proxy;

#[tokio::test]
async fn an_operation_whose_reply_is_lost_is_an_error_and_its_repetition_takes_effect_once() {
    let Some(database) = Database::new() else { return };
    let proxy = Proxy::before(database.server);
    let store = database.options().with_max_connections(1).open(&proxy.url).await.unwrap();
    let ada = Principal::new("ada");
    for round in 0..number("LOST_REPLIES", 10) {
        let key = run_key(&ada, &format!("run {round}"));
        let lease = Duration::from_secs(600);
        let request = BeginRun { key: &key, holder: holder(1), lease, max_user_runs: 9 };
        proxy.lose_reply_to("COMMIT");
        assert!(store.begin(request).await.is_err() && proxy.has_lost());
        assert_eq!(store.begin(request).await.unwrap(), BeginResult::Begun(Fence(1)));
        for (position, end) in [(0, false), (2, true)] {
            let entries = [frame("a"), frame("b")];
            let append =
                AppendEntries { key: &key, fence: Fence(1), position, entries: &entries, end };
            proxy.lose_reply_to("SELECT 1");
            assert!(store.append(append).await.is_err() && proxy.has_lost());
            let repeated = store.append(append).await.unwrap();
            assert!(matches!(repeated, AppendResult::Appended(_)), "{repeated:?}");
        }
        let log = page(&store, &key).await.unwrap();
        assert_eq!(log.entries, [frame("a"), frame("b"), frame("a"), frame("b")]);
        assert_eq!((log.length, log.state), (4, RunState::Ended));

        let key = run_key(&ada, &format!("taken {round}"));
        let _ = begin(&store, &key, 99).await;
        let (fence, condition) = (Fence(1), TakeCondition::Any);
        let take = TakeRun { key: &key, fence, holder: holder(2), condition };
        proxy.lose_reply_to("SELECT 1");
        assert!(store.take(take).await.is_err() && proxy.has_lost());
        assert_eq!(store.take(take).await.unwrap(), TakeResult::Taken(Fence(2)));
        let end =
            AppendEntries { key: &key, fence: Fence(2), position: 0, entries: &[], end: true };
        let _ = store.append(end).await.unwrap();
    }
}

#[tokio::test]
async fn a_save_and_a_decision_whose_replies_are_lost_have_taken_effect_once() {
    let Some(database) = Database::new() else { return };
    let proxy = Proxy::before(database.server);
    let store = database.options().with_max_connections(1).open(&proxy.url).await.unwrap();
    let ada = Principal::new("ada");
    let chat = chat_of(&ada, "chat", 2);
    proxy.lose_reply_to("SELECT 1");
    assert!(store.save(SaveChat::new(&chat)).await.is_err() && proxy.has_lost());
    assert_eq!(store.save(SaveChat::new(&chat)).await.unwrap(), SaveResult::Conflict);
    let stored = ChatStore::load(&store, &ada, &chat.id).await.unwrap().unwrap();
    assert_eq!(stored.chat, chat);
    proxy.lose_reply_to("SELECT 1");
    let save = SaveChat::replacing(&stored, &chat);
    assert!(store.save(save).await.is_err() && proxy.has_lost());
    assert_eq!(store.save(save).await.unwrap(), SaveResult::Conflict);
    let ReloadedChat::Changed(replaced) =
        store.reload(&ada, &chat.id, stored.revision).await.unwrap()
    else {
        panic!("the chat was not saved");
    };
    proxy.lose_reply_to("DELETE 1");
    assert!(store.delete(&ada, &chat.id, replaced.revision).await.is_err() && proxy.has_lost());
    assert!(ChatStore::load(&store, &ada, &chat.id).await.unwrap().is_none());

    let mut record = contention::record(RecordId::from_bytes([1; 16]));
    proxy.lose_reply_to("SELECT 1");
    assert!(store.insert(&record).await.is_err() && proxy.has_lost());
    assert!(!store.insert(&record).await.unwrap());
    record.state = ApprovalState::Expired;
    proxy.lose_reply_to("SELECT 1");
    assert!(store.compare_and_swap(&record, 0).await.is_err() && proxy.has_lost());
    assert!(!store.compare_and_swap(&record, 0).await.unwrap());
    let stored = LedgerStore::load(&store, &[record.id]).await.unwrap().records;
    assert_eq!((&stored[0].record, stored[0].revision), (&record, 1));

    let end = UnixMillis(u64::MAX);
    proxy.lose_reply_to("INSERT 0 1");
    assert!(store.set_if_absent(record.id, ApprovalUse::Denied, end).await.is_err());
    let first = store.set_if_absent(record.id, ApprovalUse::Claimed, end).await.unwrap();
    assert_eq!((first, proxy.has_lost()), (Some(ApprovalUse::Denied), true));
}

#[tokio::test]
async fn after_a_crash_postgres_has_all_confirmed_writes_and_the_store_connects_again() {
    // The others share theirs.
    let Some(server) = PostgresServer::start() else { return };
    let options = PostgresOptions::new().with_max_connections(1);
    let store = options.open(&server.url()).await.unwrap();
    let ada = Principal::new("ada");
    let chat = chat_of(&ada, "chat", 3);
    let revision = saved(&store, SaveChat::new(&chat)).await;
    let record = contention::record(RecordId::from_bytes([1; 16]));
    assert!(store.insert(&record).await.unwrap());
    let key = run_key(&ada, "run");
    let _ = begin(&store, &key, 1).await;
    appended(&store, &key, 0, &[frame("a")], false).await;

    // If one of its processes is killed, Postgres ends all others and recovers from its log.
    let checkpointer = checkpointer(&server).await.unwrap();
    let kill = format!("kill -9 {checkpointer}");
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let recovered = async {
        while self::checkpointer(&server).await.is_none_or(|pid| pid == checkpointer) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        while store.ping().await.is_err() {}
    };
    tokio::time::timeout(Duration::from_secs(60), recovered).await.unwrap();

    let stored = ChatStore::load(&store, &ada, &chat.id).await.unwrap().unwrap();
    assert_eq!((&stored.chat, stored.revision), (&chat, revision));
    assert_eq!(LedgerStore::load(&store, &[record.id]).await.unwrap().records.len(), 1);
    appended(&store, &key, 1, &[frame("b")], true).await;
    assert_eq!(page(&store, &key).await.unwrap().entries, [frame("a"), frame("b")]);
    let stored = VersionedChat { chat: chat.clone(), revision };
    assert!(saved(&store, SaveChat::replacing(&stored, &chat)).await > revision);
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
    let proxy = Proxy::before(database.server);
    // The repetition follows on the same connection.
    let store = database.options().with_max_connections(1).open(&proxy.url).await.unwrap();
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    appended(&store, &key, 0, &[frame("a")], false).await;
    let entries = [frame("b")];
    let append =
        AppendEntries { key: &key, fence: Fence(1), position: 1, entries: &entries, end: false };
    proxy.hang(true);
    let error = store.append(append).await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert_eq!(cause, "Postgres has not answered within 5s");
    let error = store.ping().await.unwrap_err();
    assert!(matches!(error, PostgresError::Timeout(_)), "{error}");
    proxy.hang(false);
    appended(&store, &key, 1, &entries, false).await;
    assert_eq!(page(&store, &key).await.unwrap().entries, [frame("a"), frame("b")]);
}

#[tokio::test]
async fn a_row_that_another_transaction_locks_makes_the_operation_an_error_in_time() {
    let Some(database) = Database::new() else { return };
    let store = database.open().await;
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    let other = database.connect().await;
    other.batch_execute("BEGIN; SELECT * FROM runs FOR UPDATE").await.unwrap();
    let entries = [frame("a")];
    let append =
        AppendEntries { key: &key, fence: Fence(1), position: 0, entries: &entries, end: false };
    assert!(store.append(append).await.is_err());
    other.batch_execute("COMMIT").await.unwrap();
    appended(&store, &key, 0, &entries, false).await;
    assert_eq!(page(&store, &key).await.unwrap().length, 1);
}
