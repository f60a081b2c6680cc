//! Logs over the rows of a database: those in memory.

use test_support::external_processes::say;
use ui_message_stream_chat::store::{InMemoryLogStore, conformance};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_over_rows_in_memory_pass_the_conformance_suite() {
    let cases = conformance::check(async || InMemoryLogStore::new()).await;
    say(&format!("conformance of logs over rows in memory: {cases} cases"));
    assert!(cases >= 80, "{cases} cases");
}
