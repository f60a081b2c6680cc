//! Long logs, and what is left of a log whose row was lost.

use std::time::Duration;

use chat_test_support::store_requests::{
    EPOCH, adas, append_at, appended, begin, control, creation, frame, load, put, read_all,
    read_from,
};
use test_support::external_processes::redis_server::RedisServer;
use ui_message_stream_chat::store::{AppendLog, LogStore, ReadLogEntries};
use ui_message_stream_redis::RedisStore;

use crate::backend::{key_with, keys};

#[tokio::test]
async fn a_log_of_16_mebibytes_is_read_as_a_whole_and_in_pages() {
    let Some((_redis, store)) = start().await else { return };
    let key = adas("chat");
    begin(&store, &key).await;
    let part: Vec<_> = (0..4096).map(|number: u32| frame(&format!("{number:0>1024}"))).collect();
    for at in 0..4 {
        // With a lease, a shorter append is one of the frequent kind.
        let lease = Some(Duration::from_secs(10));
        appended(&store, AppendLog { lease, ..append_at(&key, 1 + at * 4096, &part) }).await;
    }
    let whole = read_from(&store, &key, 1).await.unwrap();
    assert!(whole.entries.chunks(4096).all(|chunk| chunk == part) && whole.entries.len() == 16_384);
    let loaded =
        load(&store, &key).await.unwrap().entries.into_iter().skip(1).map(|(_, entry)| entry);
    assert!(loaded.eq(whole.entries.iter().cloned()));
    let mut entries = Vec::new();
    while entries.len() < whole.entries.len() {
        let (position, max_bytes) = (1 + entries.len() as u64, 700 << 10);
        let read = ReadLogEntries { key: &key, epoch: EPOCH, position, max_bytes, is_reader: true };
        let page = store.read(read).await.unwrap().unwrap();
        assert_eq!(page.entries.len(), 700.min(whole.entries.len() - entries.len()));
        entries.extend(page.entries);
    }
    assert_eq!(entries, whole.entries);
}

#[tokio::test]
async fn a_new_log_has_nothing_of_one_whose_head_was_lost_before_its_entries() {
    let Some((redis, store)) = start().await else { return };
    let key = adas("chat");
    let keep_for = Some(Duration::from_secs(60));
    let entries = [control("a"), frame("b")];
    appended(&store, AppendLog { keep_for, ..creation(&key, &entries) }).await;
    assert!(put(&store, &key, 2, &["message"]).await);
    // As if the time of the entries came back after a failover, when the chat was already swept.
    for key in [":row:hchat", ":row:u", ":list:chats", ":list:due"] {
        redis.command(&format!("DEL {}", key_with(&redis, key)));
    }
    assert!(load(&store, &key).await.is_none());
    assert_eq!(appended(&store, creation(&key, &[control("new")])).await.length, 1);
    assert_eq!(read_all(&store, &key).await, [control("new")]);
    let log = load(&store, &key).await.unwrap();
    assert_eq!((log.snapshot, log.entries.len()), (None, 1));
    assert!(put(&store, &key, 1, &["new"]).await);
    let snapshot = load(&store, &key).await.unwrap().snapshot.unwrap();
    assert_eq!((snapshot.position, &*snapshot.messages), (1, &["new".to_owned()][..]));
    assert!(store.delete(&key, EPOCH, 1).await.unwrap());
    assert_eq!(keys(&redis), [""; 0]);
}

/// Starts a Redis whose clock stands.
async fn start() -> Option<(RedisServer, RedisStore)> {
    let redis = RedisServer::start_at(START)?;
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    Some((redis, store))
}

pub(crate) const START: u64 = 1_900_000_000_000;
