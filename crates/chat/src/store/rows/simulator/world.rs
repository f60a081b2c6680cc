//! [`World`]: the rows that all servers share, and what has to hold after each step.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use futures_util::FutureExt;

use crate::store::rows::log_rows::{
    CHATS, DUE, ENTRIES, UNDELIVERED, USER, all, delivery_row, key_of, owner_of, row_of, time_of,
};
use crate::store::rows::memory::InMemoryLogStore;
use crate::store::rows::rules::{self, head::Head, millis};
use crate::store::rows::{Read, Reply, Rows, Step, Write};
use crate::store::{
    AppendLog, AppendResult, ChatStoreError, EntryKind, Epoch, Expected, KEPT_AFTER_END,
    LiveRunChange, LogKey, StoredEntry, Undelivered, UserLimits,
};
use crate::tests::simulator::random::Random;
use ui_message_stream::approval::{Principal, UnixMillis};
use ui_message_stream::id::{ChatId, RunId};

pub(super) const NAMES: [&str; 3] = ["a", "b", "c"];

macro_rules! hold {
    ($holds:expr, $($otherwise:tt)*) => { if !$holds { return Err(format!($($otherwise)*)); } };
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    None,
    Begins,
    Resumes,
    Ends,
}

/// An append that has begun. Its number is in each of its entries.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) key: LogKey,
    pub(super) expected: Expected,
    pub(super) entries: Vec<StoredEntry>,
    pub(super) run: RunId,
    pub(super) change: Change,
    pub(super) only_lost: bool,
    pub(super) is_for_sink: bool,
    pub(super) keep_for: Option<std::time::Duration>,
    /// The epoch and the position of the first entry, when it was applied.
    pub(super) applied: Option<(Epoch, u64)>,
}

impl Ask {
    pub(super) fn append(&self) -> AppendLog<'_> {
        AppendLog {
            key: &self.key,
            expected: self.expected,
            entries: &self.entries,
            lease: (self.change != Change::Ends).then_some(LEASE),
            only_lost: self.only_lost,
            live_run: match self.change {
                Change::None => LiveRunChange::None,
                Change::Begins => LiveRunChange::Begins(&self.run),
                Change::Resumes => LiveRunChange::Resumes(&self.run),
                Change::Ends => LiveRunChange::Ends,
            },
            listed: None,
            keep_for: self.keep_for,
            limits: LIMITS,
            is_for_sink: self.is_for_sink,
        }
    }
}

/// All entries that a log ever had, and what the applied appends have made of it.
#[derive(Debug, Default)]
pub(super) struct Log {
    pub(super) entries: Vec<StoredEntry>,
    live: Option<(RunId, u64)>,
    ended: Vec<(u64, u64)>,
    /// The row after the last step.
    head: Head,
    is_deleted: bool,
}

impl Log {
    fn controls(&self) -> u64 {
        self.entries.iter().filter(|entry| entry.kind == EntryKind::Control).count() as u64
    }
}

/// The steps of a call of [`Rows::run`].
#[derive(Debug, Default)]
pub(super) struct Batch {
    steps: VecDeque<Step>,
    replies: Vec<Reply>,
    pub(super) result: Option<Result<Vec<Reply>, ChatStoreError>>,
}

pub(super) struct World {
    pub(super) store: InMemoryLogStore,
    pub(super) owners: [Principal; 2],
    pub(super) now: u64,
    pub(super) random: Random,
    pub(super) trace: bool,
    /// The calls of the tasks, by their numbers.
    pub(super) batches: BTreeMap<u64, Batch>,
    /// The task that is polled. `None`: each call is run at once.
    pub(super) polled: Option<u64>,
    /// Steps that are run after their caller has got an error.
    pub(super) late: Vec<VecDeque<Step>>,
    pub(super) logs: HashMap<(LogKey, u64), Log>,
    pub(super) asks: HashMap<u64, Ask>,
    /// The snapshots that were stored, by their heads: positions and messages.
    pub(super) snapshots: HashMap<String, (u64, Vec<String>)>,
    /// The deletions that were asked for.
    pub(super) deletions: BTreeSet<(LogKey, Epoch, u64)>,
    pub(super) deleted_users: BTreeSet<Principal>,
    /// What a sink has to get, or has got.
    pub(super) wanted: BTreeMap<LogKey, Undelivered>,
    pub(super) acknowledged: BTreeSet<Undelivered>,
    /// How often rows of a user have changed.
    pub(super) changes: BTreeMap<Principal, u64>,
    pub(super) forgets: bool,
    numbers: u64,
    pub(super) violation: Option<String>,
    pub(super) counts: BTreeMap<&'static str, u64>,
}

