//! [`World`]: the stores, the ledger and the turns of one interleaving.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::FutureExt;

use super::users::{self, SeenCall};
use crate::approval::{
    DeferredOutcome, DeferredToolResult, LeaseHolderId, PendingToolCall, Principal, ToolOutcome,
};
use crate::chat::conversation::{Chat, HistoryImport, LiveRun, PostedHistory, ReceivedResult};
use crate::chat::log::{
    AppendEntries, AppendResult, BeginRun, Fence, LogEntry, ReadLog, RunKey, RunState,
    TakeCondition, TakeResult, TakeRun,
};
use crate::chat::run_log::{keep_log, message_shown_by};
use crate::chat::store::{InMemoryRunStore, RunStore};
use crate::chat::turn::machine::{
    Action, ChatTurn, Effect, EndedMessage, Input, Request, Response, TurnSettings,
};
use crate::chunk::{FinishReason, Version};
use crate::event::{AgentEvent, ToolCall};
use crate::id::{ApprovalId, MessageId, RunId, ToolCallId};
use crate::json::Json;
use crate::limits::ChatLimits;
use crate::message::{Role, ToolPart, UiMessage};

const LEASE: u64 = 150;

/// A generator of random numbers, the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((x ^ (x >> 31)) % limit as u64) as usize
    }

    fn one_in(&mut self, limit: usize) -> bool {
        self.below(limit) == 0
    }
}

/// The state of an approval in the ledger.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Record {
    Asked,
    Claimed {
        until: u64,
    },
    /// Approved for a provider, and not sent.
    Granted,
    Sent,
    Executed,
    Denied,
    Superseded,
    Lapsed,
    Revoked,
    Unknown,
}

#[derive(Debug)]
enum Errand {
    Do(Effect),
    /// Answers one call: its approval, its id, and whether it is approved.
    Redeem {
        approval: String,
        call: ToolCallId,
        approved: bool,
        followed: bool,
    },
    /// The second half of a redemption: the effect, then its record.
    RunTool {
        approval: String,
        call: ToolCallId,
    },
    Reply(Input),
}

/// A turn with its driver.
struct Driver {
    number: u32,
    server: usize,
    turn: ChatTurn,
    errands: Vec<Errand>,
    /// The events that the agent still emits.
    agent: Option<Vec<AgentEvent>>,
    responses: u32,
    redeeming: usize,
    /// How many closings of open calls are under way.
    closing: u32,
    /// The run of the last refused append, and whether the turn knows it.
    refused: Option<RunId>,
    is_refused: bool,
    ticked: u64,
}

#[derive(Default, Debug)]
pub(super) struct Counts {
    pub(super) turns: u64,
    pub(super) runs: u64,
    pub(super) continued: u64,
    pub(super) taken: u64,
    pub(super) mended: u64,
    pub(super) effects: u64,
    pub(super) sent: u64,
    pub(super) claimed_in_vain: u64,
    pub(super) closed: u64,
    pub(super) joined: u64,
    pub(super) stored: u64,
    pub(super) refused: u64,
    pub(super) refused_appends: u64,
    pub(super) conflicts: u64,
    pub(super) crashes: u64,
    pub(super) deleted: u64,
    pub(super) steps: u64,
}

impl Counts {
    pub(super) fn add(&mut self, other: &Counts) {
        self.turns += other.turns;
        self.runs += other.runs;
        self.continued += other.continued;
        self.taken += other.taken;
        self.mended += other.mended;
        self.effects += other.effects;
        self.sent += other.sent;
        self.claimed_in_vain += other.claimed_in_vain;
        self.closed += other.closed;
        self.joined += other.joined;
        self.stored += other.stored;
        self.refused += other.refused;
        self.refused_appends += other.refused_appends;
        self.conflicts += other.conflicts;
        self.crashes += other.crashes;
        self.deleted += other.deleted;
        self.steps += other.steps;
    }
}

/// A run that the conversation named, with the version of the conversation that named it.
struct NamedRun {
    live: LiveRun,
    chat: Chat,
    /// Its message, as it was saved when the run was no longer live.
    kept: Option<UiMessage>,
    /// Whether the save that ended the run may have removed its message.
    is_replaced: bool,
}

pub(super) struct World {
    now: u64,
    chat: Option<(Chat, u64)>,
    revision: u64,
    ledger: BTreeMap<String, (bool, Record)>,
    /// The runs that have sent approvals to a provider.
    senders: BTreeMap<String, RunId>,
    store: InMemoryRunStore,
    effects: BTreeMap<String, u32>,
    named: Vec<NamedRun>,
    readers: Vec<(RunId, Vec<LogEntry>)>,
    drivers: Vec<Driver>,
    next: u32,
    posted: Vec<Request>,
    has_stopped: bool,
    /// Whether the user mostly sends messages.
    is_talkative: bool,
    trace: bool,
    pub(super) violations: Vec<String>,
    pub(super) counts: Counts,
}

