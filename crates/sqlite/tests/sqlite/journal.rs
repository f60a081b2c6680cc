//! Entries are first in the journal and later in rows of their runs. Readers of all stores on the file
//! find them at any time.

use std::error::Error;
use std::time::Duration;

use test_support::store_requests::{appended, begin, frame, holder, page, run_key};
use test_support::thread_subscriber::CapturedLog;
use tokio::task::JoinSet;
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::log::{
    AppendEntries, AppendRefusal, AppendResult, Fence, LogEntry, LogPage, ReadLog, RunKey,
    RunState, TakeCondition, TakeResult, TakeRun,
};
use ui_message_stream::chat::store::{RunStore, RunStoreError};
use ui_message_stream_sqlite::{SqliteError, SqliteStore};

use crate::folder::{Folder, at};

/// What a log has to hold.
struct Log {
    key: RunKey,
    entries: Vec<LogEntry>,
    /// Where the last append began.
    last: usize,
    has_ended: bool,
}

#[tokio::test]
async fn logs_hold_what_was_appended_by_any_store_whenever_it_is_moved() {
    let folder = Folder::new();
    let ada = Principal::new("ada");
    let mut random = Random(0x2545_F491_4F6C_DD1D);
    let mut stores = [folder.open().await, folder.open().await, folder.open().await];
    let mut logs: Vec<Log> = Vec::new();
    for number in 0..12 {
        let key = run_key(&ada, &format!("run {number}"));
        let _ = begin(&stores[0], &key, 100).await;
        logs.push(Log { key, entries: Vec::new(), last: 0, has_ended: false });
    }
    for _ in 0..400 {
        let store = random.below(stores.len());
        match random.below(10) {
            0 => stores[store].sweep().await.unwrap(),
            1 => stores[store] = folder.open().await,
            2 => {
                // A reply was lost, and the holder repeats the append.
                let log = &logs[random.below(logs.len())];
                let (position, again) = (log.last as u64, &log.entries[log.last..]);
                if !again.is_empty() {
                    appended(&stores[store], &log.key, position, again, log.has_ended).await;
                }
            }
            3 => {
                let log = &logs[random.below(logs.len())];
                let refused = append_at(&stores[store], log, log.entries.len() + 1).await;
                assert_eq!(refused, AppendResult::Refused(AppendRefusal::Gap));
            }
            _ => append_to_some(&stores[store], &mut logs, &mut random).await,
        }
        for _ in 0..3 {
            let store = &stores[random.below(stores.len())];
            let log = &logs[random.below(logs.len())];
            check_a_page(store, log, &mut random).await;
        }
    }
    for (store, log) in stores.iter().zip(logs.chunks(4)) {
        for log in log {
            assert_eq!(page(store, &log.key).await.unwrap().entries, log.entries);
        }
    }
}

#[tokio::test]
async fn the_entries_of_a_deleted_user_are_in_no_table() {
    let folder = Folder::new();
    let store = folder.open().await;
    let (ada, bob) = (Principal::new("ada"), Principal::new("bob"));
    for owner in [&ada, &bob] {
        let key = run_key(owner, "run");
        let _ = begin(&store, &key, 1).await;
        appended(&store, &key, 0, &[frame("a")], false).await;
    }
    store.delete_user(&ada).await.unwrap();
    assert_eq!((folder.count("run_journal"), folder.count("run_entries")), (0, 1));
    assert_eq!(page(&store, &run_key(&bob, "run")).await.unwrap().entries, [frame("a")]);
}

