//! [`RowStore`]: a store of logs in four tables, as a host can write one in SQL. It counts what it writes.

use std::collections::BTreeMap;
use std::future::ready;
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use chat_test_support::log_double::Answer;
use tokio::time::Instant;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::id::RunId;
use ui_message_stream_chat::store::{
    AppendLog, AppendResult, ChatPage, ChatSummary, EntryKind, Epoch, Expected, KEPT_AFTER_END,
    KEPT_AFTER_LOSS, KEPT_UNDELIVERED, LeftToServer, ListChats, LiveRunChange, LoadLog, LoadedLog,
    LogHead, LogKey, LogPage, LogStore, PutSnapshot, ReadLogEntries, ReadMessages, Snapshot,
    StoredEntry, Undelivered, UserLimits,
};

/// A store with four tables.
#[derive(Debug)]
pub(crate) struct RowStore {
    tables: Mutex<Tables>,
    created: Instant,
    /// The bytes that were written, and how often a chat was loaded.
    pub written: AtomicUsize,
    pub loads: AtomicUsize,
}

#[derive(Debug, Default)]
struct Tables {
    chats: BTreeMap<LogKey, ChatRow>,
    entries: BTreeMap<(LogKey, u64), StoredEntry>,
    messages: BTreeMap<(LogKey, usize), String>,
    /// What a sink has to get, with the time of the next attempt. `None` if the sink has got it.
    deliveries: BTreeMap<LogKey, (Undelivered, Option<UnixMillis>)>,
}

#[derive(Debug)]
struct ChatRow {
    epoch: Epoch,
    length: u64,
    control: u64,
    /// The position of the first entry that is stored.
    first: u64,
    live: Option<LiveRow>,
    /// Where the runs begin that have ended, and when they ended.
    ended: Vec<(u64, UnixMillis)>,
    /// The position and the head of the snapshot.
    snapshot: Option<(u64, String)>,
    title: String,
    is_renamed: bool,
    has_questions: bool,
    updated_at: UnixMillis,
    expires_at: Option<UnixMillis>,
}

#[derive(Debug)]
struct LiveRow {
    run: RunId,
    begin: u64,
    lease_end: UnixMillis,
    read_at: UnixMillis,
    has_to_end: bool,
}

impl RowStore {
    pub(crate) fn new() -> Self {
        RowStore {
            tables: Mutex::default(),
            created: Instant::now(),
            written: AtomicUsize::new(0),
            loads: AtomicUsize::new(0),
        }
    }

    /// Returns the time, and the tables without the chats whose time has passed.
    fn begin(&self) -> (UnixMillis, MutexGuard<'_, Tables>) {
        let now = UnixMillis(1_000_000).after(self.created.elapsed());
        let mut tables = self.tables.lock().unwrap();
        let has_passed = |chat: &ChatRow| chat.expires_at.is_some_and(|at| at <= now);
        tables.delete(now, |_, chat| has_passed(chat));
        (now, tables)
    }

    fn count(&self, bytes: usize) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Tables {
    /// Deletes the chats that `is_deleted` selects, and returns their number.
    fn delete(&mut self, now: UnixMillis, is_deleted: impl Fn(&LogKey, &ChatRow) -> bool) -> usize {
        let chats = self.chats.len();
        self.chats.retain(|key, chat| !is_deleted(key, chat));
        if self.chats.len() < chats {
            for (key, (next, due)) in &mut self.deliveries {
                if next.position < Undelivered::DELETED && !self.chats.contains_key(key) {
                    (next.position, *due) = (Undelivered::DELETED, Some(now));
                }
            }
            self.entries.retain(|(key, _), _| self.chats.contains_key(key));
            self.messages.retain(|(key, _), _| self.chats.contains_key(key));
        }
        chats - self.chats.len()
    }

    fn entries(&self, key: &LogKey, from: u64) -> impl Iterator<Item = (u64, &StoredEntry)> {
        let range = (key.clone(), from)..=(key.clone(), u64::MAX);
        self.entries.range(range).map(|((_, position), entry)| (*position, entry))
    }

    fn messages(&self, key: &LogKey, from: usize) -> impl Iterator<Item = &String> {
        let range = (key.clone(), from)..=(key.clone(), usize::MAX);
        self.messages.range(range).map(|(_, message)| message)
    }

    /// Returns whether the owner may begin a run. Another one may have to end for it.
    fn has_place(&mut self, owner: &Principal, limits: UserLimits, now: UnixMillis) -> bool {
        let chats = self.chats.iter_mut().filter(|(key, _)| key.owner == *owner);
        let live = chats.filter_map(|(_, chat)| chat.live.as_mut());
        let mut live: Vec<_> =
            live.filter(|live| now < live.lease_end && !live.has_to_end).collect();
        if live.len() < limits.runs {
            return true;
        }
        let oldest = live.iter_mut().min_by_key(|live| live.read_at);
        let Some(oldest) = oldest.filter(|live| since(live.read_at, now) >= limits.unread) else {
            return false;
        };
        oldest.has_to_end = true;
        true
    }
}

impl ChatRow {
    fn new(epoch: Epoch, now: UnixMillis) -> Self {
        ChatRow {
            epoch,
            length: 0,
            control: 0,
            first: 0,
            live: None,
            ended: Vec::new(),
            snapshot: None,
            title: String::new(),
            is_renamed: false,
            has_questions: false,
            updated_at: now,
            expires_at: None,
        }
    }

