//! What must hold in every interleaving.

use std::time::Duration;

use futures_util::FutureExt;

use super::readers::{Read, Reader};
use super::world::{MAX_CHATS, World, key_of, shows};
use crate::Chat;
use crate::log::decision::{Append, Goal};
use crate::log::entry::{Entry, OtherEntry, RunEnd};
use crate::log::event_id::{EventId, PlaceSearch};
use crate::log::open_chunks::{OpenChunks, each_chunk};
use crate::log::run_frames::{Next, RunFrames};
use crate::log::state::end::note_end;
use crate::log::state::{ChatState, LastEnd};
use crate::log::turn_io::CallAgent;
use crate::store::{Epoch, LoadLog, LoadedLog, LogHead, LogStore, StoredEntry};
use crate::tail::Found;
use ui_message_stream::chunk::{Chunk, Version};
use ui_message_stream::id::{ApprovalId, MessageId, RunId};
use ui_message_stream::message::UiMessage;

impl World {
    /// A tool or a provider acts on an approval.
    pub(super) fn effect(&mut self, approval: &ApprovalId) {
        self.counts.effects += 1;
        let effects = self.effects.entry(approval.clone()).or_default();
        *effects += 1;
        if *effects > 1 {
            self.violated(format!("{approval:?} had two effects"));
        }
        if self.ledger.is_closed(approval) {
            self.violated(format!("{approval:?} was closed and had an effect"));
        }
        let is_shown =
            self.shadows.values().flat_map(|shadow| &shadow.entries).any(
                |entry| match Entry::read(entry).unwrap().other() {
                    Some(OtherEntry::Call { message, .. }) => {
                        super::world::shows(message, approval)
                    }
                    _ => false,
                },
            );
        if !is_shown {
            self.violated(format!("{approval:?} had an effect before the log showed it"));
        }
    }

    /// A run has begun that has ended no other one, when so many places were taken: the user had a place for it.
    /// More places than the user has are taken when the server of a lost run renews its lease.
    pub(super) fn check_places(&mut self, before: usize) {
        let taken = self.taken_places();
        if taken > before.max(self.limits.max_user_runs()) {
            self.violated(format!("{taken} runs are live"));
        }
    }

    /// Returns how many places for live runs the user has taken.
    pub(super) fn taken_places(&self) -> usize {
        let heads = (0..MAX_CHATS).filter_map(|chat| {
            let load = LoadLog { key: &key_of(chat), has_frames: false, has_messages: false };
            Some(LogStore::load(&*self.store, load).now_or_never().unwrap().unwrap()?.head)
        });
        let taken = |head: &LogHead| head.live_run.is_some() && !head.is_lost && !head.has_to_end;
        heads.filter(taken).count()
    }

    /// The fold of what was loaded is the fold of the log.
    pub(super) fn check_fold(&mut self, loaded: Option<&LoadedLog>, has_frames: bool) {
        self.counts.loads += 1;
        self.counts.loads_with_frames += u64::from(has_frames);
        let Some(loaded) = loaded else { return };
        let folded = ChatState::of_loaded(&self.key.chat, &self.key.owner, loaded);
        let Some(shadow) = self.shadows.get(&loaded.head.epoch) else {
            return self.violated("a log that nobody has created".into());
        };
        let found = match folded {
            Err(error) => Some(format!("frames: {has_frames}: {error}\n{loaded:?}")),
            Ok((folded, _)) => {
                let one = folded.chat();
                let other = shadow.state.chat();
                let is_same = if folded.lacks_frames() {
                    one.undecided_calls() == other.undecided_calls()
                        && one.client_executed == other.client_executed
                } else {
                    one == other
                };
                let last_end = |state: &ChatState| {
                    state.last_end().map(|last| (last.run.clone(), last.begin, last.end.clone()))
                };
                let is_same = is_same
                    && folded.length() == shadow.state.length()
                    && last_end(&folded) == last_end(&shadow.state)
                    && folded.unread() == shadow.state.unread()
                    && folded.live().map(|live| &live.run)
                        == shadow.state.live().map(|live| &live.run);
                (!is_same).then(|| {
                    format!(
                        "the loaded chat is not the fold of its log (frames: {has_frames}): {}",
                        difference(one, other)
                    )
                })
            }
        };
        found.into_iter().for_each(|what| self.violated(what));
    }

