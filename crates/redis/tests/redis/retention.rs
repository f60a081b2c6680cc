//! What is kept for how long.

use std::time::Duration;

use test_support::external_processes::redis_server::RedisServer;
use test_support::store_requests::{append, appended, begin, chat_of, frame, page, run_key, saved};
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::log::{AppendResult, BeginResult, Fence, ReadLog, RunState};
use ui_message_stream::chat::store::{ChatStore, ListChats, RunStore, SaveChat, VersionedChat};
use ui_message_stream_redis::RedisStore;

use crate::backend::keys;

#[tokio::test]
async fn an_ended_log_is_kept_for_ten_minutes_and_not_longer() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    appended(&store, &key, 0, &[frame("a")], true).await;
    let (state, log) = (left(&redis, ":runs"), left(&redis, ":log:"));
    assert!(state >= 599 && (599..=660).contains(&log), "{state} {log}");
    move_back(&redis, "run", "ended", 599);
    assert_eq!(page(&store, &key).await.unwrap().state, RunState::Ended);
    move_back(&redis, "run", "ended", 1);
    assert!(page(&store, &key).await.is_none());
    // The run of another chat removes it.
    let other = run_key(&Principal::new("ada"), "other");
    assert_eq!(begin(&store, &other, 1).await, BeginResult::Begun(Fence(1)));
    assert_eq!(fields(&redis), ["4:chatother"]);
    // And a run with the same key is a new one.
    assert_eq!(begin(&store, &key, 9).await, BeginResult::Begun(Fence(1)));
    assert_eq!(page(&store, &key).await.unwrap().length, 0);
}

#[tokio::test]
async fn a_live_run_is_kept_and_a_lost_one_for_seven_days() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    appended(&store, &key, 0, &[frame("a")], false).await;
    let week = 7 * 24 * 60 * 60;
    // The first append that finds less time than a week and 10 minutes renews the time.
    appended(&store, &key, 1, &[], false).await;
    for name in [":runs", ":log:", ":removals"] {
        let left = left(&redis, name);
        assert!((week + 600..=week + 1220).contains(&left), "{name}: {left}");
        redis.command(&format!("EXPIRE {} 60", key_with(&redis, name)));
    }
    // A renewal keeps all keys.
    appended(&store, &key, 1, &[], false).await;
    for name in [":runs", ":log:", ":removals"] {
        assert!(left(&redis, name) >= week + 600, "{name}");
    }
    // The lease is 10 seconds.
    move_back(&redis, "run", "renewed", week + 9);
    assert_eq!(page(&store, &key).await.unwrap().state, RunState::LeasePassed);
    move_back(&redis, "run", "renewed", 1);
    assert!(page(&store, &key).await.is_none());
}

#[tokio::test]
async fn a_read_before_the_clock_was_set_back_by_an_hour_does_not_count() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    let (read, unread) = (run_key(&ada, "read"), run_key(&ada, "unread"));
    for key in [&read, &unread] {
        assert_eq!(begin(&store, key, 2).await, BeginResult::Begun(Fence(1)));
    }
    for run in ["read", "unread"] {
        move_back(&redis, run, "read", -3600);
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
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    let (read, unread, third) =
        (run_key(&ada, "read"), run_key(&ada, "unread"), run_key(&ada, "third"));
    for key in [&read, &unread] {
        assert_eq!(begin(&store, key, 2).await, BeginResult::Begun(Fence(1)));
    }
    assert_eq!(begin(&store, &third, 2).await, BeginResult::TooManyRuns);
    move_back(&redis, "read", "read", 30);
    move_back(&redis, "unread", "read", 30);
    let reads = ReadLog { key: &read, after: 0, max_bytes: 1, is_reader: true };
    store.read(reads).await.unwrap();
    assert_eq!(begin(&store, &third, 2).await, BeginResult::Begun(Fence(1)));
    for (key, has_to_end, seconds) in [(&read, false, 0), (&unread, true, 30), (&third, false, 0)] {
        let AppendResult::Appended(status) = append(&store, key, 0, &[], false).await else {
            panic!("refused")
        };
        assert_eq!(status.has_to_end, has_to_end);
        assert!(status.unread >= Duration::from_secs(seconds));
    }
}

