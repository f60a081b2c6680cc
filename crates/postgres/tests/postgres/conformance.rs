//! The conformance suites of both traits, on one store and on a new one for each case.

use std::sync::Arc;

use test_support::contention;
use test_support::external_processes::{number, say};
use ui_message_stream::approval::store::{ApprovalUse, LedgerStore, ReplayGuard, conformance};
use ui_message_stream::approval::{RecordId, UnixMillis};
use ui_message_stream_chat::store::conformance as log_conformance;
use ui_message_stream_chat::store::rows::conformance as row_conformance;

use crate::database::Database;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_in_postgres_pass_the_conformance_suites() {
    let Some((database, store)) = Database::with_store().await else { return };
    row_conformance::check(async || store.clone()).await;
    let cases = log_conformance::check(async || store.clone()).await;
    say(&format!("conformance of logs in Postgres: {cases} cases"));
    // A database with other defaults.
    let serializable = "-c%20default_transaction_isolation%3Dserializable";
    let url = format!("{}?options={serializable}", database.server.url());
    let open = async || database.options().open(&url).await.unwrap();
    assert_eq!(log_conformance::check(open).await, cases);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_ledger_in_postgres_passes_the_conformance_suite() {
    let Some((database, store)) = Database::with_store().await else { return };
    let cases = conformance::check(async || store.clone()).await;
    say(&format!("conformance of the ledger in Postgres: {cases} cases"));
    assert_eq!(conformance::check(async || database.open().await).await, cases);
}

#[test]
fn of_16_stores_that_claim_an_approval_exactly_one_is_granted_the_claim() {
    let Some(database) = Database::new() else { return };
    let tally = contention::race(number("POSTGRES_RACES", 50), async || {
        Arc::new(database.open().await) as Arc<dyn LedgerStore>
    });
    say(&format!("the ledger in Postgres, 16 stores: {tally}"));
}

#[tokio::test]
async fn of_two_uses_of_a_stateless_approval_the_first_is_kept() {
    let Some(database) = Database::new() else { return };
    let (store, other) = (database.open().await, database.open().await);
    let id = RecordId::from_bytes([1; 16]);
    let end = UnixMillis(u64::MAX);
    assert_eq!(store.first_use(id).await.unwrap(), None);
    let (one, two) = tokio::join!(
        store.set_if_absent(id, ApprovalUse::Claimed, end),
        other.set_if_absent(id, ApprovalUse::Denied, end),
    );
    let first = match (one.unwrap(), two.unwrap()) {
        (None, Some(first)) => {
            assert_eq!(first, ApprovalUse::Claimed);
            first
        }
        (Some(first), None) => {
            assert_eq!(first, ApprovalUse::Denied);
            first
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(store.first_use(id).await.unwrap(), Some(first));
}
