//! Formats: what is newer than this version is refused by name.

use std::error::Error;
use test_support::contention::InsertOne;

use test_support::contention;
use test_support::external_processes::redis_server::RedisServer;
use test_support::store_requests::{begin, chat_of, frame, run_key, saved};
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{Principal, RecordId};
use ui_message_stream::chat::log::{AppendEntries, BeginResult, Fence, ReadLog};
use ui_message_stream::chat::store::{ChatStore, RunStore, SaveChat};
use ui_message_stream_redis::{RedisOptions, RedisStore, RedisStoreError};

use crate::backend::keys;

#[tokio::test]
async fn records_of_a_newer_format_are_errors_that_name_the_format() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    let chat = chat_of(&ada, "chat", 1);
    saved(&store, SaveChat::new(&chat)).await;
    let record = contention::record(RecordId::from_bytes([1; 16]));
    store.insert(&record).await.unwrap();
    let key = run_key(&ada, "run");
    let _ = begin(&store, &key, 1).await;
    for (name, field) in [(":chat:chat", "head"), (":record:", "record"), (":runs", "4:chatrun")] {
        let keys = keys(&redis);
        let key = keys.iter().find(|key| key.contains(name)).unwrap();
        let newer = "local json = redis.call('HGET', KEYS[1], ARGV[1]) \
            json = string.gsub(json, '(.format.:)%d+', '%19') \
            redis.call('HSET', KEYS[1], ARGV[1], json) return 1";
        assert_eq!(redis.command(&format!("EVAL \"{newer}\" 1 {key} {field}")), ":1");
    }
    let read = ReadLog { key: &key, after: 0, max_bytes: 1, is_reader: true };
    let append = AppendEntries {
        key: &key,
        fence: Fence(1),
        position: 0,
        entries: &[frame("a")],
        end: false,
    };
    let errors: [Box<dyn Error>; 4] = [
        ChatStore::load(&store, &ada, &chat.id).await.unwrap_err().into(),
        LedgerStore::load(&store, &[record.id]).await.unwrap_err().into(),
        store.read(read).await.unwrap_err().into(),
        // A run is not written either.
        store.append(append).await.unwrap_err().into(),
    ];
    for error in errors {
        let cause = error.source().unwrap().to_string();
        assert!(cause.contains("format 9 is newer"), "{cause}");
    }
    // A run of a newer server does not hinder others.
    let other = run_key(&ada, "other");
    assert_eq!(begin(&store, &other, 1).await, BeginResult::Begun(Fence(1)));
}

#[tokio::test]
async fn each_run_carries_its_format() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let _ = begin(&store, &run_key(&Principal::new("ada"), "run"), 1).await;
    let runs = keys(&redis).into_iter().find(|key| key.ends_with(":runs")).unwrap();
    let state = redis.command(&format!("HGET {runs} 4:chatrun"));
    assert!(state.contains(r#""format":1"#), "{state}");
}

#[tokio::test]
async fn a_prefix_with_braces_is_refused() {
    for prefix in ["{shop}:", "shop}", "{"] {
        let options = RedisOptions::new().with_prefix(prefix);
        let refused = options.connect("redis://127.0.0.1:1/").await.unwrap_err();
        assert!(matches!(refused, RedisStoreError::Prefix), "{refused:?}");
    }
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn an_empty_prefix_is_refused_in_a_cluster() {
    let options = RedisOptions::new().with_prefix("");
    let refused = options.connect_cluster(["redis://127.0.0.1:1/"]).await.unwrap_err();
    assert!(matches!(refused, RedisStoreError::Prefix), "{refused:?}");
}
