//! What processes do with a store until they are killed, and what holds afterwards: the same for each store.
//!
//! The binaries `crash_recovery` of Redis and SQLite start themselves as other processes on one store, and kill
//! these with SIGKILL: at each of twelve points around an approved call, and at random moments while they write,
//! deliver events of approvals, and execute agents that ask for calls. `POINT_KILLS` and `KILLS` set the number of
//! kills. A further store implements `Backend` of `tests/support/src/kills.rs`.

mod inner_agents;
mod ledger;
mod notices;
mod points;
mod writes;

use std::sync::Arc;

use test_support::external_processes::say;
use test_support::kills::{Backend, Role, Trial};
use ui_message_stream::Json;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream::approval::{
    Approvals, DefinitionDigest, KeyRing, Principal, ToolInfo, Toolbox,
};

use crate::faulted_operations::Store;

use self::inner_agents::InnerAgents;
use self::ledger::WatchedLedger;
use self::notices::Notices;
use self::writes::Writes;

/// In a process: does what its role says. Panics if the role is none of these trials.
pub async fn act<B: Backend<Store: Store>>(role: Role) {
    let store = role.start::<B>().await;
    match &*role.name {
        <Notices as Trial<B>>::ROLE => <Notices as Trial<B>>::act(role, store).await,
        <InnerAgents as Trial<B>>::ROLE => <InnerAgents as Trial<B>>::act(role, store).await,
        <Writes as Trial<B>>::ROLE => <Writes as Trial<B>>::act(role, store).await,
        points::AT_MOST_ONCE | points::IDEMPOTENT => points::act(role, store).await,
        other => panic!("no role {other}"),
    }
}

/// Executes all trials, each on a backend of its own, and prints what they have counted.
pub fn run<B: Backend<Store: Store>>(name: &str, backend: impl Fn() -> B + Sync) {
    let killed = points::no_effect_happens_twice_and_every_chat_continues(&backend);
    say(&format!("{name}, points: {killed}"));
    block_on(async {
        let trial = backend();
        let counts = notices::each_event_is_delivered_at_least_once_and_in_order(&trial).await;
        say(&format!("{name}, notices: {counts}"));
        let trial = backend();
        let counts =
            inner_agents::each_call_runs_at_most_once_and_no_question_is_lost(&trial).await;
        say(&format!("{name}, inner agents: {counts}"));
        let trial = backend();
        let counts = writes::what_was_reported_as_saved_survives_a_kill(&trial).await;
        say(&format!("{name}, writes: {counts}"));
    });
}

/// Executes a future on a runtime of its own.
pub fn block_on<T>(run: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run)
}

/// Returns the approvals of a process, in a ledger that is watched.
fn approvals(role: &Role, ledger: Arc<dyn LedgerStore>, tools: impl Toolbox) -> Approvals {
    Approvals::new(tools)
        .with_keys(KeyRing::new(1, &test_support::secret(7)).unwrap())
        .with_ledger(Arc::new(WatchedLedger::new(ledger, role.clone())))
}

/// Describes the tool of the trials, if it has this name.
fn tool_info(name: &str) -> Option<ToolInfo> {
    let definition = DefinitionDigest::new(name, "deletes a file", &Json::null());
    (name == TOOL).then(|| ToolInfo::new(definition))
}

fn ada() -> Principal {
    Principal::new("ada")
}

const TOOL: &str = "delete_file";
