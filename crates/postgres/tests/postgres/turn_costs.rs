//! How many transactions of a turn write something. Each of them is synced to the disk.

use std::sync::Arc;

use chat_test_support::turn_costs::costs_of_ten_turns;
use test_support::external_processes::postgres_server::PostgresServer;
use tokio_postgres::NoTls;
use ui_message_stream_postgres::PostgresStore;

#[tokio::test]
async fn a_turn_needs_3_transactions_that_write() {
    // Another test would write as well.
    let Some(server) = PostgresServer::start() else { return };
    let store = PostgresStore::open(&server.url()).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    // It writes too.
    client.execute("ALTER SYSTEM SET autovacuum = off", &[]).await.unwrap();
    client.execute("SELECT pg_reload_conf()", &[]).await.unwrap();
    let transactions = async || {
        let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text";
        let next: String = client.query_one(next, &[]).await.unwrap().get(0);
        [next.parse().unwrap()]
    };
    let costs = costs_of_ten_turns(Arc::new(store), transactions).await;
    assert_eq!(costs.as_flattened().iter().sum::<u64>(), 30, "{costs:?}");
}
