//! The conformance suites of both traits, on one store and on a new one for each case.

use std::sync::Arc;

use test_support::contention;
use test_support::external_processes::{number, say};
use ui_message_stream::approval::store::{LedgerStore, conformance};
use ui_message_stream_chat::store::conformance as log_conformance;
use ui_message_stream_chat::store::rows::conformance as row_conformance;
use ui_message_stream_sqlite::SqliteStore;

use crate::folder::Folder;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_in_sqlite_pass_the_conformance_suites() {
    let (folder, store) = Folder::with_store().await;
    row_conformance::check(async || store.clone()).await;
    let cases = log_conformance::check(async || store.clone()).await;
    say(&format!("conformance of logs in SQLite: {cases} cases"));
    assert!(cases >= 80, "{cases} cases");
    assert_eq!(log_conformance::check(async || folder.open().await).await, cases);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_in_sqlite_passes_the_conformance_suite() {
    let (folder, store) = Folder::with_store().await;
    let cases = conformance::check(async || store.clone()).await;
    say(&format!("conformance of the ledger in SQLite: {cases} cases"));
    assert_eq!(conformance::check(async || folder.open().await).await, cases);
}

#[test]
fn of_16_stores_on_one_file_that_claim_an_approval_exactly_one_is_granted_the_claim() {
    let folder = Folder::new();
    let file = folder.file();
    let tally = contention::race(number("SQLITE_RACES", 50), async || {
        Arc::new(SqliteStore::open(&file).await.unwrap()) as Arc<dyn LedgerStore>
    });
    say(&format!("the ledger in SQLite, 16 stores on one file: {tally}"));
}