    fn head(&self, now: UnixMillis) -> LogHead {
        let live = self.live.as_ref();
        LogHead {
            epoch: self.epoch,
            length: self.length,
            control: self.control,
            live_run: live.map(|live| live.run.clone()),
            is_lost: live.is_some_and(|live| now >= live.lease_end),
            unread: live.map_or(Duration::ZERO, |live| since(live.read_at, now)),
            has_to_end: live.is_some_and(|live| live.has_to_end),
        }
    }

    fn is_as_expected(&self, expected: Expected) -> bool {
        match expected {
            Expected::NoLog(_) => false,
            Expected::Control { epoch, control } => (self.epoch, self.control) == (epoch, control),
            Expected::Position { epoch, position } => {
                (self.epoch, self.length) == (epoch, position)
            }
        }
    }

    fn append(&mut self, append: &AppendLog<'_>, now: UnixMillis) {
        let controls = append.entries.iter().filter(|entry| entry.kind == EntryKind::Control);
        let controls = controls.count() as u64;
        let (change, live) = (append.live_run, self.live.as_ref().map(|live| live.begin));
        if change != LiveRunChange::None {
            self.ended.extend(change.ended_begin(live, self.length).map(|begin| (begin, now)));
            let (begin, lease_end) = (change.new_begin(live, self.length), now);
            self.live = change.new_run().map(|run| LiveRow {
                run: run.clone(),
                begin,
                lease_end,
                read_at: now,
                has_to_end: false,
            });
        }
        if let (Some(live), Some(lease)) = (&mut self.live, append.lease) {
            live.lease_end = now.after(lease);
        }
        if let Some(listed) = append.listed {
            self.has_questions = listed.has_questions;
            if !self.is_renamed {
                listed.title.clone_into(&mut self.title);
            }
        }
        if controls > 0 {
            self.updated_at = now;
            self.expires_at = append.keep_for.map(|time| now.after(time));
        }
        self.length += append.entries.len() as u64;
        self.control += controls;
    }
}

fn since(time: UnixMillis, now: UnixMillis) -> Duration {
    Duration::from_millis(now.0.saturating_sub(time.0))
}

/// The first items that have this number of bytes together, and at least one.
fn within<'i, T: Clone + 'i>(
    items: impl Iterator<Item = &'i T>,
    max_bytes: usize,
    bytes: impl Fn(&T) -> usize,
) -> Vec<T> {
    let mut sum = 0;
    let page = items.enumerate().take_while(|(at, item)| {
        sum += bytes(item);
        *at == 0 || sum <= max_bytes
    });
    page.map(|(_, item)| item.clone()).collect()
}

fn answer<'a, T: Send + 'a>(answer: T) -> Answer<'a, T> {
    Box::pin(ready(Ok(answer)))
}

impl LogStore for RowStore {
    fn load<'a>(&'a self, load: LoadLog<'a>) -> Answer<'a, Option<LoadedLog>> {
        self.loads.fetch_add(1, Ordering::Relaxed);
        let (now, tables) = self.begin();
        answer(tables.chats.get(load.key).map(|chat| {
            let snapshot = chat.snapshot.as_ref();
            let from = snapshot.map_or(0, |(position, _)| *position);
            let entries = tables.entries(load.key, from);
            let entries = entries
                .filter(|(_, entry)| load.has_frames || entry.kind != EntryKind::Frame)
                .map(|(position, entry)| (position, entry.clone()))
                .collect();
            let messages = tables.messages(load.key, 0).filter(|_| load.has_messages);
            let snapshot = snapshot.map(|(position, head)| Snapshot {
                position: *position,
                head: head.clone(),
                messages: messages.cloned().collect(),
            });
            LoadedLog { head: chat.head(now), snapshot, entries }
        }))
    }

