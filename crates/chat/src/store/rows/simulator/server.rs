//! [`Server`]: what a server does with the logs.

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use super::world::{Ask, Change, NAMES, World};
use crate::store::rows::known_logs::lock;
use crate::store::rows::{KnownLogs, Reply, Rows, Step};
use crate::store::{
    AppendResult, ChatStoreError, EntryKind, Epoch, Expected, LeftToServer, ListChats, LoadLog,
    LoadedLog, LogHead, LogKey, LogStore, PutSnapshot, ReadLogEntries, StoredEntry, Unchanged,
    Undelivered,
};
use ui_message_stream::BoxFuture;
use ui_message_stream::approval::UnixMillis;
use ui_message_stream::id::RunId;

/// The rows of all servers, as one of them has them.
pub(super) struct Server {
    world: Arc<Mutex<World>>,
    known: KnownLogs,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Rows for Server {
    fn run(&self, steps: Vec<Step>) -> BoxFuture<'_, Result<Vec<Reply>, ChatStoreError>> {
        let mut steps = Some(steps).filter(|steps| !steps.is_empty());
        Box::pin(poll_fn(move |_| {
            let mut world = self.world();
            match (world.polled, steps.take()) {
                (None, steps) => {
                    let steps = steps.into_iter().flatten();
                    Poll::Ready(Ok(steps.map(|step| world.apply(step)).collect()))
                }
                (Some(task), Some(steps)) => {
                    world.begin(task, steps);
                    Poll::Pending
                }
                (Some(task), None) => {
                    let Some(batch) = world.batches.get_mut(&task) else {
                        return Poll::Ready(Ok(Vec::new()));
                    };
                    let Some(result) = batch.result.take() else { return Poll::Pending };
                    world.batches.remove(&task);
                    Poll::Ready(result)
                }
            }
        }))
    }

    fn now(&self) -> Option<UnixMillis> {
        Some(UnixMillis(self.world().now))
    }

    fn known(&self) -> &KnownLogs {
        &self.known
    }

    fn ping(&self) -> BoxFuture<'_, Result<(), ChatStoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn list_partitions(&self) -> u64 {
        2
    }

    fn max_ended_bytes(&self) -> usize {
        if self.world().forgets { 20 } else { usize::MAX }
    }
}

type Done = Result<(), ChatStoreError>;

impl Server {
    pub(super) fn new(world: &Arc<Mutex<World>>) -> Arc<Self> {
        Arc::new(Server { world: Arc::clone(world), known: KnownLogs::default() })
    }