#[tokio::test]
async fn a_row_that_cannot_be_read_shortens_the_log_of_its_run_and_of_no_other() {
    // The thread that writes logs it.
    let log = CapturedLog::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
    tracing::subscriber::set_global_default(subscriber).unwrap();
    // A number without its end, entries beyond the last position, and missing bytes.
    for (body, damages) in [("FF", 1), ("01 FFFFFFFFFFFFFFFF7F 01 00", 2), ("01 01 01 10", 3)] {
        let folder = Folder::new();
        let store = folder.open().await;
        let connection = folder.connect();
        connection.execute_batch(REFUSE_MOVES).unwrap();
        let ada = Principal::new("ada");
        let (damaged, other) = (run_key(&ada, "damaged"), run_key(&ada, "other"));
        for key in [&damaged, &other] {
            let _ = begin(&store, key, 9).await;
        }
        let entries = ["a", "b", "c"].map(frame);
        for (position, entry) in (0..).zip(&entries) {
            for key in [&damaged, &other] {
                appended(&store, key, position, std::slice::from_ref(entry), false).await;
            }
        }
        let unreadable = body.replace(' ', "");
        // Each append has a row. The third one is the second of the damaged log.
        let damage = "SET body = x'DAMAGE' WHERE key = (SELECT first_journal_key + 2 FROM state)";
        let damage = format!("UPDATE run_journal {}", damage.replace("DAMAGE", &unreadable));
        assert_eq!(connection.execute(&damage, []).unwrap(), 1);
        drop(store);

        // Another process reads the rows from the file.
        let store = folder.open().await;
        let append = async |key, position| {
            let entries = &[frame("d")];
            let append = AppendEntries { key, fence: Fence(1), position, entries, end: false };
            store.append(append).await.unwrap()
        };
        assert_eq!(append(&damaged, 3).await, AppendResult::Refused(AppendRefusal::Gap));
        assert!(matches!(append(&other, 3).await, AppendResult::Appended(_)));
        let whole = [&entries[..], &[frame("d")]].concat();
        for is_moved in [false, true] {
            assert_eq!(folder.count("run_journal") == 0, is_moved);
            assert_eq!(page(&store, &other).await.unwrap().entries, whole);
            assert_eq!(page(&store, &damaged).await.unwrap().length, 0);
            connection.execute_batch("DROP TRIGGER IF EXISTS refuse").unwrap();
            store.sweep().await.unwrap();
        }
        // The run is ended by another holder.
        let condition = TakeCondition::Any;
        let take = TakeRun {
            key: &damaged,
            fence: Fence(1),
            holder: holder(2),
            condition,
            lease: Duration::from_secs(10),
        };
        assert_eq!(store.take(take).await.unwrap(), TakeResult::Taken(Fence(2)));
        let end = &[frame("end")];
        let end =
            AppendEntries { key: &damaged, fence: Fence(2), position: 0, entries: end, end: true };
        assert!(matches!(store.append(end).await.unwrap(), AppendResult::Appended(_)));
        assert_eq!(page(&store, &damaged).await.unwrap().entries, [frame("end")]);
        assert_eq!(log.text().matches("integrity_check").count(), damages, "{}", log.text());
    }
}

#[tokio::test]
async fn an_entry_that_is_longer_than_its_row_is_an_error() {
    let folder = Folder::new();
    let store = folder.open().await;
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    folder.connect().execute_batch(&journal_row("01 00 01 01 07")).unwrap();
    let read = ReadLog { key: &key, after: 0, max_bytes: 1, is_reader: false };
    check_unreadable(&store.read(read).await.unwrap_err());
}

#[tokio::test]
async fn a_frame_is_stored_without_what_its_position_and_its_kind_say() {
    let folder = Folder::new();
    let store = folder.open().await;
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1000).await;
    let entries = ["id: run.0\ndata: a\n\n", "id: run.1\n: b\n\n", "data: c\n\n"].map(frame);
    appended(&store, &key, 0, &entries, false).await;
    store.sweep().await.unwrap();
    let read = "SELECT body FROM run_entries";
    let body: Vec<u8> = folder.connect().query_row(read, [], |row| row.get(0)).unwrap();
    assert_eq!(body, b"\x07a\x16: b\n\n\x24data: c\n\n");
    assert_eq!(page(&store, &key).await.unwrap().entries, entries);
}

#[tokio::test]
async fn entries_of_a_newer_format_are_moved_as_they_are() {
    let folder = Folder::new();
    let store = folder.open().await;
    let _ = begin(&store, &run_key(&Principal::new("ada"), "run"), 1).await;
    let other = folder.connect();
    other.execute_batch(&journal_row("01 00 01 02 FFFF")).unwrap();
    other.execute_batch("UPDATE runs SET format = 9").unwrap();
    store.sweep().await.unwrap();
    let body: Vec<u8> =
        other.query_row("SELECT body FROM run_entries", [], |row| row.get(0)).unwrap();
    assert_eq!(body, [0xFF, 0xFF]);
    assert_eq!(folder.count("run_journal"), 0);
}

#[tokio::test]
async fn appends_and_sweeps_go_on_while_entries_cannot_be_moved() {
    let folder = Folder::new();
    let store = folder.open_at(0).await;
    let ada = Principal::new("ada");
    let other = folder.connect();
    other.execute_batch(REFUSE_MOVES).unwrap();
    let ended = run_key(&ada, "ended");
    let _ = begin(&store, &ended, 1000).await;
    appended(&store, &ended, 0, &[frame("a")], true).await;
    // More than the journal holds.
    let entries = [frame(&"a".repeat(15_000))];
    let keys: Vec<_> = (0..100).map(|number| run_key(&ada, &number.to_string())).collect();
    for key in &keys {
        let _ = begin(&store, key, 1000).await;
        appended(&store, key, 0, &entries, false).await;
    }
    store.set_test_time(at(600));
    store.sweep().await.unwrap();
    assert!(page(&store, &ended).await.is_none());

    let check = async |moved: bool| {
        assert_eq!(folder.count("run_journal") == 0, moved);
        for store in [&store, &folder.open_at(600).await] {
            for key in &keys {
                assert_eq!(page(store, key).await.unwrap().entries, entries);
            }
        }
    };
    check(false).await;
    other.execute_batch("DROP TRIGGER refuse").unwrap();
    store.sweep().await.unwrap();
    check(true).await;
}

