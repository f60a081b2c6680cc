//! The requests that the tests of each store make of logs of chats.

use std::time::Duration;

use bytes::Bytes;
use test_support::requests::ada;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, EntryKind, Epoch, Expected, LiveRunChange, LoadLog, LoadedLog,
    LogHead, LogKey, LogPage, LogStore, PutSnapshot, ReadLogEntries, StoredEntry, UserLimits,
};

/// The epoch of each log.
pub const EPOCH: Epoch = Epoch(7);

/// Returns the key of a chat.
pub fn key(owner: &Principal, chat: &str) -> LogKey {
    LogKey { owner: owner.clone(), chat: chat.into() }
}

/// Returns the key of a chat of the user `ada`.
pub fn adas(chat: &str) -> LogKey {
    key(&ada(), chat)
}

/// Returns a frame with a text.
pub fn frame(text: &str) -> StoredEntry {
    entry(EntryKind::Frame, text)
}

/// Returns a note with a text.
pub fn note(text: &str) -> StoredEntry {
    entry(EntryKind::Note, text)
}

/// Returns a control entry with a text.
pub fn control(text: &str) -> StoredEntry {
    entry(EntryKind::Control, text)
}

fn entry(kind: EntryKind, text: &str) -> StoredEntry {
    StoredEntry { kind, bytes: Bytes::copy_from_slice(text.as_bytes()) }
}

/// Returns an append that creates a log.
pub fn creation<'a>(key: &'a LogKey, entries: &'a [StoredEntry]) -> AppendLog<'a> {
    AppendLog {
        key,
        expected: Expected::NoLog(EPOCH),
        entries,
        lease: None,
        only_lost: false,
        live_run: LiveRunChange::None,
        listed: None,
        keep_for: None,
        limits: UserLimits { chats: 10_000, runs: 1_000, unread: Duration::from_secs(600) },
        is_for_sink: false,
    }
}

/// Returns an append to a log with so many entries.
pub fn append_at<'a>(key: &'a LogKey, position: u64, entries: &'a [StoredEntry]) -> AppendLog<'a> {
    AppendLog { expected: Expected::Position { epoch: EPOCH, position }, ..creation(key, entries) }
}

/// Returns an append to a log with so many control entries.
pub fn append_after<'a>(
    key: &'a LogKey,
    control: u64,
    entries: &'a [StoredEntry],
) -> AppendLog<'a> {
    AppendLog { expected: Expected::Control { epoch: EPOCH, control }, ..creation(key, entries) }
}

/// Appends, which must not be refused. Returns the head after it.
pub async fn appended(store: &impl LogStore, append: AppendLog<'_>) -> LogHead {
    match store.append(append).await.unwrap() {
        AppendResult::Appended { head, .. } => head,
        result => panic!("{result:?}"),
    }
}

/// Creates a log with one control entry.
pub async fn create(store: &impl LogStore, key: &LogKey) -> LogHead {
    appended(store, creation(key, &[control("request")])).await
}

/// Creates a log with one control entry, with which a run begins that has a lease of ten seconds.
pub async fn begin(store: &impl LogStore, key: &LogKey) -> LogHead {
    let (entries, run) = ([control("begin")], "run".into());
    let live_run = LiveRunChange::Begins(&run);
    let lease = Some(Duration::from_secs(10));
    appended(store, AppendLog { live_run, lease, ..creation(key, &entries) }).await
}

/// Appends a control entry, with which the live run ends.
pub async fn end(store: &impl LogStore, key: &LogKey, position: u64) -> LogHead {
    let entries = [control("end")];
    let live_run = LiveRunChange::Ends;
    appended(store, AppendLog { live_run, ..append_at(key, position, &entries) }).await
}

/// Loads everything of a log.
pub async fn load(store: &impl LogStore, key: &LogKey) -> Option<LoadedLog> {
    store.load(LoadLog { key, has_frames: true, has_messages: true }).await.unwrap()
}

/// Reads the entries from a position on, as the server does.
pub async fn read_from(store: &impl LogStore, key: &LogKey, position: u64) -> Option<LogPage> {
    let (epoch, max_bytes) = (EPOCH, usize::MAX);
    let read = ReadLogEntries { key, epoch, position, max_bytes, is_reader: false };
    store.read(read).await.unwrap()
}

/// Reads all entries of a log, which must be there.
pub async fn read_all(store: &impl LogStore, key: &LogKey) -> Vec<StoredEntry> {
    read_from(store, key, 0).await.unwrap().entries
}

/// Stores a snapshot with these messages. Returns whether it was stored.
pub async fn put(store: &impl LogStore, key: &LogKey, position: u64, messages: &[&str]) -> bool {
    let changed: Vec<String> = messages.iter().map(|message| message.to_string()).collect();
    let (epoch, head, changed) = (EPOCH, "{}", &*changed);
    let put = PutSnapshot { key, epoch, position, head, unchanged: None, changed };
    store.put_snapshot(put).await.unwrap()
}