impl World {
    pub(super) fn new(seed: u64, trace: bool) -> Self {
        let now = 1_000_000;
        World {
            store: InMemoryLogStore::with_test_clock(UnixMillis(now)),
            owners: ["u", "v"].map(Principal::new),
            now,
            random: Random(seed),
            trace,
            batches: BTreeMap::new(),
            polled: None,
            late: Vec::new(),
            logs: HashMap::new(),
            asks: HashMap::new(),
            snapshots: HashMap::new(),
            deletions: BTreeSet::new(),
            deleted_users: BTreeSet::new(),
            wanted: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            changes: BTreeMap::new(),
            forgets: seed.is_multiple_of(4),
            numbers: 0,
            violation: None,
            counts: BTreeMap::new(),
        }
    }

    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    pub(super) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(super) fn expect(&mut self, held: Result<(), String>) {
        if let Err(broken) = held {
            self.violation.get_or_insert(broken);
        }
    }

    /// A task that is polled calls [`Rows::run`].
    pub(super) fn begin(&mut self, task: u64, steps: Vec<Step>) {
        let batch = Batch { steps: steps.into(), ..Batch::default() };
        let abandoned = self.batches.insert(task, batch);
        self.late.extend(abandoned.map(|batch| batch.steps));
    }

    /// Runs the next step of a task, or loses it, or its reply.
    pub(super) fn run_next(&mut self, task: u64) {
        let Some(mut batch) = self.batches.remove(&task) else { return };
        let fate = self.random.below(60);
        if fate > 0 {
            batch.replies.extend(batch.steps.pop_front().map(|step| self.apply(step)));
        }
        if fate < 2 {
            self.count(["late", "lost reply"][fate]);
            batch.result = Some(Err(ChatStoreError::new("lost")));
            self.abandon(std::mem::take(&mut batch.steps));
        } else if batch.steps.is_empty() {
            batch.result = Some(Ok(std::mem::take(&mut batch.replies)));
        }
        self.batches.insert(task, batch);
    }

    /// Runs steps later, or never.
    pub(super) fn abandon(&mut self, steps: VecDeque<Step>) {
        if !steps.is_empty() && !self.random.one_in(3) {
            self.late.push(steps);
        }
    }

    pub(super) fn run_late(&mut self) {
        let at = self.random.below(self.late.len());
        match self.late[at].pop_front() {
            Some(step) => drop(self.apply(step)),
            None => drop(self.late.swap_remove(at)),
        }
    }

    /// A task has ended, or is given up.
    pub(super) fn leave(&mut self, task: u64) {
        if let Some(batch) = self.batches.remove(&task) {
            self.abandon(batch.steps);
        }
    }

    pub(super) fn is_running(&self, task: u64) -> bool {
        self.batches.get(&task).is_some_and(|batch| batch.result.is_none())
    }

    /// Whether no call of the store is under way, or late.
    pub(super) fn is_idle(&self) -> bool {
        self.late.is_empty() && self.batches.is_empty()
    }

    /// Returns the chats of a user whose time has not passed.
    pub(super) fn chats(&self, owner: &Principal) -> Vec<ChatId> {
        let is_there = |log: &Log| !log.is_deleted && !log.head.is_expired(self.now);
        let logs = self.logs.iter().filter(|((key, _), log)| key.owner == *owner && is_there(log));
        logs.map(|((key, _), _)| key.chat.clone()).collect()
    }

