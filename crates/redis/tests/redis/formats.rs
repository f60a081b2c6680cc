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

use crate::backend::{Backend, key_with, keys, redis_and_store};

#[tokio::test]
async fn what_has_a_newer_format_is_an_error_that_names_the_format_and_stays() {
    let Some((redis, store)) = redis_and_store().await else { return };
    let record = contention::record(RecordId::from_bytes([1; 16]));
    store.insert(&record).await.unwrap();
    let chat = adas("chat");
    begin(&store, &chat).await;
    let newer = "local row = redis.call('HGET', KEYS[1], 'b') \
        row = string.gsub(row, '(.f.:)%d+', '%19') \
        redis.call('HSET', KEYS[1], 'b', row, 'v', 9) return 1";
    let row = key_with(&redis, ":row:hchat");
    assert_eq!(redis.command(&format!("EVAL \"{newer}\" 1 {row}")), ":1");
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
    let error = LedgerStore::load(&store, &[record.id]).await.unwrap_err();
    let cause = error.source().unwrap().to_string();
    assert!(cause.contains("format 9 is newer"), "{cause}");
    let errors = [
        LogStore::load(&store, all).await.unwrap_err(),
        // A chat is not written either.
        store.append(frames).await.unwrap_err(),
        store.append(append_after(&chat, 1, &controls)).await.unwrap_err(),
        store.delete(&chat, EPOCH, 1).await.unwrap_err(),
    ];
    for error in errors {
        let cause = error.source().unwrap().to_string();
        assert!(cause.contains("a newer version has written it"), "{cause}");
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
    let row = redis.command(&format!("HGET {} b", key_with(&redis, ":row:hchat")));
    assert!(row.contains("\"f\":1,"), "{row}");
}

#[tokio::test]
async fn chats_of_another_form_are_refused_by_name_when_the_store_is_opened() {
    for backend in Backend::all() {
        let other = async || match backend.try_connect(RedisOptions::new()).await {
            Err(RedisStoreError::OtherChats { format, known: 2 }) => format,
            opened => panic!("{}: {opened:?}", backend.name()),
        };
        // A user of the first form.
        let older = "ui-message-stream:{0a1b}:updated";
        backend.command(&format!("ZADD {older} 1 chat"));
        backend.try_connect(RedisOptions::new().with_prefix("others:")).await.unwrap();
        for _ in 0..2 {
            assert_eq!(other().await, 1);
        }
        backend.command(&format!("DEL {older}"));
        let format = match &backend {
            Backend::Single(_) => "ui-message-stream:format",
            Backend::Cluster(_) => "{ui-message-stream:}format",
        };
        for _ in 0..2 {
            backend.connect().await;
            assert!(backend.command(&format!("GET {format}")).ends_with('2'));
        }
        backend.command(&format!("SET {format} 3"));
        assert_eq!(other().await, 3);
    }
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
