//! [`decide`]: what a turn does next with the chat that it has read. A pure function.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, INTERRUPTED, OtherEntry, RunEnd};
use super::state::{ChatState, Live};

use super::writer::{result_entry, write_lost_end};
use crate::approval::{DeferredOutcome, PendingToolCall, Principal, ResumePlan};
use crate::chat::conversation::request_change::{RequestChange, apply_change, change_of};
use crate::chat::conversation::{
    Chat, HistoryImport, Messages, PostedHistory, ReceivedResult, RequestConflict, RequestEffect,
    live_message,
};
use crate::chat::store::{Epoch, Expected, LogHead};
use crate::event::{AgentEvent, MASKED_ERROR};
use crate::id::{ChatId, MessageId, RunId};
use crate::limits::{ChatLimitError, ChatLimits};
use crate::message::{Part, Role, ToolState, UiMessage};
use crate::request::ChatRequest;

/// What a request wants.
#[derive(Debug, Clone)]
pub(crate) enum Goal {
    /// Answer a new message, an edit or a regeneration.
    Ask(Arc<ChatRequest>),
    /// Settle calls of this message that a user or a client has answered.
    Answer {
        message_id: MessageId,
        plan: Box<ResumePlan>,
        /// The request that has posted the answers.
        posted: Option<Arc<ChatRequest>>,
    },
    Stop,
    Delete,
    Follow,
    /// A reader has seen that the lease of this run has passed.
    Mend(RunId),
}

impl Goal {
    /// The goal of a posted request.
    pub(crate) fn of(request: Arc<ChatRequest>) -> Self {
        let answered = request.continued_message().map(|message| {
            (message.id.clone(), Box::new(ResumePlan::new(request.messages(), Some(message))))
        });
        match answered {
            Some((message_id, plan)) => Goal::Answer { message_id, plan, posted: Some(request) },
            None => Goal::Ask(request),
        }
    }
}

/// The settings of a turn, and the ids that it may use.
#[derive(Debug, Clone)]
pub(crate) struct TurnSettings {
    pub(crate) owner: Principal,
    pub(crate) chat_id: ChatId,
    pub(crate) posted_history: PostedHistory,
    pub(crate) history_import: HistoryImport,
    pub(crate) limits: ChatLimits,
    /// The lease of a run.
    pub(crate) lease: Duration,
    /// The id of the message, if the turn begins one.
    pub(crate) message_id: MessageId,
    /// The id of the first run of the turn. It is random. The ids of further runs begin with it.
    pub(crate) run_id: RunId,
    /// The epoch of the log, if the turn creates one. It is random.
    pub(crate) epoch: Epoch,
}

/// The chat as far as a turn has read it.
#[derive(Debug, Clone)]
pub(crate) struct View {
    pub(crate) state: ChatState,
    pub(crate) head: LogHead,
    /// The position and the messages of the stored state, as far as it is known.
    pub(crate) stored: Option<(u64, Messages)>,
}

impl View {
    /// The bytes of the chat.
    pub(crate) fn bytes(&self) -> usize {
        self.state.chat().bytes()
    }
}

/// What a turn has learned and begun, beside the chat.
#[derive(Debug)]
pub(crate) struct Mine {
    pub(crate) settings: TurnSettings,
    /// How often the turn has tried to begin a run. Each attempt has another id.
    pub(crate) attempts: u32,
    /// The turn has begun a run.
    pub(crate) has_begun: bool,
    /// How often the store has refused a run, because the user has too many.
    pub(crate) refused_runs: u8,
    pub(crate) known: Option<KnownCalls>,
    pub(crate) redemption: Redemption,
    /// Results that this turn has redeemed, and that the chat may lack.
    pub(crate) outbox: Vec<ReceivedResult>,
    /// How often in a row the lease of the live run was found passed.
    pub(crate) lost_reads: u8,
    /// The log that the turn has found first. A deletion deletes no other.
    pub(crate) epoch: Option<Epoch>,
    /// The pending approvals were revoked when the chat had this version, or no log.
    pub(crate) revoked: Option<Option<(Epoch, u64)>>,
}