#[tokio::test]
async fn the_bytes_of_an_ended_log_hold_each_entry_once() {
    let folder = Folder::new();
    let stores = [folder.open().await, folder.open().await];
    let ada = Principal::new("ada");
    let (at_once, moved) = (run_key(&ada, "at once"), run_key(&ada, "moved"));
    let entries = [frame("a"), frame(&"b".repeat(20_000))];
    for key in [&at_once, &moved] {
        let _ = begin(&stores[0], key, 9).await;
    }
    appended(&stores[0], &at_once, 0, &entries, true).await;
    appended(&stores[0], &moved, 0, &entries[..1], false).await;
    // It is moved together with the first one, which another store still finds in the journal.
    appended(&stores[0], &moved, 1, &entries[1..], false).await;
    appended(&stores[1], &moved, 2, &[], true).await;
    let different: i64 = folder
        .connect()
        .query_row("SELECT count(DISTINCT ended_bytes) FROM runs", [], |row| row.get(0))
        .unwrap();
    assert_eq!(different, 1);
}

/// Returns the statement that adds a row to the journal.
fn journal_row(body: &str) -> String {
    let body = body.replace(' ', "");
    format!("INSERT INTO run_journal SELECT first_journal_key, 0, x'{body}' FROM state")
}

/// Entries stay in the journal.
const REFUSE_MOVES: &str = "CREATE TRIGGER refuse BEFORE INSERT ON run_entries
    BEGIN SELECT RAISE(ABORT, 'refused'); END";

fn check_unreadable(error: &RunStoreError) {
    let cause = error.source().unwrap().downcast_ref::<SqliteError>().unwrap();
    assert!(matches!(cause, SqliteError::Unreadable("log")), "{cause}");
}

/// Appends to several logs at once, so that the appends may share a transaction.
async fn append_to_some(store: &SqliteStore, logs: &mut [Log], random: &mut Random) {
    let mut appends = JoinSet::new();
    for log in logs.iter_mut().filter(|log| !log.has_ended) {
        if random.below(3) > 0 {
            continue;
        }
        let new = random.entries(&log.key, log.entries.len());
        log.has_ended = random.below(100) == 0;
        log.last = log.entries.len();
        log.entries.extend(new.iter().cloned());
        let (store, key, position) = (store.clone(), log.key.clone(), log.last as u64);
        let end = log.has_ended;
        appends.spawn(async move { appended(&store, &key, position, &new, end).await });
    }
    appends.join_all().await;
}

async fn append_at(store: &SqliteStore, log: &Log, position: usize) -> AppendResult {
    let (key, entries, position) = (&log.key, &[frame("late")], position as u64);
    let append = AppendEntries { key, fence: Fence(1), position, entries, end: false };
    store.append(append).await.unwrap()
}

async fn check_a_page(store: &SqliteStore, log: &Log, random: &mut Random) {
    let after = random.below(log.entries.len() + 2);
    let max_bytes = random.below(40_000);
    let read =
        ReadLog { key: &log.key, after: after as u64, max_bytes, is_reader: random.below(2) == 0 };
    let LogPage { entries, length, state, .. } = store.read(read).await.unwrap().unwrap();
    assert_eq!(length, log.entries.len() as u64);
    assert_eq!(state == RunState::Ended, log.has_ended);
    let rest = log.entries.get(after..).unwrap_or_default();
    let mut bytes = 0;
    let fits = |(at, entry): &(usize, &LogEntry)| {
        bytes += entry.bytes().len().max(1);
        *at == 0 || bytes <= max_bytes
    };
    let expected: Vec<&LogEntry> =
        rest.iter().enumerate().take_while(fits).map(|(_, entry)| entry).collect();
    assert_eq!(entries.iter().collect::<Vec<_>>(), expected);
}

/// The same numbers in each run of the test.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    /// Few short entries, or sometimes more than a row of a log holds.
    fn entries(&mut self, key: &RunKey, position: usize) -> Vec<LogEntry> {
        let (count, bytes) = match self.below(20) {
            0 => (40, 2_000),
            1 => (1, 60_000),
            _ => (4, 300),
        };
        (position..=position + self.below(count))
            .map(|position| {
                let text = vec![b'a' + self.below(26) as u8; self.below(bytes)];
                // Most frames begin with the id of their position, and some with another one.
                let id = |number| format!("id: {}.{number}\n", key.run.as_str()).into_bytes();
                let data = [b"data: ".as_slice(), &text, b"\n\n"].concat();
                match self.below(10) {
                    0 => LogEntry::Note(text.into()),
                    1 => LogEntry::Frame(text.into()),
                    2 => LogEntry::Frame([id(position + 1), text].concat().into()),
                    3 => LogEntry::Note([id(position), text].concat().into()),
                    // Not the whole frame is an event.
                    4 => LogEntry::Frame([id(position), data[..7].to_vec()].concat().into()),
                    5 => LogEntry::Frame(data.into()),
                    6 => LogEntry::Frame([id(position), text].concat().into()),
                    _ => LogEntry::Frame([id(position), data].concat().into()),
                }
            })
            .collect()
    }
}