    /// Only a wish of a user ends a run whose lease has not passed. `is_lost` is whether it had passed when
    /// the append arrived. A run does not finish while an answer of its turn is not stored. The run that was
    /// live when the ledger failed does not finish at all. Another run of this turn may, once somebody else has
    /// decided the call.
    pub(super) fn check_ends(&mut self, number: u32, append: &Append, is_lost: bool) {
        for entry in &*append.entries {
            if let Some(OtherEntry::End { run, end }) = entry.other() {
                let is_wish = matches!(end, RunEnd::Stopped | RunEnd::Replaced);
                if !is_own(run, number) && !is_wish && !is_lost {
                    self.violated(format!("{run:?} was ended by turn {number}: {end:?}"));
                }
                let drivers = self.drivers.iter().filter(|driver| driver.number == number);
                let mut unstored = drivers.flat_map(|driver| &driver.unstored);
                let is_incomplete = unstored
                    .any(|(live, id)| live.as_ref() == Some(run) || self.ledger.is_asked(id));
                if is_own(run, number) && *end == RunEnd::Finished && is_incomplete {
                    self.violated(format!("{run:?} is finished, and an answer was not stored"));
                }
            }
        }
    }

    /// A client that gets a response to its answers does not send them again: the ledger has them.
    pub(super) fn check_stored(&mut self, at: usize) {
        let Goal::Answer { plan, message_id, .. } = &self.drivers[at].turn.goal else { return };
        let is_shown = |id| {
            let message = self.chat().and_then(|chat| chat.message(message_id));
            message.is_some_and(|message| shows(message, id))
        };
        let mut answered = plan.unverified_responses().map(|answer| &answer.approval_id);
        let lost = answered.find(|id| self.ledger.is_asked(id) && is_shown(*id)).cloned();
        drop(answered);
        lost.into_iter().for_each(|id| self.violated(format!("the answer to {id:?} was lost")));
    }

    /// An append has arrived. `before` is how the last run had ended before.
    pub(super) fn count_append(&mut self, number: u32, append: &Append, before: Option<LastEnd>) {
        let is_stopped = |last: &LastEnd| last.end == RunEnd::Stopped && is_own(&last.run, number);
        if World::begins_in(append) && before.as_ref().is_some_and(is_stopped) {
            self.violated(format!("turn {number} goes on after its run was stopped"));
        }
        let mut stopped = false;
        for entry in &*append.entries {
            match entry.other() {
                Some(OtherEntry::Begin { .. }) => {
                    self.counts.runs += 1;
                    let live = self.shadow().and_then(|shadow| shadow.state.live());
                    let is_continued = live.is_some_and(|live| live.begun_parts > 0);
                    self.counts.continued += u64::from(is_continued);
                }
                Some(OtherEntry::Result { .. }) => {
                    let live = self.shadow().and_then(|shadow| shadow.state.live());
                    let is_own = live.is_some_and(|live| is_own(&live.run, number));
                    self.counts.late_results += u64::from(!is_own);
                }
                Some(OtherEntry::End { end, .. }) => {
                    let counts = &mut self.counts;
                    let count = match end {
                        RunEnd::Finished => continue,
                        RunEnd::Failed(_) => &mut counts.failed_runs,
                        RunEnd::Stopped => &mut counts.stopped,
                        RunEnd::Replaced => &mut counts.replaced,
                        RunEnd::Limit => &mut counts.limits,
                        RunEnd::Interrupted => &mut counts.interrupted,
                        RunEnd::ResumedBy(_) => &mut counts.resumed,
                    };
                    *count += 1;
                    stopped |= *end == RunEnd::Stopped;
                }
                _ => {}
            }
        }
        if stopped && World::begins_in(append) {
            self.violated("a run begins with a Stop".into());
        }
    }