    fn world(&self) -> MutexGuard<'_, World> {
        lock(&self.world)
    }

    fn below(&self, limit: usize) -> usize {
        self.world().random.below(limit)
    }

    /// Does something with a chat. An error of the store ends it.
    pub(super) async fn act(self: Arc<Self>) {
        let key = {
            let mut world = self.world();
            let owner = usize::from(world.random.one_in(8));
            let owner = world.owners[owner].clone();
            let chat = world.random.below(3).min(world.random.below(3));
            LogKey { owner, chat: NAMES[chat].into() }
        };
        let done = match self.below(18) {
            0..=7 => self.turn(&key).await,
            8 => self.read(&key).await,
            9..=10 => self.put_snapshot(&key).await,
            11 => self.delete(&key).await,
            12 if self.below(4) == 0 => {
                self.world().deleted_users.insert(key.owner.clone());
                LogStore::delete_user(&*self, &key.owner).await.map(drop)
            }
            13 => LogStore::rename(&*self, &key, "another").await.map(drop),
            14 => self.list(&key).await,
            15 => self.deliver(3, Duration::from_secs(60)).await.map(drop),
            _ => self.sweep().await,
        };
        if done.is_err() {
            self.world().count("failures");
        }
    }

    async fn load(&self, key: &LogKey) -> Result<Option<LoadedLog>, ChatStoreError> {
        let (has_frames, has_messages) = (self.below(2) == 0, true);
        let loaded = LogStore::load(self, LoadLog { key, has_frames, has_messages }).await?;
        let mut world = self.world();
        if let Some(loaded) = &loaded {
            let LoadedLog { head, snapshot, entries } = loaded;
            let log = world.logs.get(&(key.clone(), head.epoch.0));
            let from = snapshot.as_ref().map_or(0, |snapshot| snapshot.position);
            let all = log.into_iter().flat_map(|log| &log.entries).take(head.length as usize);
            let controls = all.clone().filter(|entry| entry.kind == EntryKind::Control).count();
            let expected = (0..).zip(all).skip(from as usize);
            let expected =
                expected.filter(|(_, entry)| has_frames || entry.kind != EntryKind::Frame);
            let is_right = expected.eq(entries.iter().map(|(at, entry)| (*at, entry)))
                && controls as u64 == head.control
                && snapshot.as_ref().is_none_or(|it| {
                    world.snapshots.get(&it.head) == Some(&(it.position, it.messages.clone()))
                });
            if !is_right {
                world.expect(Err(format!("{key:?} was loaded as {head:?} {entries:?}")));
            }
        }
        Ok(loaded)
    }

    async fn append(
        &self,
        key: &LogKey,
        expected: Expected,
        kinds: &[EntryKind],
        (change, run): (Change, &RunId),
        only_lost: bool,
    ) -> Result<AppendResult, ChatStoreError> {
        let number = self.world().number();
        let entry = |(at, kind): (usize, &EntryKind)| {
            let bytes = format!("{number}/{at}/{}", kinds.len()).into();
            StoredEntry { kind: *kind, bytes }
        };
        let ask = || Ask {
            key: key.clone(),
            expected,
            entries: kinds.iter().enumerate().map(entry).collect(),
            run: run.clone(),
            change,
            only_lost,
            is_for_sink: number.is_multiple_of(3) && kinds.contains(&EntryKind::Control),
            keep_for: [None, Some(Duration::from_secs(3600))][number as usize % 2],
            applied: None,
        };
        let ask_now = ask();
        self.world().asks.insert(number, ask());
        let result = LogStore::append(self, ask_now.append()).await;
        let mut world = self.world();
        let held = world.appended(number, &result);
        world.expect(held);
        result
    }

    /// A request: begins a run and writes it, or ends one, or adds to it.
    async fn turn(&self, key: &LogKey) -> Done {
        let number = self.world().number();
        let (epoch, run) = (Epoch(number), RunId::new(format!("r{number}")));
        let loaded = self.load(key).await?.map(|loaded| loaded.head);
        let live = loaded.as_ref().and_then(|head| head.live_run.clone());
        let is_lost = loaded.as_ref().is_some_and(|head| head.is_lost);
        let change = match (live.is_some(), self.below(6)) {
            (false, 0) => Change::Ends,
            (false, 1) => Change::None,
            (false, _) => Change::Begins,
            (true, 0) => Change::Begins,
            (true, 1..=2) => Change::Ends,
            (true, 3) if is_lost => Change::Resumes,
            (true, _) => Change::None,
        };
        let expected = self.expected(loaded.as_ref(), epoch, 2);
        let only_lost = is_lost && change != Change::None && self.below(4) > 0;
        let kinds = [EntryKind::Control, EntryKind::Note];
        let kinds = &kinds[..1 + self.below(2)];
        let mut result = self.append(key, expected, kinds, (change, &run), only_lost).await;
        for _ in 0..self.below(6) {
            // What has become of it, if the reply is lost.
            let head = match result {
                Ok(AppendResult::Appended { head, .. }) => head,
                Ok(AppendResult::Conflict) | Err(_) => match self.load(key).await? {
                    Some(loaded) => loaded.head,
                    None => return Ok(()),
                },
                Ok(_) => return Ok(()),
            };
            if head.live_run.as_ref() != Some(&run) {
                return Ok(());
            }
            self.rest().await;
            let (kinds, change, at): (&[_], _, _) = match self.below(6) {
                0 => (&[], Change::None, 5),
                1..=3 => (&[EntryKind::Frame, EntryKind::Frame], Change::None, 5),
                4 => (&[EntryKind::Frame, EntryKind::Control], Change::None, 2),
                _ => (&[EntryKind::Control], Change::Ends, 1),
            };
            let expected = self.expected(Some(&head), epoch, at);
            result = self.append(key, expected, kinds, (change, &run), false).await;
        }
        result.map(drop)
    }

    /// Calls no store for a while.
    async fn rest(&self) {
        let mut polls = self.below(3);
        poll_fn(|_| {
            let is_over = polls == 0;
            polls = polls.saturating_sub(1);
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn expected(&self, head: Option<&LogHead>, new: Epoch, position_in: usize) -> Expected {
        match head {
            None => Expected::NoLog(new),
            Some(&LogHead { epoch, length: position, .. }) if self.below(position_in) == 0 => {
                Expected::Position { epoch, position }
            }
            Some(&LogHead { epoch, control, .. }) => Expected::Control { epoch, control },
        }
    }

    async fn read(&self, key: &LogKey) -> Done {
        let Some(LoadedLog { head, .. }) = self.load(key).await? else { return Ok(()) };
        let (epoch, position) = (head.epoch, self.below(1 + head.length as usize) as u64);
        let read = ReadLogEntries { key, epoch, position, max_bytes: 12, is_reader: true };
        let Some(page) = LogStore::read(self, read).await? else { return Ok(()) };
        let mut world = self.world();
        let log = &world.logs[&(key.clone(), epoch.0)];
        let all = log.entries.iter().skip(position as usize);
        let is_right = all.take(page.entries.len()).eq(&page.entries)
            && (!page.entries.is_empty() || page.head.length == position);
        if !is_right {
            world.expect(Err(format!("{key:?} was read as {page:?} from {position}")));
        }
        Ok(())
    }

    async fn put_snapshot(&self, key: &LogKey) -> Done {
        let Some(LoadedLog { head: log, snapshot, .. }) = self.load(key).await? else {
            return Ok(());
        };
        let position = log.length - self.below(2).min(log.length as usize) as u64;
        let number = self.world().number();
        let head = format!("s{number}");
        let changed: Vec<_> = (0..self.below(3)).map(|at| format!("m{number}.{at}")).collect();
        let base = snapshot.filter(|_| number.is_multiple_of(2));
        let kept = base.as_ref().map_or(0, |base| self.below(base.messages.len() + 1));
        let unchanged =
            base.as_ref().map(|base| Unchanged { position: base.position, messages: kept });
        let mut messages = base.map_or_else(Vec::new, |base| base.messages);
        messages.truncate(kept);
        messages.extend(changed.iter().cloned());
        self.world().snapshots.insert(head.clone(), (position, messages));
        let put = PutSnapshot {
            key,
            epoch: log.epoch,
            position,
            head: &head,
            unchanged,
            changed: &changed,
        };
        if LogStore::put_snapshot(self, put).await? {
            self.world().count("snapshots");
        }
        self.load(key).await.map(drop)
    }

    async fn delete(&self, key: &LogKey) -> Done {
        let Some(LoadedLog { head, .. }) = self.load(key).await? else { return Ok(()) };
        self.world().deletions.insert((key.clone(), head.epoch, head.control));
        if LogStore::delete(self, key, head.epoch, head.control).await? {
            self.world().count("deleted");
            // It may begin again at once.
            return self.turn(key).await;
        }
        Ok(())
    }

    async fn list(&self, LogKey { owner, .. }: &LogKey) -> Done {
        let changes = |world: &World| world.changes.get(owner).copied();
        let (before, chats_before) = {
            let world = self.world();
            (changes(&world), world.chats(owner))
        };
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let list = ListChats { limit: 1, after: after.as_ref(), search: None };
            let page = LogStore::list(self, owner, list).await?;
            listed.extend(page.chats.into_iter().map(|chat| chat.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let mut world = self.world();
        let chats = world.chats(owner);
        if before == changes(&world) {
            world.count("stable lists");
            // The time of some may have passed meanwhile.
            let is_right = chats.iter().all(|chat| listed.contains(chat))
                && listed.iter().all(|chat| chats_before.contains(chat))
                && listed.iter().collect::<BTreeSet<_>>().len() == listed.len();
            if !is_right {
                world.expect(Err(format!("listed are {listed:?} of {chats:?}")));
            }
        }
        Ok(())
    }

    /// Delivers as a server does. Returns how much there was.
    pub(super) async fn deliver(
        &self,
        limit: usize,
        retry_after: Duration,
    ) -> Result<usize, ChatStoreError> {
        let taken = LogStore::undelivered(self, limit, retry_after).await?;
        for next in &taken {
            let key = next.key.clone();
            let delivered = match self.load(&key).await? {
                Some(LoadedLog { head, .. }) => {
                    Undelivered { key, epoch: head.epoch, position: head.length }
                }
                None => Undelivered::deletion(key, next.epoch),
            };
            self.world().acknowledged.insert(delivered.clone());
            if LogStore::acknowledge(self, &delivered).await?.is_none() {
                self.world().count("delivered");
            }
        }
        Ok(taken.len())
    }

    pub(super) async fn sweep(&self) -> Done {
        let LeftToServer { lost_runs, old_snapshots } = LogStore::sweep(self).await?;
        for (key, run) in lost_runs {
            let Some(LoadedLog { head, .. }) = self.load(&key).await? else { continue };
            if head.live_run.as_ref() == Some(&run) {
                self.world().count("lost runs");
                let expected = self.expected(Some(&head), head.epoch, 2);
                let change = (Change::Ends, &run);
                drop(self.append(&key, expected, &[EntryKind::Control], change, true).await?);
            }
        }
        for key in old_snapshots {
            self.world().count("old snapshots");
            self.put_snapshot(&key).await?;
        }
        Ok(())
    }
}
