//! How readers of one store on the data learn of changes by another one, as on another server.

use std::time::Duration;

use ui_message_stream::approval::Principal;
use ui_message_stream::chat::log::{
    Fence, LogPage, RunKey, RunState, TakeCondition, TakeResult, TakeRun,
};
use ui_message_stream::chat::store::RunStore;

use crate::store_requests::{appended, begin, frame, holder, page, run_key};

/// Checks that a reader of another store is woken by each append, and when the run is taken.
///
/// Without hints a reader waits for five seconds each time, which is too long for so many appends.
pub async fn check_appends_and_takes(writer: &impl RunStore, reader: &impl RunStore) {
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(writer, &key, 1).await;
    let entries = [frame("a")];
    let alternately = async {
        for position in 0..30 {
            let wait = woken_at(reader, &key, position, |page| page.length > position);
            tokio::join!(wait, appended(writer, &key, position, &entries, false));
        }
    };
    within(alternately).await;

    let wait = woken_at(reader, &key, 30, |page| page.fence == Fence(2));
    let take = async {
        let (fence, condition) = (Fence(1), TakeCondition::Any);
        let take = TakeRun {
            key: &key,
            fence,
            holder: holder(2),
            condition,
            lease: Duration::from_secs(10),
        };
        assert_eq!(writer.take(take).await.unwrap(), TakeResult::Taken(Fence(2)));
    };
    tokio::join!(wait, take);
}

/// Checks that the readers of another store are woken when a log ends, and when `delete`, which the
/// caller passes, removes the runs of the user `ada`.
pub async fn check_ends_and_deletions(
    writer: &impl RunStore,
    reader: &impl RunStore,
    delete: impl Future<Output = ()>,
) {
    let ada = Principal::new("ada");
    let (ended, deleted) = (run_key(&ada, "ended"), run_key(&ada, "deleted\0é"));
    for key in [&ended, &deleted] {
        let _ = begin(writer, key, 2).await;
    }
    let wait = async |key| {
        while page(reader, key).await.is_some_and(|page| page.state != RunState::Ended) {
            changed(reader, key, 0).await;
        }
    };
    let waits = async { tokio::join!(wait(&ended), wait(&deleted)) };
    let ends = async {
        appended(writer, &ended, 0, &[], true).await;
        delete.await;
    };
    tokio::join!(waits, ends);
    // And later waits do not begin.
    changed(reader, &ended, 0).await;
}

/// Checks that twenty readers of another store read a log as it grows, to its end.
pub async fn check_many_readers(writer: &impl RunStore, reader: &impl RunStore) {
    let key = run_key(&Principal::new("ada"), "read by many");
    let _ = begin(writer, &key, 2).await;
    let readers = (0..20).map(|_| async {
        loop {
            let page = page(reader, &key).await.unwrap();
            if page.length == 100 {
                return page.entries.len();
            }
            changed(reader, &key, page.length).await;
        }
    });
    let append = async {
        for position in 0..100 {
            appended(writer, &key, position, &[frame("x")], position == 99).await;
        }
    };
    let (lengths, ()) = tokio::join!(futures::future::join_all(readers), append);
    assert_eq!(lengths, [100; 20]);
}

/// Waits until the run is in this state, and fails if the hints stop before.
pub async fn woken_at(
    store: &impl RunStore,
    key: &RunKey,
    after: u64,
    is_there: impl Fn(&LogPage) -> bool,
) {
    loop {
        changed(store, key, after).await;
        if is_there(&page(store, key).await.unwrap()) {
            return;
        }
    }
}

/// Waits for a hint, and fails if none comes.
pub async fn changed(store: &impl RunStore, key: &RunKey, after: u64) {
    within(store.changed(key, after)).await;
}

/// Fails if this takes longer than a minute.
pub async fn within<T>(run: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), run).await.expect("no hint has come")
}
