//! What must hold in every interleaving.

use super::driver::Driver;
use super::readers::Reader;
use super::world::{NamedRun, World, shows};
use crate::approval::PendingToolCall;
use crate::chat::conversation::{Chat, LiveRun, PostedHistory, RequestEffect};
use crate::chat::log::{LogEntry, RunState};
use crate::chat::run_log::{INTERRUPTED, content, keep_log, message_shown_by};
use crate::chat::turn::machine::{AgentCall, Request};
use crate::id::{ApprovalId, MessageId, RunId};
use crate::message::{Part, ToolPart, ToolState, UiMessage};

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
    }

    /// A turn claims approvals or calls the model: it has proved its fence for this call.
    pub(super) fn check_fence(&mut self, at: usize) {
        let driver = &self.drivers[at];
        let Some(live) = driver.turn.own_run() else { return };
        let run = &live.run;
        let is_step = |entry: &&LogEntry| matches!(entry, LogEntry::Note(note) if **note == *STEP);
        let steps = self.log(run).iter().filter(is_step).count();
        let calls = driver.calls.iter().filter(|called| *called == run).count();
        if steps <= calls {
            self.violated(format!("{run:?} calls the model before its log says so"));
        } else if driver.is_refused && driver.refused.as_ref() == Some(run) {
            self.violated("a claim or a model call after a refused append".into());
        }
    }

    /// The agent gets the conversation that names its run.
    pub(super) fn check_call(&mut self, call: &AgentCall) {
        let live = call.chat.live_run().map(|live| &live.message_id);
        let is_recorded = call.not_recorded.iter().any(|result| call.chat.is_known(result));
        if live != Some(&call.message_id) || is_recorded {
            self.violated("the agent was called with another conversation".into());
        }
    }

    /// A response reads a run. A client that does not hold the message reads it first, with the parts
    /// that it had when the run began. Calls may have got results since, which the log holds too.
    pub(super) fn check_join(&mut self, run: &RunId, id: &MessageId, begun: Option<&UiMessage>) {
        let named = self.named.iter().find(|named| named.live.run == *run);
        let begun = begun.map(parts_of);
        if named.is_none_or(|named| named.chat.message(id).map(parts_of) != begun) {
            self.violated(format!("a reader of {run:?} begins with another message"));
        }
    }

    /// A turn has taken a run from a holder whose lease has not passed: the user has ended the run. An
    /// answer, a reader and a repeated message do not end it.
    pub(super) fn check_take(&mut self, at: usize, run: &RunId) {
        let ends = match &self.drivers[at].request {
            Request::Stop | Request::Delete => true,
            Request::Post(request) => self.stored().is_none_or(|chat| {
                let effect = chat.clone().apply_request(request, PostedHistory::Keep);
                let is_answered = match &effect {
                    RequestEffect::Answered(id) | RequestEffect::AwaitsResponse(id) => chat
                        .live_run()
                        .is_some_and(|live| live.run == *run && live.message_id == *id),
                    _ => false,
                };
                request.continued_message().is_none() && !is_answered
            }),
            Request::Decisions { .. } | Request::Follow | Request::Mend { .. } => false,
        };
        if !ends {
            self.violated(format!("{run:?} is live and was taken for a reader"));
        }
    }

    /// The store has accepted an append.
    pub(super) fn check_append(&mut self, run: &RunId, end: bool) {
        let entries = self.stored_log(run).unwrap_or_default();
        let before = self.logs.insert(run.clone(), entries.clone()).unwrap_or_default();
        let is_live = self.live().is_some_and(|live| live.run == *run);
        if end && is_live {
            self.violated(format!("{run:?} has ended before its message was saved"));
        }
        if !entries.starts_with(&before) {
            self.violated(format!("the log of {run:?} has changed"));
        }
        if !end && !is_live && entries.len() > before.len() {
            self.violated(format!("{run:?} is not live and accepted content"));
        }
        for (number, entry) in entries.iter().enumerate().skip(before.len()) {
            let LogEntry::Frame(bytes) = entry else {
                self.counts.interrupted += u64::from(contains(entry, INTERRUPTED));
                continue;
            };
            if !bytes.starts_with(format!("id: {run}.{number}\n").as_bytes()) {
                self.violated(format!("frame {number} of {run:?} has another id"));
            }
        }
    }

    /// What a reader has read is the beginning of the log.
    pub(super) fn check_reader(&mut self, at: usize) {
        let reader = &self.readers[at];
        let log = self.log(&reader.run);
        if !log.get(reader.skipped..).unwrap_or_default().starts_with(&reader.entries) {
            self.violated(format!("a reader of {:?} read something else", reader.run));
        }
    }

    /// Saves the conversation if it has this revision. `at` is the turn that saves.
    pub(super) fn save(&mut self, at: usize, next: Chat, revision: Option<u64>) -> bool {
        if !self.has_revision(revision) {
            return false;
        }
        if revision.is_none() && self.drivers[at].responses > 0 {
            self.violated("a turn created a deleted chat after its response".into());
        }
        let was = self.live().cloned();
        let now = next.live_run().cloned();
        let run_of = |live: &Option<LiveRun>| live.as_ref().map(|live| live.run.clone());
        let kept_by = |live: &Option<LiveRun>| live.as_ref().and_then(|live| live.kept);
        if run_of(&was) == run_of(&now) && kept_by(&was) != kept_by(&now) {
            self.check_kept_step(&now, &next);
        }
        if run_of(&was) != run_of(&now) {
            let kept = was.as_ref().and_then(|was| next.message(&was.message_id).cloned());
            // A page that is opened again must not execute the calls again.
            let driver = &self.drivers[at];
            let is_open = |call: &PendingToolCall| {
                driver.outputs.iter().any(|output| **output == *call.tool_call_id)
            };
            let is_reader = matches!(driver.request, Request::Mend { .. } | Request::Follow);
            let open = next.undecided_calls().into_iter().filter_map(|call| call.approval_id);
            let mut open = open.filter(|id| self.ledger.was_decided(id, driver.began));
            if let Some(id) = open.find(|_| is_reader && was.is_some()) {
                return self.refuse(format!("{id:?} was decided, and was mended as open"));
            }
            // The log that held the call may be lost when the answer is redeemed.
            let is_answer = driver.is_answer() && now.is_some() && self.counts.long_jumps == 0;
            if is_answer && next.client_executed.iter().any(is_open) {
                return self.refuse("a run begins without the outputs of its page".into());
            }
            drop(open);
            if let Some(now) = &now {
                self.check_new_run(at, now, &next);
            } else if let (Request::Stop, Some(was)) = (&driver.request, &was) {
                self.stopped = Some(was.run.clone());
            }
            was.into_iter().for_each(|was| self.run_is_over(&was, kept.clone(), now.is_some()));
            now.into_iter().for_each(|now| self.run_is_named(now, &next));
        }
        let removed = self.ledger.asked().filter(|(id, approval)| {
            let holds = |chat: &Chat| chat.messages.iter().any(|message| shows(message, id));
            approval.lapses && self.stored().is_some_and(holds) && !holds(&next)
        });
        let removed: Vec<ApprovalId> = removed.map(|(id, _)| id.clone()).collect();
        self.removed.extend(removed);
        self.revision += 1;
        self.chat = Some((next, self.revision));
        true
    }

    /// A turn names a new run. A message that was delivered before calls the model only if its response
    /// has unread results, and a turn whose run the user has stopped does not call it again.
    fn check_new_run(&mut self, at: usize, new: &LiveRun, next: &Chat) {
        let Driver { request, number, responses, .. } = &self.drivers[at];
        // Before the response the Stop may have come first.
        let has_responded = *responses > 0;
        let is_answered = self.stored().is_some_and(|chat| match request {
            Request::Post(request) if request.continued_message().is_none() => matches!(
                chat.clone().apply_request(request, PostedHistory::Keep),
                RequestEffect::Answered(_)
            ),
            _ => false,
        });
        let own = format!("r{number}");
        let is_own = |run: &RunId| run.split('-').next() == Some(&own);
        if is_answered && next.message(&new.message_id).is_none() {
            self.violated(format!("{:?} answers a message again", new.run));
        }
        if self.stopped.take().is_some_and(|stopped| is_own(&stopped)) && has_responded {
            self.violated(format!("{:?} goes on after Stop", new.run));
        }
    }

    /// The message of a live run is saved up to the end of a step.
    fn check_kept_step(&mut self, live: &Option<LiveRun>, next: &Chat) {
        self.counts.kept += 1;
        let Some((live, kept)) = live.as_ref().and_then(|live| Some((live, live.kept?))) else {
            return;
        };
        let Some(named) = self.named.iter().find(|named| named.live.run == live.run) else {
            return self.violated(format!("{:?} was not named and keeps a step", live.run));
        };
        let log = self.log(&live.run);
        let entries = usize::try_from(kept.entries).unwrap().min(log.len());
        let written = keep_log(&named.chat, &named.live, &log[..entries]);
        if log.len() < entries
            || written.message(&live.message_id) != next.message(&live.message_id)
        {
            self.violated(format!("{:?} keeps another message than its log", live.run));
        }
    }

    fn refuse(&mut self, what: String) -> bool {
        self.violated(what);
        false
    }

    /// Deletes the conversation if it has this revision.
    pub(super) fn delete(&mut self, revision: u64) -> bool {
        if !self.has_revision(Some(revision)) {
            return false;
        }
        if let Some(was) = self.live().cloned() {
            self.run_is_over(&was, None, true);
        }
        self.counts.deleted += 1;
        self.chat = None;
        true
    }

    /// `is_replaced` is whether the run ends for a new one, or with the conversation.
    fn run_is_over(&mut self, was: &LiveRun, kept: Option<UiMessage>, is_replaced: bool) {
        let state = self.state(&was.run);
        let is_open = matches!(
            state,
            Some((RunState::Leased | RunState::LeasePassed, fence)) if fence == was.fence
        );
        let is_lost = state.is_none();
        self.counts.removed_logs += u64::from(is_lost);
        let Some(named) = self.named.iter_mut().find(|named| named.live.run == was.run) else {
            return;
        };
        (named.kept, named.is_replaced) = (kept, is_replaced);
        named.is_lost |= is_lost;
        // The fence of the holder that began the run: it could still append.
        if is_replaced && is_open && named.live.fence == was.fence {
            self.violated(format!("{:?} was replaced and is open", was.run));
        }
    }

    fn run_is_named(&mut self, live: LiveRun, next: &Chat) {
        self.counts.runs += 1;
        if self.named.iter().any(|named| named.live.run == live.run) {
            self.violated(format!("{:?} was named twice", live.run));
        }
        self.counts.continued += u64::from(next.message(&live.message_id).is_some());
        if let Some(lost) = &live.resumes {
            self.counts.resumed += 1;
            if lost.losses > 2 || self.breaks_off(&lost.run) {
                self.violated(format!("{:?} resumes {lost:?}", live.run));
            }
        }
        let (chat, kept) = (next.clone(), None);
        self.named.push(NamedRun { live, chat, kept, is_replaced: false, is_lost: false });
    }

    /// Whether the holder of a run has written something after its last complete step.
    fn breaks_off(&self, run: &RunId) -> bool {
        let ends_step = |entry: &LogEntry| {
            contains(entry, r#""type":"finish-step""#) || **entry.bytes() == *STEP
        };
        let content = ["text-start", "tool-input-available", "tool-approval-request"];
        let written = self.taken_logs.get(run).map_or(&[][..], |length| &self.log(run)[..*length]);
        let mut rest = written.iter().rev().take_while(|entry| !ends_step(entry));
        rest.any(|entry| content.iter().any(|kind| contains(entry, &format!(r#""type":"{kind}""#))))
    }

    /// A turn has ended.
    pub(super) fn check_driver(&mut self, driver: &Driver) {
        if driver.responses != 1 {
            self.violated(format!("turn {}: {} responses", driver.number, driver.responses));
        }
    }

    /// Checks what must hold after all turns have ended.
    pub(super) fn check_end(&mut self) {
        (0..self.readers.len()).for_each(|at| self.check_reader(at));
        let runs = self.named.iter().flat_map(|named| self.found_in_run(named));
        let mut found: Vec<String> = runs.collect();
        found.extend(self.readers.iter().filter_map(|reader| self.found_by(reader)));
        found.extend(self.found_in_chat());
        if !self.counts.has_failed() {
            found.extend(self.found_in_logs());
            found.extend(self.found_in_ledger());
        }
        found.into_iter().for_each(|what| self.violated(what));
        let unsent = self.ledger.sent().filter(|id| !self.effects.contains_key(*id));
        self.counts.claimed_in_vain = unsent.count() as u64;
    }

    /// The kept message is the one of the log, and the frames of the log show it.
    fn found_in_run(&self, named: &NamedRun) -> Vec<String> {
        let (run, mut found) = (&named.live.run, Vec::new());
        if named.is_lost {
            return found;
        }
        let log = self.kept_log(named);
        let written = log.message(&named.live.message_id);
        let is_kept = match &named.kept {
            Some(kept) => written == Some(kept),
            None => written.is_none() || named.is_replaced,
        };
        if !is_kept {
            let (kept, written) = (named.kept.as_ref().map(json), written.map(json));
            found.push(format!("{run:?}: kept {kept:?}, the log is {written:?}"));
        }
        let (shown, unreadable) = message_shown_by(&named.chat, &named.live, self.log(run));
        // A run that answers a message which the server does not hold, or has lost in part, is read by
        // that page alone.
        let id = &named.live.message_id;
        let is_of_page = shown.id != *id
            || self.named.iter().any(|lost| lost.is_lost && lost.live.message_id == *id);
        let is_hidden = |part: &&ToolPart| {
            let is_it = |shown: &&ToolPart| shown.tool_call_id == part.tool_call_id;
            part.is_settled() && !shown.tool_parts().find(is_it).is_some_and(ToolPart::is_settled)
        };
        let mut calls = named.kept.iter().flat_map(UiMessage::tool_parts);
        if let Some(hidden) = calls.find(is_hidden).filter(|_| !is_of_page) {
            found.push(format!("{run:?}: no frame shows {:?}", hidden.tool_call_id));
        }
        let unreadable = unreadable.filter(|_| !is_of_page);
        found.extend(unreadable.map(|chunk| format!("{run:?}: a client cannot read {chunk}")));
        found
    }

    /// A client that goes on in the run that resumes the first one holds the same content as a client
    /// that reads only the second run. Each log can show a `data-run-end` that no message holds.
    fn found_by(&self, reader: &Reader) -> Option<String> {
        let (first, begun) = reader.before.first()?;
        let named = |run: &RunId| self.named.iter().find(|named| named.live.run == *run);
        let (first, last) = (named(first)?, named(&reader.run)?);
        let is_whole = contains(begun.first()?, r#""type":"start""#);
        if !is_whole || !reader.has_ended || first.is_lost || last.is_lost {
            return None;
        }
        let before = reader.before.iter().flat_map(|(_, entries)| entries);
        let read: Vec<_> = before.chain(&reader.entries).cloned().collect();
        let (held, _) = message_shown_by(&first.chat, &first.live, &read);
        if held.id != first.live.message_id {
            // Only the page that holds this message reads the first run.
            return None;
        }
        let (shown, _) = message_shown_by(&last.chat, &last.live, self.log(&reader.run));
        let content_of = |mut message: UiMessage| {
            message.parts = content(&message).map(|(_, part)| part.clone()).collect();
            parts_of(&message)
        };
        let is_same = content_of(held.clone()) == content_of(shown.clone());
        let texts = || format!("{} instead of {}", json(&held), json(&shown));
        (!is_same).then(|| format!("a reader of {:?} holds {}", reader.run, texts()))
    }

    /// No answer is lost or left unread, and no run is left.
    fn found_in_chat(&self) -> Vec<String> {
        let Some(chat) = self.stored() else { return Vec::new() };
        let mut found = Vec::new();
        // A run that is stopped while it ends may leave a result of another message.
        if chat.message_to_continue().is_some() && !self.has_stopped {
            found.push("a result was recorded and no model reads it".into());
        }
        let open = chat.undecided_calls().into_iter().filter_map(|call| call.approval_id);
        let lost = open.filter(|id| !self.ledger.is_asked(id));
        found.extend(lost.map(|id| format!("the answer to {id:?} is lost")));
        let open = chat.client_executed.iter().map(|call| call.tool_call_id.to_string());
        let lost = open.filter(|call| self.answered_outputs.contains(call));
        found.extend(lost.map(|call| format!("the output of {call:?} is lost")));
        let mut parts = chat.messages.iter().flat_map(UiMessage::tool_parts);
        let is_unsent = |id| self.ledger.is_granted(id) && !self.not_claimed.contains(id);
        let closed = parts.find(|part| {
            matches!(part.state, ToolState::OutputError { .. } | ToolState::OutputDenied { .. })
                && part.approval_id().is_some_and(is_unsent)
        });
        found.extend(closed.map(|part| format!("{:?} is closed and not sent", part.approval_id())));
        if self.live().is_some() {
            found.push("a run is live although all turns have ended".into());
        }
        found
    }

    /// Every log that the conversation named has ended, and every one that it was never to name.
    fn found_in_logs(&self) -> Vec<String> {
        let is_open = |run: &&RunId| self.state(run).is_some_and(|it| it.0 != RunState::Ended);
        let named = self.named.iter().map(|named| &named.live.run);
        let open = self.begun.iter().chain(named).filter(is_open);
        open.map(|run| format!("the log of {run:?} has not ended")).collect()
    }

    /// Every open request is shown to the user, unless it outlives its message.
    fn found_in_ledger(&self) -> Vec<String> {
        let is_shown = |id: &ApprovalId| {
            self.stored().is_some_and(|chat| chat.messages.iter().any(|it| shows(it, id)))
        };
        let asked = self.ledger.asked().filter(|(id, it)| it.lapses && !is_shown(id));
        asked.map(|(id, _)| format!("{id:?} is open and not shown")).collect()
    }
}

fn json(message: &UiMessage) -> String {
    serde_json::to_string(message).unwrap()
}

/// Returns what identifies the parts of a message, without the states of its calls.
fn parts_of(message: &UiMessage) -> Vec<String> {
    let parts = message.parts.iter().map(|part| match part {
        Part::Tool(part) => part.tool_call_id.to_string(),
        Part::Data(part) => part.name.to_string(),
        part => serde_json::to_string(part).unwrap(),
    });
    parts.collect()
}

/// Whether an entry contains this text.
fn contains(entry: &LogEntry, text: &str) -> bool {
    std::str::from_utf8(entry.bytes()).unwrap().contains(text)
}

/// The note that the model is called.
const STEP: &[u8] = br#""step""#;
