//! A process is killed at a random moment while it writes chats, approvals and logs.

use std::time::Duration;
use test_support::contention::InsertOne;

use bytes::Bytes;
use test_support::contention;
use test_support::external_processes::number;
use ui_message_stream::approval::store::{LedgerStore, update};
use ui_message_stream::approval::{
    ApprovalState, ClaimResult, LeaseHolderId, Principal, RecordId, RecordedDecision,
};
use ui_message_stream::chat::Chat;
use ui_message_stream::chat::log::{
    AppendEntries, AppendResult, BeginRun, Fence, LogEntry, ReadLog, RunKey,
};
use ui_message_stream::chat::store::{ChatStore, RunStore, SaveChat, SaveResult, VersionedChat};
use ui_message_stream::message::{Part, Role, UiMessage};
use ui_message_stream_sqlite::SqliteStore;

use crate::process::{Folder, Process, block_on};

pub(crate) fn what_was_reported_as_saved_survives_a_kill() -> String {
    let folder = Folder::new();
    let kills = number("KILLS", 20);
    let mut seen = 0;
    // One process goes on while the other is killed.
    let mut surviving = Process::start("write", &folder);
    for _ in 0..kills {
        let next = Process::start("write", &folder);
        // A process is killed in its first writes, or some while later.
        assert!(next.next_line().is_some() && surviving.next_line().is_some());
        std::thread::sleep(Duration::from_micros(u64::from(random()) * 2));
        let lines = std::mem::replace(&mut surviving, next).kill();
        folder.check_integrity();
        block_on(check(&folder, &lines));
        seen += lines.len();
    }
    let lines = surviving.kill();
    folder.check_integrity();
    block_on(check(&folder, &lines));
    format!("{kills} processes killed, {seen} reported writes are all there, the file is intact")
}

/// Checks that what the process has reported is in the file.
async fn check(folder: &Folder, lines: &[String]) {
    let store = SqliteStore::open(folder.file()).await.unwrap();
    // The chat and the log grow: the last line about each says more than those before.
    let last = |kind: &str| lines.iter().rfind(|line| line.starts_with(kind));
    let approvals = lines.iter().filter(|line| line.contains("ed "));
    for line in approvals.chain(last("chat ")).chain(last("log ")) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["chat", id, revision, messages] => {
                let stored = ChatStore::load(&store, &owner(), &id.into()).await.unwrap().unwrap();
                let (revision, messages): (u64, usize) =
                    (revision.parse().unwrap(), messages.parse().unwrap());
                assert!(stored.revision >= revision, "{line}: {}", stored.revision);
                let count = stored.chat.messages.len();
                assert!(count >= messages, "{line}: {count}");
                assert_eq!(stored.chat, chat(id, count), "{line}");
            }
            [kind @ ("asked" | "claimed"), id] => {
                let id: RecordId = id.parse().unwrap();
                let stored = LedgerStore::load(&store, &[id]).await.unwrap().records.remove(0);
                let is_claimed = matches!(stored.record.state, ApprovalState::Claimed { .. });
                assert!(is_claimed || kind == "asked", "{line}");
            }
            ["log", run, length] => {
                let key = key(run);
                let read = ReadLog { key: &key, after: 0, max_bytes: usize::MAX, is_reader: false };
                let page = store.read(read).await.unwrap().unwrap();
                assert!(page.length >= length.parse().unwrap(), "{line}: {}", page.length);
                for (position, stored) in (0..).zip(page.entries) {
                    assert_eq!(stored, entry(position), "{line}");
                }
            }
            _ => panic!("{line}"),
        }
    }
}

/// In the process: writes until it is killed, and prints what was reported as written.
pub(crate) async fn write(store: SqliteStore) {
    let name = format!("{}-{}", std::process::id(), random());
    let key = key(&name);
    let holder = LeaseHolderId::from_bytes([1; 16]);
    let lease = Duration::from_secs(60);
    let begin = BeginRun { key: &key, holder, lease, max_user_runs: 1000 };
    let _ = store.begin(begin).await.unwrap();
    let mut stored: Option<VersionedChat> = None;
    let mut length = 0;
    for messages in 1.. {
        let next = chat(&name, messages);
        let save = match &stored {
            Some(stored) => SaveChat::replacing(stored, &next),
            None => SaveChat::new(&next),
        };
        let SaveResult::Saved(revision) = store.save(save).await.unwrap() else {
            panic!("a conflict")
        };
        println!("chat {name} {revision} {messages}");
        stored = Some(VersionedChat { chat: next, revision });

        let mut id = [0; 16];
        getrandom::fill(&mut id).unwrap();
        let id = RecordId::from_bytes(id);
        assert!(store.insert(&contention::record(id)).await.unwrap());
        println!("asked {id}");
        let claimed = update(&store, id, |record, now| {
            let decided_by = record.requester.clone();
            let decision = RecordedDecision { decided_by, decided_at: now, reason: None };
            record.claim(&decision, holder, lease)
        });
        let claimed = claimed.await.unwrap().unwrap().1;
        assert!(matches!(claimed, ClaimResult::Granted(_)));
        println!("claimed {id}");

        for _ in 0..5 {
            let (entries, fence) = ([entry(length), entry(length + 1)], Fence(1));
            let append =
                AppendEntries { key: &key, fence, position: length, entries: &entries, end: false };
            let appended = store.append(append).await.unwrap();
            assert!(matches!(appended, AppendResult::Appended(_)));
            length += 2;
            println!("log {name} {length}");
        }
    }
}

fn owner() -> Principal {
    Principal::new("ada")
}

fn key(run: &str) -> RunKey {
    RunKey { owner: owner(), chat: "chat".into(), run: run.into() }
}

fn entry(position: u64) -> LogEntry {
    LogEntry::Frame(Bytes::from(format!("id: {position}\ndata: {{}}\n\n")))
}

fn chat(id: &str, messages: usize) -> Chat {
    let mut chat = Chat::new(id, owner());
    for at in 0..messages {
        let text = Part::text(format!("text {at}"));
        chat.messages.push(UiMessage::new(format!("m{at}"), Role::User, vec![text]));
    }
    chat
}

fn random() -> u16 {
    let mut bytes = [0; 2];
    getrandom::fill(&mut bytes).unwrap();
    u16::from_be_bytes(bytes)
}