impl World {
    pub(super) fn simulate(seed: u64, trace: bool) -> World {
        let mut random = Random(seed);
        let mut world = World {
            now: 0,
            chat: None,
            revision: 0,
            ledger: BTreeMap::new(),
            senders: BTreeMap::new(),
            store: InMemoryRunStore::with_test_clock(),
            effects: BTreeMap::new(),
            named: Vec::new(),
            readers: Vec::new(),
            drivers: Vec::new(),
            next: 0,
            posted: Vec::new(),
            has_stopped: false,
            is_talkative: random.one_in(2),
            trace,
            violations: Vec::new(),
            counts: Counts::default(),
        };
        let mut left = 3 + random.below(12);
        let pace = 2 + random.below(40);
        while left > 0 || !world.drivers.is_empty() {
            if left > 0 && (world.drivers.is_empty() || random.one_in(pace)) {
                left -= 1;
                world.act(&mut random);
            } else {
                let at = random.below(world.drivers.len());
                if !world.step(&mut random, at) || random.one_in(4) {
                    world.pass(1);
                }
            }
            if random.one_in(4) {
                world.read(&mut random);
            }
            if left == 0 && world.drivers.is_empty() {
                // A crash left runs. Their readers mend the conversation, or the next request does.
                world.pass(LEASE);
                world.mend(&mut random);
                if world.drivers.is_empty() && world.live().is_some() {
                    world.post(&mut random, Request::Follow);
                }
            }
            world.counts.steps += 1;
            if world.counts.steps > 20_000 && world.violations.is_empty() {
                let turns: Vec<_> = world.drivers.iter().map(|it| &it.turn).collect();
                let stuck = format!("the turns do not end: {turns:?}");
                world.violations.push(stuck.chars().take(600).collect());
            }
            if !world.violations.is_empty() {
                return world;
            }
        }
        world.check_end();
        world
    }

    fn live(&self) -> Option<&LiveRun> {
        self.chat.as_ref().and_then(|(chat, _)| chat.live_run())
    }

    fn pass(&mut self, time: u64) {
        self.now += time;
        self.store.set_test_time(Duration::from_millis(self.now));
    }

    fn violated(&mut self, what: String) {
        if self.trace {
            println!("VIOLATED: {what}");
        }
        self.violations.push(what);
    }