/// What the ledger has said about open calls.
#[derive(Debug)]
pub(crate) struct KnownCalls {
    pub(crate) asked: Vec<PendingToolCall>,
    /// The calls were closed, because of a message of the user.
    pub(crate) are_closed: bool,
    pub(crate) results: Vec<ReceivedResult>,
    pub(crate) has_failed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Redemption {
    None,
    Due,
    Running,
    Done,
    Failed,
}

/// What a turn does next.
#[derive(Debug)]
pub(crate) enum Decision {
    /// Load the chat with its frames.
    LoadWhole,
    /// Close these calls, because of a new message of the user, with the answers that came with it.
    /// Those in `removed` are closed in any case, because their message is removed.
    CloseCalls {
        open: Vec<PendingToolCall>,
        removed: Vec<PendingToolCall>,
        plan: Box<ResumePlan>,
    },
    /// Look up which of these calls the ledger has decided.
    FindDecided(Vec<PendingToolCall>),
    Append(Append),
    Redeem,
    /// The answers are being redeemed.
    AwaitResults,
    /// The lease has just passed. The holder gets a moment to renew it.
    WaitForHolder,
    RevokePending,
    Delete {
        epoch: Epoch,
        control: u64,
    },
    Done(Response),
}

/// An append.
#[derive(Debug, Clone)]
pub(crate) struct Append {
    pub(crate) expected: Expected,
    /// The turn keeps them until the store has replied.
    pub(crate) entries: Arc<[Entry]>,
    /// The lease that the live run gets.
    pub(crate) lease: Option<Duration>,
    pub(crate) only_lost: bool,
    /// The title of the chat, and whether it has questions, after an append with a control entry.
    pub(crate) listed: Option<(String, bool)>,
}

/// The response to the client.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Response {
    /// The response reads the run that begins at this position. A client that does not hold the message
    /// that the run continues reads it first, as it was `begun`.
    Join {
        epoch: Epoch,
        run: RunId,
        message_id: MessageId,
        begin: u64,
        begun: Option<Arc<UiMessage>>,
        /// The position up to which `begun` has the results of its calls.
        length: u64,
    },
    /// The response is this stored message.
    Stored(MessageId),
    /// There is nothing to send.
    Nothing,
    /// The request was received before, and there is no response to it.
    AlreadyReceived,
    Refused(RequestConflict),
    /// The request answers calls that the chat does not hold.
    UnknownCalls,
    TooManyRuns,
    Limit(ChatLimitError),
    /// The ledger has failed.
    Failed,
}

impl View {
    pub(crate) fn position(&self) -> Expected {
        Expected::Position { epoch: self.head.epoch, position: self.state.length() }
    }

    fn control(&self) -> Expected {
        Expected::Control { epoch: self.head.epoch, control: self.head.control }
    }
}

impl Mine {
    /// Returns the id of the next run.
    fn run(&self) -> RunId {
        let first = &self.settings.run_id;
        match self.attempts {
            0 => first.clone(),
            number => format!("{first}-{number}").into(),
        }
    }

