//! Two servers on one ledger, whose writes may fail, and tools that run until the test ends them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use test_support::ledger_double::{Fault, LedgerDouble, Operation};
use tokio::sync::oneshot;
use ui_message_stream::approval::store::InMemoryLedger;
use ui_message_stream::approval::{
    Approvals, ApprovedCall, ChangedInput, DefinitionDigest, EditableInput, KeyRing, OnNewMessage,
    Principal, Progress, ToolInfo, ToolOutcome, Toolbox, UnixMillis,
};
use ui_message_stream::{BoxFuture, Json};

use super::model::{Editable, LEASE, PRINCIPALS, TOOLS, TTL};

pub(super) fn principal(who: usize) -> Principal {
    let (tenant, id) = PRINCIPALS[who];
    Principal::new(id).with_tenant(tenant)
}

/// The number of a principal.
pub(super) fn number_of(of: &Principal) -> usize {
    (0..PRINCIPALS.len()).find(|who| principal(*who) == *of).unwrap()
}

/// What happens to an operation of the ledger.
pub(super) type Fate = Option<Fault>;

/// The operation is done.
pub(super) const DONE: Fate = None;

/// The operation fails.
pub(super) const FAILS: Fate = Some(Fault::NotDone("the connection was lost"));

/// The operation is done, and its response is lost.
pub(super) const DONE_AND_FAILS: Fate = Some(Fault::Done("the connection was lost"));

/// The connection of a server to the ledger.
#[derive(Debug)]
pub(super) struct Connection {
    next: Mutex<(VecDeque<Fate>, Fate, usize)>,
}

impl Connection {
    fn fault(&self, operation: Operation<'_>) -> Option<Fault> {
        if let Operation::Insert(_) = operation {
            return None;
        }
        let mut next = self.next.lock().unwrap();
        let fate = next.0.pop_front().unwrap_or(next.1);
        next.2 += usize::from(fate != DONE);
        match operation {
            // Only the response to a write is lost.
            Operation::Load(_) | Operation::List if fate == DONE_AND_FAILS => DONE,
            _ => fate,
        }
    }

    /// Sets what happens to the next operations.
    pub(super) fn set(&self, fates: &[Fate], others: Fate) {
        *self.next.lock().unwrap() = (fates.iter().copied().collect(), others, 0);
    }

    /// How many operations have failed since the last call of `set`.
    pub(super) fn failures(&self) -> usize {
        self.next.lock().unwrap().2
    }
}

/// What all servers share beside the ledger: the time, and the calls that were given to a tool.
#[derive(Debug, Default)]
pub(super) struct Host {
    pub(super) now: u64,
    pub(super) started: Vec<Started>,
}

/// A call that a tool executes.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) call: ApprovedCall,
    pub(super) server: usize,
    pub(super) at: u64,
    /// Ends the tool.
    pub(super) end: Option<oneshot::Sender<()>>,
}

/// The tools at one server.
#[derive(Debug, Clone)]
pub(super) struct Tools {
    pub(super) server: usize,
    pub(super) host: Arc<Mutex<Host>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "the schema of all tools")]
struct Payment {
    to: String,
    amount: f64,
}

impl Toolbox for Tools {
    fn tool(&self, name: &str) -> Option<ToolInfo> {
        let tool = TOOLS.iter().find(|tool| tool.name == name)?;
        let info = ToolInfo::new(DefinitionDigest::new(name, "", &Json::null()));
        let mut info = info.editable(match tool.editable {
            Editable::Nothing => EditableInput::Nothing,
            Editable::Amount => EditableInput::Fields(vec!["amount".into()]),
            Editable::Everything => EditableInput::Everything,
        });
        info.idempotent = tool.is_idempotent;
        info.decided_by_others = tool.decided_by_others;
        info.on_new_message = Some(match tool.runs_after_new_message {
            true => OnNewMessage::Run,
            false => OnNewMessage::Lapse,
        });
        Some(info)
    }

    fn check_input(&self, _: &str, input: &ChangedInput) -> Result<(), String> {
        input.changed.decode::<Payment>().map(drop).map_err(|error| error.to_string())
    }

    fn permits<'a>(&'a self, call: &'a ApprovedCall) -> BoxFuture<'a, bool> {
        Box::pin(std::future::ready(!call.input.as_str().contains("1000000")))
    }

    fn run(&self, call: ApprovedCall, _: Progress) -> BoxFuture<'static, ToolOutcome> {
        let (end, ended) = oneshot::channel();
        let mut host = self.host.lock().unwrap();
        let (server, at) = (self.server, host.now);
        host.started.push(Started { call, server, at, end: Some(end) });
        Box::pin(async {
            let _ = ended.await;
            ToolOutcome::Output(Json::string("done"))
        })
    }
}

/// A server. A server that has crashed reaches the ledger no more, and another one takes its place.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) approvals: Approvals,
    pub(super) connection: Arc<Connection>,
    pub(super) tools: Tools,
}

impl Server {
    pub(super) fn new(
        number: usize,
        ledger: &Arc<InMemoryLedger>,
        host: &Arc<Mutex<Host>>,
    ) -> Self {
        let tools = Tools { server: number, host: host.clone() };
        let connection = Arc::new(Connection { next: Mutex::new((VecDeque::new(), DONE, 0)) });
        let to_ledger = Arc::clone(&connection);
        let double =
            LedgerDouble::over(ledger.clone(), move |operation| to_ledger.fault(operation));
        let approvals = Approvals::new(tools.clone())
            .with_keys(KeyRing::new(1, &test_support::secret(7)).unwrap())
            .with_ledger(Arc::new(double))
            .with_lease(Duration::from_millis(LEASE))
            .with_approval_ttl(Duration::from_millis(TTL))
            .authorize_decision(|who, record| {
                let is_approver = matches!(who.id(), Some("boss" | "deputy"));
                is_approver && who.tenant() == record.requester.tenant()
            });
        Server { approvals, connection, tools }
    }
}

/// When the tests begin.
pub(super) const START: UnixMillis = UnixMillis(1_000_000_000_000);
