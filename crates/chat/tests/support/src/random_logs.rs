//! Random operations on logs, whose results in a store are those in memory.

use std::time::Duration;

use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::id::RunId;
use ui_message_stream_chat::store::ChatCursor;
use ui_message_stream_chat::store::{
    AppendLog, EntryKind, Epoch, Expected, InMemoryLogStore, ListChats, ListedChat, LiveRunChange,
    LoadLog, LogKey, LogStore, PutSnapshot, ReadLogEntries, ReadMessages, StoredEntry, Unchanged,
    Undelivered, UserLimits,
};

/// Compares 400 operations on an empty store, whose clock stands at `start`. `set_time` sets it.
///
/// # Panics
/// If a result differs from the one in memory.
pub async fn compare_with_memory(
    store: &impl LogStore,
    seed: u64,
    start: UnixMillis,
    set_time: impl AsyncFn(UnixMillis),
) {
    let memory = InMemoryLogStore::with_test_clock(start);
    let (mut random, mut now) = (Random(seed), start);
    for step in 0..400 {
        if random.below(4) == 0 {
            now.0 += [1, 2, 5, 60, 300][random.below(5)] * 1000;
            set_time(now).await;
            memory.set_test_time(now);
        }
        let operation = Operation::new(&mut random);
        // The state of the log makes most operations valid.
        let load = LoadLog { key: &operation.key, has_frames: true, has_messages: true };
        let expected = memory.load(load).await.unwrap();
        assert_eq!(store.load(load).await.unwrap(), expected, "{seed} {step}");
        let (epoch, position, control) = expected
            .as_ref()
            .map_or((1, 0, 0), |log| (log.head.epoch.0, log.head.length, log.head.control));
        let snapshot = expected.and_then(|log| log.snapshot);
        let snapshot = snapshot.map(|old| (old.position, old.messages.len()));
        let state = (epoch, position, control, snapshot);
        let expected = operation.apply(&memory, state).await;
        let result = operation.apply(store, state).await;
        assert_eq!(result, expected, "{seed} {step} {operation:?}");
    }
    compare_lists(store, &memory).await;
}

#[derive(Debug)]
struct Operation {
    key: LogKey,
    choice: usize,
    numbers: [usize; 8],
    new_epoch: u64,
}

impl Operation {
    fn new(random: &mut Random) -> Self {
        let owner = Principal::new(["ada", "bob"][random.below(2)]);
        let key = LogKey { owner, chat: ["a", "b", "\0", ""][random.below(4)].into() };
        let numbers = [(); 8].map(|()| random.below(12));
        let new_epoch = 1 + random.below(1 << 30) as u64;
        Operation { key, choice: random.below(22), numbers, new_epoch }
    }