    pub(super) fn apply(&mut self, step: Step) -> Reply {
        self.store.set_test_time(UnixMillis(self.now));
        let reply = self.reply(step.clone());
        if self.trace {
            println!("{} {:?} {} {step:?}", self.now, self.polled, reply.is_applied);
        }
        if reply.is_applied && !step.writes.is_empty() {
            self.count("steps");
            let held = self.check(&step);
            self.expect(held);
        }
        reply
    }

    fn reply(&self, step: Step) -> Reply {
        let replies = self.store.run(vec![step]).now_or_never();
        replies.expect("it has room").expect("it does not fail").remove(0)
    }

    fn check(&mut self, step: &Step) -> Result<(), String> {
        let mut touched = BTreeSet::new();
        let owner = owner_of(&step.partition).ok();
        let key = |row: &str| LogKey { owner: owner.clone().unwrap(), chat: row[1..].into() };
        let mut pushed = None;
        for write in &step.writes {
            match write {
                Write::Move { list, member, .. } if *list != CHATS => {
                    touched.insert(key_of(member).unwrap());
                }
                Write::Put(row, ..) | Write::Keep { row, .. } if row != USER => {
                    touched.insert(key(row));
                }
                Write::Delete(row) if row != USER => {
                    touched.insert(key(row));
                    if row.starts_with('h') {
                        self.deleted(&key(row))?;
                    }
                }
                Write::Push { row, sequence: ENTRIES, items, .. } => {
                    touched.insert(key(row));
                    pushed = items.first().map(|item| (key(row), item.bytes.clone()));
                }
                _ => {}
            }
        }
        let Some(owner) = owner else {
            return touched.iter().try_for_each(|key| self.check_user(&key.owner, &[key], None));
        };
        *self.changes.entry(owner.clone()).or_default() += 1;
        let touched: Vec<_> = touched.iter().collect();
        self.check_user(&owner, &touched, pushed)
    }

    fn deleted(&mut self, key: &LogKey) -> Result<(), String> {
        let (now, deletions, users) = (self.now, &self.deletions, &self.deleted_users);
        let log = self.logs.iter_mut().find(|((it, _), log)| it == key && !log.is_deleted);
        let Some(((_, epoch), log)) = log else { return Ok(()) };
        let asked = (key.clone(), Epoch(*epoch), log.controls());
        let may_go = log.head.is_expired(now) || users.contains(&key.owner);
        hold!(may_go || deletions.contains(&asked), "nobody has deleted {key:?} {epoch}");
        log.is_deleted = true;
        let wanted = self.wanted.get_mut(key).filter(|wanted| wanted.epoch.0 == *epoch);
        wanted.into_iter().for_each(|wanted| wanted.position = Undelivered::DELETED);
        Ok(())
    }

    /// An append was applied. Checks what it had to compare.
    fn pushed(&mut self, key: &LogKey, entry: &[u8], head: &Head) -> Result<(), String> {
        let text = std::str::from_utf8(entry).unwrap();
        let number = text.split('/').next().unwrap().parse().unwrap();
        let is_gone = |((it, epoch), log): (&(LogKey, u64), &Log)| {
            it != key || *epoch == head.epoch || log.is_deleted
        };
        hold!(self.logs.iter().all(is_gone), "{key:?} has two logs");
        let log = self.logs.entry((key.clone(), head.epoch)).or_default();
        let ask = self.asks.get_mut(&number).ok_or("nobody has appended this")?;
        hold!(ask.applied.is_none(), "{ask:?} is applied twice");
        let (epoch, first) = (Epoch(head.epoch), log.entries.len() as u64);
        ask.applied = Some((epoch, first));
        let is_met = ask.key == *key
            && match ask.expected {
                Expected::NoLog(new) => new == epoch && first == 0,
                Expected::Control { epoch: expected, control } => {
                    expected == epoch && control == log.controls() && first > 0
                }
                Expected::Position { epoch: expected, position } => {
                    expected == epoch && position == first && first > 0
                }
            };
        hold!(is_met, "{ask:?} was applied to {log:?}");
        let is_lost = log.head.live.as_ref().is_some_and(|live| live.is_lost(self.now));
        hold!(is_lost || !ask.only_lost, "{ask:?} before the end of the lease of {log:?}");
        log.entries.extend(ask.entries.iter().cloned());
        let begin = log.live.as_ref().map(|live| live.1);
        let (begin, ended) = match ask.change {
            Change::None => (begin, None),
            Change::Begins => (Some(first), begin),
            Change::Resumes => (begin.or(Some(first)), None),
            Change::Ends => (None, begin.or(Some(first))),
        };
        let at = head.ended.last().map_or(0, |ended| ended.1);
        log.ended.extend(ended.map(|begin| (begin, at)));
        if ask.change != Change::None {
            log.live = begin.map(|begin| (ask.run.clone(), begin));
        }
        if ask.is_for_sink {
            let position = log.entries.len() as u64;
            let undelivered = Undelivered { key: key.clone(), epoch, position };
            self.wanted.insert(key.clone(), undelivered);
        }
        Ok(())
    }