    fn fresh(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    fn post(&mut self, random: &mut Random, request: Request) {
        let number = self.fresh();
        if self.trace {
            println!("{:5} turn {number} begins: {}", self.now, short(&request));
        }
        let settings = TurnSettings {
            owner: Principal::new("ada"),
            posted_history: PostedHistory::Keep,
            limits: ChatLimits::default(),
            version: Version::default(),
            has_approvals: true,
            history_import: HistoryImport::Texts,
            chat_id: "c".into(),
            message_id: format!("a{number}").into(),
            run_id: format!("r{number}").into(),
        };
        let turn = ChatTurn::new(request, settings);
        self.drivers.push(Driver {
            number,
            server: random.below(2),
            turn,
            errands: Vec::new(),
            agent: None,
            responses: 0,
            redeeming: 0,
            closing: 0,
            refused: None,
            is_refused: false,
            ticked: self.now,
        });
        self.counts.turns += 1;
    }

    /// Does what a user, a network or a failing machine does.
    fn act(&mut self, random: &mut Random) {
        let action = match random.below(17) {
            // A user with open questions mostly answers them.
            0..=6 if !self.is_talkative && random.below(3) > 0 => 7,
            action => action,
        };
        match action {
            0..=2 => {
                let number = self.fresh();
                self.post_new(random, users::new_message(number));
            }
            3..=4 if !self.posted.is_empty() => {
                let request = self.posted[random.below(self.posted.len())].clone();
                self.post(random, request);
            }
            5 => {
                let users = self.ids_of(Role::User);
                if let Some(id) = users.last() {
                    let answer = match random.below(3) {
                        0 => self.live().map(|live| live.message_id.to_string()),
                        1 => self.ids_of(Role::Assistant).pop(),
                        _ => None,
                    };
                    let request = users::regenerate(answer.as_deref(), id);
                    self.post_new(random, request);
                }
            }
            6 => {
                let users = self.ids_of(Role::User);
                if !users.is_empty() {
                    let number = self.fresh();
                    let request = users::edit(&users[random.below(users.len())], number);
                    self.post_new(random, request);
                }
            }
            7..=12 => self.answer(random),
            13 if random.one_in(2) => {
                self.has_stopped = true;
                self.post(random, Request::Stop);
            }
            13 if random.one_in(3) => self.post(random, Request::Delete),
            13 => self.post(random, Request::Follow),
            14 if random.one_in(2) => self.pass(LEASE * 2),
            15 if random.one_in(2) => {
                self.counts.crashes += 1;
                let server = random.below(2);
                if random.one_in(3) {
                    self.drivers.retain(|driver| driver.server != server);
                } else if !self.drivers.is_empty() {
                    let at = random.below(self.drivers.len());
                    self.drivers.swap_remove(at);
                }
            }
            16 => self.mend(random),
            _ => {}
        }
    }

    /// A reader finds that the lease of its run has passed.
    fn mend(&mut self, random: &mut Random) {
        let runs: Vec<RunId> = self.readers.iter().map(|(run, _)| run.clone()).collect();
        for run in runs {
            if let (_, Some((RunState::LeasePassed, fence))) = self.log(&run) {
                return self.post(random, Request::Mend { run, fence });
            }
        }
    }

    fn post_new(&mut self, random: &mut Random, request: Request) {
        self.posted.push(request.clone());
        self.post(random, request);
    }

    fn ids_of(&self, role: Role) -> Vec<String> {
        let messages = self.chat.iter().flat_map(|(chat, _)| chat.messages.iter());
        let messages = messages.filter(|message| message.role == role);
        messages.map(|message| message.id.to_string()).collect()
    }

    /// A user answers what the history or a log shows.
    fn answer(&mut self, random: &mut Random) {
        let seen = self.seen_calls();
        if seen.is_empty() {
            let number = self.fresh();
            return self.post_new(random, users::new_message(number));
        }
        let first = seen[random.below(seen.len())].clone();
        let others = seen.iter().filter(|other| other.message == first.message);
        let mut answers = vec![(first.clone(), random.below(4) > 0)];
        for other in others.filter(|other| other.approval != first.approval) {
            if random.one_in(2) {
                answers.push((other.clone(), random.below(4) > 0));
            }
        }
        let request = match random.one_in(4) {
            true => users::decisions(&answers),
            false => users::answers(&answers),
        };
        self.post_new(random, request);
    }

    fn seen_calls(&self) -> Vec<SeenCall> {
        let logs = self.named.iter().map(|named| self.kept_log(named));
        let chats: Vec<Chat> = self.chat.iter().map(|(chat, _)| chat.clone()).chain(logs).collect();
        let mut seen: BTreeMap<String, SeenCall> = BTreeMap::new();
        for chat in &chats {
            for message in &chat.messages {
                for part in message.tool_parts() {
                    let Some(approval) = part.approval_id() else { continue };
                    let call = SeenCall {
                        message: message.id.clone(),
                        call: part.tool_call_id.to_string(),
                        approval: approval.to_string(),
                        is_provider_executed: part.provider_executed == Some(true),
                    };
                    seen.insert(approval.to_string(), call);
                }
            }
        }
        seen.into_values().collect()
    }

    fn kept_log(&self, named: &NamedRun) -> Chat {
        keep_log(&named.chat, &named.live, &self.log(&named.live.run).0)
    }

    fn log(&self, run: &RunId) -> (Vec<LogEntry>, Option<(RunState, Fence)>) {
        let key = key(run);
        let read = ReadLog::whole(&key);
        match self.store.read(read).now_or_never().unwrap().unwrap() {
            Some(page) => (page.entries, Some((page.state, page.fence))),
            None => (Vec::new(), None),
        }
    }

    /// Does one step of a driver. Returns `false` if it has nothing to do.
    fn step(&mut self, random: &mut Random, at: usize) -> bool {
        loop {
            match self.drivers[at].turn.poll() {
                Action::Wait => break,
                Action::End => {
                    let driver = self.drivers.swap_remove(at);
                    if driver.responses != 1 {
                        let what =
                            format!("turn {}: {} responses", driver.number, driver.responses);
                        self.violated(what);
                    }
                    return true;
                }
                action => self.collect(random, at, action),
            }
        }
        let driver = &self.drivers[at];
        let has_event = driver.agent.is_some() && driver.turn.accepts_events();
        let ready = driver.errands.len();
        if ready == 0 && !has_event || random.one_in(8) {
            return self.tick(at);
        }
        if has_event && (ready == 0 || random.one_in(2)) {
            let events = self.drivers[at].agent.as_mut();
            let event = events.and_then(|events| (!events.is_empty()).then(|| events.remove(0)));
            let input = event.map_or(Input::AgentEnded, |event| {
                self.ask(&event);
                Input::Agent(event)
            });
            if matches!(input, Input::AgentEnded) {
                self.drivers[at].agent = None;
            }
            self.deliver(at, input);
            return true;
        }
        let chosen = random.below(ready);
        let errand = self.drivers[at].errands.remove(chosen);
        self.run_errand(random, at, errand);
        true
    }

    /// The agent records its approval requests in the ledger before it emits them.
    fn ask(&mut self, event: &AgentEvent) {
        if let AgentEvent::ApprovalRequested { tool_call_id, approval_id, .. } = event {
            let is_provider_executed = tool_call_id.starts_with('p');
            self.ledger.insert(approval_id.to_string(), (is_provider_executed, Record::Asked));
        }
    }

    fn collect(&mut self, random: &mut Random, at: usize, action: Action) {
        if self.trace {
            println!("{:5} turn {} asks {}", self.now, self.drivers[at].number, short(&action));
        }
        let driver = &mut self.drivers[at];
        let effect = match action {
            Action::Start(effect) => effect,
            Action::StopAgent => {
                driver.agent = None;
                return;
            }
            Action::Respond(response) => {
                driver.responses += 1;
                match response {
                    Response::Join { run, .. } => {
                        self.counts.joined += 1;
                        self.readers.push((run, Vec::new()));
                    }
                    Response::Stored { .. } => self.counts.stored += 1,
                    _ => self.counts.refused += 1,
                }
                return;
            }
            Action::Wait | Action::End | Action::Report(_) => return,
        };
        let is_refused = driver.is_refused
            && driver.refused.as_ref() == driver.turn.own_run().map(|live| &live.run);
        let is_forbidden =
            is_refused && matches!(effect, Effect::Claim { .. } | Effect::CallAgent(_));
        match effect {
            Effect::Redeem { plan, chat } => {
                let followed = chat.messages_followed_by_user();
                let answers: Vec<_> = plan.unverified_responses().cloned().collect();
                driver.redeeming = answers.len();
                if answers.is_empty() {
                    driver.errands.push(Errand::Reply(Input::Redeemed));
                }
                for answer in answers {
                    let holds = |id: &MessageId| {
                        chat.message(id).is_some_and(|message| {
                            message
                                .tool_parts()
                                .any(|part| part.approval_id() == Some(&answer.approval_id))
                        })
                    };
                    driver.errands.push(Errand::Redeem {
                        approval: answer.approval_id.to_string(),
                        call: answer.tool_call_id.clone(),
                        approved: answer.approved,
                        followed: followed.iter().any(holds),
                    });
                }
            }
            Effect::Release { run, fence } => {
                let key = key(&run);
                let append =
                    AppendEntries { key: &key, fence, position: 0, entries: &[], end: true };
                let _ = self.store.append(append).now_or_never().unwrap().unwrap();
            }
            Effect::RevokeUnshown(ended) => self.revoke_unshown(&ended),
            Effect::CallAgent(call) => {
                let live = call.chat.live_run().map(|live| &live.message_id);
                let is_recorded = |it: &DeferredToolResult| call.chat.is_known(it);
                if live != Some(&call.message_id) || call.not_recorded.iter().any(is_recorded) {
                    self.violated("the agent was called with another conversation".into());
                }
                let mut events = Vec::new();
                let sent: Vec<DeferredToolResult> = call.sent;
                self.counts.sent += sent.len() as u64;
                for approval in &sent {
                    let id = approval.approval_id.as_ref().map(ToString::to_string);
                    self.effect(&id.unwrap_or_default());
                    if random.below(3) > 0 {
                        let output = Json::string("done");
                        events.push(AgentEvent::tool_output(approval.tool_call_id.clone(), output));
                    }
                }
                for _ in 0..random.below(5) {
                    self.agent_events(random, &mut events);
                }
                match random.below(5) {
                    0 => {}
                    1 => events.push(AgentEvent::error("failed")),
                    _ => events.push(AgentEvent::finish(FinishReason::Stop)),
                }
                self.drivers[at].agent = Some(events);
            }
            effect => {
                driver.closing += u32::from(matches!(effect, Effect::CloseOpenCalls { .. }));
                driver.errands.push(Errand::Do(effect));
            }
        }
        if is_forbidden {
            self.violated("a claim or a model call after a refused append".into());
        }
    }

    fn agent_events(&mut self, random: &mut Random, events: &mut Vec<AgentEvent>) {
        let number = self.fresh();
        let (prefix, is_provider_executed) = match random.below(4) {
            0 => ("s", false),
            1 => ("p", true),
            _ => {
                events.push(AgentEvent::text(format!("{number} ")));
                return;
            }
        };
        let mut call = ToolCall::new(format!("{prefix}{number}"), "act");
        if is_provider_executed {
            call = call.provider_executed();
        }
        let id = call.id.clone();
        events.push(AgentEvent::tool_input(call, Json::parse("{}").unwrap()));
        events.push(AgentEvent::approval_requested(id, format!("ap{number}")));
    }

    fn deliver(&mut self, at: usize, input: Input) {
        if self.trace {
            println!("{:5} turn {} gets {}", self.now, self.drivers[at].number, short(&input));
        }
        let driver = &mut self.drivers[at];
        if let Input::Appended(AppendResult::Refused(_)) = &input {
            driver.is_refused = true;
        }
        // The answers that come with a new message are redeemed together with the closing.
        let is_closed = matches!(&input, Input::CallsClosed(_)) && driver.closing > 0;
        driver.turn.handle(input);
        if is_closed {
            driver.closing -= 1;
            driver.turn.handle(Input::Redeemed);
        }
    }

    fn tick(&mut self, at: usize) -> bool {
        let driver = &mut self.drivers[at];
        if self.now < driver.ticked + LEASE / 3 {
            return false;
        }
        driver.ticked = self.now;
        self.deliver(at, Input::Tick);
        true
    }

    fn run_errand(&mut self, random: &mut Random, at: usize, errand: Errand) {
        let reply = match errand {
            Errand::Reply(input) => return self.deliver(at, input),
            Errand::Redeem { approval, call, approved, followed } => {
                match self.redeem(&approval, approved, followed) {
                    Redeemed::Final => self.settled(at, &approval, &call),
                    Redeemed::Run => {
                        self.drivers[at].errands.push(Errand::RunTool { approval, call });
                    }
                    // Another turn executes the call: the ledger is asked again later.
                    Redeemed::Wait => {
                        let again = Errand::Redeem { approval, call, approved, followed };
                        self.drivers[at].errands.push(again);
                        self.pass(1);
                    }
                }
                return;
            }
            Errand::RunTool { approval, call } => {
                self.effect(&approval);
                if let Some((_, record @ Record::Claimed { .. })) = self.ledger.get_mut(&approval) {
                    *record = Record::Executed;
                }
                return self.settled(at, &approval, &call);
            }
            Errand::Do(effect) => match self.perform(random, at, &effect) {
                Some(reply) => reply,
                // The request was lost, or its reply. Perhaps the driver gives up.
                None if random.one_in(50) => {
                    self.counts.crashes += 1;
                    Input::Failed
                }
                None => {
                    self.drivers[at].errands.push(Errand::Do(effect));
                    return;
                }
            },
        };
        self.drivers[at].errands.push(Errand::Reply(reply));
    }

    /// Reports the result of an answered call, and after the last one that all are redeemed.
    fn settled(&mut self, at: usize, approval: &str, call: &ToolCallId) {
        let result = self.result(approval, call);
        let driver = &mut self.drivers[at];
        driver.redeeming -= 1;
        let is_last = driver.redeeming == 0;
        let inputs = result.map(|result| Input::CallSettled(Box::new(result)));
        for input in inputs.into_iter().chain(is_last.then_some(Input::Redeemed)) {
            self.deliver(at, input);
        }
    }

    fn redeem(&mut self, approval: &str, approved: bool, followed: bool) -> Redeemed {
        let until = self.now + LEASE;
        let now = self.now;
        let Some((is_provider, record)) = self.ledger.get_mut(approval) else {
            return Redeemed::Final;
        };
        *record = match (*record, approved) {
            (Record::Asked, false) => Record::Denied,
            (Record::Asked, true) if followed => {
                self.counts.closed += 1;
                Record::Lapsed
            }
            (Record::Asked, true) if *is_provider => Record::Granted,
            (Record::Asked, true) => {
                *record = Record::Claimed { until };
                return Redeemed::Run;
            }
            (Record::Claimed { until }, _) if now >= until => Record::Unknown,
            (Record::Claimed { .. }, _) => return Redeemed::Wait,
            (record, _) => record,
        };
        Redeemed::Final
    }

    /// Returns what the ledger knows about a call.
    fn result(&mut self, approval: &str, call: &ToolCallId) -> Option<ReceivedResult> {
        let (is_provider, record) = *self.ledger.get(approval)?;
        let forward =
            |approved| DeferredOutcome::ForwardToProvider { approved, reason: None, claim: None };
        let outcome = match record {
            Record::Asked => return None,
            Record::Claimed { .. } => DeferredOutcome::Executing {
                record: crate::approval::RecordId::from_bytes([0; 16]),
            },
            Record::Granted => forward(true),
            Record::Sent => DeferredOutcome::ForwardedToProvider,
            Record::Denied if is_provider => forward(false),
            Record::Denied => DeferredOutcome::Denied { reason: None },
            Record::Executed => {
                DeferredOutcome::Executed { outcome: ToolOutcome::Output(Json::string("ran")) }
            }
            Record::Superseded => DeferredOutcome::Superseded,
            Record::Lapsed => DeferredOutcome::Lapsed,
            Record::Revoked => DeferredOutcome::Revoked,
            Record::Unknown => DeferredOutcome::OutcomeUnknown,
        };
        let id = ApprovalId::from(approval);
        let call = PendingToolCall::awaiting_approval(id, call.clone(), "act", Json::null());
        Some(ReceivedResult::new(call.with_outcome(outcome), None))
    }

    /// Performs an effect. Returns `None` if it has to be repeated.
    fn perform(&mut self, random: &mut Random, at: usize, effect: &Effect) -> Option<Input> {
        // A request may be lost, or its reply.
        let (is_lost, has_no_reply) = (random.one_in(25), random.one_in(12));
        let is_repeated = matches!(
            effect,
            Effect::Begin(_) | Effect::Append { .. } | Effect::Take { .. } | Effect::Load
        );
        if is_lost && is_repeated {
            return None;
        }
        let holder = LeaseHolderId::from_bytes([self.drivers[at].number as u8; 16]);
        let reply = match effect {
            Effect::Load => {
                let chat = self.chat.clone();
                Input::Loaded(chat.map(|(chat, revision)| (Box::new(chat), revision)))
            }
            Effect::Save { .. } if is_lost => Input::SaveUnknown,
            Effect::Save { chat, revision, .. } => {
                let has_responded = self.drivers[at].responses > 0;
                let is_saved = self.save((**chat).clone(), *revision);
                if is_saved && revision.is_none() && has_responded {
                    self.violated("a turn created a deleted chat after its response".into());
                }
                self.counts.conflicts += u64::from(!is_saved);
                if has_no_reply { Input::SaveUnknown } else { Input::Saved(is_saved) }
            }
            Effect::RevokePending => {
                let pending = self.ledger.values_mut().map(|(_, record)| record);
                pending.filter(|it| **it == Record::Asked).for_each(|it| *it = Record::Revoked);
                Input::Revoked
            }
            // The reply is lost: the deletion fails, which is as if its server had crashed.
            Effect::Delete(_) if is_lost => {
                self.counts.crashes += 1;
                Input::Failed
            }
            Effect::Delete(revision) => {
                let is_deleted = self.delete(*revision);
                self.counts.crashes += u64::from(has_no_reply);
                if has_no_reply { Input::Failed } else { Input::Deleted(is_deleted) }
            }
            Effect::Begin(run) => {
                let key = key(run);
                let lease = Duration::from_millis(LEASE);
                let begin = BeginRun { key: &key, holder, lease, max_user_runs: 1000 };
                Input::Begun(self.store.begin(begin).now_or_never().unwrap().unwrap())
            }
            Effect::Append { run, fence, position, entries, end } => {
                let before = self.log(run).0.len();
                let (key, fence, position, end) = (key(run), *fence, *position, *end);
                let append = AppendEntries { key: &key, fence, position, entries, end };
                let appended = self.store.append(append).now_or_never().unwrap().unwrap();
                let has_grown = self.log(run).0.len() > before;
                if has_grown && !end && self.live().is_none_or(|live| live.run != *run) {
                    self.violated(format!("{run:?} is not live and accepted content"));
                }
                if let AppendResult::Refused(_) = appended {
                    self.counts.refused_appends += 1;
                    let refused = Some(run.clone());
                    (self.drivers[at].refused, self.drivers[at].is_refused) = (refused, false);
                    return Some(Input::Appended(appended));
                }
                Input::Appended(appended)
            }
            Effect::Take { run, fence, condition } => {
                let (key, fence, condition) = (key(run), *fence, *condition);
                let take = TakeRun { key: &key, fence, holder, condition };
                let taken = self.store.take(take).now_or_never().unwrap().unwrap();
                let is_taken = matches!(taken, TakeResult::Taken(_));
                self.counts.taken += u64::from(is_taken);
                self.counts.mended +=
                    u64::from(is_taken && condition == TakeCondition::LeasePassed);
                Input::Taken(taken)
            }
            Effect::Read(run) => {
                let (entries, state) = self.log(run);
                Input::Log(state.map(|_| entries))
            }
            Effect::CloseOpenCalls { open, .. } => self.close(open, true),
            Effect::FindDecided(calls) => self.close(calls, false),
            Effect::Claim { run, approvals } => {
                let claimed = approvals.iter().filter(|approval| {
                    let id = approval.approval_id.as_ref().map(ToString::to_string);
                    let id = id.unwrap_or_default();
                    match self.ledger.get_mut(&id) {
                        Some((_, record @ Record::Granted)) => {
                            *record = Record::Sent;
                            self.senders.insert(id, run.clone());
                            true
                        }
                        Some((_, Record::Sent)) => self.senders.get(&id) == Some(run),
                        _ => false,
                    }
                });
                Input::Claimed(claimed.cloned().collect())
            }
            Effect::Redeem { .. }
            | Effect::CallAgent(_)
            | Effect::Release { .. }
            | Effect::RevokeUnshown(_) => Input::Failed,
        };
        (!has_no_reply || !is_repeated).then_some(reply)
    }

    fn close(&mut self, calls: &[PendingToolCall], is_superseded: bool) -> Input {
        let now = self.now;
        let mut closed = Vec::new();
        for call in calls {
            let approval = call.approval_id.as_ref().map(ToString::to_string).unwrap_or_default();
            match self.ledger.get_mut(&approval) {
                Some((_, record @ Record::Asked)) if is_superseded => {
                    *record = Record::Superseded;
                    self.counts.closed += 1;
                }
                Some((_, record @ Record::Claimed { .. })) => {
                    if let Record::Claimed { until } = *record
                        && now >= until
                    {
                        *record = Record::Unknown;
                    }
                }
                _ => {}
            }
            closed.extend(self.result(&approval, &call.tool_call_id));
        }
        Input::CallsClosed(closed)
    }

    fn save(&mut self, next: Chat, revision: Option<u64>) -> bool {
        if revision != self.chat.as_ref().map(|(_, revision)| *revision) {
            return false;
        }
        let was = self.live().cloned();
        let now = next.live_run().cloned();
        let run_of = |live: &Option<LiveRun>| live.as_ref().map(|live| live.run.clone());
        if run_of(&was) != run_of(&now) {
            if let Some(was) = &was {
                let is_open = matches!(
                    self.log(&was.run).1,
                    Some((RunState::Leased | RunState::LeasePassed, fence)) if fence == was.fence
                );
                let is_replaced = now.is_some();
                let named = self.named.iter_mut().find(|named| named.live.run == was.run);
                if let Some(named) = named {
                    named.kept = next.message(&was.message_id).cloned();
                    named.is_replaced = is_replaced;
                    // The fence of the holder that began the run: it could still append.
                    if is_replaced && is_open && named.live.fence == was.fence {
                        self.violated(format!("{:?} was replaced and is open", was.run));
                    }
                }
            }
            if let Some(live) = now {
                self.counts.runs += 1;
                if self.named.iter().any(|named| named.live.run == live.run) {
                    self.violated(format!("{:?} was named twice", live.run));
                }
                self.counts.continued += u64::from(next.message(&live.message_id).is_some());
                let (chat, kept) = (next.clone(), None);
                self.named.push(NamedRun { live, chat, kept, is_replaced: false });
            }
        }
        let known = self.chat.as_ref().map_or(0, |(chat, _)| chat.new_results().len());
        if next.new_results().len() > known {
            for driver in &mut self.drivers {
                driver.errands.push(Errand::Reply(Input::ChatChanged));
            }
        }
        self.revision += 1;
        self.chat = Some((next, self.revision));
        true
    }

    fn delete(&mut self, revision: u64) -> bool {
        if self.chat.as_ref().is_none_or(|(_, current)| *current != revision) {
            return false;
        }
        self.counts.deleted += 1;
        if let Some(live) = self.live().cloned() {
            let named = self.named.iter_mut().find(|named| named.live.run == live.run);
            if let Some(named) = named {
                named.is_replaced = true;
            }
        }
        self.chat = None;
        for driver in &mut self.drivers {
            driver.errands.push(Errand::Reply(Input::ChatChanged));
        }
        true
    }

    /// An agent is stopped that may have requested approvals after its run was taken.
    fn revoke_unshown(&mut self, ended: &EndedMessage) {
        let logs = self.named.iter().map(|named| self.kept_log(named));
        let chats: Vec<Chat> = match &self.chat {
            Some((chat, _)) => logs.chain([chat.clone()]).collect(),
            None => Vec::new(),
        };
        for id in &ended.requested {
            let is_it = |part: &ToolPart| part.approval_id() == Some(id);
            let mut parts =
                chats.iter().flat_map(|chat| &chat.messages).flat_map(|it| it.tool_parts());
            if !parts.any(is_it)
                && let Some((_, record @ Record::Asked)) = self.ledger.get_mut(id.as_str())
            {
                *record = Record::Revoked;
            }
        }
    }

    fn effect(&mut self, approval: &str) {
        self.counts.effects += 1;
        *self.effects.entry(approval.to_owned()).or_default() += 1;
        let record = self.ledger.get(approval).map(|(_, record)| *record);
        if self.effects[approval] > 1 {
            self.violated(format!("{approval} had two effects"));
        }
        if matches!(
            record,
            Some(Record::Lapsed | Record::Superseded | Record::Denied | Record::Revoked)
        ) {
            self.violated(format!("{approval} was closed and had an effect"));
        }
    }

    fn read(&mut self, random: &mut Random) {
        for at in 0..self.readers.len() {
            let (entries, _) = self.log(&self.readers[at].0);
            let read = &mut self.readers[at].1;
            if !entries.is_empty() && !entries.starts_with(read) {
                let what = format!("a reader of {:?} read something else", self.readers[at].0);
                self.violated(what);
                return;
            }
            if entries.len() > read.len() {
                let more = random.below(entries.len() - read.len() + 1);
                read.extend_from_slice(&entries[read.len()..][..more]);
            }
        }
    }

    fn check_end(&mut self) {
        let mut found = Vec::new();
        for named in &self.named {
            let log = self.kept_log(named);
            let written = log.message(&named.live.message_id);
            let is_kept = match &named.kept {
                Some(kept) => written == Some(kept),
                None => written.is_none() || named.is_replaced,
            };
            let shown = message_shown_by(&named.chat, &named.live, &self.log(&named.live.run).0);
            // A run that answers a message which the server does not hold is read by that page alone.
            let is_of_page = shown.id != named.live.message_id;
            let is_hidden = |part: &ToolPart| {
                let is_it = |shown: &&ToolPart| shown.tool_call_id == part.tool_call_id;
                !is_of_page
                    && part.is_settled()
                    && !shown.tool_parts().find(is_it).is_some_and(ToolPart::is_settled)
            };
            if let Some(hidden) =
                named.kept.iter().flat_map(UiMessage::tool_parts).find(|it| is_hidden(it))
            {
                found.push(format!(
                    "{:?}: no frame shows {:?}",
                    named.live.run, hidden.tool_call_id
                ));
            }
            if !is_kept {
                let kept = named.kept.as_ref().map_or_else(String::new, json);
                let run = &named.live.run;
                found.push(format!("{run:?}: kept {kept}, the log is {}", {
                    written.map_or_else(String::new, json)
                }));
            }
        }
        let is_calm = self.counts.crashes == 0;
        if let Some((chat, _)) = &self.chat
            && is_calm
        {
            if chat.message_to_continue().is_some() {
                found.push("a result was recorded and no model reads it".into());
            }
            let open = chat.undecided_calls().into_iter();
            let open = open.filter_map(|call| call.approval_id);
            for approval in open {
                // A deletion that was interrupted has revoked its requests.
                if !matches!(self.ledger[approval.as_str()].1, Record::Asked | Record::Revoked) {
                    found.push(format!("the answer to {approval:?} is lost"));
                }
            }
            for named in &self.named {
                if self.log(&named.live.run).1.is_none_or(|(state, _)| state != RunState::Ended) {
                    found.push(format!("the log of {:?} has not ended", named.live.run));
                }
            }
            let sent = self.ledger.iter().filter(|(_, (_, record))| *record == Record::Sent);
            let unsent = sent.filter(|(id, _)| !self.effects.contains_key(*id));
            self.counts.claimed_in_vain = unsent.count() as u64;
        }
        if self.live().is_some() {
            found.push("a run is live although all turns have ended".into());
        }
        found.into_iter().for_each(|what| self.violated(what));
    }
}

/// The result of a request to redeem.
enum Redeemed {
    Final,
    Run,
    Wait,
}

fn key(run: &RunId) -> RunKey {
    RunKey { owner: Principal::new("ada"), chat: "c".into(), run: run.clone() }
}

fn json(message: &UiMessage) -> String {
    serde_json::to_string(message).unwrap()
}

fn short(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").chars().take(300).collect()
}
