//! A process that executes an approved tool is killed at each of twelve points around claim, effect, outcome and
//! emission, for a tool that runs at most once and for an idempotent one. No effect happens twice, and every chat
//! continues.
//!
//! The points are in the tool, in the ledger and in the handler of the chat. `POINT_KILLS` sets the number of kills at
//! each point (1).

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use futures::Stream;
use test_support::external_processes::{number, say};
use test_support::kills::{Backend, Journal, Process, Role};
use tokio::time::sleep;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{
    ApprovalState, Approvals, ApprovedCall, Progress, RecordId, ResumePlan, ToolInfo, ToolOutcome,
    Toolbox,
};
use ui_message_stream::event::ToolCall;
use ui_message_stream::message::ToolState;
use ui_message_stream::testing::Conversation;
use ui_message_stream::{AgentEvent, BoxFuture, ChatRequest, Json, UiMessageStream, UserText};

use super::{Store, TOOL, ada, block_on, tool_info};

/// The points, each with the state of the approval and the number of effects after a kill there.
const POINTS: [(&str, State, usize); 12] = [
    ("answer-received", State::Pending, 0),
    ("permission-asked", State::Pending, 0),
    ("before-claim", State::Pending, 0),
    ("after-claim", State::Claimed, 0),
    ("before-renewal", State::Claimed, 0),
    ("tool-begun", State::Claimed, 0),
    ("effect-written", State::Claimed, 1),
    ("effect-done", State::Claimed, 1),
    ("before-outcome", State::Claimed, 1),
    ("after-outcome", State::Done, 1),
    ("before-emission", State::Done, 1),
    ("after-emission", State::Done, 1),
];

/// The roles of the processes: with a tool that runs at most once, and with an idempotent one.
pub(super) const AT_MOST_ONCE: &str = "at-most-once";
pub(super) const IDEMPOTENT: &str = "idempotent";

/// A process to kill at one point.
#[derive(Debug, Clone, Copy)]
struct PointTrial {
    point: usize,
    role: &'static str,
}

/// The state of an approval, and the counts of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Status {
    state: State,
    attempts: usize,
    effects: usize,
}

/// The state in the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Pending,
    Claimed,
    Done,
    Unknown,
}

/// Executes the trials of all points, some at once, and prints what was observed.
pub(super) fn no_effect_happens_twice_and_every_chat_continues<B: Backend<Store: Store>>(
    backend: &(impl Fn() -> B + Sync),
) -> String {
    let trials = (0..number("POINT_KILLS", 1)).flat_map(|_| 0..POINTS.len());
    let trials: Vec<PointTrial> = trials
        .flat_map(|point| [AT_MOST_ONCE, IDEMPOTENT].map(|role| PointTrial { point, role }))
        .collect();
    let next = AtomicUsize::new(0);
    let run = || {
        let mut observed = Vec::new();
        while let Some(trial) = trials.get(next.fetch_add(1, Ordering::Relaxed)) {
            observed.push((trial.point, trial.role, block_on(trial.run(&backend()))));
        }
        observed
    };
    let mut tally: BTreeMap<_, usize> = BTreeMap::new();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(run)).collect();
        for observed in threads.into_iter().flat_map(|thread| thread.join().unwrap()) {
            *tally.entry(observed).or_default() += 1;
        }
    });
    for ((point, role, [killed, restarted]), count) in tally {
        let point = POINTS[point].0;
        say(&format!(
            "{count:4} × {point:16} {role:12} {killed:?}, after a restart: {restarted:?}"
        ));
    }
    format!("{} processes killed, no effect twice, every chat continued", trials.len())
}

impl PointTrial {
    /// Runs the trial. Returns what it observed after the kill, and after another server has continued the chat.
    /// Panics if this is not what is expected.
    async fn run<B: Backend<Store: Store>>(&self, backend: &B) -> [Status; 2] {
        let (point, state, effects) = POINTS[self.point];
        let process = Process::start_to_stop(point, self.role, 0, backend);
        let journal = backend.journal();
        journal.wait_for(&format!("at {point}"), 1);
        process.kill();
        let store = B::open(&backend.address()).await;
        let record = asked(&journal, 0);
        let after_kill = self.status(&*store, &journal, record).await;
        assert_eq!((after_kill.state, after_kill.effects), (state, effects), "{self:?}");

        // The lease of the killed process ends.
        journal.pass_time(LEASE);
        let server = Role::of_test(self.role, 1, String::new(), journal.clone());
        // The page was loaded again, and the user approves again.
        let messages = fs::read(journal.path("messages")).unwrap();
        let messages: Vec<_> = serde_json::from_slice(&messages).unwrap();
        let mut chat = page(store.clone(), &server).with_messages(messages);
        chat.approve(TOOL).await;
        assert_eq!(chat.error(), None, "{self:?}");
        let after_restart = self.status(&*store, &journal, record).await;
        self.check_after_restart(after_kill, after_restart, &chat.tool_call(TOOL).state);

        chat.send("And those too").await;
        chat.approve(TOOL).await;
        assert_eq!(chat.error(), None, "{self:?}");
        let shown = &chat.tool_call(TOOL).state;
        assert!(matches!(shown, ToolState::OutputAvailable { .. }), "{self:?}: {shown:?}");
        let next = self.status(&*store, &journal, asked(&journal, 1)).await;
        assert_eq!(next, Status { state: State::Done, attempts: 1, effects: 1 }, "{self:?}");
        assert_eq!(self.status(&*store, &journal, record).await, after_restart, "{self:?}");
        [after_kill, after_restart]
    }