    /// Readers of a server are shown only what the log holds.
    pub(super) fn check_shown(&mut self, epoch: Epoch, first: u64, shown: &[Entry]) {
        let first = usize::try_from(first).unwrap();
        let held = self.shadows[&epoch].entries.get(first..).unwrap_or_default();
        let shown: Vec<StoredEntry> = shown.iter().map(Entry::stored).collect();
        if !held.starts_with(&shown) {
            self.violated(format!("readers were shown what is not in the log, at {first}"));
        }
    }

    /// Readers are shown nothing but text before the log holds it, and nothing more if it has got none for two intervals.
    pub(super) fn check_shown_text(&mut self, frames: &[u8], since: u64) {
        self.counts.shown_early += 1;
        if Duration::from_millis(self.now - since) > 2 * self.append_interval {
            self.violated(format!("text of more than two intervals was shown, since {since}"));
        }
        let mut other = None;
        each_chunk(frames, |chunk| {
            let is_text = matches!(
                chunk,
                Chunk::StartStep {}
                    | Chunk::TextStart { .. }
                    | Chunk::TextDelta { .. }
                    | Chunk::TextEnd { .. }
            );
            other = other.take().or((!is_text).then(|| format!("{chunk:?}")));
        });
        other.into_iter().for_each(|text| self.violated(format!("{text} was shown too early")));
    }

    /// The model is called for a step that the log holds, by the holder of the live run.
    pub(super) fn check_call(&mut self, call: &CallAgent) {
        let is_step = |entry: &OtherEntry| matches!(entry, OtherEntry::Step);
        let is_result = |entry: &OtherEntry| {
            matches!(entry, OtherEntry::Result { .. } | OtherEntry::Settled { .. })
        };
        let entries =
            self.shadows.values().flat_map(|shadow| shadow.runs.iter().zip(&shadow.entries));
        let of_run = entries.filter(|(run, _)| run.as_ref() == Some(&call.run));
        let of_run: Vec<Entry> = of_run.map(|(_, entry)| Entry::read(entry).unwrap()).collect();
        let count = |is_it: fn(&OtherEntry) -> bool| {
            of_run.iter().filter_map(Entry::other).filter(|entry| is_it(entry)).count()
        };
        let steps = count(is_step);
        let results = count(is_result);
        let (calls, known) = self.calls.get(&call.run).copied().unwrap_or_default();
        self.calls.insert(call.run.clone(), (calls + 1, results));
        if calls >= steps {
            self.violated(format!("{:?} calls the model before its log says so", call.run));
        }
        if calls > 0 && results == known {
            self.violated(format!("{:?} calls the model again without a result", call.run));
        }
        let live = self.shadow().and_then(|shadow| shadow.state.live());
        if live.is_none_or(|live| live.run != call.run) {
            // Another turn has ended the run after the step: what this call writes is refused.
            return;
        }
        let Some(chat) = self.chat() else { return };
        let last = self.shadow().and_then(|shadow| shadow.entries.last());
        let is_newest =
            last.is_some_and(|last| Entry::read(last).unwrap().other().is_some_and(is_step));
        let mut expected = chat.clone();
        if let Some(id) = live.map(|live| &live.message_id)
            && chat.message(id).is_some_and(|message| message.answer_end().is_some())
        {
            // The first frame of the run says that the message is continued, and comes after the step.
            note_end(&mut expected, id, None);
        }
        if is_newest && call.chat.messages != expected.messages {
            let what =
                format!("the model reads another chat: {}", difference(&call.chat, &expected));
            return self.violated(what);
        }
        let asked = self.ledger.asked().filter(|(id, approval)| {
            let mut messages =
                chat.messages.iter().filter(|message| chat.is_followed_by_user(&message.id));
            approval.lapses && messages.any(|message| shows(message, id))
        });
        let open: Vec<ApprovalId> = asked.map(|(id, _)| id.clone()).collect();
        let failed = self.counts.ledger_faults > 0;
        if let Some(id) = open.first().filter(|_| !failed) {
            self.violated(format!("{id:?} was open when the user sent a message, and still is"));
        }
    }

