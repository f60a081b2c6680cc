//! The requests that the tests of each store make: saves of conversations, and runs with their logs.

use std::time::Duration;

use bytes::Bytes;
use ui_message_stream::approval::{LeaseHolderId, Principal};
use ui_message_stream::chat::Chat;
use ui_message_stream::chat::log::{
    AppendEntries, AppendResult, BeginResult, BeginRun, Fence, LogEntry, LogPage, ReadLog, RunKey,
};
use ui_message_stream::chat::store::{ChatStore, RunStore, SaveChat, SaveResult};
use ui_message_stream::message::{Part, Role, UiMessage};

/// Returns a conversation with messages of the user.
pub fn chat_of(owner: &Principal, id: &str, messages: usize) -> Chat {
    let mut chat = Chat::new(id, owner.clone());
    for at in 0..messages {
        let part = Part::text(format!("text {at}"));
        chat.messages.push(UiMessage::new(format!("m{at}"), Role::User, vec![part]));
    }
    chat
}

/// Saves a conversation, and returns its revision.
pub async fn saved(store: &impl ChatStore, save: SaveChat<'_>) -> u64 {
    match store.save(save).await.unwrap() {
        SaveResult::Saved(revision) => revision,
        result => panic!("{result:?}"),
    }
}

/// Returns the key of a run in the conversation `chat`.
pub fn run_key(owner: &Principal, run: &str) -> RunKey {
    RunKey { owner: owner.clone(), chat: "chat".into(), run: run.into() }
}

/// Begins a run with a lease of ten seconds.
pub async fn begin(store: &impl RunStore, key: &RunKey, max_user_runs: usize) -> BeginResult {
    let lease = Duration::from_secs(10);
    store.begin(BeginRun { key, holder: holder(1), lease, max_user_runs }).await.unwrap()
}

/// Returns the id of a holder.
pub fn holder(number: u8) -> LeaseHolderId {
    LeaseHolderId::from_bytes([number; 16])
}

/// Returns an entry with a text.
pub fn frame(text: &str) -> LogEntry {
    LogEntry::Frame(Bytes::copy_from_slice(text.as_bytes()))
}

/// Appends with the fence of the holder that began the run.
pub async fn append(
    store: &impl RunStore,
    key: &RunKey,
    position: u64,
    entries: &[LogEntry],
    end: bool,
) -> AppendResult {
    let append = AppendEntries { key, fence: Fence(1), position, entries, end };
    store.append(append).await.unwrap()
}

/// Appends, which must not be refused.
pub async fn appended(
    store: &impl RunStore,
    key: &RunKey,
    position: u64,
    entries: &[LogEntry],
    end: bool,
) {
    let result = append(store, key, position, entries, end).await;
    assert!(matches!(result, AppendResult::Appended(_)), "{result:?}");
}

/// Reads a whole log, as the server does.
pub async fn page(store: &impl RunStore, key: &RunKey) -> Option<LogPage> {
    let read = ReadLog { key, after: 0, max_bytes: usize::MAX, is_reader: false };
    store.read(read).await.unwrap()
}
