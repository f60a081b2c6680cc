//! [`InnerAgents`]: servers are killed while agents that are tools ask the user for calls of their own tools, and go
//! on with the answers, often at another server than the one that has asked. No call runs twice, no denied call
//! runs, and each question that is shown can be answered and is gone on with.
//!
//! Each process is a server and its users: they send messages, and answer the questions that they read, in chats
//! that they choose at random.

mod agent;
mod checks;
mod users;

use std::sync::Arc;

use futures::{StreamExt, stream};
use test_support::kills::{Backend, Journal, Role, Trial, kill_at_random, kills};
use tokio::time::sleep;

use self::checks::Checks;
use self::users::{LEASE, Users};
use super::{Store, ada};

pub(super) async fn each_call_runs_at_most_once_and_no_question_is_lost(
    backend: &impl Backend<Store: Store>,
) -> String {
    kill_at_random::<_, InnerAgents>(backend).await
}

pub(super) struct InnerAgents;

impl<B: Backend<Store: Store>> Trial<B> for InnerAgents {
    const ROLE: &'static str = "agents";
    const MAX_LINES: usize = 40;

    async fn act(role: Role, store: Arc<B::Store>) {
        Users::new(role, store).act().await;
    }

    async fn check(store: Arc<B::Store>, journal: Journal, next: u64) -> String {
        // Of runs, and of approved calls.
        sleep(2 * LEASE).await;
        let role = Role::of_test("", next, String::new(), journal.clone());
        let users = Users::new(role, store.clone());
        let ids = (0..chats()).map(|number| format!("chat{number}"));
        let chats = stream::iter(ids).map(async |id| users.finish(&id).await).buffer_unordered(8);
        let chats: Vec<_> = chats.filter_map(async |chat| chat).collect().await;
        Checks::new(&*store, journal, chats).await.check()
    }
}

/// The number of chats among which the users choose.
fn chats() -> usize {
    4 * kills()
}