    /// A response reads a run.
    pub(super) fn attach(
        &mut self,
        server: usize,
        epoch: Epoch,
        run: RunId,
        message_id: MessageId,
        begin: u64,
    ) {
        let begins = self.shadows.get(&epoch).and_then(|shadow| {
            let entry = Entry::read(shadow.entries.get(usize::try_from(begin).unwrap())?).unwrap();
            match entry.other()? {
                OtherEntry::Begin { run, message_id } => Some((run.clone(), message_id.clone())),
                _ => None,
            }
        });
        if begins != Some((run.clone(), message_id)) {
            self.violated(format!("{run:?} does not begin at {begin}"));
        }
        self.readers.push(Reader {
            server: Some(server),
            epoch,
            run,
            begin,
            next: begin,
            frames: RunFrames::new(EventId::of_run(epoch, begin), Version::default()),
            read: Read::default(),
            out: Vec::new(),
            has_ended: false,
            is_closed_early: false,
            mender: None,
        });
    }

    /// The connections of the readers of a server, or of all, break. Each client continues where `choose` says.
    pub(super) fn reconnect(
        &mut self,
        server: Option<usize>,
        mut choose: impl FnMut() -> Option<usize>,
    ) {
        for at in 0..self.readers.len() {
            let reader = &self.readers[at];
            if reader.server.is_none() || server.is_some() && reader.server != server {
                continue;
            }
            let epoch = reader.epoch;
            let begin = reader.begin;
            self.check_reader(at);
            let reader = &self.readers[at];
            let ids = reader.out.split(|byte| *byte == b'\n').rev();
            let id = ids.filter_map(|line| str::from_utf8(line.strip_prefix(b"id: ")?).ok()).next();
            let has_id = id.is_some();
            let place = id.map_or(EventId::of_run(epoch, begin), |id| EventId::parse(id).unwrap());
            let mut search = PlaceSearch::new(place);
            let entries = self.read(epoch, begin, false).into_iter().flat_map(|page| page.entries);
            let mut entries = entries.map(|entry| Entry::read(&entry).unwrap());
            let _ = entries.all(|entry| search.push(&entry));
            let found = search.found();
            let server = choose();
            let reader = &mut self.readers[at];
            reader.server = server;
            let found = match has_id {
                true => found.map(|found| (found.place, Some(found.message_id))),
                // The client sends its request again.
                false => Some((place, None)),
            };
            let Some((place, message_id)) = found else {
                self.counts.have_to_load += 1;
                reader.server = None;
                continue;
            };
            self.counts.continued_early += u64::from(place.is_ahead);
            reader.frames = RunFrames::new(place, Version::default());
            reader.next = place.position;
            if let Some(id) = message_id {
                reader.frames.set_message(id);
            }
        }
    }

