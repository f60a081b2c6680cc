//! How much of a log is read for a page of it.

use test_support::store_requests::{begin, run_key};
use ui_message_stream::approval::Principal;
use ui_message_stream::chat::log::ReadLog;
use ui_message_stream::chat::store::RunStore;

use crate::database::Database;

#[tokio::test]
async fn a_page_of_a_long_log_visits_its_own_rows_and_few_others() {
    let Some(database) = Database::new() else { return };
    let options = database.options().with_max_connections(1);
    let store = options.open(&database.server.url()).await.unwrap();
    let key = run_key(&Principal::new("ada"), "run");
    let _ = begin(&store, &key, 1).await;
    database
        .execute(
            "UPDATE runs SET length = 20000;
             INSERT INTO run_entries (run, position, entries, bytes)
             SELECT key, number, ARRAY[convert_to(repeat(chr(1), 101), 'UTF8')], 100
             FROM runs, generate_series(0, 19999) AS number",
        )
        .await;
    let read = ReadLog { key: &key, after: 5000, max_bytes: 8 << 10, is_reader: true };
    let page = store.read(read).await.unwrap().unwrap();
    assert_eq!((page.entries.len(), page.length), (81, 20_000));
    // Postgres has counted the rows when the connection is closed.
    drop(store);
    let select = format!(
        "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_all_tables \
         WHERE schemaname = '{}' AND relname = 'run_entries'",
        database.schema
    );
    let visited = async {
        loop {
            match database.number(&select).await {
                0 => tokio::time::sleep(std::time::Duration::from_millis(10)).await,
                visited => return visited,
            }
        }
    };
    let visited = tokio::time::timeout(std::time::Duration::from_secs(60), visited).await.unwrap();
    assert!((81..500).contains(&visited), "{visited}");
}
