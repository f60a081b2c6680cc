//! Processes are killed at random moments while agents that are tools ask for calls, and go on.

use std::process::Command;
use std::sync::Arc;

use chat_test_support::inner_agent_kills::kill_at_random;
use ui_message_stream_sqlite::SqliteStore;

use crate::process::{Folder, block_on};

pub(crate) fn each_call_runs_at_most_once_and_no_question_is_lost() -> String {
    let folder = Folder::new();
    let server = || {
        let mut server = Command::new(std::env::current_exe().unwrap());
        server.env("ROLE", "agents").env("FILE", folder.file());
        server
    };
    let open = async || {
        folder.check_integrity();
        Arc::new(SqliteStore::open(folder.file()).await.unwrap())
    };
    block_on(kill_at_random(server, open))
}