    /// A reader reads what is new. Returns the run that has to be mended, if its lease has passed.
    pub(super) fn read_on(&mut self, at: usize, most: usize) -> Option<RunId> {
        let Reader { epoch, next, server, .. } = self.readers[at];
        let tail = server.and_then(|server| self.tails[server].of(&self.key));
        let mut entries = Vec::new();
        let found = tail.as_ref().map(|tail| {
            tail.read(epoch, next, |_, entry| {
                entries.push(entry.clone());
                entries.len() < most
            })
        });
        let mut wants_mending = false;
        match found {
            Some(Found::Entries) => {}
            Some(Found::Nothing) => {
                let reader = &mut self.readers[at];
                let mut out = Vec::new();
                let ahead = tail.unwrap().ahead(epoch, next);
                reader.frames.push_ahead(next, &ahead, &mut out);
                reader.read.push(true, &out);
                reader.out.extend(out);
            }
            Some(Found::Elsewhere) | None => {
                let Some(page) = self.read(epoch, next, true) else {
                    self.counts.gone += 1;
                    self.readers[at].server = None;
                    return None;
                };
                let mender = self.readers[at].mender;
                let is_mending =
                    mender.is_some_and(|mender| self.drivers.iter().any(|d| d.number == mender));
                wants_mending = page.head.is_lost && page.entries.is_empty() && !is_mending;
                let read = page.entries.iter().take(most);
                entries.extend(read.map(|entry| Entry::read(entry).unwrap()));
            }
        }
        for entry in entries {
            if self.readers[at].server.is_some() {
                self.read_entry(at, &entry);
            }
        }
        if self.readers[at].server.is_none() {
            self.check_reader(at);
        }
        let reader = &self.readers[at];
        (wants_mending && reader.server.is_some()).then(|| reader.run.clone())
    }

    fn read_entry(&mut self, at: usize, entry: &Entry) {
        let reader = &mut self.readers[at];
        let position = reader.next;
        let mut out = Vec::new();
        reader.next += 1;
        let next = reader.frames.push(position, entry, &mut out);
        reader.read.push(entry.other().is_none(), &out);
        if let Some(OtherEntry::End { run, end }) = entry.other()
            && *run == reader.run
            && let RunEnd::ResumedBy(next) = end
        {
            reader.run = next.clone();
        }
        let mut is_lost = false;
        match next {
            Next::More => {}
            Next::Lost => {
                // The client asks again, and has to load the chat.
                self.counts.have_to_load += 1;
                reader.server = None;
                is_lost = true;
            }
            Next::Ended | Next::CutOff => {
                (reader.has_ended, reader.server) = (true, None);
                self.counts.read_to_end += 1;
                if next == Next::CutOff {
                    reader.is_closed_early = !reader.frames.unstored().is_empty();
                    self.counts.closed_early += u64::from(reader.is_closed_early);
                    is_lost = reader.is_closed_early;
                    let begin = reader.begin;
                    let end = position + 1;
                    let range = usize::try_from(begin).unwrap()..usize::try_from(end).unwrap();
                    let entries: Vec<_> = self.shadows[&reader.epoch].entries[range]
                        .iter()
                        .map(|entry| Entry::read(entry).unwrap())
                        .collect();
                    reader.frames.end(position, None, &entries, &mut out);
                }
            }
        }
        reader.out.extend(out);
        if is_lost && self.flushed.contains(&reader.run) {
            let run = reader.run.clone();
            self.violated(format!("the end of {run:?} has waited for text, which is lost"));
        }
    }

    /// What was read is what the log holds from the beginning of the run on, once, and text that it does not hold yet.
    fn check_reader(&mut self, at: usize) {
        let reader = &self.readers[at];
        let entries = &self.shadows[&reader.epoch].entries;
        let range = usize::try_from(reader.begin).unwrap()..usize::try_from(reader.next).unwrap();
        let place = EventId::of_run(reader.epoch, reader.begin);
        let mut frames = RunFrames::new(place, Version::default());
        let mut log = Read::default();
        for (position, entry) in (reader.begin..).zip(&entries[range]) {
            let entry = Entry::read(entry).unwrap();
            let mut out = Vec::new();
            frames.push(position, &entry, &mut out);
            log.push(entry.other().is_none(), &out);
        }
        let mut found = None;
        if reader.server.is_some() || reader.has_ended && !reader.is_closed_early {
            let unstored = reader.frames.unstored();
            let is_stored = match reader.read.text.strip_prefix(&*log.text) {
                Some(early) if reader.has_ended => early.is_empty(),
                Some(early) => unstored.is_empty() || early == unstored,
                // It skips what it has read.
                None => false,
            };
            if !is_stored || reader.read.others != log.others {
                found = Some("has read something else");
            }
        }
        let ids = reader.out.split(|byte| *byte == b'\n');
        let ids = ids.filter_map(|line| str::from_utf8(line.strip_prefix(b"id: ")?).ok());
        let numbers = ids.map(|id| {
            let number = id.split_once('.').unwrap().1;
            let stored = number.strip_prefix("0x");
            stored.map_or_else(|| number.parse(), |stored| u64::from_str_radix(stored, 16)).unwrap()
        });
        if !numbers.is_sorted_by(|one, next| one < next) {
            found = Some("has read ids that do not grow");
        }
        let mut open = OpenChunks::default();
        each_chunk(&reader.out, |chunk| open.push(chunk));
        if reader.has_ended && open.has_text() {
            found = Some("has read a text without an end");
        }
        let what = found.map(|what| {
            format!(
                "a reader of {:?} {what}: {}\nlog: {}\n{}",
                reader.run,
                String::from_utf8_lossy(&reader.out),
                String::from_utf8_lossy(&log.text),
                String::from_utf8_lossy(&log.others)
            )
        });
        what.into_iter().for_each(|what| self.violated(what));
    }

