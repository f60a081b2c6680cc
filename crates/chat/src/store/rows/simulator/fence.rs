//! The frames of a run cannot keep a Stop waiting.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;

use crate::store::rows::memory::InMemoryLogStore;
use crate::store::rows::{ENTRIES, KnownLogs, Reply, Rows, Step, Write};
use crate::store::{
    AppendLog, AppendResult, ChatStoreError, EntryKind, Epoch, Expected, LiveRunChange, LogKey,
    LogStore, StoredEntry, UserLimits,
};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::id::RunId;

/// The rows of a server to which a frame of another server always comes first.
#[derive(Debug)]
struct Slow {
    rows: Arc<InMemoryLogStore>,
    known: KnownLogs,
    key: LogKey,
    frames: AtomicUsize,
}

impl Rows for Slow {
    fn run(&self, steps: Vec<Step>) -> BoxFuture<'_, Result<Vec<Reply>, ChatStoreError>> {
        let is_push = |write: &Write| matches!(write, Write::Push { sequence: ENTRIES, .. });
        if steps.iter().any(|step| step.writes.iter().any(is_push)) {
            let expected = Expected::Control { epoch: Epoch(1), control: 1 };
            let entries = [EntryKind::Frame].map(entry);
            let append = append(&self.key, expected, &entries, LiveRunChange::None);
            // One that waits is given up.
            if let Some(Ok(AppendResult::Appended { .. })) = self.rows.append(append).now_or_never()
            {
                self.frames.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.rows.run(steps)
    }

    fn now(&self) -> Option<UnixMillis> {
        Rows::now(&*self.rows)
    }

    fn known(&self) -> &KnownLogs {
        &self.known
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Rows::ping(&*self.rows)
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_appended_though_a_frame_comes_before_each_attempt() {
    let rows = Arc::new(InMemoryLogStore::with_test_clock(UnixMillis(1_000_000)));
    let key = LogKey { owner: Principal::new("u"), chat: "c".into() };
    let run = RunId::new("r");
    let control = [EntryKind::Control].map(entry);
    let begin = append(&key, Expected::NoLog(Epoch(1)), &control, LiveRunChange::Begins(&run));
    assert!(matches!(rows.append(begin).await, Ok(AppendResult::Appended { .. })));

    let (known, frames) = (KnownLogs::default(), AtomicUsize::new(0));
    let slow = Slow { rows, known, key: key.clone(), frames };
    let expected = Expected::Control { epoch: Epoch(1), control: 1 };
    let stop = append(&key, expected, &control, LiveRunChange::Ends);
    let stopped = slow.append(stop).await.unwrap();
    let AppendResult::Appended { first, head } = stopped else { panic!("{stopped:?}") };
    assert_eq!(first, 1 + slow.frames.load(Ordering::Relaxed) as u64);
    assert!(first > 1, "no frame came first");
    assert_eq!(head.live_run, None);
}

fn entry(kind: EntryKind) -> StoredEntry {
    StoredEntry { kind, bytes: "entry".into() }
}

fn append<'a>(
    key: &'a LogKey,
    expected: Expected,
    entries: &'a [StoredEntry],
    live_run: LiveRunChange<'a>,
) -> AppendLog<'a> {
    AppendLog {
        key,
        expected,
        entries,
        lease: Some(Duration::from_secs(60)),
        only_lost: false,
        live_run,
        listed: None,
        keep_for: None,
        limits: UserLimits { chats: 1, runs: 1, unread: Duration::ZERO },
        is_for_sink: false,
    }
}
