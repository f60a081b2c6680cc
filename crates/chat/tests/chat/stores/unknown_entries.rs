//! A rolling deploy brings in a new kind of entry: a server that does not know it refuses the chat and writes
//! nothing, and the server that has written it goes on.

use std::sync::Arc;

use chat_test_support::answers::{post, read_until};
use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use test_support::eventually;
use test_support::requests::{ada, say};
use test_support::responses::text_of;
use test_support::thread_subscriber::captured;
use tokio::sync::Semaphore;
use ui_message_stream_chat::ChatError;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, InMemoryLogStore, LoadLog, LoadedLog, LogKey, LogPage, LogStore,
    ReadLogEntries, StoredEntry,
};

use crate::endings::faults::speaker;

/// What a server of the next version makes of a store: it writes `vote` where this version writes `step`.
#[derive(Debug)]
struct NextVersion(Arc<InMemoryLogStore>);

const STEP: &[u8] = br#""step""#;

const VOTE: &[u8] = br#"{"vote":{}}"#;

fn exchanged(entry: StoredEntry, from: &[u8], to: &'static [u8]) -> StoredEntry {
    match entry.bytes == from {
        true => StoredEntry { bytes: to.into(), ..entry },
        false => entry,
    }
}

impl Intercepts for NextVersion {
    fn store(&self) -> &dyn LogStore {
        &*self.0
    }

    fn load<'a>(&'a self, load: LoadLog<'a>) -> Answer<'a, Option<LoadedLog>> {
        Box::pin(async move {
            let mut loaded = self.0.load(load).await?;
            for (_, entry) in loaded.iter_mut().flat_map(|loaded| &mut loaded.entries) {
                *entry = exchanged(entry.clone(), VOTE, STEP);
            }
            Ok(loaded)
        })
    }

    fn read<'a>(&'a self, read: ReadLogEntries<'a>) -> Answer<'a, Option<LogPage>> {
        Box::pin(async move {
            let mut page = self.0.read(read).await?;
            for entry in page.iter_mut().flat_map(|page| &mut page.entries) {
                *entry = exchanged(entry.clone(), VOTE, STEP);
            }
            Ok(page)
        })
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        Box::pin(async move {
            let entries = append.entries.iter().cloned();
            let entries: Vec<_> = entries.map(|entry| exchanged(entry, STEP, VOTE)).collect();
            self.0.append(AppendLog { entries: &entries, ..append }).await
        })
    }
}

#[tokio::test]
async fn a_server_that_does_not_know_an_entry_refuses_the_chat_and_writes_nothing() {
    let (log, _guard) = captured();
    let (store, permits) = (Arc::new(InMemoryLogStore::new()), Arc::new(Semaphore::new(0)));
    let (next, _) = speaker(&Arc::new(LogDouble(NextVersion(store.clone()))), &permits);
    let (this, _) = speaker(&store, &permits);
    let (ada, chat) = (ada(), "chat".into());
    let mut response = post(&next, "m1", "Hi").await;
    let begun = read_until(&mut response, "An ").await;

    let key = LogKey { owner: ada.clone(), chat: "chat".into() };
    let numbers = async || {
        let load = LoadLog { key: &key, has_frames: true, has_messages: false };
        let loaded = store.load(load).await.unwrap().unwrap();
        let has_vote = loaded.entries.iter().any(|(_, entry)| entry.bytes == VOTE);
        (loaded.head.control, has_vote)
    };
    let before = numbers().await;
    assert!(before.1, "no entry of the next version is in the log");
    let refusals = [
        this.stream_response(&ada, say("chat", "m2", "Hi")).await.map(drop),
        this.chat(&ada, &chat).await.map(drop),
        this.resume_stream(&ada, &chat, None).await.map(drop),
        this.stop(&ada, &chat).await,
        this.delete(&ada, &chat).await,
    ];
    for refusal in refusals {
        assert!(matches!(refusal, Err(ChatError::Store(_))), "{refusal:?}");
    }
    assert_eq!(numbers().await, before);
    assert!(log.text().contains("unknown variant `vote`"), "{}", log.text());

    permits.add_permits(2);
    let text = begun + &text_of(response).await;
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    // A snapshot covers the entry, so this version reads the chat again.
    eventually(async || this.chat(&ada, &chat).await.is_ok()).await;
    text_of(post(&this, "m2", "Hi").await).await;
    assert_eq!(next.chat(&ada, &chat).await.unwrap().messages.len(), 4);
}