    fn messages<'a>(&'a self, read: ReadMessages<'a>) -> Answer<'a, Option<Vec<String>>> {
        let (_, tables) = self.begin();
        let chat = tables.chats.get(read.key).filter(|chat| chat.epoch == read.epoch);
        let snapshot = chat.and_then(|chat| chat.snapshot.as_ref());
        answer(
            snapshot.filter(|(position, _)| *position == read.position).map(|_| {
                within(tables.messages(read.key, read.first), read.max_bytes, String::len)
            }),
        )
    }

    fn read<'a>(&'a self, read: ReadLogEntries<'a>) -> Answer<'a, Option<LogPage>> {
        let (now, mut tables) = self.begin();
        let chat = tables.chats.get_mut(read.key).filter(|chat| {
            let stored = chat.first..=chat.length;
            chat.epoch == read.epoch && stored.contains(&read.position)
        });
        let Some(chat) = chat else { return answer(None) };
        if let Some(live) = chat.live.as_mut().filter(|_| read.is_reader) {
            live.read_at = now;
        }
        let head = chat.head(now);
        let entries = tables.entries(read.key, read.position).map(|(_, entry)| entry);
        let entries = within(entries, read.max_bytes, |entry| entry.bytes.len());
        answer(Some(LogPage { head, entries }))
    }

    fn append<'a>(&'a self, append: AppendLog<'a>) -> Answer<'a, AppendResult> {
        let (now, mut tables) = self.begin();
        let AppendLog { key, limits, .. } = append;
        let chat = tables.chats.get(key);
        let is_expected = match append.expected {
            Expected::NoLog(_) => chat.is_none(),
            expected => chat.is_some_and(|chat| chat.is_as_expected(expected)),
        };
        let live = chat.and_then(|chat| chat.live.as_ref());
        let is_lost = live.is_some_and(|live| now >= live.lease_end);
        if !is_expected || append.only_lost && !is_lost {
            return answer(AppendResult::Conflict);
        }
        let begins = append.live_run.new_run().is_some() && live.is_none();
        if let Expected::NoLog(epoch) = append.expected {
            if tables.chats.keys().filter(|it| it.owner == key.owner).count() >= limits.chats {
                return answer(AppendResult::TooManyChats);
            }
            if begins && !tables.has_place(&key.owner, limits, now) {
                return answer(AppendResult::TooManyRuns);
            }
            tables.chats.insert(key.clone(), ChatRow::new(epoch, now));
        } else if begins && !tables.has_place(&key.owner, limits, now) {
            return answer(AppendResult::TooManyRuns);
        }
        let chat = tables.chats.get_mut(key).unwrap();
        let first = chat.length;
        chat.append(&append, now);
        let head = chat.head(now);
        for (position, entry) in (first..).zip(append.entries) {
            self.count(entry.bytes.len());
            tables.entries.insert((key.clone(), position), entry.clone());
        }
        if append.is_for_sink {
            let (key, epoch, position) = (key.clone(), head.epoch, head.length);
            let next = Undelivered { key: key.clone(), epoch, position };
            tables.deliveries.insert(key, (next, Some(now)));
        }
        answer(AppendResult::Appended { first, head })
    }

    fn put_snapshot<'a>(&'a self, put: PutSnapshot<'a>) -> Answer<'a, bool> {
        let (_, mut tables) = self.begin();
        let stored = tables.messages(put.key, 0).count();
        let chat = tables.chats.get_mut(put.key).filter(|chat| {
            let position = chat.snapshot.as_ref().map(|(position, _)| *position);
            let is_base = put
                .unchanged
                .is_none_or(|base| position == Some(base.position) && base.messages <= stored);
            let is_newer = position.is_none_or(|position| position < put.position);
            chat.epoch == put.epoch && put.position <= chat.length && is_newer && is_base
        });
        let Some(chat) = chat else { return answer(false) };
        chat.snapshot = Some((put.position, put.head.to_owned()));
        self.count(put.head.len());
        let kept = put.unchanged.map_or(0, |base| base.messages);
        tables.messages.retain(|(key, number), _| key != put.key || *number < kept);
        for (number, message) in (kept..).zip(put.changed) {
            self.count(message.len());
            tables.messages.insert((put.key.clone(), number), message.clone());
        }
        answer(true)
    }

    fn delete<'a>(&'a self, key: &'a LogKey, epoch: Epoch, control: u64) -> Answer<'a, bool> {
        let expected = Expected::Control { epoch, control };
        let (now, mut tables) = self.begin();
        answer(tables.delete(now, |it, chat| it == key && chat.is_as_expected(expected)) > 0)
    }

