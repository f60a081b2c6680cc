//! Logs in SQLite: random operations, and stores on one file that append at once or in turn.

use std::sync::Arc;

use chat_test_support::random_logs;
use chat_test_support::store_requests::{
    adas, append_at, appended, begin, control, creation, frame, read_all, read_from,
};
use test_support::rng::Dice;
use ui_message_stream_chat::store::{AppendResult, LogKey, LogStore, StoredEntry};

use crate::folder::{Folder, at};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_have_the_same_results_as_in_memory() {
    for seed in 0..20 {
        let (_folder, store) = Folder::with_store_at(0).await;
        let set_time = async |now| store.set_test_time(now);
        random_logs::compare_with_memory(&store, seed, at(0), set_time).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_16_stores_on_one_file_that_append_at_once_exactly_one_wins() {
    let (folder, key) = (Folder::new(), adas("chat"));
    let mut stores = Vec::new();
    for _ in 0..16 {
        stores.push(Arc::new(folder.open().await));
    }
    for round in 0..10 {
        let appends: Vec<_> = stores
            .iter()
            .map(|store| {
                let (store, key) = (Arc::clone(store), key.clone());
                tokio::spawn(async move {
                    let entries = [control("x")];
                    let append = match round {
                        0 => creation(&key, &entries),
                        _ => append_at(&key, round, &entries),
                    };
                    store.append(append).await.unwrap()
                })
            })
            .collect();
        let mut won = 0;
        for append in appends {
            won += u32::from(matches!(append.await.unwrap(), AppendResult::Appended { .. }));
        }
        assert_eq!(won, 1, "round {round}");
    }
}

/// A log, and what it has to hold.
struct Log {
    key: LogKey,
    entries: Vec<StoredEntry>,
}

#[tokio::test]
async fn logs_hold_what_was_appended_by_any_store_on_the_file() {
    let folder = Folder::new();
    let mut random = Dice::new(7, 1);
    let mut stores = [folder.open().await, folder.open().await, folder.open().await];
    let mut logs: Vec<Log> = Vec::new();
    for number in 0..12 {
        let key = adas(&number.to_string());
        begin(&stores[0], &key).await;
        logs.push(Log { key, entries: vec![control("begin")] });
    }
    for step in 0..400 {
        let (store, log) = (random.below(stores.len()), random.below(logs.len()));
        let Log { key, entries } = &mut logs[log];
        let end = entries.len() as u64;
        match random.below(10) {
            0 => stores[store].sweep().await.unwrap(),
            1 => stores[store] = folder.open().await,
            2 => {
                // As an append that is repeated because its reply was lost.
                let again = append_at(key, end - 1, &entries[entries.len() - 1..]);
                assert_eq!(stores[store].append(again).await.unwrap(), AppendResult::Conflict);
            }
            _ => {
                let new: Vec<_> =
                    (0..random.below(4)).map(|at| frame(&format!("{step} {at}"))).collect();
                appended(&stores[store], append_at(key, end, &new)).await;
                entries.extend(new);
            }
        }
        let (store, Log { key, entries }) = (&stores[random.below(stores.len())], &logs[log]);
        let from = random.below(entries.len() + 1);
        let page = read_from(store, key, from as u64).await.unwrap();
        assert_eq!((&*page.entries, page.head.length), (&entries[from..], entries.len() as u64));
    }
    for Log { key, entries } in &logs {
        for store in &stores {
            assert_eq!(read_all(store, key).await, *entries);
        }
    }
}
