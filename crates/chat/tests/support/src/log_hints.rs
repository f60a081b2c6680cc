//! How readers of one store on the data learn of changes by another one, as on another server.

use futures::FutureExt;
use test_support::{patience, within_patience};
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{
    AppendLog, ListChats, LiveRunChange, LogKey, LogPage, LogStore,
};

use crate::store_requests::{
    EPOCH, append_after, append_at, appended, begin, control, end, frame, key, read_from,
};

/// Checks that a reader of another store is woken by each append, and when the run is taken over.
///
/// Without hints a reader waits for five seconds each time, and the limit passes before the last append.
pub async fn check_appends_and_takeovers(writer: &impl LogStore, reader: &impl LogStore) {
    let key = key(&Principal::new("ada"), "chat");
    begin(writer, &key).await;
    let (entries, last) = ([frame("a")], more_than_without_hints() + 1);
    let alternately = async {
        for length in 1..last {
            let wait = woken_at(reader, &key, length, |page| page.head.length > length);
            tokio::join!(wait, appended(writer, append_at(&key, length, &entries)));
        }
    };
    within_patience(alternately).await;

    let run = "other".into();
    let wait = woken_at(reader, &key, last, |page| page.head.live_run.as_ref() == Some(&run));
    let (entries, live_run) = ([control("end"), control("begin")], LiveRunChange::Begins(&run));
    let take = AppendLog { live_run, ..append_after(&key, 1, &entries) };
    tokio::join!(wait, appended(writer, take));
}

/// Checks that the readers of another store are woken when a run ends, and when `delete`, which the
/// caller passes, removes the logs of the user `ada`.
pub async fn check_ends_and_deletions(
    writer: &impl LogStore,
    reader: &impl LogStore,
    delete: impl Future<Output = ()>,
) {
    let ada = Principal::new("ada");
    let (ended, deleted) = (key(&ada, "ended"), key(&ada, "deleted\0é"));
    for key in [&ended, &deleted] {
        begin(writer, key).await;
    }
    let wait_for_end = woken_at(reader, &ended, 1, |page| page.head.live_run.is_none());
    tokio::join!(wait_for_end, end(writer, &ended, 1));

    let wait = async |key, length| {
        while read_from(reader, key, 0).await.is_some() {
            changed(reader, key, length).await;
        }
    };
    tokio::join!(wait(&ended, 2), wait(&deleted, 1), delete);
    // And later waits do not begin.
    changed(reader, &ended, 2).await;
}

/// Checks that those who wait for a list at another store are woken by each change of it.
///
/// Without hints they wait for five seconds each time, and the limit passes before the last change.
pub async fn check_lists(writer: &impl LogStore, reader: &impl LogStore) {
    let ada = Principal::new("ada");
    let key = key(&ada, "listed");
    begin(writer, &key).await;
    let (entries, last) = ([control("x")], more_than_without_hints() + 1);
    let seen = async |number: Option<u64>| loop {
        let mut changed = reader.changed_list(&ada);
        // From here on no change is missed.
        let is_early = (&mut changed).now_or_never().is_some();
        let list = ListChats { limit: 9, after: None, search: None };
        let chats = reader.list(&ada, list).await.unwrap().chats;
        let chat = chats.iter().find(|chat| chat.id == key.chat);
        if chat.map(|chat| chat.control) == number {
            return;
        }
        if !is_early {
            changed.await;
        }
    };
    let alternately = async {
        for number in 1..last {
            let append = appended(writer, append_after(&key, number, &entries));
            tokio::join!(seen(Some(number + 1)), append);
        }
        let delete = async { assert!(writer.delete(&key, EPOCH, last).await.unwrap()) };
        tokio::join!(seen(None), delete);
    };
    within_patience(alternately).await;
}

/// Checks that twenty readers of another store read a log as it grows, to its end.
pub async fn check_many_readers(writer: &impl LogStore, reader: &impl LogStore) {
    let key = key(&Principal::new("ada"), "read by many");
    begin(writer, &key).await;
    let readers = (0..20).map(|_| async {
        loop {
            let page = read_from(reader, &key, 0).await.unwrap();
            if page.head.live_run.is_none() {
                return page.entries.len();
            }
            changed(reader, &key, page.head.length).await;
        }
    });
    let append = async {
        for position in 1..100 {
            appended(writer, append_at(&key, position, &[frame("x")])).await;
        }
        end(writer, &key, 100).await;
    };
    let (lengths, ()) = tokio::join!(futures::future::join_all(readers), append);
    assert_eq!(lengths, [101; 20]);
}

/// More changes than a reader without hints sees within the limit of the test.
pub fn more_than_without_hints() -> u64 {
    patience().as_secs() / 5 + 6
}

/// Waits until the log is in this state, and fails if the hints stop before.
pub async fn woken_at(
    store: &impl LogStore,
    key: &LogKey,
    length: u64,
    is_there: impl Fn(&LogPage) -> bool,
) {
    loop {
        changed(store, key, length).await;
        if is_there(&read_from(store, key, 0).await.unwrap()) {
            return;
        }
    }
}

/// Waits for a hint, and fails if none comes.
pub async fn changed(store: &impl LogStore, key: &LogKey, length: u64) {
    within_patience(store.changed(key, length)).await;
}
