//! How many rows an insertion of approvals reads.

use test_support::contention;
use tokio_postgres::types::ToSql;
use ui_message_stream::approval::RecordId;
use ui_message_stream::approval::store::{LedgerStore, PendingLimits, RecordList};

use crate::database::Database;

#[tokio::test]
async fn an_insertion_counts_no_more_rows_than_the_limits() {
    let Some((database, store)) = Database::with_store().await else { return };
    let records: Vec<_> = (0..10_000_u128)
        .map(|number| contention::record(RecordId::from_bytes(number.to_be_bytes())))
        .collect();
    for batch in records.chunks(1_000) {
        let inserted = store.insert_all(batch, PendingLimits::NONE).await.unwrap();
        assert_eq!(inserted.stored, batch.len());
    }
    database.execute("ANALYZE approvals, approval_lists").await;
    let mut client = database.connect().await;
    let owner: String =
        client.query_one("SELECT requester FROM approvals LIMIT 1", &[]).await.unwrap().get(0);
    let transaction = client.transaction().await.unwrap();
    let insert = "SELECT of_requester, in_chat FROM insert_approvals($1, 'chat', $2, $3, 20, 30, '{new}', \
        '{9000000000000}', '{record}', '{1}', '{list}', '{9000000000000}')";
    let list = RecordList::of_requester(&records[0].requester);
    let in_chat = list.in_chat(&records[0].chat_id);
    let lists: [&(dyn ToSql + Sync); 3] = [&owner, &list.as_str(), &in_chat.as_str()];
    let row = transaction.query_one(insert, &lists).await.unwrap();
    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (30, 20));
    let read = "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::BIGINT FROM pg_stat_xact_user_tables \
        WHERE relname IN ('approvals', 'approval_lists') AND schemaname = current_schema()";
    let read: i64 = transaction.query_one(read, &[]).await.unwrap().get(0);
    assert!(read <= 20 + 30 + 2, "{read} rows");
}