    /// Whether this turn has begun the run, or has tried to.
    pub(crate) fn is_own(&self, run: &RunId) -> bool {
        let rest = run.strip_prefix(self.settings.run_id.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    fn begin(&self, message_id: &MessageId) -> Entry {
        OtherEntry::Begin { run: self.run(), message_id: message_id.clone() }.into()
    }

    /// Whether the store has refused a run, and not only because another turn of the same request had
    /// begun one.
    fn has_no_place(&self) -> bool {
        self.refused_runs > 1
    }

    fn append(&self, expected: Expected, entries: Vec<Entry>) -> Decision {
        let begins =
            entries.iter().any(|entry| matches!(entry.other(), Some(OtherEntry::Begin { .. })));
        let lease = begins.then_some(self.settings.lease);
        let (entries, only_lost) = (entries.into(), false);
        Decision::Append(Append { expected, entries, lease, only_lost, listed: None })
    }
}

/// Decides what a turn does next. `view` is `None` if the chat has no log.
pub(crate) fn decide(view: Option<&View>, goal: &Goal, mine: &Mine) -> Decision {
    let Some(view) = view else { return without_log(goal, mine) };
    let live = view.state.live();
    match goal {
        Goal::Ask(request) => ask(view, mine, request),
        Goal::Answer { message_id, plan, posted } => {
            answer(view, mine, message_id, plan, posted.as_deref())
        }
        Goal::Stop => match live {
            Some(live) => mine.append(view.control(), vec![end(live, RunEnd::Stopped)]),
            None => Decision::Done(Response::Nothing),
        },
        Goal::Delete if mine.epoch != Some(view.head.epoch) => without_log(goal, mine),
        Goal::Delete => {
            let (epoch, control) = (view.head.epoch, view.head.control);
            match mine.revoked == Some(Some((epoch, control))) {
                true => Decision::Delete { epoch, control },
                false => Decision::RevokePending,
            }
        }
        Goal::Follow => match live {
            Some(live) => join(view, live, mine),
            None => Decision::Done(Response::Nothing),
        },
        Goal::Mend(run) => match live {
            Some(live) if live.run == *run && view.head.is_lost => end_lost(view, live, mine),
            _ => Decision::Done(Response::Nothing),
        },
    }
}

fn without_log(goal: &Goal, mine: &Mine) -> Decision {
    match goal {
        Goal::Ask(request) if !mine.has_begun => {
            let TurnSettings { owner, history_import, epoch, .. } = &mine.settings;
            let chat = Chat::from_client_history(request, owner.clone(), *history_import);
            let change = match allowed_change(&chat, request, mine) {
                Ok((change, _)) => change,
                Err(decision) => return decision,
            };
            let messages: Vec<UiMessage> = chat.messages.iter().cloned().collect();
            let import = (!messages.is_empty()).then(|| OtherEntry::Import { messages }.into());
            let begin = mine.begin(&mine.settings.message_id);
            let request = OtherEntry::Request(change).into();
            let entries = import.into_iter().chain([request, begin]).collect();
            match mine.has_no_place() {
                true => Decision::Done(Response::TooManyRuns),
                // An earlier attempt may have created a log that was deleted since.
                false => mine.append(Expected::NoLog(epoch.after(mine.attempts)), entries),
            }
        }
        Goal::Answer { .. } => match mine.redemption {
            Redemption::Running => Decision::AwaitResults,
            _ => Decision::Done(Response::UnknownCalls),
        },
        Goal::Delete if mine.revoked != Some(None) => Decision::RevokePending,
        _ => Decision::Done(Response::Nothing),
    }
}

/// Returns what a request changes in this chat, and the changed chat.
///
/// # Errors
/// What the turn does, if the request changes nothing, or the chat is full.
fn allowed_change(
    chat: &Chat,
    request: &ChatRequest,
    mine: &Mine,
) -> Result<(RequestChange, Chat), Decision> {
    let TurnSettings { posted_history, limits, .. } = &mine.settings;
    let change = change_of(chat, request, *posted_history).map_err(|effect| {
        Decision::Done(match effect {
            RequestEffect::Answered(id) | RequestEffect::AwaitsResponse(id) => Response::Stored(id),
            RequestEffect::Refused(conflict) => Response::Refused(conflict),
            _ => Response::AlreadyReceived,
        })
    })?;
    let outputs = chat.bytes_of_new_outputs(request.messages());
    let mut next = chat.clone();
    apply_change(&mut next, change.clone());
    if request.new_user_message().is_some() || outputs > 0 {
        let messages = request.new_user_message().map_or(0, |_| next.messages.len());
        limits
            .check_chat(messages, next.bytes() + outputs)
            .map_err(|limit| Decision::Done(Response::Limit(limit)))?;
    }
    Ok((change, next))
}

/// A new message, an edit or a regeneration: ends the live run, closes the open calls, changes the
/// messages, and begins a run. All of it is one append.
fn ask(view: &View, mine: &Mine, request: &ChatRequest) -> Decision {
    let (chat, live) = (view.state.chat(), view.state.live());
    if let Some(last) = view.state.last_end().filter(|last| mine.is_own(&last.run)) {
        // The run of this turn is over.
        return Decision::Done(Response::Join {
            epoch: view.head.epoch,
            run: last.run.clone(),
            message_id: last.message_id.clone(),
            begin: last.begin,
            begun: None,
            length: 0,
        });
    }
    if mine.has_begun {
        // A regeneration that names no message would remove the answer of this turn.
        let last = chat.messages.last().filter(|last| last.role == Role::Assistant);
        let stored = last.map(|last| Response::Stored(last.id.clone()));
        return Decision::Done(stored.unwrap_or(Response::AlreadyReceived));
    }
    let (change, next) = match allowed_change(chat, request, mine) {
        Ok(allowed) => allowed,
        Err(Decision::Done(Response::Stored(id))) => return join_or_stored(view, id, mine),
        Err(decision) => return decision,
    };
    if mine.has_no_place() && live.is_none() {
        return Decision::Done(Response::TooManyRuns);
    }
    let open = open_calls(chat);
    let kept = open_calls(&next);
    let removed = open.iter().filter(|call| !kept.contains(call));
    let removed: Vec<PendingToolCall> = removed.cloned().collect();
    let known = mine
        .known
        .as_ref()
        .filter(|known| known.are_closed && open.iter().all(|call| known.asked.contains(call)));
    let none = KnownCalls::NONE;
    let Some(known) = known.or(open.is_empty().then_some(&none)) else {
        let plan = Box::new(ResumePlan::new(request.messages(), None));
        return Decision::CloseCalls { open, removed, plan };
    };
    if known.has_failed && !removed.is_empty() {
        // Nothing would show later that an approval of such a call comes too late.
        return Decision::Done(Response::Failed);
    }
    let run = mine.run();
    let mut entries: Vec<Entry> = Vec::new();
    entries.extend(live.map(|live| end(live, RunEnd::Replaced)));
    entries.push(OtherEntry::Request(change).into());
    entries.push(mine.begin(&mine.settings.message_id));
    // After the run has begun, because its readers are shown them.
    entries.extend(accepted(&next, &known.results));
    if known.has_failed {
        // The calls that could not be closed lapse, because a message follows them.
        entries.push(OtherEntry::End { run, end: RunEnd::Failed(MASKED_ERROR.to_owned()) }.into());
    }
    mine.append(view.control(), entries)
}

/// The calls that wait for a decision of a user, or for the client that executes them.
fn open_calls(chat: &Chat) -> Vec<PendingToolCall> {
    let mut open = chat.undecided_calls();
    open.extend(chat.client_executed.iter().cloned());
    open
}

/// The entries of those results that change the chat.
pub(crate) fn accepted<'r>(
    chat: &Chat,
    results: impl IntoIterator<Item = &'r ReceivedResult>,
) -> Vec<Entry> {
    let new =
        results.into_iter().filter(|received| live_message::accepts_result(chat, &received.result));
    new.map(|received| result_entry(chat, received)).collect()
}

fn answer(
    view: &View,
    mine: &Mine,
    message_id: &MessageId,
    plan: &ResumePlan,
    posted: Option<&ChatRequest>,
) -> Decision {
    let (state, chat) = (&view.state, view.state.chat());
    let live = state.live();
    let is_last = chat.messages.last().is_some_and(|last| last.id == *message_id);
    let may_begin = live.is_none() && is_last && !mine.has_no_place();
    let begin = || mine.begin(message_id);
    let is_due = |chat: &Chat| chat.message_to_continue() == Some(message_id);
    let results = accepted(chat, &mine.outbox);
    match mine.redemption {
        Redemption::Due => {
            let Some(message) = chat.message(message_id) else {
                return answer_to_removed(view, mine, posted);
            };
            let answered = Answered::of(plan, message, chat, posted.is_some());
            let is_live = live.is_some_and(|live| live.message_id == *message_id);
            if answered.is_unknown && is_live && state.lacks_frames() {
                // The calls may be in the frames.
                return Decision::LoadWhole;
            }
            if !answered.is_any {
                return Decision::Done(match answered.is_unknown {
                    true => Response::UnknownCalls,
                    false => Response::Stored(message_id.clone()),
                });
            }
            if answered.is_open && live.is_none() && is_last && mine.has_no_place() {
                return Decision::Done(Response::TooManyRuns);
            }
            let outputs = posted.map_or(0, |posted| chat.bytes_of_new_outputs(posted.messages()));
            if outputs > 0
                && let Err(limit) = mine.settings.limits.check_chat(0, chat.bytes() + outputs)
            {
                return Decision::Done(Response::Limit(limit));
            }
            // The run shows the results as they come.
            match answered.is_open && may_begin && !mine.has_begun {
                true => mine.append(view.control(), vec![begin()]),
                false => Decision::Redeem,
            }
        }
        _ if !results.is_empty() => {
            // The results that complete the message, and the run that reads them, are one append.
            let (mut entries, mut next) = (results, state.clone());
            let has_to_call =
                entries.iter().all(|entry| next.apply(entry).is_ok()) && is_due(next.chat());
            entries.extend((may_begin && has_to_call).then(begin));
            mine.append(view.control(), entries)
        }
        Redemption::Running => Decision::AwaitResults,
        Redemption::Failed => Decision::Done(Response::Failed),
        Redemption::None | Redemption::Done => match live {
            Some(live) if live.message_id == *message_id => join(view, live, mine),
            None if may_begin && is_due(chat) => mine.append(view.control(), vec![begin()]),
            // The client sends the same answers again.
            None if is_last && is_due(chat) => Decision::Done(Response::TooManyRuns),
            _ => Decision::Done(Response::Stored(message_id.clone())),
        },
    }
}

/// The message was removed, or the chat has never had it. A response that has replaced it is shown.
fn answer_to_removed(view: &View, mine: &Mine, posted: Option<&ChatRequest>) -> Decision {
    let chat = view.state.chat();
    let change = posted.map(|posted| change_of(chat, posted, mine.settings.posted_history));
    match change {
        Some(Err(RequestEffect::Answered(id) | RequestEffect::AwaitsResponse(id))) => {
            join_or_stored(view, id, mine)
        }
        Some(Err(_)) => Decision::Done(Response::AlreadyReceived),
        Some(Ok(_)) | None => Decision::Done(Response::UnknownCalls),
    }
}

/// Which calls of a message a request answers.
struct Answered {
    is_any: bool,
    /// One of them has no result.
    is_open: bool,
    /// The request answers calls that the message does not hold.
    is_unknown: bool,
}

impl Answered {
    /// A client that has posted the message names the whole call, and not only the approval.
    fn of(plan: &ResumePlan, message: &UiMessage, chat: &Chat, is_posted: bool) -> Self {
        let (mut is_any, mut is_open, mut is_unknown) = (false, false, false);
        let approvals = plan.unverified_responses().map(|answer| {
            let mut parts = message.tool_parts();
            let part = parts.find(|part| match is_posted {
                true => answer.is_of(part),
                false => part.approval_id() == Some(&answer.approval_id),
            });
            let closed = chat.call_outcomes.iter();
            let mut closed = closed.filter(|known| known.message_id.as_ref() == Some(&message.id));
            let is_closed =
                closed.any(|known| known.approval_id.as_ref() == Some(&answer.approval_id));
            part.map(|part| matches!(part.state, ToolState::ApprovalRequested { .. }))
                .or(is_closed.then_some(false))
        });
        let outputs = plan.unverified_outputs().map(|output| {
            let mut parts = message.tool_parts();
            parts.find(|part| part.tool_call_id == output.tool_call_id)?;
            let mut of_client = chat.client_executed.iter();
            Some(of_client.any(|call| call.tool_call_id == output.tool_call_id))
        });
        for answered in approvals.chain(outputs) {
            is_any |= answered.is_some();
            is_open |= answered == Some(true);
            is_unknown |= answered.is_none();
        }
        Answered { is_any, is_open, is_unknown }
    }
}

fn end(live: &Live, end: RunEnd) -> Entry {
    OtherEntry::End { run: live.run.clone(), end }.into()
}

/// Joins the live run if it writes this message. Otherwise the response is the stored message.
fn join_or_stored(view: &View, id: MessageId, mine: &Mine) -> Decision {
    match view.state.live().filter(|live| live.message_id == id) {
        Some(live) => join(view, live, mine),
        None => Decision::Done(Response::Stored(id)),
    }
}

/// Joins the live run, unless its lease has passed. Then this turn ends it.
fn join(view: &View, live: &Live, mine: &Mine) -> Decision {
    if view.head.is_lost {
        return end_lost(view, live, mine);
    }
    if view.state.lacks_begun_message() {
        return Decision::LoadWhole;
    }
    Decision::Done(joined(view, live))
}

/// Returns the response that reads this run.
pub(crate) fn joined(view: &View, live: &Live) -> Response {
    Response::Join {
        epoch: view.head.epoch,
        run: live.run.clone(),
        message_id: live.message_id.clone(),
        begin: live.begin,
        begun: view.state.begun_message(),
        length: view.state.length(),
    }
}

/// Ends a lost run, and resumes it where that repeats nothing and loses nothing.
fn end_lost(view: &View, live: &Live, mine: &Mine) -> Decision {
    // A process that stood still renews the lease as soon as it goes on.
    let reads = if live.is_handed_over { 1 } else { LOST_READS };
    if mine.lost_reads < reads {
        return Decision::WaitForHolder;
    }
    if view.state.lacks_frames() {
        return Decision::LoadWhole;
    }
    let chat = view.state.chat();
    let open = chat.undecided_calls();
    let known = mine.known.as_ref();
    let known = known.filter(|known| open.iter().all(|call| known.asked.contains(call)));
    let none = KnownCalls::NONE;
    let Some(known) = known.or(open.is_empty().then_some(&none)) else {
        return Decision::FindDecided(open);
    };
    if known.has_failed {
        // The next reader tries again.
        return Decision::Done(Response::Failed);
    }
    let mut entries = accepted(chat, &known.results);
    entries.extend(unknown_calls(chat, &live.message_id));
    let mut next = view.state.clone();
    if !entries.iter().all(|entry| next.apply(entry).is_ok()) {
        return Decision::Done(Response::Failed);
    }
    let how = match live.is_in_step {
        true => RunEnd::Interrupted,
        // The client may not send the answers again.
        false if next.has_redeemed_nothing() => RunEnd::Interrupted,
        false if !has_to_go_on(&next, live) => RunEnd::Finished,
        false if view.state.losses() >= MAX_LOSSES || mine.has_no_place() => RunEnd::Interrupted,
        false => RunEnd::ResumedBy(mine.run()),
    };
    let is_resumed = matches!(how, RunEnd::ResumedBy(_));
    match how {
        RunEnd::Interrupted => {
            let cut_off = AgentEvent::error(INTERRUPTED);
            entries.extend(write_lost_end(Some(&cut_off), &mut next));
        }
        RunEnd::Finished if live.step_end.is_none() => {
            entries.extend(write_lost_end(None, &mut next));
        }
        _ => {}
    }
    entries.push(end(live, how));
    entries.extend(is_resumed.then(|| mine.begin(&live.message_id)));
    let lease = is_resumed.then_some(mine.settings.lease);
    // It depends on the frames, so on the position.
    let expected = view.position();
    let (entries, only_lost) = (entries.into(), true);
    Decision::Append(Append { expected, entries, lease, only_lost, listed: None })
}

/// Whether the model has to be called for the message of a lost run.
fn has_to_go_on(next: &ChatState, live: &Live) -> bool {
    let chat = next.chat();
    if chat.message_to_continue() == Some(&live.message_id) {
        return true;
    }
    if live.step_end.is_some() {
        return false;
    }
    match chat.message(&live.message_id) {
        None => chat.messages.last().is_some_and(|last| last.role == Role::User),
        Some(message) => !chat.has_open_calls(message) && ends_with_calls(message),
    }
}

/// Whether the last step of a message has calls, whose results the model has not read.
fn ends_with_calls(message: &UiMessage) -> bool {
    let steps = message.parts.iter().rev();
    let mut last = steps.take_while(|part| !matches!(part, Part::StepStart { .. }));
    last.any(|part| matches!(part, Part::Tool(_)))
}

/// The results of the calls of a lost run that its server may have executed.
fn unknown_calls(chat: &Chat, message_id: &MessageId) -> Vec<Entry> {
    let parts = chat.message(message_id).into_iter().flat_map(UiMessage::tool_parts);
    let is_of_client = |id: &_| chat.client_executed.iter().any(|call| call.tool_call_id == *id);
    let started = parts.filter(|part| {
        let is_started = matches!(part.state, ToolState::InputAvailable { .. })
            || matches!(part.state, ToolState::OutputAvailable { .. }) && !part.is_settled();
        is_started && part.approval_id().is_none() && !is_of_client(&part.tool_call_id)
    });
    let unknown = started.map(|part| {
        let call = PendingToolCall::client_executed(
            part.tool_call_id.clone(),
            part.tool_name.clone(),
            part.input().cloned().unwrap_or_else(crate::Json::null),
        );
        let mut result = call.with_outcome(DeferredOutcome::OutcomeUnknown);
        result.message_id = Some(message_id.clone());
        result_entry(chat, &ReceivedResult::new(result, None))
    });
    unknown.collect()
}

impl KnownCalls {
    const NONE: Self =
        KnownCalls { asked: Vec::new(), are_closed: true, results: Vec::new(), has_failed: false };
}

/// How many reads in a row find the lease of a run passed before the run is ended.
const LOST_READS: u8 = 6;

/// How many lost runs in a row are resumed without a request.
const MAX_LOSSES: u32 = 2;
