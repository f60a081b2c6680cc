//! Processes are killed at random moments while they deliver the events of approvals.

use std::process::Command;
use std::sync::Arc;

use test_support::notifier_kills;
use ui_message_stream::approval::store::LedgerStore;
use ui_message_stream_sqlite::SqliteStore;

use crate::process::{Folder, block_on};

pub(crate) fn each_event_is_delivered_at_least_once_and_in_order() -> String {
    let folder = Folder::new();
    let server = || {
        let mut server = Command::new(std::env::current_exe().unwrap());
        server.env("ROLE", "notify").env("FILE", folder.file());
        server
    };
    let open = async || {
        folder.check_integrity();
        let store = SqliteStore::open(folder.file()).await.unwrap();
        Arc::new(store) as Arc<dyn LedgerStore>
    };
    block_on(notifier_kills::kill_at_random(server, open))
}
