//! How much of a log is read for a page of it.

use std::time::Duration;

use chat_test_support::store_requests::{EPOCH, adas, begin};
use ui_message_stream_chat::store::{LogStore, ReadLogEntries};

use crate::database::Database;

#[tokio::test]
async fn a_page_of_a_long_log_visits_its_own_rows_and_few_others() {
    let Some(database) = Database::new() else { return };
    let options = database.options().with_max_connections(1);
    let store = options.open(&database.server.url()).await.unwrap();
    let key = adas("chat");
    begin(&store, &key).await;
    database
        .execute(
            "INSERT INTO items (row_id, sequence, position, kind, body)
             SELECT id, 0, number, 0, convert_to(repeat(chr(1), 100), 'UTF8')
             FROM rows, generate_series(1, 19999) AS number WHERE name = 'hchat'",
        )
        .await;
    let (position, max_bytes) = (5000, 8 << 10);
    let read = ReadLogEntries { key: &key, epoch: EPOCH, position, max_bytes, is_reader: true };
    let page = store.read(read).await.unwrap().unwrap();
    assert_eq!((page.entries.len(), page.head.length), (81, 20_000));
    // Postgres has counted the rows when the connection is closed.
    drop(store);
    let select = format!(
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_all_tables \
         WHERE schemaname = '{}' AND relname = 'items'",
        database.schema
    );
    let visited = async {
        loop {
            match database.number(&select).await {
                0 => tokio::time::sleep(Duration::from_millis(10)).await,
                visited => return visited,
            }
        }
    };
    let visited = test_support::within_patience(visited).await;
    // The store looks at no more than 1000 entries for a page.
    assert!((81..=1024).contains(&visited), "{visited}");
}
