//! What is kept for how long.

use std::sync::LazyLock;
use std::time::Duration;

use chat_test_support::kept_runs::{self, begins, read_as_client, renew};
use chat_test_support::store_requests::{
    EPOCH, adas, append_after, append_at, appended, begin, control, create, creation, end, frame,
    key, load, put, read_all, read_from,
};
use test_support::external_processes::redis_server::RedisServer;
use ui_message_stream::approval::Principal;
use ui_message_stream::id::RunId;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, ListChats, ListedChat, LiveRunChange, LogKey, LogStore,
    ReadLogEntries, StoredEntry, UserLimits,
};
use ui_message_stream_redis::RedisStore;

use crate::backend::{key_with, keys};

#[tokio::test]
async fn the_entries_of_an_ended_run_are_kept_for_ten_minutes_and_not_longer() {
    let Some((redis, store)) = start().await else { return };
    let key = adas("chat");
    begin(&store, &key).await;
    appended(&store, append_at(&key, 1, &[frame("a")])).await;
    end(&store, &key, 2).await;
    assert!(put(&store, &key, 3, &["message"]).await);
    redis.set_time(START + 599_999);
    LogStore::sweep(&store).await.unwrap();
    assert_eq!(read_all(&store, &key).await, [control("begin"), frame("a"), control("end")]);
    redis.set_time(START + 600_000);
    LogStore::sweep(&store).await.unwrap();
    assert!(read_from(&store, &key, 0).await.is_none());
    assert_eq!(load(&store, &key).await.unwrap().head.length, 3);
    assert!(!keys(&redis).iter().any(|key| key.ends_with(":0:hchat")));
    // The log goes on.
    assert_eq!(appended(&store, append_at(&key, 3, &[frame("b")])).await.length, 4);
    assert_eq!(read_from(&store, &key, 3).await.unwrap().entries, [frame("b")]);
}

#[tokio::test]
async fn the_entries_of_a_lost_run_are_kept_and_a_sweep_names_it_after_seven_days() {
    let Some((redis, store)) = start().await else { return };
    let key = adas("chat");
    begin(&store, &key).await;
    appended(&store, append_at(&key, 1, &[frame("a")])).await;
    assert!(put(&store, &key, 2, &["message"]).await);
    for day in 0..=8 {
        redis.set_time(START + day * 24 * 60 * 60 * 1000);
        let lost = LogStore::sweep(&store).await.unwrap().lost_runs;
        let named = lost.iter().map(|(key, _)| key);
        assert_eq!(named.collect::<Vec<_>>(), if day < 8 { vec![] } else { vec![&key] }, "{day}");
        assert_eq!(read_all(&store, &key).await, [control("begin"), frame("a")]);
    }
    assert!(load(&store, &key).await.unwrap().head.is_lost);
}

#[tokio::test]
async fn a_run_keeps_the_entries_of_the_one_that_it_resumes() {
    let Some((redis, store)) = start().await else { return };
    let set_time = async |second| redis.set_time(START + second * 1000);
    kept_runs::a_run_keeps_the_entries_of_the_one_that_it_resumes(&store, set_time).await;
}

#[tokio::test]
async fn a_deletion_that_was_not_returned_for_30_days_is_forgotten() {
    let Some((redis, store)) = start().await else { return };
    let set_time = async |second| redis.set_time(START + second * 1000);
    kept_runs::a_deletion_that_was_not_returned_for_30_days_is_forgotten(&store, set_time).await;
}

#[tokio::test]
async fn a_log_whose_snapshot_is_old_is_named_until_it_has_a_new_one() {
    let Some((redis, store)) = start().await else { return };
    let set_time = async |second| redis.set_time(START + second * 1000);
    kept_runs::a_log_whose_snapshot_is_old_is_named_until_it_has_a_new_one(&store, set_time).await;
}

#[tokio::test]
async fn a_read_before_the_clock_was_set_back_by_an_hour_does_not_count() {
    let Some((redis, store)) = start().await else { return };
    redis.set_time(START + 3_600_000);
    let set_back = async |store| {
        redis.set_time(START);
        store
    };
    kept_runs::a_read_before_the_clock_was_set_back_does_not_count(store, set_back).await;
}

#[tokio::test]
async fn a_run_that_no_reader_has_read_for_30_seconds_has_to_end_if_there_are_too_many() {
    let Some((redis, store)) = start().await else { return };
    let [read, unread, third] = ["read", "unread", "third"].map(adas);
    for key in [&read, &unread] {
        assert!(begins_of_two(&store, key).await);
    }
    redis.set_time(START + 29_999);
    assert!(!begins_of_two(&store, &third).await);
    redis.set_time(START + 30_000);
    read_as_client(&store, &read).await;
    assert!(begins_of_two(&store, &third).await);
    for (key, has_to_end, seconds) in [(&read, false, 0), (&unread, true, 30), (&third, false, 0)] {
        let status = (has_to_end, Duration::from_secs(seconds));
        assert_eq!(renew(&store, key).await, status);
        // An append that does more reports the same.
        let head = appended(&store, append_after(key, 1, &[frame("a")])).await;
        assert_eq!((head.has_to_end, head.unread), status);
    }
}

