//! Two servers on one ledger, whose writes may fail, and tools that run until the test ends them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use tokio::sync::oneshot;
use ui_message_stream::approval::store::{
    InMemoryLedger, Inserted, LedgerStore, LedgerStoreError, ListRecords, ListedRecords,
    PendingLimits, Snapshot,
};
use ui_message_stream::approval::{
    ApprovalRecord, Approvals, ApprovedCall, DefinitionDigest, EditableInput, KeyRing,
    OnNewMessage, Principal, Progress, RecordId, ToolInfo, ToolOutcome, Toolbox, UnixMillis,
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
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fate {
    Done,
    Fails,
    /// It is done, and its response is lost.
    DoneAndFails,
}

/// The connection of a server to the ledger.
#[derive(Debug)]
pub(super) struct Connection {
    ledger: Arc<InMemoryLedger>,
    next: Mutex<(VecDeque<Fate>, Fate, usize)>,
}

impl Connection {
    fn fate(&self) -> Result<Fate, LedgerStoreError> {
        let mut next = self.next.lock().unwrap();
        let fate = next.0.pop_front().unwrap_or(next.1);
        next.2 += usize::from(fate != Fate::Done);
        if fate == Fate::Fails { Err(lost()) } else { Ok(fate) }
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

fn lost() -> LedgerStoreError {
    LedgerStoreError::new("the connection was lost")
}

type Answer<'a, T> = BoxFuture<'a, Result<T, LedgerStoreError>>;

impl LedgerStore for Connection {
    fn insert_all<'a>(
        &'a self,
        records: &'a [ApprovalRecord],
        limits: PendingLimits,
    ) -> Answer<'a, Inserted> {
        self.ledger.insert_all(records, limits)
    }

    fn load<'a>(&'a self, ids: &'a [RecordId]) -> Answer<'a, Snapshot> {
        Box::pin(async { (self.fate()?, self.ledger.load(ids).await).1 })
    }

    fn read_list<'a>(&'a self, query: ListRecords<'a>) -> Answer<'a, ListedRecords> {
        Box::pin(async move { (self.fate()?, self.ledger.read_list(query).await).1 })
    }

    fn compare_and_swap<'a>(
        &'a self,
        record: &'a ApprovalRecord,
        revision: u64,
    ) -> Answer<'a, bool> {
        Box::pin(async move {
            let fate = self.fate()?;
            let is_stored = self.ledger.compare_and_swap(record, revision).await?;
            if fate == Fate::DoneAndFails { Err(lost()) } else { Ok(is_stored) }
        })
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

    fn check_input(&self, _: &str, input: &Json) -> Result<(), String> {
        input.decode::<Payment>().map(drop).map_err(|error| error.to_string())
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
    pub(super) ledger: Arc<Connection>,
    pub(super) tools: Tools,
}

impl Server {
    pub(super) fn new(
        number: usize,
        ledger: &Arc<InMemoryLedger>,
        host: &Arc<Mutex<Host>>,
    ) -> Self {
        let tools = Tools { server: number, host: host.clone() };
        let next = Mutex::new((VecDeque::new(), Fate::Done, 0));
        let ledger = Arc::new(Connection { ledger: ledger.clone(), next });
        let approvals = Approvals::new(tools.clone())
            .with_keys(KeyRing::new(1, &test_support::secret(7)).unwrap())
            .with_ledger(ledger.clone())
            .with_lease(Duration::from_millis(LEASE))
            .with_approval_ttl(Duration::from_millis(TTL))
            .authorize_decision(|who, record| {
                let is_approver = matches!(who.id(), Some("boss" | "deputy"));
                is_approver && who.tenant() == record.requester.tenant()
            });
        Server { approvals, ledger, tools }
    }
}

/// When the tests begin.
pub(super) const START: UnixMillis = UnixMillis(1_000_000_000_000);
