//! Servers are killed with SIGKILL at random moments, while agents that are tools ask the user for calls of
//! their own tools, and go on with the answers, often at another server than the one that has asked. No call
//! runs twice, no denied call runs, and each question that is shown can be answered and is gone on with.
//!
//! A test of a store starts its own program as these servers. Up to two run at once on one store. Each of them
//! is the server and its users: they send messages, and answer the questions that they read, in chats that they
//! choose at random. All processes write what they do to one file, whose lines have one order.

mod agent;
mod checks;
mod events;
mod processes;
mod users;

use std::sync::Arc;

use test_support::rng::setting;
use ui_message_stream::approval::Principal;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream_chat::store::LogStore;

use self::events::Events;
use self::users::Users;

pub use self::processes::kill_at_random;

/// A server with its users, in its process.
#[derive(Debug)]
pub struct Server {
    events: Events,
    number: u64,
}

impl Server {
    /// Returns `None` if this process is not such a server.
    pub fn from_environment() -> Option<Self> {
        let events = Events::in_folder(std::env::var_os("INNER_AGENTS")?);
        Some(Server { events, number: setting("SERVER").unwrap() })
    }

    /// Serves until the process is killed.
    pub async fn serve<S: LogStore + LedgerStore + 'static>(self, store: Arc<S>) {
        let users = Users::new(self.events, self.number, store);
        println!("serving");
        users.act().await;
    }
}

/// The number of chats among which the users choose.
fn chats() -> usize {
    2 * kills()
}

fn kills() -> usize {
    test_support::external_processes::number("KILLS", 20).max(20)
}

fn ada() -> Principal {
    Principal::new("ada")
}

const SEED: u64 = 40;