#[tokio::test]
async fn live_runs_count_also_behind_a_thousand_lost_ones() {
    let Some((redis, store)) = start().await else { return };
    for chat in 0..1200 {
        // Their lease has passed at once. No place is asked for, which would load all others.
        let key = adas(&chat.to_string());
        let begin = begin_append(&key);
        let limits = UserLimits { runs: 10_000, ..begin.limits };
        let append = AppendLog { lease: Some(Duration::ZERO), limits, ..begin };
        assert!(begins(&store, append).await);
    }
    for chat in ["first", "second"] {
        assert!(begins_of_two(&store, &adas(chat)).await);
    }
    let third = adas("third");
    assert!(!begins_of_two(&store, &third).await);
    redis.set_time(START + 30_000);
    assert!(begins_of_two(&store, &third).await);
}

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
async fn what_holds_a_chat_is_kept_for_its_time_and_no_longer() {
    let Some((redis, store)) = start().await else { return };
    let key = adas("one");
    let entries = [control("a"), frame("b")];
    let minutes = |minutes: u64| Some(Duration::from_secs(60 * minutes));
    appended(&store, AppendLog { keep_for: minutes(2), ..creation(&key, &entries) }).await;
    assert!(put(&store, &key, 2, &["message"]).await);
    let kinds = [":row:h", ":1:h", ":2:h"];
    let are_stored = async |time| {
        redis.set_time(START + time);
        LogStore::sweep(&store).await.unwrap();
        let keys = keys(&redis);
        let is_stored = |kind: &str| keys.iter().any(|key| key.contains(kind));
        assert!(kinds.iter().all(|kind| is_stored(kind)) || keys.is_empty(), "{keys:?}");
        !keys.is_empty()
    };
    // What is no control entry changes nothing.
    assert!(are_stored(60_000).await);
    appended(&store, append_at(&key, 2, &[frame("c")])).await;
    assert!(are_stored(119_999).await);
    let again = [control("d")];
    appended(&store, AppendLog { keep_for: minutes(3), ..append_at(&key, 3, &again) }).await;
    assert!(are_stored(299_998).await);
    assert!(!are_stored(299_999).await);

    appended(&store, AppendLog { keep_for: minutes(2), ..creation(&key, &entries) }).await;
    assert!(put(&store, &key, 2, &["message"]).await);
    appended(&store, append_at(&key, 2, &again)).await;
    assert!(are_stored(60 * 60_000).await);
}

