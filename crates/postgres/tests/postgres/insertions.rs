//! How many rows an insertion of approvals reads.

use test_support::contention;
use ui_message_stream::approval::RecordId;
use ui_message_stream::approval::store::{LedgerStore, PendingLimits};

use crate::database::Database;

#[tokio::test]
async fn an_insertion_counts_no_more_rows_than_the_limits() {
    let Some(database) = Database::new() else { return };
    let store = database.open().await;
    let records: Vec<_> = (0..10_000_u128)
        .map(|number| contention::record(RecordId::from_bytes(number.to_be_bytes())))
        .collect();
    for batch in records.chunks(1_000) {
        let inserted = store.insert_all(batch, PendingLimits::NONE).await.unwrap();
        assert_eq!(inserted.stored, batch.len());
    }
    database.execute("ANALYZE approvals").await;
    let mut client = database.connect().await;
    let owner: String =
        client.query_one("SELECT requester FROM approvals LIMIT 1", &[]).await.unwrap().get(0);
    let transaction = client.transaction().await.unwrap();
    let insert = "SELECT of_requester, in_chat FROM insert_approvals($1, 'chat', 20, 30, '{new}', \
        '{true}', '{0}', '{9000000000000}', '{9000000000000}', '{record}')";
    let row = transaction.query_one(insert, &[&owner]).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (30, 20));
    let read = "SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_xact_user_tables \
        WHERE relname = 'approvals' AND schemaname = current_schema()";
    let read: i64 = transaction.query_one(read, &[]).await.unwrap().get(0);
    assert!(read <= 20 + 30 + 2, "{read} rows");
}
