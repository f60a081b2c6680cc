//! The suite accepts the store in memory, and notices stores that are wrong.

use chat_test_support::log_double::{Answer, Intercepts, LogDouble};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::Principal;
use ui_message_stream_chat::store::conformance::check;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, ChatPage, Epoch, Expected, InMemoryLogStore, ListChats, LoadLog,
    LoadedLog, LogKey, LogPage, LogStore, PutSnapshot, ReadLogEntries, Undelivered,
};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Bug {
    None,
    LostIsIgnored,
    EpochIsIgnored,
    PlaceIsIgnored,
    PageIsTooLong,
    DeletionIsNotCompared,
    SnapshotIsNotCompared,
    SearchFindsEverything,
    LoadHasFrames,
    AcknowledgesAll,
    ListHintIsMissed,
    ListsCountEntries,
}

/// A store in memory with a bug.
#[derive(Debug)]
struct Wrong {
    store: InMemoryLogStore,
    bug: Bug,
}

impl Intercepts for Wrong {
    fn store(&self) -> &dyn LogStore {
        &self.store
    }

    fn load<'a>(&'a self, load: LoadLog<'a>) -> Answer<'a, Option<LoadedLog>> {
        let has_frames = load.has_frames || self.bug == Bug::LoadHasFrames;
        self.store.load(LoadLog { has_frames, ..load })
    }

    fn read<'a>(&'a self, read: ReadLogEntries<'a>) -> Answer<'a, Option<LogPage>> {
        let max_bytes = match self.bug {
            Bug::PageIsTooLong => read.max_bytes.saturating_add(1),
            _ => read.max_bytes,
        };
        self.store.read(ReadLogEntries { max_bytes, ..read })
    }

    fn append<'a>(&'a self, mut append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        match self.bug {
            Bug::LostIsIgnored => append.only_lost = false,
            Bug::PlaceIsIgnored => append.limits.runs = usize::MAX,
            Bug::EpochIsIgnored => {
                return Box::pin(async move {
                    let load = LoadLog { key: append.key, has_frames: false, has_messages: false };
                    let epoch = self.store.load(load).await?.map(|log| log.head.epoch);
                    append.expected = match (append.expected, epoch) {
                        (Expected::Position { position, .. }, Some(epoch)) => {
                            Expected::Position { epoch, position }
                        }
                        (expected, _) => expected,
                    };
                    self.store.append(append).await
                });
            }
            _ => {}
        }
        self.store.append(append)
    }

    fn put_snapshot<'a>(&'a self, mut put: PutSnapshot<'a>) -> Answer<'a, bool> {
        if self.bug == Bug::SnapshotIsNotCompared {
            put.unchanged = None;
        }
        self.store.put_snapshot(put)
    }

    fn delete<'a>(&'a self, key: &'a LogKey, epoch: Epoch, control: u64) -> Answer<'a, bool> {
        Box::pin(async move {
            let load = LoadLog { key, has_frames: false, has_messages: false };
            let head = self.store.load(load).await?.map(|log| log.head);
            let control = match (self.bug, head) {
                (Bug::DeletionIsNotCompared, Some(head)) => head.control,
                _ => control,
            };
            self.store.delete(key, epoch, control).await
        })
    }

    fn list<'a>(&'a self, owner: &'a Principal, list: ListChats<'a>) -> Answer<'a, ChatPage> {
        let search = list.search.filter(|_| self.bug != Bug::SearchFindsEverything);
        let list = self.store.list(owner, ListChats { search, ..list });
        Box::pin(async move {
            let mut page = list.await?;
            if self.bug == Bug::ListsCountEntries {
                for chat in &mut page.chats {
                    let key = &LogKey { owner: owner.clone(), chat: chat.id.clone() };
                    let load = LoadLog { key, has_frames: false, has_messages: false };
                    chat.control = self.store.load(load).await?.map_or(0, |log| log.head.length);
                }
            }
            Ok(page)
        })
    }

    fn acknowledge<'a>(&'a self, delivered: &'a Undelivered) -> Answer<'a, Option<Undelivered>> {
        Box::pin(async move {
            match self.store.acknowledge(delivered).await? {
                Some(next) if self.bug == Bug::AcknowledgesAll => {
                    self.store.acknowledge(&next).await
                }
                next => Ok(next),
            }
        })
    }

    fn changed_list<'a>(&'a self, owner: &'a Principal) -> BoxFuture<'a, ()> {
        match self.bug {
            Bug::ListHintIsMissed => Box::pin(std::future::pending()),
            _ => self.store.changed_list(owner),
        }
    }
}

async fn result(bug: Bug) -> Result<usize, String> {
    let checked =
        tokio::spawn(check(async move || LogDouble(Wrong { store: InMemoryLogStore::new(), bug })));
    let panic = match checked.await.map_err(tokio::task::JoinError::into_panic) {
        Ok(cases) => return Ok(cases),
        Err(panic) => panic,
    };
    Err(panic.downcast_ref::<String>().cloned().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_store_in_memory_passes_the_conformance_suite() {
    let cases = result(Bug::None).await.unwrap();
    assert!(cases >= 80, "{cases} cases");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_conformance_suite_notices_wrong_stores() {
    for (bug, case) in [
        (Bug::LostIsIgnored, "only a lost run is ended as lost"),
        (Bug::EpochIsIgnored, "an append compares the epoch"),
        (Bug::PlaceIsIgnored, "a user has a maximum number of live runs"),
        (Bug::PageIsTooLong, "a page has no more bytes than asked for"),
        (Bug::DeletionIsNotCompared, "a deletion compares the number of control entries"),
        (Bug::SnapshotIsNotCompared, "unchanged messages stay"),
        (Bug::SearchFindsEverything, "titles are searched"),
        (Bug::AcknowledgesAll, "an older delivery acknowledges nothing"),
        (Bug::LoadHasFrames, "a load without frames returns the other entries"),
        (Bug::ListHintIsMissed, "a change of a list wakes"),
        (Bug::ListsCountEntries, "a chat has the number of its control entries"),
    ] {
        let why = result(bug).await.unwrap_err();
        assert!(why.contains(case), "{bug:?}: {why}");
    }
}