    /// Applies the operation, and returns its result as text.
    async fn apply(
        &self,
        store: &impl LogStore,
        (epoch, length, control, snapshot): (u64, u64, u64, Option<(u64, usize)>),
    ) -> String {
        let Operation { key, choice, numbers, new_epoch } = self;
        let [a, b, c, d, e, f, g, h] = *numbers;
        let epoch = Epoch(epoch + u64::from(a == 0));
        let position = length.saturating_sub(b as u64 / 4);
        match choice {
            0..10 => {
                let expected = match c {
                    _ if length == 0 && control == 0 && c < 9 => Expected::NoLog(Epoch(*new_epoch)),
                    0 => Expected::NoLog(Epoch(2)),
                    1..6 => Expected::Control { epoch, control },
                    _ => Expected::Position { epoch, position: length + u64::from(b == 0) },
                };
                let kinds = [EntryKind::Frame, EntryKind::Note, EntryKind::Control];
                let entry = |at: usize| StoredEntry {
                    kind: kinds[(at + b) % 3],
                    bytes: vec![7; at * c % 5].into(),
                };
                let run = RunId::from(["r", "s"][h % 2]);
                let append = AppendLog {
                    key,
                    expected,
                    entries: &(0..d % 4).map(entry).collect::<Vec<_>>(),
                    lease: [None, Some(Duration::ZERO), Some(SECOND), Some(SECOND * 30)][e % 4],
                    only_lost: (f + h) % 9 == 0,
                    live_run: match f {
                        0..3 => LiveRunChange::Begins(&run),
                        3 => LiveRunChange::Resumes(&run),
                        4..6 => LiveRunChange::Ends,
                        _ => LiveRunChange::None,
                    },
                    listed: (g < 4).then_some(ListedChat {
                        title: ["Title", "other ÄA", ""][g % 3],
                        has_questions: g % 2 == 0,
                    }),
                    keep_for: (h == 0).then_some(SECOND * 60),
                    limits: UserLimits { chats: 9, runs: a % 3, unread: SECOND * (g as u32) },
                    is_for_sink: c % 2 == 0,
                };
                format!("{:?}", store.append(append).await.unwrap())
            }
            10 | 11 => {
                let (max_bytes, is_reader) = (c, d < 6);
                let read = ReadLogEntries { key, epoch, position, max_bytes, is_reader };
                format!("{:?}", store.read(read).await.unwrap())
            }
            12..15 => {
                let unchanged = snapshot.map(|(position, messages)| Unchanged {
                    position: position + u64::from(c == 0),
                    messages: messages.saturating_sub(d / 4) + usize::from(e == 0),
                });
                let unchanged = unchanged.filter(|_| f < 8);
                let changed: Vec<_> = (0..g % 4).map(|at| format!("{at} {h} {position}")).collect();
                let (head, changed) = ("{}", &*changed);
                let put = PutSnapshot { key, epoch, position, head, unchanged, changed };
                store.put_snapshot(put).await.unwrap().to_string()
            }
            15 => {
                let (position, _) = snapshot.unwrap_or_default();
                let (first, max_bytes) = (c % 4, d * 3);
                let read = ReadMessages { key, epoch, position, first, max_bytes };
                format!("{:?}", store.messages(read).await.unwrap())
            }
            16 if b < 3 => format!("{:?}", store.delete(key, epoch, control).await.unwrap()),
            17 if b == 0 => format!("{:?}", store.delete_user(&key.owner).await.unwrap()),
            18 if b < 3 => store.rename(key, "Renamed").await.unwrap().to_string(),
            // A store may name an old snapshot again only after a while.
            19 => format!("{:?}", store.sweep().await.unwrap().lost_runs),
            20 => {
                // In memory it is noticed at once that the time of a chat has passed.
                store.sweep().await.unwrap();
                let mut undelivered = store.undelivered(100, Duration::ZERO).await.unwrap();
                undelivered.sort();
                format!("{undelivered:?}")
            }
            21 => {
                store.sweep().await.unwrap();
                let undelivered = store.undelivered(100, Duration::ZERO).await.unwrap();
                let known = undelivered.iter().find(|it| it.key == *key).filter(|_| d < 10);
                // No log is delivered before it was created.
                let earlier = Epoch(epoch.0 - 2 * u64::from(a == 0));
                let epoch = known.map_or(earlier, |known| known.epoch);
                let position = if c < 6 { Undelivered::DELETED } else { position };
                let delivered = Undelivered { key: key.clone(), epoch, position };
                format!("{:?}", store.acknowledge(&delivered).await.unwrap())
            }
            _ => {
                let all = LoadLog { key, has_frames: b < 6, has_messages: c < 6 };
                format!("{:?}", store.load(all).await.unwrap())
            }
        }
    }
}

async fn compare_lists(store: &impl LogStore, memory: &InMemoryLogStore) {
    for owner in ["ada", "bob"].map(Principal::new) {
        for search in [None, Some("TITLE"), Some("äa"), Some("Äa"), Some("")] {
            let mut after: Option<ChatCursor> = None;
            loop {
                let list = ListChats { limit: 2, after: after.as_ref(), search };
                let page = store.list(&owner, list).await.unwrap();
                assert_eq!(page, memory.list(&owner, list).await.unwrap());
                let Some(next) = page.next else { break };
                after = Some(next);
            }
        }
    }
}

/// Numbers that depend only on a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

const SECOND: Duration = Duration::from_secs(1);