#[tokio::test]
async fn everything_of_a_chat_whose_time_has_passed_is_removed_without_another_request() {
    let Some((redis, store)) = start().await else { return };
    let (with_run, without) = (adas("with a run"), adas("without"));
    let keep_for = Some(Duration::from_secs(60));
    appended(&store, AppendLog { keep_for, ..begin_append(&with_run) }).await;
    assert!(put(&store, &with_run, 1, &["message"]).await);
    appended(&store, AppendLog { keep_for, ..creation(&without, &[control("a")]) }).await;
    redis.set_time(START + 59_999);
    LogStore::sweep(&store).await.unwrap();
    for key in [&with_run, &without] {
        assert!(load(&store, key).await.is_some());
    }
    redis.set_time(START + 60_000);
    for key in [&with_run, &without] {
        assert!(load(&store, key).await.is_none());
    }
    expect_nothing_after_sweeps(&redis, &store, START + 60_000).await;
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

#[tokio::test]
async fn sweeps_forget_the_chats_of_a_deleted_user() {
    let Some((redis, store)) = start().await else { return };
    let ada = Principal::new("ada");
    begin(&store, &key(&ada, "chat")).await;
    assert_eq!(LogStore::delete_user(&store, &ada).await.unwrap(), 1);
    expect_nothing_after_sweeps(&redis, &store, START).await;
}

#[tokio::test]
async fn a_chat_expires_that_a_deletion_of_its_user_has_not_reached() {
    let Some((redis, store)) = start().await else { return };
    let (ada, keep_for) = (Principal::new("ada"), Some(Duration::from_secs(60)));
    appended(&store, AppendLog { keep_for, ..creation(&key(&ada, "chat"), &[control("a")]) }).await;
    // As if the process ended before it deletes the chat.
    redis.command("ACL SETUSER default -unlink");
    assert!(LogStore::delete_user(&store, &ada).await.is_err());
    redis.command("ACL SETUSER default +unlink");
    expect_nothing_after_sweeps(&redis, &store, START + 60_000).await;
}

#[tokio::test]
async fn a_chat_that_begins_during_its_sweep_is_swept_again() {
    let Some((redis, store)) = start().await else { return };
    let key = adas("chat");
    begin(&store, &key).await;
    // As if a sweep came after the chat was noted, and before the log was created.
    let log = key_with(&redis, ":row:hchat");
    let aside = [format!("RENAME {log} aside"), format!("RENAME aside {log}")];
    redis.command(&aside[0]);
    redis.set_time(START + 600_000);
    LogStore::sweep(&store).await.unwrap();
    redis.command(&aside[1]);
    redis.set_time(START + 8 * 24 * 60 * 60 * 1000);
    assert_eq!(LogStore::sweep(&store).await.unwrap().lost_runs.len(), 1);
}

/// Sweeps at this time and more than a minute later, and expects that Redis holds nothing of the chats then.
async fn expect_nothing_after_sweeps(redis: &RedisServer, store: &RedisStore, time: u64) {
    for minute in 0..2 {
        redis.set_time(time + minute * 61_000);
        LogStore::sweep(store).await.unwrap();
    }
    assert_eq!(keys(redis), [""; 0]);
}

#[tokio::test]
async fn a_list_leaves_out_the_chats_whose_time_has_passed_and_a_sweep_forgets_them() {
    let Some((redis, store)) = start().await else { return };
    let ada = Principal::new("ada");
    create(&store, &key(&ada, "kept")).await;
    for id in 0..250 {
        let (key, entries, keep_for) =
            (key(&ada, &id.to_string()), [control("a")], Some(MILLISECOND));
        let listed = Some(ListedChat { title: "a title", has_questions: false });
        appended(&store, AppendLog { keep_for, listed, ..creation(&key, &entries) }).await;
    }
    redis.set_time(START + 1);
    let list = ListChats { limit: 10, after: None, search: None };
    let page = store.list(&ada, list).await.unwrap();
    assert_eq!(page.chats.iter().map(|chat| chat.id.as_str()).collect::<Vec<_>>(), ["kept"]);
    // Nor do they count.
    let limits = UserLimits { chats: 2, runs: 0, unread: Duration::ZERO };
    let second = key(&ada, "second");
    appended(&store, AppendLog { limits, ..creation(&second, &[control("a")]) }).await;
    let third = key(&ada, "third");
    let refused = store.append(AppendLog { limits, ..creation(&third, &[control("a")]) }).await;
    assert_eq!(refused.unwrap(), AppendResult::TooManyChats);
    LogStore::sweep(&store).await.unwrap();
    assert_eq!(redis.command(&format!("ZCARD {}", key_with(&redis, ":list:chats"))), ":2");
    assert!(!keys(&redis).iter().any(|key| key.ends_with(":list:due")));
}

#[tokio::test]
async fn a_script_looks_at_a_limited_number_of_chats() {
    let Some((redis, store)) = start().await else { return };
    let ada = Principal::new("ada");
    for id in 0..1200 {
        create(&store, &key(&ada, &format!("{id:04}"))).await;
    }
    for id in ["0000", "0700", "1199"] {
        assert!(store.rename(&key(&ada, id), "Found").await.unwrap());
    }
    redis.command("CONFIG RESETSTAT");
    // A call for the names of 100 chats, and one for these chats.
    let list = ListChats { limit: 3, after: None, search: Some("found") };
    let page = store.list(&ada, list).await.unwrap();
    let found: Vec<_> = page.chats.iter().map(|chat| chat.id.as_str()).collect();
    assert_eq!((found, page.next), (vec!["1199", "0700", "0000"], None));
    let stats = redis.command("INFO commandstats");
    assert!(stats.contains("cmdstat_evalsha:calls=25,"), "{stats}");
    let beyond = ListChats { limit: 2, ..list };
    assert_eq!(store.list(&ada, beyond).await.unwrap().chats.len(), 2);
    // The chats have one time.
    let all = ListChats { limit: 1100, after: None, search: None };
    let page = store.list(&ada, all).await.unwrap();
    let all: Vec<_> = page.chats.iter().map(|chat| chat.id.to_string()).collect();
    assert_eq!(all, (100..1200).rev().map(|id| format!("{id:04}")).collect::<Vec<_>>());
}

/// Returns an append that creates a chat with a run. The user may have two live runs.
fn begin_append(key: &LogKey) -> AppendLog<'_> {
    static RUN: LazyLock<RunId> = LazyLock::new(|| "run".into());
    static ENTRIES: LazyLock<[StoredEntry; 1]> = LazyLock::new(|| [control("begin")]);
    AppendLog {
        lease: Some(Duration::from_secs(600)),
        live_run: LiveRunChange::Begins(&RUN),
        limits: UserLimits { chats: 10_000, runs: 2, unread: Duration::from_secs(30) },
        ..creation(key, &*ENTRIES)
    }
}

/// Begins a run. Returns whether the user, who may have two, has a place.
async fn begins_of_two(store: &RedisStore, key: &LogKey) -> bool {
    begins(store, begin_append(key)).await
}

/// Starts a Redis whose clock stands.
async fn start() -> Option<(RedisServer, RedisStore)> {
    let redis = RedisServer::start_at(START)?;
    let store = RedisStore::connect(&redis.url()).await.unwrap();
    Some((redis, store))
}

pub(crate) const START: u64 = 1_900_000_000_000;
const MILLISECOND: Duration = Duration::from_millis(1);