    /// Returns the members of a partition of a list of all users.
    fn members(&self, list: &'static str, partition: String) -> Vec<(u64, String)> {
        let step = Step { partition, ..Step::default() }.read(members(list));
        self.reply(step).members().unwrap()
    }

    fn places(&self, list: &'static str, key: &LogKey) -> Vec<u64> {
        let partition = Step::moving(&self.store, list, key, None, None).partition;
        let members = self.members(list, partition).into_iter();
        members.filter(|(_, it)| key_of(it).unwrap() == *key).map(|(at, _)| at).collect()
    }

    pub(super) fn is_listed(&self, list: &'static str) -> bool {
        let partition = |number| Step::of_list(list, number).partition;
        (0..2).any(|number| !self.members(list, partition(number)).is_empty())
    }

    /// Checks the rows of a user, and all that there is of some chats.
    fn check_user(
        &mut self,
        owner: &Principal,
        touched: &[&LogKey],
        pushed: Option<(LogKey, bytes::Bytes)>,
    ) -> Result<(), String> {
        let mut step = Step::of(owner).read(Read::Row(USER.into())).read(members(CHATS));
        for chat in NAMES {
            step = step.read_log(&chat.into()).read(Read::Row(delivery_row(&chat.into())));
        }
        for key in touched {
            step = step.read(all(&row_of(&key.chat), ENTRIES, 0, usize::MAX));
        }
        let mut reply = self.reply(step);
        let error = |error: ChatStoreError| format!("{error:?}");
        let (_, mut user) = reply.user().map_err(error)?;
        let listed = reply.members().map_err(error)?;
        let mut found = BTreeMap::new();
        for chat in NAMES {
            let stored = reply.log().map_err(error)?;
            found.insert(chat, (stored, reply.delivery().map_err(error)?.1));
        }
        let heads: Vec<_> = NAMES
            .into_iter()
            .filter_map(|chat| Some((chat, found[chat].0.head.as_ref()?)))
            .collect();
        user.live.sort();
        let live = heads.iter().filter(|(_, head)| head.live.is_some()).map(|(chat, _)| *chat);
        hold!(user.chats == heads.len() as u64, "{user:?}, and there are {heads:?}");
        hold!(live.clone().eq(user.live.iter()), "{user:?}, and there are {heads:?}");
        let mut places: Vec<_> =
            heads.iter().map(|(chat, head)| (head.updated_at, (*chat).to_owned())).collect();
        places.sort();
        hold!(listed == places, "listed are {listed:?}, and there are {heads:?}");
        if let Some((key, entry)) = pushed {
            let head = found[key.chat.as_str()].0.head.as_ref().ok_or("an entry of no log")?;
            let had_run =
                self.logs.get(&(key.clone(), head.epoch)).is_some_and(|it| it.live.is_some());
            let is_new = !self.logs.contains_key(&(key.clone(), head.epoch));
            self.pushed(&key, &entry, head)?;
            let takes_place = |(_, head): &&(&str, &Head)| {
                let live = head.live.as_ref();
                live.is_some_and(|live| !live.is_lost(self.now) && !live.has_to_end)
            };
            let runs = heads.iter().filter(takes_place).count();
            let begins = head.live.is_some() && !had_run;
            hold!(!begins || runs <= LIMITS.runs, "{runs} runs: {heads:?}");
            hold!(!is_new || heads.len() <= LIMITS.chats, "too many chats: {heads:?}");
        }
        for key in touched {
            let (stored, delivery) = &found[key.chat.as_str()];
            let entries = reply.entries().map_err(error)?;
            let wanted = self.wanted.get(key);
            let is_got = |it: &&Undelivered| {
                self.acknowledged.iter().any(|got| got.key == **key && it.is_acknowledged_by(got))
            };
            if let Some(wanted) = wanted.filter(|it| !is_got(it)) {
                let delivery = delivery.as_ref().ok_or(format!("{wanted:?} is not stored"))?;
                let is_same = rules::undelivered(key, delivery) == *wanted;
                hold!(is_same, "{delivery:?} is stored, and not {wanted:?}");
                let due = delivery.due.ok_or("it has no time")?;
                let places = self.places(UNDELIVERED, key);
                hold!(
                    places.iter().any(|at| *at >= due),
                    "{delivery:?} {key:?} has places {places:?}"
                );
            }
            let Some(head) = &stored.head else { continue };
            let log = self.logs.get(&((*key).clone(), head.epoch)).ok_or("nobody has begun it")?;
            hold!(!log.is_deleted, "{key:?} {head:?} is deleted");
            let length = log.entries.len() as u64;
            hold!(stored.length == length, "{key:?} has {stored:?}, and {length} entries");
            hold!(
                head.control == log.controls(),
                "{key:?} {head:?} has {} controls",
                log.controls()
            );
            let live = head.live.as_ref().map(|live| (live.run.clone(), live.begin));
            hold!(live == log.live, "{key:?} {head:?} has the run {:?}", log.live);
            let kept = (head.first..).zip(log.entries.iter().skip(head.first as usize).cloned());
            hold!(kept.eq(entries), "{key:?} {head:?} has other entries");
            let is_kept =
                |it: &&(u64, u64)| it.1 + millis(KEPT_AFTER_END) > self.now && !self.forgets;
            let ended = log.ended.iter().filter(is_kept).map(|it| it.0);
            let needed =
                ended.chain(log.live.iter().map(|it| it.1)).chain([head.folded.unwrap_or(0)]).min();
            hold!(
                Some(head.first) <= needed.max(Some(log.head.first)),
                "{key:?} {head:?} is trimmed after {needed:?}"
            );
            if let Some(due) = rules::due(head, length, self.now) {
                let places = self.places(DUE, key);
                let is_placed = places.iter().any(|at| time_of(*at) <= due);
                hold!(is_placed, "{key:?} is due at {due} and placed at {places:?}");
            }
            let log = self.logs.get_mut(&((*key).clone(), head.epoch));
            log.into_iter().for_each(|log| log.head = head.clone());
        }
        Ok(())
    }

    pub(super) fn appended(
        &mut self,
        number: u64,
        result: &Result<AppendResult, ChatStoreError>,
    ) -> Result<(), String> {
        let ask = &self.asks[&number];
        let (what, is_right) = match result {
            Ok(AppendResult::Appended { first, head }) => (
                "appended",
                ask.entries.is_empty()
                    || ask.applied == Some((head.epoch, *first))
                        && head.length == first + ask.entries.len() as u64,
            ),
            Ok(AppendResult::Conflict) => ("conflict", ask.applied.is_none()),
            Ok(AppendResult::TooManyChats) => ("too many chats", ask.applied.is_none()),
            Ok(AppendResult::TooManyRuns) => ("too many runs", ask.applied.is_none()),
            Err(_) => ("failed append", true),
        };
        hold!(is_right, "{result:?} of {ask:?}");
        self.count(what);
        Ok(())
    }
}

fn members(list: &'static str) -> Read {
    Read::Members { list, after: None, is_descending: false, limit: usize::MAX }
}

pub(super) const LEASE: std::time::Duration = std::time::Duration::from_secs(2);

const LIMITS: UserLimits =
    UserLimits { chats: 2, runs: 1, unread: std::time::Duration::from_secs(1) };
