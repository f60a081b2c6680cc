//! Counts the transactions of a turn that get an id, which those that write do. Each of them is synced to the disk.

use std::sync::Arc;

use chat_test_support::turn_costs::costs_of_ten_turns;
use test_support::external_processes::postgres_server::PostgresServer;
use tokio_postgres::NoTls;
use ui_message_stream_postgres::PostgresStore;

#[tokio::test]
async fn the_transactions_of_a_turn_that_write_are_counted() {
    // A server of its own: it counts the transactions of all its sessions.
    let Some(server) = PostgresServer::start() else { return };
    let store = PostgresStore::open(&server.url()).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    // Autovacuum has transactions of its own.
    client.execute("ALTER SYSTEM SET autovacuum = off", &[]).await.unwrap();
    client.execute("SELECT pg_reload_conf()", &[]).await.unwrap();
    let transactions = async || {
        let next = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text";
        let next: String = client.query_one(next, &[]).await.unwrap().get(0);
        [next.parse().unwrap()]
    };
    let [transactions] = costs_of_ten_turns(Arc::new(store), transactions).await;
    assert_eq!(transactions[5], 3, "{transactions:?}");
}