#[tokio::test]
async fn live_runs_count_also_behind_a_thousand_lost_ones() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    let [first, second, third] = ["first", "second", "third"].map(|run| run_key(&ada, run));
    for key in [&first, &second] {
        assert_eq!(begin(&store, key, 2).await, BeginResult::Begun(Fence(1)));
    }
    // Their names are before those of the live runs.
    let script = "local run = cjson.decode(redis.call('HGET', KEYS[1], ARGV[1])) \
        run.renewed = run.renewed - 3600000 \
        for number = 1, 2500 do \
            redis.call('HSET', KEYS[1], '0:' .. number, cjson.encode(run)) \
            redis.call('ZADD', KEYS[2], '+inf', '0:' .. number) \
        end return 1";
    let (runs, removals) = (key_with(&redis, ":runs"), key_with(&redis, ":removals"));
    let written = redis.command(&format!("EVAL \"{script}\" 2 {runs} {removals} 4:chatfirst"));
    assert_eq!(written, ":1");
    assert_eq!(begin(&store, &third, 2).await, BeginResult::TooManyRuns);
    move_back(&redis, "second", "read", 30);
    assert_eq!(begin(&store, &third, 2).await, BeginResult::Begun(Fence(1)));
}

#[tokio::test]
async fn a_log_of_16_mebibytes_is_read_as_a_whole_and_in_pages() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    let part: Vec<_> = (0..4096).map(|number: u32| frame(&format!("{number:0>1024}"))).collect();
    for position in 0..4 {
        appended(&store, &key, position * 4096, &part, position == 3).await;
    }
    let whole = page(&store, &key).await.unwrap();
    assert!(whole.entries.chunks(4096).all(|chunk| chunk == part) && whole.entries.len() == 16_384);
    assert_eq!(whole.state, RunState::Ended);
    let mut entries = Vec::new();
    while entries.len() < whole.entries.len() {
        let after = entries.len() as u64;
        let max_bytes = 700 << 10;
        let read = ReadLog { key: &key, after, max_bytes, is_reader: true };
        let page = store.read(read).await.unwrap().unwrap();
        assert_eq!(page.entries.len(), 700.min(whole.entries.len() - entries.len()));
        entries.extend(page.entries);
    }
    assert_eq!(entries, whole.entries);
}

#[tokio::test]
async fn what_holds_a_chat_is_kept_for_its_time_and_no_longer() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    let minutes = |minutes: u64| Some(Duration::from_secs(60 * minutes));
    let chat = chat_of(&ada, "one", 2);
    let revision = saved(&store, SaveChat::new(&chat).with_keep_for(minutes(2))).await;
    let other = chat_of(&ada, "other", 2);
    let _ = saved(&store, SaveChat::new(&other).with_keep_for(minutes(1))).await;
    // The lists are kept as long as the chat that is kept longest.
    for (name, seconds) in
        [(":chat:one", 120), (":chat:other", 60), (":chats", 120), (":titles", 120)]
    {
        let left = left(&redis, name);
        assert!((seconds - 5..=seconds).contains(&left), "{name}: {left}");
    }
    let stored = VersionedChat { chat: chat.clone(), revision };
    let _ = saved(&store, SaveChat::replacing(&stored, &chat)).await;
    for name in [":chat:one", ":chats", ":titles"] {
        assert_eq!(redis.command(&format!("TTL {}", key_with(&redis, name))), ":-1", "{name}");
    }
    let third = chat_of(&ada, "third", 2);
    let _ = saved(&store, SaveChat::new(&third).with_keep_for(minutes(1))).await;
    assert_eq!(redis.command(&format!("TTL {}", key_with(&redis, ":chats"))), ":-1");
}

#[tokio::test]
async fn lists_of_chats_expire_again_when_all_their_chats_do() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    let minutes = |minutes: u64| Some(Duration::from_secs(60 * minutes));
    let (first, second) = (chat_of(&ada, "first", 1), chat_of(&ada, "second", 1));
    let revisions =
        [saved(&store, SaveChat::new(&first)).await, saved(&store, SaveChat::new(&second)).await];
    // More than are looked at together.
    for id in 0..150 {
        let chat = chat_of(&ada, &id.to_string(), 1);
        saved(&store, SaveChat::new(&chat).with_keep_for(minutes(3))).await;
    }
    for (chat, revision) in [(first, revisions[0]), (second, revisions[1])] {
        for name in [":chats", ":titles"] {
            assert_eq!(redis.command(&format!("TTL {}", key_with(&redis, name))), ":-1", "{name}");
        }
        let stored = VersionedChat { chat: chat.clone(), revision };
        saved(&store, SaveChat::replacing(&stored, &chat).with_keep_for(minutes(1))).await;
    }
    for name in [":chats", ":titles"] {
        let left = left(&redis, name);
        assert!((120..=180).contains(&left), "{name}: {left}");
    }
}