    async fn status(
        &self,
        ledger: &impl LedgerStore,
        journal: &Journal,
        record: RecordId,
    ) -> Status {
        let stored = ledger.load(&[record]).await.unwrap().records.remove(0).record;
        let state = match stored.state {
            ApprovalState::Pending => State::Pending,
            ApprovalState::Claimed { .. } => State::Claimed,
            ApprovalState::Completed { .. } => State::Done,
            ApprovalState::OutcomeUnknown { .. } => State::Unknown,
            other => panic!("{self:?}: {other:?}"),
        };
        let attempts = journal.after(&format!("attempt {record}")).len();
        let effects = journal.after(&format!("effect {record}")).len();
        assert!(effects <= 1, "{self:?}: {effects} effects");
        assert!(self.role == IDEMPOTENT || attempts <= 1, "{self:?}: {attempts} attempts");
        Status { state, attempts, effects }
    }

    fn check_after_restart(&self, after_kill: Status, after_restart: Status, shown: &ToolState) {
        let is_unknown = after_kill.state == State::Claimed && self.role == AT_MOST_ONCE;
        let expected = if is_unknown {
            Status { state: State::Unknown, ..after_kill }
        } else {
            let runs_now = after_kill.state != State::Done;
            let attempts = after_kill.attempts + usize::from(runs_now);
            Status { state: State::Done, attempts, effects: 1 }
        };
        assert_eq!(after_restart, expected, "{self:?}");
        match shown {
            ToolState::OutputAvailable { output, .. } if !is_unknown => {
                assert_eq!(output, &Some(Json::string("deleted")), "{self:?}");
            }
            ToolState::OutputError { error_text, .. } if is_unknown => {
                assert_eq!(error_text, UserText::OutcomeUnknown.text(), "{self:?}");
            }
            other => panic!("{self:?} shows {other:?}"),
        }
    }
}

/// Returns the only approval that this process has requested.
fn asked(journal: &Journal, process: u64) -> RecordId {
    let asked = journal.after(&format!("asks {process}"));
    assert_eq!(asked.len(), 1);
    asked[0].parse().unwrap()
}

/// In the process: requests an approval and executes its call, until a point is reached.
pub(super) async fn act(role: Role, store: Arc<impl Store>) {
    let mut chat = page(store, &role);
    chat.send("Delete my notes").await;
    let messages = serde_json::to_vec(chat.messages()).unwrap();
    fs::write(role.journal.path("messages"), messages).unwrap();
    chat.approve(TOOL).await;
}

/// Creates a client of a chat with one tool that needs approval.
fn page(ledger: Arc<dyn LedgerStore>, role: &Role) -> Conversation<'static> {
    let approvals = super::approvals(role, ledger, Tool(role.clone())).with_lease(LEASE);
    let role = role.clone();
    Conversation::new(async move |chat: ChatRequest| {
        UiMessageStream::reply(&chat, events(approvals.clone(), role.clone(), chat.clone()))
    })
}

/// Emits the results of the approval responses. After a user message, requests approval of a new call.
fn events(approvals: Approvals, role: Role, chat: ChatRequest) -> impl Stream<Item = AgentEvent> {
    async_stream::stream! {
        let is_approval_response = chat.continued_message().is_some();
        if is_approval_response {
            role.pass("answer-received").await;
        }
        let approvals = approvals.for_chat(&ada(), chat.id());
        let plan = ResumePlan::new(chat.messages(), chat.continued_message());
        let mut resolved = approvals.resolve(plan, &[]).await.unwrap();
        while let Some(result) = resolved.next().await {
            role.pass("before-emission").await;
            if let Some(event) = AgentEvent::from_deferred(&result) {
                yield event;
            }
            role.pass("after-emission").await;
        }
        if !is_approval_response {
            let call = format!("call_{}", chat.messages().len());
            let input = Json::string("notes.txt");
            yield AgentEvent::tool_input(ToolCall::new(&*call, TOOL), input.clone());
            let (message, call) = ("message".into(), call.into());
            let request =
                approvals.request_approval(&message, &call, TOOL, &input, None).await.unwrap();
            yield request.event(call);
        }
    }
}

/// Has one effect for each idempotency key: a line in the journal.
#[derive(Debug)]
struct Tool(Role);

impl Toolbox for Tool {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        let tool = tool_info(name)?;
        Some(if self.0.name == IDEMPOTENT { tool.idempotent() } else { tool })
    }

    fn permits<'a>(&'a self, _: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(async {
            self.0.pass("permission-asked").await;
            true
        })
    }

    fn run(&self, call: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        let role = self.0.clone();
        Box::pin(async move {
            let (journal, key) = (&role.journal, call.idempotency_key);
            journal.write(format!("attempt {key}")).sync_all().unwrap();
            role.pass("tool-begun").await;
            // The lease is renewed meanwhile.
            while journal.after(&format!("renewed {} {key}", role.number)).is_empty() {
                sleep(Duration::from_millis(5)).await;
            }
            let effect = format!("effect {key}");
            // An idempotent tool recognizes a call that it receives twice.
            if role.name != IDEMPOTENT || journal.after(&effect).is_empty() {
                let written = journal.write(&effect);
                role.pass("effect-written").await;
                written.sync_all().unwrap();
            }
            role.pass("effect-done").await;
            ToolOutcome::Output(Json::string("deleted"))
        })
    }
}

const AT_ONCE: usize = 8;

/// The lease of a claim. It is renewed after a third of it.
const LEASE: Duration = Duration::from_secs(6);
