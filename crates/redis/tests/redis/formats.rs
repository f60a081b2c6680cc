//! Formats: what is newer than this version is refused by name.

use std::error::Error;
use std::time::Duration;

use chat_test_support::store_requests::{
    EPOCH, adas, append_after, append_at, appended, begin, control, frame, load,
};
use test_support::contention;
use test_support::contention::InsertOne;
use ui_message_stream::approval::RecordId;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream_chat::store::{AppendLog, LoadLog, LogStore};
use ui_message_stream_redis::{RedisOptions, RedisStoreError};

use crate::backend::{key_with, keys, redis_and_store};

#[tokio::test]
async fn what_has_a_newer_format_is_an_error_that_names_the_format_and_stays() {
    let Some((redis, store)) = redis_and_store().await else { return };
    let record = contention::record(RecordId::from_bytes([1; 16]));
    store.insert(&record).await.unwrap();
    let chat = adas("chat");
    begin(&store, &chat).await;
    redis.command(&format!("HSET {} format 9", key_with(&redis, ":head:")));
    let newer = "local json = redis.call('HGET', KEYS[1], 'record') \
        json = string.gsub(json, '(.format.:)%d+', '%19') \
        redis.call('HSET', KEYS[1], 'record', json) return 1";
    let record_key = key_with(&redis, ":record:");
    assert_eq!(redis.command(&format!("EVAL \"{newer}\" 1 {record_key}")), ":1");
    let stored = keys(&redis);

    let all = LoadLog { key: &chat, has_frames: false, has_messages: false };
    let frames = [frame("a")];
    let frames = AppendLog { lease: Some(LEASE), ..append_at(&chat, 1, &frames) };
    let controls = [control("a")];
    let errors: [Box<dyn Error>; 5] = [
        LogStore::load(&store, all).await.unwrap_err().into(),
        LedgerStore::load(&store, &[record.id]).await.unwrap_err().into(),
        // A chat is not written either.
        store.append(frames).await.unwrap_err().into(),
        store.append(append_after(&chat, 1, &controls)).await.unwrap_err().into(),
        store.delete(&chat, EPOCH, 1).await.unwrap_err().into(),
    ];
    for error in errors {
        let cause = error.source().unwrap().to_string();
        assert!(cause.contains("format 9 is newer"), "{cause}");
    }
    LogStore::sweep(&store).await.unwrap();
    assert_eq!(keys(&redis), stored);
    // A chat of a newer server does not hinder others.
    let other = adas("other");
    begin(&store, &other).await;
    appended(&store, append_at(&other, 1, &[frame("a")])).await;
    assert_eq!(load(&store, &other).await.unwrap().head.length, 2);
}

#[tokio::test]
async fn each_chat_carries_its_format() {
    let Some((redis, store)) = redis_and_store().await else { return };
    begin(&store, &adas("chat")).await;
    let format = redis.command(&format!("HGET {} format", key_with(&redis, ":head:")));
    assert!(format.ends_with('1'), "{format}");
}

#[tokio::test]
async fn a_prefix_with_braces_is_refused() {
    for prefix in ["{shop}:", "shop}", "{"] {
        let options = RedisOptions::new().with_prefix(prefix);
        let refused = options.connect("redis://127.0.0.1:1/").await.unwrap_err();
        assert!(matches!(refused, RedisStoreError::Prefix), "{refused:?}");
    }
}

#[tokio::test]
async fn an_empty_prefix_is_refused_in_a_cluster() {
    let options = RedisOptions::new().with_prefix("");
    let refused = options.connect_cluster(["redis://127.0.0.1:1/"]).await.unwrap_err();
    assert!(matches!(refused, RedisStoreError::Prefix), "{refused:?}");
}

const LEASE: Duration = Duration::from_secs(60);