#[tokio::test]
async fn a_list_forgets_the_chats_whose_time_has_passed() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    saved(&store, SaveChat::new(&chat_of(&ada, "kept", 1))).await;
    for id in 0..250 {
        let chat = chat_of(&ada, &id.to_string(), 1);
        let save = SaveChat::new(&chat).with_keep_for(Some(Duration::from_millis(1)));
        saved(&store, save).await;
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    let page = store.list(&ada, ListChats { limit: 10, after: None }).await.unwrap();
    assert_eq!(page.chats.iter().map(|chat| chat.id.as_str()).collect::<Vec<_>>(), ["kept"]);
    assert_eq!(redis.command(&format!("ZCARD {}", key_with(&redis, ":chats"))), ":1");
    assert_eq!(redis.command(&format!("HLEN {}", key_with(&redis, ":titles"))), ":1");
}

#[tokio::test]
async fn a_save_forgets_old_chats_whose_time_has_passed() {
    let Some(redis) = RedisServer::start() else { return };
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    let ada = Principal::new("ada");
    let kept = chat_of(&ada, "kept", 1);
    let mut revision = saved(&store, SaveChat::new(&kept)).await;
    for id in 0..15 {
        let chat = chat_of(&ada, &id.to_string(), 1);
        let save = SaveChat::new(&chat).with_keep_for(Some(Duration::from_millis(1)));
        saved(&store, save).await;
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    for _ in 0..2 {
        let stored = VersionedChat { chat: kept.clone(), revision };
        revision = saved(&store, SaveChat::replacing(&stored, &kept)).await;
    }
    assert_eq!(redis.command(&format!("ZCARD {}", key_with(&redis, ":chats"))), ":1");
    assert_eq!(redis.command(&format!("HLEN {}", key_with(&redis, ":titles"))), ":1");
}

/// Returns the only key whose name contains this text.
fn key_with(redis: &RedisServer, name: &str) -> String {
    let mut keys = keys(redis);
    keys.retain(|key| key.contains(name));
    assert_eq!(keys.len(), 1, "{name}: {keys:?}");
    keys.remove(0)
}

/// Returns for how many seconds a key is kept.
fn left(redis: &RedisServer, name: &str) -> i64 {
    let left = redis.command(&format!("TTL {}", key_with(redis, name)));
    left.strip_prefix(':').and_then(|left| left.parse().ok()).unwrap_or_else(|| panic!("{left}"))
}

/// Returns the runs of the only user.
fn fields(redis: &RedisServer) -> Vec<String> {
    let list = "return table.concat(redis.call('HKEYS', KEYS[1]), ' ')";
    let fields = redis.command(&format!("EVAL \"{list}\" 1 {}", key_with(redis, ":runs")));
    fields.split_whitespace().map(str::to_owned).collect()
}

/// Moves a time in the state of a run back, as if the seconds had passed.
pub(crate) fn move_back(redis: &RedisServer, run: &str, time: &str, seconds: i64) {
    let script = "local run = cjson.decode(redis.call('HGET', KEYS[1], ARGV[1])) \
        run[ARGV[2]] = run[ARGV[2]] - ARGV[3] * 1000 \
        redis.call('HSET', KEYS[1], ARGV[1], cjson.encode(run)) \
        if run.ended then redis.call('ZINCRBY', KEYS[2], ARGV[3] * -1000, ARGV[1]) end return 1";
    let (runs, removals) = (key_with(redis, ":runs"), key_with(redis, ":removals"));
    let arguments = format!("4:chat{run} {time} {seconds}");
    let moved = redis.command(&format!("EVAL \"{script}\" 2 {runs} {removals} {arguments}"));
    assert_eq!(moved, ":1");
}