    /// Whether something has failed, so that users may have to send their answers again.
    pub(super) fn has_failed(&self) -> bool {
        let counts = &self.counts;
        counts.crashes + counts.ledger_faults + counts.too_many + counts.late_operations > 0
    }

    /// The questions that are open in the log and not in the ledger. The next load of the chat stores them.
    pub(super) fn unstored_decisions(&self) -> impl Iterator<Item = ApprovalId> {
        let open = self.chat().into_iter().flat_map(Chat::undecided_calls);
        open.filter_map(|call| call.approval_id).filter(|id| !self.ledger.is_asked(id))
    }

    /// Checks what must hold after all turns have ended, and a load of the chat.
    pub(super) fn check_end(&mut self) {
        let mut found = Vec::new();
        for reader in &self.readers {
            if reader.server.is_some() {
                found.push(format!("a reader of {:?} got no end", reader.run));
            }
        }
        let Some(shadow) = self.shadow() else {
            return found.into_iter().for_each(|what| self.violated(what));
        };
        let chat = shadow.state.chat();
        let state = &shadow.state;
        if state.live().is_some() {
            found.push("a run is live after its turn".into());
        }
        let is_finished = state.last_end().is_some_and(|last| last.end == RunEnd::Finished);
        // A user with too many runs sends the answers again.
        let has_places = self.counts.too_many == 0;
        if is_finished && has_places && chat.message_to_continue().is_some() {
            found.push("a result is unread".into());
        }
        if !self.has_failed() {
            let open = self.unstored_decisions();
            found.extend(open.map(|id| format!("{id:?} is open in the log, and was decided")));
        }
        let messages = || chat.messages.iter();
        let epoch = self.load(false).map(|loaded| loaded.head.epoch);
        for (id, _) in self.ledger.asked() {
            let (of, run) = &self.asked_in[id];
            let is_shown = messages().any(|message: &UiMessage| shows(message, id));
            if Some(*of) == epoch
                && !is_shown
                && !self.crashed_runs.contains(run)
                && !self.has_failed()
            {
                found.push(format!("{id:?} is asked in vain"));
            }
        }
        found.into_iter().for_each(|what| self.violated(what));
    }
}

/// Returns two chats, and their first messages that differ.
fn difference(one: &Chat, other: &Chat) -> String {
    let json = |message: Option<&UiMessage>| serde_json::to_string(&message).unwrap();
    let mut pairs = (0..one.messages.len().max(other.messages.len()))
        .map(|at| [one, other].map(|chat| json(chat.messages.get(at))));
    let [first, second] = pairs.find(|[one, other]| one != other).unwrap_or_default();
    format!("{one:?}\n{first}\n{other:?}\n{second}")
}

/// Whether this turn has begun the run.
fn is_own(run: &RunId, number: u32) -> bool {
    run.split('-').next() == Some(&format!("r{number}"))
}