    fn delete_user<'a>(&'a self, owner: &'a Principal) -> Answer<'a, usize> {
        let (now, mut tables) = self.begin();
        answer(tables.delete(now, |key, _| key.owner == *owner))
    }

    fn rename<'a>(&'a self, key: &'a LogKey, title: &'a str) -> Answer<'a, bool> {
        let (_, mut tables) = self.begin();
        let renamed = tables.chats.get_mut(key).map(|chat| {
            (chat.title, chat.is_renamed) = (title.to_owned(), true);
        });
        answer(renamed.is_some())
    }

    fn list<'a>(&'a self, owner: &'a Principal, list: ListChats<'a>) -> Answer<'a, ChatPage> {
        let (_, tables) = self.begin();
        let search = list.search.unwrap_or_default().to_ascii_lowercase();
        let chats = tables.chats.iter().filter(|(key, chat)| {
            key.owner == *owner && chat.title.to_ascii_lowercase().contains(&search)
        });
        let by_time: BTreeMap<_, _> =
            chats.map(|(key, chat)| ((chat.updated_at, key.chat.clone()), chat)).collect();
        let before = list.after.map_or(Bound::Unbounded, |after| {
            Bound::Excluded((after.updated_at, after.id.clone()))
        });
        let page = by_time.range((Bound::Unbounded, before)).rev().take(list.limit + 1);
        let page = page.map(|((updated_at, id), chat)| ChatSummary {
            id: id.clone(),
            title: chat.title.clone(),
            updated_at: *updated_at,
            is_live: chat.live.is_some(),
            has_questions: chat.has_questions,
            control: chat.control,
        });
        answer(ChatPage::new(page.collect(), list.limit))
    }

    fn undelivered(&self, limit: usize, retry_after: Duration) -> Answer<'_, Vec<Undelivered>> {
        let (now, mut tables) = self.begin();
        let deliveries = tables.deliveries.values_mut();
        let due = deliveries.filter(|(_, due)| due.is_some_and(|due| due <= now));
        let mut due: Vec<_> = due.collect();
        due.sort_by_key(|(_, due)| *due);
        let taken = due.into_iter().take(limit).map(|(next, due)| {
            *due = Some(now.after(retry_after));
            next.clone()
        });
        answer(taken.collect())
    }

    fn acknowledge<'a>(&'a self, delivered: &'a Undelivered) -> Answer<'a, Option<Undelivered>> {
        let (_, mut tables) = self.begin();
        let Undelivered { key, epoch, position } = delivered;
        let is_deletion = *position == Undelivered::DELETED;
        let Some((next, due)) = tables.deliveries.get_mut(key) else {
            let deletion = || Undelivered::deletion(key.clone(), *epoch);
            return answer((!is_deletion).then(deletion));
        };
        if !next.is_acknowledged_by(delivered) {
            return answer(Some(next.clone()));
        }
        (*next, *due) = (delivered.clone(), None);
        if is_deletion {
            tables.deliveries.remove(key);
        }
        answer(None)
    }

    fn sweep(&self) -> Answer<'_, LeftToServer> {
        let (now, mut tables) = self.begin();
        let Tables { chats, entries, deliveries, .. } = &mut *tables;
        deliveries.retain(|_, (next, due)| {
            let is_old = due.is_some_and(|due| since(due, now) >= KEPT_UNDELIVERED);
            next.position < Undelivered::DELETED || !is_old
        });
        let mut swept = LeftToServer::default();
        for (key, chat) in chats {
            let snapshot = chat.snapshot.as_ref().map_or(0, |(position, _)| *position);
            let is_old = chat.live.is_none() && snapshot < chat.length;
            let is_kept = |ended: &UnixMillis| since(*ended, now) < KEPT_AFTER_END;
            if is_old && chat.ended.iter().any(|(_, ended)| !is_kept(ended)) {
                swept.old_snapshots.push(key.clone());
            }
            chat.ended.retain(|(_, ended)| is_old || is_kept(ended));
            let runs = chat.ended.iter().map(|(begin, _)| *begin);
            let runs = runs.chain(chat.live.as_ref().map(|live| live.begin));
            chat.first = runs.fold(snapshot, u64::min);
            entries.retain(|(it, position), _| it != key || *position >= chat.first);
            let live = chat.live.as_ref();
            let is_lost = |live: &&LiveRow| since(live.lease_end, now) >= KEPT_AFTER_LOSS;
            swept
                .lost_runs
                .extend(live.filter(is_lost).map(|live| (key.clone(), live.run.clone())));
        }
        answer(swept)
    }

    fn ping(&self) -> Answer<'_, ()> {
        answer(())
    }
}
